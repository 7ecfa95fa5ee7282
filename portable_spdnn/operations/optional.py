"""Operations that a backend may leave out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])


def absent(backend: Any, operation: str) -> NotImplementedError:
    """Return the error of a backend without an operation; it names those that have it."""
    others = ", ".join(backend.backends_with(operation)) or "none yet"
    return NotImplementedError(
        f"backend {backend.name} has no {operation}; backends that have it: {others}"
    )


def optional(operation: str) -> Callable[[Method], Method]:
    """Mark a method of backends as part of an optional operation.

    It raises NotImplementedError on a backend whose `optional_operations` do not name the
    operation, before it looks at any argument.
    """

    def mark(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Any, *operands: Any, **options: Any) -> Any:
            if operation not in self.optional_operations:
                raise absent(self, operation)
            return method(self, *operands, **options)

        return cast(Method, call)

    return mark
