"""How the constants of the class count are fitted, and that they are those that were measured."""

import hashlib
import json
import math
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from benchmarks import count_constants
from benchmarks.count_constants import errors_of, fitted

from inlay.discovery.class_graph import RULE_FILE, STEPS, WalkRule, fitted_rule


def test_the_rule_is_the_least_of_its_penalised_squares() -> None:
    randomness = np.random.default_rng(0)
    values = randomness.normal(size=(12, 2)) * [1.0, 5.0] + [0.0, 3.0]
    truth = np.exp(values @ [0.5, 0.1] + randomness.normal(size=12))
    rule = fitted(values, truth)

    def penalised(weights: npt.NDArray[np.float64]) -> float:
        fits, size = 0.0, 0.0
        for i in range(12):
            told = rule.constant + sum(weights[j] * _likeness(values, i, j) for j in range(12))
            fits += (told - math.log(truth[i])) ** 2
            size += sum(weights[i] * weights[j] * _likeness(values, i, j) for j in range(12))
        return fits + 0.5 * size

    least = penalised(rule.weights)
    assert rule.constant == pytest.approx(np.log(truth).mean(), abs=1e-3)
    for step in range(24):
        moved = rule.weights + 0.01 * (1 if step % 2 else -1) * np.eye(12)[step // 2]
        assert penalised(moved) > least
    told = rule.constant + sum(rule.weights[j] * _likeness(values, 3, j) for j in range(12))
    assert rule(values[3].tolist()) == pytest.approx(told, abs=1e-3)


def _likeness(values: npt.NDArray[np.float64], i: int, j: int) -> float:
    distance = sum(((a - b) / s) ** 2 for a, b, s in zip(values[i], values[j], values.std(axis=0), strict=True))
    return math.exp(-distance / (2 * 1.5**2))


def test_errors_by_hand() -> None:
    # A rule of one far pile tells its constant: 10 where 10, 12, 13 and 20 are asked for.
    rule = WalkRule(np.zeros(1), np.ones(1), np.full((1, 1), 1e3), np.ones(1), math.log(10), 0.0)
    found = errors_of(rule, np.zeros((4, 1)), np.array([10.0, 12.0, 13.0, 20.0]))
    assert found["within_20_percent"] == 0.5 and found["within_root_2"] == 0.75
    squares = [0.0, math.log(1.2) ** 2, math.log(1.3) ** 2, math.log(2) ** 2]
    assert found["log_error"] == pytest.approx(math.sqrt(sum(squares) / 4))


def test_the_rule_is_the_one_that_was_measured() -> None:
    record = json.loads((count_constants.RESULTS / f"{count_constants.PART}.json").read_text(encoding="utf-8"))
    text = files("inlay.discovery").joinpath(RULE_FILE).read_text(encoding="utf-8")
    assert hashlib.sha256(text.strip().encode()).hexdigest() == record["rule"]
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
    assert rule.piles.shape == (4 * 24, len(STEPS) + 1) and np.isfinite(rule.weights).all()
    assert record["rule"] == hashlib.sha256((tmp_path / "rule.json").read_bytes().strip()).hexdigest()
    assert {name: entry["fitted_to"] for name, entry in record["transfer"].items()} == {
        "cifar100": ["tinyimagenet", "round", "long"],
        "tinyimagenet": ["cifar100", "round", "long"],
    }
    assert all(entry["log_error"] < math.log(3) for entry in record["transfer"].values())
