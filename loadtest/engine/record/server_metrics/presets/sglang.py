"""SGLang, started with `--enable-metrics`."""

from tailrate.loadtest.engine.record.server_metrics.presets import COUNTER, GAUGE, HISTOGRAM, Preset, ServerMetric

PRESET = Preset(
    "SGLang",
    (
        ServerMetric(
            "sglang:num_requests_total", COUNTER, "requests", "Requests that came to their end.", "requests", "requests"
        ),
        ServerMetric(
            "sglang:num_aborted_requests_total", COUNTER, "aborted requests", "Requests that were aborted.",
            "requests", "errors",
        ),
        ServerMetric(
            "sglang:num_queue_reqs", GAUGE, "waiting", "Requests that wait to be scheduled.", "requests", "queue"
        ),
        ServerMetric(
            "sglang:num_running_reqs", GAUGE, "running", "Requests in the running batch.", "requests", "running"
        ),
        ServerMetric(
            "sglang:token_usage", GAUGE, "KV cache", "Share of the tokens that the KV cache can hold in use.",
            "share", "cache", across="max",
        ),
        ServerMetric("sglang:prompt_tokens_total", COUNTER, "prompt tokens", "Tokens of prompts processed.", "tokens"),
        ServerMetric("sglang:generation_tokens_total", COUNTER, "generated tokens", "Tokens generated.", "tokens"),
        ServerMetric(
            "sglang:time_to_first_token_seconds", HISTOGRAM, "time to first token",
            "From a request's coming to its first token.", "s",
        ),
    ),
    model=("model_name",),
)  # fmt: skip
