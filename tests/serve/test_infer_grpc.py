"""Messages of gRPC against the package `protobuf`, with descriptors as the protocol's own file has them."""

from contextlib import suppress

import numpy as np
import pytest
from grpc_messages import message
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from tailrate.serve import wire
from tailrate.serve.body import infer_grpc
from tailrate.serve.wire import WireError

NUMBERS = [dtype for name, dtype in wire.DTYPES.items() if name not in ("BYTES", "FP16")]
NAMES = st.text("abc_é", min_size=1, max_size=200)
ARRAYS = st.sampled_from(NUMBERS).flatmap(lambda dtype: some.arrays(dtype, some.array_shapes(max_dims=3, max_side=4)))
TEXTS = st.lists(st.binary(max_size=300), min_size=1, max_size=4).map(lambda items: np.array(items, object))
TENSORS = st.dictionaries(NAMES, st.one_of(ARRAYS, TEXTS), min_size=1, max_size=3)
FIELD = {1: "bool_contents", 2: "int_contents", 3: "int64_contents", 4: "uint_contents", 5: "uint64_contents",
         6: "fp32_contents", 7: "fp64_contents", 8: "bytes_contents"}  # fmt: skip


def same(found, wanted):
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert wire.datatype_of(found[name]) == wire.datatype_of(tensor)
        np.testing.assert_array_equal(found[name], tensor)


@given(TENSORS, NAMES, st.one_of(st.just(""), NAMES), st.lists(NAMES, max_size=3), st.booleans())
def test_a_request_is_read_by_protobuf_and_by_us(inputs, model, version, outputs, raw):
    written = infer_grpc.encode_infer(model, version, inputs, outputs, raw)
    theirs = message("ModelInferRequest").FromString(written)
    assert (theirs.model_name, theirs.model_version) == (model, version)
    assert [one.name for one in theirs.outputs] == outputs
    assert [(one.name, one.datatype, tuple(one.shape)) for one in theirs.inputs] == [
        (name, wire.datatype_of(tensor), tensor.shape) for name, tensor in inputs.items()
    ]
    assert len(theirs.raw_input_contents) == raw * len(inputs)
    if not raw:
        for one, tensor in zip(theirs.inputs, inputs.values(), strict=True):
            found = list(getattr(one.contents, FIELD[infer_grpc.CONTENTS[one.datatype]]))
            np.testing.assert_array_equal(np.array(found, tensor.dtype).reshape(tensor.shape), tensor)
    ours = infer_grpc.decode_infer(theirs.SerializeToString())
    assert (ours.model, ours.version, ours.wanted) == (model, version, outputs)
    same(ours.tensors, inputs)


@given(TENSORS, NAMES, NAMES)
def test_a_result_is_read_by_protobuf_and_by_us(outputs, model, said):
    written = infer_grpc.encode_result(model, "1", said, outputs)
    theirs = message("ModelInferResponse").FromString(written)
    assert (theirs.model_name, theirs.model_version, theirs.id) == (model, "1", said)
    again = theirs.SerializeToString()
    same(infer_grpc.decode_result(again), outputs)
    assert infer_grpc.result_flaw(memoryview(again)) is None
    theirs.raw_output_contents[0] += b"x"
    numbers = next(iter(outputs.values())).dtype.kind != "O"
    assert not numbers or infer_grpc.result_flaw(memoryview(theirs.SerializeToString())) is not None
    del theirs.raw_output_contents[0]
    if theirs.raw_output_contents:
        assert infer_grpc.result_flaw(memoryview(theirs.SerializeToString())) is not None


def test_an_answer_may_hold_numbers_that_numpy_does_not_have():
    said = {"name": "y", "datatype": "BF16", "shape": [1, 4]}
    theirs = message("ModelInferResponse")(model_name="m", outputs=[said], raw_output_contents=[bytes(range(8))])
    written = theirs.SerializeToString()
    assert infer_grpc.result_flaw(memoryview(written)) is None
    np.testing.assert_array_equal(infer_grpc.decode_result(written)["y"], [[0x100, 0x302, 0x504, 0x706]])  # their bits
    theirs.raw_output_contents[0] += b"x"
    assert "are 8 bytes, but 9 came" in infer_grpc.result_flaw(memoryview(theirs.SerializeToString()))
    asked = message("ModelInferRequest")(model_name="m", inputs=[said], raw_input_contents=[bytes(8)])
    with pytest.raises(WireError, match="datatype 'BF16'; known are"):
        infer_grpc.decode_infer(asked.SerializeToString())


def test_a_model_is_said_as_protobuf_says_it():
    said = {"name": "m", "versions": ["1", "b"], "platform": "p", "parameters": {"k": "v", "n": "3"},
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}], "outputs": []}  # fmt: skip
    theirs = message("ModelMetadataResponse").FromString(infer_grpc.encode_model(said))
    assert (theirs.name, list(theirs.versions), theirs.platform) == ("m", ["1", "b"], "p")
    assert dict(theirs.properties) == {"k": "v", "n": "3"}
    assert list(theirs.inputs[0].shape) == [-1, 4]
    assert infer_grpc.decode_model(theirs.SerializeToString()) == said
    server = message("ServerMetadataResponse")(name="s", version="2", extensions=["e", "f"])
    assert infer_grpc.decode_server(server.SerializeToString()) == {
        "name": "s", "version": "2", "extensions": ["e", "f"],
    }  # fmt: skip
    assert infer_grpc.encode_server("s", "2", ["e", "f"]) == server.SerializeToString()
    index = message("RepositoryIndexResponse")(models=[{"name": "m", "version": "1"}, {"name": "n"}])
    assert infer_grpc.decode_index(index.SerializeToString()) == [{"name": "m", "version": "1"}, {"name": "n"}]


@given(st.binary(max_size=80))
def test_whatever_comes_is_read_or_refused(data):
    for read in (infer_grpc.decode_infer, infer_grpc.decode_result, infer_grpc.decode_model, infer_grpc.decode_index):
        with suppress(WireError):  # nothing else
            read(data)
    infer_grpc.result_flaw(memoryview(data))


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_message_that_ends_early_is_no_result(cut):
    whole = infer_grpc.encode_result("m", "", "", {"y": np.arange(4, dtype=np.float32)})
    assert infer_grpc.result_flaw(memoryview(whole)) is None
    assert infer_grpc.result_flaw(memoryview(whole[:-cut])) is not None
