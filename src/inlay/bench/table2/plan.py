"""Which runs Table 2 consists of."""

import dataclasses
import itertools
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inlay import backbones
from inlay.backbones.task_tokens import SHAPES, shape_named
from inlay.bench.datasets import benchmark
from inlay.bench.table2.cuts import cut_settings
from inlay.data.augment import augmentation
from inlay.errors import InlayError
from inlay.increments.increment import System
from inlay.increments.orders import class_order
from inlay.increments.systems.catalogue import FAIR, PUBLISHED, Table, system
from inlay.methods.trunk import trunk_gate

__all__ = ["CONTROLS", "PLAIN", "Choice", "Run", "published_orders", "table2"]

PLAIN = "plain"
"""What the branches of a run are if it leaves them as its system has them."""

_AS_IN_THE_PAPER = {"branch.kernel": "same", "branch.batch_norm": "true"}

CONTROLS: Mapping[str, Mapping[str, str]] = {
    PLAIN: {},
    "full": {"branch.gate": "full"},
    "frozen": {"branch.gate": "frozen"},
    "imm": {"branch.gate": "imm", **_AS_IN_THE_PAPER},
    "constant": {"branch.gate": "constant", **_AS_IN_THE_PAPER},
    "amm": {"branch.gate": "amm", **_AS_IN_THE_PAPER},
    "adapters": {
        "branch.gate": "imm",
        "branch.include": "layer*.conv[12]",
        "branch.kernel": "1x1",
        "branch.batch_norm": "false",
    },
}
"""What is trained of the network in later stages, as changes of a recipe; "adapters" is how NECIL does it."""

_USUAL_CONTROLS = ("full", "frozen", "imm", "constant", "amm")
_PLUG_IN = "+amm"
_FAIR_ORDERS = ("numpy-1993", "icarl-1993", "podnet-2")
_USUAL_ORDER = "numpy-1993"
# Asks for all orders over which the printed figure of a system is a mean.
_ALL_PUBLISHED = "published"
_THREE_ORDERS = ("icarl-1993", "podnet-2", "podnet-3")
_PUBLISHED_ORDERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("icarl", "podnet", "podnet+aanets", "afc", "dytox+", "der"), _THREE_ORDERS),
    "necil": ("natural",),
}
# AMM is held against AANets in the order of that, in which iCaRL was not published.
_COMPARED_ORDERS = {"icarl": (_USUAL_ORDER,)}
# A network for each stage: the paper has no row of more, and few would wait for it. Asked for by name, it is run.
_MOST_STAGES = {"der": 10}


