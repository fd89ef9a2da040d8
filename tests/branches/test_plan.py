from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inlay.branches import Targets, attach, branch_parameters, hybrid_units, merge, plan
from inlay.branches.plan import Plan, describe_layer, make_plan
from inlay.errors import InlayError

IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class _Everything(nn.Module):
    """Layers of every kind, an idle one and one that cannot take a branch."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.idle = nn.Linear(2, 2)
        self.head = nn.Linear(5, 2)
        self.stem, self.stem_norm = nn.Conv2d(3, 8, 3, padding=1, bias=bias), nn.BatchNorm2d(8)
        self.depthwise, self.depthwise_norm = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=bias), nn.BatchNorm2d(8)
        self.wide = nn.Conv2d(8, 4, 2, groups=2, bias=bias)
        self.up = nn.ConvTranspose2d(4, 4, 1)
        self.norm, self.first, self.second = nn.LayerNorm(4), nn.Linear(4, 6, bias=bias), nn.Linear(6, 4, bias=bias)
        self.neck, self.neck_norm = nn.Linear(4, 5, bias=bias), nn.BatchNorm1d(5)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        maps = F.relu(self.stem_norm(self.stem(images)))
        maps = self.up(self.wide(F.relu(self.depthwise_norm(self.depthwise(maps)))))
        tokens = maps.flatten(2).transpose(1, 2)
        tokens = tokens + self.second(F.gelu(self.first(self.norm(tokens))))
        out: Tensor = self.head(self.neck_norm(self.neck(tokens.mean(1))))
        return out


def _actions(planned: Plan) -> dict[str, str]:
    return {row.name: row.action for row in planned.rows}


def test_every_layer_has_a_row_in_the_order_of_the_pass() -> None:
    planned = plan(_Everything(), IMAGES)
    assert _actions(planned) == {
        **{"stem": "branch", "depthwise": "branch", "wide": "frozen", "first": "branch", "second": "branch"},
        **{"neck": "branch", "head": "frozen", "up": "refused", "idle": "refused"},
    }
    assert [row.name for row in planned.rows][:7] == ["stem", "depthwise", "wide", "first", "second", "neck", "head"]
    assert [unit.name for unit in planned.units] == ["stem", "depthwise", "first", "second", "neck"]
    assert [row.name for row in planned.having("refused")] == ["up", "idle"]


def test_rows_say_why() -> None:
    why = {row.name: row.why for row in plan(_Everything(), IMAGES, Targets(kinds="all", exclude=["head"])).rows}
    assert why == {
        "stem": "gated by batch norm stem_norm",
        "depthwise": "gated by batch norm depthwise_norm",
        "wide": "gated by row norms",
        "first": "gated by layer norm norm on its input",
        "second": "gated by layer norm norm on its output",
        "neck": "gated by batch norm neck_norm",
        "head": "excluded by name",
        "up": "a ConvTranspose2d is not a convolution or linear layer that merges",
        "idle": "the example does not call it; if its parent reads its weight directly, a branch would have no effect",
    }


def test_a_row_says_why_a_batch_norm_does_not_gate() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)).eval()
    (row,) = plan(net, IMAGES, Targets(kinds="all")).rows
    assert row.why == "gated by row norms (its batch norm '1' has no running statistics)"
    (row,) = plan(net, IMAGES).rows
    assert (row.action, row.parameters) == ("frozen", 0)
    assert row.why.startswith("its batch norm '1' has no running statistics; kinds='all' gates it")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kernel", ["same", "1x1"])
@pytest.mark.parametrize("batch_norm", [True, False])
def test_parameters_are_those_of_the_branches(
    kernel: Literal["same", "1x1"], batch_norm: bool, bias: bool, recwarn: pytest.WarningsRecorder
) -> None:
    targets = Targets(kinds="all", kernel=kernel, batch_norm=batch_norm)
    net = _Everything(bias)
    planned = plan(net, IMAGES, targets)
    hybrid = attach(net, IMAGES, targets=targets)
    real = {name: sum(p.numel() for p in branch_parameters(unit)) for name, unit in hybrid_units(hybrid).items()}
    assert {row.name: row.parameters for row in planned.rows if row.parameters} == real
    assert ("wide" in real) == (kernel == "same")
    total = sum(parameter.numel() for parameter in branch_parameters(hybrid))
    assert f"; {total:,} parameters in the branches until they are merged" in str(planned)


def test_a_plan_of_a_merged_network_names_the_same_branches() -> None:
    net = _Everything()
    first = plan(net, IMAGES)
    with pytest.warns(UserWarning, match="up: a ConvTranspose2d"):
        merged = merge(attach(net, IMAGES), IMAGES).model
    again = plan(merged, IMAGES)
    assert _actions(again) == _actions(first)
    assert [row.parameters for row in again.rows] == [row.parameters for row in first.rows]


def test_chosen_layers_without_a_centre_are_refused_for_pointwise_branches() -> None:
    planned = plan(_Everything(), IMAGES, Targets(kinds="all", kernel="1x1"))
    row = next(row for row in planned.rows if row.name == "wide")
    assert (row.action, row.why) == ("refused", "a 1x1 branch needs odd kernels with padding dilation·(k−1)/2")


def test_depth_counts_the_layers_as_they_run() -> None:
    actions = _actions(plan(_Everything(), IMAGES, Targets(kinds="all", depth=(0.5, 1))))
    assert [name for name, action in actions.items() if action == "branch"] == ["second", "neck", "head"]


def test_trainable_modules_are_the_users() -> None:
    planned = plan(_Everything(), IMAGES, Targets(trainable=["head", "stem*", "up"], kinds="all"))
    assert [row.name for row in planned.having("yours")] == ["stem", "head", "up"]
    assert {row.why for row in planned.having("yours")} == {"you train it"}
    assert {row.parameters for row in planned.having("yours")} == {0}


def test_the_table_is_aligned_and_totalled() -> None:
    lines = str(plan(_Everything(), IMAGES, Targets(trainable=["head"]))).split("\n")
    starts = {column: lines[0].index(column) for column in ("layer", "is", "gets", "why")}
    assert lines[0].split() == ["layer", "is", "gets", "why"]
    assert len(lines) == 12
    for line in lines[2:-1]:
        cells = [line[start:].split("  ")[0] for start in starts.values()]
        assert all(cells) and cells[2] in ("branch", "frozen", "refused", "yours")
        assert all(line[start - 2 : start] == "  " for start in starts.values() if start)
    assert lines[2][starts["why"] :] == "gated by batch norm stem_norm"
    assert lines[-1].startswith("5 with a branch, 1 frozen, 2 refused, 1 yours; ")


def test_a_network_without_layers_has_an_empty_plan() -> None:
    planned = plan(nn.Sequential(nn.ReLU()).eval(), IMAGES)
    assert planned.rows == ()
    assert str(planned).endswith("\nno layer; 0 parameters in the branches until they are merged")


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            Targets(include=["layer*"]),
            "Pattern 'layer*' matches none of the layers: stem, depthwise, wide, first, second",
        ),
        (Targets(exclude=["stem_norm"]), "Pattern 'stem_norm' matches none of the layers: stem"),
        (Targets(trainable=["heads"]), "Pattern 'heads' in trainable matches no module; write a name such as second"),
    ],
)
def test_patterns_that_match_nothing_are_refused(targets: Targets, message: str) -> None:
    with pytest.raises(InlayError) as caught:
        plan(_Everything(), IMAGES, targets)
    assert str(caught.value).startswith(message)


def test_patterns_may_name_layers_that_are_refused() -> None:
    planned = plan(_Everything(), IMAGES, Targets(include=["up", "stem"]))
    assert [unit.name for unit in planned.units] == ["stem"]


def test_the_network_is_not_changed() -> None:
    class Counting(_Everything):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))
            self.register_buffer("latest", torch.zeros(1))

        def forward(self, images: Tensor) -> Tensor:
            self.calls += 1
            self.latest = images.mean()
            return super().forward(images)

    net = Counting().eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    plan(net, IMAGES)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_a_plan_can_be_made_whatever_the_weights_hold() -> None:
    net = _Everything()
    with torch.no_grad():
        net.stem.weight.fill_(torch.nan)
    with pytest.raises(InlayError, match="not finite"):
        plan(net, IMAGES)
    assert len(make_plan(net, IMAGES, Targets()).units) == 5


def test_a_plan_without_branches_is_refused_with_reasons() -> None:
    net = _Everything()
    plan(net, IMAGES).require_branches()
    with pytest.raises(InlayError) as caught:
        plan(net, IMAGES, Targets(kinds=[nn.Conv1d])).require_branches()
    assert str(caught.value) == (
        "No layer of the network gets a branch (stem: of kind conv-bn, which is not chosen; depthwise: of kind "
        "conv-bn, which is not chosen; wide: of kind conv, which is not chosen); choose others with "
        "targets=Targets(...), see inlay.branches.plan."
    )
    with pytest.raises(InlayError, match=r"\(it calls no torch.nn convolution or linear layer\)"):
        Plan(()).require_branches()


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Conv2d(64, 128, 3), "Conv2d 64→128 3×3"),
        (nn.Conv3d(2, 4, (1, 3, 5), groups=2), "Conv3d 2→4 1×3×5 groups 2"),
        (nn.Conv1d(2, 4, 7), "Conv1d 2→4 7"),
        (nn.Linear(3, 5), "Linear 3→5"),
        (nn.ConvTranspose2d(3, 5, 1), "ConvTranspose2d"),
    ],
)
def test_layers_are_described_in_a_few_words(layer: nn.Module, words: str) -> None:
    assert describe_layer(layer) == words


def test_examples_may_be_several_arguments() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _Everything()

        def forward(self, images: Tensor, scale: float) -> dict[str, Any]:
            return {"scores": [self.body(images) * scale]}

    expected = [f"body.{row.name}" for row in plan(_Everything(), IMAGES).rows]
    examples: list[Any] = [(IMAGES, 2.0), {"scale": 2.0, "images": IMAGES}]
    for example in examples:
        assert [row.name for row in plan(Scaled().eval(), example).rows] == expected
