import copy
import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from branch_networks import (
    NETWORKS,
    Network,
    Pooled,
    branch_tensors,
    hash_outside_branches,
    lively,
    relative_gap,
    same_state,
    train,
    trained,
)
from inlay.backbones import build
from inlay.branches import (
    Gate,
    Targets,
    attach,
    branch_parameters,
    fold,
    folded_layers,
    gammas,
    hybrid_units,
    is_hybrid,
    merge,
)
from inlay.branches.layers import row_norms
from inlay.errors import InlayError

every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
PLAIN = NETWORKS["conv2d"]


class WithHead(nn.Module):
    """Norms and dropout inside and outside a head that the user trains."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.BatchNorm2d(3)
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.instances = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.1), nn.LayerNorm(6), nn.Linear(6, 2))

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.instances(torch.relu(self.norm(self.conv(self.entry(images)))))
        out: Tensor = self.head(self.drop(maps.mean(dim=(2, 3))))
        return out


HEADED = Network(WithHead, (4, 3, 8, 8), ("conv",), Targets(trainable=["head"]))


def _attached(network: Network, gate: str | Gate = "amm", dtype: torch.dtype = torch.float32) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    return attach(network.model(dtype), network.images(dtype=dtype), gate, network.targets, generator=generator)


def _modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


@every_network
@pytest.mark.parametrize("gate", ["imm", "aff", "amm"])
def test_the_start_is_the_folded_network_exactly_and_the_original_closely(network: Network, gate: str) -> None:
    model, hybrid = network.model(), _attached(network, gate)
    folded = fold(model, network.images())
    assert tuple(hybrid_units(hybrid)) == network.branches
    for seed in range(2):
        with torch.no_grad():
            out = hybrid(network.images(seed))
            assert torch.equal(out, folded(network.images(seed)))
            assert relative_gap(model(network.images(seed)), out) <= 1e-5


@every_network
@pytest.mark.parametrize("gate", ["amm", "aff"])
def test_training_moves_every_branch_and_nothing_else(network: Network, gate: str) -> None:
    hybrid = _attached(network, gate)
    before, outside = copy.deepcopy(branch_tensors(hybrid)), hash_outside_branches(hybrid)
    train(hybrid, network)
    assert hash_outside_branches(hybrid) == outside
    still = [name for name, tensor in branch_tensors(hybrid).items() if torch.equal(tensor, before[name])]
    assert not still


@every_network
def test_only_the_branches_are_trainable_and_follow_the_mode(network: Network) -> None:
    hybrid = _attached(network)
    assert not any(_modes(hybrid).values())
    trainable = {id(parameter) for parameter in hybrid.parameters() if parameter.requires_grad}
    assert trainable == {id(parameter) for parameter in branch_parameters(hybrid)}
    branches = [f"{name}{part}" for name in network.branches for part in ("", ".novel", ".norm")]
    follows = {"", *(name for name, _ in hybrid.named_modules() if name in branches)}
    assert {name for name, mode in _modes(hybrid.train()).items() if mode} == follows
    assert not any(_modes(hybrid.eval()).values())


def test_every_norm_outside_the_branches_stays_in_eval_inside_a_larger_network_too() -> None:
    hybrid = _attached(HEADED)
    outside = hash_outside_branches(hybrid)
    whole = nn.Sequential(hybrid, nn.BatchNorm1d(2)).train()
    whole(HEADED.images(3))
    norms = [module for module in hybrid.modules() if hasattr(module, "running_var")]
    assert [module.training for module in norms] == [False, True, False, False]
    assert hybrid_units(hybrid)["conv"].norm is norms[1]
    assert hash_outside_branches(hybrid) == outside
    assert whole[1].training and whole[1].num_batches_tracked == 1


@pytest.mark.parametrize("frozen_before", [False, True])
def test_modules_that_are_yours_are_left_alone_with_gradients(frozen_before: bool) -> None:
    model = HEADED.model().requires_grad_(not frozen_before)
    hybrid = attach(model, HEADED.images(), targets=HEADED.targets)
    assert set(folded_layers(hybrid)) == {"conv.base"}
    kinds = [type(module) for module in hybrid.get_submodule("head").children()]
    assert kinds[2:] == [nn.Dropout, nn.LayerNorm, nn.Linear]
    frozen = {name for name, parameter in hybrid.named_parameters() if not parameter.requires_grad}
    assert not any(name.startswith("head") for name in frozen)
    assert {"entry.weight", "instances.bias", "conv.base.weight", "conv.base.bias"} <= frozen
    modes = _modes(hybrid.train())
    assert {name for name in modes if name.startswith("head") and not modes[name]} == {"head.1"}
    assert not (modes["entry"] or modes["norm"] or modes["instances"] or modes["drop"])


def test_training_a_head_beside_the_branches_leaves_the_rest_as_it_was() -> None:
    hybrid = _attached(HEADED)
    rest = {name: value.clone() for name, value in hybrid.state_dict().items() if not name.startswith("head")}
    optimiser = torch.optim.SGD([p for p in hybrid.parameters() if p.requires_grad], lr=0.1)
    for seed in range(2):
        optimiser.zero_grad()
        hybrid.train()(HEADED.images(seed)).square().sum().backward()
        optimiser.step()
    moved = {name for name, value in rest.items() if not torch.equal(value, hybrid.state_dict()[name])}
    assert moved == {f"conv.{name}" for name in ("novel.weight", "norm.weight", "norm.bias")} | {
        f"conv.norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }


@pytest.mark.parametrize("pattern", ["norm", "nor?"])
def test_a_norm_without_the_layer_in_front_of_it_cannot_be_yours(pattern: str) -> None:
    with pytest.raises(
        InlayError, match=r"'norm' is left to you, but layer 'conv'.*name both in trainable, or neither"
    ):
        attach(HEADED.model(), HEADED.images(), targets=Targets(trainable=[pattern]))


def test_a_norm_that_yours_and_others_share_is_refused() -> None:
    network = NETWORKS["shared norm"]
    with pytest.raises(InlayError, match="'norm' is left to you, but layer 'right'"):
        attach(network.model(), network.images(), targets=Targets(trainable=["left"]))


@every_network
def test_the_original_is_left_as_it_was(network: Network) -> None:
    model = network.model()
    next(model.parameters()).requires_grad_(False)
    state = copy.deepcopy(model.state_dict())
    facts = [(name, type(module), module.training) for name, module in model.named_modules()]
    gradients = [parameter.requires_grad for parameter in model.parameters()]
    train(attach(model, network.images(), targets=network.targets), network)
    assert [(name, type(module), module.training) for name, module in model.named_modules()] == facts
    assert [parameter.requires_grad for parameter in model.parameters()] == gradients
    assert same_state(state, model.state_dict())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Counting(Pooled):
    """Counts its calls even in eval mode."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(images)


