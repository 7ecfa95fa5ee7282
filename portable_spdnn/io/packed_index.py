"""The index of a packed store: its members by type, and how they must fit together.

`packed_layout` describes each member. A store may come from a stranger, with right checksums over
wrong content: nothing of the index is used before it has passed `read_index`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

import msgspec

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.errors import InputError
from portable_spdnn.io.packed_layout import ALIGNMENT
from portable_spdnn.layer import Layer
from portable_spdnn.network import check_chain, checked_y_max

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]  # of entries or bytes: 256 Ti at most
BYTES = {"|u1": 1, "<u2": 2, "<i4": 4, "<i8": 8, "<f4": 4, "<f8": 8}


class StoredArray(msgspec.Struct, frozen=True):
    """Where an array lies in the file."""

    offset: Count
    count: Count
    dtype: Literal["|u1", "<u2", "<i4", "<i8", "<f4", "<f8"]
    crc32: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.count * BYTES[self.dtype]


class StoredLayer(msgspec.Struct, frozen=True):
    """A layer's entry; those of version 1 leave out the last three."""

    shape: tuple[Count, Count]
    row_length: Count | None
    indptr: StoredArray | None
    indices: StoredArray
    weight_dtype: Literal["<f4", "<f8"]
    weight: float | None
    weights: StoredArray | None
    bias: float | StoredArray
    activation: str | msgspec.UnsetType = msgspec.UNSET
    lower: float | msgspec.UnsetType | None = msgspec.UNSET
    upper: float | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def is_version_1(self) -> bool:
        """Whether the entry has no member of version 2."""
        members = (self.activation, self.lower, self.upper)
        return all(member is msgspec.UNSET for member in members)

    @property
    def epilogue(self) -> tuple[str, float | None, float | None]:
        """Activation, lower and upper bound."""
        return (
            "relu" if self.activation is msgspec.UNSET else self.activation,
            None if self.lower is msgspec.UNSET else self.lower,
            None if self.upper is msgspec.UNSET else self.upper,
        )


class StoredInputsEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The entry of the inputs: `bits`, or the other three arrays."""

    shape: tuple[Count, Count]
    bits: StoredArray | None = None
    indptr: StoredArray | None = None
    indices: StoredArray | None = None
    data: StoredArray | None = None


class Index(msgspec.Struct, frozen=True):
    """All members of the index."""

    y_max: float | None
    layers: Annotated[tuple[StoredLayer, ...], msgspec.Meta(min_length=1)]
    inputs: StoredInputsEntry | None
    truth: dict[Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]{0,9}$")], StoredArray]

    @property
    def version(self) -> int:
        """The oldest version of the format that can say all."""
        return 1 if all(layer.is_version_1 for layer in self.layers) else 2

    def encode(self) -> bytes:
        """Return the index as JSON."""
        return msgspec.json.encode(self)


def stored_epilogue(layer: Layer) -> tuple[()] | tuple[str, float | None, float | None]:
    """Return the members of a layer's entry that version 2 adds; none where version 1 does."""
    return () if layer.is_plain_relu else (layer.activation, layer.lower, layer.upper)


def read_index(text: bytes, version: int, end: int) -> Index:
    """Return the index of a store.

    Parameters
    ----------
    text : bytes
        JSON in UTF-8.
    version : int
        Of the store's header.
    end : int
        Where arrays end in the file, in bytes: at the index.

    Raises
    ------
    ValueError
        If a member is missing, of another type or out of its range, if an array lies outside the
        file, or if sizes do not fit together; the message names the member.
    """
    try:
        index = msgspec.json.decode(text, type=Index)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    problem = next(problems(index, version, end), None)
    if problem is not None:
        raise ValueError(problem)
    return index


