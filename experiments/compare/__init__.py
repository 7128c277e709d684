"""What finished runs of a comparison show: one table, and figures."""

from experiments.compare.figure import draw
from experiments.compare.table import table

__all__ = ["draw", "table"]
