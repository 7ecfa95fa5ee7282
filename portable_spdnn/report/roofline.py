"""Moved: `portable_spdnn.kernel_model` and `portable_spdnn.plans.machine_limits`."""

from portable_spdnn.host import cache_folder as cache_folder
from portable_spdnn.kernel_model import KernelModel as KernelModel
from portable_spdnn.kernel_model import LayerSpeed as LayerSpeed
from portable_spdnn.kernel_model import Limits as Limits
from portable_spdnn.kernel_model import speed as speed
from portable_spdnn.kernel_model import speed_text as speed_text
from portable_spdnn.plans.machine_limits import cache_file as cache_file
from portable_spdnn.plans.machine_limits import known_limits as known_limits
from portable_spdnn.plans.machine_limits import limits_of as limits_of
