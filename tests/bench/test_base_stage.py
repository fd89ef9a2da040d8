import pytest
import torch

from inlay.bench.base_stage import reduced
from inlay.discovery.statistics import StatisticsKind, class_statistics


@pytest.mark.parametrize("kind", ["full", "diagonal", "shared", "pooled"])
def test_reduced_statistics_are_those_of_the_kind(kind: StatisticsKind) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    labels = torch.arange(60) % 4
    found = reduced(class_statistics(features, labels, 4, "full"), kind)
    wanted = class_statistics(features, labels, 4, kind)
    assert found.kind == kind
    assert found.tensors().keys() == wanted.tensors().keys()
    for name, tensor in wanted.tensors().items():
        torch.testing.assert_close(found.tensors()[name], tensor)
