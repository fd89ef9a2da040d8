"""How the constants of the class count are fitted, and that they are those that were measured."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import count_constants
from benchmarks.count_constants import errors_of, fitted

from inlay.discovery.class_graph import STEPS, WalkRule, fitted_rule


def test_the_rule_is_the_least_of_its_penalised_squares() -> None:
    randomness = np.random.default_rng(0)
    values = randomness.normal(size=(60, 2)) * [1.0, 5.0] + [0.0, 3.0]
    truth = np.exp(values @ [0.5, 0.1] + randomness.normal(size=60))
    first, second = (((column - column.mean()) / column.std()).clip(-3, 3) for column in values.T)
    terms = np.column_stack([first, second, first * first, first * second, second * second, np.ones(60)])
    # A penalty is the same as further points at which nothing but one weight is seen.
    more = np.vstack([terms, math.sqrt(3.0) * np.eye(5, 6)])
    weights = np.linalg.lstsq(more, np.append(np.log(truth), np.zeros(5)), rcond=None)[0]
    rule = fitted(values, truth)
    assert [rule(row) for row in values.tolist()] == pytest.approx((terms @ weights).tolist(), abs=1e-4)


def test_errors_by_hand() -> None:
    # A rule that tells the exponential of its one value: 10 are asked for, 10, 12, 13 and 20 told.
    plain = WalkRule((2.5,), (1.0,), (1.0, 0.0, 2.5), 0.0)
    found = errors_of(plain, np.log([[10.0], [12.0], [13.0], [20.0]]), np.full(4, 10.0))
    assert found["within_20_percent"] == 0.5 and found["within_root_2"] == 0.75
    squares = [0.0, math.log(1.2) ** 2, math.log(1.3) ** 2, math.log(2) ** 2]
    assert found["log_error"] == pytest.approx(math.sqrt(sum(squares) / 4))


def test_the_rule_is_the_one_that_was_measured() -> None:
    record = json.loads((count_constants.RESULTS / f"{count_constants.PART}.json").read_text(encoding="utf-8"))
    assert WalkRule.from_json(record["rule"]) == fitted_rule()
    errors = [transfer["log_error"] for transfer in record["transfer"].values()]
    assert math.sqrt(sum(error**2 for error in errors) / 2) == pytest.approx(fitted_rule().error, abs=0.001)


def test_the_command_fits_what_it_has_looked_at(tmp_path: Path) -> None:
    """The features are there already, as after a command that was stopped."""
    randomness, labels = torch.Generator().manual_seed(0), torch.arange(90 * 30) % 90
    for name in ("cifar100", "tinyimagenet"):
        centres = 2 * torch.randn(90, 16, generator=randomness)
        features = (centres[labels] + torch.randn(len(labels), 16, generator=randomness)).half()
        torch.save({"features": features, "labels": labels}, tmp_path / f"{name}.pt")
    words = ["--data", str(tmp_path), "--work", str(tmp_path), "--piles", "24", "--out", str(tmp_path / "out")]
    count_constants.main([*words, "--rule", str(tmp_path / "rule.json"), "--processes", "1"])
    record = json.loads((tmp_path / "out" / "count-constants.json").read_text(encoding="utf-8"))
    rule = WalkRule.from_json(json.loads((tmp_path / "rule.json").read_text(encoding="utf-8")))
    inputs = len(STEPS) + 1
    assert len(rule.centre) == inputs and len(rule.weights) == inputs + inputs * (inputs + 1) // 2 + 1
    assert WalkRule.from_json(record["rule"]) == rule
    assert {name: entry["fitted_to"] for name, entry in record["transfer"].items()} == {
        "cifar100": ["tinyimagenet", "made-up"],
        "tinyimagenet": ["cifar100", "made-up"],
    }
    assert all(entry["log_error"] < math.log(3) for entry in record["transfer"].values())
