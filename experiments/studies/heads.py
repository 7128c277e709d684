"""Heads that are not linear beside the linear head, trained with a backbone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from matplotlib.figure import Figure

from experiments.methods import BayesAggMethod, LinearScalarization, Method
from experiments.studies.digits import ThreeTasks
from experiments.studies.plots import bars
from experiments.studies.runs import KINDS, NOISE, train
from experiments.studies.study import Context, Findings, Table, summary
from experiments.training import Trainer

_COLUMNS: Final = {
    "head": ("head", ""),
    "method": ("title", ""),
    "weights": ("weights", "d"),
    "MSE of number": ("number", ".3f"),
    "NLL": ("nll_number", ".2f"),
    "odd (%)": ("odd", ".1f"),
    "loop (%)": ("loop", ".1f"),
    "NLL of both": ("nll_binary", ".3f"),
    "ms per step": ("milliseconds", ".0f"),
}
_MEASURES: Final = ("number", "odd", "loop", "nll_number", "nll_binary")
_TITLES: Final = {"ls": "LS", "bayesagg": "BayesAgg"}


def run(context: Context) -> Findings:
    """Every kind of head by LS and by BayesAgg, as far as these can train it."""
    seeds, epochs, pretrain = (1, 2, 1) if context.quick else (3, 14, 5)
    rows: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for kind, title in KINDS.items():
        for method in ("ls", "bayesagg"):
            if method == "ls" and kind in ("all-parameters", "gaussian-process"):
                continue  # a point estimate of the one is last-layer's; the other's is placed
            own = [
                _one(context, kind, method, seed, epochs, pretrain)
                for seed in range(context.seed, context.seed + seeds)
            ]
            runs += own
            row: dict[str, Any] = {
                "kind": kind,
                "head": title,
                "method": method,
                "title": _TITLES[method],
                "weights": own[0]["weights"],
                "milliseconds": min(run["milliseconds"] for run in own),
                **summary(own, _MEASURES),
            }
            rows.append(row)
            context.told(
                f"{title}, {_TITLES[method]}: test MSE of number {row['number']:.3f}, "
                f"{row['milliseconds']:.0f} ms per step"
            )
    return Findings(
        settings={
            "benchmark": "digits: number, odd, loop",
            "epochs": epochs,
            "pretrain": pretrain,
            "noise_scale": NOISE,
            "seeds": seeds,
            "selection": "last epoch",
            "runs": runs,
        },
        tables={"heads": Table(f"Test, mean ± sd of {seeds} seeds", _COLUMNS, rows, labels=2)},
        figures={"heads": lambda: figure(rows)},
    )


def _one(
    context: Context, kind: str, method: str, seed: int, epochs: int, pretrain: int
) -> dict[str, Any]:
    trainer, result = train(
        ThreeTasks(split_seed=seed, kind=kind),
        method,
        context.folder / "runs" / f"{kind}-{method}-seed{seed}",
        settings={"epochs": epochs, "seed": seed},
        options={"pretrain": pretrain} if method == "bayesagg" else None,
    )
    phases = result["timing"]["seconds_per_step"]
    test, nll = result["last"]["test"], _test_nll(trainer)
    heads = trainer.run.benchmark.heads(bias=True)
    return {
        "kind": kind,
        "method": method,
        "seed": seed,
        **{task: test[task] for task in ("number", "odd", "loop")},
        "nll_number": nll["regression"],
        "nll_binary": nll["binary"],
        "weights": sum(head.blocks * head.weight_size for head in heads.values()),
        "milliseconds": 1e3 * list(phases.values())[-1],
    }


@torch.no_grad()
def _test_nll(trainer: Trainer) -> dict[str, float]:
    """−log p(y | h) on the test split, mean over examples and tasks, per head.

    With the weights integrated out where there is a posterior, else at the point estimate.
    """
    method, test = trainer.method, trainer.data.test
    method.train(False)
    inputs, targets = next(iter(test.batches(len(test))))
    found = _log_densities(method, inputs, targets)
    return {name: float(-value.mean()) for name, value in found.items()}


def _log_densities(
    method: Method, inputs: torch.Tensor, targets: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    if isinstance(method, BayesAggMethod):
        features = method.backbone(inputs)
        predictive = method.mtl.predictive(features)
        return {name: law.log_prob(targets[name]) for name, law in predictive.items()}
    assert isinstance(method, LinearScalarization)
    features = method.backbone(inputs)
    return {
        name: -head.negative_log_prob(head(features), targets[name])
        for name, head in method.by_name.items()
    }


def figure(rows: list[dict[str, Any]]) -> Figure:
    """Test error, NLL and time, a bar for each head."""
    titles = {
        "number": "test MSE",
        "nll_number": "NLL of number",
        "nll_binary": "NLL of odd, loop",
        "milliseconds": "ms per step",
    }
    return bars(
        {
            title: {f"{row['head']}, {row['title']}": row[key] for row in rows}
            for key, title in titles.items()
        }
    )
