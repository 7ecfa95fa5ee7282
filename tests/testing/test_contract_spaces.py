"""The contract suite on every backend that can run here: spaces."""

from portable_spdnn.testing.contract_spaces import *  # noqa: F403
