"""Plain objects to dataclasses, with every field checked."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from inlay.errors import InlayError

__all__ = ["build", "changed", "dotted_paths"]

T = TypeVar("T")


def build(cls: type[T], data: Mapping[str, Any], prefix: str = "") -> T:
    """Make a dataclass from plain objects; texts are converted to the type of their field.

    No number may be negative or infinite; the metadata of a field may narrow that: "positive" (not 0 either),
    "minimum", "maximum".

    Args:
        cls: Dataclass whose fields are scalars, tuples of scalars or dataclasses of the same kind.
        data: Values by field name; missing fields keep their defaults.
        prefix: Dotted path of this dataclass, for messages.

    Raises:
        InlayError: If a field is unknown or a value does not fit it.
    """
    hints = get_type_hints(cls)
    unknown = [name for name in data if name not in hints]
    if unknown:
        raise InlayError(f"There is no setting {prefix + unknown[0]!r}; write one of: {', '.join(hints)}.")
    values = {name: _value(hints[name], value, prefix + name) for name, value in data.items()}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        _check_range(field.metadata, values.get(field.name), prefix + field.name)
    return cls(**values)


def changed(settings: T, changes: Mapping[str, Any]) -> T:
    """Return a copy of a dataclass with fields replaced, named by dotted paths such as "training.epochs".

    Args:
        settings: What `build` makes.
        changes: Values by path; they may be given as text, as on a command line.

    Raises:
        InlayError: If a field is unknown or a value does not fit it.
    """
    data: dict[str, Any] = dataclasses.asdict(settings)  # type: ignore[call-overload]
    for path, value in changes.items():
        *parents, last = path.split(".")
        table = data
        for name in parents:
            table = table[name] if isinstance(table.get(name), dict) else {}
        if last not in table or isinstance(table[last], dict):
            raise InlayError(f"There is no setting {path!r}; the settings are: {', '.join(dotted_paths(data))}.")
        table[last] = value
    return build(type(settings), data)


def dotted_paths(data: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted paths of all scalars in nested plain objects."""
    paths = []
    for name, value in data.items():
        nested = isinstance(value, Mapping)
        paths += dotted_paths(value, f"{prefix}{name}.") if nested else [f"{prefix}{name}"]
    return paths


def _check_range(limits: Mapping[str, Any], value: Any, path: str) -> None:
    if value is None:
        return
    if limits.get("positive") and value == 0:
        raise InlayError(f"Setting {path!r} must be more than 0; got 0.")
    if "minimum" in limits and value < limits["minimum"]:
        raise InlayError(f"Setting {path!r} must be at least {limits['minimum']}; got {value}.")
    if "maximum" in limits and value > limits["maximum"]:
        raise InlayError(f"Setting {path!r} must be at most {limits['maximum']}; got {value}.")


def _value(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise InlayError(f"Setting {path!r} is a table of settings, such as {path}.… = …, not {value!r}.")
        return build(hint, value, f"{path}.")  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        return tuple(_value(get_args(hint)[0], item, path) for item in _items(value, path))
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise InlayError(f"Setting {path!r} must be one of {', '.join(map(str, get_args(hint)))}; got {value!r}.")
        return value
    return _scalar(hint, value, path)


def _items(value: Any, path: str) -> list[Any]:
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    if isinstance(value, list | tuple):
        return list(value)
    raise InlayError(f"Setting {path!r} must be a list, as text with commas between its parts; got {value!r}.")


def _scalar(hint: type, value: Any, path: str) -> Any:
    if hint is bool and (isinstance(value, bool) or value in ("true", "false")):
        return value in (True, "true")
    if hint is str and isinstance(value, str):
        return value
    if hint in (int, float) and not isinstance(value, bool):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number) and number >= 0 and (hint is float or number.is_integer()):
            return hint(number)
    kind = {bool: "true or false", int: "a whole number, 0 or more", float: "a number, 0 or more", str: "text"}[hint]
    raise InlayError(f"Setting {path!r} must be {kind}; got {value!r}.")
