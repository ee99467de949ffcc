"""HPACK's Huffman code (RFC 7541, appendix B), which is canonical, so that the lengths alone say all of it."""

from __future__ import annotations

LENGTHS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b0806060605050506"
    "06060606060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d0e060f05060506050606"
    "060507070606060506070605050607070707070f0b0e0d1c14161414161616171617171717171817181816171817171717151617"
    "1617171816151416161717151716161815161717151516151716171714161616171616171a1a1413161716191a1a1a1b1b1a1819"
    "13151a1b1b1a1b1815151a1a1c1b1b1b14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)
"""Bits of each byte's code, and last of the end's."""
END = 256
_Node = tuple[int, int]
"""A code's beginning: its bits, and how many."""
_ROOT: _Node = (0, 0)


def _codes() -> dict[_Node, int]:
    found: dict[_Node, int] = {}
    code = length = 0
    for symbol in sorted(range(END + 1), key=lambda symbol: (LENGTHS[symbol], symbol)):
        code <<= LENGTHS[symbol] - length
        length = LENGTHS[symbol]
        found[code, length] = symbol
        code += 1
    return found


_CODES = _codes()
_steps: dict[tuple[_Node, int], tuple[_Node, bytes]] = {}
"""What a byte does to a code that has begun: grown as it is needed, at most 65 536."""


def decode(data: bytes) -> bytes:
    """`ValueError` where it is no such code."""
    node, pieces = _ROOT, []
    for byte in data:
        if (step := _steps.get((node, byte))) is None:
            step = _steps[node, byte] = _step(node, byte)
        node = step[0]
        pieces.append(step[1])
    code, length = node
    if length > 7 or code != (1 << length) - 1:
        raise ValueError("the padding of a Huffman code is not that of its end")
    return b"".join(pieces)


def _step(node: _Node, byte: int) -> tuple[_Node, bytes]:
    code, length = node
    found = bytearray()
    for bit in range(7, -1, -1):
        code, length = code << 1 | (byte >> bit & 1), length + 1
        if (symbol := _CODES.get((code, length))) is not None:
            if symbol == END:
                raise ValueError("a Huffman code has an end in it")
            found.append(symbol)
            code = length = 0
    return (code, length), bytes(found)
