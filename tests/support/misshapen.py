"""Requests that no client means to send, as the bytes that go over the wire: each follows from a seed and its number.

Grammars of the protocol's own (heads, tensors, files, texts), then HTTP's, then none. Hypothesis makes 250 heads in a
second where this makes 15,000, and cannot make the one of a given number alone; it has what is decoded in
`test_wire_fuzz.py`.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np

from tailrate.serve import wire
from tailrate.serve.body.request import encode_infer
from tailrate.serve.models._image import image_model
from tailrate.serve.spec import ModelSpec

WIDTH = 64
"""Of mlp's input."""
MODELS = ("null", "mlp", "bert", "thumbs")
SETTINGS = {"reply_bytes": "1000", "sequence": "32", "layers": "1", "hidden": "64"}
"""With which they are served, all of them cheap."""
SOURCES = {"thumbs": f"{__file__}:thumbs"}
PATHS = [wire.infer_path(model, "eager") for model in MODELS]
OTHER_PATHS = [
    wire.SERVER, wire.LIVE, wire.READY, wire.SERVING, wire.INDEX, wire.DEVICES, wire.CLOCK, wire.METRICS,
    wire.FAULTS, "/", "//", "*",
    "/v2/models", "/v2/models/", "/v2/models/stats", "/v2/models/null", "/v2/models/null/infer",
    "/v2/models/bert/config", "/v2/models/null/versions", "/v2/models/null/versions/", "/v2/models/null/versions/eager",
    "/v2/models/null/versions/eager/", "/v2/models/null/versions/eager/profile", "/v2/models/null/versions/fast/infer",
    "/v2/models/null/versions/eager/infer/", "/v2/models/null/versions/eager/infer/../..", "/v2/models/%00/infer",
    "/v2/models/null%2Fversions%2Feager/infer", "/v2/../v2", "/v2/models/nul%6c/infer", "/%ff%fe", "/-/routes/",
]  # fmt: skip
METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "FROB", "get", "PROPFIND"]
DATATYPES = ["BOOL", "UINT8", "INT8", "INT64", "UINT64", "FP16", "FP32", "FP64", "BYTES", "FP31", "", None, 3, [], {}]
NUMBERS = [
    0, 1, -1, 2, 7, 127, 128, 255, 256, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**300, 0.5, -0.0, 1e-320,
    1e39, 65520.0, 1e308, 1.7e308, float("nan"), float("inf"), True, None, "1", "", [], [[]], {},
]  # fmt: skip
TEXTS = [
    "", "a", "The server answers every request.", "größer", "\0", "\n\r\t", "\u202e", "\ud800", "\U0001f600" * 9,
    "x" * 300, "x " * 400, "[MASK] [CLS] [SEP]", "中文" * 30, "'; DROP", "%s%n{}", "\u0301" * 50,
]  # fmt: skip
VALUES = [
    "", "0", "-1", "1", "1e999", "nan", "inf", "-inf", "0.000001", "1_0", "+3", " 7 ", "0x10", "9" * 30, "9" * 5000,
    "\xff", "\xe9\xe8", "a" * 9000, "?1", ",", "a,b", "1.5", "\x01", "\x7f", "\t", "chunked", "gzip",
    "gzip, gzip", "identity",
]  # fmt: skip
HEADERS = [
    wire.HEADER_LENGTH, "x-request-timeout-seconds", "x-tailrate-timeout-seconds", "x-request-id", "content-encoding",
    "content-type", "accept-encoding", "x-session-id", "serve_multiplexed_model_id", "x-request-disconnect-disabled",
    "expect", "connection", "upgrade", "traceparent", "host", "cookie", "range", "te", "x-forwarded-for",
]  # fmt: skip


def thumbs() -> ModelSpec:
    """Takes JPEG files, as the image models do, and is done with them in no time."""

    def build() -> Any:
        from torch import nn

        return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 10))

    return image_model("thumbs", classes=10, build=build, form="jpeg")


@dataclass(frozen=True, slots=True)
class Bad:
    kind: str
    raw: bytes
    whole: bool = True
    """Whether an answer has to come; else the client leaves soon."""


Draw = random.Random


