"""How the constants of the class count are fitted, and that they are those that were measured."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import count_constants
from benchmarks.count_constants import errors_of, fitted

from inlay.discovery.class_graph import CONSTANTS, STEPS, TYPICAL_ERROR


def test_the_rule_is_the_least_of_its_penalised_squares() -> None:
    randomness = np.random.default_rng(0)
    values = randomness.normal(size=(40, 3)) * [1.0, 5.0, 0.2] + [0.0, 3.0, 1.0]
    truth = np.exp(values @ [0.5, 0.1, -2.0] + randomness.normal(size=40))
    inputs = (values - values.mean(axis=0)) / values.std(axis=0)
    # A penalty is the same as further points at which nothing but one weight is seen.
    more = np.vstack([np.column_stack([inputs, np.ones(40)]), math.sqrt(0.3) * np.eye(3, 4)])
    weights = np.linalg.lstsq(more, np.append(np.log(truth), np.zeros(3)), rcond=None)[0]
    expected = [inputs[row] @ weights[:3] + weights[3] for row in range(40)]
    found = fitted(values, truth)
    np.testing.assert_allclose(values @ found[:-1] + found[-1], expected, rtol=1e-9)


def test_errors_by_hand() -> None:
    # Rules of one value: k = 10 asked for, 10, 12, 13 and 20 told.
    told = np.log([[10.0], [12.0], [13.0], [20.0]])
    found = errors_of(np.array([1.0, 0.0]), told, np.full(4, 10.0))
    assert found["within_20_percent"] == 0.5 and found["within_root_2"] == 0.75
    squares = [0.0, math.log(1.2) ** 2, math.log(1.3) ** 2, math.log(2) ** 2]
    assert found["log_error"] == pytest.approx(math.sqrt(sum(squares) / 4))


def test_the_constants_are_those_that_were_measured() -> None:
    record = json.loads((count_constants.RESULTS / f"{count_constants.PART}.json").read_text(encoding="utf-8"))
    assert record["steps"] == list(STEPS)
    assert record["constants"] == list(CONSTANTS)
    errors = [transfer["log_error"] for transfer in record["transfer"].values()]
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) == pytest.approx(TYPICAL_ERROR, abs=0.005)


def test_the_command_fits_what_it_has_looked_at(tmp_path: Path) -> None:
    """The features are there already, as after a command that was stopped."""
    randomness, labels = torch.Generator().manual_seed(0), torch.arange(90 * 30) % 90
    for name in ("cifar100", "tinyimagenet"):
        centres = 2 * torch.randn(90, 16, generator=randomness)
        features = (centres[labels] + torch.randn(len(labels), 16, generator=randomness)).half()
        torch.save({"features": features, "labels": labels}, tmp_path / f"{name}.pt")
    words = ["--data", str(tmp_path), "--work", str(tmp_path), "--piles", "24", "--out", str(tmp_path / "out")]
    count_constants.main(words)
    record = json.loads((tmp_path / "out" / "count-constants.json").read_text(encoding="utf-8"))
    assert len(record["constants"]) == len(STEPS) + 2 and all(map(math.isfinite, record["constants"]))
    assert {name: entry["fitted_to"] for name, entry in record["transfer"].items()} == {
        "cifar100": ["tinyimagenet"],
        "tinyimagenet": ["cifar100"],
    }
    assert all(entry["log_error"] < math.log(3) for entry in record["transfer"].values())
