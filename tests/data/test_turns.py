import pytest
import torch

from inlay.data.turns import quarter_turns


def test_turns_against_a_loop() -> None:
    images = torch.rand(8, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    turns = torch.tensor([0, 1, 2, 3, 3, 2, 1, 0])
    turned = quarter_turns(images, turns)
    for index, number in enumerate(turns.tolist()):
        assert torch.equal(turned[index], torch.rot90(images[index], number, (1, 2)))


@pytest.mark.parametrize(("images", "turns"), [((2, 3, 4, 5), 2), ((2, 3, 4, 4), 3), ((3, 4, 4), 3)])
def test_bad_shapes_are_refused(images: tuple[int, ...], turns: int) -> None:
    with pytest.raises(ValueError, match="images must be"):
        quarter_turns(torch.zeros(images), torch.zeros(turns, dtype=torch.int64))
