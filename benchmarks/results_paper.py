"""The systems and data sets of the paper's Table 1, its printed figures, and where they contradict one another."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results_runs import NOTHING, harmonic, mean

from inlay.bench.datasets import BENCHMARKS

__all__ = ["AVERAGE", "BASES", "DATASETS", "REFERENCES", "SYSTEMS", "Paper", "read_paper"]

AVERAGE = "average"
BASES = {"reference": "reference base recipe", "ours": "our base recipe"}
SYSTEMS = {
    "autonovel": "AutoNovel",
    "restune": "ResTune",
    "ncl": "NCL",
    "dtc": "DTC",
    "frost": "FRoST",
    "frost+aff": "FRoST+AFF",
    "frost+amm": "FRoST+AMM",
    "adm": "ADM",
    "inlay": "inlay",
}
REFERENCES = {
    "kmeans": "k-means on frozen features",
    "frozen": "frozen backbone, heads trained",
    "full": "full fine-tuning, no branches",
    "imm": "ADM with IMM",
    "ceiling": "supervised ceiling",
}


DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tinyimagenet": "Tiny-ImageNet"}

# Printed figures are off by half of their last digit at most: so is a mean of them, and so is what it is held against.
ROUNDING = 0.1 + 1e-9


@dataclass(frozen=True)
class Paper:
    """Figures as the paper prints them, in percent.

    Attributes:
        source: Where they were printed.
        systems: System, data set or "average", and score ("old", "new", "all") to the figure.
        remarks: What is to be known about the figures of a data set.
    """

    source: str
    systems: Mapping[str, Mapping[str, Mapping[str, float]]]
    remarks: Mapping[str, str]

    def shown(self, system: str, dataset: str, key: str) -> str:
        """Return a figure as text; "harmonic" is computed from the printed old and new of each data set."""
        if system not in self.systems:
            return NOTHING
        printed = self.systems[system]
        if key != "harmonic":
            return f"{printed[dataset][key]:.1f}"
        names = DATASETS if dataset == AVERAGE else [dataset]
        return f"{mean([harmonic(printed[name]['old'], printed[name]['new']) for name in names]):.1f}"

    def contradictions(self, dataset: str) -> list[str]:
        """Say which figures of a data set, or of the average, cannot be right together with the others."""
        found = []
        for system, printed in self.systems.items():
            for key, derived in self._derived(printed, dataset).items():
                if abs(printed[dataset][key] - derived) > ROUNDING:
                    title = f"{SYSTEMS[system]} {key.capitalize()}"
                    found.append(f"{title} {printed[dataset][key]:.1f} (its other figures give {derived:.2f})")
        return found

    def _derived(self, printed: Mapping[str, Mapping[str, float]], dataset: str) -> dict[str, float]:
        if dataset == AVERAGE:
            return {key: sum(printed[name][key] for name in DATASETS) / len(DATASETS) for key in ("old", "new", "all")}
        share = BENCHMARKS[dataset].cut(1)[0] / BENCHMARKS[dataset].classes
        return {"all": share * printed[dataset]["old"] + (1 - share) * printed[dataset]["new"]}


def read_paper(file: Path) -> Paper:
    """Read the printed figures."""
    found = json.loads(file.read_text(encoding="utf-8"))
    return Paper(found["source"], found["systems"], found["remarks"])
