"""The contract suite on every backend that can run here: plans."""

from portable_spdnn.testing.contract_plans import *  # noqa: F403
