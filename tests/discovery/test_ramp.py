import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.discovery.ramp import ramp_up


def test_values_computed_by_hand() -> None:
    assert ramp_up(0, 50) == pytest.approx(math.exp(-5))
    assert ramp_up(25, 50) == pytest.approx(math.exp(-1.25))
    assert ramp_up(50, 50) == 1.0
    assert ramp_up(80, 50) == 1.0
    assert ramp_up(0, 0) == 1.0


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 300))
def test_never_falls_and_stays_in_range(first: int, second: int, length: int) -> None:
    low, high = (ramp_up(t, length) for t in sorted((first, second)))
    assert math.exp(-5) * (1 - 1e-12) <= low <= high <= 1.0


def test_negative_input_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        ramp_up(-1, 5)
    with pytest.raises(ValueError, match="0 or more"):
        ramp_up(1, -5)