def test_buffers_that_move_in_eval_mode_start_where_they_were() -> None:
    model = Counting().eval()
    hybrid = attach(model, HEADED.images())
    assert model.calls.item() == hybrid.get_buffer("calls").item() == 0
    hybrid(HEADED.images())
    assert (model.calls.item(), hybrid.get_buffer("calls").item()) == (0, 1)


def test_branches_depend_on_the_generator_alone() -> None:
    model = PLAIN.model()
    state = torch.get_rng_state()
    first, second, third = (
        branch_tensors(attach(model, PLAIN.images(), generator=torch.Generator().manual_seed(seed)))
        for seed in (2, 2, 3)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], second[name]) for name in first)
    kernels = [name for name in first if name.endswith("novel.weight")]
    assert len(kernels) == 3 and not any(torch.equal(first[name], third[name]) for name in kernels)


def _pickled(model: nn.Module) -> nn.Module:
    twin: nn.Module = pickle.loads(pickle.dumps(model))
    return twin


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    twin: nn.Module = torch.load(file, weights_only=False)
    return twin


@every_network
@pytest.mark.parametrize("travel", [copy.deepcopy, _saved, _pickled])
def test_hybrids_survive_copies_and_pickles(network: Network, travel: Callable[[nn.Module], nn.Module]) -> None:
    hybrid = trained(network).eval()
    twin = travel(hybrid)
    assert torch.equal(twin(network.images(5)), hybrid(network.images(5)))
    assert [type(module) for module in twin.modules()] == [type(module) for module in hybrid.modules()]
    assert _modes(twin.train()) == _modes(hybrid.train())
    assert [p.requires_grad for p in twin.parameters()] == [p.requires_grad for p in hybrid.parameters()]
    ours, theirs = (merge(model, network.images()).model.state_dict() for model in (hybrid, twin))
    assert same_state(ours, theirs)


