"""Header blocks against the package `hpack`, another's making: what it writes we read, what we write it reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrate.loadtest.engine.endpoint.http2 import huffman
from tailrate.loadtest.engine.endpoint.http2.hpack import Decoder, literal

NAMES = st.sampled_from([b"server", b"x-a", b"content-type", b"grpc-status", b"x-" + b"n" * 300])
VALUES = st.one_of(st.sampled_from([b"", b"200", b"application/grpc", b"v" * 5000]), st.binary(max_size=200))
BLOCKS = st.lists(st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=6), min_size=1, max_size=12)


def shown(fields):
    clean = [(name, value.replace(b"\r", b" ").replace(b"\n", b" ")) for name, value, *_ in fields]
    return b"".join(b"%s: %s\r\n" % field for field in clean)


@given(BLOCKS, st.booleans(), st.sampled_from([4096, 100, 0]))
def test_blocks_in_a_row_mean_what_was_written(blocks, coded, table):
    hpack = pytest.importorskip("hpack")
    encoder, ours = hpack.Encoder(), Decoder()
    encoder.header_table_size = table
    for fields in blocks:
        written = encoder.encode([hpack.HeaderTuple(n, v) if keep else hpack.NeverIndexedHeaderTuple(n, v)
                                  for n, v, keep in fields], huffman=coded)  # fmt: skip
        assert ours.lines(written) == shown(fields)


@given(BLOCKS)
def test_literals_are_read_by_others(blocks):
    hpack = pytest.importorskip("hpack")
    decoder = hpack.Decoder()
    for fields in blocks:
        text = [(name.decode(), value.decode("latin-1")) for name, value, _ in fields]
        block = b"".join(literal(*field) for field in text)
        found = [(bytes(n), bytes(v)) for n, v in decoder.decode(block, raw=True)]
        assert found == [(n, v) for n, v, _ in fields]


@given(st.binary(max_size=300))
def test_the_huffman_code_is_the_rfcs(data):
    pytest.importorskip("hpack")
    from hpack.huffman import HuffmanEncoder
    from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

    assert huffman.decode(HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(data)) == data


def test_examples_of_the_rfc():
    """C.6: three responses on one connection, Huffman coded, whose entries drive each other out of a table of 256."""
    ours = Decoder()
    ours.lines(bytes.fromhex("3fe101"))  # the table's size becomes 256
    rest = b"cache-control: private\r\ndate: Mon, 21 Oct 2013 20:13:21 GMT\r\nlocation: https://www.example.com\r\n"
    first = (
        "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3"
    )
    assert ours.lines(bytes.fromhex(first)) == b":status: 302\r\n" + rest
    assert ours.lines(bytes.fromhex("4883640effc1c0bf")) == b":status: 307\r\n" + rest


@given(st.binary(max_size=60))
def test_whatever_comes_is_read_or_refused(block):
    try:
        found = Decoder().lines(block)
    except ValueError:
        return
    assert found.count(b"\r\n") == found.count(b"\n")


def test_a_block_is_remembered_only_as_long_as_the_table_is_the_same():
    ours = Decoder()
    ours.lines(b"\x40\x01a\x011")
    assert [ours.lines(b"\xbe") for _ in range(2)] == [b"a: 1\r\n"] * 2
    ours.lines(b"\x40\x01a\x012")
    assert ours.lines(b"\xbe") == b"a: 2\r\n"
