"""The contract suite on every backend that can run here: products of sparse matrices."""

from portable_spdnn.testing.contract_spgemm import *  # noqa: F403
