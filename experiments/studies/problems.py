"""Heads on the features of briefly trained networks, and how far from a reference a scheme is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro import diagnostics, gradients, heads, priors
from bayesagg_pyro.aggregation import PrecisionWeighted
from bayesagg_pyro.gradients import GradientDistribution
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Empirical, GaussianFamily, Point, Posterior
from experiments.digits.benchmark import Digits
from experiments.methods import Network
from experiments.qm9.benchmark import Qm9
from experiments.qm9.prepared import HEAD
from experiments.studies.runs import train
from experiments.training import Trainer

#: Draws for the gradient moments of posteriors that are samples, and for k-hat.
_DRAWS = 4096
_POWER = 0.5


@dataclass(frozen=True)
class Problem:
    """Heads on the fixed features of a trained network.

    Attributes:
        name: Short, for files.
        title: For people.
        heads: ``{name: head}`` in float64, with the trained weights as point estimates.
        features: Of the examples that posteriors are inferred from, [N, d].
        targets: ``{name: [N, tasks]}``.
        batch: How many of them the update is taken for.
    """

    name: str
    title: str
    heads: Mapping[str, Head]
    features: Tensor
    targets: Mapping[str, Tensor]
    batch: int

    def prior(self, name: str) -> GaussianFamily:
        """N(0, I) over a head's weights."""
        return priors.isotropic(self.heads[name], 1.0)


@dataclass(frozen=True)
class Solution:
    """What a scheme makes of a problem.

    Attributes:
        posteriors: ``{head: posterior}``.
        gradient: Of the batch, all heads together.
        direction: The update, [batch, d].
    """

    posteriors: Mapping[str, Posterior]
    gradient: GradientDistribution
    direction: Tensor


def solution(problem: Problem, posteriors: Mapping[str, Posterior], seed: int) -> Solution:
    """Gradient moments and direction that follow from posteriors."""
    generator = torch.Generator().manual_seed(seed)
    h = problem.features[: problem.batch]
    parts = {}
    for name, head in problem.heads.items():
        own = posteriors[name]
        sampled = isinstance(own, Empirical)
        parts[name] = gradients.distribution(
            head,
            own,
            h,
            problem.targets[name][: problem.batch],
            estimator=gradients.MonteCarlo(_DRAWS) if sampled else None,
            generator=generator,
        )
    joint = gradients.cat(parts)
    return Solution(
        posteriors, joint, PrecisionWeighted.paper(power=_POWER).aggregate(joint).direction.double()
    )


def compare(problem: Problem, own: Solution, reference: Solution, seed: int) -> dict[str, Any]:
    """All distances, over all heads of the problem.

    Returns:
        ``kl``: KL(reference ‖ posterior) in nats per weight, of the Gaussian with the reference's
        moments; None for points. ``w2``: Wasserstein distance over the reference's root total
        variance. ``z``, ``ratio``: root mean square z-score of means, geometric mean of ratios of
        standard deviations. ``khat``: the largest. ``mean_error``: relative error of all E[g].
        ``sd_ratio``: geometric mean of ratios of the gradients' standard deviations. ``cosine``,
        ``norm``: of the two updates.
    """
    generator = torch.Generator().manual_seed(seed)
    kl: float | None = 0.0
    weights, w2, variance = 0, 0.0, 0.0
    z, ratio, khat = [], [], []
    for name, head in problem.heads.items():
        ours, truth = own.posteriors[name], reference.posteriors[name]
        apart = diagnostics.against_reference(ours, truth, generator=generator)
        z.append(apart.z.flatten())
        ratio.append(apart.ratio.flatten())
        w2 += float(diagnostics.wasserstein2(ours, truth).square().sum())
        variance += float(truth.variance.double().sum())
        weights += apart.z.numel()
        kl = None if kl is None or isinstance(ours, Point) else kl + _kl(truth, ours)
        if isinstance(ours, GaussianFamily):
            khat.append(_khat(problem, name, head, ours, generator))
    deviation = (own.gradient.variance / reference.gradient.variance).double().sqrt()
    norm = torch.linalg.vector_norm
    error = norm((own.gradient.mean - reference.gradient.mean).double())
    mine, theirs = own.direction.flatten(), reference.direction.flatten()
    return {
        "kl": None if kl is None else kl / weights,
        "w2": math.sqrt(w2 / variance),
        "z": float(torch.cat(z).square().mean().sqrt()),
        "ratio": _geometric(torch.cat(ratio)),
        "khat": max(khat, default=None),
        "mean_error": float(error / norm(reference.gradient.mean.double())),
        "sd_ratio": _geometric(deviation),
        "cosine": float(torch.cosine_similarity(mine, theirs, dim=0)),
        "norm": float(norm(mine) / norm(theirs)),
    }


