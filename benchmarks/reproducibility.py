"""Write the tables of REPRODUCIBILITY.md from benchmarks/results/table1/*.json and benchmarks/results/paper.json.

python -m benchmarks.reproducibility [--check]
"""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.page import between, write_page
from benchmarks.pictures import RESULTS as PICTURES
from benchmarks.results_paper import BASES, DATASETS, SYSTEMS, Paper, read_paper
from benchmarks.results_runs import FIRST, NOTHING, Run, harmonic, read_runs, table
from benchmarks.results_tables import PAPER, RUNS

__all__ = [
    "BEGIN",
    "CLAIMS",
    "END",
    "EXACT",
    "PAGE",
    "Claim",
    "Finding",
    "claims_table",
    "judged",
    "reached_table",
    "sections",
]

PAGE = Path(__file__).parent.parent / "REPRODUCIBILITY.md"
BEGIN, END = "<!-- made by benchmarks/reproducibility.py -->", "<!-- end of what is made -->"
_REASONS = "docs/results.md#figures-below-print"
EXACT = 1e-4
"""Largest difference of logits, before and after a merge, that rounding in float32 explains."""

Finding = tuple[bool, str]
"""Whether a claim held on a data set, and what was found there."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper's text that runs can test.

    Attributes:
        text: The claim.
        test: From the runs of a data set, with the reference base, to what was found; None if runs are missing.
    """

    text: str
    test: Callable[[Sequence[Run]], Finding | None]


def main() -> None:
    """Write the tables, or with --check say whether they are up to date."""
    write_page(__doc__, PAGE, lambda text: between(text, BEGIN, END, sections(RUNS, read_paper(PAPER), PICTURES)))


def sections(folder: Path, paper: Paper, pictures: Path) -> list[str]:
    """Return both tables with their headings.

    Args:
        folder: Folder of the runs.
        paper: Figures that the paper prints.
        pictures: Folder of the figures of pictures, those of `benchmarks.magnitudes` among them.
    """
    runs = [run for run in read_runs(folder) if (run.steps, run.split) == (1, FIRST)]
    return [
        "## Figures of the table",
        reached_table(runs, paper),
        "## Claims of the text",
        f"{claims_table([run for run in runs if run.base == 'reference'])}\n{_last_line(_responses(pictures))}",
    ]


def reached_table(runs: Sequence[Run], paper: Paper) -> str:
    """Say for each system and data set whether the printed All was reached with either base recipe."""
    rows = []
    for label, title in SYSTEMS.items():
        cells = {"system": title}
        for dataset, name in DATASETS.items():
            printed = paper.systems[label][dataset]["all"] if label in paper.systems else None
            cells[f"{name}, printed"] = NOTHING if printed is None else f"{printed:.1f}"
            for base, recipe in BASES.items():
                found = _percents(runs, label, "all", dataset=dataset, base=base)
                cells[f"{name}, {recipe}"] = _verdict(found, printed)
        rows.append(cells)
    return table(rows)


def _verdict(found: Sequence[float], printed: float | None) -> str:
    if not found:
        return NOTHING
    ours = statistics.fmean(found)
    shown = f"{ours:.1f} ({len(found)})"
    if printed is None:
        return shown
    return f"{shown}, {'reached' if ours >= printed else f'[{printed - ours:.1f} short]({_REASONS})'}"


def claims_table(runs: Sequence[Run]) -> str:
    """Say of each claim whether it held, did not hold or was not tested, and what was found."""
    rows = []
    for claim in CLAIMS:
        found = {
            name: claim.test([run for run in runs if run.dataset == dataset]) for dataset, name in DATASETS.items()
        }
        rows.append(judged(claim.text, {name: finding for name, finding in found.items() if finding is not None}))
    return table(rows)


def judged(claim: str, found: Mapping[str, Finding]) -> dict[str, str]:
    """Return the line of a claim, given what was found by the name of where it was tested."""
    held = [name for name, (holds, _) in found.items() if holds]
    verdict = "held" if len(held) == len(found) else f"held on {', '.join(held)} only" if held else "not held"
    shown = "; ".join(f"{name}: {what}" for name, (_, what) in found.items())
    return {"claim": claim, "verdict": verdict if found else "not tested", "found": shown or NOTHING}


def _last_line(line: Mapping[str, str]) -> str:
    return table([line]).splitlines()[-1]


def _responses(folder: Path) -> dict[str, str]:
    """Judge what the paper's figure of magnitudes says, by means over the units of a network."""
    found = {}
    for dataset, name in DATASETS.items():
        file = folder / f"magnitude-{dataset}.json"
        if file.exists():
            gates = json.loads(file.read_text(encoding="utf-8"))["gates"]
            added = {gate["label"]: statistics.fmean(unit["gated"] for unit in gate["old"]["units"]) for gate in gates}
            shown = ", ".join(f"{label} {mean:.3g}" for label, mean in added.items())
            found[name] = max(added["AFF"], added["AMM"]) < added["IMM"], f"mean largest response {shown}"
    return judged("a branch behind a gate adds less to old images than one without", found)


