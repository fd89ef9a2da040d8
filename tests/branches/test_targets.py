from typing import Any

import pytest
import torch
from torch import nn

from inlay.branches.layers import Layer
from inlay.branches.targets import Targets
from inlay.branches.units import Unit
from inlay.errors import InlayError

CONV = nn.Conv2d(4, 4, 3, padding=1)
LINEAR = nn.Linear(4, 4)
NORMED = Unit("layer2.conv", "conv-bn", "layer2.norm")
BARE = Unit("layer2.conv", "conv")


def _left_out(targets: Targets, unit: Unit = NORMED, layer: Layer = CONV, position: float = 0.5) -> str:
    return targets.why_left_out(unit, layer, position)


@pytest.mark.parametrize(
    ("targets", "reason"),
    [
        (Targets(), ""),
        (Targets(include=["layer2*"]), ""),
        (Targets(include=["layer1*", "*.conv"]), ""),
        (Targets(include=["layer2"]), ""),
        (Targets(include=["layer"]), "not included by name"),
        (Targets(exclude=["layer2"]), "excluded by name"),
        (Targets(include=["Layer2*"]), "not included by name"),
        (Targets(exclude=["*conv"]), "excluded by name"),
        (Targets(include=["*"], exclude=["layer[12].*"]), "excluded by name"),
        (Targets(exclude=["layer1*"]), ""),
    ],
)
def test_names_are_matched_by_globs(targets: Targets, reason: str) -> None:
    assert _left_out(targets) == reason


@pytest.mark.parametrize(
    ("depth", "positions"),
    [((0, 1), [0, 1, 2, 3]), ((0.5, 1.0), [2, 3]), ((0, 0.5), [0, 1]), ((0.25, 0.75), [1, 2]), ((0.6, 0.7), [])],
)
def test_depth_is_a_share_of_the_layers_as_they_run(depth: tuple[float, float], positions: list[int]) -> None:
    reasons = [_left_out(Targets(depth=depth), position=index / 4) for index in range(4)]
    assert [index for index, reason in enumerate(reasons) if not reason] == positions
    assert {reason for reason in reasons if reason} <= {f"outside depth {depth[0]:g} to {depth[1]:g}"}


@pytest.mark.parametrize("kind", ["conv-bn", "linear-bn", "mlp"])
def test_layers_with_a_norm_are_chosen_by_default(kind: Any) -> None:
    assert _left_out(Targets(), Unit("x", kind, "norm")) == ""


@pytest.mark.parametrize(
    ("unit", "layer", "reason"),
    [
        (BARE, CONV, "no batch norm; kinds='all' gates it by the norms of its rows"),
        (Unit("fc", "linear"), LINEAR, "no norm of an MLP before it; kinds='all' gates it by the norms of its rows"),
        (Unit("fc", "linear", note="it is odd"), LINEAR, "it is odd; kinds='all' gates it by the norms of its rows"),
    ],
)
def test_layers_without_a_norm_are_left_out_by_default(unit: Unit, layer: Layer, reason: str) -> None:
    assert _left_out(Targets(), unit, layer) == reason
    assert _left_out(Targets(kinds="all"), unit, layer) == ""
    assert _left_out(Targets(include=[unit.name]), unit, layer) == ""
    assert _left_out(Targets(kinds=[unit.kind]), unit, layer) == ""


