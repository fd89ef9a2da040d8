"""Scores of any method from a file of its predictions."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path
from typing import Literal

import numpy as np

from inlay.data.listing import class_order
from inlay.errors import InlayError
from inlay.evaluation.matching import Matching, map_truth
from inlay.evaluation.metrics import Scores, score_predictions

__all__ = ["PredictionRow", "read_predictions", "score_file"]

_REQUIRED = ("split", "stage", "truth", "prediction")
_OPTIONAL = ("new_head", "old_head")
_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class PredictionRow:
    """One image of a predictions file.

    Attributes:
        line: line of the file, from 1.
        split: "match" for a novel training image with its cluster, "test" for an image to be scored.
        stage: stage that the true class belongs to, 0 for a base class.
        truth: name of the true class.
        prediction: predicted output; on a match row the output of the image's cluster.
        new_head: output predicted among those of the latest stage, None where not given.
        old_head: output predicted among those of earlier stages, None where not given.
    """

    line: int
    split: Literal["match", "test"]
    stage: int
    truth: str
    prediction: int
    new_head: int | None
    old_head: int | None


def read_predictions(path: str | Path) -> list[PredictionRow]:
    """Read a predictions file: CSV, UTF-8, one row per image, columns named as in `PredictionRow`.

    The columns split, stage, truth and prediction are required; new_head and old_head may be left out or
    left empty, and play no part on match rows.

    Raises:
        InlayError: naming file, line and what is expected there.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(_rows(file, path))
    except OSError as error:
        raise InlayError(
            f"{path} cannot be read ({error.strerror}); write the path of a CSV file of predictions."
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InlayError(f"{path} is not a CSV file in UTF-8 ({error}); save it as one.") from error


def score_file(
    path: str | Path,
    *,
    class_names: Sequence[str] | None = None,
    cluster_counts: Sequence[int] | None = None,
) -> Scores:
    """Score a predictions file after its latest stage; see `Scores` for the definitions.

    Outputs 0, 1, ... are the base classes; those of stage 1, 2, ... follow. Clusters are matched to true
    classes stage by stage, on the match rows where the file has them, else on the test rows by the
    prediction column, where predictions outside the stage's own outputs take no part.

    Args:
        path: file as `read_predictions` takes it, with test rows of every stage from 0 to the latest.
        class_names: base classes in the order of their outputs; the true classes of the stage 0 rows when left
            out, sorted as numbers where all of them are whole numbers, else as text.
        cluster_counts: number of outputs of stage 1, 2, ...; the number of true classes of each stage when
            left out.

    Raises:
        InlayError: naming file, line and what is expected there.
    """
    path = Path(path)
    rows = read_predictions(path)
    names = _names_by_stage(rows, path)
    if class_names is not None:
        _check_class_names(class_names, names[1:])
        names[0] = list(class_names)
    if cluster_counts is None:
        cluster_counts = [len(stage_names) for stage_names in names[1:]]
    elif len(cluster_counts) != len(names) - 1 or any(number < 1 for number in cluster_counts):
        raise InlayError(
            f"Cluster counts are one number from 1 for each later stage; {path} has {len(names) - 1} of them."
        )
    starts = list(accumulate([len(names[0]), *cluster_counts], initial=0))
    for row in rows:
        _check_row(row, names[0], starts, path)
    matchings = _match_stages(rows, names, starts, path)
    return _score_rows([row for row in rows if row.split == "test"], names[0], starts, matchings, path)


def _rows(file: Iterable[str], path: Path) -> Iterator[PredictionRow]:
    reader = csv.DictReader(file, strict=True)
    header = list(reader.fieldnames or ())
    allowed = {*_REQUIRED, *_OPTIONAL}
    if len(set(header)) < len(header) or not set(_REQUIRED) <= set(header) <= allowed:
        expected = f"{', '.join(_REQUIRED)} and, if wanted, {', '.join(_OPTIONAL)}"
        raise _wrong(path, 1, f"the columns must be {expected}")
    for cells in reader:
        if None in cells or None in cells.values():
            raise _wrong(path, reader.line_num, f"a row must have {len(header)} cells")
        yield _row(cells, path, reader.line_num)


def _row(cells: dict[str, str], path: Path, line: int) -> PredictionRow:
    def number(column: str) -> int:
        if not _WHOLE_NUMBER.fullmatch(cells[column].strip()):
            raise _wrong(path, line, f"{column} must be a whole number from 0, not {cells[column]!r}")
        return int(cells[column])

    def optional_number(column: str) -> int | None:
        return number(column) if cells.get(column, "").strip() else None

    split, truth, stage = cells["split"].strip(), cells["truth"].strip(), number("stage")
    if split not in ("match", "test"):
        raise _wrong(path, line, f"split must be match or test, not {cells['split']!r}")
    if not truth:
        raise _wrong(path, line, "truth must be the name of a class")
    if split == "match" and stage == 0:
        raise _wrong(path, line, "match rows are for stages from 1, as base classes need no matching")
    return PredictionRow(
        line=line,
        split="match" if split == "match" else "test",
        stage=stage,
        truth=truth,
        prediction=number("prediction"),
        new_head=optional_number("new_head"),
        old_head=optional_number("old_head"),
    )


def _names_by_stage(rows: Sequence[PredictionRow], path: Path) -> list[list[str]]:
    stage_of: dict[str, int] = {}
    for row in rows:
        stage = stage_of.setdefault(row.truth, row.stage)
        if stage != row.stage:
            raise _wrong(path, row.line, f"class {row.truth!r} must keep the stage {stage} of its first row")
    tested = {row.stage for row in rows if row.split == "test"}
    latest = max(stage_of.values(), default=0)
    first_untested = next(stage for stage in count() if stage not in tested)
    if first_untested <= latest:
        missing = f"{path} has no test row of stage {first_untested}"
        raise InlayError(f"{missing}; write test rows of every stage from 0 to {latest}.")
    return [class_order([n for n, stage in stage_of.items() if stage == wanted]) for wanted in range(latest + 1)]


def _check_class_names(class_names: Sequence[str], later_names: Sequence[Sequence[str]]) -> None:
    if len(set(class_names)) < len(class_names):
        raise InlayError("class_names must name each base class once.")
    later = {name for stage_names in later_names for name in stage_names}
    both = sorted(later.intersection(class_names))
    if both:
        raise InlayError(f"class_names must name base classes only, but {both[0]!r} belongs to a later stage.")


def _check_row(row: PredictionRow, base_names: Sequence[str], starts: Sequence[int], path: Path) -> None:
    if row.stage == 0 and row.truth not in base_names:
        raise _wrong(path, row.line, f"truth must be one of the given class names, not {row.truth!r}")
    if row.split == "match":
        _check_id(row.prediction, starts[row.stage], starts[row.stage + 1], "prediction", row, path)
        return
    latest = len(starts) - 2
    _check_id(row.prediction, 0, starts[-1], "prediction", row, path)
    if latest and row.stage == latest and row.new_head is not None:
        _check_id(row.new_head, starts[latest], starts[-1], "new_head", row, path)
    if row.stage < latest and row.old_head is not None:
        _check_id(row.old_head, 0, starts[latest], "old_head", row, path)


def _check_id(value: int, start: int, end: int, column: str, row: PredictionRow, path: Path) -> None:
    if not start <= value < end:
        kind = f"{row.split} row of stage {row.stage}"
        raise _wrong(path, row.line, f"{column} of a {kind} must lie from {start} to {end - 1}, not {value}")


def _match_stages(
    rows: Sequence[PredictionRow], names: Sequence[Sequence[str]], starts: Sequence[int], path: Path
) -> list[Matching]:
    with_match_rows = {row.stage for row in rows if row.split == "match"}
    later_stages = range(1, len(names))
    missing = [stage for stage in later_stages if stage not in with_match_rows]
    if with_match_rows and missing:
        raise InlayError(
            f"{path} has no match row of stage {missing[0]}; write match rows of every stage from 1, or none."
        )
    split = "match" if with_match_rows else "test"
    matchings = []
    for stage in later_stages:
        start, end = starts[stage], starts[stage + 1]
        used = [r for r in rows if r.split == split and r.stage == stage and start <= r.prediction < end]
        matchings.append(
            Matching.solve(
                stage,
                [row.prediction - start for row in used],
                [row.truth for row in used],
                end - start,
                names[stage],
                "train" if with_match_rows else "test",
            )
        )
    return matchings


def _score_rows(
    rows: Sequence[PredictionRow],
    base_names: Sequence[str],
    starts: Sequence[int],
    matchings: Sequence[Matching],
    path: Path,
) -> Scores:
    latest = len(matchings)
    return score_predictions(
        [row.prediction for row in rows],
        map_truth([row.truth for row in rows], base_names, matchings),
        np.repeat(np.arange(latest + 1), np.diff(starts)),
        [row.stage for row in rows],
        new_head=_head_column([(r, r.new_head) for r in rows], max(latest, 1), latest, "new_head", path),
        old_head=_head_column([(r, r.old_head) for r in rows], 0, latest - 1, "old_head", path),
        matched_on=matchings[-1].matched_on if matchings else None,
    )


def _head_column(
    cells: Sequence[tuple[PredictionRow, int | None]], first: int, last: int, column: str, path: Path
) -> list[int] | None:
    needed = [(row, value) for row, value in cells if first <= row.stage <= last]
    if all(value is None for _, value in needed):
        return None
    for row, value in needed:
        if value is None:
            raise _wrong(path, row.line, f"{column} must be given here too, as other rows of its kind have it")
    return [-1 if value is None else value for _, value in cells]


def _wrong(path: Path, line: int, expected: str) -> InlayError:
    return InlayError(f"{path}, line {line}: {expected}.")
