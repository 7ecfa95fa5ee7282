"""The contract suite on every backend that can run here: convolutions."""

from portable_spdnn.testing.contract_convolutions import *  # noqa: F403
