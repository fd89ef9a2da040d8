"""What a report says, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from inlay.review.results import Baselines, Merge, Metrics, StageKind

__all__ = ["DiscoveredClass", "Report", "RunFacts", "StageSection"]


@dataclass(frozen=True, eq=False)
class DiscoveredClass:
    """A class found in unlabelled images.

    Attributes:
        name: name of the class.
        matched_truth: true class that it was matched to, None where there is none or none is known.
        size: number of unlabelled images sorted into the class.
        purity: fraction of them whose true class is `matched_truth`, None where unknown.
        images: examples, uint8 [n, C, H, W] with C of 1 or 3; n may be 0.
    """

    name: str
    matched_truth: str | None
    size: int
    purity: float | None
    images: Tensor


@dataclass(frozen=True, eq=False)
class StageSection:
    """One stage; the fields up to `baselines` have the names and the meaning of `StageResults`.

    Attributes:
        name: name of the stage.
        kind: "base" for labelled classes, "novel" for discovered ones.
        classes: names of the classes that the stage brought.
        metrics: scores after the stage.
        merge: what merging did, None where nothing was merged.
        seconds: how long the stage took.
        baselines: scores of other ways to do the stage, None where they were skipped.
        discovered: the classes found in this stage, with examples.
    """

    name: str
    kind: StageKind
    classes: Sequence[str]
    metrics: Metrics
    merge: Merge | None
    seconds: float
    baselines: Baselines | None = None
    discovered: tuple[DiscoveredClass, ...] = ()


@dataclass(frozen=True)
class RunFacts:
    """What is needed to repeat the run.

    Attributes:
        command: command line that made the run.
        seed: seed of all randomness.
        versions: version of each piece of software by name.
        seconds: how long the whole run took.
    """

    command: str
    seed: int
    versions: Mapping[str, str]
    seconds: float


@dataclass(frozen=True, eq=False)
class Report:
    """A run, ready to be shown.

    Attributes:
        title: heading of the page.
        summary: sentences shown below the headline that the numbers make by themselves; may be empty.
        stages: the stages in order, at least one.
        facts: what is needed to repeat the run.
    """

    title: str
    summary: str
    stages: tuple[StageSection, ...]
    facts: RunFacts

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("a report needs at least one stage")
