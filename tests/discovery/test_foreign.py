import math

import pytest
import torch

from inlay.discovery.foreign import foreign_limit


def test_the_limit_is_three_times_the_median_of_what_is_not_known() -> None:
    known, new = torch.full((50,), 0.5), torch.linspace(10, 30, 51)
    assert foreign_limit(torch.cat([known, new]), 2.0) == pytest.approx(60)


def test_errors_among_known_images_do_not_lower_the_limit() -> None:
    errors, new = torch.full((60,), 4.2), torch.linspace(10, 20, 20)
    limit = foreign_limit(torch.cat([errors, new]), 4.0)
    assert limit == pytest.approx(24) and bool((new < limit).all())


def test_where_nothing_is_beyond_the_threshold_there_is_no_limit() -> None:
    assert foreign_limit(torch.tensor([0.0, 1.0]), 2.0) == math.inf
    assert foreign_limit(torch.tensor([0.0, 1.0]), -1.0) == math.inf
