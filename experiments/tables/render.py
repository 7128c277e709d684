"""Tables for a terminal, as Markdown and as LaTeX; nothing of a table is ever cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from experiments.tables import escaping
from experiments.tables.table import Cell, Column, Table

_GAP: Final = 2
_WIDE: Final = 8  # columns from which a LaTeX table is scaled to the width of the page


def terminal(table: Table) -> RenderableType:
    """The table with its title, and notes below it, for a rich console.

    A table that is wider than the console comes as several, one below the other: each has some of
    the columns, and the names of all rows; names that repeat go on with the words beside them.
    """
    return _Shown(table)


@dataclass(frozen=True)
class _Shown:
    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As rich wants it."""
        table = self.table
        yield Text(escaping.visible(table.title), style="italic")
        repeat = len({row.label for row in table.rows}) < len(table.rows)
        if repeat and len([*_blocks(table, options.max_width)]) > 1:
            table = _with_words_in_names(table)
        for block in _blocks(table, options.max_width):
            yield ""
            yield _grid(table, block, options.max_width)
        if table.notes:
            yield Text("\n".join(["", *map(escaping.visible, table.notes)]), style="dim")
        yield ""


def _with_words_in_names(table: Table) -> Table:
    words = [place for place, column in enumerate(table.columns) if column.words]
    kept = [place for place in range(len(table.columns)) if place not in words]
    rows = []
    for row in table.rows:
        told = [f"{table.columns[p].title} {text}" for p in words if (text := str(row.cells[p]))]
        label, cells = ", ".join([row.label, *told]), tuple(row.cells[p] for p in kept)
        rows.append(replace(row, label=label, cells=cells))
    return replace(table, columns=tuple(table.columns[p] for p in kept), rows=tuple(rows))


def _blocks(table: Table, width: int) -> Iterator[list[int]]:
    """Places of columns that fit side by side; groups stay together where they can."""

    def group_of(place: int) -> str | int:
        return table.columns[place].group or place

    room = width - _label_width(table, width)
    block: list[int] = []
    free = room
    for name, places in itertools.groupby(range(len(table.columns)), group_of):
        group = list(places)
        needs = [_GAP + _width(table, place, room - _GAP) for place in group]
        if name and sum(needs) > free and sum(needs) <= room and block:
            yield block
            block, free = [], room
        for place, need in zip(group, needs, strict=True):
            if need > free and block:
                yield block
                block, free = [], room
            block.append(place)
            free -= need
    yield block


def _label_width(table: Table, width: int) -> int:
    return min(_longest(row.label for row in table.rows), width // 2)


def _width(table: Table, place: int, most: int) -> int:
    """What a column needs: its longest cell in one piece, and the longest word of its heading."""
    column = table.columns[place]
    words = f"{column.group} {column.title}".split()
    return min(_longest([*words, *(str(row.cells[place]) for row in table.rows)]), most)


def _longest(texts: Iterable[str]) -> int:
    return max((cell_len(escaping.visible(text)) for text in texts), default=0)


def _grid(table: Table, block: Sequence[int], width: int) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    label = _label_width(table, width)
    grid.add_column("", width=label, overflow="fold")
    for place in block:
        column = table.columns[place]
        names = [column.group, column.title] if column.group else [column.title]
        grid.add_column(
            Text("\n").join(map(escaping.terminal, names)),
            justify="left" if column.words else "right",
            vertical="bottom",
            width=_width(table, place, width - label - _GAP),
            overflow="fold",
        )
    for row in table.rows:
        cells = [_shown(row.cells[place], table.columns[place]) for place in block]
        if any(cells):  # else it is about columns of another block
            if row.rule:
                grid.add_section()
            grid.add_row(escaping.terminal(row.label), *cells)
    return grid


def _shown(cell: Cell, column: Column) -> Text:
    style = "bold" if cell.bold else "" if cell.parts() or column.words else "dim"
    return Text(escaping.visible(str(cell)), style=style)


def markdown(table: Table) -> str:
    """The table with its title and notes."""
    heads = [f"{c.group}: {c.title}" if c.group else c.title for c in table.columns]
    sides = [":--" if column.words else "--:" for column in table.columns]
    lines = [
        f"**{escaping.markdown(table.title)}**",
        "",
        _line(["", *map(escaping.markdown, heads)]),
        _line([":--", *sides]),
    ]
    lines += [_line([escaping.markdown(r.label), *map(_marked, r.cells)]) for r in table.rows]
    if table.notes:
        lines += ["", *(f"- {escaping.markdown(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells).strip() + " |"


def _marked(cell: Cell) -> str:
    text = escaping.markdown(str(cell))
    if not cell.parts():
        return f"*{text}*" if _is_remark(cell) else text
    text = text.replace("-", "−")
    return f"**{text}**" if cell.bold else text


def _is_remark(cell: Cell) -> bool:
    """Whether words stand where a number is missing."""
    return cell.text.replace(" ", "").isalpha()


def latex(table: Table) -> str:
    """A ``table`` environment with caption and label; wide ones are scaled (``graphicx``)."""
    columns = len(table.columns)
    sides = "".join("l" if column.words else "r" for column in table.columns)
    head = [
        r"\begin{table}[tbp]",
        r"\centering",
        r"\footnotesize",
        rf"\caption{{{escaping.latex(table.title)}}}",
        rf"\label{{tab:{table.name}}}",
        *([r"\resizebox{\linewidth}{!}{%"] if columns > _WIDE else []),
        rf"\begin{{tabular}}{{@{{}}l{sides}@{{}}}}",
        r"\toprule",
    ]
    body = []
    for row in table.rows:
        if row.rule:
            body.append(r"\midrule")
        body.append(" & ".join([escaping.latex(row.label), *map(_math, row.cells)]) + r" \\")
    foot = [r"\bottomrule", r"\end{tabular}" + ("}" if columns > _WIDE else "")]
    if table.notes:
        notes = " ".join(escaping.latex(note) for note in table.notes)
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
            cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escaping.latex(name)}}}")
            if name:
                rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
            at += width
        lines += [" & " + " & ".join(cells) + r" \\", " ".join(rules)]
    titles = " & ".join(escaping.latex(column.title) for column in columns)
    return [*lines, f" & {titles} " + r"\\", r"\midrule"]


def _math(cell: Cell) -> str:
    parts = cell.parts()
    if not parts:
        text = escaping.latex(cell.text)
        return rf"\textit{{{text}}}" if _is_remark(cell) else text
    text = r" \pm ".join(part.replace(",", "{,}") for part in parts)
    if "nan" in parts:
        return "nan"
    return rf"$\mathbf{{{text}}}$" if cell.bold else f"${text}$"