def bad(seed: int, number: int) -> Bad:
    """Some of them are good after all, as a change may have changed nothing."""
    draw = Draw(f"{seed} {number}")
    make = draw.choices(list(KINDS), list(KINDS.values()))[0]
    raw, whole = make(draw)
    return Bad(make.__name__, raw, whole)


def http(path: str, body: bytes = b"", headers: dict[str, Any] | None = None, method: str = "POST") -> bytes:
    said = {"host": "x", "content-length": len(body)} | (headers or {})
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


# ---- requests that are right


def right(draw: Draw) -> tuple[str, bytes, dict[str, str]]:
    """(path, body, headers) of one of the models."""
    model = draw.choice(list(MODELS))
    rows = draw.choice([1, 1, 1, 2, 5])
    if model == "null":
        inputs = {"x": np.frombuffer(draw.randbytes(4 * rows), np.uint8).reshape(rows, 4)}
    elif model == "mlp":
        inputs = {"x": np.full((rows, WIDTH), draw.uniform(-2, 2), np.float32)}
    elif draw.random() < 0.3 and model == "bert":
        inputs = {"input_ids": np.full((rows, draw.randint(1, 32)), draw.randrange(30522))}
    else:
        pick = (lambda: draw.choice(FILES)) if model == "thumbs" else (lambda: TEXTS[2].encode())
        inputs = {"text" if model == "bert" else "image": column([pick() for _ in range(rows)])}
    as_json = model != "thumbs" and draw.random() < 0.4
    return wire.infer_path(model, "eager"), *encode_infer(inputs, binary=not as_json)


def column(items: list[bytes]) -> wire.Array:
    made = np.empty((len(items), 1), object)
    made[:, 0] = items
    return made


def _files() -> list[bytes]:
    from PIL import Image

    drawn, found = np.random.default_rng(1), []
    for more in ({}, {"progressive": True}, {"quality": 5, "subsampling": 0}):
        written = BytesIO()
        picture = Image.fromarray(drawn.integers(0, 256, (23, 57, 3), dtype=np.uint8))
        picture.save(written, "JPEG", **more)  # type: ignore[arg-type]
        found.append(written.getvalue())
    return found


FILES = _files()


# ---- what is in the body


def junk(draw: Draw, depth: int = 0) -> Any:
    how = draw.random()
    if how < 0.1 and depth < 3:
        return [junk(draw, depth + 1) for _ in range(draw.randrange(4))]
    if how < 0.2 and depth < 3:
        return {draw.choice(["name", "data", "shape", "parameters", "é"]): junk(draw, depth + 1) for _ in range(2)}
    return draw.choice(TEXTS if how < 0.4 else NUMBERS)


def shape(draw: Draw) -> Any:
    how = draw.randrange(6)
    if how < 3:
        return [draw.choice([1, 1, 1, 2, 4, WIDTH, 0, -1]) for _ in range(draw.choice([1, 2, 2, 2, 3]))]
    if how == 3:
        return [1] * draw.choice([1, 2, 32, 33, 64, 65, 1000])
    return junk(draw) if how == 4 else [draw.choice([0, 1, 2**31, 2**62, 2**63, 2**64, 10**4000]) for _ in range(3)]


def tensor(draw: Draw, after: bytearray) -> dict[str, Any]:
    """Near to right; what bytes it has are put `after` the head."""
    datatype = draw.choice(DATATYPES)
    made: dict[str, Any] = {
        "name": draw.choice(["x", "x", "text", "image", "input_ids", "attention_mask", "y", "", "n" * 300, "\n", 3]),
        "datatype": datatype,
        "shape": shape(draw),
    }
    count = draw.choice([0, 1, 2, 4, WIDTH])
    if draw.random() < 0.5:
        values = [draw.choice(TEXTS if datatype == "BYTES" else NUMBERS[:12]) for _ in range(count)]
        made["data"] = draw.choice([values, values, [values], [[v] for v in values], ["<70>"], ["<900>"], junk(draw)])
    else:
        raw = draw.randbytes(draw.choice([0, 1, 4, 8, 4 * WIDTH, 37]))
        if datatype == "BYTES" and draw.random() < 0.7:
            raw = b"".join(
                len(text.encode(**PASS)).to_bytes(4, "little") + text.encode(**PASS) for text in TEXTS[:count]
            )
        made["parameters"] = {"binary_data_size": draw.choice([len(raw)] * 8 + NUMBERS)}
        after += raw
    if draw.random() < 0.1:
        made["parameters"] = draw.choice([{"shared_memory_region": "a"}, {"classification": 3}, junk(draw)])
    if draw.random() < 0.1:
        made.pop(draw.choice(list(made)))
    return made


