"""Small networks of every kind of unit, their training, and what must not move meanwhile."""

import copy
import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from inlay.branches import Gate, Targets, attach, branch_parameters, hybrid_units

ALL = Targets(kinds="all")


class Pooled(nn.Module):
    """Layers followed by the mean over all positions."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.layers(images)
        return out.flatten(2).mean(2)


class Twice(nn.Module):
    """A convolution and its batch norm that are called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        once = torch.relu(self.norm(self.conv(images)))
        twice: Tensor = self.norm(self.conv(once))
        return twice.mean((2, 3))


class SharedNorm(nn.Module):
    """Two convolutions in front of one batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.norm = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        left: Tensor = self.norm(self.left(images))
        right: Tensor = self.norm(self.right(images))
        return (torch.relu(left) + right).mean((2, 3))


class RawUse(nn.Module):
    """A convolution whose output is used as it is and through a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        raw: Tensor = self.conv(images)
        normed: Tensor = self.norm(raw)
        return (torch.relu(normed) + raw).mean((2, 3))


class Block(nn.Module):
    """The MLP of a pre-norm transformer with its residual connection, and a head."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.first, self.second = nn.Linear(4, 6, bias=bias), nn.Linear(6, 4, bias=bias)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.first(self.norm(tokens)))
        out: Tensor = self.head((tokens + self.second(hidden)).mean(1))
        return out


@dataclass(frozen=True, eq=False)
class Network:
    """A network, what it accepts, and the targets that give it branches.

    Attributes:
        build: Makes it.
        shape: Shape of what it accepts.
        targets: Which layers get a branch.
        branches: Names of these layers.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    branches: tuple[str, ...]
    targets: Targets | None = None

    def model(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """Make the network with lively norms, in eval mode, always the same."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return lively(self.build()).to(dtype).eval()

    def images(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw a batch."""
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


NETWORKS = {
    "conv1d": Network(
        lambda: Pooled(nn.Conv1d(3, 4, 3, stride=2, bias=False), nn.BatchNorm1d(4), nn.ReLU()),
        (5, 3, 9),
        ("layers.0",),
    ),
    "conv2d": Network(
        lambda: Pooled(
            *(nn.Conv2d(3, 4, 3, dilation=2, padding=2, padding_mode="reflect"), nn.BatchNorm2d(4), nn.ReLU()),
            *(nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.BatchNorm2d(4, affine=False), nn.ReLU()),
            *(nn.Conv2d(4, 6, (1, 3), groups=2, padding="same"), nn.BatchNorm2d(6), nn.ReLU()),
        ),
        (3, 3, 7, 6),
        ("layers.0", "layers.3", "layers.6"),
    ),
    "conv3d": Network(
        lambda: Pooled(nn.Conv3d(2, 3, 3, padding=1, padding_mode="circular"), nn.BatchNorm3d(3, eps=1e-3), nn.ReLU()),
        (3, 2, 3, 4, 3),
        ("layers.0",),
    ),
    "linear": Network(
        lambda: nn.Sequential(nn.Linear(5, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)),
        (6, 5),
        ("0", "3"),
        ALL,
    ),
    "twice": Network(Twice, (3, 3, 6, 6), ("conv",)),
    "shared norm": Network(SharedNorm, (3, 3, 6, 6), ("left", "right")),
    "raw use": Network(RawUse, (3, 3, 6, 6), ("conv",), ALL),
    "1x1": Network(
        lambda: Pooled(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1)),
        (4, 3, 6, 6),
        ("layers.0", "layers.3"),
        Targets(kinds="all", kernel="1x1"),
    ),
    "no batch norm in the branch": Network(
        lambda: Pooled(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        (4, 3, 6, 6),
        ("layers.0",),
        Targets(batch_norm=False),
    ),
    "mlp": Network(Block, (3, 4, 4), ("first", "second")),
    "mlp without bias": Network(lambda: Block(bias=False), (3, 4, 4), ("first", "second")),
    "no norm": Network(
        lambda: Pooled(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.Conv2d(4, 3, 3)),
        (3, 3, 7, 7),
        ("layers.0", "layers.2"),
        ALL,
    ),
}


def lively(model: nn.Module, seed: int = 1) -> nn.Module:
    """Give every norm of a network scales, shifts and statistics that differ from the defaults."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (_BatchNorm, nn.LayerNorm)):
                for parameter in module.parameters():
                    parameter.normal_(0.5, 0.5, generator=generator)
            if isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None:
                module.running_mean.normal_(0, 0.3, generator=generator)
                module.running_var.uniform_(0.5, 2, generator=generator)
    return model


def train(hybrid: nn.Module, network: Network, steps: int = 3, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Take steps that move every branch, and return the hybrid, still in training mode."""
    hybrid.train()
    optimiser = torch.optim.SGD(branch_parameters(hybrid), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimiser.zero_grad()
        torch.autograd.backward([(hybrid(network.images(100 + step, dtype)) - 1).square().mean()])
        optimiser.step()
    return hybrid


def trained(network: Network, gate: str | Gate = "amm", dtype: torch.dtype = torch.float32) -> nn.Module:
    """Attach branches to a network and train them, always in the same way."""
    return copy.deepcopy(_trained(network, gate, dtype))


@functools.cache
def _trained(network: Network, gate: str | Gate, dtype: torch.dtype) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    hybrid = attach(network.model(dtype), network.images(dtype=dtype), gate, network.targets, generator=generator)
    return train(hybrid, network, dtype=dtype)


def same_state(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Say whether two states have the same names and equal values."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def branch_tensors(hybrid: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers of all branches, by name."""
    found: dict[str, Tensor] = {}
    for name, unit in hybrid_units(hybrid).items():
        for part in ("novel", "norm"):
            module = getattr(unit, part)
            if module is not None:
                found |= {f"{name}.{part}.{key}": value for key, value in module.state_dict(keep_vars=True).items()}
    return found


def hash_outside_branches(hybrid: nn.Module) -> str:
    """Hash every parameter and buffer outside the branches, with the names."""
    inside = {id(tensor) for tensor in branch_tensors(hybrid).values()}
    digest = hashlib.sha256()
    everything = [*hybrid.named_parameters(remove_duplicate=False), *hybrid.named_buffers(remove_duplicate=False)]
    for name, tensor in everything:
        if id(tensor) not in inside:
            octets = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            digest.update(name.encode() + octets.numpy().tobytes())
    return digest.hexdigest()


def relative_gap(expected: Tensor, actual: Tensor) -> float:
    """Return max |Δ| / max(1, max |expected|)."""
    return ((expected - actual).abs().max() / expected.abs().max().clamp(min=1.0)).item()
