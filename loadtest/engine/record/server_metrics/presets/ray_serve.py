"""Ray Serve: what Ray's own metrics port exports (ours passes it on at `/metrics/ray`).

Ray's processes hand their figures over every few seconds, so that counts come in steps. Its count of requests has no
role: whatever reaches a replica is in it, questions for metadata too, and a request that passes through several
deployments is in each one's.
"""

from tailrate.loadtest.engine.record.server_metrics.presets import COUNTER, GAUGE, HISTOGRAM, Preset, ServerMetric

PRESET = Preset(
    "Ray Serve",
    (
        ServerMetric(
            "ray_serve_deployment_request_counter_total", COUNTER, "requests", "Requests that replicas have processed.",
            "requests",
        ),
        ServerMetric(
            "ray_serve_deployment_error_counter_total", COUNTER, "exceptions", "Exceptions in replicas.",
            "requests", "errors",
        ),
        ServerMetric(
            "ray_serve_deployment_queued_queries", GAUGE, "queued", "Requests that wait for a replica to take them.",
            "requests", "queue",
        ),
        ServerMetric(
            "ray_serve_replica_processing_queries", GAUGE, "in replicas", "Requests that replicas are working on.",
            "requests", "running",
        ),
        ServerMetric(
            "ray_serve_actual_batch_size", HISTOGRAM, "requests in a batch",
            "Requests in each batch of @serve.batch.", "requests", "batch",
        ),
        ServerMetric(
            "ray_serve_batch_queue_length", GAUGE, "waiting for a batch",
            "Requests in the queues of @serve.batch.", "requests", "queue",
        ),
        ServerMetric(
            "ray_serve_deployment_processing_latency_ms", HISTOGRAM, "time in a replica",
            "How long replicas took for a request.", "ms",
        ),
    ),
    model=("application",),
)  # fmt: skip
