"""An engine's process and its replica's: what goes between them, and what one does when the other is gone."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from typing import Any

import psutil
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from tailrate.serve.engine.language.messages import Incoming, Served, packed
from tailrate.serve.engine.language.process import LogSender
from tailrate.serve.engine.language.remote import RemoteGenerator
from tailrate.serve.options import ServeOptions

PARENT = """
import asyncio
from tailrate.serve.engine.language.messages import Served
from tailrate.serve.engine.language.remote import RemoteGenerator
from tailrate.serve.options import ServeOptions

async def main():
    served = Served(ServeOptions(models=("tiny_llama",)), "tiny_llama", "eager", "x")
    engine = RemoteGenerator(served, print, max_queue=1)
    engine.start()
    print(engine._process.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@given(
    st.lists(st.recursive(st.integers() | st.text() | st.binary(max_size=300), st.lists, max_leaves=5)),
    st.lists(st.integers(1, 40), min_size=1),
)
def test_messages_come_whole_and_in_order_however_they_are_cut(messages: list[Any], sizes: list[int]) -> None:
    came: list[Any] = []
    incoming = Incoming(came.append, lambda: None)
    whole = b"".join(map(packed, messages))
    begin = turn = 0
    while begin < len(whole):
        size = sizes[turn % len(sizes)]
        incoming.data_received(whole[begin : begin + size])
        begin, turn = begin + size, turn + 1
    assert came == messages


def test_what_is_logged_there_is_logged_here_with_its_traceback() -> None:
    sent: list[logging.LogRecord] = []
    logger = logging.Logger("there")
    logger.addHandler(LogSender(lambda record: sent.append(pickle.loads(pickle.dumps(record)))))
    try:
        raise ValueError(open)  # which no pickle takes
    except ValueError as problem:
        logger.warning("a step of %s failed", object, exc_info=problem)
    logger.info("nothing that anybody need know")
    (record,) = sent
    assert (record.name, record.levelname, record.lineno > 0) == ("there", "WARNING", True)
    assert "a step of <class 'object'> failed" in record.getMessage()
    assert "ValueError: <built-in function open>" in record.getMessage()


def test_a_process_that_says_nothing_is_trouble() -> None:
    served = Served(ServeOptions(models=("tiny_llama",)), "tiny_llama", "eager", "x")
    engine = RemoteGenerator(served, print, max_queue=1)
    engine._stands(None, {"state": "READY", "_opening_s": 5.0}, (1, "cpu", {}), {}, {})
    assert engine.trouble(100) is None
    engine._heard_s -= 101
    assert engine.trouble(100) == "the engine's process has said nothing for 101 s"
    engine._opening_s = 200  # it may take as long again
    assert engine.trouble(100) is None


def test_the_process_ends_with_its_replica() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            child = psutil.Process(int(parent.stdout.readline()))
            # which has no command line for a moment, while it becomes another program
            until(lambda: "tailrate.serve.engine.language.process" in child.cmdline(), every_s=0.01)
        finally:
            parent.kill()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
