"""A run of MLflow's, where MLFLOW_TRACKING_URI says."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from tailrate.analysis.exports.forms._form import Report
from tailrate.analysis.exports.forms._tracking import facts, files, limits, missing, points
from tailrate.analysis.records.folder import RunError

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

MOST_CHARACTERS = 250
"""Of a key; a value may have more."""
AT_ONCE = {"metrics": 1000, "params": 100}
RUN_TAG = "tailrate.run"


def _write(run: Run, report: Report) -> str:
    """Once: a run that is there whole already is only named."""
    try:
        import mlflow
    except ImportError:
        raise missing("mlflow") from None
    try:
        return _logged(mlflow, run, report)
    except mlflow.exceptions.MlflowException as problem:
        raise RunError(f"MLflow at {mlflow.get_tracking_uri()} did not take the run: {problem}") from None


def _logged(mlflow: Any, run: Run, report: Report) -> str:
    client, of_run = mlflow.MlflowClient(), mlflow.entities
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "tailrate"
    experiment = client.get_experiment_by_name(name)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
    wanted = f"tags.`{RUN_TAG}` = '{_key(report['run'])}' and attributes.status = 'FINISHED'"
    if there := client.search_runs([experiment_id], wanted, max_results=1):
        return f"{_place(mlflow, there[0])} (already)"
    manifest = run.manifest
    tags = {RUN_TAG: _key(report["run"]), "tailrate.verdict": report["verdict"]}
    tags |= {"mlflow.note.content": report["conclusion"], "mlflow.source.name": "tailrate"}
    started_ms = manifest.started_ns // 1_000_000
    made = client.create_run(experiment_id, started_ms, tags, run_name=manifest.id)
    finished_ms = max(started_ms, manifest.finished_ns // 1_000_000)
    metrics = [
        of_run.Metric(_key(key), value, point.end_ns // 1_000_000, point.at)
        for point in points(run, report)
        for key, value in point.figures.items()
    ]
    metrics += [of_run.Metric(_key(key), value, finished_ms, 0) for key, value in limits(report).items()]
    params = [of_run.Param(_key(key), value[:500]) for key, value in facts(run).items()]
    for kind, found in {"metrics": metrics, "params": params}.items():
        for at in range(0, len(found), AT_ONCE[kind]):
            client.log_batch(made.info.run_id, **{kind: found[at : at + AT_ONCE[kind]]})
    for path in files(run):
        client.log_artifact(made.info.run_id, str(path))
    client.set_terminated(made.info.run_id, "FINISHED", finished_ms)
    return _place(mlflow, made)


def _place(mlflow: Any, found: Any) -> str:
    return f"{mlflow.get_tracking_uri().rstrip('/')}/#/experiments/{found.info.experiment_id}/runs/{found.info.run_id}"


def _key(text: str) -> str:
    """What MLflow takes as a name."""
    return re.sub(r"[^\w\-. :/]", "_", text, flags=re.ASCII)[:MOST_CHARACTERS]


FORM = _write
