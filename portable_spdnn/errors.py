"""Errors that a user can mend.

Everything the package raises on purpose derives from `SpdnnError`; the command line turns
it into one line on standard error and exit code 2. Any other exception is a defect.
"""

from __future__ import annotations


class SpdnnError(Exception):
    """Base of every error that names its cause and its remedy.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> try:
    ...     ps.get_backend("absent")
    ... except ps.SpdnnError as error:
    ...     print(str(error).partition(";")[0])
    unknown backend 'absent'
    """


class InputError(SpdnnError, ValueError):
    """A file, shape, value or option is wrong; the message says which and what is right.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> ps.Network([])
    Traceback (most recent call last):
    portable_spdnn.errors.InputError: a network needs at least one layer
    """


class NumericalError(SpdnnError, ArithmeticError):
    """The network overflowed: features became NaN, so no categories can be given.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> overflowing = ps.Network([ps.Layer([[1e38, 1e38]]), ps.Layer([[1.0], [-1.0]])])
    >>> ps.infer(overflowing, [[10.0]], backend="scipy")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    portable_spdnn.errors.NumericalError: features became NaN on the way: the sums overflowed...
    """


class BackendUnavailable(SpdnnError, RuntimeError):
    """A backend was named that cannot run here; the message gives the reason.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> try:
    ...     backend = ps.get_backend("cupy")
    ... except ps.BackendUnavailable:
    ...     backend = ps.get_backend("numba")
    """
