"""A run of Weights & Biases', where its own variables say; offline in the run folder with WANDB_MODE=offline."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from tailrate.analysis.exports.forms._form import Report
from tailrate.analysis.exports.forms._tracking import facts, files, limits, missing, points
from tailrate.analysis.records.folder import RunError

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run


def _write(run: Run, report: Report) -> str:
    """Under the run's own name, so that a second time takes the place of the first."""
    try:
        import wandb
    except ImportError:
        raise missing("wandb") from None
    settings = wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True)
    try:
        logged = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "tailrate",
            id=re.sub(r"[^\w-]", "-", run.manifest.id, flags=re.ASCII)[:64],
            name=run.manifest.id,
            notes=report["conclusion"],
            tags=[report["verdict"]],
            config=facts(run),
            dir=str(run.folder),
            settings=settings,
        )
        logged.define_metric("*", step_metric="load")
        for point in points(run, report):
            logged.log({"load": point.load, **point.figures})
        logged.summary.update({"verdict": report["verdict"], **limits(report)})
        whole = wandb.Artifact(f"report-{logged.id}", "report")
        for path in files(run):
            whole.add_file(str(path))
        logged.log_artifact(whole)
        place = logged.dir if logged.offline else logged.url
        logged.finish()
    except wandb.errors.Error as problem:
        raise RunError(f"Weights & Biases did not take the run: {problem}") from None
    return str(place)


FORM = _write
