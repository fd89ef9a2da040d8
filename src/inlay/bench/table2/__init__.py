"""Table 2: systems that learn labelled classes stage by stage, and AMM as a plug-in for them."""

from inlay.bench.table2.measurement import base_name, measure
from inlay.bench.table2.plan import CONTROLS, Choice, Run, published_orders, table2

__all__ = ["CONTROLS", "Choice", "Run", "base_name", "measure", "published_orders", "table2"]
