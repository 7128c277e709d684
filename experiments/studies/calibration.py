"""Does each inference scheme put true weights where its posterior says?

Simulation-based calibration: weights are drawn from the prior and targets from them. Exact schemes
must pass. Schemes that approximate may fail, and the figures show how.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from bayesagg_pyro import diagnostics, heads, inference, priors
from bayesagg_pyro.diagnostics import Calibration
from experiments.settings import require
from experiments.studies.study import Context, Findings, Table

FEATURES = 3
DRAWS = 99


@dataclass(frozen=True)
class Case:
    """One model with one scheme.

    Attributes:
        name: of the case, also that of its figure.
        title: as in tables.
        head: makes the head with so many tasks, each a replication.
        scheme: makes the scheme.
        variance: of the isotropic prior that truths are drawn from.
        expected: whether the scheme is known to be calibrated for this model.
    """

    name: str
    title: str
    head: Callable[[int], heads.Head]
    scheme: Callable[[], inference.Scheme]
    variance: float
    expected: bool


def _gaussian(tasks: int) -> heads.Head:
    return heads.Gaussian(FEATURES, tasks=tasks, noise_scale=0.5).double()


def _bernoulli(tasks: int) -> heads.Head:
    return heads.Bernoulli(FEATURES, tasks=tasks, bias=False).double()


def _nuts() -> inference.Scheme:
    # All replications move together: one trajectory serves them all. Five draws for each one that
    # ranks are taken among leave these nearly independent on whitened weights.
    generator = torch.Generator().manual_seed(0)
    return inference.NUTS(5 * DRAWS, warmup=100, chains=1, generator=generator)


CASES = (
    Case("gaussian-conjugate", "Gaussian, Conjugate", _gaussian, inference.Conjugate, 1.0, True),
    Case("gaussian-nuts", "Gaussian, NUTS", _gaussian, _nuts, 1.0, True),
    Case("bernoulli-nuts", "Bernoulli, NUTS", _bernoulli, _nuts, 4.0, True),
    Case("bernoulli-laplace", "Bernoulli, Laplace", _bernoulli, inference.Laplace, 4.0, False),
    Case(
        "bernoulli-taylor",
        "Bernoulli, TaylorGGN at the prior mean",
        _bernoulli,
        inference.TaylorGGN,
        4.0,
        False,
    ),
)


def calibrate(case: Case, replications: int, examples: int, seed: int) -> tuple[Calibration, float]:
    """Calibration of one case, and the seconds it took."""
    generator = torch.Generator().manual_seed(seed)
    head = case.head(replications)
    features = torch.randn(examples, FEATURES, generator=generator, dtype=torch.float64)
    began = time.perf_counter()
    found = diagnostics.simulate_calibration(
        head,
        case.scheme(),
        priors.isotropic(head, case.variance),
        features,
        replications=replications,
        draws=DRAWS,
        generator=generator,
    )
    return found, time.perf_counter() - began


_COLUMNS: Final = {
    "model, scheme": ("title", ""),
    "passes": ("verdict", ""),
    "p": ("p_value", ".3g"),
    "95 % intervals cover": ("coverage_95", ".1%"),
    "mean squared z": ("squared_z", ".2f"),
    "s": ("seconds", ".1f"),
}


def run(
    context: Context,
    *,
    replications: int | None = None,
    examples: int = 20,
    cases: Sequence[Case] | None = None,
) -> Findings:
    """Calibrate every case.

    Args:
        context: Of the study; its seed decides truths, features, targets and draws.
        replications: Truths drawn from the prior; None for 200, or 60 where it is quick.
        examples: N of each replication.
        cases: Which; None for all, or those without chains where it is quick.

    Raises:
        SettingsError: Numbers that cannot work.
    """
    count = replications or (60 if context.quick else 200)
    require(count >= 20, "replications", count, "give at least 20")
    require(examples >= 1, "examples", examples, "give at least 1")
    rows: list[dict[str, Any]] = []
    figures = {}
    quick = [case for case in CASES if case.scheme is not _nuts]
    for case in cases or (quick if context.quick else CASES):
        found, seconds = calibrate(case, count, examples, context.seed)
        passed = not any(check.alarm for check in found.checks())
        rows.append(
            {
                "case": case.name,
                "title": case.title,
                "expected_to_pass": case.expected,
                "passed": passed,
                "verdict": "yes" if passed else "no",
                "p_value": float(found.p_value),
                "chi_square_p": found.chi_square.tolist(),
                "ecdf_p": found.ecdf.tolist(),
                "coverage": {f"{level:g}": value for level, value in found.coverage().items()},
                "coverage_95": found.coverage()[0.95],
                "ranks": found.ranks.tolist(),
                "rank_histogram": found.histogram().sum(1).tolist(),
                "squared_z": float(found.z.square().mean()),
                "seconds": round(seconds, 2),
            }
        )
        figures[case.name] = partial(diagnostics.plot_calibration, found, case.title)
        context.told(
            f"{case.title}: {'passes' if passed else 'fails'}, p = {rows[-1]['p_value']:.3g}, "
            f"95 % intervals cover {found.coverage()[0.95]:.1%} ({seconds:.1f} s)"
        )
    return Findings(
        settings={
            "features": FEATURES,
            "examples": examples,
            "replications": count,
            "draws": DRAWS,
            "seed": context.seed,
        },
        tables={"calibration": Table("Simulation-based calibration", _COLUMNS, rows)},
        figures=figures,
    )