@every_network
def test_the_state_of_a_hybrid_goes_into_another(network: Network) -> None:
    hybrid = trained(network).eval()
    twin = _attached(network)
    twin.load_state_dict(hybrid.state_dict())
    assert torch.equal(twin(network.images(5)), hybrid(network.images(5)))
    ours, theirs = (merge(model, network.images()).model.state_dict() for model in (hybrid, twin))
    assert same_state(ours, theirs)


def test_state_dicts_hold_tensors_alone() -> None:
    assert all(isinstance(value, Tensor) for value in _attached(PLAIN).state_dict().values())


def test_what_gates_each_unit() -> None:
    block = NETWORKS["mlp"]
    model = block.model()
    units = hybrid_units(_attached(block))
    for name, side in {"first": "in", "second": "out"}.items():
        assert torch.equal(units[name].gamma, model.get_parameter("norm.weight"))
        assert (units[name].side, units[name].norm) == (side, None)
    loose = NETWORKS["no norm"]
    model = loose.model()
    for name, unit in hybrid_units(_attached(loose)).items():
        assert torch.equal(unit.gamma, row_norms(model.get_parameter(f"{name}.weight")))
    folded = fold(PLAIN.model(), PLAIN.images())
    for name, unit in hybrid_units(_attached(PLAIN)).items():
        assert torch.equal(unit.gamma, gammas(folded)[name])


def test_gammas_that_are_given_gate_the_branches() -> None:
    given = {name: gamma - 1 for name, gamma in gammas(fold(PLAIN.model(), PLAIN.images())).items()}
    hybrid = attach(PLAIN.model(), PLAIN.images(), gammas=given)
    assert all(torch.equal(unit.gamma, given[name]) for name, unit in hybrid_units(hybrid).items())


def test_a_folded_network_gets_the_same_branches_as_the_plain_one() -> None:
    one = attach(PLAIN.model(), PLAIN.images(), generator=torch.Generator().manual_seed(1))
    folded = fold(PLAIN.model(), PLAIN.images()).requires_grad_(True)
    other = attach(folded, PLAIN.images(), generator=torch.Generator().manual_seed(1))
    assert same_state(one.state_dict(), other.state_dict())
    assert [p.requires_grad for p in one.parameters()] == [p.requires_grad for p in other.parameters()]


def test_branch_parameters_are_kernel_scale_and_shift_of_each_unit() -> None:
    hybrid = attach(PLAIN.model(), PLAIN.images(), targets=Targets(include=["layers.[03]"]))
    named = dict(hybrid.named_parameters())
    expected = [
        named[f"layers.{index}.{part}"] for index in (0, 3) for part in ("novel.weight", "norm.weight", "norm.bias")
    ]
    found = branch_parameters(hybrid)
    assert len(found) == len(expected)
    assert all(a is b for a, b in zip(found, expected, strict=True))