def _percents(runs: Iterable[Run], label: str, key: str, **wanted: str) -> list[float]:
    """Return a score of the seeds of a system in percent."""
    chosen = [
        run for run in runs if run.label == label and all(getattr(run, name) == value for name, value in wanted.items())
    ]
    metrics = [run.facts["metrics"] for run in chosen]
    if key == "harmonic":
        return [100 * (harmonic(each["old"], each["new"]) or 0.0) for each in metrics]
    return [100 * each[key] for each in metrics]


def _of_common_seeds(runs: Sequence[Run], labels: Sequence[str]) -> list[Run]:
    """Leave out seeds that not all of some systems were run with, as each seed has a base stage of its own."""
    seeds = set.intersection(*({run.seed for run in runs if run.label == label} for label in labels))
    return [run for run in runs if run.seed in seeds]


def _above(first: str, second: str, *keys: str, by: float = 0.0) -> Callable[[Sequence[Run]], Finding | None]:
    """Test that one system has higher mean scores than another, or lower ones by no more than `-by`."""

    def test(runs: Sequence[Run]) -> Finding | None:
        holds, shown = True, []
        runs = _of_common_seeds(runs, (first, second))
        for key in keys:
            ours, theirs = _percents(runs, first, key), _percents(runs, second, key)
            if not ours or not theirs:
                return None
            difference = statistics.fmean(ours) - statistics.fmean(theirs)
            holds &= difference > by
            shown.append(f"{key.capitalize()} {difference:+.1f} ({len(ours)})")
        return holds, ", ".join(shown)

    return test


def _best(system: str, rivals: Sequence[str], key: str) -> Callable[[Sequence[Run]], Finding | None]:
    """Test that a system has the highest mean score of all; rivals that were not run keep it untested."""

    def test(runs: Sequence[Run]) -> Finding | None:
        runs = _of_common_seeds(runs, (system, *rivals))
        if not runs:
            return None
        means = {name: statistics.fmean(_percents(runs, name, key)) for name in rivals}
        ours = _percents(runs, system, key)
        rival = max(means, key=means.__getitem__)
        own = statistics.fmean(ours)
        names = f"{SYSTEMS[system]} {own:.1f}, the best other ({SYSTEMS[rival]}) {means[rival]:.1f}"
        return own > means[rival], f"{key.capitalize()}: {names}"

    return test


def _merges_exactly(runs: Sequence[Run]) -> Finding | None:
    worst = [run.facts["merge"]["max_abs_diff"] for run in runs if run.facts.get("merge")]
    if not worst:
        return None
    return max(worst) < EXACT, f"logits differ by {max(worst):.1e} at most ({len(worst)})"


def _does_not_grow(runs: Sequence[Run]) -> Finding | None:
    merges = [run.facts["merge"] for run in runs if run.facts.get("merge")]
    if not merges:
        return None
    grown = sum(merge["parameters_after"] != merge["parameters_before"] for merge in merges)
    return grown == 0, f"{len(merges) - grown} of {len(merges)} networks have as many weights as before"


_SEPARATE = ("autonovel", "restune", "ncl", "dtc")
_PAPER_SYSTEMS = tuple(name for name in SYSTEMS if name not in ("adm", "inlay"))
_GIVE = -1.0

CLAIMS = (
    Claim(
        "AutoNovel, ResTune, NCL and DTC do not balance old and new as FRoST does",
        _best("frost", _SEPARATE, "harmonic"),
    ),
    Claim("AFF raises FRoST on old and on new classes", _above("frost+aff", "frost", "old", "new")),
    Claim(
        "AMM is comparable to AFF (no more than 1 point below in All)",
        _above("frost+amm", "frost+aff", "all", by=_GIVE),
    ),
    Claim("AMM is above AFF in All", _above("frost+amm", "frost+aff", "all")),
    Claim("ADM is the best of the paper's systems in All", _best("adm", _PAPER_SYSTEMS, "all")),
    Claim("merging changes nothing but rounding", _merges_exactly),
    Claim("merging adds no parameter", _does_not_grow),
    Claim("AMM disturbs old classes less than IMM", _above("adm", "imm", "old")),
    Claim("γ tells which channels matter: better than the mean gate of a layer", _above("adm", "gate-constant", "all")),
    Claim("… and better than the gates of other channels", _above("adm", "gate-shuffled", "all")),
    Claim("triplet comparison helps", _above("adm", "ablation-no-triplet", "all")),
    Claim("probability regularization helps", _above("adm", "ablation-no-regularization", "all")),
    Claim("learning features apart from the classifiers helps", _above("adm", "ablation-not-detached", "all")),
)


if __name__ == "__main__":
    main()
