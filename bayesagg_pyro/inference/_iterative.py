"""Schemes that run for a while: warm starts, randomness, and how often they are worth running."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pyro
import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import DtypeError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._joint import Joint
from bayesagg_pyro.inference._scheme import Refresh, Scheme, check_refresh
from bayesagg_pyro.posteriors import Empirical, GaussianFamily, Posterior
from bayesagg_pyro.targets import Parsed, RawTargets


class Iterative(Scheme):
    """Base of schemes that iterate or sample, or that call other libraries to do so.

    They need no more of a head than its loss: subclasses give `fit`, on the joint density of data
    and weights.

    Args:
        refresh: how often the engine infers anew; see `Scheme.refresh`.
        generator: source of randomness; the engine's, or torch's global one, if None.

    Raises:
        SettingError: for another refresh.
    """

    warm_starts: ClassVar[bool] = True

    def __init__(
        self, *, refresh: Refresh = "step", generator: torch.Generator | None = None
    ) -> None:
        self.refresh = check_refresh(refresh)
        self.generator = generator

    def infer(
        self,
        head: Head,
        features: Tensor,
        targets: RawTargets,
        prior: Posterior,
        *,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> Posterior:
        """The posterior; its `info` tells how far to trust it.

        Args:
            head: any head with a likelihood.
            features: [N, d].
            targets: [N, tasks], or (values, mask).
            prior: a Gaussian, or samples, which stand for the Gaussian of their moments.
            start: an earlier posterior to start from.
            generator: randomness, unless the scheme has a generator of its own.

        Raises:
            DtypeError: for a prior without density.
            ShapeError, DtypeError, NonFiniteError: for bad features, targets or weights.
            NumericalError: if a factorisation fails.
        """
        if not isinstance(targets, Parsed):  # parsed targets come with all this checked
            head.check_features(features)
            self.check(head, prior)
        observed = head.parse_targets(targets, len(features))
        head.check_weights(prior, "prior")
        if start is not None:
            head.check_weights(start, "starting posterior")
        dtype = linalg.head_dtype(features.device)
        density = _density(head, prior).to(features.device, dtype)
        joint = Joint(head, features.detach().to(dtype), observed, density)
        # Validation looks at every value of every density, thousands of times.
        with torch.enable_grad(), pyro.validation_enabled(False), _constant(head):
            posterior = self.fit(joint, start, self.generator or generator)
        if not isinstance(posterior, Posterior):
            raise DtypeError.returned(self, "fit", posterior, "a Posterior")
        return posterior.replace(outputs_per_task=head.outputs_per_task)

    @abstractmethod
    def fit(
        self, joint: Joint, start: Posterior | None, generator: torch.Generator | None
    ) -> Posterior:
        """The posterior that belongs to a joint density; called with gradients enabled."""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """For code of others that makes tensors without saying of which dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _constant(head: Head) -> Iterator[None]:
    """A block in which the head's own parameters need no gradient; weights drawn still do."""
    learned = [weight for weight in head.parameters() if weight.requires_grad]
    for weight in learned:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in learned:
            weight.requires_grad_()


def _density(head: Head, prior: Posterior) -> GaussianFamily:
    if isinstance(prior, Empirical):
        return prior.to_gaussian()
    if not isinstance(prior, GaussianFamily):
        raise DtypeError(
            f"head {head.site!r}: the prior must be a Gaussian or made of samples, "
            f"not {type(prior).__name__}, which has no density"
        )
    return prior
