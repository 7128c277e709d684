"""What TaylorGGN and Laplace share: one Newton step of a head's negative log-posterior."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._cavity import cavity
from bayesagg_pyro.inference._curvature import (
    Structure,
    check_prior,
    gaussian_prior,
    materialised,
)
from bayesagg_pyro.inference._examples import ExamplesOrSums
from bayesagg_pyro.inference._expansion import (
    Chunk,
    Expansion,
    check_structure,
    check_tasks,
    chunk_of,
    dropped_share,
    expand,
    value,
)
from bayesagg_pyro.inference._expansion_sums import ExpansionSums
from bayesagg_pyro.inference._scheme import Scheme
from bayesagg_pyro.inference._statistics import Statistics, Storage
from bayesagg_pyro.posteriors import (
    DiagonalGaussian,
    GaussianFamily,
    KroneckerGaussian,
    Posterior,
)
from bayesagg_pyro.targets import Parsed, RawTargets


class NewtonStep(NamedTuple):
    """A quadratic model of the negative log-posterior at a point, and its minimum.

    Attributes:
        posterior: precision of the quadratic, around the prior's mean still.
        step: −Λ⁻¹ a, [tasks, P].
        decrement: sqrt(aᵀ Λ⁻¹ a), [tasks].
        pull: the prior's part of the gradient, Λ_p (w − m_p), [tasks, P].
        value: negative log-posterior at the point up to a constant, [tasks].
    """

    posterior: GaussianFamily
    step: Tensor
    decrement: Tensor
    pull: Tensor
    value: Tensor


def newton_step(head: Head, prior: GaussianFamily, point: Tensor, at: Expansion) -> NewtonStep:
    """Minimise expansion + prior: a = ∇NLL + Λ_p (w − m_p), Λ = Λ_p + GGN (eq. post_cls)."""
    posterior: GaussianFamily = at.curvature.posterior(prior, f"head {head.site!r}")
    if at.dropped is not None:
        posterior = posterior.with_info(dropped_curvature=dropped_share(at.dropped))
    offset = point - prior.mean
    pull = prior.precision_times(offset)
    gradient = at.gradient + pull
    step = -posterior.solve(gradient)
    decrement = -(gradient * step).sum(-1)
    potential = at.value + 0.5 * (pull * offset).sum(-1)
    return NewtonStep(posterior, step, decrement.clamp(min=0).sqrt(), pull, potential)


def potential(head: Head, chunks: Iterable[Chunk], prior: GaussianFamily, w: Tensor) -> Tensor:
    """Negative log-posterior up to a constant, [tasks]."""
    offset = w - prior.mean
    return value(head, chunks, w) + 0.5 * (prior.precision_times(offset) * offset).sum(-1)


class SecondOrder(Scheme):
    """Base of schemes that expand the likelihood to second order around the point estimate.

    Args:
        structure: of the curvature. "full": a dense block per task. "diag": independent weights.
            "kron" (Categorical): one factor over outputs times one over features.
        separate_bias: for "kron", whether features and bias are taken as independent.

    Raises:
        SettingError: for another structure.
    """

    needs_point = True

    def __init__(self, structure: Structure = "full", *, separate_bias: bool = False) -> None:
        if structure not in ("full", "kron", "diag"):
            raise SettingError(f'structure must be "full", "kron" or "diag", not {structure!r}')
        self.structure = structure
        kinds: dict[str, type[Posterior]] = {
            "full": GaussianFamily,
            "diag": DiagonalGaussian,
            "kron": KroneckerGaussian,
        }
        self.gives = kinds[structure]
        self.separate_bias = separate_bias

    @torch.no_grad()  # parameters of a likelihood (learned cut-points) are constants here
    def infer(
        self,
        head: Head,
        features: Tensor,
        targets: RawTargets,
        prior: Posterior,
        *,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> GaussianFamily:
        """A Gaussian posterior; its `info` tells how far the expansion can be trusted.

        Args:
            head: Bernoulli, Categorical or another head of one predictor; a network; a Pyro model.
                Outputs of a subclass that are no longer linear are expanded by autograd.
            features: [N, d].
            targets: [N, tasks], or (values, mask).
            prior: a Gaussian of a structure that this one can be added to.
            start: not used: it starts from the head's weights.
            generator: not used.

        Raises:
            SettingError: if head, prior and structure do not fit.
            ShapeError, DtypeError, NonFiniteError: for bad features or targets.
            NumericalError: if the precision cannot be factored.
        """
        if not isinstance(targets, Parsed):  # parsed targets come with a head and features checked
            head.check_features(features)
            check_structure(head, self.structure)
            check_tasks(head)
        chunk = chunk_of(head, features, head.parse_targets(targets, len(features)))
        return self.infer_chunks(head, [chunk], prior)

    def check(self, head: Head, prior: Posterior) -> None:
        """Refuse a structure of the prior that the curvature's cannot be added to."""
        check_structure(head, self.structure)
        check_prior(
            self.structure,
            gaussian_prior(head, prior, "a second-order scheme"),
            f"head {head.site!r}",
        )

    def statistics(self, head: Head, storage: Storage) -> Statistics:
        """Examples, or sums of expansions when streaming or when examples exceed `storage.memory`.

        Raises:
            SettingError: if head and structure do not fit.
        """
        check_structure(head, self.structure)
        check_tasks(head)
        if storage.streaming:
            return ExpansionSums(head, self)
        return ExamplesOrSums(head, storage, self)

    @torch.no_grad()
    def leave_out(
        self,
        head: Head,
        features: Tensor,
        targets: RawTargets,
        prior: Posterior,
        *,
        base: Posterior,
        weight: float = 1.0,
    ) -> GaussianFamily:
        """The prior less the batch's quadratic expansion at the point estimate.

        See `Scheme.leave_out`.
        """
        prior = gaussian_prior(head, prior, "a second-order scheme")
        chunk = chunk_of(head, features, head.parse_targets(targets, len(features)))
        prior = prior.to(chunk.design.device, chunk.design.dtype)
        point = head.point().detach().to(chunk.design.dtype)
        at = self.expand(head, [chunk], point)
        curvature = materialised(at.curvature).scaled(weight)
        # The quadratic's slope in the weights, taken at the prior's mean.
        shift = curvature.matvec(point - prior.mean) - weight * at.gradient
        known = gaussian_prior(head, base, "a cavity")
        return cavity(curvature, shift, prior, known, f"head {head.site!r}")

    def infer_chunks(self, head: Head, chunks: Iterable[Chunk], prior: Posterior) -> GaussianFamily:
        """As `infer`, of examples that come in chunks, at the weights of this moment.

        Args:
            head: the head.
            chunks: of examples; gone through more than once.
            prior: as for `infer`.
        """
        first = next(iter(chunks))
        if not first.linear:
            check_structure(head, self.structure)
        prior = gaussian_prior(head, prior, "a second-order scheme").to(
            first.design.device, first.design.dtype
        )
        point = head.point().detach().to(first.design.dtype)
        posterior = self.fit(head, chunks, prior, point)
        return posterior.replace(outputs_per_task=head.outputs_per_task)

    def for_epoch(self) -> SecondOrder:
        """This scheme as it infers from the examples of an epoch, once, and not in every step."""
        return self

    def fit(
        self, head: Head, chunks: Iterable[Chunk], prior: GaussianFamily, point: Tensor
    ) -> GaussianFamily:
        """The posterior, starting from `point`, [tasks, P]."""
        raise NotImplementedError

    def expand(self, head: Head, chunks: Iterable[Chunk], point: Tensor) -> Expansion:
        """Expansion in this scheme's structure."""
        return expand(head, chunks, point, self.structure, separate_bias=self.separate_bias)
