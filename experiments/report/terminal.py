"""Tables for the terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from experiments import escaping
from experiments.report.table import Cell, Table

__all__ = ["terminal"]


def terminal(table: Table) -> RichTable:
    """The table with its title, and notes below."""
    caption = Text("\n".join(map(escaping.visible, table.notes)), justify="left")
    rich = RichTable(
        title=escaping.terminal(table.title),
        title_justify="left",
        caption=caption,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    rich.add_column("")
    for column in table.columns:
        names = [column.group, column.title] if column.group else [column.title]
        rich.add_column(Text("\n").join(map(escaping.terminal, names)), justify="right")
    for row in table.rows:
        if row.rule:
            rich.add_section()
        rich.add_row(escaping.terminal(row.label), *map(_cell, row.cells))
    return rich


def _cell(cell: Cell) -> Text:
    parts = cell.parts()
    if not parts:
        return Text(escaping.visible(cell.text), style="dim")
    return Text(" ± ".join(parts), style="bold" if cell.bold else "")
