"""vLLM's OpenAI server."""

from tailrate.loadtest.engine.record.server_metrics.presets import COUNTER, GAUGE, HISTOGRAM, Preset, ServerMetric

PRESET = Preset(
    "vLLM",
    (
        ServerMetric(
            "vllm:request_success_total", COUNTER, "requests", "Requests that came to their end.",
            "requests", "requests",
        ),
        ServerMetric(
            "vllm:num_requests_waiting", GAUGE, "waiting", "Requests that wait to be scheduled.", "requests", "queue"
        ),
        ServerMetric(
            "vllm:num_requests_running", GAUGE, "running", "Requests in the running batch.", "requests", "running"
        ),
        ServerMetric(
            "vllm:kv_cache_usage_perc", GAUGE, "KV cache", "Share of the KV cache in use.", "share", "cache",
            across="max",
        ),
        ServerMetric(
            "vllm:gpu_cache_usage_perc", GAUGE, "KV cache (older name)",
            "Share of the KV cache in use, as versions before 0.10 call it.", "share", "cache", across="max",
        ),
        ServerMetric(
            "vllm:num_preemptions_total", COUNTER, "preemptions",
            "Requests that lost their place in the KV cache and began anew.", "requests",
        ),
        ServerMetric("vllm:prompt_tokens_total", COUNTER, "prompt tokens", "Tokens of prompts processed.", "tokens"),
        ServerMetric(
            "vllm:generation_tokens_total", COUNTER, "generated tokens", "Tokens generated.", "tokens"
        ),
        ServerMetric(
            "vllm:request_queue_time_seconds", HISTOGRAM, "time in the queue",
            "How long a request waited to be scheduled.", "s",
        ),
        ServerMetric(
            "vllm:time_to_first_token_seconds", HISTOGRAM, "time to first token",
            "From a request's coming to its first token.", "s",
        ),
    ),
    model=("model_name",),
)  # fmt: skip
