"""Comparisons: several methods or settings, each with several seeds, in one table."""

from experiments.compare.catalogue import COMPARISONS, find
from experiments.compare.comparison import Comparison, Entry
from experiments.compare.table import rows, table

__all__ = ["COMPARISONS", "Comparison", "Entry", "find", "rows", "table"]
