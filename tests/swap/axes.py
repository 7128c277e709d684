"""The choices on each axis, as small as they can be: three features, two tasks, eight examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from bayesagg_pyro import aggregation, gradients, heads, inference, priors

__all__ = ["AGGREGATIONS", "ESTIMATORS", "HEADS", "PRIORS", "SCHEMES", "features", "targets"]

_D, _TASKS, _EXAMPLES = 3, 2, 8


def _model(features: Tensor, targets: Tensor | None = None) -> Tensor:
    """A regression with unknown noise, as a user might write it."""
    slope = pyro.sample(
        "slope", dist.Normal(torch.zeros(_D, dtype=features.dtype), 1.0).to_event(1)
    )
    noise = pyro.sample("noise", dist.HalfCauchy(torch.tensor(1.0, dtype=features.dtype)))
    mean = torch.einsum("...bd,...d->...b", features, slope)
    with pyro.plate("examples", features.shape[-2]):
        drawn: Tensor = pyro.sample("y", dist.Normal(mean, noise[..., None]), obs=targets)
    return drawn


def _network() -> heads.Head:
    body = nn.Sequential(nn.Linear(_D, 2), nn.Tanh(), nn.Linear(2, _TASKS))
    return heads.Network(body, heads.Bernoulli(_D, tasks=_TASKS))


#: name: (makes the head, kind of its targets)
HEADS: Final[dict[str, tuple[Callable[[], heads.Head], str]]] = {
    "Gaussian": (lambda: heads.Gaussian(_D, tasks=_TASKS, noise_scale=0.5), "real"),
    "Bernoulli": (lambda: heads.Bernoulli(_D, tasks=_TASKS), "binary"),
    "Categorical": (lambda: heads.Categorical(_D, classes=3, tasks=_TASKS), "class"),
    "Poisson": (lambda: heads.Poisson(_D, tasks=_TASKS), "count"),
    "StudentT": (lambda: heads.StudentT(_D, tasks=_TASKS), "real"),
    "NegativeBinomial": (
        lambda: heads.NegativeBinomial(_D, tasks=_TASKS, dispersion=2.0),
        "count",
    ),
    "Ordinal": (lambda: heads.Ordinal(_D, classes=3, tasks=_TASKS), "class"),
    "Heteroscedastic": (lambda: heads.Heteroscedastic(_D, tasks=_TASKS), "real"),
    "GaussianProcess": (
        lambda: heads.GaussianProcess(
            _D, tasks=_TASKS, inducing=features(9)[:3].float(), noise_scale=0.5
        ),
        "real",
    ),
    "Network": (_network, "binary"),
    "FromPyro": (lambda: heads.FromPyro(_model, _D), "one real"),
}

SCHEMES: Final[dict[str, Callable[[], inference.Scheme]]] = {
    "Conjugate": inference.Conjugate,
    "TaylorGGN": inference.TaylorGGN,
    "TaylorGGN kron": lambda: inference.TaylorGGN("kron"),
    "TaylorGGN diag": lambda: inference.TaylorGGN("diag"),
    "Laplace": lambda: inference.Laplace(max_steps=3),
    "LaplaceTorch": inference.LaplaceTorch,
    "Variational": lambda: inference.Variational(steps=2, particles=2),
    "NUTS": lambda: inference.NUTS(4, warmup=2, chains=1, max_tree_depth=2),
    "HMC": lambda: inference.HMC(4, warmup=2, chains=1),
    "Ensemble": lambda: inference.Ensemble(3),
    "Delta": inference.Delta,
    "IntegratedNoise": inference.IntegratedNoise,
}

PRIORS: Final[dict[str, Callable[[], priors.Policy]]] = {
    "FullData": priors.FullData,
    "FullData, batch left out": lambda: priors.FullData(leave_batch_out=True),
    "Constant": priors.Constant,
    "PreviousBatch": priors.PreviousBatch,
    "Running": lambda: priors.Running(half_life=20),
    "Fresh": priors.Fresh,
    "FullData, variance learned": lambda: priors.FullData("learned"),
}

ESTIMATORS: Final[dict[str, Callable[[], gradients.Estimator | None]]] = {
    "by type": lambda: None,
    "Exact": gradients.Exact,
    "Quadrature": gradients.Quadrature,
    "Conditional": lambda: gradients.Conditional(4),
    "MonteCarlo": lambda: gradients.MonteCarlo(4),
    "PlugIn": gradients.PlugIn,
}


def _torchjd() -> Any:
    from torchjd.aggregation import UPGrad

    return UPGrad()


AGGREGATIONS: Final[dict[str, Callable[[], aggregation.Aggregation]]] = {
    "PrecisionWeighted": lambda: aggregation.PrecisionWeighted.paper(power=0.5),
    "full covariance": lambda: aggregation.PrecisionWeighted(power=1.0, covariance="full"),
    "Mean": aggregation.Mean,
    "Sum": aggregation.Sum,
    "Bargain": aggregation.Bargain,
    "TorchJD": lambda: aggregation.TorchJD(_torchjd()),
    "PerSample": lambda: aggregation.PerSample(_torchjd(), samples=2),
}


def features(seed: int = 0) -> Tensor:
    """[8, 3], float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(_EXAMPLES, _D, generator=generator, dtype=torch.float64)


def targets(kind: str, seed: int = 0) -> Tensor:
    """[8, 2] of a kind; [8, 1] of "one real"."""
    generator = torch.Generator().manual_seed(seed + 1)
    real = torch.randn(_EXAMPLES, _TASKS, generator=generator, dtype=torch.float64)
    if kind == "one real":
        return real[:, :1]
    if kind == "binary":
        return (real > 0).double()
    if kind == "class":
        return torch.randint(0, 3, real.shape, generator=generator)
    return real.abs().round() if kind == "count" else real
