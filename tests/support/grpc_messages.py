"""The messages of the Open Inference Protocol's own file, as the package `protobuf` makes them of descriptors."""

from functools import cache

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

F = descriptor_pb2.FieldDescriptorProto
KINDS = {"s": F.TYPE_STRING, "b": F.TYPE_BYTES, "?": F.TYPE_BOOL, "i": F.TYPE_INT32, "l": F.TYPE_INT64,
         "u": F.TYPE_UINT32, "U": F.TYPE_UINT64, "f": F.TYPE_FLOAT, "d": F.TYPE_DOUBLE}  # fmt: skip
MESSAGES = {  # name: field number kind; * for repeated, a name for a message
    "InferTensorContents": "bool_contents 1 *?, int_contents 2 *i, int64_contents 3 *l, uint_contents 4 *u, "
    "uint64_contents 5 *U, fp32_contents 6 *f, fp64_contents 7 *d, bytes_contents 8 *b",
    "InferParameter": "bool_param 1 ?, int64_param 2 l, string_param 3 s",
    "Parameter": "key 1 s, value 2 InferParameter",
    "InferInputTensor": "name 1 s, datatype 2 s, shape 3 *l, parameters 4 *Parameter, contents 5 InferTensorContents",
    "InferRequestedOutputTensor": "name 1 s, parameters 2 *Parameter",
    "InferOutputTensor": "name 1 s, datatype 2 s, shape 3 *l, contents 5 InferTensorContents",
    "ModelInferRequest": "model_name 1 s, model_version 2 s, id 3 s, inputs 5 *InferInputTensor, "
    "outputs 6 *InferRequestedOutputTensor, raw_input_contents 7 *b",
    "ModelInferResponse": "model_name 1 s, model_version 2 s, id 3 s, outputs 5 *InferOutputTensor, "
    "raw_output_contents 6 *b",
    "ServerMetadataResponse": "name 1 s, version 2 s, extensions 3 *s",
    "TensorMetadata": "name 1 s, datatype 2 s, shape 3 *l",
    "ModelMetadataResponse": "name 1 s, versions 2 *s, platform 3 s, inputs 4 *TensorMetadata, "
    "outputs 5 *TensorMetadata, properties 6 *PropertiesEntry",
    "ModelIndex": "name 1 s, version 2 s, state 3 s, reason 4 s",
    "RepositoryIndexResponse": "models 1 *ModelIndex",
}


@cache
def pool():
    file = descriptor_pb2.FileDescriptorProto(name="v2.proto", package="inference", syntax="proto3")
    for name, text in MESSAGES.items():
        made = file.message_type.add(name=name)
        for line in text.split(", "):
            field, number, kind = line.split()
            label = F.LABEL_REPEATED if kind.startswith("*") else F.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            added = made.field.add(name=field, number=int(number), label=label)
            if kind in KINDS:
                added.type = KINDS[kind]
            else:
                parent = f"{name}." if kind == "PropertiesEntry" else ""
                added.type, added.type_name = F.TYPE_MESSAGE, f".inference.{parent}{kind}"
        if name == "ModelMetadataResponse":
            entry = made.nested_type.add(name="PropertiesEntry")
            entry.options.map_entry = True
            for number, key in ((1, "key"), (2, "value")):
                entry.field.add(name=key, number=number, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    found = descriptor_pool.DescriptorPool()
    found.Add(file)
    return found


@cache
def message(name):
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"inference.{name}"))
