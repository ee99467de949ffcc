"""One HTTP/2 connection of a client: any number of exchanges at once, each a stream, read by one greenlet.

Nobody waits in a write: what the socket does not take at once, or the peer's windows do not admit, goes out when they
do. So a deadline ends its own stream, by RST_STREAM, and delays no other. Our own windows are larger than any answer
may be; a peer that sends faster than is read is held back by TCP, as over HTTP/1.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gevent
from gevent import socket
from gevent.event import Event

from tailrate.loadtest.engine.endpoint.http2 import frames
from tailrate.loadtest.engine.endpoint.http2.frames import CANCEL, END_HEADERS, END_STREAM, frame, number
from tailrate.loadtest.engine.endpoint.http2.hpack import Decoder
from tailrate.loadtest.engine.endpoint.http2.outbox import Outbox
from tailrate.loadtest.engine.endpoint.http2.stream import BrokenError, Stream, UnprocessedError

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.stamping.sockets import Stamped

BLOCK = 1 << 18
OUR_WINDOW = 1 << 30
MOST_BODY = 256 << 20
"""What would fill the memory is no answer."""
MOST_BLOCK = 1 << 16
MOST_STREAMS = 100
"""At once, until the peer says; the RFC asks each to allow as many."""
HELLO = (
    frames.PREFACE
    + frames.settings({frames.ENABLE_PUSH: 0, frames.INITIAL_WINDOW: OUR_WINDOW})
    + frame(frames.WINDOW_UPDATE, 0, 0, number(OUR_WINDOW - frames.WINDOW))
)


class Connection:
    """Raises nothing but `OSError`, from `exchange`."""

    def __init__(self, opened: socket.socket, secure: bool, stamped: Stamped | None = None) -> None:
        """`stamped`: what is read instead of the socket, where it matters when each piece came."""
        self._source = stamped or opened
        self._stamped = stamped
        self.most = MOST_STREAMS
        self.open = True
        """Takes new streams."""
        self._greeted = Event()
        """The peer has said its settings, or hung up."""
        self._speaks = False
        self._streams: dict[int, Stream] = {}
        self._next = 1
        self._hpack = Decoder()
        self._window, self._initial, self._longest = frames.WINDOW, frames.WINDOW, frames.LONGEST
        self._blocked: dict[int, Stream] = {}
        """Streams whose bodies wait for windows, or for the socket."""
        self._out = Outbox(opened, secure, self._pump)
        self._taken = 0
        """Bytes of the connection's own window that we have read and not given back."""
        self._block: tuple[int, int, bytes] | None = None
        """(stream, flags, beginning) of a header block that goes on in further frames."""
        self._problem: OSError | None = None
        self._out.write(HELLO)
        self._reader = gevent.spawn(self._read_always)

    @property
    def under_way(self) -> int:
        return len(self._streams)

    def greet(self) -> None:
        """Waits until the peer has said its settings."""
        self._greeted.wait()
        if self._problem is not None:
            raise self._problem

    def exchange(self, block: bytes, stream: Stream) -> None:
        """Sends a request whose header is that block, and waits for the end of its answer."""
        if not self.open:
            raise UnprocessedError("the connection takes no more requests")
        mine, self._next = self._next, self._next + 2
        self.open = self._next < frames.MOST_WINDOW
        stream.begin(self._initial)
        self._streams[mine] = stream
        size = len(stream.body)
        try:
            if size <= min(self._longest, self._initial, self._window) and not self._blocked:
                self._window -= size
                stream.left = stream.left[size:]
                start = frame(frames.HEADERS, END_HEADERS, mine, block)
                self._out.write(b"".join((start, frames.head(size, frames.DATA, END_STREAM, mine), stream.body)))
            else:
                self._out.write(frame(frames.HEADERS, END_HEADERS, mine, block))
                self._blocked[mine] = stream
                self._pump()
            found = stream.waiter.get()
        except BaseException:
            self._leave(mine, CANCEL)
            raise
        if found is not None:
            raise found

    def close(self) -> None:
        self._fail(BrokenError("the connection was closed"))
        if gevent.getcurrent() is not self._reader:
            self._reader.kill(block=False)

    # ---- going out

    def _pump(self) -> None:
        """Sends of bodies what windows admit, one frame of each in turn, as long as the socket takes it."""
        moved = True
        while moved and self._out.empty:
            moved = False
            for mine, stream in list(self._blocked.items()):
                size = min(len(stream.left), stream.window, self._window, self._longest)
                if size <= 0 and stream.left:
                    continue
                moved = True
                piece, stream.left = stream.left[:size], stream.left[size:]
                stream.window -= size
                self._window -= size
                if not stream.left:
                    del self._blocked[mine]
                end = 0 if stream.left else END_STREAM
                self._out.write(frames.head(size, frames.DATA, end, mine) + piece)

    def _leave(self, mine: int, code: int) -> Stream | None:
        """Ends a stream of which nothing more is wanted."""
        stream = self._streams.pop(mine, None)
        self._blocked.pop(mine, None)
        if stream is not None and self._problem is None:
            self._out.write(frame(frames.RST_STREAM, 0, mine, number(code)))
        return stream

    # ---- coming in

    def _read_always(self) -> None:
        data = b""
        try:
            while True:
                data = self._take(data) if data else data
                piece = self._source.recv(BLOCK)
                if not piece:
                    raise BrokenError("the connection was closed before the answer was whole")
                data = data + piece if data else piece
                if len(piece) == BLOCK:  # nobody else would have a turn until all is read
                    gevent.sleep(0)
        except OSError as problem:
            self._fail(problem)
        except ValueError as problem:
            self._out.write(frame(frames.GOAWAY, 0, 0, number(0) + number(frames.PROTOCOL_ERROR)))
            self._fail(BrokenError(f"the answer is not HTTP/2: {problem}"))

    def _take(self, data: bytes) -> bytes:
        """Handles the whole frames in it, and gives back what is left."""
        at, have = 0, len(data)
        while have - at >= frames.HEAD:
            size, kind, flags, mine = frames.read_head(data, at)
            if not self._speaks and (kind != frames.SETTINGS or mine or flags):
                raise ValueError("it does not begin with settings")
            if size > frames.LONGEST:
                raise ValueError(f"a frame has {size} bytes, but at most {frames.LONGEST} are taken")
            at += frames.HEAD
            if have - at < size:
                at -= frames.HEAD
                break
            self._frame(kind, flags, mine, data[at : at + size])
            at += size
        return data[at:]

    def _frame(self, kind: int, flags: int, mine: int, payload: bytes) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or mine != self._block[0]):
            raise ValueError("something else comes in the middle of a header block")
        if kind == frames.DATA:
            self._on_data(flags, mine, payload)
        elif kind == frames.HEADERS:
            payload = frames.unpadded(flags, payload)
            self._on_block(flags, mine, payload[5:] if flags & frames.WITH_PRIORITY else payload)
        elif kind == frames.CONTINUATION:
            if self._block is None:
                raise ValueError("a header block goes on that has not begun")
            _, first, begun = self._block
            self._on_block(first | flags & END_HEADERS, mine, begun + payload)
        elif kind == frames.RST_STREAM:
            code = frames.u32(payload, 0)
            why = f"the other side reset the stream: {frames.reason(code)}"
            self._end(mine, (UnprocessedError if code == frames.REFUSED else BrokenError)(why))
        elif kind == frames.SETTINGS:
            self._on_settings(flags, payload)
        elif kind == frames.PING:
            if not flags & frames.ACK:
                self._out.write(frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.GOAWAY:
            self._on_goaway(payload)
        elif kind == frames.WINDOW_UPDATE:
            self._on_window(mine, frames.u32(payload, 0) & frames.MOST_WINDOW)
        elif kind == frames.PUSH_PROMISE:
            raise ValueError("it pushes, which it was asked not to")

    def _on_data(self, flags: int, mine: int, payload: bytes) -> None:
        self._taken += len(payload)
        if self._taken >= OUR_WINDOW // 2:
            self._out.write(frame(frames.WINDOW_UPDATE, 0, 0, number(self._taken)))
            self._taken = 0
        stream = self._streams.get(mine)
        if stream is None:  # of one that we have left
            return
        piece = frames.unpadded(flags, payload)
        stream.size += len(piece)
        stream.pieces.append(piece)
        if self._stamped is not None and piece:
            stream.arrivals.append((self._stamped.at_ns, stream.size))
        if not stream.head:
            self._end(mine, BrokenError("the answer has a body before its header"))
        elif stream.size > MOST_BODY:
            self._end(mine, BrokenError(f"the answer is larger than {MOST_BODY >> 20} MiB"))
        elif flags & END_STREAM:
            self._end(mine, None)

    def _on_block(self, flags: int, mine: int, block: bytes) -> None:
        if not flags & END_HEADERS:
            if len(block) > MOST_BLOCK:
                raise ValueError("a header block does not end")
            self._block = (mine, flags, block)
            return
        self._block = None
        lines = self._hpack.lines(block)  # also of a stream that we have left: it changes the table
        stream = self._streams.get(mine)
        if stream is None or lines.startswith(b":status: 1"):
            return
        if stream.head:
            stream.trailers = lines
        else:
            stream.head = lines
        if flags & END_STREAM:
            self._end(mine, None)
        elif stream.trailers:
            self._end(mine, BrokenError("the answer goes on after its trailers"))

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            return
        for key, value in frames.read_settings(payload[: len(payload) // 6 * 6]):
            if key == frames.MAX_STREAMS:
                self.most = max(1, value)
            elif key == frames.INITIAL_WINDOW:
                for stream in self._streams.values():
                    stream.window += value - self._initial
                self._initial = value
            elif key == frames.MAX_FRAME:
                self._longest = max(frames.LONGEST, value)
        self._out.write(frame(frames.SETTINGS, frames.ACK, 0))
        self._speaks = True
        self._greeted.set()
        self._pump()

    def _on_window(self, mine: int, more: int) -> None:
        if mine == 0:
            self._window += more
            if self._window > frames.MOST_WINDOW:
                raise ValueError("it opens its window too far")
        elif (stream := self._streams.get(mine)) is not None:
            stream.window += more
        self._pump()

    def _on_goaway(self, payload: bytes) -> None:
        self.open = False
        last, code = frames.u32(payload, 0) & frames.MOST_WINDOW, frames.u32(payload, 4)
        said = payload[8:200].decode("utf-8", "replace")
        why = f"the other side goes away: {frames.reason(code)} {said}".rstrip()
        for mine in [mine for mine in self._streams if mine > last]:
            self._end(mine, UnprocessedError(why))
        if code:
            self._fail(BrokenError(why))

    def _end(self, mine: int, problem: OSError | None) -> None:
        """Wakes who waits for the stream."""
        stream = self._streams.get(mine)
        if stream is None:
            return
        if self._stamped is not None:
            stream.at_ns = self._stamped.at_ns
        if stream.left or problem is not None:
            self._leave(mine, CANCEL)
        else:
            del self._streams[mine]
        gevent.get_hub().loop.run_callback(stream.waiter.switch, problem)

    def _fail(self, problem: OSError) -> None:
        self.open = False
        self._problem = problem
        for mine in list(self._streams):
            self._end(mine, problem)
        self._greeted.set()
        self._source.close()
