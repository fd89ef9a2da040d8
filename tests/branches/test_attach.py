import copy
import hashlib

import pytest
import torch
from torch import Tensor, nn

from inlay.backbones import build
from inlay.branches import attach, branch_parameters, fold, hybrid_units, is_hybrid
from inlay.errors import InlayError


class _WithLooseNorm(nn.Module):
    """A network with a norm, a dropout and a linear layer outside every pair."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.BatchNorm2d(3)
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = torch.relu(self.norm(self.conv(self.entry(images))))
        features: Tensor = self.head(self.drop(maps.mean(dim=(2, 3))))
        return features


def _images(seed: int = 0, count: int = 4) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def _folded(name: str = "resnet8") -> nn.Module:
    return fold(build(name, generator=torch.Generator().manual_seed(0)), _images())


def _train(hybrid: nn.Module, steps: int = 3) -> None:
    hybrid.train()
    optimiser = torch.optim.SGD(branch_parameters(hybrid), lr=0.1)
    for step in range(steps):
        optimiser.zero_grad()
        torch.autograd.backward([(hybrid(_images(step)) - 1).square().mean()])
        optimiser.step()


def _hashes(model: nn.Module) -> dict[str, str]:
    return {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in model.state_dict().items()}


def _in_branch(name: str) -> bool:
    return ".novel." in name or ".norm." in name


@pytest.mark.parametrize("gate", ["imm", "aff", "amm"])
@pytest.mark.parametrize("name", ["resnet8", "resnet18-1x1"])
def test_hybrid_starts_at_the_folded_function_bit_for_bit(name: str, gate: str) -> None:
    folded = _folded(name)
    hybrid = attach(folded, gate, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = folded(_images())
        assert torch.equal(hybrid.eval()(_images()), expected)
        assert torch.equal(hybrid.train()(_images()), expected)


def test_training_moves_every_branch_and_nothing_else() -> None:
    folded = _folded("resnet20")
    folded_before = _hashes(folded)
    hybrid = attach(folded, generator=torch.Generator().manual_seed(1))
    before = _hashes(hybrid)
    _train(hybrid)
    after = _hashes(hybrid)
    assert {name for name in before if before[name] != after[name]} == set(filter(_in_branch, before))
    assert _hashes(folded) == folded_before


def test_modules_outside_the_branches_stay_in_eval_and_frozen() -> None:
    network = _WithLooseNorm()
    network(_images())
    hybrid = attach(fold(network, _images()), generator=torch.Generator().manual_seed(1))
    expected = hybrid(_images())
    assert torch.equal(hybrid.train()(_images()), expected)
    unit = hybrid_units(hybrid)["conv"]
    moving = {hybrid, unit, unit.novel, unit.norm}
    assert {module for module in hybrid.modules() if module.training} == moving
    assert {name for name, value in hybrid.named_parameters() if value.requires_grad} == {
        "conv.novel.weight",
        "conv.norm.weight",
        "conv.norm.bias",
    }
    before = _hashes(hybrid)
    wrapped = nn.Sequential(hybrid, nn.Linear(5, 2)).train()
    wrapped(_images(3))
    changed = {name for name, value in _hashes(hybrid).items() if value != before[name]}
    assert changed == {"conv.norm.running_mean", "conv.norm.running_var", "conv.norm.num_batches_tracked"}


def test_parameters_that_were_made_trainable_again_are_frozen() -> None:
    hybrid = attach(_folded().requires_grad_(True))
    trainable = [value for value in hybrid.parameters() if value.requires_grad]
    assert {id(value) for value in trainable} == {id(value) for value in branch_parameters(hybrid)}


def test_saving_and_restoring_the_mode_works_as_usual() -> None:
    hybrid = attach(_folded()).train()
    was_training = hybrid.training
    hybrid.eval()
    assert not any(module.training for module in hybrid.modules())
    hybrid.train(was_training)
    assert all(unit.norm.training for unit in hybrid_units(hybrid).values())


def test_a_deep_copy_of_a_hybrid_is_frozen_alike() -> None:
    clone = copy.deepcopy(attach(_folded()))
    clone.train()
    assert not clone.get_submodule("layer1").training
    assert clone.get_submodule("conv.norm").training


def test_patterns_choose_the_units() -> None:
    folded = _folded()
    hybrid = attach(folded, include=["layer2*", "conv"])
    assert set(hybrid_units(hybrid)) == {"conv", "layer2.0.conv1", "layer2.0.conv2"}
    _train(hybrid)
    name = "layer1.0.conv1.weight"
    assert torch.equal(hybrid.state_dict()[name], folded.state_dict()[name])


def test_branch_parameters_are_kernel_scale_and_shift_of_each_unit() -> None:
    hybrid = attach(_folded(), include=["layer1*"])
    named = dict(hybrid.named_parameters())
    expected = [
        named[f"layer1.0.{conv}.{part}"]
        for conv in ("conv1", "conv2")
        for part in ("novel.weight", "norm.weight", "norm.bias")
    ]
    found = branch_parameters(hybrid)
    assert len(found) == len(expected)
    assert all(a is b for a, b in zip(found, expected, strict=True))


def test_branches_depend_on_the_generator_alone() -> None:
    folded = _folded()
    first = attach(folded, generator=torch.Generator().manual_seed(2))
    second = attach(folded, generator=torch.Generator().manual_seed(2))
    third = attach(folded, generator=torch.Generator().manual_seed(3))
    assert _hashes(first) == _hashes(second) != _hashes(third)


def test_misuse_is_refused() -> None:
    folded = _folded()
    hybrid = attach(folded)
    assert is_hybrid(hybrid) and not is_hybrid(folded)
    with pytest.raises(InlayError, match="fold it first"):
        attach(build("resnet8"))
    with pytest.raises(InlayError, match="has branches already"):
        attach(hybrid)
    with pytest.raises(InlayError, match="'layer9\\*' matches none of the units: conv, layer1"):
        attach(folded, include=["conv", "layer9*"])
    with pytest.raises(InlayError, match="include is empty"):
        attach(folded, include=[])
    with pytest.raises(InlayError, match="Unknown gate"):
        attach(folded, "gru")
    with pytest.raises(InlayError, match="no branches"):
        branch_parameters(folded)
