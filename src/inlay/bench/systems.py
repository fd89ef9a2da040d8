"""The systems that are compared: presets under the names of the paper's table, and the references beside them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from inlay.errors import InlayError

__all__ = ["SYSTEMS", "TABLE", "System", "system"]


@dataclass(frozen=True)
class System:
    """A row of the table.

    Attributes:
        name: Name on the command line and in files.
        preset: Preset of its discovery stages.
        changes: Settings that differ from the preset.
        concatenated: It has no joint head and is scored on its heads put side by side.
        keeps: Parts of the settings in which the numbers of its preset stand, whatever the protocol gives others.
        own_length: It keeps the epochs and batch of its preset instead of those that the others share.
        mergeable: Its branches become part of the network.
        supervised: It learns all classes together with their labels; no stage is discovered.
    """

    name: str
    preset: str
    changes: Mapping[str, str] = field(default_factory=dict)
    concatenated: bool = False
    keeps: tuple[str, ...] = ()
    own_length: bool = False
    mergeable: bool = True
    supervised: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether a second discovery stage can follow the first: there is one network with one head over all."""
        return self.mergeable and not self.concatenated


_TABLE = (
    System("autonovel", "autonovel", concatenated=True),
    System("restune", "restune", concatenated=True, keeps=("consistency",)),
    System("ncl", "ncl", concatenated=True),
    System("dtc", "dtc", concatenated=True, keeps=("consistency",)),
    System("frost", "frost"),
    System("frost+aff", "frost+aff", mergeable=False),
    System("frost+amm", "frost+amm"),
    System("adm", "paper"),
    System("inlay", "inlay", own_length=True),
)
_REFERENCES = (
    System("kmeans", "kmeans", own_length=True),
    System("frozen", "inlay", {"branch.gate": "frozen"}, own_length=True),
    System("full", "inlay", {"branch.gate": "full"}, own_length=True),
    System("imm", "paper", {"branch.gate": "imm"}),
    System("ceiling", "inlay", supervised=True),
)

SYSTEMS = {entry.name: entry for entry in (*_TABLE, *_REFERENCES)}

TABLE = tuple(entry.name for entry in _TABLE)
"""The nine systems of the table, in the paper's order."""


def system(name: str) -> System:
    """Return a system by name.

    Raises:
        InlayError: If there is none of that name.
    """
    if name not in SYSTEMS:
        raise InlayError(f"There is no method {name!r} in the benchmark; choose from: {', '.join(SYSTEMS)}.")
    return SYSTEMS[name]