PASS = {"errors": "surrogatepass"}


def dumped(value: Any) -> bytes:
    """NaN, surrogates and all; a string such as <900> becomes a 1 in as many lists."""
    text = json.dumps(value)
    for depth in (70, 900):
        text = text.replace(f'"<{depth}>"', "[" * depth + "1" + "]" * depth)
    return text.encode()


def heads(draw: Draw) -> tuple[bytes, bool]:
    after = bytearray()
    head: dict[str, Any] = {"inputs": [tensor(draw, after) for _ in range(draw.choice([0, 1, 1, 1, 2, 3]))]}
    if draw.random() < 0.2:
        head["id"] = junk(draw)
    if draw.random() < 0.3:
        outputs = [
            {"name": draw.choice(["y", "logits", "pooler_output", "z", "", 1])} for _ in range(draw.randrange(3))
        ]
        head["outputs"] = draw.choice([outputs, outputs, [{"name": "y", "parameters": junk(draw)}], junk(draw)])
    if draw.random() < 0.2:
        head["parameters"] = draw.choice([{"binary_data_output": True}, junk(draw)])
    text = dumped(head if draw.random() < 0.95 else junk(draw))
    if draw.random() < 0.1:  # a key twice
        text = text.replace(b'"inputs"', b'"inputs": [], "inputs"', 1)
    said = len(text) + draw.choice([0] * 12 + [1, -1, 10, -10, 10**9])
    headers = {wire.HEADER_LENGTH: said} if after or draw.random() < 0.1 else {}
    return http(draw.choice(PATHS), text + after, headers), True


def altered(draw: Draw) -> tuple[bytes, bool]:
    """Right, but for one or two values of the head."""
    path, body, headers = right(draw)
    size = int(headers.get(wire.HEADER_LENGTH, len(body)))
    head = json.loads(body[:size])
    for _ in range(draw.choice([1, 1, 2])):
        at: Any = head
        while True:
            key = draw.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if not isinstance(at[key], dict | list) or not at[key] or draw.random() < 0.2:
                break
            at = at[key]
        # copied, as the next change may be made inside of it
        at[key] = deepcopy(
            draw.choice([junk(draw), draw.choice(NUMBERS), shape(draw), draw.choice(DATATYPES), [at[key]], "<900>"])
        )
        if not isinstance(head, dict):
            break
    text = dumped(head)
    return http(path, text + body[size:], {wire.HEADER_LENGTH: len(text)} if size < len(body) else {}), True


def spoilt(draw: Draw, raw: bytes, most: int = 6) -> bytes:
    """A few bytes changed, put in, left out, doubled; or the end cut off."""
    found = bytearray(raw)
    for _ in range(draw.randint(1, most)):
        at = draw.randrange(len(found) + 1)
        how = draw.randrange(7)
        if how == 0:
            del found[at : at + draw.choice([1, 1, 2, 30])]
        elif how == 1:
            found[at:at] = draw.choice(
                [draw.randbytes(draw.randrange(1, 9)), b"\xff\xda", b"\0" * 20, b'"', b"[", b"9" * 9]
            )
        elif how == 2:
            found[at:at] = found[at : at + draw.randrange(1, 60)]
        elif how == 3 and draw.random() < 0.3:
            del found[at:]
        elif at < len(found):
            found[at] = draw.randrange(256) if how < 6 else found[at] ^ 1 << draw.randrange(8)
    return bytes(found)


def bodies(draw: Draw) -> tuple[bytes, bool]:
    path, body, headers = right(draw)
    return http(path, spoilt(draw, body), headers), True


