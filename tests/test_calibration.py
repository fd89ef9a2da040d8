import json
from dataclasses import replace

import pytest

from inlay.calibration import Calibration, HiddenTrial
from inlay.discovery.class_count_interval import UNCALIBRATED
from inlay.discovery.class_count_interval import calibrate as widening_of
from inlay.discovery.forgetting import fit_correction
from inlay.errors import InlayError

TRIALS = (
    HiddenTrial(("a", "b"), 3, 0.9, 0.05, 0.8, 0.01, 0.02),
    HiddenTrial(("c", "d", "e"), 3, 0.95, 0.04, 0.9, 0.05, 0.03),
)
CALIBRATION = Calibration(0.97, (0.5, 1.25, -2.0), 1.3, TRIALS)


def test_json_holds_everything() -> None:
    assert Calibration.from_json(json.loads(json.dumps(CALIBRATION.to_json()))) == CALIBRATION


def test_trials_teach_widening_and_correction() -> None:
    assert CALIBRATION.widening == widening_of([(2, 3), (3, 3)])
    assert CALIBRATION.correction == fit_correction([(0.01, 0.02), (0.05, 0.03)])


def test_without_trials_nothing_is_claimed() -> None:
    plain = Calibration(0.97, (0.5,), 1.0)
    assert plain.widening == UNCALIBRATED
    assert plain.correction(0.07) == 0.07


@pytest.mark.parametrize("damage", [{"trials": [{"hidden": []}]}, {"known_scores": ["much"]}, {"stretch": None}])
def test_damaged_json_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(InlayError, match="put back the file"):
        Calibration.from_json({**CALIBRATION.to_json(), **damage})


def test_missing_parts_are_refused() -> None:
    with pytest.raises(InlayError, match="'accuracy'"):
        Calibration.from_json({"known_scores": [], "stretch": 1.0, "trials": []})


def test_the_spread_of_hidden_classes_is_believed_the_more_of_them_there_were() -> None:
    def told(hidden: int) -> float:
        trial = HiddenTrial(tuple(map(str, range(hidden))), 3, 0.9, 0.05, 0.8, 0.01, 0.02, spread=1.5)
        return Calibration(0.97, (), 1.0, (trial,)).spread

    assert Calibration(0.97, (), 1.0).spread == 1
    assert told(4) == pytest.approx(1.5**0.5)
    assert 1 < told(2) < told(4) < told(30) < 1.5


def test_calibrations_of_earlier_runs_know_no_spread() -> None:
    data = json.loads(json.dumps(CALIBRATION.to_json()))
    for trial in data["trials"]:
        for name in ("spread", "sorted_estimate", "sorted_spread"):
            del trial[name]
    earlier = Calibration.from_json(data)
    assert earlier.spread == 1 and earlier.after_sorting == earlier


def test_piles_that_are_sorted_are_counted_by_what_sorting_found() -> None:
    told = HiddenTrial(("a", "b", "c", "d"), 5, 0.9, 0.05, 0.8, 0.01, 0.02, 1.2, sorted_estimate=3, sorted_spread=0.8)
    calibration = Calibration(0.97, (0.5,), 1.3, (told, TRIALS[0]))
    assert calibration.widening == widening_of([(4, 5), (2, 3)])
    assert calibration.after_sorting.widening == widening_of([(4, 3), (2, 3)])
    assert calibration.spread == pytest.approx(1.2 ** (4 / 10))
    assert calibration.after_sorting.spread == pytest.approx(0.8 ** (4 / 10))
    # An error of one class says nothing.
    assert calibration.factor == calibration.after_sorting.factor == 1
    far = replace(calibration, trials=(replace(told, estimate=9), replace(told, hidden=("a",) * 8, estimate=4)))
    assert far.factor == pytest.approx(((4 / 8) ** 4 * (8 / 5) ** 8) ** (1 / 16))
    # 9 · 1.064 and 4 · 1.064.
    assert [trial.estimate for trial in far.times_factor.trials] == [10, 4]
    assert calibration.after_sorting.correction == calibration.correction
    assert calibration.after_sorting.known_scores == calibration.known_scores
