import copy
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from inlay import branches
from inlay.backbones import build
from inlay.backbones.resnet import resnet
from inlay.backbones.twin import ResidualStudentHead, TwinNetwork, old_part, padded_head, twin_part
from inlay.discovery.projection import StudentHead
from inlay.errors import InlayError
from inlay.heads import linear

_D = 8


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _images() -> Tensor:
    return torch.randn(3, 1, 9, 9, generator=_generator(9), dtype=torch.float64)


def _network(projection: bool = False) -> nn.Sequential:
    """A residual network whose norms have seen images and whose parameters are no longer the initial ones."""
    network = resnet(1, [2, 4, _D], 1, projection=projection, generator=_generator(0)).double()
    network(_images())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=_generator(1), dtype=torch.float64))
    return network


@pytest.mark.parametrize("projection", [False, True])
def test_old_features_are_those_of_the_network(projection: bool) -> None:
    network = _network(projection).eval()
    features = TwinNetwork(network, _generator(2))(_images())
    assert features.shape == (3, 2 * _D)
    assert torch.equal(old_part(features), network(_images()))


@pytest.mark.parametrize("projection", [False, True])
def test_twin_features_are_those_of_the_network_with_its_last_group_new(projection: bool) -> None:
    network = _network(projection).eval()
    fresh = resnet(1, [2, 4, _D], 1, projection=projection, generator=_generator(0)).double().eval()
    for name, module in fresh.get_submodule("layer3").named_modules():
        if isinstance(module, nn.Conv2d):
            standard = (2 / (module.out_channels * module.kernel_size[0] ** 2)) ** 0.5
            twin = TwinNetwork(network, _generator(2)).twin.get_submodule(f"layer3.{name}")
            assert isinstance(twin, nn.Conv2d)
            assert twin.weight.std().item() == pytest.approx(standard, rel=0.3)
            module.weight = twin.weight
    expected = nn.Sequential(network[:5], fresh[5:])(_images())
    assert torch.allclose(twin_part(TwinNetwork(network, _generator(2))(_images())), expected, atol=1e-12)


def test_state_names_and_sizes() -> None:
    network = _network()
    state = TwinNetwork(network, _generator(2)).state_dict()
    theirs = network.state_dict()
    shared = {name for name in theirs if not name.startswith("layer3.")}
    last = set(theirs) - shared
    expected = {f"shared.{name}" for name in shared} | {f"{part}.{name}" for part in ("old", "twin") for name in last}
    assert set(state) == expected
    assert all(state[f"twin.{name}"].shape == theirs[name].shape for name in last)


def test_the_given_network_is_copied() -> None:
    network = _network()
    before = copy.deepcopy(network.state_dict())
    twin = TwinNetwork(network, _generator(2))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    twin(_images())
    after = network.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_twin_is_a_function_of_its_generator() -> None:
    state = torch.get_rng_state()
    first, again, other = (TwinNetwork(_network(), _generator(seed)).state_dict() for seed in (2, 2, 3))
    assert torch.equal(torch.get_rng_state(), state)
    kernel = "twin.layer3.0.conv1.weight"
    assert torch.equal(first[kernel], again[kernel])
    assert not torch.equal(first[kernel], other[kernel])
    assert not torch.equal(first[kernel], first[kernel.replace("twin", "old")])
    assert not torch.equal(first[kernel], first[kernel.replace("conv1", "conv2")][:, :4])


def test_twin_of_a_frozen_network_can_be_trained() -> None:
    twin = TwinNetwork(_network().requires_grad_(False), _generator(2))
    twin(_images()).sum().backward()
    trained = {name.split(".")[0] for name, parameter in twin.named_parameters() if parameter.grad is not None}
    assert trained == {"twin"}


def test_biases_of_the_twin_start_at_zero() -> None:
    group = nn.Sequential(nn.Conv2d(2, 3, 1, device="meta").to_empty(device="cpu"), nn.BatchNorm2d(3))
    for parameter in group.parameters():
        nn.init.constant_(parameter, 5.0)
    network = nn.Sequential(OrderedDict(layer1=group, flatten=nn.Flatten()))
    state = TwinNetwork(network, _generator(0)).state_dict()
    assert torch.equal(state["twin.layer1.0.bias"], torch.zeros(3))
    assert torch.equal(state["twin.layer1.1.weight"], torch.ones(3))
    assert torch.equal(state["twin.layer1.1.bias"], torch.zeros(3))
    assert torch.equal(state["old.layer1.0.bias"], torch.full((3,), 5.0))


@pytest.mark.parametrize("name", ["resnet8", "resnet18-1x1"])
def test_known_residual_networks_are_doubled_folded_and_rebuilt(name: str) -> None:
    images = torch.randn(2, 3, 8, 8, generator=_generator(1))
    twin = TwinNetwork(_sequential(build(name, 3, _generator(0))), _generator(2)).eval()
    folded = branches.fold(twin, images)
    assert torch.allclose(folded(images), twin(images), atol=1e-4)
    plain = TwinNetwork(_sequential(build(name, 3, _generator(3))), _generator(4))
    rebuilt = branches.rebuild(plain, branches.describe(folded), images)
    rebuilt.load_state_dict(folded.state_dict())
    assert torch.equal(rebuilt.eval()(images), folded(images))


