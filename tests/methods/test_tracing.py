"""Steps of all stages of Table 1 can be compiled as one graph and recorded, with the settings of the benchmark.

Everything is made as a run makes it, and nothing is looked at before the first step.
"""

import copy
import dataclasses
import functools

import pytest
import torch

from inlay.bench import Run, variations
from inlay.bench.base_stage import reduced
from inlay.bench.plan import Choice
from inlay.bench.recipe import settings_of
from inlay.bench.systems import SYSTEMS
from inlay.bench.variants import GROUPS
from inlay.knowledge import Knowledge
from inlay.pipeline import Workshop, learn_base, learn_stage
from inlay.settings import BaseSettings, Settings, preset
from step_watch import Seen, check_one_graph, check_recordable, check_recorded, check_whole, looking
from tiny_digits import digits
from tiny_stage import batch_of, discovery_work, quick, tiny_task

pytestmark = pytest.mark.usefixtures("compiled_anew")

SHORT = {
    "base.training.epochs": 1,
    "base.training.batch": 20,
    "training.epochs": 2,
    "training.batch": 16,
    "classifier.refit_per_class": 20,
}
RUNS = [
    *(Run(name, "cifar100", 0) for name, found in SYSTEMS.items() if name != "kmeans" and not found.supervised),
    *variations(Choice(None, ("cifar10", "cifar100"), (0,)), list(GROUPS)),
]
SYSTEM_RUNS = [run for run in RUNS if run.name is None]
LATER_RUNS = [run for run in SYSTEM_RUNS if SYSTEMS[run.system].goes_on]
BASE_RUNS = [
    Run("inlay", dataset, 0, base=base)
    for dataset in ("cifar10", "cifar100", "tinyimagenet")
    for base in ("reference", "ours")
]


def _label(run: Run) -> str:
    return run.label


def _short(run: Run) -> Settings:
    """The settings of a run for few small images; the network has three groups, where that of the run has four."""
    settings = settings_of(run).changed(SHORT)
    include = tuple(pattern.replace("layer4", "layer3") for pattern in settings.branch.include)
    return settings.changed({"branch.include": include})


@functools.cache
def _learned_base(base: BaseSettings, device: str) -> Knowledge:
    workshop = Workshop(torch.device(device))
    return learn_base(digits(["0", "1", "2"], last=16), "resnet8", _for_base(base), 3, workshop)


def _for_base(base: BaseSettings) -> Settings:
    common = preset("kmeans").changed({"replay.statistics": "full"})
    return dataclasses.replace(common, base=base)


def _known(settings: Settings, device: str = "cpu") -> Knowledge:
    """What a run knows after its base stage, read anew."""
    known = _learned_base(settings.base, device)
    statistics = reduced(known.statistics, settings.replay.statistics).to(device)
    return dataclasses.replace(known, statistics=statistics, network=copy.deepcopy(known.network), settings=settings)


def _discover(settings: Settings, known: Knowledge, names: list[str], workshop: Workshop) -> Knowledge:
    return learn_stage(known, digits(names, last=16).without_labels(), len(names), settings, workshop)


@pytest.mark.parametrize("run", SYSTEM_RUNS, ids=_label)
def test_the_stage_of_every_system_is_one_graph(run: Run) -> None:
    settings = _short(run)
    with pytest.raises(Seen):
        _discover(settings, _known(settings), ["4", "5"], looking(check_whole, runs=False))


@pytest.mark.parametrize("run", RUNS, ids=_label)
def test_the_stage_of_every_system_and_variant_can_be_recorded(run: Run) -> None:
    settings = _short(run)
    with pytest.raises(Seen):
        _discover(settings, _known(settings), ["4", "5"], looking(check_recordable, runs=False))


@pytest.mark.parametrize("run", LATER_RUNS, ids=_label)
def test_stages_after_the_first_can_be_recorded(run: Run) -> None:
    settings = _short(run)
    after = _discover(settings, _known(settings), ["4", "5"], Workshop())
    with pytest.raises(Seen):
        _discover(settings, after, ["6", "7"], looking(check_recordable, runs=False))


@pytest.mark.parametrize("run", LATER_RUNS, ids=_label)
def test_stages_with_a_class_that_no_image_was_given_to_can_be_recorded(run: Run) -> None:
    settings = _short(run)
    known = _known(settings)
    tensors = known.statistics.tensors()
    for part in ("counts", "mean"):
        tensors[part][1] = 0
    known = dataclasses.replace(known, statistics=type(known.statistics).from_tensors(tensors))
    with pytest.raises(Seen):
        _discover(settings, known, ["4", "5"], looking(check_recordable, runs=False))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("run", RUNS, ids=_label)
def test_stages_are_recorded_on_a_gpu(run: Run) -> None:
    settings, workshop = _short(run), looking(check_recorded, device="cuda:0")
    after = _discover(settings, _known(settings, "cuda:0"), ["4", "5"], workshop)
    if run in LATER_RUNS:
        _discover(settings, after, ["6", "7"], workshop)


@pytest.mark.parametrize("run", BASE_RUNS, ids=_label)
def test_every_base_stage_can_be_recorded(run: Run) -> None:
    base = _short(run).base
    with pytest.raises(Seen):
        learn_base(
            digits(["0", "1", "2"], last=16), "resnet8", _for_base(base), 3, looking(check_recordable, runs=False)
        )


def test_a_base_stage_is_one_graph() -> None:
    base = _short(BASE_RUNS[1]).base
    with pytest.raises(Seen):
        learn_base(digits(["0", "1", "2"], last=16), "resnet8", _for_base(base), 3, looking(check_whole, runs=False))


def test_a_stage_with_terms_that_no_system_has_is_one_graph() -> None:
    task = tiny_task(quick("inlay", {"assignment.information": 1.0, "assignment.partner_share": 0.3}))
    check_one_graph(discovery_work(task), batch_of(task))
