"""What was advised, as files: a Ray Serve config, a HorizontalPodAutoscaler, and a KEDA ScaledObject.

`serve.yaml` is what `tailrate serve MODEL --config` prints, with the autoscaler's figures at the endpoint's deployment;
`serve run`, `serve deploy` and KubeRay's `serveConfigV2` take it. The two others are for pods that each run
`tailrate serve MODEL --variants VARIANT` by itself. Texts are written as JSON, which YAML holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrate.analysis.text.table import plain

if TYPE_CHECKING:
    from tailrate.analysis.planning.plan.autoscaling import AutoscalingAdvice
    from tailrate.analysis.planning.plan.candidates import PlannedVariant

NAMES = SERVE, HPA, KEDA = "serve.yaml", "hpa.yaml", "keda.yaml"
MARK = "Ray Serve's autoscaler, as simulated, has"
"""In the first line of each."""
DEFAULT_QUEUE = 256
WINDOW = "4m"
"""Of a rate: four scrapes of a minute, Prometheus' default, as a rate takes two and one may be lost."""


def write(folder: Path, variant: PlannedVariant, advice: AutoscalingAdvice) -> list[Path]:
    made = {SERVE: serve_yaml, HPA: hpa_yaml, KEDA: keda_yaml}
    for name, text in made.items():
        (folder / name).write_text(text(variant, advice), encoding="utf-8")
    return [folder / name for name in made]


def serve_yaml(variant: PlannedVariant, advice: AutoscalingAdvice) -> str:
    model, _, name = variant.endpoint.rpartition("/")
    deployment, chosen, fleet = f"{model}-{name}", advice.chosen, variant.fleet
    args = {"models": model, "variants": name, "max_batch": str(round(fleet.max_batch * variant.calibration.rows))}
    if fleet.batch_wait_s:
        args["max_wait_ms"] = str(fleet.batch_wait_s * 1e3)
    if fleet.queue not in (0, DEFAULT_QUEUE):
        args["max_queue"] = str(fleet.queue)
    if chosen.min_replicas > 1:
        args["replicas"] = str(chosen.min_replicas)
    args["max_replicas"] = str(chosen.max_replicas)
    scaling = {
        "min_replicas": chosen.min_replicas,
        "max_replicas": chosen.max_replicas,
        "target_ongoing_requests": chosen.target_ongoing,
        "upscale_delay_s": chosen.upscale_delay_s,
        "downscale_delay_s": chosen.downscale_delay_s,
    }
    applications: list[dict[str, Any]] = [
        {
            "name": "gateway",
            "route_prefix": "/",
            "import_path": "tailrate.serve.deploy.app:build",
            "args": {**args, "part": "gateway"},
        },
        {
            "name": deployment,
            "route_prefix": f"/v2/models/{model}/versions/{name}",
            "import_path": "tailrate.serve.deploy.app:build",
            "args": {**args, "part": variant.endpoint},
            "deployments": [{"name": deployment, "autoscaling_config": scaling}],
        },
    ]
    said = [
        *_summary(variant, advice),
        "Add under args what else `tailrate serve` was given (device, weights, settings), to both applications.",
    ]
    return _text(
        said,
        {
            "http_options": {"host": "127.0.0.1", "port": 8000},
            "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
            "applications": applications,
        },
    )


def query(variant: PlannedVariant) -> str:
    """Requests in the replicas, by Little's law: what all answers took, per second of time."""
    model, _, name = variant.endpoint.rpartition("/")
    return f'sum(rate(tailrate_request_seconds_sum{{model="{model}",variant="{name}"}}[{WINDOW}]))'


def hpa_yaml(variant: PlannedVariant, advice: AutoscalingAdvice) -> str:
    chosen, workload = advice.chosen, _workload(variant)
    model, _, name = variant.endpoint.rpartition("/")
    said = [
        *_other(variant, advice, "This autoscaler"),
        "The metric tailrate_ongoing_requests is made by a rule of the Prometheus adapter (external, query):",
        f"  {query(variant)}",
        "It is the number of requests that are in the replicas; the autoscaler divides it by the pods (AverageValue).",
    ]
    metric = {
        "type": "External",
        "external": {
            "metric": {
                "name": "tailrate_ongoing_requests",
                "selector": {"matchLabels": {"model": model, "variant": name}},
            },
            "target": {"type": "AverageValue", "averageValue": f"{round(chosen.target_ongoing * 1000)}m"},
        },
    }
    return _text(
        said,
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": workload},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": workload},
                "minReplicas": max(1, chosen.min_replicas),
                "maxReplicas": chosen.max_replicas,
                "metrics": [metric],
                "behavior": _behavior(advice),
            },
        },
    )


def keda_yaml(variant: PlannedVariant, advice: AutoscalingAdvice) -> str:
    chosen, workload = advice.chosen, _workload(variant)
    said = [
        *_other(variant, advice, "KEDA's autoscaler"),
        "The query is the number of requests that are in the replicas (Little's law over the server's own histogram);",
        "KEDA divides it by the pods. Set serverAddress to your Prometheus.",
    ]
    trigger = {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": "http://prometheus.monitoring.svc:9090",
            "query": query(variant),
            "threshold": f"{chosen.target_ongoing:g}",
        },
    }
    return _text(
        said,
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"name": workload},
            "spec": {
                "scaleTargetRef": {"name": workload},
                "pollingInterval": 10,
                "minReplicaCount": max(1, chosen.min_replicas),
                "maxReplicaCount": chosen.max_replicas,
                # while Prometheus does not answer: too few would refuse requests
                "fallback": {"failureThreshold": 3, "replicas": chosen.max_replicas},
                "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(advice)}},
                "triggers": [trigger],
            },
        },
    )


def _workload(variant: PlannedVariant) -> str:
    return "tailrate-" + variant.endpoint.replace("/", "-").replace("_", "-").lower()


def _behavior(advice: AutoscalingAdvice) -> dict[str, Any]:
    chosen = advice.chosen
    return {
        "scaleUp": {"stabilizationWindowSeconds": math.ceil(chosen.upscale_delay_s)},
        "scaleDown": {"stabilizationWindowSeconds": math.ceil(chosen.downscale_delay_s)},
    }


def _summary(variant: PlannedVariant, advice: AutoscalingAdvice) -> list[str]:
    chosen = advice.chosen
    return [
        f"{variant.endpoint}: {MARK} {chosen.replicas_mean:.3g} replicas on average "
        f"instead of {advice.static_replicas},",
        f"over {advice.over}, cold start {advice.cold_start_s:.3g} s,",
        f"and {chosen.missed:.2%} of the requests beyond the objective's latency.".replace("%", " %"),
    ]


def _other(variant: PlannedVariant, advice: AutoscalingAdvice, who: str) -> list[str]:
    """What was not simulated."""
    return [
        *_summary(variant, advice),
        f"{who} was not simulated: it has the same target, but sees the mean of {WINDOW}, so it is later.",
        "With scrapes every 15 s a window of 1m will do, and it is less so.",
    ]


# ---- YAML


def _text(comments: Sequence[str], found: Mapping[str, Any]) -> str:
    return "".join(f"# {plain(line)}\n" for line in comments) + "".join(f"{line}\n" for line in _lines(found))


def _lines(found: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in found.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list):
            yield f"{indent}{key}:"
            for item in value:
                first, *rest = _lines(item, indent + "  ")
                yield f"{indent}- {first.lstrip()}"
                yield from rest
        else:
            yield f"{indent}{key}: {json.dumps(value, ensure_ascii=False)}"
