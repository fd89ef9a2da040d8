"""The benchmarks: every system on the same data sets, from the same base stages, one file of results per run."""

from inlay.bench.measurement import measure
from inlay.bench.places import Places
from inlay.bench.plan import Choice, Run, table1, variations

__all__ = ["Choice", "Places", "Run", "measure", "table1", "variations"]