@dataclass(frozen=True)
class Run:
    """One system in one class order.

    Attributes:
        method: Name of the system.
        table: "A" for its published setting, "B" for that which all hosts share.
        control: What of the network is trained, one of `CONTROLS`.
        stages: Number of stages after the base stage; with no base classes, of all stages.
        order: Name of the order of the classes.
        base_classes: Classes of the base stage; 0 makes all stages equal.
        seed: Seed of everything random.
        dataset: Name of the data set.
        changes: Changes of the recipe by dotted path, after those of the control.
        name: Label in place of the system and its control.
    """

    method: str
    table: Table
    control: str
    stages: int
    order: str
    base_classes: int = 50
    seed: int = 0
    dataset: str = "cifar100"
    changes: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None

    @property
    def row(self) -> str:
        """What the orders and stages of a row of results have in common."""
        return self.name or (self.method if self.control == PLAIN else f"{self.method}+{self.control}")

    @property
    def label(self) -> str:
        """Name of the files of the run, without suffix."""
        cut = f"b{self.base_classes}-{self.stages}"
        return f"{self.dataset}-{self.table}-{self.row}-{cut}-{self.order}-seed{self.seed}"

    @property
    def settings(self) -> dict[str, str]:
        """All changes of the recipe by dotted path."""
        cut = cut_settings(self.method, self.stages, self.base_classes)
        return {**cut, **CONTROLS[self.control], **self.changes}

    @property
    def command(self) -> str:
        """The command that repeats the run, without the folders of a machine; it names what is not usual alone."""
        words = ["inlay", "bench", "table2", "--data", "ROOT", "--table", self.table, "--methods", self.method]
        if self.control != PLAIN:
            words += ["--controls", self.control]
        words += ["--stages", str(self.stages), "--orders", self.order]
        for option in ("base_classes", "seed", "dataset", "name"):
            value = getattr(self, option)
            words += [] if value == _USUAL[option] else [f"--{option.replace('_', '-')}", str(value)]
        for path in sorted(self.changes):
            words += ["--set", f"{path}={self.changes[path]}"]
        return shlex.join(words)

    @property
    def cut(self) -> tuple[int, ...]:
        """Number of classes of each stage, the base stage first.

        Raises:
            InlayError: If the classes cannot be cut evenly.
        """
        classes, base = benchmark(self.dataset).classes, self.base_classes
        left = classes - base
        if self.stages < 1 or left < 1 or left % self.stages:
            raise InlayError(
                f"{left} classes beyond a base of {base} cannot be cut evenly into {self.stages} stages; write other "
                f"numbers after --base-classes and --stages."
            )
        return (*((base,) if base else ()), *(left // self.stages for _ in range(self.stages)))

    @property
    def system(self) -> System:
        """The system with the recipe of this run.

        Raises:
            InlayError: If something is not known, or does not go together.
        """
        found = system(self.method, self.table)
        if self.control != PLAIN and not found.takes_branches:
            raise InlayError(f"{self.method} has no controls, as it does not take branches; leave --controls out.")
        return dataclasses.replace(found, recipe=found.recipe.changed(self.settings))

    def check(self) -> None:
        """Find out what is wrong before any time is spent.

        Raises:
            InlayError: If something is not known, or does not go together.
        """
        class_order(self.order, benchmark(self.dataset).classes)
        recipe = self.system.recipe
        augmentation(recipe.view)
        trunk_gate(recipe.branch)
        has_tokens = system(self.method, self.table).recipe.backbone in SHAPES
        (shape_named if has_tokens else backbones.check_name)(recipe.backbone)
        assert self.cut

    def to_json(self) -> dict[str, Any]:
        """Return plain objects, one to one with the fields."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Run":
        """Rebuild a run from what `to_json` returned."""
        return cls(**data)


_USUAL = {entry.name: entry.default for entry in dataclasses.fields(Run)}


@dataclass(frozen=True)
class Choice:
    """What is asked of the plan.

    Attributes:
        table: "A" or "B".
        methods: Names of systems, in table A with or without "+amm"; None takes all of the table, in A also with AMM
            where they take branches, unless controls are chosen.
        stages: Numbers of stages.
        orders: Names of class orders, among which "published" is all those in which a system was published; None takes
            the first of these, in table B three for all.
        controls: Some of `CONTROLS`; None takes the system as it is, in table B all.
        base_classes: Classes of the base stage; 0 makes all stages equal.
        seed: Seed of everything random.
        dataset: Name of the data set.
        changes: Changes of the recipe of every run.
        name: Label of the runs in place of system and control.
    """

    table: Table
    methods: tuple[str, ...] | None = None
    stages: tuple[int, ...] = (10, 25)
    orders: tuple[str, ...] | None = None
    controls: tuple[str, ...] | None = None
    base_classes: int = 50
    seed: int = 0
    dataset: str = "cifar100"
    changes: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None


def table2(choice: Choice) -> list[Run]:
    """Return the runs of a table: orders by stages by systems by controls.

    Raises:
        InlayError: If something is not known, or does not go together.
    """
    rows = list(dict.fromkeys(row for method in _methods(choice) for row in _rows(choice, method)))
    if len(rows) > 1 and choice.name:
        raise InlayError("--name is for one method with one control; write --methods and --controls with one name.")
    shared = {part: getattr(choice, part) for part in ("base_classes", "seed", "dataset", "changes", "name")}
    # Controls of a system share its base stage: orders vary fastest, so that runs side by side seldom wait for one.
    runs = [
        Run(method, choice.table, control, stages, order, **shared)
        for stages, (method, control) in itertools.product(choice.stages, rows)
        if choice.methods is not None or stages <= _MOST_STAGES.get(method, stages)
        for order in _orders(choice, method)
    ]
    for run in runs:
        run.check()
    return runs


def _methods(choice: Choice) -> tuple[str, ...]:
    if choice.methods is not None:
        return choice.methods
    systems = PUBLISHED if choice.table == "A" else FAIR
    if choice.table == "B" or choice.controls is not None:
        return tuple(systems)
    rows = ((name, f"{name}{_PLUG_IN}") if found.takes_branches else (name,) for name, found in systems.items())
    return tuple(itertools.chain.from_iterable(rows))


def _rows(choice: Choice, method: str) -> list[tuple[str, str]]:
    """Return pairs of a system and a control."""
    if choice.table == "A" and method.endswith(_PLUG_IN):
        if choice.controls is not None:
            raise InlayError(f"{method} is a control itself; write {method.removesuffix(_PLUG_IN)} with --controls.")
        return [(method.removesuffix(_PLUG_IN), "amm")]
    controls = choice.controls
    if controls is None:
        controls = (PLAIN,) if choice.table == "A" else _all_controls(system(method, choice.table))
    for control in controls:
        if control not in CONTROLS:
            raise InlayError(f"There is no control {control!r}; choose from: {', '.join(CONTROLS)}.")
    return [(method, control) for control in controls]


def _all_controls(host: System) -> tuple[str, ...]:
    """A host that trains its whole network is its own full fine-tuning; NECIL is held against its adapters as well."""
    if not host.takes_branches:
        return (PLAIN,)
    own = () if host.recipe.branch.gate == "full" else (PLAIN,)
    return (*own, *_USUAL_CONTROLS, *(("adapters",) if host.name == "necil" else ()))


def published_orders(method: str) -> tuple[str, ...]:
    """Return the class orders over which the printed figure of a system is a mean.

    Args:
        method: Name of the system.
    """
    return _PUBLISHED_ORDERS.get(method, (_USUAL_ORDER,))


def _orders(choice: Choice, method: str) -> tuple[str, ...]:
    published, compared = published_orders(method), _COMPARED_ORDERS.get(method, ())
    if choice.orders is None:
        return _FAIR_ORDERS if choice.table == "B" else (published[0], *compared)
    named = [(*published, *compared) if order == _ALL_PUBLISHED else (order,) for order in choice.orders]
    return tuple(dict.fromkeys(itertools.chain.from_iterable(named)))
