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
        ServerMetric(
            "tailrate_slots_used", GAUGE, "slots in use", "Answers that are being written, token by token.",
            "requests", "running",
        ),
        ServerMetric(
            "tailrate_tokens_written_total", COUNTER, "answers in a step", "Tokens written for each step of the model.",
            "rows", per="tailrate_steps_total",
        ),
        ServerMetric(
            "tailrate_prompt_seconds_total", COUNTER, "time reading prompts",
            "Seconds of each second in which a prompt was read, while answers wait.", "s",
        ),
    ),
    model=("model",),
    version=("variant",),
)  # fmt: skip
