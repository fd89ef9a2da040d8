import pytest
import torch

from inlay.branches.tolerance import tolerance_for


@pytest.mark.parametrize(
    ("dtypes", "allowed"),
    [
        ([torch.float64], 1e-10),
        ([torch.float64, torch.float32], 1e-4),
        ([torch.float16, torch.float32], 5e-3),
        ([torch.bfloat16, torch.float16, torch.float64], 5e-2),
        ([torch.int64, torch.float64], 1e-10),
        ([], 1e-4),
    ],
)
def test_the_coarsest_type_decides(dtypes: list[torch.dtype], allowed: float) -> None:
    assert tolerance_for(dtypes) == allowed
