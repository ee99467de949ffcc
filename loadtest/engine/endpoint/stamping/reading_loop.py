"""The loop of a thread that reads sockets and stamps each read with its instant: compiled, and without Python's lock.

So no Python code (a body that is parsed, a request that is made, a garbage collection) moves a stamp. Who owns the
sockets is `stamping`; both share one row of numbers for each socket, its lane, and the lane's two rings: the bytes that
came, and for each read its instant and how many bytes had come by then. This loop writes what came, the owner what was
taken, and no number is written by both but `PAUSED`, which is the loop's to set and then the owner's to clear.
"""

from __future__ import annotations

import platform
from typing import Any

from numba import types
from numba.extending import intrinsic

from tailrate.analysis.stats.compiled import compiled

CAME, READS, ENDED, PAUSED, TOLD, TAKEN, READS_TAKEN, EACH, BYTES_AT, STAMPS_AT = range(10)
"""Of a lane: bytes and reads so far, whether the other side has hung up, whether there is no room for more, the bytes
at the last word to the owner; the owner's: bytes and reads taken, whether each read is worth a word; where the rings
are in memory."""
FIELDS = 10
RING_BYTES, RING_READS = 1 << 15, 1 << 10
"""Of a lane: powers of two."""
EVENTS = 256
EVENT_BYTES = 12 if platform.machine() == "x86_64" else 16
"""Of C's struct epoll_event, which is packed on that one."""
HUNG_UP = 0x2018
"""EPOLLRDHUP, EPOLLHUP, EPOLLERR."""
DONTWAIT, MONOTONIC = 0x40, 1
EMPTY_LINE, LINE_END = tuple(b"\r\n\r\n"), ord("\n")
WORDS, STOP, LEFT, PASSED = range(4)
"""Of both: how many words there were to the owner, whether to end, how many sockets the owner has let go of, and how
many of these no round still under way can know of."""

_epoll_wait = types.ExternalFunction("epoll_wait", types.int32(types.int32, types.intp, types.int32, types.int32))
_recv = types.ExternalFunction("recv", types.intp(types.int32, types.intp, types.uintp, types.int32))
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_write = types.ExternalFunction("write", types.intp(types.int32, types.intp, types.uintp))


@intrinsic  # type: ignore[untyped-decorator]
def _put(_: Any, address: Any, number: Any) -> Any:
    """Writes a number of eight bytes to an address."""

    def made(_: Any, builder: Any, __: Any, arguments: Any) -> None:
        at, value = arguments
        builder.store(value, builder.inttoptr(at, value.type.as_pointer()))

    return types.void(types.intp, types.int64), made


@intrinsic  # type: ignore[untyped-decorator]
def _byte(_: Any, address: Any) -> Any:
    """What is at an address."""

    def made(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], context.get_value_type(types.uint8).as_pointer()))

    return types.uint8(types.intp), made


@intrinsic  # type: ignore[untyped-decorator]
def _published(_: Any) -> Any:
    """What was written before is seen by whoever sees what is written behind it."""

    def made(_: Any, builder: Any, __: Any, ___: Any) -> Any:
        builder.fence("release")

    return types.void(), made


@compiled
def read_always(epoll: Any, wake: Any, lanes: Any, words: Any, counts: Any, events: Any, scratch: Any, at: Any) -> None:
    """`at`: where `events`, `scratch` and the number one are in memory; `words`: sockets of which there is news."""
    while True:
        ready = _epoll_wait(epoll, at[0], EVENTS, -1)
        if counts[STOP]:
            return
        left, told = counts[LEFT], False
        for k in range(ready):
            event = k * EVENT_BYTES
            what = events[event] | (events[event + 1] << 8)
            socket = events[event + 4] | (events[event + 5] << 8) | (events[event + 6] << 16)
            if lanes[socket, BYTES_AT] and _drained(socket, lanes[socket], (what & HUNG_UP) != 0, scratch, at[1]):
                words[counts[WORDS] & (words.shape[0] - 1)] = socket
                counts[WORDS] += 1
                told = True
        counts[PASSED] = left
        if told:
            _write(wake, at[2], 8)


@compiled
def _drained(socket: Any, lane: Any, hung_up: Any, clock: Any, clock_at: Any) -> Any:
    """Reads what there is; whether that is worth a word."""
    tell = False
    while True:
        place = lane[CAME] & (RING_BYTES - 1)
        room = min(RING_BYTES - (lane[CAME] - lane[TAKEN]), RING_BYTES - place)
        if room <= 0 or lane[READS] - lane[READS_TAKEN] >= RING_READS:
            lane[PAUSED] = 1
            return True
        got = _recv(types.int32(socket), lane[BYTES_AT] + place, types.uintp(room), DONTWAIT)
        _clock_gettime(MONOTONIC, clock_at)
        if got <= 0:
            if got == 0 or hung_up:
                lane[ENDED] = 1
                return True
            return tell
        stamp = lane[STAMPS_AT] + 16 * (lane[READS] & (RING_READS - 1))
        _put(stamp, clock[0] * 1_000_000_000 + clock[1])
        _put(stamp + 8, lane[CAME] + got)
        _published()
        lane[CAME] += got
        lane[READS] += 1
        if lane[EACH] or _chunks_end(lane) or lane[CAME] - lane[TOLD] > RING_BYTES // 4:
            lane[TOLD] = lane[CAME]
            tell = True
        if got < room and not hung_up:
            return tell


@compiled
def _chunks_end(lane: Any) -> Any:
    """Whether the last bytes look like the end of chunks: an empty line behind the last chunk's, or behind trailers.

    Two empty lines are the end of an event whose lines end in CR LF.
    """
    end = lane[CAME]
    for k in range(4):
        if _byte(lane[BYTES_AT] + ((end - 4 + k) & (RING_BYTES - 1))) != EMPTY_LINE[k]:
            return False
    return _byte(lane[BYTES_AT] + ((end - 5) & (RING_BYTES - 1))) != LINE_END
