"""Errors that a user can mend.

Everything the package raises on purpose derives from `SpdnnError`; the command line turns
it into one line on standard error and exit code 2. Any other exception is a defect.
"""

from __future__ import annotations


class SpdnnError(Exception):
    """Base of every error that names its cause and its remedy."""


class InputError(SpdnnError, ValueError):
    """A file, shape, value or option is wrong; the message says which and what is right."""


class NumericalError(SpdnnError, ArithmeticError):
    """The network overflowed: features became NaN, so no categories can be given."""
