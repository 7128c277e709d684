"""Heads on the features of briefly trained networks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from bayesagg_pyro import heads
from bayesagg_pyro.heads import Head
from experiments.digits.benchmark import Digits
from experiments.methods import Network
from experiments.qm9.benchmark import Qm9
from experiments.qm9.prepared import HEAD
from experiments.studies.apart import Problem
from experiments.studies.runs import train
from experiments.training import Trainer


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
