import pytest
import torch
from torch import Tensor, nn

from inlay import branches
from inlay.backbones.task_tokens import Shape, TaskTokenNetwork, shape_named
from inlay.data.draws import Draws
from inlay.errors import InlayError

_TINY = Shape(patch=2, width=12, heads=3, blocks=2, drop=0.4)


def _network(tokens: int = 1) -> TaskTokenNetwork:
    source = torch.Generator().manual_seed(0)
    network = TaskTokenNetwork(_TINY, 1, (8, 8), source)
    for _ in range(tokens - 1):
        network.add_token(source)
    return network.double().eval()


def _shaken(module: nn.Module, scale: float = 0.3) -> None:
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=source, dtype=torch.float64))


def _images(count: int = 3) -> Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def _alone(network: TaskTokenNetwork, token: Tensor, image: Tensor) -> Tensor:
    """The embedding of one token for one image: one query, one head after the other, nothing masked."""
    block, layer = network.decoder, network.decoder.attention
    everything = block.norm1(torch.cat([token[None], network.encoder(image[None])[0]]))
    query, keys, values = layer.query(everything[0]), layer.key(everything), layer.value(everything)
    parts = []
    for part in torch.arange(12).chunk(3):
        weights = torch.softmax(torch.stack([query[part] @ key[part] for key in keys]) / 2.0, dim=0)
        parts.append(sum(weight * value[part] for weight, value in zip(weights, values, strict=True)))
    token = token + layer.projection(torch.cat(parts))
    return token + block.mlp(block.norm2(token))  # type: ignore[no-any-return]


def test_each_token_is_embedded_as_if_it_were_alone() -> None:
    network = _network(tokens=3)
    _shaken(network)
    found = network(_images()).view(3, 3, 12)
    for row, image in enumerate(_images()):
        for place, token in enumerate(network.tokens):
            torch.testing.assert_close(found[row, place], _alone(network, token, image))


def test_a_new_token_leaves_the_others_as_they_are() -> None:
    network = _network(tokens=2)
    before = network(_images())
    network.add_token(torch.Generator().manual_seed(9))
    after = network(_images())
    assert after.shape == (3, 36)
    torch.testing.assert_close(after[:, :24], before, rtol=0, atol=1e-14)
    assert network.tokens[2].requires_grad and not torch.equal(network.tokens[2], network.tokens[1])


def test_paths_are_dropped_ever_more_often_and_for_each_task_alone() -> None:
    network = _network(tokens=2)
    first, second, last = network.drawn_paths(Draws(1, torch.arange(3000)))
    assert first is None and second is not None and last is not None
    assert [part.shape for part in (*second, *last)] == [(3000, 1, 1)] * 2 + [(3000, 2, 1)] * 2
    shares = [(part == 0).double().mean().item() for part in (*second, *last)]
    assert shares == pytest.approx([0.2, 0.2, 0.4, 0.4], abs=0.03)


def test_a_step_with_dropped_paths_differs_for_those_images_alone() -> None:
    network, images = _network(tokens=2), _images(8)
    _shaken(network)
    kept = network.drawn_paths(Draws(1, torch.arange(8)))
    whole = torch.tensor([all(bool((p[row] > 0).all()) for part in kept if part for p in part) for row in range(8)])
    plain = [None if part is None else (part[0].clamp(max=1), part[1].clamp(max=1)) for part in kept]
    same = (network(images, plain) - network(images)).abs().amax(dim=1) < 1e-12
    assert whole.any() and not whole.all() and torch.equal(same, whole)
    ones = [None if part is None else (torch.ones_like(part[0]), torch.ones_like(part[1])) for part in kept]
    torch.testing.assert_close(network(images, ones), network(images))