def problems(index: Index, version: int, end: int) -> Iterator[str]:
    """Yield what is wrong with the index of a store, in sentences; parameters as `read_index`."""
    if index.version > version:
        yield f"a store of version {version} has members of version {index.version}"
    for number, layer in enumerate(index.layers, start=1):
        for problem in _layer_problems(layer, end):
            yield f"layer {number}: {problem}"
    placed = sorted((one.offset, one.offset + one.nbytes) for one in _arrays(index) if one.count)
    if any(first[1] > second[0] for first, second in pairwise(placed)):
        yield "two arrays share bytes of the file"
    try:
        checked_y_max(index.y_max)
        check_chain([layer.shape for layer in index.layers])
    except InputError as error:
        yield str(error)
    if index.inputs is not None:
        if index.inputs.shape[1] != index.layers[0].shape[0]:
            yield (
                f"inputs have {index.inputs.shape[1]} columns but layer 1 takes "
                f"{index.layers[0].shape[0]} neurons"
            )
        for problem in _input_problems(index.inputs, end):
            yield f"inputs: {problem}"
    for layers, array in index.truth.items():
        for problem in _array_problems(f"truth of {layers} layers", array, ("<i8",), None, end):
            yield problem


def _arrays(index: Index) -> Iterator[StoredArray]:
    """Yield all arrays that an index refers to."""
    inputs = () if index.inputs is None else (index.inputs,)
    for entry in (*index.layers, *inputs, index.truth):
        members = entry.values() if isinstance(entry, dict) else msgspec.structs.astuple(entry)
        yield from (member for member in members if isinstance(member, StoredArray))


def _layer_problems(layer: StoredLayer, end: int) -> Iterator[str]:
    rows, columns = layer.shape
    nnz = layer.indices.count
    yield from _array_problems("indices", layer.indices, ("<u2", "<i4", "<i8"), None, end)
    if layer.row_length is None:
        yield from _array_problems("indptr", layer.indptr, ("<i8",), rows + 1, end)
    elif layer.indptr is not None or rows * layer.row_length != nnz:
        yield f"{rows} rows of {layer.row_length} weights do not make {nnz}, or indptr is not null"
    if layer.weights is not None:
        yield from _array_problems("weights", layer.weights, (layer.weight_dtype,), nnz, end)
    if (layer.weight is None) == (layer.weights is None) and nnz:
        yield "one of weight and weights is given, the other is null"
    if isinstance(layer.bias, StoredArray):
        yield from _array_problems("bias", layer.bias, ("<f8",), columns, end)
    try:
        Epilogue(None, *layer.epilogue)
    except InputError as error:
        yield str(error)


def _input_problems(inputs: StoredInputsEntry, end: int) -> Iterator[str]:
    count, neurons = inputs.shape
    csr = (inputs.indptr, inputs.indices, inputs.data)
    if inputs.bits is not None:
        if any(csr):
            yield "bits go without indptr, indices and data"
        yield from _array_problems("bits", inputs.bits, ("|u1",), count * -(-neurons // 8), end)
        return
    wide = ("<i8",) if inputs.indptr and inputs.indptr.dtype == "<i8" else ("<i4",)
    nnz = None if inputs.indices is None else inputs.indices.count
    yield from _array_problems("indptr", inputs.indptr, wide, count + 1, end)
    yield from _array_problems("indices", inputs.indices, wide, nnz, end)
    yield from _array_problems("data", inputs.data, ("<f4", "<f8"), nnz, end)


def _array_problems(
    name: str, array: StoredArray | None, types: tuple[str, ...], count: int | None, end: int
) -> Iterator[str]:
    """Yield what is wrong with an array that must be there, of `count` entries where given."""
    if array is None:
        yield f"{name} is missing"
        return
    if array.dtype not in types:
        yield f"{name} is of type {array.dtype}; {' or '.join(types)} is expected"
    if count is not None and array.count != count:
        yield f"{name} has {array.count} entries; {count} are expected"
    if array.offset % ALIGNMENT or array.offset + array.nbytes > end:
        yield (
            f"{name} is said to be in bytes {array.offset} to {array.offset + array.nbytes}, "
            f"which is outside the file or begins at no multiple of {ALIGNMENT}"
        )
