"""Simulation-based calibration of the inference schemes: does each give its model's posterior?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bayesagg_pyro import diagnostics, heads, inference, priors
from bayesagg_pyro.diagnostics import Calibration
from experiments.files import prepare_folder, write_atomically, write_json
from experiments.settings import require

__all__ = ["CASES", "Case", "run"]

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


def run(
    folder: Path,
    *,
    replications: int = 200,
    examples: int = 20,
    seed: int = 0,
    cases: tuple[Case, ...] = CASES,
    told: Callable[[str], object] = print,
) -> list[dict[str, Any]]:
    """Calibrate every case; write ``calibration.json`` and a figure for each.

    Args:
        folder: Where to.
        replications: Truths drawn from the prior.
        examples: N of each replication.
        seed: Decides truths, features, targets and draws.
        cases: Which.
        told: Is called with one line per case.

    Returns:
        The results, as in the file.

    Raises:
        SettingsError: Numbers that cannot work.
        OutputError: The folder cannot be written.
    """
    require(replications >= 20, "replications", replications, "give at least 20")
    require(examples >= 1, "examples", examples, "give at least 1")
    prepare_folder(folder)
    results = []
    for case in cases:
        found, seconds = calibrate(case, replications, examples, seed)
        checks = found.checks()
        passed = not any(check.alarm for check in checks)
        result = {
            "case": case.name,
            "title": case.title,
            "expected_to_pass": case.expected,
            "passed": passed,
            "p_value": float(found.p_value),
            "chi_square_p": found.chi_square.tolist(),
            "ecdf_p": found.ecdf.tolist(),
            "coverage": {f"{level:g}": value for level, value in found.coverage().items()},
            "rank_histogram": found.histogram().sum(1).tolist(),
            "squared_z": float(found.z.square().mean()),
            "seconds": round(seconds, 2),
        }
        results.append(result)
        figure = diagnostics.plot_calibration(found, case.title)
        _save(figure, folder / f"{case.name}.png")
        told(
            f"{case.title}: {'passes' if passed else 'fails'}, p = {result['p_value']:.3g}, "
            f"95 % intervals cover {found.coverage()[0.95]:.1%} ({seconds:.1f} s)"
        )
    about = {
        "features": FEATURES,
        "examples": examples,
        "replications": replications,
        "draws": DRAWS,
        "seed": seed,
    }
    write_json(folder / "calibration.json", {"settings": about, "results": results})
    return results


def _save(figure: Any, path: Path) -> None:
    write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=110))
