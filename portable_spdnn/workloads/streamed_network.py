"""Networks whose layers are read or generated when they are used, and then let go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from portable_spdnn.arguments import checked_count
from portable_spdnn.graphchallenge.configurations import challenge_bias
from portable_spdnn.graphchallenge.radixnet import radixnet_layer, radixnet_layers
from portable_spdnn.io.packed_store import PackedStore
from portable_spdnn.layer import Layer
from portable_spdnn.network import LayerStatistics, Network

MAX_LAYERS = 1 << 20  # of a generated network: what is known of each is kept


class LayerSource(ABC):
    """Where the layers of a `StreamedNetwork` come from.

    Attributes
    ----------
    statistics : sequence of LayerStatistics
        Of every layer, in order.
    """

    statistics: Sequence[LayerStatistics]

    @abstractmethod
    def read(self, number: int) -> Layer:
        """Return layer `number`, counted from 0. May be called from any one thread at a time."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a text that is equal for sources of equal layers, and costs no reading."""

    def release(self, first: int, end: int) -> None:
        """Take note that layers `first` .. `end` - 1 are not needed for now."""
        return None


class StreamedNetwork(Network):
    """A network that holds no weights: `layers[i]` reads or generates a layer anew.

    What `Network` tells of itself costs no reading. It may be used wherever a `Network` may;
    a plan under a memory budget (`PlanOptions.memory`) never holds all of its layers.

    Parameters
    ----------
    source : LayerSource
    y_max : float, optional
        As for `Network`.

    Raises
    ------
    InputError
        If there is no layer, two neighbours do not fit, or `y_max` is not positive.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> from portable_spdnn.workloads.streamed_network import GeneratedLayers
    >>> network = ps.StreamedNetwork(GeneratedLayers(1024, layers=120), y_max=32)
    >>> network.edges, network.layers[119]
    (3932160, Layer(1024 x 1024, 32768 edges))
    """

    __slots__ = ("source",)

    def __init__(self, source: LayerSource, y_max: float | None = None) -> None:
        self.source = source
        self.layers = _ReadOnUse(source)
        self._set(y_max)

    def _known(self) -> Sequence[LayerStatistics]:
        return self.source.statistics

    def __iter__(self) -> Iterator[Layer]:
        for number in range(len(self)):
            yield self.source.read(number)
            self.source.release(number, number + 1)

    def fingerprint(self) -> str:
        """Return what names the source, its layers and `y_max`."""
        return f"{self.source.fingerprint()}, y_max {self.y_max}"


class _ReadOnUse(Sequence[Layer]):
    def __init__(self, source: LayerSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source.statistics)

    @overload
    def __getitem__(self, index: int) -> Layer: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Layer]: ...

    def __getitem__(self, index: int | slice) -> Layer | Sequence[Layer]:
        numbers = range(len(self))[index]
        if isinstance(numbers, int):
            return self._source.read(numbers)
        return tuple(self._source.read(number) for number in numbers)


class StoredLayers(LayerSource):
    """The first `layers` layers (default: all) of a packed store, memory-mapped.

    Parameters
    ----------
    store : PackedStore
    layers : int, optional
    bias : float or array_like, optional
        Replaces the stored bias of every layer.
    """

    def __init__(
        self, store: PackedStore, layers: int | None = None, bias: npt.ArrayLike | None = None
    ) -> None:
        self.store, self.bias = store, bias
        wanted = store.check_layers(layers)
        self.statistics = [store.layer_statistics(number, bias) for number in range(1, wanted + 1)]

    def read(self, number: int) -> Layer:
        """Return a layer; its arrays are views of the file, their checksums verified."""
        return self.store.layer(number + 1, self.bias)

    def release(self, first: int, end: int) -> None:
        """Give the pages of these layers back; they are read again from the file when needed."""
        self.store.release(first + 1, end)

    def fingerprint(self) -> str:
        """Return the checksum of the store's index, which holds those of all arrays."""
        bias = None if self.bias is None else np.asarray(self.bias, np.float64).tolist()
        return f"store {self.store.checksum:08x}, {len(self.statistics)} layers, bias {bias}"


class GeneratedLayers(LayerSource):
    """The layers of a RadiX-Net of the challenge, generated one by one.

    Parameters
    ----------
    neurons, layers, seed
        As for `graphchallenge.radixnet.radixnet_layers`.
    bias : float, optional
    """

    def __init__(self, neurons: int, layers: int, seed: int = 0, bias: float | None = None) -> None:
        layers = checked_count("layers", layers, most=MAX_LAYERS)
        radixnet_layers(neurons, layers, seed)  # raises where an argument is outside its range
        self.neurons, self.seed = neurons, seed
        self.bias = challenge_bias(neurons) if bias is None else bias
        one = LayerStatistics((neurons, neurons), 32 * neurons, 0, self.bias <= 0)
        self.statistics = [one] * layers

    def read(self, number: int) -> Layer:
        """Generate a layer."""
        return radixnet_layer(self.neurons, number, self.seed, self.bias)

    def fingerprint(self) -> str:
        """Return what the layers are generated from."""
        return (
            f"RadiX-Net of {self.neurons} neurons, {len(self.statistics)} layers, "
            f"seed {self.seed}, bias {self.bias}"
        )
