"""`tailrate profile`."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

import click

from tailrate.cli.misuse import refuse
from tailrate.cli.options import completed, model_names, numbers, out_folder, pair
from tailrate.cli.processes import bare


@click.command()
@click.argument("model", shell_complete=completed(model_names))
@click.option("--variant", default="compiled", show_default=True)
@click.option("--batches", default="1,4", show_default=True, help="rows of a batch: the smallest and the largest")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="a setting of the model")
@click.option("--out", type=out_folder, default="profiles", show_default=True, help="folder for traces")
@click.option("--host", help="profile the next batches of a server that was started with --profile, instead")
@click.option("--ca-file", default="", help="PEM file of the CAs that may vouch for --host, in place of the system's")
@click.option("--calls", type=int, default=20, show_default=True, help="how many batches")
def profile(model: str, variant: str, host: str | None, ca_file: str, calls: int, **given: Any) -> None:
    """Where the time of MODEL's batches goes, by operator; traces open in Perfetto or chrome://tracing."""
    from tailrate.analysis.text.console import tables
    from tailrate.cli.campaign.tables import operators

    if host:
        found = {f"the next {calls} batches": _live_profile(host, ca_file, model, variant, calls)}
    else:
        asked = {"model": model, "variant": variant, "device": given["device"], "profile": str(given["out"])}
        asked |= {"settings": dict(map(pair, given["settings"])), "batches": numbers("--batches", given["batches"])}
        whole = bare(json.dumps(asked | {"calls": calls}))
        if why := whole.get("refused") or whole.get("failed"):
            refuse(why)
        found = {f"batches of {size}": one for size, one in whole["profiles"].items()}
    for what, one in found.items():
        table = operators(f"{model}/{variant}, {what}", one)
        tables([table])
        click.echo(f"trace: {one['trace']}")


def _live_profile(host: str, ca_file: str, model: str, variant: str, batches: int) -> Any:
    from tailrate.loadtest.engine.endpoint import credentials
    from tailrate.loadtest.engine.endpoint.answer import OK, error_sentence
    from tailrate.loadtest.engine.endpoint.client import Client
    from tailrate.serve import wire

    client = Client(host, 120.0, credentials.read(Namespace(token_file="", ca_file=ca_file)).common)
    path = f"{client.prefix}{wire.model_path(model, variant)}/profile"
    answer = client.send("POST", path, json.dumps({"batches": batches, "timeout_s": 100}).encode())
    if answer.status != OK:
        refuse(f"{client.url}: {answer.error or error_sentence(answer.body)}")
    found = json.loads(answer.body)
    return found | {"calls": found["batches"]}
