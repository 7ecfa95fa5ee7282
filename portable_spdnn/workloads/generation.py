"""Write a generated RadiX-Net and inputs, layer by layer, as a folder or as a packed store."""

from __future__ import annotations

import os

from portable_spdnn.arrays import Progress
from portable_spdnn.features import Features
from portable_spdnn.graphchallenge.configurations import Y_MAX, challenge_bias
from portable_spdnn.graphchallenge.radixnet import radixnet_layers
from portable_spdnn.graphchallenge.tsv_writing import write_inputs, write_layer
from portable_spdnn.io.atomic_output import atomic_folder
from portable_spdnn.io.packed_writer import PackedStoreWriter


def generate_radixnet(
    out: str | os.PathLike[str],
    neurons: int,
    layers: int,
    seed: int = 0,
    *,
    features: Features | None,
    store: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a network of the Graph Challenge's structure; one layer is in memory at a time.

    Parameters
    ----------
    out : path-like
        A folder in the official layout (``neuronN/nN-lK.tsv``, ``sparse-images-N.tsv.gz``), new
        or empty; or the packed store to write.
    neurons, layers, seed
        As for `radixnet_layers`.
    features : PackedFeatures, csr_array or None
        Inputs to write; None for none.
    store : bool
        Write a packed store.
    progress : callable, optional
        Called with (layers done, layers in all).

    Raises
    ------
    InputError
        If an argument is outside its range, the folder is not empty, or the disk is full.
        Nothing is left behind then.
    """
    generated = enumerate(radixnet_layers(neurons, layers, seed, challenge_bias(neurons)), start=1)
    if store:
        with PackedStoreWriter(out, y_max=Y_MAX) as writer:
            if features is not None:
                writer.set_inputs(features)
            for number, layer in generated:
                writer.add_layer(number, layer)
                if progress is not None:
                    progress(number, layers)
        return
    with atomic_folder(out) as folder:
        network = folder / f"neuron{neurons}"
        network.mkdir()
        if features is not None:
            write_inputs(folder / f"sparse-images-{neurons}.tsv.gz", features)
        for number, layer in generated:
            write_layer(network / f"n{neurons}-l{number}.tsv", layer)
            if progress is not None:
                progress(number, layers)
