"""All discovery methods by name; a new method is one file and one line here."""

from inlay.errors import InlayError
from inlay.methods import adm, inlay
from inlay.methods.method import Method

__all__ = ["METHODS", "method"]

METHODS = {entry.name: entry for entry in (inlay.METHOD, adm.METHOD)}


def method(name: str) -> Method:
    """Return a method by name.

    Raises:
        InlayError: If there is none of that name.
    """
    if name not in METHODS:
        raise InlayError(f"There is no method {name!r}; choose one of: {', '.join(METHODS)}.")
    return METHODS[name]
