"""Values of an object that are computed once, without a lock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801 - named as what it stands for
        """`functools.cached_property` as it is since Python 3.12.

        Before, it has a lock, one for all objects of a class: a child that is forked while another
        thread holds it would wait for ever, and unrelated objects wait for each other. Here two
        threads may both compute a value, of which one is kept.

        >>> class Circle:
        ...     radius = 2.0
        ...     @cached_property
        ...     def area(self):
        ...         return 3.0 * self.radius**2
        >>> circle = Circle()
        >>> circle.area, vars(circle)
        (12.0, {'area': 12.0})
        """

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self._function, self.__doc__ = function, function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = self._function(instance)
            return vars(instance).setdefault(self._name, value)
