"""Which prior keeps the head in step with features that move?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

import torch
from matplotlib.figure import Figure

from bayesagg_pyro import diagnostics
from experiments.studies.digits import ThreeTasks
from experiments.studies.plots import curves
from experiments.studies.runs import train
from experiments.studies.study import Context, Findings, Table, summary
from experiments.training import RECORD

#: Options of BayesAgg, and a title.
POLICIES: Final[Mapping[str, tuple[Mapping[str, Any], str]]] = {
    "full-data": ({"prior": "full-data"}, "FullData (the paper)"),
    "evidence": ({"prior": "evidence"}, "Evidence"),
    "running": ({"prior": "running", "half_life": 755.0}, "Running, 0.7 epochs"),
    "fresh": ({"prior": "fresh"}, "Fresh, all examples"),
    "fresh-third": ({"prior": "fresh", "fresh_share": 1 / 3}, "Fresh, a third"),
    "previous-batch": ({"prior": "previous-batch"}, "PreviousBatch, 5 % forgotten"),
    "constant": ({"prior": "constant"}, "Constant"),
}
_PRETRAIN: Final = 4
_COLUMNS: Final = {
    "policy": ("title", ""),
    "stale cost of number": ("cost_number", ".1%"),
    "90 %": ("worst_number", ".0%"),
    "odd, loop": ("cost_binary", ".1%"),
    "training loss": ("loss", ".4f"),
    "MSE of number": ("mse", ".3f"),
    "odd (%)": ("odd", ".1f"),
    "loop (%)": ("loop", ".1f"),
    "ms per step": ("milliseconds", ".0f"),
}
_COSTS: Final = ("cost_number", "worst_number", "cost_binary")
_MEASURES: Final = ("mse", "odd", "loop", "loss", "effective_tasks")


def run(context: Context) -> Findings:
    """Each policy, with what its prior's mean costs at recorded steps."""
    epochs, seeds, every = (_PRETRAIN + 1, 1, 4) if context.quick else (14, 3, 4)
    names = ("full-data", "running", "constant") if context.quick else tuple(POLICIES)
    by_policy: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        options, title = POLICIES[name]
        by_policy[name] = [
            _one(context, name, options, seed, epochs, every)
            for seed in range(context.seed, context.seed + seeds)
        ]
        cost = fmean([run["cost_number"] for run in by_policy[name]])
        context.told(f"{title}: at half of the steps its mean costs {cost:.1%} of number's loss")
    rows = [
        {"title": POLICIES[name][1], "policy": name, **_summary(runs)}
        for name, runs in by_policy.items()
    ]
    return Findings(
        settings={
            "benchmark": "digits: number, odd, loop",
            "epochs": epochs,
            "pretrain": _PRETRAIN,
            "seeds": seeds,
            "recorded_every": every,
            "runs": {name: list(runs) for name, runs in by_policy.items()},
        },
        tables={"priors": Table(f"Mean ± sd of {seeds} seeds", _COLUMNS, rows)},
        figures={"staleness": lambda: figure(by_policy)},
    )


def _one(
    context: Context, name: str, options: Mapping[str, Any], seed: int, epochs: int, every: int
) -> dict[str, Any]:
    folder = context.folder / "runs" / f"{name}-seed{seed}"
    _, result = train(
        ThreeTasks(split_seed=seed),
        "bayesagg",
        folder,
        settings={"epochs": epochs, "seed": seed},
        options={**options, "pretrain": _PRETRAIN},
        record=every,
    )
    rows = [row for row in diagnostics.read(folder / RECORD) if "stale_cost/regression" in row]
    stale = [row["stale_cost/regression"] for row in rows]
    binary = [fmean([row[f"stale_cost/binary.{task}"] for task in range(2)]) for row in rows]
    last = result["history"][-1]
    tests = result["last"]["test"]
    return {
        "seed": seed,
        "steps": [row["step"] for row in rows],
        "stale": stale,
        "cost_number": _quantile(stale, 0.5),
        "worst_number": _quantile(stale, 0.9),
        "cost_binary": _quantile(binary, 0.5),
        "mse": tests["number"],
        "odd": tests["odd"],
        "loop": tests["loop"],
        "loss": fmean([v for v in last["train_loss"].values() if v is not None]),
        "effective_tasks": last["effective_tasks"],
        "milliseconds": 1e3 * result["timing"]["seconds_per_step"]["Bayesian"],
    }


def _summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        **summary(runs, _MEASURES),
        **{key: fmean([run[key] for run in runs]) for key in _COSTS},
        "milliseconds": min(run["milliseconds"] for run in runs),
    }


def _quantile(values: Sequence[float], level: float) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(level))


def figure(by_policy: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Excess loss over training, a line for each policy."""
    lines = {}
    for name, runs in by_policy.items():
        together = zip(*(run["stale"] for run in runs), strict=True)
        lines[POLICIES[name][1]] = (runs[0]["steps"], [fmean(values) for values in together])
    return curves(lines, x="step", y="excess loss of the prior's mean (number)", log="y")
