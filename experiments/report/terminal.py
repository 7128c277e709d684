"""Tables for the terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from experiments.report.table import Cell, Table

__all__ = ["terminal"]


def terminal(table: Table) -> RichTable:
    """The table with its title, and notes below."""
    caption = Text("\n".join(table.notes), justify="left")
    rich = RichTable(
        title=table.title,
        title_justify="left",
        caption=caption,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    rich.add_column("")
    for column in table.columns:
        head = f"{column.group}\n{column.title}" if column.group else column.title
        rich.add_column(head, justify="right")
    for row in table.rows:
        if row.rule:
            rich.add_section()
        rich.add_row(Text(row.label), *map(_cell, row.cells))
    return rich


def _cell(cell: Cell) -> Text:
    parts = cell.parts()
    if not parts:
        return Text(cell.text, style="dim")
    return Text(" ± ".join(parts), style="bold" if cell.bold else "")