def lengths(draw: Draw) -> tuple[bytes, bool]:
    path, body, headers = right(draw)
    said = draw.choice([0, 1, len(body) - 1, len(body), len(body) + 1, 2**31, 2**63, 10**30, -1, "", "1 2", "\xb2"])
    return http(path, body, headers | {wire.HEADER_LENGTH: said}), True


def elements(draw: Draw) -> tuple[bytes, bool]:
    """Broken files for whoever takes files, odd texts for whoever takes texts."""
    if draw.random() < 0.5:
        items = [spoilt(draw, draw.choice(FILES)) for _ in range(draw.choice([1, 1, 3]))]
        return http(PATHS[3], *encode_infer({"image": column(items)})), True
    items = [
        draw.choice([draw.choice(TEXTS).encode(**PASS), draw.randbytes(20)]) for _ in range(draw.choice([1, 1, 3]))
    ]
    return http(PATHS[2], *encode_infer({"text": column(items)})), True


def pressed(draw: Draw) -> tuple[bytes, bool]:
    path, body, headers = right(draw)
    press = draw.choice([partial(gzip.compress, mtime=0), zlib.compress])
    encoding = draw.choice(["gzip", "gzip", "deflate", "br", "GZIP", "gzip, gzip"])
    pressed = press(body)
    how = draw.randrange(5)
    if how == 0:
        pressed = spoilt(draw, pressed)
    elif how == 1:
        pressed = press(press(body))
    elif how == 2:
        pressed += press(body)
    return http(path, pressed, headers | {"content-encoding": encoding}), True


BOMBS = [gzip.compress(bytes(1 << 20), 9, mtime=0), gzip.compress(bytes(16 << 20), 9, mtime=0)]


def bombs(draw: Draw) -> tuple[bytes, bool]:
    """Small ones that become large, or are long to look at."""
    how = draw.randrange(8)
    if how == 0:
        return http(draw.choice(PATHS), draw.choice(BOMBS), {"content-encoding": "gzip"}), True
    if how == 1:
        inner = draw.choice([b"[],", b"{},", b"0,", b'"",', b'[""],', b"-1e9,"]) * draw.choice([100, 10_000, 100_000])
        body = b'{"inputs":[{"name":"x","shape":[1],"datatype":"%s","data":[' % draw.choice(
            [b"INT8", b"BYTES", b"FP32"]
        )
        return http(draw.choice(PATHS), body + inner[:-1] + b"]}]}"), True
    if how == 2:
        rows = draw.choice([65, 300, 4096, 4097, 10**5, 10**6])
        return http(PATHS[0], *encode_infer({"x": np.zeros((rows, 1), np.uint8)})), True
    if how == 3:
        items = [draw.choice([b"", b"a", TEXTS[2].encode() * 50])] * draw.choice(
            [10, 300, 70_000 if draw.random() < 0.1 else 9]
        )
        return http(PATHS[2], *encode_infer({"text": column(items)})), True
    if how == 4:
        many = [
            {"name": f"x{place}", "shape": [1], "datatype": "INT8", "data": [1]}
            for place in range(draw.choice([9, 2000]))
        ]
        return http(draw.choice(PATHS), dumped({"inputs": many})), True
    if how == 5:
        raw = bytearray(draw.choice(FILES[:1]))
        frame = raw.index(b"\xff\xc0")
        size = draw.choice([(65535, 65535), (7000, 7000), (65500, 1), (1, 65500), (0, 9)])
        raw[frame + 5 : frame + 9] = b"".join(side.to_bytes(2, "big") for side in size)
        return http(PATHS[3], *encode_infer({"image": column([bytes(raw)])})), True
    if how == 6:
        file = FILES[1]
        scan = file[file.rindex(b"\xff\xda") : -2]
        raw = file[:-2] + scan * draw.choice([1, 50, 500]) + file[-2:]
        return http(PATHS[3], *encode_infer({"image": column([raw])})), True
    return http(PATHS[3], *encode_infer({"image": column([b"\xff\xd8" + b"\xff" * draw.choice([9, 10**5])])})), True


# ---- what is around it


