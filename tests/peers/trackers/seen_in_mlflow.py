"""What MLflow's own client finds at a server, as JSON: `python seen_in_mlflow.py EXPERIMENT`."""

import json
import sys

import mlflow

client = mlflow.MlflowClient()
experiment = client.get_experiment_by_name(sys.argv[1])
found = []
for run in client.search_runs([experiment.experiment_id]):
    history = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
    found.append(
        {
            "name": run.info.run_name,
            "status": run.info.status,
            "times_ms": [run.info.start_time, run.info.end_time],
            "tags": run.data.tags,
            "params": run.data.params,
            "metrics": {key: [[one.step, one.value, one.timestamp] for one in all_] for key, all_ in history.items()},
            "files": {
                one.path: mlflow.artifacts.load_text(f"{run.info.artifact_uri}/{one.path}")
                for one in client.list_artifacts(run.info.run_id)
            },
        }
    )
json.dump(found, sys.stdout)
