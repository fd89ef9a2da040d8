"""Write the tables of docs/own-images-figures.md from benchmarks/results/own-images/*.json.

python -m benchmarks.own_images_tables [--check]
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page import between, linked, measured_files, write_page

__all__ = ["BEGIN", "END", "FOLDER", "PAGE", "sections", "with_tables"]

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "own-images-figures.md"
FOLDER = ROOT / "benchmarks" / "results" / "own-images"
BEGIN, END = "<!-- tables: made by benchmarks/own_images_tables.py -->", "<!-- end of tables -->"

_DATA_SETS = {
    "demo": "demo digits",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tinyimagenet": "Tiny-ImageNet",
    "photographs": "photographs, 40 + 10",
    "photographs-10": "photographs, 5 + 5",
    "photographs-100": "photographs, 80 + 20",
}
_CONSTANTS = "count-constants.json"
_POINTS = 0.03
_SHARE = 0.2

Record = dict[str, Any]


def main() -> None:
    """Write the tables, or with --check say whether they are up to date."""
    write_page(__doc__, PAGE, lambda text: with_tables(text, sections(FOLDER)))


def with_tables(text: str, parts: Sequence[str]) -> str:
    """Return a page with everything between the marks replaced by sections."""
    return between(text, BEGIN, END, parts)


def sections(folder: Path) -> list[str]:
    """Return all sections of the page, those of parts that were not measured left out.

    Args:
        folder: Folder of the files of results.
    """
    makers: dict[str, tuple[str, Callable[[list[Record]], list[str]]]] = {
        "count": ("## Number of new classes", _count_tables),
        "triage": ("## Known, new or neither", _triage_tables),
        "few": ("## A few new images among many known ones", _few_tables),
        "forgetting": ("## Forgetting meter", _forgetting_tables),
        "walk": ("## The whole walk on folders", _walk_tables),
    }
    parts = []
    for part, (title, maker) in makers.items():
        files = measured_files(folder, part)
        measured = sorted((record for record in files.values() if record["part"] == part), key=_network)
        records = [record for name in _DATA_SETS for record in measured if record["data_set"] == name]
        if records:
            parts += [title, *maker(records), *(_provenance(record) for record in records)]
        if _CONSTANTS in files:
            parts += [*_constants_table(files[_CONSTANTS]), _provenance(files[_CONSTANTS], "constants", _CONSTANTS)]
    photographs = list(measured_files(folder, "photographs").values())
    if photographs:
        parts += ["## Photographs with the pretrained network", *_photograph_tables(photographs)]
        parts += [_provenance(record, record["name"]) for record in photographs]
    return parts or ["Nothing has been measured yet."]


def _count_tables(records: list[Record]) -> list[str]:
    heads = ["data", "new classes", "sizes", "estimates", "within 20 %", "intervals", "interval covers"]
    rows = [[*heads, "silhouette", "Max-ACC", "seconds to count"]]
    for record in records:
        for index, first in enumerate(record["runs"][0]["piles"]):
            piles = [run["piles"][index] for run in record["runs"]]
            near = sum(abs(pile["estimate"] - pile["truth"]) <= _SHARE * pile["truth"] for pile in piles)
            covered = sum(pile["low"] <= pile["truth"] <= pile["high"] for pile in piles)
            rows.append(
                [
                    _title(record),
                    str(first["truth"]),
                    first["sizes"],
                    _listed(pile["estimate"] for pile in piles),
                    f"{near} of {len(piles)}",
                    _listed(f"{pile['low']}–{pile['high']}" for pile in piles),
                    f"{covered} of {len(piles)}",
                    _listed(pile.get("silhouette", "–") for pile in piles),
                    _listed(pile.get("max_acc", "–") for pile in piles),
                    f"{statistics.fmean(pile['seconds'] for pile in piles):.1f}",
                ]
            )
    return [
        _table(rows),
        "One number for each seed. Silhouette is k-means with the best mean silhouette; Max-ACC clusters the pile "
        "together with labelled images of the known classes, which a run no longer has.",
    ]


def _constants_table(record: Record) -> list[str]:
    rows = [["tested on", "fitted to", "typical error", "within 20 %", "within a factor of √2"]]
    for name, transfer in record["transfer"].items():
        shares = [f"{100 * transfer[share]:.0f} %" for share in ("within_20_percent", "within_root_2")]
        fitted_to = ", ".join(_DATA_SETS.get(other, other) for other in transfer["fitted_to"])
        rows.append([_DATA_SETS[name], fitted_to, f"factor of {math.exp(transfer['log_error']):.2f}", *shares])
    return [
        "Photographs are counted by a rule that was fitted to piles from CIFAR-100 and Tiny-ImageNet and to made-up "
        "groups, so the counts of 80 + 20 above are of classes that it was fitted to; those of 5 + 5 are not, but the "
        "kind of rule was chosen by its errors on random piles of all three data sets, CIFAR-10 too, and long groups "
        "were added when the photographs of the guide were miscounted. To see how well the rule does on other "
        "photographs, but for that choice, it was fitted without one data set and tested on that, on piles of 1 to 60 "
        "new classes of 25 images or more, of equal sizes or up to 1:10:",
        _table(rows),
    ]


def _triage_tables(records: list[Record]) -> list[str]:
    told = [["data", "AUROC", "max-softmax", "energy", "error stated", "error measured", "new found"]]
    cost = [["data", "Old", "New", "All", "Old, oracle", "New, oracle", "All, oracle"]]
    foreign = [["data", "foreign images", "known", "new", "neither"]]
    for record in records:
        name, runs = _title(record), record["runs"]
        areas = [_percent([run["auroc"][rule] for run in runs]) for rule in ("ours", "softmax", "energy")]
        errors = [f"{100 * runs[0]['error']:g}", _percent([run["known_error"] for run in runs])]
        told.append([name, *areas, *errors, _percent([run["new_found"] for run in runs])])
        keys = [(way, key) for way in ("triage", "oracle") for key in ("old", "new", "all")]
        cost.append([name, *(_percent([_stage(run, way, key) for run in runs]) for way, key in keys)])
        for source in runs[0]["foreign"]:
            shares = [_percent([run["foreign"][source][part] for run in runs]) for part in ("known", "new", "neither")]
            foreign.append([name, source, *shares])
    return [
        "A pile of as many images of known classes, withheld from `fit`, as of new ones. Mean ± standard deviation "
        "over the seeds, in %.",
        _table(told),
        "Accuracy after a stage with the images that were sorted out as new, and after one with those that really "
        "are (oracle), both with the true number of classes. Where nothing new was found, New counts as 0.",
        _table(cost),
        "A hundred images of another source mixed into the pile:",
        _table(foreign),
    ]


def _few_tables(records: list[Record]) -> list[str]:
    heads = ["data", "new images", "of the pile", "noticed", "noticed, images judged alone"]
    rows = [[*heads, "new found", "known taken for something else"]]
    for record in records:
        for index, first in enumerate(record["runs"][0]["piles"]):
            piles = [run["piles"][index] for run in record["runs"]]
            noticed = [f"{sum(pile[key] for pile in piles)} of {len(piles)}" for key in ("noticed", "noticed_alone")]
            shares = [_percent([pile[key] for pile in piles]) for key in ("new_found", "known_error")]
            of_pile = f"{100 * first['share']:g} %"
            rows.append([_title(record), str(first["new_images"]), of_pile, *noticed, *shares])
    return [
        "All test images of the known classes and a few images of two new ones. Where nothing new is noticed, no stage "
        "is made. Shares in %, mean ± standard deviation over the seeds.",
        _table(rows),
    ]


def _stage(run: Record, way: str, key: str) -> float:
    found = run["stage"][way]
    return 0.0 if found is None else float(found[key])


def _forgetting_tables(records: list[Record]) -> list[str]:
    rows = [["data", "estimated drop", "without correction", "true drop", "mean error", "within 3 points"]]
    for record in records:
        runs = record["runs"]
        errors = [abs(run["estimate"] - run["truth"]) for run in runs]
        lists = [_listed(f"{100 * run[key]:z.1f}" for run in runs) for key in ("estimate", "uncorrected", "truth")]
        near = f"{sum(error <= _POINTS for error in errors)} of {len(errors)}"
        rows.append([_title(record), *lists, f"{100 * statistics.fmean(errors):.1f}", near])
    return [_table(rows), "Drop in accuracy on the old classes by one stage, in points, one number for each seed."]


def _walk_tables(records: list[Record]) -> list[str]:
    heads = ["data", "stage", "new classes", "estimate", "interval", "pile", "known", "new", "neither"]
    rows = [[*heads, "Old", "New", "All"]]
    times = [["data", "images to fit", "doctor", "fit", "first discover", "second discover", "predictions per second"]]
    for record in records:
        name = _title(record)
        for number, stage in enumerate(record["stages"], start=1):
            counts = [f"{stage[part]:,}" for part in ("pile", "known", "new", "neither")]
            scores = [f"{100 * stage['scores'][part]:.1f}" for part in ("old", "new", "all")]
            estimate = [str(stage["truth"]), str(stage["estimate"]), f"{stage['low']}–{stage['high']}"]
            rows.append([name, str(number), *estimate, *counts, *scores])
        seconds = {step["command"]: step["seconds"] for step in record["steps"]}
        first = [_seconds(seconds, f"inlay {verb} ") for verb in ("doctor", "fit")]
        found = [_seconds(seconds, f"inlay discover shop.inlay pile-{pile}") for pile in (1, 2)]
        rate = record["images"]["test"] / _seconds(seconds, "inlay predict shop.inlay test")
        times.append(
            [name, f"{record['images']['labelled']:,}", *(f"{x:.0f} s" for x in (*first, *found)), f"{rate:,.0f}"]
        )
    return [
        "Every command of the guide on image files, with its defaults but for the seed: labelled base classes, then "
        "two piles of new and known classes, the number of new classes not given. Accuracy in % "
        "on test images of all classes seen; clusters are matched on the piles.",
        _table(rows),
        "Time of whole commands, from start to end:",
        _table(times),
    ]


def _photograph_tables(records: list[Record]) -> list[str]:
    heads = ["known classes", "labelled of each", "new classes", "unlabelled of each", "settings", "Base"]
    scores = {"old": "Old", "new": "New", "all": "All", "new_head": "New among new"}
    rows = [[*heads, *scores.values(), "base stage", "stage", "bytes per class"]]
    # Settings of the same case stand below each other.
    for case in dict.fromkeys(tuple(case) for record in records for case in record["cases"]):
        for record in records:
            runs = [row for run in record["runs"] for row in run["cases"] if _case(row) == case]
            if not runs:
                continue
            accuracies = [_percent([run["scores"][key] for run in runs]) for key in scores]
            times = [f"{statistics.fmean(run['seconds'][key] for run in runs):.0f} s" for key in ("base", "stage")]
            size = f"{max(run['bytes_per_class'] for run in runs):,}"
            base = _percent([run["base"] for run in runs])
            rows.append([*map(str, case), record["name"], base, *accuracies, *times, size])
    return [
        "Photographs of 64×64 pixels from Tiny-ImageNet, and the network that `inlay fit` chooses for them: "
        "`efficientnet-lite2-imagenet`, frozen, with images enlarged to 192×192 (default), to another size or not at "
        "all; in the rows called trained, branches were trained beside it, and those called lite0 have "
        "`efficientnet-lite0-imagenet`. There are few labelled images, part of which is kept out of training as "
        "`inlay fit` does; then come unlabelled images of new classes alone, and the number of classes is given. "
        "Classes and images are drawn by the seed.",
        "The weights were learned from ImageNet, which has all of these classes with labels, the new ones too, and "
        "maybe these very photographs: expect less for kinds that ImageNet does not have.",
        _table(rows),
        "Accuracy in % on 50 test images of each class, mean ± standard deviation over the seeds. Base is that on the "
        "known classes before the stage. Clusters are matched on the unlabelled training images. Times are means. "
        "Each name under settings stands for its command:",
    ]


def _case(row: Record) -> tuple[int, ...]:
    return row["known"], row["labelled"], row["new"], row["unlabelled"]


def _seconds(seconds: dict[str, float], beginning: str) -> float:
    """Return the time of the latest command that begins so."""
    return [value for command, value in seconds.items() if command.startswith(beginning)][-1]


def _title(record: Record) -> str:
    return ", ".join([_DATA_SETS[record["data_set"]], *_network(record)])


def _network(record: Record) -> list[str]:
    """The network that was asked for in place of that of the recipe; of photographs the name of the file says it."""
    named = record.get("backbone") if record["part"] in ("count", "triage", "few", "forgetting") else None
    return [named] if named else []


def _provenance(record: Record, name: str | None = None, file: str | None = None) -> str:
    """Tell where the numbers of a file come from, which is called by its data set or by a name of its own."""
    file = file or f"{'-'.join([record['part'], name or record['data_set'], *_network(record)])}.json"
    title = name or _title(record)
    return (
        f"{title}: `{record['command']}` on {record['hardware']}, {record['date']}, commit "
        f"{_short(record['commit'])}, torch {record['versions']['torch']}; {linked(f'own-images/{file}')}"
    )


def _table(rows: list[list[str]]) -> str:
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _percent(values: Sequence[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"


def _short(commit: str) -> str:
    name, dash, state = commit.partition("-")
    return name[:12] + dash + state


if __name__ == "__main__":
    main()
