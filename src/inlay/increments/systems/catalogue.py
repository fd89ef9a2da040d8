"""All systems of labelled increments by name; a new one is one file and a line here."""

from collections.abc import Mapping
from typing import Literal

from inlay.errors import InlayError
from inlay.increments.increment import System
from inlay.increments.systems import aanets, afc, der, dytox, foster, icarl, necil, podnet

__all__ = ["FAIR", "PUBLISHED", "Table", "system"]

Table = Literal["A", "B"]

PUBLISHED: Mapping[str, System] = {
    entry.name: entry
    for entry in (
        icarl.PUBLISHED,
        podnet.PUBLISHED,
        afc.PUBLISHED,
        necil.PUBLISHED,
        dytox.PUBLISHED,
        aanets.ICARL,
        aanets.PODNET,
        der.PUBLISHED,
        foster.PUBLISHED,
    )
}
"""Systems in the setting of the literature: table A."""

FAIR: Mapping[str, System] = {
    entry.name: entry for entry in (icarl.FAIR, podnet.FAIR, afc.FAIR, necil.FAIR, dytox.FAIR)
}
"""Hosts of AMM under one protocol: table B."""


def system(name: str, table: Table) -> System:
    """Return a system by name.

    Args:
        name: Its name.
        table: "A" for the setting of the literature, "B" for that which all share.

    Raises:
        InlayError: If there is none of that name in the table.
    """
    systems = PUBLISHED if table == "A" else FAIR
    if name not in systems:
        raise InlayError(f"There is no method {name!r} in table {table}; choose from: {', '.join(systems)}.")
    return systems[name]
