"""Properties that are computed once."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["once"]

_Value = TypeVar("_Value")


class once(Generic[_Value]):
    """A property that is computed when it is first asked for.

    Unlike `functools.cached_property` it takes no lock on Python 3.11, as what takes a lock cannot be compiled.
    """

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> _Value:
        value = self._compute(instance)
        # Found in place of this descriptor from now on.
        instance.__dict__[self._name] = value
        return value
