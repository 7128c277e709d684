"""The matrix as a page: what runs with what, and why not where not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from unittest.mock import patch

from bayesagg_pyro.inference import _evidence
from tests.swap.axes import AGGREGATIONS, ESTIMATORS, HEADS, PRIORS, SCHEMES
from tests.swap.cells import Cell, aggregated, distributions, trained

__all__ = ["PAGE", "Matrix", "render", "run"]

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "swap_matrix.md"

_INTRODUCTION = """# What goes with what

Every head with every inference scheme, prior policy, gradient estimator and aggregation, as
`python -m tests.swap` finds it by running each at its smallest (three features, two
tasks, eight examples). ✓ ran in the engine, finite, with the right shapes, the same twice under
one seed, a second `backward` adding to the first; a number is the reason why it cannot be, below,
as the error says it.

Stages see only what passes between them, so estimators and aggregations are run on every
*posterior* of a head (one for each scheme, with the prior `FullData`), not once more for every
prior that led to one of the same kind.
"""


@dataclass
class Matrix:
    """All cells of some heads.

    Attributes:
        inference: {(head, scheme, prior): cell}.
        moments: {(head, scheme, estimator): cell}.
        directions: {(head, scheme, estimator, aggregation): cell}.
    """

    inference: dict[tuple[str, ...], Cell] = field(default_factory=dict)
    moments: dict[tuple[str, ...], Cell] = field(default_factory=dict)
    directions: dict[tuple[str, ...], Cell] = field(default_factory=dict)

    def faults(self) -> list[Cell]:
        """Cells with a result that is wrong."""
        return [
            cell
            for part in (self.inference, self.moments, self.directions)
            for cell in part.values()
            if cell.fault is not None
        ]


def run(heads: Iterable[str] = tuple(HEADS), *, whole: bool = True) -> Matrix:
    """Run the cells of these heads; a variance is learned in a few inferences, not 34.

    Args:
        heads: names.
        whole: every cell. Otherwise each pair of choices is met, but not each with all others:
            a fifth of the priors other than `FullData`, and aggregations of what is new.
    """
    with patch.multiple(_evidence, _POINTS=3, _STEPS=1):
        return _run(heads, whole)


def _met(head: str, scheme: str, prior: str) -> bool:
    """One in five, such that every two of them meet."""
    places = list(HEADS).index(head), list(SCHEMES).index(scheme), list(PRIORS).index(prior)
    return prior == "FullData" or sum(places) % 5 == 0


def _run(heads: Iterable[str], whole: bool) -> Matrix:
    found = Matrix()
    aggregated_of: set[tuple[str, ...]] = set()
    for head in heads:
        for scheme in SCHEMES:
            for prior in PRIORS:
                if not (whole or _met(head, scheme, prior)):
                    continue
                made = trained(head, scheme, prior)
                found.inference[made.cell.names] = made.cell
                if prior != "FullData" or made.posterior is None:
                    continue
                for cell, grads in distributions(made):
                    names = (head, scheme, cell.names[-1])
                    found.moments[names] = cell
                    pairs = {(head, cell.names[-1]), (scheme, cell.names[-1])}
                    if grads and (whole or pairs - aggregated_of):
                        aggregated_of |= pairs
                        for last in aggregated(cell.names, grads):
                            key = (*names, last.names[-1])
                            found.directions[key] = last
    return found


class _Reasons:
    """Numbers reasons in the order of their first use; names of heads and sizes left out."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def mark(self, cell: Cell | None) -> str:
        if cell is None:
            return "–"
        if cell.why is None:
            return "✓" if cell.fault is None else "✗"
        return str(self.numbers.setdefault(_general(cell.why), len(self.numbers) + 1))


def render(found: Matrix) -> str:
    """The page in Markdown."""
    reasons = _Reasons()
    lines = [_INTRODUCTION, "## Heads, schemes and priors", ""]
    heads = [head for head in HEADS if any(names[0] == head for names in found.inference)]
    for head in heads:
        lines += [f"### {head}", ""]
        rows = [
            [scheme, *(reasons.mark(found.inference.get((head, scheme, p))) for p in PRIORS)]
            for scheme in SCHEMES
        ]
        lines += _table(["scheme", *PRIORS], rows)
    lines += ["## Estimators of the gradient's moments", ""]
    for head in heads:
        schemes = [s for s in SCHEMES if any(n[:2] == (head, s) for n in found.moments)]
        rows = [
            [scheme, *(reasons.mark(found.moments.get((head, scheme, e))) for e in ESTIMATORS)]
            for scheme in schemes
        ]
        lines += [f"### {head}: posteriors and estimators", ""]
        lines += _table(["posterior by", *ESTIMATORS], rows)
    lines += ["## Aggregations", "", *_aggregations(found, reasons)]
    lines += ["## Reasons", ""]
    lines += [f"{number}. {why}" for why, number in reasons.numbers.items()]
    return "\n".join(lines) + "\n"


def _aggregations(found: Matrix, reasons: _Reasons) -> list[str]:
    """How many gradient distributions each aggregation took, and what it refused."""
    rows = []
    for name in AGGREGATIONS:
        cells = {n: cell for n, cell in found.directions.items() if n[-1] == name}
        refused = [(n, cell) for n, cell in cells.items() if cell.why is not None]
        told = sorted({f"{reasons.mark(cell)}: {n[1]}" for n, cell in refused})
        rows.append([name, f"{len(cells) - len(refused)} of {len(cells)}", "; ".join(told)])
    return _table(["aggregation", "distributions taken", "refused, by scheme"], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def _general(why: str) -> str:
    """The reason without what differs from cell to cell."""
    names = "|".join(sorted(HEADS, key=len, reverse=True))
    why = re.sub(r"^head '\w+': ", "", why)
    schemes = "|".join({name.split()[0] for name in SCHEMES})
    why = re.sub(rf"(?:{schemes})\([^()]*\)(?= cannot| does not| keeps)", "this scheme", why)
    why = re.sub(rf"\b(?:{names}) heads\b(?! only| of)", "such heads", why)
    why = re.sub(rf"(?<=only, not )(?:{names})\b", "this one", why)
    why = re.sub(rf"(?<=not for )(?:{names})\b", "this one", why)
    why = re.sub(rf"not (?:{names}) with \w+", "not these", why)
    why = re.sub(r"\d\.?\d*e-\d+ of its diagonal|\(diagonal from [^)]*\)", "…", why)
    return why
