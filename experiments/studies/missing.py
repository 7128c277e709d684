"""What happens when labels are missing: LS against BayesAgg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib.figure import Figure

from experiments.studies.digits import ThreeTasks
from experiments.studies.plots import curves
from experiments.studies.runs import train
from experiments.studies.study import Context, Findings, Table, summary

#: Method, its options, and a title.
METHODS: Final[Mapping[str, tuple[str, Mapping[str, Any], str]]] = {
    "ls": ("ls", {}, "LS"),
    "bayesagg": ("bayesagg", {}, "BayesAgg"),
    "mean": ("bayesagg", {"power": 0.0}, "BayesAgg, s = 0"),
}
_SHARES: Final = (0.0, 0.3, 0.6, 0.8, 0.9)
_COLUMNS: Final = {
    "missing": ("missing", ".0%"),
    "method": ("title", ""),
    "MSE of number": ("number", ".3f"),
    "odd (%)": ("odd", ".1f"),
    "loop (%)": ("loop", ".1f"),
    "Δm (%)": ("delta_m", ".1f"),
}
_MEASURES: Final = ("number", "odd", "loop", "delta_m")


def run(context: Context) -> Findings:
    """Each method at each share of missing labels."""
    shares, seeds = ((0.0, 0.9), 1) if context.quick else (_SHARES, 3)
    epochs, pretrain = (2, 1) if context.quick else (20, 5)
    rows: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for share in shares:
        for name, (_, _, title) in METHODS.items():
            own = [
                _one(context, name, share, seed, epochs, pretrain)
                for seed in range(context.seed, context.seed + seeds)
            ]
            runs += own
            row = {"missing": share, "method": name, "title": title, **summary(own, _MEASURES)}
            rows.append(row)
            context.told(
                f"{share:.0%} missing, {title}: test MSE of number {row['number']:.3f}, "
                f"Δm {row['delta_m']:.1f} %"
            )
    return Findings(
        settings={
            "benchmark": "digits: number, odd, loop; complete test labels",
            "epochs": epochs,
            "pretrain": pretrain,
            "seeds": seeds,
            "selection": "best epoch on validation Δm",
            "runs": runs,
        },
        tables={"missing": Table(f"Test, mean ± sd of {seeds} seeds", _COLUMNS, rows, labels=2)},
        figures={
            "number": lambda: figure(rows, "number", "test MSE of number"),
            "delta_m": lambda: figure(rows, "delta_m", "test Δm (%), lower is better"),
        },
    )


def _one(
    context: Context, name: str, share: float, seed: int, epochs: int, pretrain: int
) -> dict[str, Any]:
    method, options, _ = METHODS[name]
    _, result = train(
        ThreeTasks(split_seed=seed, missing=share),
        method,
        context.folder / "runs" / f"{name}-{share:.0%}-seed{seed}".replace("%", ""),
        settings={"epochs": epochs, "seed": seed},
        options={**options, "pretrain": pretrain} if method == "bayesagg" else options,
    )
    best = result["best"]
    return {
        "method": name,
        "missing": share,
        "seed": seed,
        **{task: best["test"][task] for task in ("number", "odd", "loop")},
        "delta_m": best["test_delta_m"],
    }


def figure(rows: Sequence[Mapping[str, Any]], key: str, label: str) -> Figure:
    """A measure against the share of missing labels, a line for each method."""
    lines, errors = {}, {}
    for name, (_, _, title) in METHODS.items():
        own = [row for row in rows if row["method"] == name]
        lines[title] = ([100 * row["missing"] for row in own], [row[key] for row in own])
        errors[title] = [row[f"{key}_spread"] or 0.0 for row in own]
    return curves(lines, x="training labels missing (%)", y=label, errors=errors)
