"""What the paper says of AMM in Table 2, tested on runs; for REPRODUCIBILITY.md."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.reproducibility import EXACT, Finding, judged
from benchmarks.results_runs import NOTHING, table
from benchmarks.table2_runs import HOSTS, PRINTED, STAGES, Run, by_order, parted, row
from benchmarks.table2_tables import EMPTY, deltas, growth, shown_by_order

__all__ = ["CLAIMS", "Claim", "claims_table", "reached_table", "sections"]

Findings = dict[str, Finding]


@dataclass(frozen=True)
class Claim:
    """A claim that runs can test.

    Attributes:
        text: The claim.
        test: From all runs to what was found, by where it was tested.
    """

    text: str
    test: Callable[[Sequence[Run]], Findings]


def sections(runs: Sequence[Run]) -> list[str]:
    """Return figures and claims; without runs a sentence that says so."""
    return [reached_table(runs), claims_table(runs)] if runs else [EMPTY]


def reached_table(runs: Sequence[Run]) -> str:
    """Say for each system of table A whether it reached its printed figure, in its orders and within a tolerance."""
    lines = []
    for method, printed in PRINTED.items():
        cells = {"system": printed.title, "within": f"± {printed.tolerance:g}" if printed.tolerance else NOTHING}
        for stages in STAGES:
            own, _ = parted(row(runs, table="A", method=method, control="plain", stages=stages), method)
            found = by_order(own, printed.head)
            goal = printed.plain.get(stages)
            cells[f"{stages} stages, printed"] = NOTHING if goal is None else f"{goal:.2f}"
            cells[f"{stages} stages, ours"] = _reached(list(found.values()), goal, printed.tolerance)
        lines.append(cells)
    return table(lines)


def _reached(found: Sequence[float], goal: float | None, tolerance: float | None) -> str:
    if not found:
        return NOTHING
    ours = fmean(found)
    shown = f"{ours:.2f} ({len(found)})"
    if goal is None or tolerance is None:
        return shown
    return f"{shown}, {'reached' if ours >= goal - tolerance else f'{goal - ours:.2f} short'}"


def claims_table(runs: Sequence[Run]) -> str:
    """Say of each claim whether it held, did not hold or was not tested, and what was found."""
    return table([judged(claim.text, claim.test(runs)) for claim in CLAIMS])


def _place(host: str, stages: int) -> str:
    return f"{PRINTED[host].title} at {stages}"


def _above(against: str | None, hosts: Sequence[str] = HOSTS) -> Callable[[Sequence[Run]], Findings]:
    """Test that AMM is above a control of table B in every class order."""

    def test(runs: Sequence[Run]) -> Findings:
        found = {_place(host, stages): deltas(runs, host, stages, against) for host in hosts for stages in STAGES}
        return {place: (min(each.values()) > 0, shown_by_order(each)) for place, each in found.items() if each}

    return test


def _above_aanets(runs: Sequence[Run]) -> Findings:
    found = {}
    for host in ("icarl", "podnet"):
        for stages in STAGES:
            amm = by_order(row(runs, table="A", method=host, control="amm", stages=stages), PRINTED[host].head)
            rival = row(runs, table="A", method=f"{host}+aanets", control="plain", stages=stages)
            pairs = by_order(rival, PRINTED[f"{host}+aanets"].head)
            both = {order: amm[order] - pairs[order] for order in amm if order in pairs}
            if both:
                found[_place(host, stages)] = (min(both.values()) > 0, shown_by_order(both))
    return found


def _grows(runs: Sequence[Run]) -> Findings:
    found = {PRINTED[host].title: growth(runs, host) for host in HOSTS}
    return {host: (fmean(each.values()) > 0, shown_by_order(each)) for host, each in found.items() if each}


def _with_amm(runs: Sequence[Run], host: str) -> list[Run]:
    return [
        run for run in runs if run.facts["method"] == host and run.facts["control"] == "amm" and not run.facts["name"]
    ]


def _no_growth(runs: Sequence[Run]) -> Findings:
    found = {}
    for host in HOSTS:
        if own := _with_amm(runs, host):
            same = sum(run.facts["parameters"] == run.facts["parameters_base"] for run in own)
            found[PRINTED[host].title] = (same == len(own), f"{same} of {len(own)} networks have not grown")
    return found


def _exact(runs: Sequence[Run]) -> Findings:
    found = {}
    for host in HOSTS:
        if worst := [run.facts["merge"] for run in _with_amm(runs, host) if run.facts["merge"] is not None]:
            found[PRINTED[host].title] = (max(worst) < EXACT, f"scores differ by {max(worst):.1e} at most")
    return found


CLAIMS = (
    Claim("AMM raises the accuracy of its host (table B, every class order)", _above(None)),
    Claim("the gain of AMM grows with the number of stages (25 against 10, mean over orders)", _grows),
    Claim("AMM is above AANets (table A, class orders that both were run in)", _above_aanets),
    Claim("AMM is above the re-parameterisation of NECIL (table B)", _above("adapters", ("necil",))),
    Claim("AMM adds no parameters to the network, heads and task tokens aside", _no_growth),
    Claim("merging changes nothing but rounding", _exact),
    Claim("control: AMM is above a frozen network whose head is trained", _above("frozen")),
    Claim("control: AMM is above branches without a gate (IMM)", _above("imm")),
    Claim("control: AMM is above branches behind a constant gate", _above("constant")),
)
