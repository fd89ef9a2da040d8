"""All discovery methods by name; a new method is one file and one line here."""

from inlay.data.augment import augmentation
from inlay.errors import InlayError
from inlay.methods import adm, autonovel, dtc, frost, inlay, kmeans, ncl, restune
from inlay.methods.method import Method
from inlay.methods.trunk import trunk_gate
from inlay.settings import Settings

__all__ = ["METHODS", "check_settings", "method"]

_ALL: tuple[Method, ...] = (
    inlay.METHOD,
    adm.METHOD,
    frost.METHOD,
    autonovel.METHOD,
    ncl.METHOD,
    dtc.METHOD,
    restune.METHOD,
    kmeans.METHOD,
)
METHODS = {entry.name: entry for entry in _ALL}


def method(name: str) -> Method:
    """Return a method by name.

    Raises:
        InlayError: If there is none of that name.
    """
    if name not in METHODS:
        raise InlayError(f"There is no method {name!r}; choose one of: {', '.join(METHODS)}.")
    return METHODS[name]


def check_settings(settings: Settings) -> None:
    """Refuse settings that name something unknown, before any work is done under them.

    Raises:
        InlayError: If a method, gate or view does not exist, or the method lacks a term that has a weight.
    """
    method(settings.method).check(settings)
    trunk_gate(settings.branch)
    for view in (settings.base.view, settings.base.contrastive_view, settings.first_view, settings.second_view):
        augmentation(view)
