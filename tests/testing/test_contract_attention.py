"""The contract suite on every backend that can run here: sparse attention."""

from portable_spdnn.testing.contract_attention import *  # noqa: F403
