import pytest

from inlay.review.results import Metrics, Results


def metrics_of(old: float, new: float | None, groups: dict[str, float | None]) -> Metrics:
    return {
        "old": old,
        "new": new,
        "all": 0.8127,
        "groups": groups,
        "new_head": None if new is None else 0.7654,
        "old_head": 0.9753,
        "nmi": None if new is None else 0.654,
        "ari": None if new is None else -0.012,
        "matched_on": None if new is None else "train",
    }


@pytest.fixture
def results() -> Results:
    return {
        "command": "inlay demo --seed 3",
        "seed": 3,
        "versions": {"inlay": "0.1.0", "torch": "2.11.0"},
        "seconds": 75.0,
        "stages": [
            {
                "name": "base",
                "kind": "base",
                "classes": ["zero", "one", "two"],
                "metrics": metrics_of(0.9876, None, {"base": 0.9876}),
                "merge": None,
                "baselines": None,
                "seconds": 12.34,
            },
            {
                "name": "stage1",
                "kind": "novel",
                "classes": ["found-a", "found-b"],
                "metrics": metrics_of(0.9432, 0.6789, {"base": 0.9432, "stage1": 0.6789}),
                "merge": {
                    "max_abs_diff": 2.5e-6,
                    "parameters_before": 1234567,
                    "parameters_hybrid": 2345678,
                    "parameters_after": 1235081,
                },
                "baselines": {
                    "kmeans_pixels": {"new_head": 0.4321},
                    "kmeans_features": {"new_head": 0.5432, "base": "own"},
                    "forgetful": {"old": 0.0123, "new": 0.7012, "all": 0.3456},
                    "supervised": {"old": 0.9912, "new": 0.9823, "all": 0.9876},
                },
                "seconds": 62.66,
            },
        ],
    }
