import copy
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inlay.backbones.twin import ResidualStudentHead, padded_head
from inlay.discovery.calibration import HeadScale, measure_scale
from inlay.discovery.projection import StudentHead
from inlay.errors import InlayError
from inlay.heads import (
    ConcatenatedHead,
    CosineHead,
    MappedCosineHead,
    NovelHead,
    describe_head,
    grow,
    kaiming_linear,
    linear,
    projector,
    rebuild_head,
)

_NOVEL_KINDS = ("linear", "cosine", "mapped-cosine", "student", "residual-student")
_OLD, _NEW, _D = 4, 3, 6


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_cosine_head_against_a_loop() -> None:
    prototypes = torch.randn(4, 6, generator=_generator(1), dtype=torch.float64)
    features = 5 * torch.randn(3, 6, generator=_generator(2), dtype=torch.float64)
    found = CosineHead(prototypes)(features)
    assert found.shape == (3, 4)
    for i, feature in enumerate(features.tolist()):
        for k, prototype in enumerate(prototypes.tolist()):
            product = sum(a * b for a, b in zip(feature, prototype, strict=True))
            lengths = math.sqrt(sum(a * a for a in feature)) * math.sqrt(sum(b * b for b in prototype))
            assert found[i, k].item() == pytest.approx(product / lengths, abs=1e-12)


def test_kaiming_weights_have_the_variance_of_their_inputs_and_no_biases() -> None:
    layer = kaiming_linear(50, 400, _generator())
    weights = [value for row in layer.weight.tolist() for value in row]
    variance = sum(value * value for value in weights) / len(weights)
    assert variance == pytest.approx(1 / 50, rel=0.03) and not layer.bias.any()
    assert abs(sum(weights) / len(weights)) < 0.005 and max(weights) > 3 / math.sqrt(50)
    assert torch.equal(layer.weight, kaiming_linear(50, 400, _generator()).weight)


def test_cosine_head_takes_directions_alone_and_a_copy() -> None:
    prototypes = torch.tensor([[3.0, 4.0], [0.0, -2.0]])
    head = CosineHead(prototypes)
    assert torch.allclose(head.prototypes, torch.tensor([[0.6, 0.8], [0.0, -1.0]]))
    assert torch.equal(prototypes, torch.tensor([[3.0, 4.0], [0.0, -2.0]]))
    assert head.prototypes.requires_grad
    with torch.no_grad():
        head.prototypes.mul_(7)
    assert torch.allclose(head(torch.tensor([[1.0, 0.0]])), torch.tensor([[0.6, 0.0]]))


def test_mapped_cosine_head_scores_the_image_of_the_features() -> None:
    centre, matrix, prototypes = _normal(6, seed=1), _normal(6, 3, seed=2), _normal(4, 3, seed=3)
    features = _normal(5, 6, seed=4)
    head = MappedCosineHead(centre, matrix, prototypes)
    moved = [
        [sum((x - c) * m for x, c, m in zip(row, centre.tolist(), column, strict=True)) for column in matrix.T.tolist()]
        for row in features.tolist()
    ]
    torch.testing.assert_close(head(features), CosineHead(prototypes)(torch.tensor(moved, dtype=torch.float64)))
    assert [name for name, _ in head.named_parameters()] == ["cosine.prototypes"]


def test_linear_is_uniform_within_the_default_bound() -> None:
    layer = linear(64, 2000, _generator())
    bound = 1 / 8
    for parameter in (layer.weight, layer.bias):
        values = parameter.detach().flatten()
        assert -bound <= values.min() < -0.98 * bound
        assert 0.98 * bound < values.max() < bound
        assert values.mean().abs() < 0.05 * bound
        assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
        assert parameter.requires_grad


def test_linear_has_the_bound_of_pytorch() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        default = nn.Linear(64, 2000)
    own = linear(64, 2000, _generator())
    assert own.weight.abs().max().item() == pytest.approx(default.weight.abs().max().item(), rel=0.01)
    assert own.bias.abs().max().item() == pytest.approx(default.bias.abs().max().item(), rel=0.01)