def _sequential(network: nn.Module) -> nn.Sequential:
    assert isinstance(network, nn.Sequential)
    return network


def test_folded_and_branched_networks_are_refused() -> None:
    folded = branches.fold(_network().eval(), _images())
    attached = branches.attach(folded, _images(), branches.gate("amm"), generator=_generator(3))
    for network in (folded, attached):
        with pytest.raises(InlayError, match="before its batch norms were folded"):
            TwinNetwork(_sequential(network), _generator(0))


def test_a_last_group_without_norms_or_with_other_layers_is_refused() -> None:
    bare = nn.Sequential(OrderedDict(layer1=nn.Conv2d(1, 2, 3), flatten=nn.Flatten()))
    with pytest.raises(InlayError, match="no batch norm in its last group"):
        TwinNetwork(bare, _generator(0))
    ended = nn.Sequential(OrderedDict([*_network().named_children(), ("head", nn.Linear(_D, 3))]))
    with pytest.raises(InlayError, match="a Linear in its last group"):
        TwinNetwork(ended, _generator(0))


class _Reversed(nn.Sequential):
    def forward(self, images: Tensor) -> Tensor:
        for child in reversed(self):
            images = child(images)
        return images


def test_other_networks_are_refused_by_the_names_that_work() -> None:
    reverse = _Reversed(OrderedDict(_network().named_children()))
    for network in (build("efficientnet-lite0", 3, _generator(0)), reverse):
        with pytest.raises(InlayError, match="resnet8, resnet20, resnet32, resnet18, resnet18-1x1"):
            TwinNetwork(_sequential(network), _generator(0))


def test_parts_are_the_two_halves() -> None:
    features = torch.arange(8.0).reshape(2, 4)
    assert old_part(features).tolist() == [[0, 1], [4, 5]]
    assert twin_part(features).tolist() == [[2, 3], [6, 7]]
    for wrong in (torch.zeros(2, 3), torch.zeros(4)):
        for part in (old_part, twin_part):
            with pytest.raises(ValueError, match=r"\[N, 2 D\]"):
                part(wrong)


def test_residual_assignments_against_loops() -> None:
    drawn = torch.randn(3 * 4 + 4 + 9, generator=_generator(5), dtype=torch.float64)
    matrix, mean, centres = drawn[:12].reshape(3, 4), drawn[12:16], drawn[16:].reshape(3, 3)
    features = torch.randn(5, 8, generator=_generator(6), dtype=torch.float64)
    found = ResidualStudentHead(StudentHead(matrix, mean, centres))(features)
    for n, row in enumerate(features.tolist()):
        total = [row[d] + row[d + 4] - mean[d].item() for d in range(4)]
        point = [sum(float(matrix[k, d]) * total[d] for d in range(4)) for k in range(3)]
        kernels = [1 / (1 + sum((point[k] - float(centres[c, k])) ** 2 for k in range(3))) for c in range(3)]
        assert found[n].tolist() == pytest.approx([kernel / sum(kernels) for kernel in kernels], rel=1e-12)


def test_padded_head_scores_the_old_part_alone() -> None:
    head = linear(4, 3, _generator(0)).double().requires_grad_(False)
    padded = padded_head(head)
    features = torch.randn(5, 8, generator=_generator(6), dtype=torch.float64, requires_grad=True)
    scores = padded(features)
    assert (padded.in_features, padded.out_features) == (8, 3)
    assert torch.allclose(scores, head(features[:, :4]), atol=1e-14)
    (gradient,) = torch.autograd.grad(scores.square().sum(), features)
    assert torch.equal(twin_part(gradient), torch.zeros(5, 4, dtype=torch.float64))
    assert old_part(gradient).abs().min() > 0


def test_padded_head_is_a_copy_that_is_trained_as_the_original() -> None:
    head = linear(4, 3, _generator(0))
    padded = padded_head(head)
    assert padded.weight.requires_grad
    assert not padded_head(head.requires_grad_(False)).weight.requires_grad
    with torch.no_grad():
        padded.weight.zero_()
        padded.bias.zero_()
    assert head.weight.abs().sum() > 0
    assert head.bias.abs().sum() > 0
    assert head.in_features == 4


def test_network_and_head_are_one_graph() -> None:
    twin = TwinNetwork(_network(), _generator(2)).eval()
    head = ResidualStudentHead(StudentHead(torch.eye(3, _D), torch.zeros(_D), torch.eye(3)).double())

    def step(images: Tensor) -> Tensor:
        assignments: Tensor = head(twin(images))
        return assignments

    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend="aot_eager")
    torch.testing.assert_close(compiled(_images()), step(_images()))