def headers(draw: Draw) -> tuple[bytes, bool]:
    path, body, said = right(draw)
    for _ in range(draw.randint(1, 3)):
        said[draw.choice(HEADERS)] = draw.choice(VALUES)
    raw = http(path, body, said)
    if draw.random() < 0.1:
        raw = raw.replace(b"host: x\r\n", b"".join(b"x%d: y\r\n" % place for place in range(draw.choice([50, 300]))), 1)
    # `expect` waits for a body that is there, `connection` may ask for the end; `host` twice and so on are refused
    return raw, True


def paths(draw: Draw) -> tuple[bytes, bool]:
    path = draw.choice(OTHER_PATHS)
    if draw.random() < 0.3:
        path += (
            "?"
            + draw.choice(["after=", "host=", "x", "after=%ff", "host=a&host=b", "after=1:", "&" * 500])
            + draw.choice(VALUES[:14]).strip()
        )
    if draw.random() < 0.2:
        path = "/" + "".join(chr(draw.randrange(33, 127)) for _ in range(draw.choice([5, 50, 3000])))
    body = draw.choice([b"", b"{}", b"[", dumped(junk(draw)), b'{"fault":"x"}', b'{"batches":1e9}'])
    return http(path, body, method=draw.choice(METHODS)), True


def frames(draw: Draw) -> tuple[bytes, bool]:
    """Bodies whose length is said wrongly, twice, or in two ways; chunks that are none."""
    path, body, said = right(draw)
    lines = [f"POST {path} HTTP/{draw.choice(['1.1'] * 6 + ['1.0', '0.9', '2.0', '9.9', 'x'])}", "host: x"]
    lines += [f"{name}: {value}" for name, value in said.items()]
    size = len(body)
    wrong = ["", "-1", "+5", "0x9", "5, 5", "9" * 25, "1e3", str(size + 9), str(size // 2), str(size), "0"]
    for _ in range(draw.choice([0, 1, 1, 2])):
        lines.append(f"content-length: {draw.choice(wrong)}")
    if draw.random() < 0.6:
        coding = draw.choice(
            ["chunked"] * 5 + ["Chunked", "xchunked", "gzip, chunked", "identity", "chunked, chunked", ""]
        )
        lines.append(f"transfer-encoding: {coding}")
        at = draw.randrange(size + 1)
        pieces = [body[:at], body[at:]]
        body = b"".join(
            b"%x%s\r\n%s\r\n" % (len(piece), draw.choice([b"", b"", b";a=b"]), piece) for piece in pieces if piece
        )
        body += draw.choice([b"0\r\n\r\n"] * 4 + [b"0\r\nx: y\r\n\r\n", b"", b"zz\r\n", b"-1\r\n", b"f" * 20 + b"\r\n"])
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body, False


def broken(draw: Draw) -> tuple[bytes, bool]:
    raw = http(*right(draw))
    head, _, body = raw.partition(b"\r\n\r\n")
    return spoilt(draw, head, 3) + b"\r\n\r\n" + body, False


def garbage(draw: Draw) -> tuple[bytes, bool]:
    some = [
        draw.randbytes(draw.choice([1, 16, 300, 5000])),
        bytes.fromhex("16030100c8010000c40303") + draw.randbytes(190),  # a TLS ClientHello
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + draw.randbytes(50),
        b"GET /\r\n\r\n",
        b"\r\n" * 30,
        b"GET " + b"/" * draw.choice([10, 20_000]),
        b"\0" * 100,
        b"POST / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 40_000,
    ]
    return draw.choice(some), False


def halves(draw: Draw) -> tuple[bytes, bool]:
    """Who hangs up in the middle."""
    raw = http(*right(draw))
    return raw[: draw.randrange(len(raw) + 1)], False


def several(draw: Draw) -> tuple[bytes, bool]:
    """One after the other on one connection, without waiting."""
    return b"".join(
        http(*right(draw)) if draw.random() < 0.6 else bodies(draw)[0] for _ in range(draw.randint(2, 5))
    ), False


KINDS: dict[Callable[[Draw], tuple[bytes, bool]], float] = {
    heads: 15, altered: 20, bodies: 15, elements: 10, lengths: 5, pressed: 5, bombs: 1, headers: 10, paths: 8,
    frames: 6, broken: 4, garbage: 2, halves: 2, several: 2,
}  # fmt: skip
"""How often each comes."""
