import json
import re
from pathlib import Path
from typing import Any

import pytest

import inlay
from inlay.demo import DemoOutcome, run_demo
from inlay.demo.recipe import demo_stages
from inlay.errors import InlayError
from inlay.review import validate_results
from tiny_digits import News

SEED = 2
COMMAND = "inlay demo --seed 2"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> DemoOutcome:
    return run_demo(tmp_path_factory.mktemp("demo") / "first", SEED, command=COMMAND)


@pytest.fixture(scope="module")
def results(outcome: DemoOutcome) -> Any:
    return json.loads(outcome.results_file.read_text())


class StoppedBefore(News):
    """Stops the work when a piece of it is to begin."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.begun: list[str] = []

    def start(self, name: str, total: int, done: int) -> None:
        self.begun.append(name)
        if name == self.name:
            raise KeyboardInterrupt


def test_results_are_valid_and_as_returned(outcome: DemoOutcome, results: Any) -> None:
    validate_results(results)
    assert results == outcome.results


def test_results_have_the_promised_keys(results: Any) -> None:
    assert results.keys() == {"command", "seed", "versions", "seconds", "stages"}
    assert results["command"] == COMMAND
    assert results["seed"] == SEED
    assert results["versions"].keys() == {"inlay", "torch", "python"}
    stage_keys = {"name", "kind", "classes", "metrics", "merge", "baselines", "seconds"}
    assert [stage.keys() - stage_keys for stage in results["stages"]] == [set(), set(), set()]
    assert [stage_keys - stage.keys() for stage in results["stages"]] == [set(), set(), set()]
    metrics = {"old", "new", "all", "groups", "new_head", "old_head", "nmi", "ari", "matched_on"}
    assert [stage["metrics"].keys() for stage in results["stages"]] == [metrics] * 3


def test_stages_are_those_of_the_split(results: Any) -> None:
    stages = demo_stages(SEED)
    assert [stage["name"] for stage in results["stages"]] == ["base", "stage 1", "stage 2"]
    assert [stage["kind"] for stage in results["stages"]] == ["base", "novel", "novel"]
    assert [stage["classes"] for stage in results["stages"]] == [list(stages.class_names(k)) for k in range(3)]
    assert sorted(name for stage in results["stages"] for name in stage["classes"]) == list("0123456789")
    assert [stage["metrics"]["matched_on"] for stage in results["stages"]] == [None, "train", "train"]


def test_merging_leaves_the_size_of_the_network(results: Any) -> None:
    assert results["stages"][0]["merge"] is None
    sizes = set()
    for stage in results["stages"][1:]:
        merge = stage["merge"]
        assert merge["parameters_before"] == merge["parameters_after"] < merge["parameters_hybrid"]
        assert merge["max_abs_diff"] < 1e-4
        sizes.add(merge["parameters_after"])
    assert len(sizes) == 1


def test_every_discovery_stage_has_every_baseline(results: Any) -> None:
    for stage in results["stages"][1:]:
        baselines = stage["baselines"]
        assert {name: set(scores) for name, scores in baselines.items()} == {
            "kmeans_pixels": {"new_head"},
            "kmeans_features": {"new_head", "base"},
            "forgetful": {"old", "new", "all"},
            "supervised": {"old", "new", "all"},
        }
        assert baselines["kmeans_features"]["base"] in ("own", "plain")
        assert None not in [value for scores in baselines.values() for value in scores.values()]


def test_scores_are_those_of_the_run(outcome: DemoOutcome, results: Any) -> None:
    learner = inlay.load(outcome.run)
    scores = learner.evaluate(demo_stages(SEED).test(2)).to_json()
    assert scores == {**results["stages"][2]["metrics"], "counts": {"old": 140, "new": 60, "all": 200}}
    assert [record.seconds for record in learner.stages] == [stage["seconds"] for stage in results["stages"]]


def test_report_needs_no_other_file(outcome: DemoOutcome) -> None:
    page = outcome.report.read_text(encoding="utf-8")
    assert outcome.report.name == "report.html"
    assert page.lower().startswith("<!doctype html>")
    assert COMMAND in page
    assert "data:image/png;base64," in page
    named = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", page) + re.findall(r"""url\(["']?([^"')]*)""", page)
    assert [address for address in named if not address.startswith(("data:", "#"))] == []
    assert re.findall(r"<link|<script|<iframe|@import", page) == []


def test_finished_demonstration_is_not_trained_again(tmp_path: Path) -> None:
    first = run_demo(tmp_path / "demo", SEED, baselines=False)
    news = StoppedBefore("")
    second = run_demo(tmp_path / "demo", SEED, baselines=False, progress=news)
    assert news.begun == []
    assert second.results["stages"] == first.results["stages"]
    assert [stage["baselines"] for stage in second.results["stages"]] == [None] * 3


def test_stopped_demonstration_is_taken_up_to_the_same_end(outcome: DemoOutcome, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_demo(tmp_path / "demo", SEED, progress=StoppedBefore("stage 2"))
    learned = inlay.load(tmp_path / "demo" / "run.inlay").stages
    news = StoppedBefore("")
    again = run_demo(tmp_path / "demo", SEED, baselines=False, progress=news)
    assert news.begun == ["stage 2"]
    assert [stage["seconds"] for stage in again.results["stages"][:2]] == [record.seconds for record in learned]
    assert [stage["metrics"] for stage in again.results["stages"]] == [
        stage["metrics"] for stage in outcome.results["stages"]
    ]


def test_demonstration_with_another_seed_is_not_taken_up(outcome: DemoOutcome) -> None:
    folder = outcome.run.parent
    before = outcome.results_file.read_bytes()
    with pytest.raises(InlayError, match="another seed or settings; choose another --out"):
        run_demo(folder, SEED + 1, baselines=False)
    assert outcome.results_file.read_bytes() == before
