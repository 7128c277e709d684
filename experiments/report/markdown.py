"""Tables as Markdown."""

from __future__ import annotations

from experiments import escaping
from experiments.report.table import Cell, Table

__all__ = ["markdown"]


def markdown(table: Table) -> str:
    """The table with its title and notes."""
    heads = [
        f"{column.group}: {column.title}" if column.group else column.title
        for column in table.columns
    ]
    lines = [
        f"**{escaping.markdown(table.title)}**",
        "",
        "| | " + " | ".join(map(escaping.markdown, heads)) + " |",
        "| :-- |" + " --: |" * len(heads),
    ]
    lines += [
        f"| {escaping.markdown(row.label)} | " + " | ".join(map(_cell, row.cells)) + " |"
        for row in table.rows
    ]
    if table.notes:
        lines += ["", *(f"- {escaping.markdown(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _cell(cell: Cell) -> str:
    parts = cell.parts()
    if not parts:
        text = escaping.markdown(cell.text)
        return f"*{text}*" if cell.text.isalpha() or " " in cell.text else text
    text = " ± ".join(parts).replace("-", "−")
    return f"**{text}**" if cell.bold else text