def _kl(truth: Posterior, ours: Posterior) -> float:
    gaussian = [p.to_gaussian() if isinstance(p, Empirical) else p for p in (truth, ours)]
    return float(diagnostics.kl(gaussian[0], gaussian[1]).sum())


def _khat(
    problem: Problem, name: str, head: Head, ours: Posterior, generator: torch.Generator
) -> float:
    found = diagnostics.importance(
        head,
        ours,
        problem.prior(name),
        problem.features,
        problem.targets[name],
        draws=1000,
        generator=generator,
    )
    return float(found.khat.max())


def _geometric(values: Tensor) -> float:
    return float(values.log().mean().exp())


def digits_problems(folder: Path, seed: int, quick: bool) -> list[Problem]:
    """Heads of the digits benchmark on eight features, for few and all training images."""
    trainer, _ = train(
        Digits(split_seed=seed, width=3 if quick else 8),
        "ls",
        folder / "digits",
        settings={"epochs": 2 if quick else 12, "seed": seed},
    )
    features, targets = _features(trainer, 1500)
    trained = _trained(trainer)
    own = {name: trained[name] for name in ("binary", "classes")}
    sizes = (100,) if quick else (100, len(features))
    batch = 32 if quick else 64
    number = Problem(
        "digits-number",
        "Digits: the number, normal noise; 100 images",
        {"regression": trained["regression"]},
        features[:100],
        {"regression": targets["regression"][:100]},
        batch=batch,
    )
    return [
        number,
        *(
            Problem(
                f"digits-{count}",
                f"Digits: ten classes, odd and loop; {count} images",
                own,
                features[:count],
                {name: targets[name][:count] for name in own},
                batch=batch,
            )
            for count in sizes
        ),
    ]


def qm9_problems(folder: Path, seed: int) -> list[Problem]:
    """Eleven regression tasks on sixteen features: normal noise, and with heavy tails.

    Raises:
        DataError: QM9 is neither built nor installed.
    """
    benchmark = Qm9(
        molecules=2000, validation=1000, test=1000, width=16, edge_width=16, activation="elu"
    )
    trainer, _ = train(
        benchmark,
        "ls",
        folder / "qm9",
        settings={"epochs": 4, "seed": seed, "batch_size": 50, "head_bias": False},
    )
    features, targets = _features(trainer, 1000)
    trained = _trained(trainer)[HEAD]
    scale = _residual(trained, features, targets[HEAD])
    width, tasks = trained.in_features, trained.tasks
    few = 100
    problems = []
    for name, title, head, count in (
        (
            "qm9-normal",
            "QM9, normal noise",
            heads.Gaussian(width, tasks, noise_scale=scale),
            len(features),
        ),
        ("qm9-student", "QM9, Student-t noise", heads.StudentT(width, tasks, scale=scale), few),
    ):
        with torch.no_grad():
            head.weight.copy_(trained.weight)
        problems.append(
            Problem(
                name,
                f"{title}; {count} molecules",
                {HEAD: head.double()},
                features[:count],
                {HEAD: targets[HEAD][:count]},
                batch=64,
            )
        )
    return problems


def _residual(head: Head, features: Tensor, targets: Tensor) -> Tensor:
    """Root mean square error of each task, [tasks]."""
    with torch.no_grad():
        squared: Tensor = (head(features) - targets).square()
        return squared.mean(0).sqrt()


def _trained(trainer: Trainer) -> Mapping[str, Head]:
    assert isinstance(trainer.method, Network)
    return {name: head.double() for name, head in trainer.method.by_name.items()}


@torch.no_grad()
def _features(trainer: Trainer, count: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Features of training examples by the network of the last epoch, in float64, and targets."""
    assert isinstance(trainer.method, Network)
    trainer.method.train(False)
    seen: list[Tensor] = []
    targets: dict[str, list[Tensor]] = {}
    generator = torch.Generator().manual_seed(0)
    for batch in trainer.data.train.batches(100, generator):
        seen.append(trainer.method.backbone(batch.inputs).double())
        for name, values in batch.targets.items():
            targets.setdefault(name, []).append(
                values if values.dtype == torch.int64 else values.double()
            )
    joined = {name: torch.cat(parts)[:count] for name, parts in targets.items()}
    return torch.cat(seen)[:count], joined
