"""Rehearsals tell what a stage will need and leave no trace."""

import math
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn

from inlay import Learner, backbones
from inlay.errors import InlayError, Interrupted
from inlay.rehearsal import Rehearsal
from inlay.settings import preset
from tiny_digits import News, digits
from tiny_runs import BASE, FIRST, SECOND, base_learner, quick_learner, reopened, same_weights

# 120 images in batches of 40, 80 images in batches of 20; 2 epochs each.
BASE_STEPS, FIRST_STEPS = 6, 8


class Slow(nn.Module):
    """A network that takes its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.inner = backbones.build("resnet8", 1, torch.Generator().manual_seed(0))
        self.seconds = seconds

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            time.sleep(self.seconds)
        features: Tensor = self.inner(images)
        return features


class Stopped(Slow):
    """A network under which Ctrl-C is pressed while it trains."""

    pressing = True

    def forward(self, images: Tensor) -> Tensor:
        if self.training and self.pressing:
            signal.raise_signal(signal.SIGINT)
        return super().forward(images)


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    """All files below a folder with the time of their last change, and the folders."""
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns) for path in folder.rglob("*")
    }


def rows(rehearsal: Rehearsal) -> dict[str, str]:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(rehearsal.table())
    parts = [line.strip().split("  ", 1) for line in captured.get().splitlines()]
    return {name: text.strip() for name, text in parts}


@pytest.fixture(scope="module")
def base_rehearsal() -> Rehearsal:
    return quick_learner().rehearse_fit(digits(BASE))


def test_base_stage(base_rehearsal: Rehearsal) -> None:
    found = base_rehearsal
    assert (found.stage, found.kind, found.classes, found.images) == (0, "base", 3, 120)
    assert (found.shape, found.image_bytes, found.place) == ((1, 8, 8), 120 * 64, "in host memory")
    assert (found.epochs, found.batch, found.steps, found.steps_done) == (2, 40, BASE_STEPS, 0)
    assert (found.pace, found.precision, found.device, found.processes) == ("eager", "float32", "cpu", 1)


def test_discovery_stage() -> None:
    found = base_learner().rehearse_discover(digits(FIRST), classes=2)
    assert (found.stage, found.kind, found.classes, found.images) == (1, "discovery", 2, 80)
    assert (found.epochs, found.batch, found.steps, found.steps_done) == (2, 20, FIRST_STEPS, 0)


def test_sums(base_rehearsal: Rehearsal) -> None:
    found = replace(
        base_rehearsal, steps=100, steps_done=10, step_seconds=3.0, preparation_seconds=5, warm_up_seconds=7
    )
    assert found.training_seconds == 90 * 3.0
    # 120 images are 3 batches of 40, and a pass forward is a third of a step.
    assert found.after_seconds == pytest.approx(3.0)
    assert found.total_seconds == pytest.approx(5 + 7 + 270 + 3)


def test_time_of_a_step_is_measured() -> None:
    slow = quick_learner(backbone=Slow(0.05)).rehearse_fit(digits(BASE))
    assert slow.step_seconds >= 0.05
    assert slow.warm_up_seconds >= 0.05
    assert slow.training_seconds == slow.steps * slow.step_seconds


def test_training_of_a_single_step() -> None:
    changes = {"base.training.epochs": 1, "base.training.batch": 120}
    learner = quick_learner(backbone=Slow(0.05))
    learner.settings = learner.settings.changed(changes)
    found = learner.rehearse_fit(digits(BASE))
    assert found.steps == 1
    assert 0.05 <= found.step_seconds < math.inf


def test_memory_of_the_process_is_measured() -> None:
    before = quick_learner().rehearse_fit(digits(BASE)).peak_bytes
    block = torch.ones(before, dtype=torch.uint8)
    assert quick_learner().rehearse_fit(digits(BASE)).peak_bytes > 1.2 * len(block)


def test_asked_precision_is_told() -> None:
    learner = quick_learner()
    learner.settings = learner.settings.changed({"base.training.precision": "bfloat16"})
    assert learner.rehearse_fit(digits(BASE)).precision == "bfloat16"


def test_files_that_are_streamed(tmp_path: Path) -> None:
    images = digits(BASE, 0, 5)
    assert images.labels is not None
    for number, (image, label) in enumerate(zip(images.images, images.labels.tolist(), strict=True)):
        (tmp_path / BASE[label]).mkdir(exist_ok=True)
        Image.fromarray(image[0].numpy()).save(tmp_path / BASE[label] / f"{number}.png")
    streamed = quick_learner().rehearse_fit(tmp_path, stream=True)
    assert streamed.place == "decoded from disk while training"
    assert streamed.image_bytes == 15 * 3 * 64
    assert quick_learner().rehearse_fit(tmp_path, stream=False).place == "in host memory"


def test_fit_is_the_same_after_a_rehearsal(tmp_path: Path) -> None:
    learner = quick_learner(run=tmp_path / "run")
    state = torch.get_rng_state()
    learner.rehearse_fit(digits(BASE))
    assert torch.equal(torch.get_rng_state(), state)
    assert learner.stages == ()
    assert list(tmp_path.iterdir()) == []
    learner.fit(digits(BASE))
    assert same_weights(learner, base_learner())


def test_own_module_is_not_changed() -> None:
    module = Slow(0.0)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    quick_learner(backbone=module).rehearse_fit(digits(BASE))
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_discovery_is_the_same_after_a_rehearsal(tmp_path: Path) -> None:
    learner, _ = reopened(base_learner(), tmp_path / "run")
    straight, _ = reopened(base_learner(), tmp_path / "straight")
    before, state = everything(tmp_path / "run"), torch.get_rng_state()
    learner.rehearse_discover(digits(SECOND), classes=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert everything(tmp_path / "run") == before
    assert same_weights(learner, straight) and len(learner.stages) == 1
    learner.discover(digits(FIRST), classes=2)
    straight.discover(digits(FIRST), classes=2)
    assert same_weights(learner, straight)


def test_rehearsal_refuses_what_fit_refuses(tmp_path: Path) -> None:
    with pytest.raises(InlayError, match="fit needs labels"):
        quick_learner().rehearse_fit(digits(BASE).without_labels())
    base_learner().save(tmp_path / "run")
    with pytest.raises(InlayError, match="already holds a run"):
        quick_learner(run=tmp_path / "run").rehearse_fit(digits(FIRST))
    with pytest.raises(InlayError, match="has its base classes already"):
        base_learner().rehearse_fit(digits(BASE))


def test_rehearsal_refuses_what_discover_refuses(tmp_path: Path) -> None:
    with pytest.raises(InlayError, match="knows no classes yet"):
        quick_learner().rehearse_discover(digits(FIRST), classes=2)
    learner, _ = reopened(base_learner(), tmp_path / "run")
    with pytest.raises(InlayError, match="must be at least 1"):
        learner.rehearse_discover(digits(FIRST), classes=0)
    learner.settings = learner.settings.changed({"replay.statistics": "shared"})
    with pytest.raises(InlayError, match=r"set replay\.statistics=full"):
        learner.rehearse_discover(digits(FIRST), classes=2)


def test_a_method_without_training_is_not_rehearsed(tmp_path: Path) -> None:
    learner, _ = reopened(base_learner(), tmp_path / "run")
    learner.settings = preset("kmeans")
    with pytest.raises(InlayError, match="trains nothing"):
        learner.rehearse_discover(digits(FIRST), classes=2)


def test_a_method_with_parts_of_its_own_is_rehearsed(tmp_path: Path) -> None:
    learner, _ = reopened(base_learner(), tmp_path / "run")
    quick = {"training.epochs": 2, "training.batch": 20, "replay.statistics": "full"}
    learner.settings = preset("restune").changed(quick)
    found = learner.rehearse_discover(digits(FIRST), classes=2)
    assert (found.kind, found.steps) == ("discovery", FIRST_STEPS)


def test_finished_stages_are_told_of(tmp_path: Path) -> None:
    base_learner().save(tmp_path / "run")
    news = News()
    learner = quick_learner(run=tmp_path / "run", progress=news)
    assert learner.rehearse_fit(digits(BASE)).steps == BASE_STEPS
    assert news.notes == ["The base stage is finished already; fit would do nothing."]
    assert learner.stages == ()
    learner, news = reopened(base_learner(), tmp_path / "other")
    learner.discover(digits(FIRST).without_labels(), classes=2)
    learner.rehearse_discover(digits(FIRST).without_labels(), classes=2)
    assert news.notes[-1] == "These images were learned in stage 1 already; discover would do nothing."


def test_stopped_rehearsal_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match=r"Stopped the rehearsal; nothing was written\."):
        quick_learner(backbone=Stopped(0.0), run=tmp_path / "run").rehearse_fit(digits(BASE))
    assert list(tmp_path.iterdir()) == []


def test_steps_of_a_stopped_stage_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def learner() -> Learner:
        return quick_learner(backbone=Stopped(0.0), run=tmp_path / "run")

    with pytest.raises(Interrupted, match=rf"Stopped the base stage at step 1 of {BASE_STEPS}"):
        learner().fit(digits(BASE))
    before = everything(tmp_path)
    monkeypatch.setattr(Stopped, "pressing", False)
    found = learner().rehearse_fit(digits(BASE))
    assert (found.steps, found.steps_done) == (BASE_STEPS, 1)
    assert found.training_seconds == (BASE_STEPS - 1) * found.step_seconds
    assert learner().rehearse_fit(digits(BASE), restart=True).steps_done == 0
    other = learner()
    other.settings = other.settings.changed({"base.training.epochs": 3})
    with pytest.raises(InlayError, match="holds unfinished work with other images or settings"):
        other.rehearse_fit(digits(BASE))
    assert other.rehearse_fit(digits(BASE), restart=True).steps == BASE_STEPS / 2 * 3
    assert everything(tmp_path) == before


def test_table(base_rehearsal: Rehearsal) -> None:
    found = replace(
        base_rehearsal,
        shape=(3, 64, 96),
        images=1_200_000,
        batch=512,
        processes=4,
        steps=100_000,
        steps_done=400,
        device="cuda:0",
        place="on the device",
        peak_bytes=12_345_678_901,
        preparation_seconds=1.234,
        warm_up_seconds=61.0,
        step_seconds=0.1024,
    )
    assert rows(found) == {
        "stage": "0",
        "kind": "base",
        "images": "1,200,000",
        "size": "96×64, 3 channel(s)",
        "classes": "3",
        "epochs": "2",
        "batch": "512, 128 in each of 4 processes",
        "steps": "100,000, 400 of them done before",
        "pace": "eager",
        "precision": "float32",
        "device": "cuda:0",
        "images live": "on the device",
        "peak memory of the GPU": "12.3 GB",
        "memory of all images": "22.1 GB",
        "preparation": "1.23 s",
        "compile and warm-up": "1 min 1 s",
        "one step": "102 ms, 5,000 images/s",
        "training": "2 h 49 min",
        "after training": "about 1 min 20 s",
        "in all": "about 2 h 52 min",
    }
    assert rows(base_rehearsal)["batch"] == "40"
    assert rows(base_rehearsal)["steps"] == "6"
    assert rows(base_rehearsal)["memory of all images"] == "7.68 kB"
    assert "peak memory of the process" in rows(base_rehearsal)
