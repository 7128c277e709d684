"""Variational inference by Pyro: the guide that comes closest to the posterior in KL(q ‖ p)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, TypeAlias, cast, get_args

import pyro
import torch
from pyro.infer import Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoGuide
from torch import Tensor, nn

from bayesagg_pyro._modes import seeded
from bayesagg_pyro._settings import integers, positive
from bayesagg_pyro.errors import NumericalError, SettingError
from bayesagg_pyro.inference._guides import DiagonalGuide, FullGuide, GaussianGuide, LowRankGuide
from bayesagg_pyro.inference._iterative import Iterative, default_dtype
from bayesagg_pyro.inference._joint import Joint
from bayesagg_pyro.inference._scheme import Refresh
from bayesagg_pyro.inference._whitening import (
    DenseWhitening,
    DiagonalWhitening,
    Whiten,
    Whitening,
    approximate,
    approximate_diagonally,
    check_whiten,
)
from bayesagg_pyro.posteriors import (
    DiagonalGaussian,
    Empirical,
    GaussianFamily,
    Posterior,
)

GuideFactory: TypeAlias = Callable[[Callable[..., Any]], nn.Module]
OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

#: Rise of the bound per block of weights that counts as none.
_NATS = 0.1
Named: TypeAlias = Literal["full", "low_rank", "diagonal"]


class Variational(Iterative):
    """Stochastic variational inference (SVI) with Pyro: maximises the evidence lower bound.

    Kucukelbir et al. (2017), https://arxiv.org/abs/1603.00788.

    Weights are whitened, w = m + A z, so that learning rates are in posterior standard deviations
    whatever the units of the features; the step size falls to 0 along a half cosine. The built-in
    guides hold one block per task. A guide lives as long as a call: no parameter is shared between
    heads, and Pyro's global parameter store is neither read nor written.

    Args:
        guide: "full": a dense Gaussian (`posteriors.Gaussian`). "diagonal": mean field
            (`posteriors.DiagonalGaussian`). "low_rank": diagonal plus rank columns
            (`posteriors.LowRankGaussian`). Or a factory of a Pyro guide, for example
            `pyro.infer.autoguide.AutoIAFNormal`: it gets a model whose one latent site,
            `<head>.white`, is z, [tasks, P]. The posterior is then Gaussian where the guide has a
            Gaussian `get_posterior()`, else made of draws.
        steps: of the optimiser.
        learning_rate: of Adam, in posterior standard deviations.
        particles: draws per step.
        optimizer: factory (parameters) -> torch optimiser, in place of Adam.
        rank: columns of "low_rank"; sqrt(P) if None.
        whiten: "laplace" starts from Laplace's approximation, or from the last posterior where
            there is one; "prior" from the prior.
        draws: of the posterior of a guide that is not Gaussian.
        refresh: see `Scheme.refresh`.
        generator: see `Iterative`.

    Raises:
        SettingError: for arguments outside their range.
    """

    def __init__(
        self,
        guide: Named | GuideFactory = "full",
        *,
        steps: int = 200,
        learning_rate: float = 0.05,
        particles: int = 8,
        optimizer: OptimizerFactory | None = None,
        rank: int | None = None,
        whiten: Whiten = "laplace",
        draws: int = 1000,
        refresh: Refresh = "epoch",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(refresh=refresh, generator=generator)
        if not callable(guide) and guide not in get_args(Named):
            raise SettingError(
                f'guide must be "full", "low_rank", "diagonal" or a factory, not {guide!r}'
            )
        integers(steps=steps, particles=particles, rank=1 if rank is None else rank)
        integers(2, draws=draws)
        positive("learning_rate", learning_rate)
        check_whiten(whiten)
        self.guide = guide
        self.gives = GaussianFamily if isinstance(guide, str) else None
        self.steps = steps
        self.learning_rate = learning_rate
        self.particles = particles
        self.optimizer = optimizer
        self.rank = rank
        self.whiten = whiten
        self.draws = draws

    def fit(
        self, joint: Joint, start: Posterior | None, generator: torch.Generator | None
    ) -> Posterior:
        """Optimise a guide in whitened coordinates and take it back to weights."""
        whitening = self._whitening(joint, start)
        site = f"{joint.head.site}.white"
        model = _model(joint, whitening, site)
        # Local parameters: two guides of one class would share those in Pyro's global store.
        local = pyro.settings.context(module_local_params=True)
        store = pyro.get_param_store().scope()
        # Autoguides make their parameters in the default dtype.
        dtype = default_dtype(joint.features.dtype)
        quiet = warnings.catch_warnings()
        with seeded(generator, joint.features.device), local, store, dtype, quiet:
            warnings.filterwarnings("ignore", message="Encountered NaN")  # which is refused here
            guide, found = self._guide(model, whitening, site, joint)
            elbo = self._optimise(model, guide, joint)
            posterior = found()
        if posterior.info is None:  # of draws
            posterior = posterior.replace(info=whitening.centre.info)
        settled = _settled(elbo, joint.head.blocks).expand(joint.head.blocks)
        return posterior.with_info(elbo=elbo, converged=settled)

    def _whitening(self, joint: Joint, start: Posterior | None) -> Whitening:
        prior, device, dtype = joint.prior, joint.features.device, joint.features.dtype
        if self.guide in ("low_rank", "diagonal"):
            if self.whiten == "laplace" or not isinstance(prior, DiagonalGaussian):
                prior = approximate_diagonally(joint, start)
            return DiagonalWhitening(prior.to(device, dtype))
        centre: GaussianFamily = prior
        if self.whiten == "laplace":
            centre = start if isinstance(start, GaussianFamily) else approximate(joint, start)
        return DenseWhitening(centre.to(device, dtype))

    def _guide(
        self,
        model: Callable[[], None],
        whitening: Whitening,
        site: str,
        joint: Joint,
    ) -> tuple[nn.Module, Callable[[], Posterior]]:
        """The guide, and what makes a posterior of it once it is fitted."""
        plate = f"{joint.head.site}.tasks"
        if isinstance(whitening, DiagonalWhitening):
            if self.guide == "diagonal":
                own: GaussianGuide = DiagonalGuide(site, plate, whitening)
            else:
                rank = self.rank or max(1, round(joint.prior.mean.shape[-1] ** 0.5))
                own = LowRankGuide(site, plate, whitening, rank)
            return own, own.posterior
        if isinstance(self.guide, str):
            own = FullGuide(site, plate, whitening)
            return own, own.posterior
        guide = self.guide(model)
        if not isinstance(guide, nn.Module):
            raise SettingError(
                f"the guide factory returned {type(guide).__name__}; it must return a "
                "pyro.nn.PyroModule, whose parameters belong to this head alone"
            )
        return guide, partial(self._posterior, guide, whitening, site, joint)

    def _optimise(self, model: Callable[[], None], guide: nn.Module, joint: Joint) -> Tensor:
        """Maximise the bound; its estimates, [steps]."""
        bound = Trace_ELBO(
            self.particles,
            max_plate_nesting=1,
            vectorize_particles=isinstance(guide, GaussianGuide | AutoGuide),
        )
        loss: nn.Module = cast(Any, bound)(model, guide)
        loss()  # autoguides make their parameters when first called
        parameters = list(guide.parameters())
        if not parameters:
            raise SettingError(
                f"the guide {type(guide).__name__} has no parameters of its own; hold them in the "
                "module (pyro.nn.PyroParam), not in pyro.param"
            )
        optimizer = (
            torch.optim.Adam(parameters, self.learning_rate)
            if self.optimizer is None
            else self.optimizer(parameters)
        )
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        history: list[Tensor] = []
        for _ in range(self.steps):
            optimizer.zero_grad()
            value = loss()
            if not value.isfinite():
                raise NumericalError(
                    f"head {joint.head.site!r}: the evidence bound is {-value.item()} after "
                    f"{len(history)} steps; lower the learning rate ({self.learning_rate})"
                )
            value.backward()
            history.append(-value.detach())
            optimizer.step()
            falling.step()
        return torch.stack(history)

    def _posterior(
        self, guide: nn.Module, whitening: DenseWhitening, site: str, joint: Joint
    ) -> Posterior:
        """Of a guide of the user's: Gaussian where it says that it is, else of its draws."""
        with torch.no_grad():
            law = _moments(guide)
            if law is not None:
                tasks, size = joint.prior.mean.shape
                blocks = law[1].reshape(tasks, size, tasks, size).diagonal(dim1=0, dim2=2)
                scale_tril = torch.linalg.cholesky(blocks.movedim(-1, 0))
                return whitening.gaussian(law[0].reshape(tasks, size), scale_tril)
            draws = Predictive(guide, num_samples=self.draws)()[site]
            return Empirical(whitening.weights(draws.reshape(self.draws, *joint.prior.mean.shape)))

    def __repr__(self) -> str:
        return f"Variational(guide={self.guide!r}, steps={self.steps}, refresh={self.refresh!r})"


