"""How far are inference schemes apart on a real head, and does it change the update?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from matplotlib.figure import Figure

from bayesagg_pyro import inference
from bayesagg_pyro.heads import Gaussian
from bayesagg_pyro.inference import Scheme
from bayesagg_pyro.posteriors import Empirical, Posterior
from experiments.errors import DataError
from experiments.studies.plots import bars
from experiments.studies.problems import (
    Problem,
    Solution,
    compare,
    digits_problems,
    qm9_problems,
    solution,
)
from experiments.studies.study import Context, Findings, Table

_COLUMNS: Final = {
    "scheme": ("scheme", ""),
    "KL": ("kl", ".3f"),
    "W2": ("w2", ".3f"),
    "z": ("z", ".2f"),
    "sd of w": ("ratio", ".2f"),
    "k-hat": ("khat", ".2f"),
    "E g off": ("mean_error", ".1%"),
    "sd of g": ("sd_ratio", ".2f"),
    "cosine": ("cosine", ".4f"),
    "norm": ("norm", ".3f"),
    "s": ("seconds", ".2f"),
}


def _schemes(quick: bool, seed: int) -> dict[str, Callable[[], Scheme]]:
    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    steps = 20 if quick else 200
    return {
        "Delta": inference.Delta,
        "TaylorGGN": inference.TaylorGGN,
        "Laplace": inference.Laplace,
        "Laplace, diag": lambda: inference.Laplace(structure="diag"),
        "Variational": lambda: inference.Variational(steps=steps, generator=generator()),
        "Variational, diag": lambda: inference.Variational(
            "diagonal", steps=steps, generator=generator()
        ),
    }


def run(context: Context) -> Findings:
    """Posteriors of each scheme on each problem, beside a reference."""
    quick, seed = context.quick, context.seed
    draws, warmup = (12, 6) if quick else (250, 80)
    problems = digits_problems(context.folder / "runs", seed, quick)
    notes = []
    if quick:
        notes.append("QM9 left out: it is not part of the smallest setting")
    else:
        try:
            problems = [*qm9_problems(context.folder / "runs", seed), *problems]
        except DataError as error:
            notes.append(f"QM9 left out: {error}")
    tables: dict[str, Table] = {}
    for problem in problems:
        context.told(f"{problem.title} ...")
        rows = _rows(problem, draws, warmup, quick, seed)
        tables[problem.name] = Table(problem.title, _COLUMNS, rows)
    return Findings(
        settings={
            "nuts": {"draws": draws, "warmup": warmup, "chains": 2},
            "problems": {
                p.name: {
                    "title": p.title,
                    "examples": len(p.features),
                    "batch": p.batch,
                    "weights": {n: [h.blocks, h.weight_size] for n, h in p.heads.items()},
                }
                for p in problems
            },
            "prior": "N(0, I)",
        },
        tables=tables,
        figures={name: lambda table=table: figure(table.rows) for name, table in tables.items()},  # type: ignore[misc]
        notes=notes,
    )


def _rows(
    problem: Problem, draws: int, warmup: int, quick: bool, seed: int
) -> list[dict[str, Any]]:
    chains, seconds = _infer(
        problem,
        lambda: inference.NUTS(
            draws, warmup=warmup, chains=2, generator=torch.Generator().manual_seed(seed)
        ),
    )
    halves = [_chain(chains, number) for number in range(2)]
    info = [p.info for p in chains.values() if p.info is not None]
    worst = max(float(i.r_hat.max()) for i in info if i.r_hat is not None)
    least = min(float(i.ess.min()) for i in info if i.ess is not None)
    rows = []
    reference: Solution
    if all(isinstance(head, Gaussian) for head in problem.heads.values()):
        exact, quick_seconds = _infer(problem, inference.Conjugate)
        reference = solution(problem, exact, seed)
        rows.append(_row(problem, "Conjugate (exact)", reference, reference, quick_seconds, seed))
        rows.append(
            _row(problem, "NUTS", solution(problem, chains, seed), reference, seconds, seed)
        )
    else:
        reference = solution(problem, chains, seed)
        first, second = (solution(problem, half, seed + n) for n, half in enumerate(halves))
        rows.append(_row(problem, "NUTS, one chain", second, first, seconds, seed))
    rows[-1] |= {"r_hat": worst, "ess": least}
    for name, make in _schemes(quick, seed).items():
        found, seconds = _infer(problem, make)
        rows.append(_row(problem, name, solution(problem, found, seed), reference, seconds, seed))
    return rows


def _row(
    problem: Problem, name: str, own: Solution, reference: Solution, seconds: float, seed: int
) -> dict[str, Any]:
    return {"scheme": name, **compare(problem, own, reference, seed), "seconds": seconds}


def _infer(problem: Problem, make: Callable[[], Scheme]) -> tuple[dict[str, Posterior], float]:
    """The scheme's posterior of each head, and the processor seconds of all."""
    began = time.process_time()
    found = {
        name: make().infer(head, problem.features, problem.targets[name], problem.prior(name))
        for name, head in problem.heads.items()
    }
    return found, time.process_time() - began


def _chain(chains: Mapping[str, Posterior], number: int) -> dict[str, Posterior]:
    halves: dict[str, Posterior] = {}
    for name, posterior in chains.items():
        assert isinstance(posterior, Empirical)
        halves[name] = Empirical(
            posterior.by_chain[number], outputs_per_task=posterior.outputs_per_task
        )
    return halves


def figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Distances to the reference, a bar for each scheme."""
    labels = [row["scheme"] for row in rows]
    panels = {"W2": "w2", "error of E g": "mean_error", "sd of g, ratio": "sd_ratio"}
    shown = {
        title: dict(zip(labels, [row[key] or 0.0 for row in rows], strict=True))
        for title, key in panels.items()
    }
    shown["1 − cosine"] = {row["scheme"]: 1 - row["cosine"] for row in rows}
    return bars(shown)
