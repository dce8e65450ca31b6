"""Reader of the weights of an ONNX file. No graph is run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from paceline.core.types import LogitArray
from paceline.errors import ModelError

Field: TypeAlias = tuple[int, int | memoryview]

_VARINT, _WIDE, _BYTES, _NARROW = 0, 1, 2, 5  # types of protobuf's fields

# Numbers of fields in messages: of a model, of a graph, of a node and of a tensor.
_GRAPH = 7
_NODE, _TENSOR = 1, 5
_INPUT, _NODE_NAME, _OPERATION = 1, 3, 4
_DIMS, _KIND, _NAME, _RAW = 1, 2, 8, 9
_FLOAT = 1  # of a tensor's kinds
_NOTHING = memoryview(b"")


def read_onnx(data: memoryview) -> dict[str, LogitArray]:
    """Return the float32 tensors of a file, by their names there.

    The matrix of a product has no name of its own where it was turned on export: it is there as
    NODE.weight too, of the node's path with dots, turned back to `[outputs, inputs]`.

    Raises ModelError if this is no ONNX file, or cut short.
    """
    try:
        graph = next(value for number, value in _fields(data) if number == _GRAPH)
        parts = list(_fields(_bytes(graph)))
        tensors = dict(_tensor(_message(each)) for number, each in parts if number == _TENSOR)
        found = {name: values for name, values in tensors.items() if values is not None}
        for node in (_message(each) for number, each in parts if number == _NODE):
            said = dict(node)
            if _text(said.get(_OPERATION, _NOTHING)) != "MatMul":
                continue
            path = _text(said[_NODE_NAME]).strip("/").split("/")
            for name in (_text(each) for number, each in node if number == _INPUT):
                if name in found and "." not in name:
                    found[".".join([*path[:-1], "weight"])] = np.ascontiguousarray(found[name].T)
        return found
    except (StopIteration, IndexError, ValueError, KeyError) as error:
        raise ModelError("an ONNX file is damaged, or none: download it again") from error


def _fields(data: memoryview) -> Iterator[Field]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value: int | memoryview
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if kind == _BYTES else ({_WIDE: 8, _NARROW: 4}[kind], at)
            if at + size > len(data):
                raise ValueError("cut short")
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where bytes belong")
    return value


def _text(value: int | memoryview) -> str:
    return bytes(_bytes(value)).decode()


def _message(value: int | memoryview) -> list[Field]:
    return list(_fields(_bytes(value)))


def _tensor(fields: list[Field]) -> tuple[str, LogitArray | None]:
    said = dict(fields)
    shape: list[int] = []
    for number, value in fields:
        if number == _DIMS and isinstance(value, int):
            shape.append(value)
        elif number == _DIMS:  # packed
            at, packed = 0, _bytes(value)
            while at < len(packed):
                each, at = _varint(packed, at)
                shape.append(each)
    name = _text(said[_NAME])
    if said.get(_KIND) != _FLOAT or _RAW not in said:
        return name, None
    return name, np.frombuffer(_bytes(said[_RAW]), "<f4").reshape(shape)
