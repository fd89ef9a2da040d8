"""Every run that the page of results is made of, those first that say most."""

from collections.abc import Callable, Mapping, Sequence

from inlay.bench.plan import Choice, Run, table1, variations
from inlay.bench.systems import SYSTEMS, TABLE
from inlay.errors import InlayError

__all__ = ["PARTS", "campaign"]

_ONE, _OTHERS, _THREE = (0,), (1, 2), (0, 1, 2)
_CIFAR = ("cifar10", "cifar100")
_ALL = (*_CIFAR, "tinyimagenet")
# The systems whose spread is shown, and of these the ones that go through the other settings.
_SPREAD = ("frost", "frost+amm", "adm", "inlay")
_FOLLOWED = ("frost", "adm", "inlay")
_REFERENCES = tuple(name for name in SYSTEMS if name not in TABLE)
# Not those that decided settings: 1, and 383 and 91, on which no class is novel that is novel in the first split.
_SPLITS = (2, 3, 4)


def _diagnosis() -> list[Run]:
    """Return what says why figures are below print, with as many seeds as they have, and a control of `inlay`."""
    first = variations(Choice(None, _CIFAR, _ONE), ["diagnosis"])
    ours = variations(Choice(None, _CIFAR, _ONE, base="ours"), ["diagnosis"])
    others = variations(Choice(None, _CIFAR, _OTHERS), ["diagnosis"])
    return [
        *first,
        *(run for run in ours if run.system == "adm"),
        *(run for run in others if run.system in _FOLLOWED),
        *table1(Choice(("frozen",), ("cifar100",), _OTHERS)),
    ]


PARTS: Mapping[str, Callable[[], Sequence[Run]]] = {
    "table": lambda: [
        *table1(Choice(TABLE, _ALL, _ONE)),
        *table1(Choice(_SPREAD, _ALL, _THREE)),
        *table1(Choice(_REFERENCES, _ALL, _ONE)),
    ],
    "ours": lambda: table1(Choice(("inlay", "adm"), _ALL, _THREE, base="ours")),
    "steps": lambda: [
        *table1(Choice(_FOLLOWED, ("cifar100", "tinyimagenet"), _ONE, steps=2)),
        *table1(Choice(_FOLLOWED, ("cifar100",), _ONE, steps=5)),
    ],
    "splits": lambda: table1(Choice(_FOLLOWED, _CIFAR, _ONE, split_seeds=_SPLITS)),
    "gates": lambda: variations(Choice(None, _CIFAR, _ONE), ["gates"]),
    "ladder": lambda: variations(Choice(None, _CIFAR, _ONE), ["ladder"]),
    "ablations": lambda: variations(Choice(None, _CIFAR, _ONE), ["ablations"]),
    "diagnosis": _diagnosis,
    "length": lambda: table1(Choice(("frost", "adm"), ("cifar10",), _ONE, full_length=True)),
}
"""The runs of each part of the page, by its name."""


def campaign(parts: Sequence[str] | None = None, datasets: Sequence[str] | None = None) -> list[Run]:
    """Return the runs of parts of the page, none of them twice.

    Args:
        parts: Names of parts; None takes all.
        datasets: Names of data sets; None takes all.

    Raises:
        InlayError: If there is no part of such a name.
    """
    for name in parts or ():
        if name not in PARTS:
            raise InlayError(f"The page of results has no part {name!r}; choose from: {', '.join(PARTS)}.")
    runs = {run.label: run for name in parts or PARTS for run in PARTS[name]()}
    return [run for run in runs.values() if datasets is None or run.dataset in datasets]
