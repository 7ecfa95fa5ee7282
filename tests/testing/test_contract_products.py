"""The contract suite on every backend that can run here: products."""

from portable_spdnn.testing.contract_products import *  # noqa: F403
