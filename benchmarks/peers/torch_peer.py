"""PyTorch: CSR times dense, on the CPU; whole networks in dense batches."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from dense_batches import infer_in_batches

import portable_spdnn as ps


class TorchPeer:
    """torch.sparse_csr_tensor with bias, ReLU and clamp in place."""

    name, version = "torch CSR", torch.__version__

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.threads = threads

    @staticmethod
    def _csr(A: Any) -> Any:
        arrays = (A.indptr.astype(np.int32), A.indices.astype(np.int32), A.data.copy())
        with warnings.catch_warnings():  # that the type is in beta state
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_csr_tensor(*map(torch.from_numpy, arrays), size=A.shape)

    def spmm(self, A: Any, B: Any) -> Any:
        W, Y = self._csr(A), torch.from_numpy(B)
        return lambda: W @ Y

    @staticmethod
    def dense(W: Any, B: Any) -> Any:
        """Return the operation C = W B, both dense, which reuses C."""
        operands = torch.from_numpy(W), torch.from_numpy(B)
        C = torch.empty(W.shape[0], B.shape[1])
        return lambda: torch.mm(*operands, out=C)

    def layer(self, A: Any, B: Any, bias: Any, y_max: float) -> Any:
        W, Y, column = self._csr(A), torch.from_numpy(B), torch.from_numpy(bias[:, None])
        return lambda: (W @ Y).add_(column).clamp_(0, y_max)

    def inference(self, network: ps.Network, features: Any) -> Any:
        columns = [torch.from_numpy(one.bias.astype(np.float32)[:, None]) for one in network]
        weights = [
            (self._csr(one.csr().T.tocsr()), column)
            for one, column in zip(network, columns, strict=True)
        ]
        y_max = network.y_max

        def layer(W: Any, Y: Any) -> Any:
            return (W[0] @ Y).add_(W[1]).clamp_(0, y_max)

        return lambda: infer_in_batches(
            weights,
            features,
            layer,
            lambda Y: Y.amax(dim=0).gt(0).numpy(),
            lambda Y, kept: Y.index_select(1, torch.from_numpy(kept)),
            torch.from_numpy,
        )

    def host(self, result: Any) -> Any:
        return result.numpy() if isinstance(result, torch.Tensor) else result
