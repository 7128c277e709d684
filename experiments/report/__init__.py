"""Reports: the paper's tables and figures from a results store, ours beside the paper's."""

from __future__ import annotations

from experiments.report.collect import Group, Setup, setups
from experiments.report.comparison import build
from experiments.report.latex import document, latex
from experiments.report.markdown import markdown
from experiments.report.plans import TABLES
from experiments.report.run_time import run_time
from experiments.report.table import Cell, Column, Row, Table
from experiments.report.terminal import terminal
from experiments.report.write import FORMATS, NAMES, tables, write

__all__ = [
    "FORMATS",
    "NAMES",
    "TABLES",
    "Cell",
    "Column",
    "Group",
    "Row",
    "Setup",
    "Table",
    "build",
    "document",
    "latex",
    "markdown",
    "run_time",
    "setups",
    "tables",
    "terminal",
    "write",
]
