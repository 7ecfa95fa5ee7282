"""The contract suite on every backend that can run here: sampled products and softmax."""

from portable_spdnn.testing.contract_sddmm import *  # noqa: F403
