"""Environment variables that a locustfile of ours listens to: our own options' and Locust's."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from tailrate.loadtest.engine.modes import OPTIONS


def of_locust() -> set[str]:
    """Read from Locust's source, as importing it would have gevent take over this process."""
    spec = find_spec("locust")
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).with_name("argument_parser.py").read_text()
    return {f"LOCUST_{option.key.upper()}" for option in OPTIONS} | set(re.findall(r'env_var="(LOCUST_\w+)"', text))
