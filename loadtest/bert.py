"""bert: 128 token ids a request, or a sentence with `--text`, at rising rates.

    tailrate serve bert
    locust -f loadtest/bert.py --headless --host http://127.0.0.1:8000 --rates 1:6:1

Ids cost the endpoint no tokenizer; text costs it one, as a user would.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from locust import events

from tailrate.loadtest.engine.user import EndpointUser

WORDS = "the a load test sends many requests while one server answers each of them in time and counts what is late"


def options(parser: Any, **_: Any) -> None:
    parser.add_argument("--tokens", env_var="LOCUST_TOKENS", type=int, default=128, help="token ids per row")
    parser.add_argument("--lengths", env_var="LOCUST_LENGTHS", default="", help="a mix, such as 32:5,128:4,512:1")
    parser.add_argument("--text", env_var="LOCUST_TEXT", action="store_true", default=False, help="send text, not ids")


events.init_command_line_parser.add_listener(options)


def drawn(mix: str, rng: np.random.Generator) -> int:
    """A length of the mix, each as likely as its weight says."""
    try:
        pairs = [(int(length), float(weight)) for length, _, weight in (word.partition(":") for word in mix.split(","))]
        weights = np.array([weight for _, weight in pairs])
        return int(rng.choice([length for length, _ in pairs], p=weights / weights.sum()))
    except ValueError:
        raise SystemExit(f"--lengths '{mix}' is not understood; write for instance 32:5,128:4,512:1") from None


class Bert(EndpointUser):
    model = "bert"
    outputs = ("pooler_output",)
    rates = "1:6:1"

    def from_row(self, row: Any) -> dict[str, np.ndarray]:
        if "text" in row:
            return {"text": np.array([[row["text"]]], dtype=object)}
        return {"input_ids": np.array([row["input_ids"]], dtype=np.int64)}

    def payload(self, rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        tokens = self.environment.parsed_options.tokens
        if mix := self.environment.parsed_options.lengths:
            tokens = drawn(mix, rng)
        if self.environment.parsed_options.text:
            sentences = [" ".join(rng.choice(WORDS.split(), tokens // 2)) for _ in range(rows)]
            return {"text": np.array(sentences, dtype=object).reshape(rows, 1)}
        # every id that any vocabulary has, its first special ones aside
        return {"input_ids": rng.integers(110, 1000, (rows, tokens), dtype=np.int64)}
