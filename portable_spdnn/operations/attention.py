"""The operations of sparse attention: what users call, validated.

Attention of a query i looks at the keys j that a sparse mask stores in row i, and at no others:

    S = scale Q K^T at the mask's entries (`sddmm`),
    P = softmax of each row of S over its stored entries (`sparse_softmax`),
    O = P V (`sparse_attention` does all three).

Sources: A. Vaswani et al., "Attention Is All You Need", NeurIPS 2017, equation 1; T. Gale, M.
Zaharia, C. Young, E. Elsen, "Sparse GPU Kernels for Deep Learning", SC 2020, sections V and VII.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from portable_spdnn.arguments import checked_count
from portable_spdnn.operations.heads import (
    AttentionHandle,
    Masks,
    PreparedAttention,
    check_heads,
    checked_masks,
    checked_scale,
    dense_heads,
)
from portable_spdnn.operations.operands import (
    AnyArray,
    DenseLike,
    DenseOperand,
    SparseOperand,
    cast,
    common_dtype,
)
from portable_spdnn.operations.optional import optional


class AttentionOperations:
    """What users call on a backend for sparse attention: arguments are checked here.

    A backend that has the operations names them in ``optional_operations`` and implements, on
    validated arguments,

    - ``run_sddmm(masks, Q, K, scale)``: a list of csr, one for each head;
    - ``run_sparse_softmax(matrices)``: a list of csr, as many;
    - ``make_attention(masks, d)``: the function (Q, K, V, scale, out or None) -> O of
      `sparse_attention`; with a method ``describe``, that is what the handle says of itself. `d`
      is the width of a head that is expected, None where it is not known: a hint, no limit.

    Masks are canonical, one for all heads or one for each; of them the pattern alone counts.
    Q, K and V have the shape (heads, length, d), any strides, and one type. A batch comes as more
    heads where one mask serves all, or in a call for each of its members; but where batch and heads
    are not one dimension in memory, and the function has an attribute ``takes_batches``, with four
    dimensions.
    """

    # What a backend gives; `portable_spdnn.backend` says what each does.
    memory_space: ClassVar[str]
    sparse_operand: Callable[[str, object], SparseOperand]
    upload: Callable[[AnyArray], AnyArray]
    run_sddmm: Callable[[list[SparseOperand], AnyArray, AnyArray, float], list[SparseOperand]]
    run_sparse_softmax: Callable[[list[SparseOperand]], list[SparseOperand]]
    make_attention: Callable[[list[SparseOperand], int | None], PreparedAttention]

    @optional("sddmm")
    def sddmm(
        self, mask: Masks, Q: DenseLike, K: DenseLike, scale: float = 1.0
    ) -> SparseOperand | list[SparseOperand]:
        """S[i, j] = scale (Q[i] . K[j]) at the entries (i, j) that a mask stores.

        A sampled dense-dense matrix product. Whatever values the mask stores, zeros among them,
        an entry is computed: the pattern alone counts.

        Parameters
        ----------
        mask : sparse, shape (m, n), or list of such
            One for all heads, or a list with one for each.
        Q : dense, shape (m, d) or (heads, m, d)
        K : dense, shape (n, d) or (heads, n, d)
        scale : float, default 1

        Returns
        -------
        sparse, shape (m, n), canonical, with the mask's pattern
            float64 if Q or K is, else float32. Where Q and K have heads, a list with one for each.

        Raises
        ------
        InputError
            If the shapes do not fit, the mask is not sparse or stores minus infinity (as one that
            is added to scores does), an operand is not real, or `scale` is not finite.
        NotImplementedError
            If the backend does not have the operation.

        Examples
        --------
        >>> import numpy as np, scipy.sparse as sp, portable_spdnn as ps
        >>> mask = sp.csr_array(np.array([[1, 0], [1, 1]]))
        >>> Q, K = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
        >>> ps.get_backend("scipy").sddmm(mask, Q, K, scale=10).toarray().tolist()
        [[10.0, 0.0], [30.0, 40.0]]
        """
        masks, heads = checked_masks(self, "sddmm", mask)
        q, k = dense_heads(self, "sddmm", Q=Q, K=K)
        check_heads("sddmm", masks[0].shape if masks else (0, 0), heads, q, k)
        flat = q.ndim == 2
        q, k = (one[None] if flat else one for one in (q, k))
        factor = checked_scale("sddmm", scale)
        dtype = common_dtype("sddmm", Q=q, K=k)
        scores = self.run_sddmm(masks, cast(q, dtype), cast(k, dtype), factor)
        return scores[0] if flat else scores

    @optional("sparse_softmax")
    def sparse_softmax(self, S: Masks) -> SparseOperand | list[SparseOperand]:
        """P[i, j] = exp(S[i, j] - m_i) / sum over stored k of exp(S[i, k] - m_i).

        m_i is the largest entry of row i, so that nothing overflows. Entries that are not stored
        count as minus infinity, and stay 0. A row without entries stays empty; where all entries
        of a row are minus infinity, they become 0. Where one is NaN or plus infinity, all entries
        of the row become NaN, as the formula says.

        Parameters
        ----------
        S : sparse, or list of such

        Returns
        -------
        sparse, canonical, with the pattern of S
            float64 where S is, or has integers of 64 bits, else float32; a list where S is one.

        Raises
        ------
        InputError
            If S is not sparse, or not real.
        NotImplementedError
            If the backend does not have the operation.

        Examples
        --------
        >>> import numpy as np, scipy.sparse as sp, portable_spdnn as ps
        >>> S = sp.csr_array(np.array([[1000.0, 1000.0], [0.0, 7.0]]))
        >>> ps.get_backend("scipy").sparse_softmax(S).toarray().tolist()
        [[0.5, 0.5], [0.0, 1.0]]
        """
        several = isinstance(S, list | tuple)
        given: Sequence[object] = S if several else [S]  # type: ignore[assignment]
        matrices = [self.sparse_operand("sparse_softmax: S", one) for one in given]
        dtypes = [common_dtype("sparse_softmax", S=one) for one in matrices]
        found = self.run_sparse_softmax(list(map(cast, matrices, dtypes)))
        return found if several else found[0]

    @optional("sparse_attention")
    def sparse_attention(
        self, Q: DenseLike, K: DenseLike, V: DenseLike, mask: Masks, scale: float | None = None
    ) -> DenseOperand:
        """O = softmax(scale Q K^T at the mask's entries) V.

        Parameters
        ----------
        Q : dense, shape (heads, queries, d)
        K : dense, shape (heads, keys, d)
        V : dense, shape (heads, keys, d_v)
            All three may leave the heads out, and are then one head, or have a batch before them:
            (batch, heads, queries, d).
        mask : sparse, shape (queries, keys), or list of such
            One for all heads, or a list with one for each; its pattern alone counts. All members of
            a batch share them.
        scale : float, optional
            Default: 1 / sqrt(d).

        Returns
        -------
        dense, of Q's shape but with d_v columns
            float64 where an operand needs it, else float32. A query without keys gives zeros, and
            so does one whose scores are all minus infinity (where V is finite).

        Raises
        ------
        InputError
            If the shapes do not fit, the mask is not sparse or stores minus infinity (as one that
            is added to scores does), an operand is not real, or `scale` is not finite.
        NotImplementedError
            If the backend does not have the operation.

        Examples
        --------
        >>> import numpy as np, portable_spdnn as ps
        >>> rng = np.random.default_rng(0)
        >>> Q, K, V = rng.random((3, 2, 100, 16))  # two heads
        >>> mask = ps.masks.union(ps.masks.band(100, 8), ps.masks.random(100, 0.95, seed=1))
        >>> ps.get_backend("scipy").sparse_attention(Q, K, V, mask).shape
        (2, 100, 16)
        """
        handle = AttentionOperations._attention(self, mask, None, scale, keep=False)
        return handle.attend(Q, K, V)

    @optional("sparse_attention")
    def attention_handle(
        self, mask: Masks, d: int | None = None, scale: float | None = None
    ) -> AttentionHandle:
        """Prepare masks once, for attention with many Q, K and V.

        Parameters
        ----------
        mask : sparse, shape (queries, keys), or list of such
            One for all heads, or a list with one for each; its pattern alone counts.
        d : int, optional
            Width of a head that Q, K and V are going to have, where that is known: the masks are
            then cut into blocks that suit it. It limits nothing.
        scale : float, optional
            Default: 1 / sqrt(width of Q).

        Raises
        ------
        InputError
            If a mask is not sparse or not real, or stores minus infinity (as one that is added to
            scores does), the masks differ in shape, `d` is less than 1, or `scale` is not finite.
        NotImplementedError
            If the backend does not have the operation.

        Examples
        --------
        >>> import numpy as np, portable_spdnn as ps
        >>> handle = ps.get_backend("scipy").attention_handle(ps.masks.causal(3), d=2)
        >>> Q = K = V = np.eye(3, 2)
        >>> handle.attend(Q, K, V)[0].tolist()  # the first query sees the first key alone
        [1.0, 0.0]
        """
        return self._attention(mask, d, scale, keep=True)

    def _attention(
        self, mask: Masks, d: int | None, scale: float | None, keep: bool
    ) -> AttentionHandle:
        """Return a handle; `keep`: masks are to stay as they are whatever their owner does."""
        masks, heads = checked_masks(self, "sparse_attention", mask)
        if d is not None:
            d = checked_count("sparse_attention: d", d)
        if scale is not None:
            scale = checked_scale("sparse_attention", scale)
        owned: list[Any] = [one.copy() for one in masks] if keep else masks  # type: ignore[attr-defined]
        return AttentionHandle(self, masks, heads, scale, self.make_attention(owned, d))
