"""The contract suite on every backend that can run here: layers."""

from portable_spdnn.testing.contract_layers import *  # noqa: F403
