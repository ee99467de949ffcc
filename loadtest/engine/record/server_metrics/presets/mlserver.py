"""MLServer, whose metrics have a port of their own, 8082.

It notes the length of a queue whenever a request joins it, so that a queue is a histogram and not a gauge.
"""

from tailrate.loadtest.engine.record.server_metrics.presets import COUNTER, GAUGE, HISTOGRAM, Preset, ServerMetric

PRESET = Preset(
    "MLServer",
    (
        ServerMetric(
            "model_infer_request_success_total", COUNTER, "requests", "Requests that succeeded.", "requests", "requests"
        ),
        ServerMetric(
            "model_infer_request_failure_total", COUNTER, "failed requests", "Requests that failed.",
            "requests", "errors",
        ),
        ServerMetric(
            "batch_request_queue", HISTOGRAM, "queue for a batch",
            "Length of the adaptive batching's queue when a request joined it.", "requests", "queue",
        ),
        ServerMetric(
            "parallel_request_queue", HISTOGRAM, "queue for a worker",
            "Length of the queue to the inference workers when a request joined it.", "requests", "queue",
        ),
        ServerMetric(
            "rest_server_requests_in_progress", GAUGE, "REST requests under way", "REST requests not answered yet.",
            "requests", "running",
        ),
        ServerMetric(
            "model_infer_request_duration", HISTOGRAM, "time in the server",
            "How long the server took for a request.", "s",
        ),
    ),
    model=("model", "model_name"),
    version=("version", "model_version"),
)  # fmt: skip
