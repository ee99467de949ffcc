"""Hugging Face's Text Generation Inference."""

from tailrate.loadtest.engine.record.server_metrics.presets import COUNTER, GAUGE, HISTOGRAM, Preset, ServerMetric

PRESET = Preset(
    "TGI",
    (
        ServerMetric("tgi_request_success", COUNTER, "requests", "Requests that succeeded.", "requests", "requests"),
        ServerMetric("tgi_request_failure", COUNTER, "failed requests", "Requests that failed.", "requests", "errors"),
        ServerMetric("tgi_queue_size", GAUGE, "waiting", "Requests in the queue.", "requests", "queue"),
        ServerMetric(
            "tgi_batch_current_size", GAUGE, "requests in the batch", "Requests in the running batch.",
            "requests", "batch",
        ),
        ServerMetric(
            "tgi_request_queue_duration", HISTOGRAM, "time in the queue", "How long a request waited.", "s"
        ),
        ServerMetric(
            "tgi_request_generated_tokens", HISTOGRAM, "generated tokens", "Tokens generated for a request.", "tokens"
        ),
    ),
)  # fmt: skip
