"""Tables as Markdown."""

from __future__ import annotations

from experiments.report.table import Cell, Table

__all__ = ["markdown"]


def markdown(table: Table) -> str:
    """The table with its title and notes."""
    heads = [
        f"{column.group}: {column.title}" if column.group else column.title
        for column in table.columns
    ]
    lines = [
        f"**{table.title}**",
        "",
        "| | " + " | ".join(map(_escaped, heads)) + " |",
        "| :-- |" + " --: |" * len(heads),
    ]
    lines += [
        f"| {_escaped(row.label)} | " + " | ".join(map(_cell, row.cells)) + " |"
        for row in table.rows
    ]
    if table.notes:
        lines += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _cell(cell: Cell) -> str:
    parts = cell.parts()
    if not parts:
        return f"*{cell.text}*" if cell.text.isalpha() or " " in cell.text else cell.text
    text = " ± ".join(parts).replace("-", "−")
    return f"**{text}**" if cell.bold else text


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
