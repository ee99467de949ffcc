"""`tailrate serve`."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tailrate.cli.options import completed, model_names, numbers, pair, port, serve_options
from tailrate.cli.processes import stop_with_parent, terminate_is_ctrl_c


@click.command()
@click.argument("models", nargs=-1, shell_complete=completed(model_names))
@click.option("--variants", default="eager,compiled", show_default=True, help="served side by side; the first answers")
@click.option("--host", default="127.0.0.1", show_default=True, help="interface to listen on")
@click.option("--port", type=port, default="8000", show_default=True)
@click.option("--grpc-port", type=click.IntRange(0, 65535), default=0, help="listen for gRPC too, on this port")
@click.option("--token-file", envvar="TAILRATE_TOKEN_FILE", help="tokens, one of which every request must show")
@click.option("--tls-cert", default="", help="PEM file of a certificate: HTTPS instead of HTTP")
@click.option("--tls-key", default="", help="PEM file of its key")
@click.option("--seed", type=int, default=0, show_default=True, help="of random weights")
@click.option("--max-rows", type=int, help="of a request; beyond it it is refused [default: 64 batches]")
@click.option("--max-body-bytes", type=int, default=64 << 20, show_default=True, help="of a request's body")
@click.option("--sample-ms", type=int, default=100, show_default=True, help="period of device samples")
@click.option("--device-trace", default="", help="CSV of device samples that is played back instead of sampling")
@click.option("--keep-on-parity-failure", is_flag=True, help="serve a variant whose outputs differ from eager fp32")
@click.option(
    "--drain-s", type=float, default=30.0, show_default=True, help="to answer what is under way, once stopped"
)
@click.option("--allow-faults", is_flag=True, help="let clients break things on purpose: kill a replica, take the CPU")
@click.option("--list", "only_list", is_flag=True, help="the models and variants there are")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
    envvar="TAILRATE_LOG_FORMAT",
    help="of what replicas log when something breaks; it goes to standard error",
)  # fmt: skip
@click.option("--log-file", type=click.Path(path_type=Path), help="a copy of that, of at most 32 MB")
@click.option("--config", "only_config", is_flag=True, help="print the YAML for `serve run`, or KubeRay, instead")
@serve_options
def serve(
    models: tuple[str, ...], only_list: bool, only_config: bool, token_file: str | None, log_format: str,
    log_file: Path | None, **given: Any,
) -> None:  # fmt: skip
    """Hosts MODELS, every variant side by side, until stopped."""
    from tailrate.serve.deploy.check_options import check, exposure
    from tailrate.serve.edge import auth
    from tailrate.serve.options import ServeOptions, named

    if only_list:
        from tailrate.serve.deploy import listing

        click.echo(listing.text())
        return
    given["variants"] = tuple(name.strip() for name in given["variants"].split(",") if name.strip())
    given["settings"] = dict(pair(text) for text in given["settings"])
    given["buckets"] = numbers("--buckets", given["buckets"])
    options = named(ServeOptions(models=models, **given))
    if token_file:
        os.environ[auth.FILE] = str(Path(token_file).expanduser().absolute())
    check(replace(options, port=0, grpc_port=0) if only_config else options)
    if not only_config and (why := exposure(options)):
        click.echo(f"tailrate: {why}", err=True)
    from tailrate.serve.deploy import app, cluster

    if only_config:
        click.echo(app.configuration(options), nl=False)
        return
    terminate_is_ctrl_c()
    stop_with_parent()
    server = None
    try:
        server = cluster.start(options, click.echo, log_format, log_file)
        click.echo(f"ready: {', '.join(server.endpoints)} at {server.url} (Ctrl-C stops)")
        threading.Event().wait()
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):  # a second one ends it at once
            click.echo("stopping")
            if server is not None:
                server.drain(options.drain_s, click.echo)
    finally:
        if server is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            server.stop()
