"""Processes beside this one: the server of a model, a bare measurement, and how all of them end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from tailrate.cli.misuse import refuse

STOP_S = 30


def terminate_is_ctrl_c() -> None:
    """A scheduler's SIGTERM and the hang-up of a terminal keep as much as a person's Ctrl-C."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, interrupt)


def stop_with_parent() -> None:
    """What another command started ends when it does, even when that is killed."""
    if "TAILRATE_PARENT" not in os.environ:
        return
    given = os.environ.pop("TAILRATE_PARENT")
    if not given.isdecimal():
        refuse(f"TAILRATE_PARENT is the number of a process that tailrate sets itself, not '{given}'")
    parent = int(given)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def threads_beside(load: int) -> int:
    """Of a server on the machine of so many load processes: they keep cores, or lateness would be all there is to see.

    Of the cores that this process may use, such as those of a container or of `taskset`.
    """
    from tailrate.serve.machine import cores

    return max(1, cores() - load)


@contextmanager
def serving(model: str, variants: Sequence[str], how: dict[str, Any], held: Sequence[int] = ()) -> Iterator[str]:
    """`tailrate serve` in a process of its own, from ready to stopped; yields its URL.

    It keeps the files `held` open.
    """
    from tailrate.loadtest.engine import child_python
    from tailrate.serve.deploy.haproxy import free_port

    port = free_port()
    command = child_python.command("tailrate", "serve", model, "--variants", ",".join(variants), "--port", str(port))
    for key, value in how.items():
        option = f"--{key.replace('_', '-')}"
        said = [f"--set={pair}" for pair in value] if key == "settings" else [f"{option}={value}"]
        command += [option] if value is True else said
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TAILRATE_SERVE_TLS_")}
    environment |= {"TAILRATE_PARENT": str(os.getpid()), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        pass_fds=held,
    )  # fmt: skip
    assert process.stdout is not None
    url = f"http://127.0.0.1:{port}"
    try:
        for line in process.stdout:
            click.echo(line.rstrip(), err=line.startswith("tailrate:"))
            if line.startswith("ready:"):
                break
        else:
            raise SystemExit(process.wait() or 2)
        threading.Thread(target=lambda: [None for _ in process.stdout or ()], daemon=True).start()  # never blocks it
        yield url
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def bare(*words: str) -> Any:
    """What `tailrate.serve.bare_loop` prints; what it refuses is refused here."""
    from tailrate.loadtest.engine import child_python

    command = child_python.command("tailrate.serve.bare_loop", *words)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(2)
    return json.loads(done.stdout.strip().splitlines()[-1])
