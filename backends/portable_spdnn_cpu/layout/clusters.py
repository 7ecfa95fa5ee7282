"""Clusters of outputs: groups of CLUSTER neurons that have many inputs in common.

A general search, in time linear in the weights: outputs with equal inputs are found by a hash
of the set; among the others those are compared that agree in the input of least hash, which two
outputs do with the probability of their Jaccard similarity. Whatever the search proposes is
checked on the inputs themselves.

Source of the second step: A. Z. Broder, "On the Resemblance and Containment of Documents",
SEQUENCES 1997 (min-wise hashing).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from portable_spdnn.hashing import mix64
from portable_spdnn_cpu.jit.compilation import Array, kernel, kernel_part
from portable_spdnn_cpu.layout.tile_shape import CLUSTER

SALT_SHIFT = 40  # beyond any index: each round hashes other words
ROUNDS = 3  # of min-wise hashing; each finds most of what those before missed
# A round that put fewer than this part of the outputs into clusters is the last.
WORTH_ANOTHER = 1 / 16
# A cluster is taken where it saves at least this part of the loads.
MIN_SAVING = 1 / 4


class Clusters(NamedTuple):
    """Which outputs are computed together.

    Attributes
    ----------
    order : ndarray of int64, shape (outputs,)
        The outputs, clusters of CLUSTER first, then the others, rising.
    number : int
        How many clusters there are.
    """

    order: Array
    number: int

    def shared_at_most(self, offsets: Array) -> float:
        """Return an upper bound of the weights that a load serves.

        It is reached where the outputs of each cluster have the same inputs.
        """
        weights = offsets[-1]
        clustered = np.diff(offsets)[self.order[: CLUSTER * self.number]].sum()
        return float(weights / max(1, weights - clustered + clustered / CLUSTER))


def cluster_outputs(offsets: Array, indices: Array) -> Clusters:
    """Put outputs that share inputs side by side.

    Parameters
    ----------
    offsets, indices : ndarray
        CSR by output; the inputs of each rise.

    Returns
    -------
    Clusters
        And all other outputs.
    """
    others = np.arange(offsets.size - 1)
    inputs = np.arange(int(indices.max()) + 1 if indices.size else 0, dtype=np.uint64)
    parts = []
    for attempt in range(ROUNDS + 1):
        keys = np.empty(others.size, np.uint64)
        hashes = mix64(inputs + np.uint64((attempt + 1) << SALT_SHIFT))
        hash_outputs(offsets, indices, others, hashes, attempt == 0, keys)
        ranked = np.argsort(keys, kind="stable")
        clustered = np.zeros(others.size, np.bool_)
        agreed = keys[ranked] >> np.uint64(0 if attempt == 0 else 32)
        pick_clusters(offsets, indices, others[ranked], agreed, clustered)
        parts.append(others[ranked[clustered]])
        few = parts[-1].size < WORTH_ANOTHER * others.size
        others = np.sort(others[ranked[~clustered]])
        if others.size < CLUSTER or (attempt > 0 and few):
            break
    order = np.concatenate([*parts, others])
    return Clusters(order, (order.size - others.size) // CLUSTER)


@kernel
def hash_outputs(
    offsets: Array, indices: Array, outputs: Array, hashes: Array, whole: bool, keys: Array
) -> None:
    """keys[i] = hash of the inputs of outputs[i], of the whole set or its two least."""
    for position in range(outputs.size):
        row = indices[offsets[outputs[position]] : offsets[outputs[position] + 1]]
        keys[position] = set_hash(row, hashes) if whole else least_hashes(row, hashes)


@kernel
def pick_clusters(
    offsets: Array, indices: Array, outputs: Array, agreed: Array, clustered: Array
) -> None:
    """Mark runs of CLUSTER outputs that agree in `agreed`, which is sorted, and share enough."""
    # Outputs that agree are neighbours, so that one pass tries all: a cluster that does not pay
    # gives up its first output, and the next begins one further on.
    start = 0
    while start + CLUSTER <= outputs.size:
        chosen = outputs[start : start + CLUSTER]
        alike = agreed[start] == agreed[start + CLUSTER - 1]
        if alike and saves_enough(offsets, indices, chosen):
            clustered[start : start + CLUSTER] = True
            start += CLUSTER
        else:
            start += 1


@kernel_part
def set_hash(row: Array, hashes: Array) -> np.uint64:
    """Return a hash of a set of inputs."""
    total = np.uint64(0)
    for index in row:
        total += hashes[index]
    return total


@kernel_part
def least_hashes(row: Array, hashes: Array) -> np.uint64:
    """Return the least of two hashes over a set: the upper half to agree in, the lower to rank."""
    mask = np.uint64(0xFFFFFFFF)
    upper = lower = mask
    for index in row:
        both = hashes[index]
        upper = min(upper, both >> np.uint64(32))
        lower = min(lower, both & mask)
    return (upper << np.uint64(32)) | lower


@kernel
def saves_enough(offsets: Array, indices: Array, outputs: Array) -> bool:
    """Whether loading the common inputs of `outputs` once saves MIN_SAVING of all loads."""
    if same_inputs(offsets, indices, outputs):
        return bool(offsets[outputs[0] + 1] > offsets[outputs[0]])
    loads = 0
    for output in outputs:
        loads += offsets[output + 1] - offsets[output]
    least = MIN_SAVING * loads / (outputs.size - 1)
    # What all have in common, two have: most proposals fail there.
    return (
        loads > 0
        and common_inputs(offsets, indices, outputs[:2]) >= least
        and common_inputs(offsets, indices, outputs) >= least
    )


@kernel_part
def same_inputs(offsets: Array, indices: Array, outputs: Array) -> bool:
    """Whether all `outputs` have the inputs of the first: several times faster than `in_all`."""
    first = offsets[outputs[0]]
    length = offsets[outputs[0] + 1] - first
    for output in outputs[1:]:
        begin = offsets[output]
        if offsets[output + 1] - begin != length:
            return False
        for k in range(length):
            if indices[begin + k] != indices[first + k]:
                return False
    return True


@kernel_part
def common_inputs(offsets: Array, indices: Array, outputs: Array) -> int:
    """Return how many inputs all `outputs` have."""
    common, at = 0, offsets[outputs]
    for k in range(offsets[outputs[0]], offsets[outputs[0] + 1]):
        common += in_all(offsets, indices, outputs, at, indices[k])
    return common


@kernel_part
def in_all(offsets: Array, indices: Array, outputs: Array, at: Array, index: int) -> bool:
    """Whether all `outputs` have input `index`; `at` moves on, so that indices must rise."""
    common = True
    for member in range(outputs.size):
        end = offsets[outputs[member] + 1]
        while at[member] < end and indices[at[member]] < index:
            at[member] += 1
        common &= at[member] < end and indices[at[member]] == index
    return common


@kernel
def lay_out(
    offsets: Array,
    indices: Array,
    data: Any,
    order: Array,
    clusters: int,
    laid_offsets: Array,
    laid_indices: Array,
    laid_values: Array | None,
) -> None:
    """Write the entries of outputs in the order and form that cluster microkernels read.

    Parameters
    ----------
    offsets, indices, data : ndarray
        CSR by output; `data` is None where the pattern is all.
    order : ndarray of int64, shape (outputs,)
    clusters : int
    laid_offsets : ndarray of int64, shape ((CLUSTER + 1) clusters + other outputs + 1,)
        Written: where entries begin: for each cluster the common ones, then those of each
        member; for the other outputs their own.
    laid_indices : ndarray, shape (nnz,)
        Written, as many as the last of `laid_offsets` says.
    laid_values : ndarray, shape (nnz,), or None
        Written: for a cluster those of a common entry for all members, entry after entry; then
        those of each member.
    """
    top = bound = value = 0
    laid_offsets[0] = 0
    for cluster in range(clusters):
        outputs = order[CLUSTER * cluster : CLUSTER * (cluster + 1)]
        if same_inputs(offsets, indices, outputs):  # nothing of their own: no merge is needed
            for k in range(offsets[outputs[0]], offsets[outputs[0] + 1]):
                laid_indices[top] = indices[k]
                top += 1
            if laid_values is not None:
                for k in range(top - laid_offsets[bound]):
                    for output in outputs:
                        laid_values[value] = data[offsets[output] + k]
                        value += 1
            for _ in range(CLUSTER + 1):
                bound += 1
                laid_offsets[bound] = top
            continue
        at = offsets[outputs]
        for k in range(offsets[outputs[0]], offsets[outputs[0] + 1]):
            if in_all(offsets, indices, outputs, at, indices[k]):
                laid_indices[top] = indices[k]
                top += 1
                if laid_values is not None:
                    for member in range(CLUSTER):
                        laid_values[value + member] = data[at[member]]
                value += CLUSTER
        common_begin, common_end = laid_offsets[bound], top
        bound += 1
        laid_offsets[bound] = top
        for output in outputs:
            top, value = lay_out_own(
                offsets, indices, data, output, common_begin, common_end, top, value,
                laid_indices, laid_values,
            )  # fmt: skip
            bound += 1
            laid_offsets[bound] = top
    for output in order[CLUSTER * clusters :]:
        top, value = lay_out_own(
            offsets, indices, data, output, top, top, top, value, laid_indices, laid_values
        )
        bound += 1
        laid_offsets[bound] = top


@kernel_part
def lay_out_own(
    offsets: Array,
    indices: Array,
    data: Any,
    output: int,
    common: int,
    common_end: int,
    top: int,
    value: int,
    laid_indices: Array,
    laid_values: Array | None,
) -> tuple[int, int]:
    """Write, from `top` and `value` on, the entries of an output that are not among the common.

    Those are laid_indices[common:common_end]. Returns where the next entry and value go.
    """
    for k in range(offsets[output], offsets[output + 1]):
        while common < common_end and laid_indices[common] < indices[k]:
            common += 1
        if common == common_end or laid_indices[common] != indices[k]:
            laid_indices[top] = indices[k]
            top += 1
            if laid_values is not None:
                laid_values[value] = data[k]
            value += 1
    return top, value