def _model(joint: Joint, whitening: Whitening, site: str) -> Callable[[], None]:
    """The head as a Pyro model of its whitened weights."""
    prior: Any = whitening.prior(joint.prior)
    name = joint.head.site

    def model() -> None:
        with pyro.plate(f"{name}.tasks", joint.head.blocks, dim=-1):
            z = pyro.sample(site, prior)
            pyro.factor(f"{name}.targets", joint.log_likelihood(whitening.weights(z)))

    return model


def _moments(guide: Any) -> tuple[Tensor, Tensor] | None:
    """Mean and covariance of all tasks' weights together, if the guide says that it is Gaussian."""
    try:
        law = guide.get_posterior()
    except (AttributeError, NotImplementedError):
        return None
    if isinstance(law, torch.distributions.Independent):
        law = law.base_dist
    if isinstance(law, torch.distributions.Normal):
        return law.loc, torch.diag_embed(law.scale.square())
    gaussians = (
        torch.distributions.MultivariateNormal,
        torch.distributions.LowRankMultivariateNormal,
    )
    return (law.loc, law.covariance_matrix) if isinstance(law, gaussians) else None


def _settled(elbo: Tensor, blocks: int) -> Tensor:
    """Whether the bound had stopped rising while steps were still long, [] bool.

    In the last quarter the step size goes to 0, so there it always looks so: the second and the
    third are compared, and what it may have risen, noise included, is to be below `_NATS`.
    """
    quarter = len(elbo) // 4
    if quarter < 2:
        return torch.zeros((), dtype=torch.bool, device=elbo.device)
    before, after = elbo[quarter : 2 * quarter], elbo[2 * quarter : 3 * quarter]
    error = ((before.var() + after.var()) / quarter).sqrt()
    return after.mean() - before.mean() + 2 * error < _NATS * blocks