@pytest.mark.parametrize(
    ("kinds", "unit", "layer", "reason"),
    [
        ([nn.Conv2d], BARE, CONV, ""),
        ([nn.Linear], BARE, CONV, "of kind conv, which is not chosen"),
        ([nn.Linear, "conv-bn"], NORMED, CONV, ""),
        ([nn.Module], BARE, CONV, ""),
        (["mlp"], NORMED, CONV, "of kind conv-bn, which is not chosen"),
        (["conv-bn"], Unit("x", "conv", note="it is odd"), CONV, "of kind conv, which is not chosen (it is odd)"),
        ([], NORMED, CONV, "of kind conv-bn, which is not chosen"),
    ],
)
def test_kinds_are_named_or_module_types(kinds: Any, unit: Unit, layer: Layer, reason: str) -> None:
    assert _left_out(Targets(kinds=kinds), unit, layer) == reason
    assert _left_out(Targets(kinds=kinds, include=["*"]), unit, layer) == reason


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(
    ("layer", "fits"),
    [
        (nn.Linear(3, 4), True),
        (nn.Conv2d(2, 2, 1), True),
        (nn.Conv2d(2, 2, 3, padding=1), True),
        (nn.Conv2d(2, 2, 3, padding=1, stride=2, groups=2), True),
        (nn.Conv2d(2, 2, 3, padding=2, dilation=2, padding_mode="reflect"), True),
        (nn.Conv2d(2, 2, (1, 5), padding=(0, 2)), True),
        (nn.Conv1d(2, 2, 5, padding="same", dilation=2), True),
        (nn.Conv3d(2, 2, 1, padding="valid"), True),
        (nn.Conv2d(2, 2, 3), False),
        (nn.Conv2d(2, 2, 1, padding=1), False),
        (nn.Conv2d(2, 2, 2), False),
        (nn.Conv2d(2, 2, 4, padding=2), False),
        (nn.Conv2d(2, 2, 2, padding=1, dilation=2), False),
        (nn.Conv2d(2, 2, 2, padding="same"), False),
        (nn.Conv2d(2, 2, (3, 2), padding="same"), False),
        (nn.Conv1d(2, 2, 3, padding="valid"), False),
        (nn.Conv2d(2, 2, 3, padding=1, dilation=2), False),
        (nn.Conv2d(2, 2, (3, 3), padding=(1, 0)), False),
    ],
)
def test_pointwise_branches_need_a_kernel_with_a_centre(layer: Layer, fits: bool) -> None:
    reason = Targets(kernel="1x1").why_refused(layer)
    assert reason == ("" if fits else "a 1x1 branch needs odd kernels with padding dilation·(k−1)/2")
    assert Targets(kernel="same").why_refused(layer) == ""
    if isinstance(layer, nn.Linear):
        return
    # Fitting means that a kernel of zeros but for its centre sees what a 1x1 kernel sees.
    kind: Any = type(layer)
    point = kind(2, 2, 1, stride=layer.stride, groups=layer.groups)
    middle: Any = (..., *(size // 2 for size in layer.kernel_size))
    with torch.no_grad():
        layer.weight.zero_()[middle] = point.weight.flatten(1)
        point.bias.copy_(layer.bias)
        values = torch.randn(1, 2, *[8] * len(layer.kernel_size), generator=torch.Generator().manual_seed(0))
        whole, centre = layer(values), point(values)
    assert (whole.shape == centre.shape and torch.allclose(whole, centre, atol=1e-6)) == fits


def test_a_module_is_trainable_with_everything_inside_it() -> None:
    targets = Targets(trainable=["head", "blocks.1*", "*.norm"])
    yours = ["head", "head.fc", "head.fc.weight", "blocks.1", "blocks.10.conv", "blocks.0.norm", "blocks.0.norm.bias"]
    others = ["", "header", "blocks", "blocks.0", "blocks.0.conv", "norm", "body.head"]
    assert [name for name in yours + others if targets.is_trainable(name)] == yours
    assert not Targets().is_trainable("head")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"include": "layer2*"}, r"include takes a list of patterns: write include=\['layer2\*'\]\."),
        ({"exclude": "fc"}, r"exclude takes a list of patterns: write exclude=\['fc'\]\."),
        ({"trainable": "fc"}, r"trainable takes a list of patterns: write trainable=\['fc'\]\."),
        ({"kinds": "conv"}, r"kinds takes a list or 'all': write kinds=\['conv'\]\."),
        (
            {"kinds": ["conv", "norm"]},
            "Unknown kind 'norm': write some of conv-bn, linear-bn, mlp, conv, linear, a module",
        ),
        ({"kinds": [3]}, "Unknown kind 3: write some of"),
        ({"kernel": "3x3"}, "Unknown kernel '3x3': write 'same' or '1x1'."),
        ({"depth": (0.5, 0.5)}, r"depth takes two fractions such as \(0.5, 1.0\) for the later half, not \(0.5, 0.5\)"),
        ({"depth": (0.5, 1.5)}, "depth takes two fractions"),
        ({"depth": (-0.1, 1)}, "depth takes two fractions"),
        ({"depth": (float("nan"), 1)}, "depth takes two fractions"),
        ({"depth": 0.5}, "depth takes two fractions"),
        ({"depth": (0.5,)}, "depth takes two fractions"),
    ],
)
def test_values_that_mean_nothing_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InlayError, match=f"^{message}"):
        Targets(**arguments)


@pytest.mark.parametrize("field", ["include", "exclude"])
def test_a_pattern_that_matches_nothing_is_refused(field: str) -> None:
    patterns: dict[str, Any] = {field: ["a*", "conv"]}
    Targets(**patterns).check_patterns(["ab", "conv"])
    with pytest.raises(InlayError, match=r"^Pattern 'conv' matches none of the layers: ab, conv1\.$"):
        Targets(**patterns).check_patterns(["ab", "conv1"])
    with pytest.raises(InlayError, match=r"matches none of the layers: a0, a1, a2, a3, a4 and 3 more\.$"):
        Targets(**patterns).check_patterns([f"a{number}" for number in range(8)])
    with pytest.raises(InlayError, match=r"matches none of the layers: there are none\.$"):
        Targets(**patterns).check_patterns([])


def test_an_empty_list_of_patterns_is_refused() -> None:
    with pytest.raises(InlayError, match=r"^include is empty; write None for all layers, or patterns such as"):
        Targets(include=[]).check_patterns(["conv"])
