"""NVIDIA Triton, by itself and with TensorRT-LLM behind it; its metrics have a port of their own, 8002."""

from tailrate.loadtest.engine.record.server_metrics.presets import COUNTER, GAUGE, Preset, ServerMetric

PRESET = Preset(
    "Triton",
    (
        ServerMetric(
            "nv_inference_request_success", COUNTER, "requests", "Requests that succeeded, whatever their batch size.",
            "requests", "requests",
        ),
        ServerMetric(
            "nv_inference_request_failure", COUNTER, "failed requests", "Requests that failed.", "requests", "errors"
        ),
        ServerMetric(
            "nv_inference_pending_request_count", GAUGE, "pending", "Requests that wait to be executed.",
            "requests", "queue",
        ),
        ServerMetric(
            "nv_inference_count", COUNTER, "rows in a batch", "Rows inferred for each execution of the model.",
            "rows", "batch", per="nv_inference_exec_count",
        ),
        ServerMetric(
            "nv_inference_queue_duration_us", COUNTER, "time in the queue",
            "How long a request waited for its execution.", "ms", per="nv_inference_request_success", factor=1e-3,
        ),
        ServerMetric(
            "nv_inference_compute_infer_duration_us", COUNTER, "time in the model",
            "How long the model took, for each request of its batch.", "ms",
            per="nv_inference_request_success", factor=1e-3,
        ),
        ServerMetric(
            "nv_trt_llm_request_metrics", GAUGE, "waiting in TensorRT-LLM",
            "Requests that wait for a place in a batch.", "requests", "queue", {"request_type": "waiting"},
        ),
        ServerMetric(
            "nv_trt_llm_request_metrics", GAUGE, "active in TensorRT-LLM", "Requests in the running batch.",
            "requests", "running", {"request_type": "active"},
        ),
        ServerMetric(
            "nv_trt_llm_kv_cache_block_metrics", GAUGE, "KV cache", "Share of the blocks of the KV cache in use.",
            "share", "cache", {"kv_cache_block_type": "fraction"}, across="max",
        ),
    ),
    model=("model",),
    version=("version",),
)  # fmt: skip
