"""Table 2 for docs/results.md: printed and own figures, and AMM under controls."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.results_provenance import provenance
from benchmarks.results_runs import NOTHING, table
from benchmarks.table2_curves import curve_images
from benchmarks.table2_runs import (
    HEADS,
    HOSTS,
    ORDERS,
    PRINTED,
    STAGES,
    Head,
    Run,
    by_order,
    check_known,
    differences,
    parted,
    row,
)

__all__ = [
    "CONTROLS",
    "EMPTY",
    "deltas",
    "fair_section",
    "growth",
    "published_section",
    "sections",
    "shown_by_order",
]

EMPTY = "Nothing has been measured yet."
CONTROLS = {
    "plain": "as the host has it",
    "full": "whole network: plain fine-tuning",
    "frozen": "head alone, network frozen",
    "imm": "IMM: branches without a gate",
    "constant": "branches behind a constant gate",
    "adapters": "1×1 branches without batch norm, as in NECIL",
    "amm": "AMM",
}
# Average over ten equal stages, as the authors of each system give it; DyTox+ as corrected.
_EQUAL_STAGES = {"der": 75.36, "foster": 72.90, "dytox+": 74.10}


def sections(runs: Sequence[Run], images: Path) -> list[str]:
    """Return all sections of the page.

    Args:
        runs: Finished runs.
        images: Folder of the pictures.

    Raises:
        InlayError: If a run belongs to no table, or runs that are averaged or compared were not made alike.
    """
    if not runs:
        return [EMPTY]
    check_known(runs)
    unnamed = [run for run in runs if run.facts["name"] is None]
    return [
        "### Table A: published settings",
        *(published_section(runs, stages) for stages in STAGES),
        *_equal_section(runs),
        *curve_images(runs, "A", images),
        provenance([run for run in unnamed if run.facts["table"] == "A"], "table2", "--orders"),
        "### Table B: one setting for all hosts",
        *(part for host in HOSTS for part in fair_section(unnamed, host, images)),
        *_named_section(runs),
    ]


def published_section(runs: Sequence[Run], stages: int) -> str:
    """Return the lines of table A with one number of stages."""
    lines = []
    for method, printed in PRINTED.items():
        for control, figures in (("plain", printed.plain), ("amm", printed.amm)):
            found = row(runs, table="A", method=method, control=control, stages=stages)
            if stages not in figures and not found:
                continue
            title = printed.title if control == "plain" else f"{printed.title}+AMM"
            own, others = parted(found, method)
            lines.append(_published_line(title, own, figures.get(stages), printed.head, printed.tolerance))
            lines += _carried_line(title, own)
            if others:
                lines.append(_published_line(f"{title}, in other orders", others, None, printed.head, None))
    return "\n\n".join([f"#### {stages} stages", table(lines)])


def _published_line(
    title: str, runs: Sequence[Run], printed: float | None, head: Head, tolerance: float | None
) -> dict[str, str]:
    ours = [value for run in runs if (value := run.percent(head)) is not None]
    return {
        "system": title,
        "head": HEADS[head],
        "printed": NOTHING if printed is None else f"{printed:.2f}",
        "ours": _figure(ours),
        "within": NOTHING if tolerance is None or printed is None else f"± {tolerance:g}",
        "verdict": _verdict(ours, printed, tolerance),
        **_further(runs, head),
        "orders": ", ".join(dict.fromkeys(run.order for run in runs)) or NOTHING,
        "changed": "; ".join(dict.fromkeys(run.changes for run in runs if run.changes)) or NOTHING,
    }


def _verdict(ours: Sequence[float], printed: float | None, tolerance: float | None) -> str:
    if not ours or printed is None:
        return NOTHING
    difference = fmean(ours) - printed
    if tolerance is None:
        return f"{difference:+.1f}"
    return f"{difference:+.1f}, {'reached' if difference >= -tolerance else 'short'}"


def _carried_line(title: str, runs: Sequence[Run]) -> list[dict[str, str]]:
    """The network that goes on to the next stage, where another one is scored."""
    if not any("carried" in stage for run in runs for stage in run.facts["curve"]):
        return []
    averages = [100 * fmean(stage.get("carried", stage["cnn"]) for stage in run.facts["curve"]) for run in runs]
    line = dict.fromkeys(_published_line(title, runs, None, "cnn", None), NOTHING)
    return [line | {"system": f"{title}, the network that goes on", "head": HEADS["cnn"], "ours": _figure(averages)}]


def _further(runs: Sequence[Run], head: Head) -> dict[str, str]:
    """Return what is shown of a row besides its average: the other head, the end, and the size of the network."""
    other: Head = "cnn" if head == "nme" else "nme"
    others = [value for run in runs if (value := run.percent(other)) is not None]
    lasts = [value for run in runs if (value := run.percent(head, "last")) is not None]
    sizes = sorted({(run.facts["parameters_base"], run.facts["parameters"]) for run in runs})
    return {
        "other head": f"{HEADS[other]} {_figure(others)}" if others else NOTHING,
        "last": _figure(lasts),
        "forgetting": _figure([100 * run.facts["forgetting"] for run in runs]),
        "parameters, base → end": "; ".join(f"{base:,} → {end:,}" for base, end in sizes) or NOTHING,
    }


def fair_section(runs: Sequence[Run], host: str, images: Path) -> list[str]:
    """Return the parts of table B of one host.

    Raises:
        InlayError: If two runs of a row, or of rows that are compared, were not made alike.
    """
    printed, own = PRINTED[host], [run for run in runs if (run.facts["table"], run.facts["method"]) == ("B", host)]
    parts = [f"#### {printed.title}"]
    if not own:
        return [*parts, EMPTY]
    lines, deltas = [], []
    for stages in STAGES:
        rows = {control: row(own, control=control, stages=stages) for control in CONTROLS}
        lines += [_fair_line(stages, control, found, printed.head) for control, found in rows.items() if found]
        deltas += _delta_lines(stages, rows, printed.head)
    grown = growth(own, host)
    return [
        *parts,
        *([table(lines)] if lines else []),
        *([table(deltas)] if deltas else []),
        *([f"Delta of AMM at 25 stages minus delta at 10: {shown_by_order(grown)}."] if grown else []),
        *curve_images(own, "B", images),
        provenance(own, "table2", "--orders"),
    ]


def _fair_line(stages: int, control: str, runs: Sequence[Run], head: Head) -> dict[str, str]:
    values = by_order(runs, head)
    return {
        "stages": str(stages),
        "trained in later stages": CONTROLS[control],
        **{f"{HEADS[head]}, {order}": f"{values[order]:.2f}" if order in values else NOTHING for order in ORDERS},
        "mean": _figure(list(values.values())),
        **_further(runs, head),
        "changed": "; ".join(dict.fromkeys(run.changes for run in runs if run.changes)) or NOTHING,
    }


def _delta_lines(stages: int, rows: dict[str, list[Run]], head: Head) -> list[dict[str, str]]:
    lines = []
    for control, words in CONTROLS.items():
        for each in (head, *(other for other in HEADS if other != head)):
            found = differences(rows["amm"], rows[control], each) if control != "amm" else {}
            if found:
                lines.append(
                    {
                        "stages": str(stages),
                        "AMM minus": words,
                        "head": HEADS[each],
                        **{order: f"{found[order]:+.2f}" if order in found else NOTHING for order in ORDERS},
                        "mean": f"{fmean(found.values()):+.2f}",
                        "verdict": "positive" if min(found.values()) > 0 else "not positive",
                    }
                )
    return lines


def growth(runs: Sequence[Run], host: str) -> dict[str, float]:
    """Return by class order how much larger the delta of AMM is at 25 stages than at 10, in points."""
    many, few = (deltas(runs, host, stages) for stages in STAGES)
    return {order: many[order] - few[order] for order in many if order in few}


def deltas(runs: Sequence[Run], host: str, stages: int, against: str | None = None) -> dict[str, float]:
    """Return by class order how many points AMM is above a control of table B; by default above the plain host."""
    found = {control: row(runs, table="B", method=host, control=control, stages=stages) for control in CONTROLS}
    other = found[against] if against else found["plain"] or found["full"]
    return differences(found["amm"], other, PRINTED[host].head)


def shown_by_order(values: dict[str, float]) -> str:
    """Return signed points with the names of their class orders, and their mean."""
    single = ", ".join(f"{value:+.2f} ({order})" for order, value in values.items())
    return f"{single}, mean {fmean(values.values()):+.2f}"


def _equal_section(runs: Sequence[Run]) -> list[str]:
    lines = []
    for method, printed in _EQUAL_STAGES.items():
        if found := row(runs, table="A", method=method, control="plain", stages=10, base_classes=0):
            own, others = parted(found, method)
            lines.append(_published_line(PRINTED[method].title, own, printed, "cnn", None))
            if others:
                lines.append(_published_line(f"{PRINTED[method].title}, in other orders", others, None, "cnn", None))
    return ["\n\n".join(["#### Ten equal stages, beside what the authors give", table(lines)])] if lines else []


def _named_section(runs: Sequence[Run]) -> list[str]:
    named = [run for run in runs if run.facts["name"] is not None]
    if not named:
        return []
    lines = [
        {
            "run": run.facts["name"],
            "method": f"{run.facts['method']}, {run.facts['control']}, table {run.facts['table']}",
            "stages": f"{run.facts['base_classes']} + {run.facts['stages']}",
            "order": run.order,
            "CNN": _figure([100 * run.facts["average"]]),
            **{"last": f"{100 * run.facts['last']:.2f}", "changed": run.changes or NOTHING},
        }
        for run in named
    ]
    return ["### Other runs", table(lines), provenance(named, "table2", "--orders")]


def _figure(percents: Sequence[float]) -> str:
    """Return mean ± sample standard deviation (how many); a dash if there is none."""
    if not percents:
        return NOTHING
    spread = f" ± {stdev(percents):.2f}" if len(percents) > 1 else ""
    return f"{fmean(percents):.2f}{spread} ({len(percents)})"
