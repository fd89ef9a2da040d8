"""Which runs a benchmark consists of."""

import dataclasses
import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inlay.bench.datasets import benchmark
from inlay.bench.schedule import BASE_PRESETS
from inlay.bench.systems import TABLE, system
from inlay.bench.variants import variants
from inlay.errors import InlayError

__all__ = ["Choice", "Run", "table1", "variations"]


@dataclass(frozen=True)
class Run:
    """One system on one data set with one seed.

    Attributes:
        system: Name of the system.
        dataset: Name of the data set.
        seed: Seed of everything random but the split.
        split_seed: Seed by which classes are shuffled; None takes them in label order.
        steps: Number of discovery stages.
        base: Recipe of the base stage, "reference" or "ours".
        changes: Changes of settings by dotted path, after those of system, protocol and schedule.
        name: Label in place of the name of the system.
        preset: Preset in place of that of the system.
        backbone: Name of the network.
        full_length: Train as long as published instead of the compressed schedule.
    """

    system: str
    dataset: str
    seed: int
    split_seed: int | None = None
    steps: int = 1
    base: str = "reference"
    changes: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    preset: str | None = None
    backbone: str = "resnet18"
    full_length: bool = False

    @property
    def row(self) -> str:
        """What the seeds of a row of results have in common, besides the data set."""
        parts = [self.name or self.system]
        parts += [f"steps{self.steps}"] if self.steps > 1 else []
        parts += [] if self.split_seed is None else [f"split{self.split_seed}"]
        parts += [] if self.base == "reference" else [f"base-{self.base}"]
        parts += ["full-length"] if self.full_length else []
        return "-".join(parts)

    @property
    def label(self) -> str:
        """Name of the files of the run, without suffix."""
        return f"{self.dataset}-{self.row}-seed{self.seed}"

    @property
    def command(self) -> str:
        """The command that repeats the run, without the folders of a machine; it names what is not usual alone."""
        words = ["inlay", "bench", "table1", "--data", "ROOT"]
        words += ["--methods", self.system, "--datasets", self.dataset, "--seeds", str(self.seed)]
        words += [] if self.split_seed is None else ["--split-seeds", str(self.split_seed)]
        for option in ("steps", "base", "name", "preset", "backbone"):
            value = getattr(self, option)
            words += [] if value == _USUAL[option] else [f"--{option}", str(value)]
        words += ["--full-length"] if self.full_length else []
        for path in sorted(self.changes):
            words += ["--base-set" if path.startswith("base.") else "--set", f"{path}={self.changes[path]}"]
        return shlex.join(words)

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
    """What is asked of a plan.

    Attributes:
        methods: Names of systems; None takes those of the table.
        datasets: Names of data sets.
        seeds: Seeds of everything random but the split.
        split_seeds: Seeds of the class order; None is label order.
        steps: Number of discovery stages.
        base: Recipe of the base stage.
        changes: Changes of settings of every run.
        name: Label of the runs in place of their system.
        preset: Preset in place of that of the system.
        backbone: Name of the network.
        full_length: Train as long as published.
    """

    methods: tuple[str, ...] | None
    datasets: tuple[str, ...]
    seeds: tuple[int, ...]
    split_seeds: tuple[int | None, ...] = (None,)
    steps: int = 1
    base: str = "reference"
    changes: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    preset: str | None = None
    backbone: str = "resnet18"
    full_length: bool = False


def table1(choice: Choice) -> list[Run]:
    """Return the runs of the paper's Table 1: methods by data sets by splits by seeds.

    Runs that share a base stage are far apart, so that those side by side do not wait for one another.

    Raises:
        InlayError: If something is not known, or does not go together.
    """
    methods = _methods(choice)
    if choice.base not in BASE_PRESETS:
        raise InlayError(f"There is no base recipe {choice.base!r}; write --base {' or '.join(BASE_PRESETS)}.")
    for name in choice.datasets:
        benchmark(name).cut(choice.steps)
    shared = {
        part: getattr(choice, part)
        for part in ("steps", "base", "changes", "name", "preset", "backbone", "full_length")
    }
    return [
        Run(method, dataset, seed, split_seed, **shared)
        for method, dataset, split_seed, seed in itertools.product(
            methods, choice.datasets, choice.split_seeds, choice.seeds
        )
    ]


def _methods(choice: Choice) -> tuple[str, ...]:
    if choice.methods is None:
        methods = tuple(name for name in TABLE if choice.steps == 1 or system(name).goes_on)
    else:
        methods = choice.methods
    for name in methods:
        if not system(name).goes_on and choice.steps > 1:
            raise InlayError(f"{name} cannot go on after its first discovery stage; write --steps 1 for it.")
    if len(methods) > 1 and (choice.name or choice.preset):
        option = "--name" if choice.name else "--preset"
        raise InlayError(f"{option} is for one method; write --methods with one name.")
    return methods


def variations(choice: Choice, groups: Sequence[str]) -> list[Run]:
    """Return the runs of tables of variants: variants by those of the data sets that they are for, by splits, by seeds.

    Args:
        choice: What is asked; its methods, name and preset do not count, and its changes come after those of a variant.
        groups: Names of the tables.

    Raises:
        InlayError: If something is not known, or does not go together.
    """
    return [
        run
        for group in groups
        for variant in variants(group)
        for run in table1(
            dataclasses.replace(
                choice,
                methods=(variant.system,),
                datasets=tuple(name for name in choice.datasets if name in (variant.datasets or choice.datasets)),
                changes={**variant.changes, **choice.changes},
                name=variant.name,
                preset=None,
            )
        )
    ]
