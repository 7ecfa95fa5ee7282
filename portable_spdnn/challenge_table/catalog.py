"""What a folder or a packed store holds of the table.

A folder may hold several networks, as the challenge's own files or as packed stores. What
belongs to one number of neurons belongs together: the truth is that of the inputs beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.categories import Truth
from portable_spdnn.graphchallenge.configurations import Configuration
from portable_spdnn.graphchallenge.folder_layout import inputs_path, layers_present, network_paths
from portable_spdnn.io.packed_layout import is_packed_store
from portable_spdnn.io.packed_store import PackedStore
from portable_spdnn.workloads.inputs import TextInputs, inputs_at
from portable_spdnn.workloads.sources import load_truth


class Catalog:
    """The networks, inputs and truth of a folder or store; None holds none.

    `inputs`, a file or folder, takes the place of those of `data`. Raises InputError if there is
    no such folder or store, it is damaged, nothing in it is `wanted`, or the inputs do not fit
    all that is.
    """

    def __init__(
        self, data: Path | None, inputs: Path | None, wanted: Iterable[Configuration]
    ) -> None:
        self.data, self.named = data, inputs
        self._deepest = {one.neurons: one.layers for one in sorted(wanted, key=lambda n: n.layers)}
        self._stores: list[PackedStore] = []
        self._texts: dict[int, Path] = {}
        self._layers_present = cache(layers_present)  # an archive is looked through once
        if inputs is not None:
            check_inputs(inputs, sorted(self._deepest))
        if data is None:
            return
        if not data.exists():
            raise InputError(f"{data}: there is no such file or folder")
        if data.is_dir():
            self._texts = network_paths(data)
        for path in sorted(data.iterdir()) if data.is_dir() else [data]:
            if is_packed_store(path):
                self._stores.append(PackedStore(path))
        held = {*(store.neurons for store in self._stores), *self._texts}
        if not any(one in held or inputs_path(data, one) for one in self._deepest):
            raise InputError(
                f"{data}: holds neither network nor inputs of {', '.join(map(str, self._deepest))} "
                "neurons, as files of the challenge or packed stores; name no data to have all "
                "generated"
            )

    def network(self, configuration: Configuration) -> Path | None:
        """Return the store, or else the folder, that holds a network; None where none does."""
        neurons, layers = configuration.neurons, configuration.layers
        deep = [one for one in self._stores if one.neurons == neurons and one.layers >= layers]
        if deep:
            # One with the truth, then one with inputs, before others.
            best = max(deep, key=lambda one: (layers in one.truth_layers, bool(one.input_shape)))
            return best.path
        path, deepest = self._texts.get(neurons), self._deepest[neurons]
        there = path is not None and self._layers_present(path, neurons, deepest) >= layers
        return self.data if there else None

    def inputs(self, neurons: int) -> Path | None:
        """Return what was named, or the store, or else the folder, that holds inputs."""
        if self.named is not None:
            return self.named
        for store in self._stores:
            if store.neurons == neurons and store.input_shape is not None:
                return store.path
        return self.data if self.data and inputs_path(self.data, neurons) else None

    def truth(self, configuration: Configuration, total: int, used: int) -> Truth | None:
        """Return the truth of `used` of the `total` inputs of `inputs`, None if there is none.

        There is none of inputs that were named, nor of a generated network. Raises InputError if
        it is malformed or damaged.
        """
        neurons, layers = configuration.neurons, configuration.layers
        place = self.inputs(neurons)
        if self.named or place is None or self.network(configuration) is None:
            return None
        # A store's inputs may be those of the folder that it lies in, where the truth is a file.
        places = dict.fromkeys((place, self.data or place))
        found = (load_truth(one, neurons, layers, total, used) for one in places)
        return next((truth for truth in found if truth is not None), None)


def check_inputs(path: Path, sizes: Sequence[int]) -> None:
    """Raise InputError where a file or folder does not hold inputs for networks of all sizes."""
    for neurons in sizes:
        inputs = inputs_at(path, neurons)
        if isinstance(inputs, TextInputs) and not path.is_dir() and len(sizes) > 1:
            raise InputError(
                f"{path}: holds inputs of one number of neurons, but networks of "
                f"{', '.join(map(str, sizes))} are asked for; choose one of these sizes, or name "
                "images in IDX format, or a folder with a file for each"
            )
        inputs.count()  # raises where there are none
