"""What follows the sum of a product, in the same pass over its result.

For each entry z of a product the epilogue computes, in this order::

    z = z + bias + residual
    y = activation(z)
    y = min(max(y, lower), upper)

NaN passes through all of it. At infinities activations take their limits: gelu, silu and
hardswish of minus infinity are 0.

====================  ==================================================================
activation            y
====================  ==================================================================
``none``              z
``relu``              max(z, 0); ReLU6 is ``relu`` with ``upper=6``
``gelu``              z (1 + erf(z / sqrt 2)) / 2 [1]_
``gelu_tanh``         z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) / 2 [1]_
``silu``              z / (1 + exp(-z)) [2]_
``hardswish``         z min(max(z + 3, 0), 6) / 6 [3]_
``sigmoid``           1 / (1 + exp(-z))
``tanh``              tanh(z)
====================  ==================================================================

Backends compute gelu, gelu_tanh, silu, sigmoid and tanh in the type of the product, to within
5e-7 max(1, abs(z)) in float32 and 1e-14 max(1, abs(z)) in float64.

.. [1] Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415.
.. [2] Elfwing, Uchibe and Doya, "Sigmoid-Weighted Linear Units", Neural Networks 107 (2018).
.. [3] Howard et al., "Searching for MobileNetV3", ICCV 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy
import scipy.sparse as sp

from portable_spdnn.arguments import refuse_masked
from portable_spdnn.arrays import Array
from portable_spdnn.caching import cached_property
from portable_spdnn.errors import InputError

# A number or a vector where it is given, an ndarray once it is checked: one field has one type.
Bias: TypeAlias = Any


def _gelu(z: Array) -> Array:
    return np.asarray(z * scipy.special.ndtr(z))  # SciPy loads `special` here, at its first use


def _gelu_tanh(z: Array) -> Array:
    # (1 + tanh(x)) / 2 = 1 / (1 + exp(-2 x)), which does not cancel where x is negative.
    return np.asarray(z * _sigmoid(np.sqrt(8 / np.pi) * (z + 0.044715 * z**3)))


def _sigmoid(z: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-z)))


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "none": lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda z: z * _sigmoid(z),
    "hardswish": lambda z: z * (np.clip(z + 3, 0, 6) / 6),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
}
ACTIVATIONS = tuple(_FUNCTIONS)
_ZERO_AT_ZERO_ALONE = ("gelu", "gelu_tanh", "silu", "sigmoid", "tanh")


@dataclass(frozen=True, eq=False)
class Epilogue:
    """Bias, activation and bounds that follow a product; the module's text has the mathematics.

    Attributes
    ----------
    bias : float or array_like, optional
        Added to every sum: one number, or one for each row of C in ``spmm`` and for each
        output neuron in ``layer``. Kept as a read-only float64 array of 0 or 1 dimensions.
    activation : str, default "none"
        One of `ACTIVATIONS`.
    lower, upper : float, optional
        Bounds of the result; None for none.

    Raises
    ------
    InputError
        If the bias is not real or has more than one dimension, the activation is unknown, or
        the bounds are not numbers, lower at most upper.

    Examples
    --------
    >>> import numpy as np
    >>> from portable_spdnn import Epilogue
    >>> relu6 = Epilogue(bias=[0.5, -1.0], activation="relu", upper=6)
    >>> relu6.apply(np.array([[1.0, 0.5], [9.0, 3.0]])).tolist()
    [[1.5, 0.0], [6.0, 2.0]]
    """

    bias: Bias = None
    activation: str = "none"
    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.activation, str) or self.activation not in _FUNCTIONS:
            raise InputError(
                f"activation is {self.activation!r}; choose one of {', '.join(ACTIVATIONS)}"
            )
        for name in ("lower", "upper"):
            object.__setattr__(self, name, _bound(name, getattr(self, name)))
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise InputError(f"lower is {self.lower}, above upper, which is {self.upper}")
        if self.bias is None:
            return
        try:
            bias = np.asarray(self.bias)
        except (ValueError, TypeError, RuntimeError) as error:  # whatever its library raises
            raise InputError(f"bias is no vector of numbers: {error}") from error
        refuse_masked("bias", self.bias)
        if bias.dtype.kind not in "fiub" or bias.ndim > 1:
            raise InputError(
                f"bias is {bias.dtype} of {bias.ndim} dimensions; one real number, or a vector "
                "of them, is expected"
            )
        bias = np.array(bias, np.float64)
        bias.flags.writeable = False
        object.__setattr__(self, "bias", bias)

    def prepared(self, name: str, outputs: int, dtype: np.dtype[np.generic]) -> Epilogue:
        """Return the epilogue with its bias as `dtype`, one for each of so many outputs.

        Parameters
        ----------
        name : str
            The operation, for error messages.
        outputs : int
        dtype : numpy dtype

        Raises
        ------
        InputError
            If the bias has another number of entries.

        >>> Epilogue(bias=0.5).prepared("layer", 3, np.dtype(np.float32)).bias
        array([0.5, 0.5, 0.5], dtype=float32)
        """
        if self.bias is None:
            return self
        if self.bias.shape not in ((), (outputs,)):
            raise InputError(
                f"{name}: bias has shape {self.bias.shape}; one number or ({outputs},) fits"
            )
        scalar = self.bias.ndim == 0
        bias = np.full(outputs, self.bias, dtype) if scalar else self.bias.astype(dtype)
        # Past the constructor, which would make it float64 again.
        made = object.__new__(type(self))
        vars(made).update(vars(self), bias=bias)
        return made

    @property
    def is_identity(self) -> bool:
        """Whether the result is the product itself."""
        bare = self.bias is None and self.activation == "none"
        return bare and self.lower is None and self.upper is None

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound, infinite for none."""
        lower = -np.inf if self.lower is None else self.lower
        return lower, np.inf if self.upper is None else self.upper

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The bounds that do all the work of a linear or ReLU epilogue, infinite for none.

        None for other activations, which clamping does not express.
        """
        if self.activation not in ("none", "relu"):
            return None
        lower, upper = self.bounds
        if self.activation == "relu":
            # The bounds come after ReLU: an upper bound below 0 wins, as in `activated`.
            lower = min(max(lower, 0.0), upper)
        return float(lower), float(upper)

    @property
    def zeros_stay(self) -> bool:
        """Whether a row of zeros gives a row of zeros: y is 0 where the sum is, for every output.

        Only then are sparse features exact, and may inputs without a nonzero feature leave.
        """
        bias = np.asarray(0.0 if self.bias is None else self.bias, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.asarray(_FUNCTIONS[self.activation](bias))
        if self.activation in _ZERO_AT_ZERO_ALONE:
            # What underflows here may not do so in a backend: it is not 0.
            tiny = np.copysign(np.finfo(np.float64).tiny, bias)
            found = np.where((found == 0) & (bias != 0), tiny, found)
        if self.lower is not None or self.upper is not None:
            found = np.clip(found, self.lower, self.upper)
        return bool((found == 0).all())

    def __reduce__(self) -> tuple[type[Epilogue], tuple[object, ...]]:
        return Epilogue, (self.bias, self.activation, self.lower, self.upper)

    def activated(self, values: Array) -> Array:
        """Return min(max(activation(values), lower), upper), in the type of `values`."""
        found = values
        if self.activation == "relu":
            found = np.maximum(values, 0)
        elif self.activation != "none":
            with np.errstate(over="ignore", invalid="ignore"):
                found = _FUNCTIONS[self.activation](values).astype(values.dtype, copy=False)
        if self.activation in ("gelu", "gelu_tanh", "silu", "hardswish"):
            found = np.where(values == -np.inf, values.dtype.type(0), found)
        if self.lower is not None or self.upper is not None:
            found = np.clip(found, *cast_bounds(self.bounds, values.dtype))
        return found

    def apply(
        self, sums: Array | sp.csr_array, residual: Any = None, per_row: bool = False
    ) -> Array | sp.csr_array:
        """Return the result of sums in host memory; what a backend may fall back on.

        Parameters
        ----------
        sums : ndarray or csr_array, shape (rows, columns)
            A product; may be overwritten. Of a sparse one the stored entries are finished and
            zeros dropped, which is exact where `zeros_stay`.
        residual : ndarray of the shape of `sums`, optional
            Added before the activation; not with sparse sums.
        per_row : bool
            Whether the bias has one entry for each row (``spmm``), not each column (``layer``).

        Returns
        -------
        ndarray or csr_array, of the shape and type of `sums`

        Examples
        --------
        >>> relu = Epilogue(bias=[1.0, -1.0], activation="relu")
        >>> relu.apply(np.zeros((2, 2)), residual=np.eye(2), per_row=True).tolist()
        [[2.0, 1.0], [0.0, 0.0]]
        """
        if not isinstance(sums, np.ndarray):
            if self.bias is not None:
                sums.data += np.broadcast_to(self.bias, sums.shape[1:])[sums.indices]
            sums.data = self.activated(sums.data)
            sums.eliminate_zeros()
            return sums
        with np.errstate(over="ignore", invalid="ignore"):
            if self.bias is not None:
                sums += self.bias[:, None] if per_row and self.bias.ndim else self.bias
            if residual is not None:
                sums += residual
        return self.activated(sums)


def cast_bounds(bounds: Sequence[float], dtype: npt.DTypeLike) -> Array:
    """Return bounds in a type, infinite where it has no number as large.

    >>> cast_bounds((-1e300, 6.0), "float32").tolist()
    [-inf, 6.0]
    """
    with np.errstate(over="ignore"):
        return np.array(bounds, dtype)


def _bound(name: str, value: object) -> float | None:
    """Return the bound "lower" or "upper" as a float, None for none, or raise InputError."""
    if value is None:
        return None
    none = -np.inf if name == "lower" else np.inf
    bound = np.nan
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        with suppress(OverflowError):
            bound = float(value)
    if not (np.isfinite(bound) or bound == none):
        raise InputError(
            f"{name} is {str(value)[:40]!r}; a finite number, or None for no bound, is expected"
        )
    return None if bound == none else bound
