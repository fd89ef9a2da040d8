from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inlay.branches.example import described, double, floating_outputs, run, tensors_in
from inlay.errors import InlayError

ONE, TWO, IDS = torch.ones(2, 3), torch.full((2, 3), 2.0), torch.tensor([1, 2])
Point = namedtuple("Point", ["x", "y"])


@dataclass
class Outputs:
    features: Tensor
    extra: object = None


class _Difference(nn.Module):
    """Subtracts two inputs, the second of which may be hidden."""

    def forward(self, left: Tensor, right: Any = 0.0) -> Tensor:
        out: Tensor = left - (right["deep"][0] if isinstance(right, dict) else right)
        return out


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        (TWO, 2.0),
        ((TWO, ONE), 1.0),
        ({"right": ONE, "left": TWO}, 1.0),
        (UserDict(left=TWO, right=ONE), 1.0),
        ((TWO, {"deep": [ONE]}), 1.0),
        (Point(TWO, ONE), 1.0),
        ({"left": TWO, "right": 0.5}, 1.5),
    ],
    ids=["tensor", "tuple", "mapping", "other mapping", "nested", "named tuple", "number"],
)
def test_an_example_is_a_batch_or_the_arguments(example: Any, expected: float) -> None:
    returned = run(_Difference(), example, "example")
    assert isinstance(returned, Tensor)
    assert torch.equal(returned, torch.full((2, 3), expected))


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x,), lambda x: {"images": x}, lambda x: ([x],)])
def test_the_tensors_of_an_example_are_never_changed(wrap: Any) -> None:
    class Greedy(nn.Module):
        def forward(self, images: Any) -> Tensor:
            out: Tensor = (images[0] if isinstance(images, list) else images).mul_(2)
            return out

    images = torch.ones(2, 3)
    first = run(Greedy(), wrap(images), "example")
    second = run(Greedy(), wrap(images), "example")
    assert isinstance(first, Tensor) and isinstance(second, Tensor)
    assert torch.equal(first, second)
    assert torch.equal(images, torch.ones(2, 3))


def test_one_tensor_given_twice_is_one_tensor_for_the_network() -> None:
    class Same(nn.Module):
        def forward(self, query: Tensor, keys: list[Tensor]) -> bool:
            return query is keys[0]

    assert run(Same(), (ONE, [ONE]), "example") is True
    assert run(Same(), (ONE, [ONE.clone()]), "example") is False


def test_gradients_of_the_input_can_be_taken_inside() -> None:
    class Score(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            with torch.enable_grad():
                return torch.autograd.grad(values.square().sum(), values)[0]

    values = ONE.clone().requires_grad_()
    with torch.no_grad():
        returned = run(Score(), values, "example")
    assert isinstance(returned, Tensor)
    assert torch.equal(returned, 2 * ONE)


def test_a_failing_network_gives_one_sentence() -> None:
    class Failing(nn.Module):
        def forward(self, images: Tensor, mask: object = None) -> Tensor:
            raise KeyError("first line\n   second line " + "x" * 500)

    with pytest.raises(InlayError) as caught:
        run(Failing(), {"images": ONE, "mask": None}, "probe")
    message = str(caught.value)
    assert message.startswith(
        "The network fails on the probe (images: float32 [2, 3], mask: NoneType); pass one that it"
    )
    assert "(KeyError: 'first line\\n second line xxx" in message
    assert "\n" not in message and message.endswith(").") and len(message) < 450
    assert isinstance(caught.value.__cause__, KeyError)


def test_wrong_arguments_give_one_sentence() -> None:
    with pytest.raises(InlayError, match=r"fails on the example \(wrong: float32 \[2, 3\]\).*unexpected keyword"):
        run(_Difference(), {"wrong": ONE}, "example")


def test_an_error_meant_for_the_user_passes() -> None:
    class Clear(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            raise InlayError("Pass images of 32 pixels.")

    with pytest.raises(InlayError, match=r"^Pass images of 32 pixels\.$"):
        run(Clear(), ONE, "example")


@pytest.mark.parametrize("example", [[ONE], "images", None, {1}])
def test_other_examples_are_refused(example: Any) -> None:
    kind = type(example).__name__
    with pytest.raises(InlayError, match=f"^The example is a {kind}; pass a tensor, a tuple of positional"):
        run(_Difference(), example, "example")


def test_examples_are_described_by_their_shapes() -> None:
    assert described(ONE) == "float32 [2, 3]"
    assert described((IDS, 3, [ONE])) == "int64 [2], int, list"
    assert described({"ids": IDS, "mask": None}) == "ids: int64 [2], mask: NoneType"


def test_floating_tensors_are_doubled_wherever_they_are() -> None:
    doubled: Any = double((ONE, IDS, {"deep": [ONE, 3]}, "text"))
    assert [tensor.dtype for tensor in tensors_in(doubled)] == [torch.float64, torch.int64, torch.float64]
    assert doubled[2]["deep"][1] == 3 and doubled[3] == "text"
    assert doubled[0] is doubled[2]["deep"][0]
    single = double({"left": ONE.half()})
    assert isinstance(single, dict) and single["left"].dtype == torch.float64
    assert ONE.dtype == torch.float32


def test_outputs_are_found_in_lists_tuples_mappings_and_dataclasses() -> None:
    returned = {"a": [ONE, (TWO, IDS)], "b": Outputs(ONE * 3, {"c": Point(ONE * 4, None)}), "n": 5, "type": Outputs}
    assert [tensor[0, 0].item() for tensor in floating_outputs(returned)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("returned", "kind"), [(IDS, "Tensor"), ({"n": 1}, "dict"), (None, "NoneType"), (nn.Identity(), "Identity")]
)
def test_outputs_without_a_floating_tensor_are_refused(returned: object, kind: str) -> None:
    with pytest.raises(InlayError, match=f"^The network returns a {kind} without any floating tensor.*; wrap it in a"):
        floating_outputs(returned)
