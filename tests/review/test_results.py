import copy
import json
from typing import Any

import pytest

from inlay.errors import InlayError
from inlay.evaluation import score
from inlay.review.results import Results, validate_results

NOVEL = ("stages", 1)
METRICS = (*NOVEL, "metrics")
MERGE = (*NOVEL, "merge")
BASELINES = (*NOVEL, "baselines")


def changed(results: Results, path: tuple[str | int, ...], value: object) -> object:
    copied: Any = copy.deepcopy(results)
    place = copied
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copied


def test_good_results_pass_also_after_a_trip_through_json(results: Results) -> None:
    validate_results(results)
    validate_results(json.loads(json.dumps(results)))


def test_scores_as_evaluation_writes_them_pass(results: Results) -> None:
    scores = score([[2.0, 1.0], [0.0, 1.0]], [0, 1], [0, 1], matched_on="test").to_json()
    validate_results(changed(results, METRICS, scores))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (BASELINES, None),
        (BASELINES, {}),
        (BASELINES, {"forgetful": None, "kmeans_pixels": {}}),
        ((*METRICS, "all"), None),
        ((*METRICS, "old"), 1),
        ((*METRICS, "counts"), {"old": 3}),
        ((*NOVEL, "classes"), []),
    ],
)
def test_optional_parts_may_be_absent(results: Results, path: tuple[str | int, ...], value: object) -> None:
    validate_results(changed(results, path, value))


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("command",), 3, "command must be a string"),
        (("seed",), True, "seed must be an integer"),
        (("seed",), 1.0, "seed must be an integer"),
        (("versions",), ["1"], "versions must be an object"),
        (("versions",), {"torch": 2}, "versions.torch must be a string"),
        (("seconds",), -1.0, "seconds must be a number of seconds"),
        (("seconds",), float("inf"), "seconds must be a number of seconds"),
        (("stages",), [], "stages must be a list"),
        (("stages",), {}, "stages must be a list"),
        (NOVEL, "stage1", r"stages\[1\] must be an object"),
        ((*NOVEL, "name"), None, r"stages\[1\].name must be a string"),
        ((*NOVEL, "kind"), "new", "kind must be"),
        ((*NOVEL, "kind"), ["base"], "kind must be"),
        ((*NOVEL, "classes"), "ab", "classes must be a list"),
        ((*NOVEL, "classes"), [1], "classes must be a list"),
        ((*NOVEL, "seconds"), "3", "seconds must be a number"),
        ((*NOVEL, "colour"), "red", "without the key 'colour'"),
        (METRICS, None, "metrics must be an object"),
        ((*METRICS, "old"), 93.0, "metrics.old must be a fraction"),
        ((*METRICS, "new"), float("nan"), "metrics.new must be a fraction"),
        ((*METRICS, "all"), True, "metrics.all must be a fraction"),
        ((*METRICS, "nmi"), -0.5, "metrics.nmi must be a fraction"),
        ((*METRICS, "ari"), -2, "metrics.ari must be a number from -1"),
        ((*METRICS, "groups"), None, "metrics.groups must be an object"),
        ((*METRICS, "groups"), {"base": "high"}, "metrics.groups.base must be a fraction"),
        ((*METRICS, "matched_on"), "validation", "matched_on must be"),
        ((*METRICS, "counts"), {"old": 0.5}, "counts.old must be a whole number"),
        ((*MERGE, "max_abs_diff"), -1e-9, "max_abs_diff must be"),
        ((*MERGE, "parameters_hybrid"), 1.5, "parameters_hybrid must be a whole number"),
        ((*MERGE, "parameters_after"), -1, "parameters_after must be a whole number"),
        (BASELINES, [], "baselines must be an object"),
        ((*BASELINES, "luck"), {"old": 0.1}, "without the key 'luck'"),
        ((*BASELINES, "forgetful"), 0.4, "baselines.forgetful must be an object"),
        ((*BASELINES, "forgetful"), {"new_head": 0.4}, "without the key 'new_head'"),
        ((*BASELINES, "kmeans_pixels"), {"new_head": 40}, "kmeans_pixels.new_head must be a fraction"),
        ((*BASELINES, "kmeans_features"), {"base": "better"}, 'kmeans_features.base must be "own" or "plain"'),
    ],
)
def test_wrong_values_are_named(results: Results, path: tuple[str | int, ...], value: object, named: str) -> None:
    with pytest.raises(InlayError, match=named):
        validate_results(changed(results, path, value))


@pytest.mark.parametrize(
    ("path", "key"),
    [
        *(((), key) for key in ("command", "seed", "versions", "seconds", "stages")),
        *((NOVEL, key) for key in ("name", "kind", "classes", "metrics", "merge", "seconds")),
        *((METRICS, key) for key in ("old", "groups", "ari", "matched_on")),
        *((MERGE, key) for key in ("max_abs_diff", "parameters_before")),
    ],
)
def test_missing_keys_are_named(results: Results, path: tuple[str | int, ...], key: str) -> None:
    copied: Any = copy.deepcopy(results)
    place = copied
    for step in path:
        place = place[step]
    del place[key]
    with pytest.raises(InlayError, match=f"with the key '{key}'"):
        validate_results(copied)


@pytest.mark.parametrize("value", [None, [], "results", {1: 2}])
def test_something_else_altogether_is_refused(value: object) -> None:
    with pytest.raises(InlayError, match="results must be an object"):
        validate_results(value)