def test_linear_is_a_function_of_its_generator() -> None:
    state = torch.get_rng_state()
    first, again, other = (linear(5, 3, _generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.weight, again.weight)
    assert torch.equal(first.bias, again.bias)
    assert not torch.equal(first.weight, other.weight)
    assert torch.equal(torch.get_rng_state(), state)


def test_projector_is_two_layers_with_relu_between() -> None:
    network = projector(6, 3, _generator())
    features = torch.randn(4, 6, generator=_generator(1))
    first, last = network[0], network[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    assert first.weight.shape == (6, 6)
    hidden = (features @ first.weight.T + first.bias).clamp(min=0)
    assert torch.allclose(network(features), hidden @ last.weight.T + last.bias, atol=1e-6)
    assert not torch.equal(first.weight[:3], last.weight)


def test_grown_head_keeps_the_old_outputs() -> None:
    head = linear(5, 3, _generator())
    wider = grow(head, 2, _generator(1))
    features = torch.randn(7, 5, generator=_generator(2))
    assert (wider.in_features, wider.out_features) == (5, 5)
    assert torch.equal(wider.weight[:3], head.weight)
    assert torch.equal(wider.bias[:3], head.bias)
    assert torch.allclose(wider(features)[:, :3], head(features), atol=1e-6)
    assert head.out_features == 3


def test_new_biases_are_one_below_the_smallest_old_one() -> None:
    head = linear(5, 3, _generator())
    with torch.no_grad():
        head.bias.copy_(torch.tensor([0.5, -2.0, 4.0]))
    assert torch.equal(grow(head, 2, _generator(1)).bias[3:], torch.tensor([-3.0, -3.0]))


def test_new_rows_are_random_by_the_generator_and_apart_from_the_old_head() -> None:
    head = linear(5, 3, _generator())
    first, again, other = (grow(head, 2, _generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight[3:], other.weight[3:])
    assert not torch.equal(first.weight[3], first.weight[4])
    assert first.weight[3:].abs().max() <= 1 / math.sqrt(5)
    with torch.no_grad():
        first.weight.zero_()
    assert head.weight.abs().sum() > 0


def test_grown_head_has_the_precision_of_the_old_one() -> None:
    assert grow(linear(5, 3, _generator()).double(), 2, _generator()).weight.dtype == torch.float64


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=_generator(seed), dtype=torch.float64)


def _novel(kind: str) -> NovelHead:
    if kind == "linear":
        return linear(_D, _NEW, _generator(10)).double()
    if kind == "cosine":
        return CosineHead(_normal(_NEW, _D, seed=11))
    if kind == "mapped-cosine":
        return MappedCosineHead(_normal(_D, seed=17), _normal(_D, 2, seed=18), _normal(_NEW, 2, seed=19))
    if kind == "student":
        return StudentHead(_normal(_NEW, _D, seed=12), _normal(_D, seed=13), _normal(_NEW, _NEW, seed=14))
    half = _D // 2
    student = StudentHead(_normal(_NEW, half, seed=12), _normal(half, seed=13), _normal(_NEW, _NEW, seed=14))
    return ResidualStudentHead(student)


def _concatenated(kind: str) -> ConcatenatedHead:
    """Both heads after a step away from what their constructors make, with measured scales."""
    old, novel = linear(_D, _OLD, _generator(0)).double(), _novel(kind)
    with torch.no_grad():
        for parameter in (*old.parameters(), *novel.parameters()):
            parameter.add_(0.3 * _normal(*parameter.shape, seed=15))
        features = _normal(50, _D, seed=16)
        scales = measure_scale(old(features)), measure_scale(novel(features))
    return ConcatenatedHead(old, novel, *scales)


@pytest.mark.parametrize("kind", _NOVEL_KINDS)
def test_scores_of_two_heads_against_loops(kind: str) -> None:
    head, features = _concatenated(kind), _normal(5, _D, seed=17)
    assert (head.in_features, head.out_features, head.old_classes) == (_D, _OLD + _NEW, _OLD)
    raw, calibrated = head(features), head.calibrated(features)
    assert raw.shape == calibrated.shape == (5, _OLD + _NEW)
    offsets = [head.old_offset.item()] * _OLD + [head.novel_offset.item()] * _NEW
    scales = [head.old_scale.item()] * _OLD + [head.novel_scale.item()] * _NEW
    for n, feature in enumerate(features):
        scores = [float(row @ feature + bias) for row, bias in zip(head.old.weight, head.old.bias, strict=True)]
        scores += head.novel(feature[None])[0].tolist()
        assert raw[n].tolist() == pytest.approx(scores, rel=1e-12)
        expected = [(score - offset) / scale for score, offset, scale in zip(scores, offsets, scales, strict=True)]
        assert calibrated[n].tolist() == pytest.approx(expected, rel=1e-12)


def test_scales_are_kept_as_they_were_given() -> None:
    numbers = [HeadScale(torch.tensor(a), torch.tensor(b)) for a, b in ((1.0, 2.0), (3.0, 4.0))]
    head = ConcatenatedHead(linear(_D, _OLD, _generator()), linear(_D, _NEW, _generator()), *numbers)
    buffers = {name: tensor.item() for name, tensor in head.named_buffers()}
    assert buffers == {"old_offset": 1, "old_scale": 2, "novel_offset": 3, "novel_scale": 4}
    numbers[0].offset.fill_(9)
    assert head.old_offset.item() == 1


def test_assignments_never_win_against_logits_above_one_unless_calibrated() -> None:
    old, novel = linear(_D, _OLD, _generator()).double(), _novel("student")
    with torch.no_grad():
        old.weight.mul_(0.1)
        old.bias.add_(5)
        features = _normal(40, _D, seed=18)
        head = ConcatenatedHead(old, novel, measure_scale(old(features)), measure_scale(novel(features)))
        assert (head(features).argmax(dim=1) < _OLD).all()
        assert (head.calibrated(features).argmax(dim=1) >= _OLD).any()


def test_old_head_is_a_frozen_copy_and_the_novel_head_learns() -> None:
    old, novel = linear(_D, _OLD, _generator()), linear(_D, _NEW, _generator(1))
    scale = HeadScale(torch.tensor(0.0), torch.tensor(1.0))
    head = ConcatenatedHead(old, novel, scale, scale)
    assert {name for name, parameter in head.named_parameters() if parameter.requires_grad} == {
        "novel.weight",
        "novel.bias",
    }
    assert old.weight.requires_grad
    expected = old.weight.detach().clone()
    with torch.no_grad():
        old.weight.zero_()
        novel.weight.zero_()
    assert torch.equal(head.old.weight, expected)
    assert torch.equal(head.novel(torch.ones(1, _D)), novel.bias[None])


def test_precision_moves_with_the_head() -> None:
    head = _concatenated("linear")
    assert {tensor.dtype for tensor in head.state_dict().values()} == {torch.float64}
    single = copy.deepcopy(head).float()
    assert {tensor.dtype for tensor in single.state_dict().values()} == {torch.float32}
    features = _normal(5, _D, seed=17)
    assert single(features.float()).dtype == single.calibrated(features.float()).dtype == torch.float32
    assert torch.allclose(single.calibrated(features.float()).double(), head.calibrated(features), atol=1e-4)


@pytest.mark.parametrize("kind", _NOVEL_KINDS)
def test_concatenated_head_is_one_graph(kind: str) -> None:
    head, features = _concatenated(kind), _normal(5, _D, seed=17)

    def step(features: Tensor) -> tuple[Tensor, Tensor]:
        return head(features), head.calibrated(features)

    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend="aot_eager")
    torch.testing.assert_close(compiled(features), step(features))


def test_heads_that_do_not_fit_are_refused() -> None:
    old, scale = linear(_D, _OLD, _generator()), HeadScale(torch.tensor(0.0), torch.tensor(1.0))
    with pytest.raises(ValueError, match="size 6, the novel one of size 12"):
        ConcatenatedHead(old, padded_head(linear(_D, _NEW, _generator())), scale, scale)
    with pytest.raises(ValueError, match="got a Sequential"):
        ConcatenatedHead(old, projector(_D, _NEW, _generator()), scale, scale)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be linear; got a ConcatenatedHead"):
        ConcatenatedHead(_concatenated("linear"), old, scale, scale)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", _NOVEL_KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_concatenated_head_is_described_and_rebuilt_bit_for_bit(kind: str, dtype: torch.dtype) -> None:
    head, features = _concatenated(kind).to(dtype), _normal(5, _D, seed=17).to(dtype)
    description = json.loads(json.dumps(describe_head(head)))
    assert description == {"kind": "concatenated", "novel": {"kind": kind}}
    tensors = head.state_dict()
    rebuilt = rebuild_head(description, tensors)
    assert isinstance(rebuilt, ConcatenatedHead)
    assert torch.equal(rebuilt(features), head(features))
    assert torch.equal(rebuilt.calibrated(features), head.calibrated(features))
    assert (rebuilt.in_features, rebuilt.out_features, rebuilt.old_classes) == (_D, _OLD + _NEW, _OLD)
    assert not rebuilt.old.weight.requires_grad
    assert describe_head(rebuilt) == description


@pytest.mark.parametrize("kind", _NOVEL_KINDS)
def test_single_heads_are_described_and_rebuilt_bit_for_bit(kind: str) -> None:
    head, features = _concatenated(kind).novel, _normal(5, _D, seed=17)
    assert describe_head(head) == {"kind": kind}
    assert torch.equal(rebuild_head({"kind": kind}, head.state_dict())(features), head(features))


def test_rebuilt_head_has_tensors_of_its_own() -> None:
    state, tensors = torch.get_rng_state(), linear(_D, _OLD, _generator()).state_dict()
    rebuilt = rebuild_head({"kind": "linear"}, tensors)
    tensors["weight"].zero_()
    assert isinstance(rebuilt, nn.Linear)
    assert rebuilt.weight.abs().sum() > 0
    assert torch.equal(torch.get_rng_state(), state)


class _Scaled(nn.Linear):
    pass


def test_heads_of_other_kinds_are_not_described() -> None:
    for head in (nn.ReLU(), _Scaled(2, 2, device="meta")):
        with pytest.raises(ValueError, match=f"got a {type(head).__name__}"):
            describe_head(head)


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"kind": "quadratic"},
        {"kind": "concatenated"},
        {"kind": "concatenated", "novel": "linear"},
        {"kind": "concatenated", "novel": {"kind": "concatenated", "novel": {"kind": "linear"}}},
    ],
)
def test_unknown_kinds_are_refused(description: dict[str, Any]) -> None:
    with pytest.raises(InlayError, match="write one of linear, cosine, mapped-cosine, student, residual-student"):
        rebuild_head(description, _concatenated("linear").state_dict())


@pytest.mark.parametrize("kind", _NOVEL_KINDS)
def test_tensors_that_do_not_fit_are_refused(kind: str) -> None:
    head = _concatenated(kind)
    description, whole = describe_head(head), head.state_dict()
    broken = [{**whole, "novel.more": torch.zeros(2)}]
    for name, tensor in whole.items():
        broken.append({other: value for other, value in whole.items() if other != name})
        broken.append({**whole, name: torch.stack([tensor, tensor])})
    for tensors in broken:
        with pytest.raises(InlayError, match="do not fit a head of the kind concatenated"):
            rebuild_head(description, tensors)


def test_tensors_of_another_kind_are_refused() -> None:
    tensors = _concatenated("cosine").state_dict()
    for kind in ("linear", "mapped-cosine", "student", "residual-student"):
        with pytest.raises(InlayError, match="do not fit a head of the kind concatenated"):
            rebuild_head({"kind": "concatenated", "novel": {"kind": kind}}, tensors)
    with pytest.raises(InlayError, match="do not fit a head of the kind linear"):
        rebuild_head({"kind": "linear"}, tensors)
