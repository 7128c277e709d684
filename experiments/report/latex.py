"""Tables as LaTeX, for ``booktabs``; they compile as they are under pdfLaTeX."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from experiments.escaping import latex as escaped
from experiments.report.table import Cell, Column, Table

__all__ = ["document", "latex"]

_WIDE = 8


def latex(table: Table) -> str:
    """A ``table`` environment with caption and label; wide ones are scaled (``graphicx``)."""
    columns = len(table.columns)
    size = r"\footnotesize"
    head = [
        r"\begin{table}[tbp]",
        r"\centering",
        size,
        rf"\caption{{{escaped(table.title)}}}",
        rf"\label{{tab:{table.name}}}",
        *([r"\resizebox{\linewidth}{!}{%"] if columns > _WIDE else []),
        rf"\begin{{tabular}}{{@{{}}l{'r' * columns}@{{}}}}",
        r"\toprule",
    ]
    body = []
    for row in table.rows:
        if row.rule:
            body.append(r"\midrule")
        body.append(" & ".join([escaped(row.label), *map(_cell, row.cells)]) + r" \\")
    foot = [r"\bottomrule", r"\end{tabular}" + ("}" if columns > _WIDE else "")]
    if table.notes:
        notes = " ".join(escaped(note) for note in table.notes)
        foot.append(rf"\par\smallskip\parbox{{\linewidth}}{{\scriptsize {notes}}}")
    return "\n".join([*head, *_heads(table.columns), *body, *foot, r"\end{table}"]) + "\n"


def document(tables: Sequence[Table]) -> str:
    """A document of its own with all tables."""
    return "\n".join(
        [
            r"\documentclass{article}",
            r"\usepackage[utf8]{inputenc}",
            r"\usepackage[T1]{fontenc}",
            r"\usepackage{booktabs}",
            r"\usepackage{graphicx}",
            r"\usepackage[margin=2cm]{geometry}",
            r"\begin{document}",
            *(latex(table) for table in tables),
            r"\end{document}",
            "",
        ]
    )


def _heads(columns: Sequence[Column]) -> list[str]:
    lines = []
    groups = [(name, len(list(run))) for name, run in itertools.groupby(c.group for c in columns)]
    if any(name for name, _ in groups):
        cells, rules, at = [], [], 2
        for name, width in groups:
            cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escaped(name)}}}")
            if name:
                rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
            at += width
        lines += [" & " + " & ".join(cells) + r" \\", " ".join(rules)]
    titles = " & ".join(escaped(column.title) for column in columns)
    return [*lines, f" & {titles} " + r"\\", r"\midrule"]


def _cell(cell: Cell) -> str:
    parts = cell.parts()
    if not parts:
        return rf"\textit{{{escaped(cell.text)}}}" if cell.text.strip("–") else escaped(cell.text)
    text = r" \pm ".join(part.replace(",", "{,}") for part in parts)
    if "nan" in parts:
        return "nan"
    return rf"$\mathbf{{{text}}}$" if cell.bold else f"${text}$"
