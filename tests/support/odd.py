"""Answers that no server should give, as the bytes that go over the wire, and what their rows must say.

`ODD` is a list by hand and by combination; `drawn` makes any number more, each of which follows from its number.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from misshapen import VALUES

from tailrate.serve import wire
from tailrate.serve.body.result import encode_result

INFO = wire.EndpointInfo("m", "odd")
BODY, FIELDS = encode_result(INFO, {"y": np.arange(8, dtype=np.float32).reshape(1, 8)}, binary={"y": True})
JSON, _ = encode_result(INFO, {"y": np.arange(8, dtype=np.float32).reshape(1, 8)}, binary={"y": False})
CONNECT, BAD, OK, TIMEOUT = "connect", "bad_answer", "200", "timeout"


@dataclass(frozen=True, slots=True)
class Odd:
    name: str
    raw: bytes
    statuses: frozenset[str]
    closes: bool = False
    """The connection, when it has been sent."""


def head(status: str = "200 OK", length: int | str | None = len(BODY), **fields: str) -> bytes:
    """`_` stands for `-`."""
    named = dict(FIELDS) | {name.replace("_", "-"): value for name, value in fields.items()}
    if length is not None:
        named["content-length"] = str(length)
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in named.items() if value is not None)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


GOOD = head(server_timing="queue;dur=1.0, total;dur=2.0", x_tailrate_batch="4") + BODY


def with_body(body: bytes, **fields: str | None) -> bytes:
    plain = {"inference-header-content-length": None, "content-type": "application/json"}
    return head(length=len(body), **(plain | fields)) + body  # type: ignore[arg-type]


def _list() -> Iterator[Odd]:
    def odd(name: str, raw: bytes, *statuses: str, closes: bool = False) -> Odd:
        return Odd(name, raw, frozenset(statuses), closes)

    # fields of our own that somebody else may set to anything: what they say is lost, the row is not
    for number, value in enumerate(VALUES):
        shown = f"{number}: {value[:12]!a}"
        yield odd(f"batch {shown}", head(x_tailrate_batch=value) + BODY, OK)
        yield odd(f"clock {shown}", head(x_tailrate_clock=f"{value},{value}") + BODY, OK)
        yield odd(f"a half clock {shown}", head(x_tailrate_clock=value) + BODY, OK)
        yield odd(f"timing {shown}", head(server_timing=f"queue;dur={value}, total;dur=1") + BODY, OK)
        yield odd(f"timing of nothing {shown}", head(server_timing=value) + BODY, OK)
        yield odd(f"replica {shown}", head(x_tailrate_replica=value) + BODY, OK)
        yield odd(f"device {shown}", head(x_tailrate_device=value) + BODY, OK)
        yield odd(f"a header length of {shown}", head(inference_header_content_length=value) + BODY, BAD)
    yield odd("a batch of too many", head(x_tailrate_batch="3000000000") + BODY, OK)
    yield odd("a batch of a power", head(x_tailrate_batch="²") + BODY, OK)
    yield odd("a header length of a power", head(inference_header_content_length="13\u00b9") + BODY, BAD)
    yield odd("clocks back in time", head(x_tailrate_clock="20,10") + BODY, OK)
    yield odd("a negative time", head(server_timing="queue;dur=-1, total;dur=-1e300") + BODY, OK)
    # results that are none
    yield odd("nothing", with_body(b""), BAD)
    yield odd("nothing in chunks", head(length=None, transfer_encoding="chunked") + b"0\r\n\r\n", BAD)
    yield odd("a page", with_body(b"<html>welcome</html>", content_type="text/html"), BAD)
    yield odd("a page that says it is JSON", with_body(b"<html>welcome</html>"), BAD)
    yield odd("plain text", with_body(b"ok", content_type="text/plain"), BAD)
    yield odd("an error", with_body(b'{"error": "no such thing"}'), BAD)
    yield odd("a list", with_body(b"[]"), BAD)
    yield odd("null", with_body(b"null"), BAD)
    yield odd("half an object", with_body(JSON[:-7]), BAD)
    yield odd("outputs that are none", with_body(b'{"outputs": 3}'), BAD)
    yield odd("no outputs", with_body(b'{"outputs": []}'), BAD)
    yield odd(
        "a tensor without a name", with_body(b'{"outputs": [{"shape": [1], "datatype": "FP32", "data": [1]}]}'), BAD
    )
    yield odd("fewer values than the shape", with_body(JSON.replace(b"[1,8]", b"[2,8]")), BAD)
    yield odd("a negative shape", with_body(JSON.replace(b"[1,8]", b"[-1,8]")), BAD)
    yield odd("an unknown type", with_body(JSON.replace(b"FP32", b"FP31")), BAD)
    yield odd("NaN", with_body(JSON.replace(b"0.0", b"NaN", 1)), BAD)
    yield odd("text in the place of numbers", with_body(JSON.replace(b"0.0", b'"0"', 1)), BAD)
    yield odd("a key twice", with_body(b'{"outputs": [], "outputs": []}'), BAD)
    yield odd("deep lists", with_body(b'{"outputs": ' + 1500 * b"[" + 1500 * b"]" + b"}"), BAD)
    yield odd("bytes that are no text", with_body(b'{"outputs": [], "x": "\xff\xfe"}'), BAD)
    yield odd("long JSON without outputs", with_body(b'{"x": "' + 9000 * b"y" + b'"}'), BAD)
    yield odd("long JSON that ends early", with_body(b'{"outputs": [' + 9000 * b"1,"), BAD)
    yield odd("too few bytes", head(length=len(BODY) - 4) + BODY[:-4], BAD)
    yield odd("too many bytes", head(length=len(BODY) + 4) + BODY + bytes(4), BAD)
    yield odd("another size than its shape", head() + BODY.replace(b'size":32', b'size":31'), BAD)
    yield odd("a header that is no JSON", head() + BODY.replace(b'{"model', b'[["model'), BAD)
    # results after all
    yield odd("as JSON", with_body(JSON), OK)
    yield odd("without a type", with_body(JSON, content_type=None), OK)
    yield odd("a type of its own", with_body(JSON, content_type="application/vnd.x+json; charset=utf-8"), OK)
    yield odd("a byte order mark", with_body(b"\xef\xbb\xbf" + JSON), OK)
    yield odd("long JSON", with_body(b'{"outputs": [], "x": "' + 9000 * b"y" + b'"}'), OK)
    # other statuses
    for number in (201, 202, 206, 226, 299, 300, 301, 302, 307, 400, 401, 403, 404, 408, 413, 418, 429, 499, 500, 503):
        yield odd(f"status {number}", head(f"{number} X") + BODY, str(number))
    yield odd("status 999", head("999 X") + BODY, "999")
    yield odd("status 204", b"HTTP/1.1 204 No Content\r\n\r\n", BAD)
    yield odd("status 304", b"HTTP/1.1 304 Not Modified\r\n\r\n", "304")
    yield odd("a status without a reason", head("200") + BODY, OK)
    yield odd("an error that is no text", head("500 X", length=4) + b"\xff\xfe\x00\x01", "500")
    # HTTP
    chunk = f"{len(BODY):x}\r\n".encode() + BODY + b"\r\n0\r\n"
    chunks = head(length=None, transfer_encoding="chunked")
    yield odd("chunks", chunks + chunk + b"\r\n", OK)
    yield odd("chunks and a length", head(length=3, transfer_encoding="chunked") + chunk + b"\r\n", OK)
    yield odd("trailers", chunks + chunk + b"x-sum: 1\r\nx-more: 2\r\n\r\n", OK)
    yield odd("a chunk with words", chunks + chunk.replace(b"\r\n", b";a=b\r\n", 1) + b"\r\n", OK)
    yield odd("a chunk of capitals", chunks + chunk.replace(chunk[:2], chunk[:2].upper(), 1) + b"\r\n", OK)
    for size in (b"zz", b"", b"-5", b"0x10", b"1_0", b"+5", b" ", 18 * b"f", 5000 * b"9", b"fffffff"):
        yield odd(f"a chunk of {size[:9]!r}", chunks + size + b"\r\n" + chunk, CONNECT, closes=True)
    yield odd("a chunk longer than it says", chunks + b"3\r\nhello\r\n0\r\n\r\n", CONNECT)
    yield odd("a chunk that ends early", chunks + b"ff\r\nhello", CONNECT, closes=True)
    yield odd("a chunk's line without an end", chunks + 70_000 * b"a", CONNECT)
    yield odd("to the end of the connection", head(length=None) + BODY, OK, closes=True)
    yield odd("less than to its end", head(length=None) + BODY[:-9], BAD, closes=True)
    yield odd("less than its length", head(length=len(BODY) + 1) + BODY, CONNECT, closes=True)
    yield odd("less than its length, and waits", head(length=len(BODY) + 1) + BODY, TIMEOUT)
    yield odd("more than its length", head() + BODY + b"more", OK)
    yield odd("two answers", GOOD + GOOD, OK)
    for value in ("9" * 12, "9" * 30, "9" * 5000):
        yield odd(f"a length of {len(value)} nines", head(length=value) + BODY, CONNECT)
    yield odd("a negative length", head(length=-5) + BODY, OK, closes=True)
    yield odd("two lengths", head(length=f"{len(BODY)}\r\ncontent-length: 5") + BODY, OK)
    yield odd("a length of words", head(length="many") + BODY, OK, closes=True)
    yield odd("it goes on", b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + GOOD, OK)
    yield odd("it goes on for long", 500 * b"HTTP/1.1 102 Processing\r\n\r\n" + GOOD, OK)
    yield odd("it only goes on", b"HTTP/1.1 102 Processing\r\n\r\n", CONNECT, closes=True)
    yield odd("it closes", head(connection="close") + BODY, OK, closes=True)
    yield odd("it closes without a word", GOOD, OK, closes=True)
    yield odd("it never answers", b"", TIMEOUT)
    yield odd("it hangs up", b"", CONNECT, closes=True)
    yield odd("HTTP/1.0", GOOD.replace(b"HTTP/1.1", b"HTTP/1.0"), OK, closes=True)
    yield odd("HTTP/2", GOOD.replace(b"HTTP/1.1", b"HTTP/2.0"), CONNECT)
    yield odd("small letters", GOOD.replace(b"HTTP/1.1", b"http/1.1"), CONNECT)
    yield odd("another protocol", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", CONNECT)
    yield odd("a number of no status", head("2x0 OK") + BODY, CONNECT)
    yield odd("status 000", head("000 X") + BODY, CONNECT)
    yield odd("single line feeds", GOOD.replace(b"\r\n", b"\n"), CONNECT, closes=True)
    yield odd("bytes", bytes(range(256)) * 300, CONNECT)
    yield odd("a header without an end", b"HTTP/1.1 200 OK\r\nx: " + 70_000 * b"y", CONNECT)
    yield odd("a long header", head(x_long="y" * 50_000) + BODY, OK)
    yield odd("many headers", head(**{f"x-{number}": "y" for number in range(2000)}) + BODY, OK)
    yield odd("a header without a colon", GOOD.replace(b"\r\n\r\n", b"\r\nnothing\r\n\r\n", 1), OK)
    yield odd("a folded header", GOOD.replace(b"\r\n\r\n", b"\r\nx: a\r\n  b\r\n\r\n", 1), OK)
    yield odd("a zero in a header", head(x_zero="a\x00b") + BODY, OK)
    yield odd("a name twice", head(x_tailrate_batch="4\r\nx-tailrate-batch: 5") + BODY, OK)


ODD = list(_list())


def drawn(number: int) -> Odd:
    """One of the list with up to three of its bytes changed, or two of them mixed; any status may come of it."""
    rng = random.Random(number)
    base = rng.choice(ODD)
    if rng.random() < 0.3:
        return base
    raw = bytearray(base.raw)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(raw) + 1)
        how = rng.random()
        if how < 0.4 and at < len(raw):
            raw[at] = rng.randrange(256)
        elif how < 0.6:
            raw[at : at + rng.randint(1, 40)] = b""
        elif how < 0.8:
            raw[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 20)))
        else:
            other = rng.choice(ODD).raw
            cut = rng.randrange(len(other) + 1)
            raw[at:] = other[cut:]
    # what is cut short must not be waited for, or most of the time would go into that
    return Odd(f"{base.name}, changed", bytes(raw), frozenset(), closes=rng.random() < 0.9)
