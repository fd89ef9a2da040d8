"""The same commands on small grey images, with a network that is trained from the beginning."""

import csv
import re
from collections import Counter

import pytest

from walk.digit_files import LABELLED, NOVEMBER, OCTOBER, write_digit_files
from walk.guide import COMMANDS, Walk

DOCTOR, FIT, FIRST, REVIEW, SECOND, PREDICT, EXPORT, ROLLBACK = COMMANDS
# A mirrored digit is another character, and a third of the epochs is enough for so simple images.
GLYPHS = ("base.view=glyph", "first_view=glyph", "second_view=glyph", "base.contrastive=0")
QUICK = ("base.training.epochs=20", "training.batch=64")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Walk, dict[str, str]]:
    folder = tmp_path_factory.mktemp("digits")
    kinds = write_digit_files(folder)
    walk = Walk(folder, options={"fit": [f"--set={change}" for change in (*GLYPHS, *QUICK)]})
    for command in COMMANDS:
        said = walk.take(command)
        assert said.returncode == 0, said.stderr
    return walk, kinds


@pytest.fixture(scope="module")
def walk(kinds: tuple[Walk, dict[str, str]]) -> Walk:
    return kinds[0]


@pytest.fixture(scope="module")
def named(kinds: tuple[Walk, dict[str, str]]) -> dict[str, Counter[str]]:
    """How often each name was given to images of each digit after both stages."""
    counts: dict[str, Counter[str]] = {digit: Counter() for digit in (*LABELLED, *OCTOBER, *NOVEMBER)}
    with (kinds[0].folder / "out.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            counts[kinds[1][row["source"]]][row["name"]] += 1
    return counts


def test_a_small_network_is_chosen_for_small_images(walk: Walk) -> None:
    assert walk.said[FIT].stdout.startswith("Network: resnet8 from scratch")
    assert "with images of 14×14" in walk.said[FIT].stdout


def test_fit_tests_itself_before_the_first_pile(walk: Walk) -> None:
    assert re.search(r"Self-test: \d+ classes were counted where 2 had been hidden; \d+ %", walk.said[FIT].stdout)


@pytest.mark.parametrize("command", [FIRST, SECOND])
def test_the_number_of_new_digits_lies_in_the_interval(walk: Walk, command: str) -> None:
    counted = re.search(r"between (\d+) and (\d+)", walk.said[command].stdout)
    assert counted is not None
    assert int(counted[1]) <= 2 <= int(counted[2])


def test_old_digits_are_not_forgotten(named: dict[str, Counter[str]]) -> None:
    right = sum(named[digit][digit] for digit in LABELLED)
    assert right >= 0.85 * sum(named[digit].total() for digit in LABELLED)


@pytest.mark.parametrize(("digits", "stage"), [(OCTOBER, 1), (NOVEMBER, 2)])
def test_new_digits_are_found_far_above_chance(
    named: dict[str, Counter[str]], digits: tuple[str, ...], stage: int
) -> None:
    best = [named[digit].most_common(1)[0] for digit in digits]
    assert all(name.startswith(f"new-{stage}.") for name, _ in best)
    assert len({name for name, _ in best}) == len(digits)
    assert sum(count for _, count in best) >= 0.7 * sum(named[digit].total() for digit in digits)


def test_review_export_and_rollback(walk: Walk) -> None:
    assert "<html" in walk.said[REVIEW].stdout and "The page is closed" in walk.said[REVIEW].stdout
    assert (walk.folder / "shop.onnx").stat().st_size > 100_000
    assert walk.registries[ROLLBACK] == walk.registries[FIRST] != walk.registries[SECOND]
