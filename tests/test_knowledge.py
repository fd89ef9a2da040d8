import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inlay import branches
from inlay.backbones import build
from inlay.errors import InlayError
from inlay.knowledge import InputForm, Knowledge, StageRecord
from inlay.pipeline import Workshop, learn_base, learn_stage
from tiny_digits import digits
from tiny_stage import quick

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def base() -> Knowledge:
    return learn_base(digits(["0", "1", "2"]), "resnet8", quick(), 1, Workshop())


@pytest.fixture(scope="module", params=["base", "folded base", "amm", "aff", "full"])
def knowledge(base: Knowledge, request: pytest.FixtureRequest) -> Knowledge:
    if request.param == "base":
        return base
    if request.param == "folded base":
        return replace(base, network=branches.fold(base.network, base.form.example()))
    settings = quick(changes={"branch.gate": request.param})
    return learn_stage(base, digits(["3", "4"]).without_labels(), 2, settings, Workshop())


def through_files(knowledge: Knowledge) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, facts = knowledge.to_files()
    return tensors, json.loads(json.dumps(facts))


def test_files_hold_everything(knowledge: Knowledge) -> None:
    again = Knowledge.from_files(*through_files(knowledge), CPU)
    images = digits(["0", "3"], 50, 60)
    assert torch.equal(again.logits(images), knowledge.logits(images))
    assert again.network.state_dict().keys() == knowledge.network.state_dict().keys()
    assert again.registry == knowledge.registry and again.form == knowledge.form
    assert again.settings == knowledge.settings and again.seed == 1 and again.backbone == "resnet8"
    assert again.record == knowledge.record
    first, second = knowledge.statistics.tensors(), again.statistics.tensors()
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_what_is_read_is_frozen(knowledge: Knowledge) -> None:
    again = Knowledge.from_files(*through_files(knowledge), CPU)
    assert not again.network.training
    assert not any(p.requires_grad for p in (*again.network.parameters(), *again.head.parameters()))


def test_reading_draws_nothing_from_the_global_generator(base: Knowledge) -> None:
    state = torch.get_rng_state()
    Knowledge.from_files(*through_files(base), CPU)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_module_of_the_users_must_be_given_again() -> None:
    module = build("resnet8", 1, torch.Generator().manual_seed(0))
    own = learn_base(digits(["0", "1"]), module, quick(), 1, Workshop())
    files = through_files(own)
    with pytest.raises(InlayError, match=r"a backbone of your own; pass it: inlay\.load\(run, backbone=module\)"):
        Knowledge.from_files(*files, CPU)
    with pytest.raises(InlayError, match="build the backbone that was saved"):
        Knowledge.from_files(*files, CPU, build("resnet20", 1, torch.Generator()))
    with pytest.raises(InlayError, match="The saved weights do not fit this backbone"):
        Knowledge.from_files(*files, CPU, build("resnet8x2", 1, torch.Generator()))
    other = build("resnet8", 1, torch.Generator().manual_seed(9))
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    images = digits(["0", "1"], 50, 60)
    assert torch.equal(Knowledge.from_files(*files, CPU, other).logits(images), own.logits(images))
    assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())


def test_logits_are_head_times_features_of_normalised_images(base: Knowledge) -> None:
    images = digits(["0", "1"], 50, 55)
    (mean,), (std,) = base.form.mean, base.form.std
    with torch.no_grad():
        expected = base.head(base.network((images.images.float() / 255 - mean) / std))
    torch.testing.assert_close(base.logits(images), expected)
    assert not base.logits(images).requires_grad


def test_the_input_form_is_measured_on_the_base_images(base: Knowledge) -> None:
    values = digits(["0", "1", "2"]).images.double() / 255
    assert (base.form.size, base.form.channels) == ((8, 8), 1)
    assert base.form.mean[0] == pytest.approx(values.mean().item())
    assert base.form.std[0] == pytest.approx(values.std(correction=0).item())
    assert base.form.example().shape == (2, 1, 8, 8)


def test_records_and_forms_survive_json() -> None:
    record = StageRecord(2, "novel", ("a", "b"), 3, 1.5, ("x", "y", "z"), (0, 1, 0), {"max_abs_diff": 1e-6})
    assert StageRecord.from_json(json.loads(json.dumps(vars(record)))) == record
    form = InputForm((8, 9), 3, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    images = torch.full((1, 3, 8, 9), 51, dtype=torch.uint8)
    torch.testing.assert_close(form.prepare(images)[0, :, 0, 0], torch.tensor([0.25, 0.0, -1 / 6]))


def test_a_module_without_batch_norm_is_refused() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(InlayError, match=r"No layer of the network gets a branch.*no batch norm"):
        learn_base(digits(["0", "1"]), module, quick(), 1, Workshop())
