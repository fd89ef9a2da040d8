import hashlib

import torch

from inlay.engine.randomness import derive_seed, generator


def _slow_seed(text: str) -> int:
    digits = hashlib.blake2b(text.encode("utf-8"), digest_size=8).hexdigest()
    return int(digits, base=16) // 2


def test_seed_against_an_independent_computation() -> None:
    assert derive_seed(0) == _slow_seed("0")
    assert derive_seed(7, "stage", 2) == _slow_seed("7/stage/2")
    assert derive_seed(-1, "k-means") == _slow_seed("-1/k-means")
    assert derive_seed(3, "ä") == _slow_seed("3/ä")


def test_seeds_fit_in_63_bits_and_use_them() -> None:
    seeds = [derive_seed(0, "step", step) for step in range(1000)]
    assert min(seeds) >= 0
    assert 2**62 < max(seeds) < 2**63


def test_seeds_of_different_places_differ() -> None:
    places: list[tuple[str | int, ...]] = [(), ("base",), ("stage", 1), ("stage", 11), ("stage", 1, 1)]
    places += [(name, number) for name in ("order", "step") for number in range(1000)]
    seeds = {derive_seed(seed, *place) for seed in range(20) for place in places}
    assert len(seeds) == 20 * len(places)


def _draw(source: torch.Generator) -> torch.Tensor:
    return torch.rand(8, generator=source)


def test_generators_do_not_depend_on_the_order_of_calls() -> None:
    first = _draw(generator(5, "a"))
    _draw(generator(5, "b"))
    one, two = generator(5, "b"), generator(5, "a")
    drawn_from_one = _draw(one)
    assert torch.equal(_draw(two), first)
    assert not torch.equal(drawn_from_one, first)
    assert not torch.equal(_draw(generator(6, "a")), first)


def test_generators_leave_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    _draw(generator(1, "x"))
    assert torch.equal(torch.get_rng_state(), state)
