"""soak: bert for hours in chapters, every variant at once, with requests of one row or four and of several lengths.

    tailrate serve bert
    locust -f loadtest/soak.py --headless --host http://127.0.0.1:8000 --rates 20 --total-seconds 28800
    tailrate soak soak --host http://127.0.0.1:8000 --rates 20 --hours 8

Any other scenario soaks with `--mode soak`; what this one adds is the mix, and the defaults for a night. Only what
`tailrate soak` starts can go on after a crash.
"""

from __future__ import annotations

from typing import Any

from locust import events

from tailrate.loadtest import bert

LENGTHS = "16:2,64:5,128:3"
"""Tokens and how often; an endpoint with `--set sequences=…` computes shorter ones in less."""


def options(parser: Any, **_: Any) -> None:
    parser.set_defaults(lengths=LENGTHS)


events.init_command_line_parser.add_listener(options)


class Soak(bert.Bert):
    model = "bert"
    mode = "soak"
    rates = "20"
    rows = "1,4"
    total_seconds = 28800.0
    settle_seconds = 30.0
