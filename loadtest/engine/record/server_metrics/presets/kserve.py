"""KServe's Python model server."""

from tailrate.loadtest.engine.record.server_metrics.presets import COUNTER, HISTOGRAM, Preset, ServerMetric

PRESET = Preset(
    "KServe",
    (
        ServerMetric(
            "request_predict_seconds_count", COUNTER, "requests", "Requests for which the model predicted.",
            "requests", "requests",
        ),
        ServerMetric(
            "request_preprocess_seconds", HISTOGRAM, "preprocessing", "How long a request's preprocessing took.", "s"
        ),
        ServerMetric("request_predict_seconds", HISTOGRAM, "predicting", "How long the model took for a request.", "s"),
        ServerMetric(
            "request_postprocess_seconds", HISTOGRAM, "postprocessing", "How long a request's postprocessing took.", "s"
        ),
    ),
    model=("model_name",),
)  # fmt: skip