def test_the_network_of_the_paper_has_its_parameters() -> None:
    network = TaskTokenNetwork(shape_named("dytox"), 3, (32, 32), torch.Generator().manual_seed(0))
    mlp = 384 * 1536 + 1536 + 1536 * 384 + 384
    block = 4 * 384 * 384 + 384 + 2 * 768 + mlp
    expected = 48 * 384 + 384 + 64 * 384 + 5 * (block + 12 * 3 + 12) + block + 384
    assert sum(parameter.numel() for parameter in network.parameters()) == expected
    # With ten tokens and the heads of a hundred classes it is printed as 10.73M.
    assert round((expected + 9 * 384 + 100 * 385 + 10 * 768) / 1e6, 2) == 10.73
    assert len(network.encoder.blocks) == 5 and network.encoder.blocks[0].attention.heads == 12  # type: ignore[union-attr]


def test_branches_go_to_the_mlp_of_every_block() -> None:
    plan = branches.plan(_network(tokens=2), _images())
    blocks = ["encoder.blocks.0", "encoder.blocks.1", "decoder"]
    expected = [
        (f"{block}.mlp.{layer}", "mlp", f"{block}.norm2", side)
        for block in blocks
        for layer, side in (("fc1", "in"), ("fc2", "out"))
    ]
    assert [(unit.name, unit.kind, unit.norm, unit.side) for unit in plan.units] == expected


@pytest.mark.parametrize("gate", ["imm", "constant", "amm"])
def test_branches_merge_exactly_beside_a_new_token(gate: str) -> None:
    network = _network(tokens=2)
    _shaken(network)
    options = {"value": 0.3} if gate == "constant" else {}
    hybrid = branches.attach(network.requires_grad_(False), _images(), branches.gate(gate, **options))
    assert isinstance(hybrid, TaskTokenNetwork)
    hybrid.add_token(torch.Generator().manual_seed(4))
    trained = [parameter for parameter in hybrid.parameters() if parameter.requires_grad]
    assert {id(p) for p in trained} == {id(p) for p in (*branches.branch_parameters(hybrid), hybrid.tokens[2])}
    source = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in trained:
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=source, dtype=torch.float64))
    kept = hybrid.drawn_paths(Draws(1, torch.arange(3)))
    report = branches.merge(hybrid, _images())
    merged = report.model
    assert isinstance(merged, TaskTokenNetwork)
    assert report.relative_diff is not None and report.relative_diff < 1e-13
    torch.testing.assert_close(merged(_images(), kept), hybrid.train()(_images(), kept), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(merged(_images())[:, :24], network(_images()), atol=1e-3)
    aside = [sum(p.numel() for p in net.parameters()) - 12 * len(net.tokens) for net in (network, merged)]
    assert aside[0] == aside[1] and list(merged.state_dict()) == [*network.state_dict(), "tokens.2"]


def test_reduced_precision_stays_near() -> None:
    network, images = _network(tokens=2).float(), _images().float()
    with torch.autocast("cpu", torch.bfloat16):
        found = network(images, network.drawn_paths(Draws(1, torch.arange(3))))
        plain = network(images)
    assert found.isfinite().all()
    torch.testing.assert_close(plain.float(), network(images), atol=0.02, rtol=0.05)


def test_sizes_and_names_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InlayError, match=r"14 x 14 pixels.*patches of 4 x 4"):
        TaskTokenNetwork(Shape(), 1, (14, 14))
    with pytest.raises(InlayError, match="backbone=dytox or dytox-tiny"):
        shape_named("resnet8")


@pytest.mark.parametrize("needing", [True, False])
def test_the_published_size_takes_branches_whether_or_not_it_needs_gradients(needing: bool) -> None:
    source = torch.Generator().manual_seed(0)
    network = TaskTokenNetwork(shape_named("dytox"), 3, (32, 32), source).eval().requires_grad_(needing)
    hybrid = branches.attach(network, torch.randn(2, 3, 32, 32, generator=source), "amm", generator=source)
    assert len(branches.hybrid_units(hybrid)) == 12
    assert all(parameter.requires_grad is needing for parameter in network.parameters())
