"""Operands with heads: masks, and queries, keys and values of attention; and its handle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from portable_spdnn.arguments import shown
from portable_spdnn.errors import InputError
from portable_spdnn.operations.operands import (
    AnyArray,
    DenseLike,
    DenseOperand,
    SparseOperand,
    cast,
    check_out,
    common_dtype,
    host_array,
)

if TYPE_CHECKING:
    from portable_spdnn.operations.attention import AttentionOperations

HIDDEN = -1e4  # masks that are added to scores have it, or less, where nothing is to be seen
# One mask for all heads, or a list with one for each.
Masks: TypeAlias = SparseOperand | Sequence[SparseOperand]
# From Q, K and V, of shape (heads, length, d), the scale, and an array for the result or None.
PreparedAttention: TypeAlias = Callable[[AnyArray, AnyArray, AnyArray, float, AnyArray], AnyArray]


class AttentionHandle:
    """Sparse attention with masks that are prepared once; made by `Backend.attention_handle`.

    Attributes
    ----------
    shape : tuple of int
        Of the mask: (queries, keys).
    heads : int or None
        As many as masks were given; None where one mask serves any number of heads.

    Examples
    --------
    >>> import numpy as np, portable_spdnn as ps
    >>> handle = ps.get_backend("scipy").attention_handle(ps.masks.band(4, 1))
    >>> V = np.arange(8.0).reshape(4, 2)
    >>> handle.attend(np.ones((4, 3)), np.ones((4, 3)), V).tolist()  # each query sees its own key
    [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
    """

    def __init__(
        self,
        backend: AttentionOperations,
        masks: list[SparseOperand],
        heads: int | None,
        scale: float | None,
        run: PreparedAttention,
    ) -> None:
        self.shape: tuple[int, ...] = masks[0].shape if masks else (0, 0)
        self.heads = heads
        self._backend, self._scale, self._run = backend, scale, run

    def __reduce__(self) -> NoReturn:
        raise TypeError("a handle holds what only its process has; pickle the masks instead")

    def attend(
        self, Q: DenseLike, K: DenseLike, V: DenseLike, out: DenseOperand | None = None
    ) -> DenseOperand:
        """Return softmax(scale Q K^T at the mask's entries) V.

        Parameters
        ----------
        Q, K, V : dense
            As `Backend.sparse_attention` takes them.
        out : dense, of the result's shape and type, in C order, optional
            Takes the result. Reused, it saves the pages of a new array.

        Returns
        -------
        dense, of Q's shape but with d_v columns
            float64 where an operand needs it, else float32.

        Raises
        ------
        InputError
            If an operand or `out` does not fit the masks or the others.
        """
        name = "sparse_attention"
        q, k, v = dense_heads(self._backend, name, takes_batches=True, Q=Q, K=K, V=V)
        check_heads(name, self.shape, self.heads, q, k)
        if v.shape[:-1] != k.shape[:-1]:
            raise InputError(
                f"{name}: V has shape {v.shape} but K {k.shape}; only the number of columns may "
                "differ"
            )
        dtype = common_dtype(name, Q=q, K=k, V=v)
        q, k, v = cast(q, dtype), cast(k, dtype), cast(v, dtype)
        shape = (*q.shape[:-1], v.shape[-1])
        check_out(name, out, shape, dtype, q, k, v)
        scale = 1 / math.sqrt(q.shape[-1]) if self._scale is None else self._scale
        result: AnyArray
        if q.ndim == 3:
            result = self._run(q, k, v, scale, out)
        else:
            result = self._attend_others(q, k, v, scale, out)
        found: DenseOperand = result if out is None else out
        return found

    def _attend_others(
        self, q: AnyArray, k: AnyArray, v: AnyArray, scale: float, out: AnyArray
    ) -> AnyArray:
        """Attend with a single head, or a batch: operands of two dimensions or four."""
        shape = (*q.shape[:-1], v.shape[-1])
        shares_mask = self.heads in (None, 1)  # a list of one mask serves any number of heads
        if q.ndim == 4 and not (shares_mask and all(map(is_joined, (q, k, v)))):
            if out is None:
                out = self._backend.upload(np.empty(shape, q.dtype))
            if shares_mask and getattr(self._run, "takes_batches", False):
                self._run(q, k, v, scale, out)
            else:
                for number in range(shape[0]):
                    self._run(q[number], k[number], v[number], scale, out[number])
            return out
        heads = math.prod(shape[:-2])
        q, k, v = (one.reshape(heads, *one.shape[-2:]) for one in (q, k, v))
        target = None if out is None else out.reshape(heads, *shape[-2:])
        found: AnyArray = self._run(q, k, v, scale, target)
        return found.reshape(shape)

    def describe(self) -> str:
        """Return how the masks were prepared, and why, for people."""
        describe = getattr(self._run, "describe", None)
        return "nothing was prepared" if describe is None else str(describe())


def checked_masks(
    backend: AttentionOperations, name: str, mask: object
) -> tuple[list[SparseOperand], int | None]:
    """Return masks as a list, and how many heads they are for: None for one mask for all."""
    several = isinstance(mask, list | tuple)
    given: Sequence[object] = mask if several else [mask]  # type: ignore[assignment]
    masks = [backend.sparse_operand(f"{name}: mask", one) for one in given]
    for number, one in enumerate(masks):
        if one.shape != masks[0].shape:
            raise InputError(
                f"{name}: the mask of head {number} has shape {one.shape}, that of head 0 "
                f"{masks[0].shape}; all must have one shape"
            )
        data = getattr(one, "data", None)
        if isinstance(data, np.ndarray) and data.dtype.kind == "f" and (data <= HIDDEN).any():
            raise InputError(
                f"{name}: mask stores {data.min():.3g}, as a mask that is added to scores does; "
                "what a mask stores here is what is seen, whatever its value: of a dense one that "
                "is added, pass scipy.sparse.csr_array(mask == 0)"
            )
    return masks, len(masks) if several else None


def dense_heads(
    backend: AttentionOperations, name: str, takes_batches: bool = False, **operands: Any
) -> list[Any]:
    """Return dense operands, all of the same number of dimensions, or raise InputError.

    They have two (length, d), three (heads, length, d), or four (batch, heads, length, d) where the
    operation takes batches.
    """
    found = []
    for letter, array in operands.items():
        if backend.memory_space == "host" or isinstance(array, list | tuple):
            array = host_array(f"{name}: {letter}", array)
        dimensions = getattr(array, "ndim", 0)
        if not 2 <= dimensions <= 3 + takes_batches:
            batch = "4 for a batch" if takes_batches else "and no batch: join it to the heads"
            raise InputError(
                f"{name}: {letter} has {dimensions} dimension(s); 3 are expected, (heads, length, "
                f"d), 2 for one head, {batch}"
            )
        found.append(array)
    if len({array.ndim for array in found}) > 1:
        each = ", ".join(
            f"{letter} {array.ndim}" for letter, array in zip(operands, found, strict=True)
        )
        raise InputError(f"{name}: dimensions differ ({each}); all must have the same number")
    return found


def check_heads(name: str, mask: tuple[int, ...], heads: int | None, Q: Any, K: Any) -> None:
    """Raise InputError where Q and K do not fit each other and the masks."""
    given = Q.shape[-3] if Q.ndim > 2 else 1
    if heads is not None and given != heads:
        raise InputError(f"{name}: {heads} masks for {given} heads; give one mask, or as many")
    if Q.shape[:-2] != K.shape[:-2]:
        what = "heads" if Q.ndim < 4 else "batch and heads"
        raise InputError(
            f"{name}: Q has shape {Q.shape} but K {K.shape}; both must have the same {what}"
        )
    for letter, rows, side, wanted in (("Q", Q, "rows", mask[0]), ("K", K, "columns", mask[1])):
        if rows.shape[-2] != wanted and heads != 0:
            raise InputError(
                f"{name}: mask is {mask[0]} x {mask[1]} but {letter} has {rows.shape[-2]} rows; as "
                f"many as the mask has {side} are expected: {wanted}"
            )
    if Q.shape[-1] != K.shape[-1] or not Q.shape[-1]:
        raise InputError(
            f"{name}: Q has {Q.shape[-1]} columns and K {K.shape[-1]}; both must have the "
            "same number, at least 1"
        )


def is_joined(array: AnyArray) -> bool:
    """Whether batch and heads of four dimensions can be one dimension without a copy."""
    batch, heads, *_ = array.shape
    return bool(batch <= 1 or heads == 1 or array.strides[0] == heads * array.strides[1])


def checked_scale(name: str, scale: Any) -> float:
    """Return a number that float32 has as a float, or raise InputError."""
    real = isinstance(scale, Real) and not isinstance(scale, bool)
    try:
        number = float(scale) if real else math.nan
    except OverflowError:
        number = math.inf
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise InputError(f"{name}: scale is {shown(scale)}; a finite number of float32 is expected")
    return number
