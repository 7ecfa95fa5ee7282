"""The Sparse DNN Graph Challenge: its configurations.

Source: Kepner, Alford, Gadepally, Jones, Milechin, Robinett and Samsi, "Sparse Deep Neural
Network Graph Challenge", IEEE HPEC 2019, and the files at graphchallenge.mit.edu.
"""

from __future__ import annotations

from dataclasses import dataclass

from portable_spdnn.errors import InputError

Y_MAX = 32.0
"""Upper bound of every feature after a layer."""

OFFICIAL_NEURONS = (1024, 4096, 16384, 65536)
"""Widths of the official networks."""

INPUTS = 60_000
"""Number of official inputs: the training images of MNIST."""


@dataclass(frozen=True)
class Configuration:
    """One of the official networks.

    Attributes
    ----------
    neurons, layers : int
    bias : float
        Added to every neuron of every layer.
    """

    neurons: int
    layers: int
    bias: float

    @property
    def edges(self) -> int:
        """Number of weights: 32 for each neuron of each layer."""
        return 32 * self.neurons * self.layers


def challenge_bias(neurons: int) -> float:
    """Return the bias of the challenge network with this many neurons.

    ``bias = -0.3 - 0.025 (log2(neurons) - 10)``. The line passes through the four official
    values, -0.30, -0.35, -0.40 and -0.45 for 1024, 4096, 16384 and 65536 neurons; for the
    other sizes of the same family it is this package's own choice.

    Parameters
    ----------
    neurons : int
        16 * 2^s, s >= 0.

    Raises
    ------
    InputError
        If `neurons` is not of that form.
    """
    power = neurons.bit_length() - 1
    if neurons < 16 or neurons != 1 << power:
        raise InputError(
            f"the challenge has no bias for {neurons} neurons, only for 16 * 2^s "
            "(1024, 4096, 16384, 65536, ...); give one, bias=NUMBER"
        )
    # Whole thousandths, so that the official values come out as the numbers they are written as.
    return round(-0.3 - 0.025 * (power - 10), 3)


CONFIGURATIONS = tuple(
    Configuration(neurons, layers, challenge_bias(neurons))
    for neurons in OFFICIAL_NEURONS
    for layers in (120, 480, 1920)
)
"""The twelve official networks."""
