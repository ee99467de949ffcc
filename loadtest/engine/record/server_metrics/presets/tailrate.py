"""`tailrate serve`: its own `/metrics`."""

from tailrate.loadtest.engine.record.server_metrics.presets import COUNTER, GAUGE, Preset, ServerMetric

PRESET = Preset(
    "tailrate",
    (
        ServerMetric(
            "tailrate_requests_total", COUNTER, "requests", "Requests answered with a result.",
            "requests", "requests", {"outcome": "success"},
        ),
        ServerMetric(
            "tailrate_requests_total", COUNTER, "requests without a result",
            "Requests that were refused, came too late or failed.",
            "requests", "errors", {"outcome": "fail"},
        ),
        ServerMetric(
            "tailrate_waiting", GAUGE, "waiting", "Requests in the queues of the replicas.", "requests", "queue"
        ),
        ServerMetric(
            "tailrate_rows_total", COUNTER, "rows in a batch", "Rows inferred for each batch that was run.",
            "rows", "batch", per="tailrate_batches_total",
        ),
    ),
    model=("model",),
    version=("variant",),
)  # fmt: skip
