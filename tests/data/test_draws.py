import math
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from inlay.data.augment import VIEWS
from inlay.data.draws import Draws
from inlay.data.normalisation import Normalisation
from inlay.discovery.neighbours import draw_partners
from inlay.discovery.statistics import ClassStatistics

KEYS = (0, 1, 2**32 - 1, 2**32, 0x123456789ABCDEF0, 2**63 - 1)


def slow_word(key: int, index: int, place: int) -> int:
    """One word of a stream in Python's unbounded integers."""

    def stirred(word: int, shift: int, factor: int) -> int:
        return (word + (word >> shift)) * factor % 2**32

    def mixed(word: int) -> int:
        word = stirred(stirred(word, 16, 0x21F0AAAD), 15, 0xD35A2D97)
        return (word + (word >> 15)) % 2**32

    first = mixed((key % 2**32) ^ 0x9E3779B9)
    second = mixed((key // 2**32) ^ first)
    left = mixed((index % 2**32) ^ second)
    right = mixed((index // 2**32) ^ left ^ first)
    word = stirred(left ^ place, 17, 0xED5AD4BB) ^ right
    word = stirred(word, 11, 0xAC4C1B51)
    word = (word ^ (word >> 15)) * 0x31848BAB % 2**32
    return word ^ (word >> 14)


def words(key: Tensor | int, indices: Tensor, count: int) -> Tensor:
    return Draws(key, indices).choice(2**31, count)


def test_every_method_equals_the_loops() -> None:
    indices = [0, 1, 5, 49_999, 2**32 - 1, 2**32, 2**62 + 12345]
    for key in KEYS:
        draws = Draws(key, torch.tensor(indices))
        # More than one block of words, with a draw across the edge of the first.
        whole, uniform, truth = draws.whole(4, 3, 2), draws.uniform(-2, 3, 30), draws.chance(0.3)
        choice, normal = draws.choice(7, 50), draws.normal(2, 2)
        for row, index in enumerate(indices):
            stream = [slow_word(key, index, place) for place in range(91)]
            assert whole[row].flatten().tolist() == [word * 9 // 2**32 - 4 for word in stream[:6]]
            unit = [word // 2**8 / 2**24 for word in stream[6:36]]
            assert uniform[row].tolist() == pytest.approx([5 * value - 2 for value in unit], abs=1e-6)
            assert truth[row].item() == (stream[36] / 2**32 < 0.3)
            assert choice[row].tolist() == [word * 7 // 2**32 for word in stream[37:87]]
            radius = [math.sqrt(-2 * math.log(1 - word // 2**8 / 2**24)) for word in stream[87:89]]
            angle = [2 * math.pi * (word // 2**8) / 2**24 for word in stream[89:91]]
            expected = [r * turn(a) for turn in (math.cos, math.sin) for r, a in zip(radius, angle, strict=True)]
            assert normal[row].flatten().tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_row_depends_on_its_own_index_alone(as_tensor: bool) -> None:
    def drawn(indices: Tensor) -> list[Tensor]:
        draws = Draws(torch.tensor(KEYS[4]) if as_tensor else KEYS[4], indices)
        return [draws.uniform(-1, 1, 3), draws.whole(5, 2), draws.choice(9), draws.chance(0.5), draws.normal(3)]

    every = drawn(torch.arange(100))
    chosen = torch.tensor([70, 3, 3, 99, 0])
    for all_rows, some in zip(every, drawn(chosen), strict=True):
        assert torch.equal(all_rows[chosen], some)


def test_shapes_and_types() -> None:
    draws = Draws(3, torch.arange(5))
    assert draws.uniform(0, 1).shape == (5,) and draws.uniform(0, 1, 2, 3).shape == (5, 2, 3)
    assert draws.uniform(0, 1).dtype == draws.normal(3).dtype == torch.float32
    assert draws.whole(2, 1, 2).shape == (5, 1, 2) and draws.whole(2).dtype == torch.int64
    assert draws.choice(4).shape == (5,) and draws.choice(4).dtype == torch.int64
    assert draws.chance(0.5).shape == (5,) and draws.chance(0.5).dtype == torch.bool
    assert draws.normal(3, 5).shape == (5, 3, 5) and draws.normal().shape == (5,)
    assert Draws(3, torch.arange(0)).normal(3).shape == (0, 3)


def test_calls_go_on_in_the_stream() -> None:
    draws, again = (Draws(9, torch.arange(50)) for _ in range(2))
    first, second = draws.uniform(0, 1, 20), draws.uniform(0, 1, 20)
    assert not torch.isin(first, second).any()
    assert torch.equal(again.uniform(0, 1, 40), torch.cat([first, second], dim=1))


def test_ends_of_the_ranges() -> None:
    draws = Draws(1, torch.arange(100_000))
    unit = draws.uniform(0, 1, 10)
    assert 0 <= unit.min() < 1e-5 and 1 - 1e-5 < unit.max() < 1
    assert sorted(set(draws.whole(2).tolist())) == [-2, -1, 0, 1, 2]
    assert not draws.chance(0).any() and draws.chance(1).all()
    assert not draws.choice(1).any() and not draws.whole(0).any()
    assert draws.choice(2**31).max() > 2**31 - 2**17


def chi_square(bins: Tensor, count: int) -> float:
    """The statistic of equally likely bins in standard deviations from its mean."""
    found = torch.bincount(bins.flatten(), minlength=count).double()
    expected = bins.numel() / count
    statistic = ((found - expected) ** 2 / expected).sum().item()
    return (statistic - (count - 1)) / math.sqrt(2 * (count - 1))


@pytest.mark.parametrize("along", ["indices", "keys", "places"])
def test_neighbours_in_any_direction_look_independent(along: str) -> None:
    count = 2**16
    if along == "indices":
        series = words(7, torch.arange(count), 1)[:, 0]
    elif along == "keys":
        series = torch.stack([words(key, torch.tensor([7]), 1)[0, 0] for key in range(2**11)])
    else:
        series = words(7, torch.tensor([7]), count)[0]
    unit = (series.double() + 0.5) / 2**31
    error = 1 / math.sqrt(len(unit))
    assert abs(unit.mean().item() - 0.5) < 4 * error * math.sqrt(1 / 12)
    assert abs(unit.var().item() - 1 / 12) < 4 * error * math.sqrt(1 / 180)
    for lag in (1, 2, 3, 4, 8, 16, 1024):
        assert abs(torch.corrcoef(torch.stack([unit[:-lag], unit[lag:]]))[0, 1].item()) < 4.5 * error
    assert abs(chi_square(series >> 23, 256)) < 5
    assert abs(chi_square(series & 255, 256)) < 5
    # Pairs of neighbours fill the square.
    pairs = (series[:-1] >> 27) * 16 + (series[1:] >> 27)
    assert abs(chi_square(pairs, 256)) < 5


@pytest.mark.parametrize(
    ("keys", "step", "rows", "count"), [(64, 1, 512, 32), (64, 2**32, 512, 32), (1, 1, 1024, 1024)]
)
def test_words_meet_no_more_often_than_chance(keys: int, step: int, rows: int, count: int) -> None:
    drawn = torch.stack([words(key * step, torch.arange(rows), count) for key in range(keys)])
    # About 256 of 2**20 words among 2**31 have been there before, with a standard deviation of 16.
    repeated = drawn.numel() - len(set(drawn.flatten().tolist()))
    assert abs(repeated - 256) < 5 * 16


def test_one_changed_bit_changes_half_of_the_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(2**62, (16,), generator=generator).tolist()
    indices = torch.randint(2**62, (50,), generator=generator)

    def bits(key_change: int, index_change: int) -> Tensor:
        drawn = torch.cat([words(key ^ key_change, indices ^ index_change, 1) for key in keys])
        return drawn >> torch.arange(31) & 1

    base = bits(0, 0)
    for bit in (0, 1, 7, 15, 16, 30, 31, 32, 33, 45, 61):
        for changed in (bits(1 << bit, 0), bits(0, 1 << bit)):
            flips = (base != changed).double().mean(dim=0)
            assert flips.mean().item() == pytest.approx(0.5, abs=0.015)
            # Of each bit 800 are seen, with a standard deviation of 0.018.
            assert (flips - 0.5).abs().max() < 0.08


def test_rows_and_steps_are_uncorrelated() -> None:
    steps = [Draws(key, torch.arange(40)).uniform(-1, 1, 2000) for key in (5, 6)]
    rows = torch.cat(steps)
    correlation = torch.corrcoef(rows) - torch.eye(80)
    # Over 3000 pairs of rows, each with a standard deviation of 0.022.
    assert correlation.abs().max() < 0.11
    assert correlation.std().item() == pytest.approx(1 / math.sqrt(2000), rel=0.1)


def test_normal_numbers_have_the_moments_and_the_tails() -> None:
    drawn = Draws(11, torch.arange(2000)).normal(101).double()
    assert abs(drawn.mean().item()) < 0.01 and drawn.var().item() == pytest.approx(1, abs=0.015)
    assert (drawn**3).mean().item() == pytest.approx(0, abs=0.03)
    assert (drawn**4).mean().item() == pytest.approx(3, abs=0.06)
    for border in (-2.5, -1, 0, 0.5, 2, 3):
        share = (drawn < border).double().mean().item()
        assert share == pytest.approx(0.5 * (1 + math.erf(border / math.sqrt(2))), abs=0.004)
    columns = torch.corrcoef(drawn.T) - torch.eye(101)
    assert columns.abs().max() < 0.12


def test_shares_of_choices() -> None:
    draws = Draws(12, torch.arange(60_000))
    for count in (2, 3, 10, 1000):
        assert abs(chi_square(draws.choice(count), count)) < 5
    assert abs(chi_square(draws.whole(4) + 4, 9)) < 5
    assert draws.chance(0.2).double().mean().item() == pytest.approx(0.2, abs=0.007)


@pytest.mark.parametrize(("low", "high"), [(-2.0, -0.5), (0.0, 1.0), (1.0, 3.0)])
def test_uniform_numbers_keep_to_their_range(low: float, high: float) -> None:
    drawn = Draws(13, torch.arange(20_000)).uniform(low, high)
    assert drawn.min() >= low and drawn.max() <= high
    assert abs(chi_square(((drawn.double() - low) / (high - low) * 50).long().clamp(max=49), 50)) < 5


def test_compiled_draws_are_the_same_bits() -> None:
    def drawn(key: Tensor, indices: Tensor) -> tuple[Tensor, ...]:
        draws = Draws(key, indices)
        return draws.uniform(-0.3, 1.7, 5), draws.chance(0.4), draws.whole(4, 2)

    backend = "inductor" if shutil.which("c++") or shutil.which("g++") else "aot_eager"
    compiled = torch.compile(drawn, fullgraph=True, dynamic=False, backend=backend)
    for key in (3, KEYS[4]):
        inputs = torch.tensor(key), torch.arange(0, 800, 7)
        for eager, other in zip(drawn(*inputs), compiled(*inputs), strict=True):
            assert torch.equal(eager, other)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_another_device_draws_the_same_bits() -> None:
    def drawn(device: str) -> list[Tensor]:
        draws = Draws(torch.tensor(KEYS[4], device=device), torch.arange(500, device=device))
        return [draws.uniform(-0.3, 1.7, 5), draws.whole(4, 2), draws.choice(9), draws.chance(0.4)]

    for here, there in zip(drawn("cpu"), drawn("cuda"), strict=True):
        assert there.is_cuda and torch.equal(here, there.cpu())


class HostCopies(TorchFunctionMode):
    """Notes calls that make a tensor of Python numbers, which a device would have to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def views_of(name: str) -> Callable[[Tensor, Tensor, ClassStatistics], object]:
    def views(key: Tensor, rows: Tensor, _: ClassStatistics) -> Tensor:
        images = torch.empty(len(rows), 3, 12, 10, dtype=torch.uint8, device=rows.device)
        return Normalisation((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))(VIEWS[name](images, Draws(key, rows)))

    return views


def partners(key: Tensor, rows: Tensor, _: ClassStatistics) -> Tensor:
    return draw_partners(rows, torch.empty(100, 3, dtype=torch.int64, device=rows.device), 0.5, Draws(key, rows))


def replayed(key: Tensor, rows: Tensor, statistics: ClassStatistics) -> tuple[Tensor, Tensor]:
    count = 2 * statistics.present
    noise = Draws(key, torch.arange(count, device=rows.device)).normal(4)
    return statistics.features_at(noise.view(statistics.present, 2, 4), 1.1)


@pytest.mark.parametrize("build", [*map(views_of, VIEWS), partners, replayed])
def test_nothing_waits_for_the_host(build: Callable[[Tensor, Tensor, ClassStatistics], object]) -> None:
    statistics = ClassStatistics(torch.zeros(3, 4), torch.ones(3), torch.ones(3, 4), torch.eye(4).expand(3, 4, 4))
    statistics.prepare_sampling()
    # Tensors without data: whatever would read one on the host raises.
    vars(statistics).update({name: tensor.to("meta") for name, tensor in vars(statistics).items()})
    with torch.device("meta"), HostCopies() as copies:
        build(torch.empty((), dtype=torch.int64), torch.empty(8, dtype=torch.int64), statistics)
        assert not copies.found
        torch.empty(3).new_tensor([1.0, 2.0])
        assert copies.found


def test_rejects_other_keys_and_indices() -> None:
    with pytest.raises(ValueError, match="indices must be int64"):
        Draws(0, torch.arange(3).int())
    with pytest.raises(ValueError, match="indices must be int64"):
        Draws(0, torch.zeros(2, 2, dtype=torch.int64))
    for key in (-1, 2**63):
        with pytest.raises(ValueError, match="key must lie"):
            Draws(key, torch.arange(3))
    for other in (torch.tensor([1]), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="key must be int64"):
            Draws(other, torch.arange(3))
    with pytest.raises(ValueError, match="count"):
        Draws(0, torch.arange(3)).choice(0)
