import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from inlay import backbones, branches
from inlay.errors import InlayError
from inlay.increments.classifier import Classifier
from inlay.increments.increment import System
from inlay.increments.outputs import Outputs
from inlay.increments.proxy_head import ProxyHead
from inlay.increments.proxy_network import layer_groups, nca, nca_of_proxies, proxy_head
from inlay.increments.systems import afc, podnet
from proxy_stages import GROUPS, NEW, OLD, Watch, batch_of, exact_stage

GATES = ["full", "frozen", "imm", "constant", "amm"]
SYSTEMS = pytest.mark.parametrize("system", [podnet.FAIR, afc.FAIR], ids=lambda system: system.name)


@pytest.mark.parametrize(
    ("name", "groups"), [("resnet8", GROUPS), ("resnet32-rebuffi", (*GROUPS, "layer4")), ("resnet32-lucir", GROUPS)]
)
def test_groups_are_the_children_called_layer(name: str, groups: tuple[str, ...]) -> None:
    assert layer_groups(backbones.build(name, 1)) == groups


@pytest.mark.parametrize("network", [nn.Sequential(nn.Flatten()), nn.ModuleDict({"layer1": nn.Flatten()})])
def test_a_network_without_a_sequence_of_groups_is_refused(network: nn.Module) -> None:
    with pytest.raises(InlayError, match="write resnet32-rebuffi"):
        layer_groups(network)


def test_new_proxies_are_the_images_where_there_are_fewer_than_proxies() -> None:
    stage = exact_stage(podnet.FAIR, images=4)
    head, before = proxy_head(stage), stage.start.head
    assert isinstance(before, ProxyHead)
    assert torch.equal(head.old, before.weights)
    assert head.scale == before.scale
    assert [name for name, value in head.named_parameters() if not value.requires_grad] == ["old"]
    length = sum(float(proxy.norm()) for proxies in before.weights for proxy in proxies) / (10 * OLD)
    with torch.no_grad():
        features = stage.start.network(stage.form.prepare(stage.pixels))
    for place in range(NEW):
        units = F.normalize(features[stage.labels == OLD + place])
        found = F.normalize(head.novel[place].detach())
        distances = torch.cdist(found, units)
        assert distances.min(dim=1).values.max() < 1e-6
        assert set(distances.argmin(dim=1).tolist()) == {0, 1, 2, 3}
        assert head.novel[place].norm(dim=1).tolist() == pytest.approx([length] * 10)


def test_tuning_differs_from_training_in_the_scale_alone() -> None:
    stage = exact_stage(podnet.FAIR)
    head = proxy_head(stage).requires_grad_(True)
    classifier = Classifier(stage.start.network, head)
    values, gradients = [], []
    for loss in (nca, nca_of_proxies):
        value = loss(Outputs(stage, classifier, batch_of(stage)))
        values.append(value.item())
        gradients.append(torch.autograd.grad(value, [head.old, head.novel, head.scale], allow_unused=True))
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    assert torch.allclose(gradients[0][0], gradients[1][0]) and torch.allclose(gradients[0][1], gradients[1][1])
    assert gradients[0][2] != 0
    assert gradients[1][2] is None


@SYSTEMS
@pytest.mark.parametrize("gate", GATES)
def test_a_stage_in_float64_merges_exactly_and_does_not_grow(system: System, gate: str) -> None:
    stage = exact_stage(system, branch__gate=gate)
    inputs = stage.form.prepare(stage.pixels)
    assert stage.before is not None
    watch = Watch(inputs)
    learned = system.learn(stage, watch)
    assert list(watch.works) == ["the losses", "the head"]
    with torch.no_grad():
        assert torch.allclose(watch.scores["the losses"][:, :OLD], stage.before(inputs), atol=1e-12, rtol=0)
        trained = watch.works["the head"].classifier.eval()(inputs)
        assert (trained - watch.scores["the losses"]).abs().max() > 1e-3
        assert torch.allclose(learned.classifier(inputs), trained, atol=1e-11, rtol=0)
    counts = [branches.folded_parameters(c.network, inputs[:2]) for c in (stage.before, learned.classifier)]
    assert counts[0] == counts[1]
    assert not any(p.requires_grad for p in learned.classifier.parameters()) and not learned.classifier.training
    assert (learned.merge is None) == (gate in ("full", "frozen"))


@pytest.mark.parametrize("gate", ["full", "frozen", "amm"])
def test_old_proxies_rest_while_the_network_is_trained(gate: str) -> None:
    stage = exact_stage(podnet.FAIR, branch__gate=gate, tuning__epochs=0)
    head, before = proxy_head(stage), stage.start.head
    learned = podnet.FAIR.learn(stage, Watch()).classifier.head
    assert isinstance(learned, ProxyHead) and isinstance(before, ProxyHead)
    assert torch.equal(learned.old, before.weights)
    assert not torch.equal(learned.novel, head.novel)
    assert learned.scale != before.scale


@pytest.mark.parametrize("gate", ["full", "frozen", "amm"])
def test_the_tuning_trains_all_proxies_and_nothing_else(gate: str) -> None:
    stage = exact_stage(podnet.FAIR, branch__gate=gate, stage__epochs=0)
    head = proxy_head(stage)
    network = {name: value.clone() for name, value in stage.opened().named_parameters()}
    watch = Watch()
    learned = podnet.FAIR.learn(stage, watch).classifier.head
    assert isinstance(learned, ProxyHead)
    for old, new in ((head.old, learned.old), (head.novel, learned.novel)):
        assert ((old - new).abs().amax(dim=2) > 0).all()
    assert learned.scale == head.scale
    for name, value in watch.works["the head"].classifier.network.named_parameters():
        assert torch.equal(value, network[name])
    assert torch.bincount(watch.images["the head"].labels).tolist() == [4] * (OLD + NEW)


def test_the_tuning_estimates_batch_norms_anew() -> None:
    stage = exact_stage(podnet.FAIR, stage__epochs=0)
    before = copy.deepcopy(stage.start.network)
    after = podnet.FAIR.learn(stage, Watch()).classifier.network
    norms = [(name, module) for name, module in before.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    for name, module in norms:
        assert not torch.equal(module.get_buffer("running_mean"), after.get_buffer(f"{name}.running_mean"))
