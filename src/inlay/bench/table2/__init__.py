"""Table 2: systems that learn labelled classes stage by stage, and AMM as a plug-in for them."""

from inlay.bench.table2.measurement import measure
from inlay.bench.table2.plan import CONTROLS, Choice, Run, published_orders, table2

__all__ = ["CONTROLS", "Choice", "Run", "measure", "published_orders", "table2"]