def test_saving_and_restoring_the_mode_works_as_usual() -> None:
    hybrid = _attached(PLAIN).train()
    was_training = hybrid.training
    hybrid.eval().train(was_training)
    assert all(unit.norm is not None and unit.norm.training for unit in hybrid_units(hybrid).values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_every_floating_type_is_kept(dtype: torch.dtype) -> None:
    for name in ("conv2d", "mlp", "no norm"):
        network = NETWORKS[name]
        hybrid = _attached(network, dtype=dtype)
        assert {tensor.dtype for tensor in hybrid.state_dict().values() if tensor.is_floating_point()} == {dtype}
        assert hybrid.train()(network.images(dtype=dtype)).dtype == dtype


def test_channels_last_is_kept() -> None:
    model = build("resnet8", generator=torch.Generator().manual_seed(0)).eval()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for unit in hybrid_units(attach(model, HEADED.images())).values():
        for weight in (unit.base.weight, unit.novel.weight):
            assert weight.is_contiguous(memory_format=torch.channels_last)


def test_modules_with_two_names_have_one_branch() -> None:
    model = Pooled(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model.add_module("alias", model.layers)
    hybrid = attach(lively(model).eval(), HEADED.images())
    assert list(hybrid_units(hybrid)) == ["layers.0"]
    assert hybrid.get_submodule("alias.0") is hybrid.get_submodule("layers.0")


def test_layers_that_cannot_have_a_branch_are_warned_of_where_attach_is_called() -> None:
    model = lively(Pooled(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 2), nn.BatchNorm2d(4)))
    with pytest.warns(UserWarning, match=r"without a branch \(layers\.2: a 1x1 branch needs odd kernels") as found:
        attach(model.eval(), HEADED.images(), targets=Targets(kernel="1x1"))
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(model.eval(), HEADED.images())


@dataclass(frozen=True)
class Leaking(Gate):
    """Lets something through where the branch is zero."""

    name: ClassVar[str] = "leaking"
    mergeable: ClassVar[bool] = False

    def fuse(self, base_out: Tensor, novel_out: Tensor) -> Tensor:
        return base_out + novel_out + 0.1


class Listing(nn.Module):
    """Holds its layer in a plain list, too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.layers = [self.conv]

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.layers[0](images)
        return out.mean((2, 3))


def test_misuse_is_refused_and_changes_nothing() -> None:
    model, images = PLAIN.model(), PLAIN.images()
    before = copy.deepcopy(model.state_dict())
    hybrid = attach(model, images)
    assert is_hybrid(hybrid) and not is_hybrid(model)
    refusals: list[tuple[str, Callable[[], object]]] = [
        ("has branches already; merge them", lambda: attach(hybrid, images)),
        (r"training mode; call model\.eval\(\)", lambda: attach(copy.deepcopy(model).train(), images)),
        ("'layer9\\*' matches none of the layers", lambda: attach(model, images, targets=Targets(include=["layer9*"]))),
        ("Unknown gate 'gru'", lambda: attach(model, images, "gru")),
        ("fails on the example", lambda: attach(model, images[0, 0])),
        ("does not start at the function", lambda: attach(model, images, Leaking())),
        ("No layer of the network gets a branch", lambda: attach(nn.Sequential(nn.ReLU()).eval(), images)),
        ("no branches; attach them", lambda: branch_parameters(model)),
    ]
    for message, call in refusals:
        with pytest.raises(InlayError, match=message):
            call()
    assert same_state(before, model.state_dict())


def test_a_single_layer_is_refused() -> None:
    with pytest.raises(InlayError, match=r"a single Linear; wrap it: torch\.nn\.Sequential\(model\)"):
        attach(nn.Linear(3, 2).eval(), torch.ones(2, 3), targets=Targets(kinds="all"))
    wrapped = attach(nn.Sequential(nn.Linear(3, 2)).eval(), torch.ones(2, 3), targets=Targets(kinds="all"))
    assert list(hybrid_units(wrapped)) == ["0"]


def test_a_branch_that_would_never_run_is_refused() -> None:
    with pytest.raises(InlayError, match=r"branch of 'conv' is never called.*ModuleList.*exclude=\['conv'\]"):
        attach(Listing().eval(), HEADED.images(), targets=Targets(kinds="all"))


def test_weights_that_are_not_finite_are_refused() -> None:
    model = PLAIN.model()
    with torch.no_grad():
        model.get_parameter("layers.6.bias")[0] = torch.inf
    with pytest.raises(InlayError, match=r"'layers\.6\.bias' holds values that are not finite"):
        attach(model, PLAIN.images())
