"""The official table of the Sparse DNN Graph Challenge, network by network."""

from __future__ import annotations

from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.configurations import CONFIGURATIONS, Configuration

SIZES = tuple(dict.fromkeys(one.neurons for one in CONFIGURATIONS))
DEPTHS = tuple(dict.fromkeys(one.layers for one in CONFIGURATIONS))


def choose_configurations(sizes: str, layers: str) -> tuple[Configuration, ...]:
    """Return the official networks that comma lists of sizes and depths choose.

    Parameters
    ----------
    sizes, layers : str
        Such as ``1024,4096`` and ``120``.

    Returns
    -------
    tuple of Configuration
        In the official order.

    Raises
    ------
    InputError
        If a list is empty or holds a value that is not in the official table.
    """
    wanted = _values(sizes, SIZES, "--sizes")
    depths = _values(layers, DEPTHS, "--layers")
    return tuple(one for one in CONFIGURATIONS if one.neurons in wanted and one.layers in depths)


def _values(text: str, valid: tuple[int, ...], option: str) -> set[int]:
    names = {str(value): value for value in valid}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    wrong = next((part for part in parts if part not in names), None)
    if wrong is not None or not parts:
        shown = repr(text) if wrong is None else repr(wrong)
        raise InputError(
            f"{option}: {shown} is not in the official table; choose from {', '.join(names)}"
        )
    return {names[part] for part in parts}
