"""What an inference scheme is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._examples import Examples
from bayesagg_pyro.inference._statistics import Statistics, Storage
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import RawTargets

#: When a posterior is inferred anew: every step, every so many steps, or once per epoch.
Refresh: TypeAlias = Literal["step", "epoch"] | int


class Scheme(ABC):
    """Maps (head, features, targets, prior) to a posterior over the head's weights.

    A scheme holds settings only; calling it changes nothing. Subclasses need `infer` alone: a
    full-data posterior is then inferred from all examples kept. A scheme whose likelihood has
    sufficient statistics overrides `statistics` and keeps sums instead.
    """

    #: Whether the scheme expands around the head's learned point estimate, which must then be
    #: trained by the gradient of its loss.
    needs_point: ClassVar[bool] = False

    #: Whether `infer` goes on from `start`: what it is given must then always be sound.
    warm_starts: ClassVar[bool] = False

    #: What its posteriors are; None where a class of your own does not say. A policy or estimator
    #: that needs others is refused when an engine is made, not in the middle of training.
    gives: type[Posterior] | None = None
    #: Whether the data's log-likelihood can be tempered.
    tempers: bool = True
    #: What priors it can start from.
    takes: type[Posterior] = Posterior

    #: How often the engine infers anew. "step": from every batch. n: from every n-th batch, whose
    #: posterior is held in between. "epoch": never from a batch; every step takes the posterior of
    #: the last epoch's full data, made by `update_prior`.
    refresh: Refresh = "step"

    @abstractmethod
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
        """Posterior over the weights of `head`.

        Args:
            head: the head.
            features: [N, d]; no gradient flows into them.
            targets: [N, tasks], or (values, mask).
            prior: batch shape [tasks]; any posterior serves.
            start: an earlier posterior, for schemes that iterate to start from.
            generator: randomness for schemes that draw; torch's global one if None.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def check(self, head: Head, prior: Posterior) -> None:
        """Refuse a head, or a prior (the first, or one loaded), that posteriors cannot be made of.

        Raises:
            SettingError, DtypeError: naming the head and the remedy.
        """
        return

    def statistics(self, head: Head, storage: Storage) -> Statistics:
        """An empty collection of training batches, of which it makes a posterior.

        Args:
            head: the head.
            storage: how to keep examples, for schemes that need them.
        """
        return Examples(head, storage, self)

    def leave_out(
        self,
        head: Head,
        features: Tensor,
        targets: RawTargets,
        prior: Posterior,
        *,
        base: Posterior,
        weight: float = 1.0,
    ) -> Posterior:
        """The prior as if it had never seen a batch (a cavity distribution).

        Args:
            head: the head.
            features: [B, d].
            targets: [B, tasks], or (values, mask).
            prior: holds the batch, its log-likelihood times `weight`.
            base: what it was built on. What is left of a task must be tighter than half of it,
                else the task's prior stays as it is; `info.left_out` says which.
            weight: of the batch in the prior.

        Raises:
            SettingError: if the scheme's posteriors have no terms to subtract.
        """
        raise SettingError(
            f"head {head.site!r}: {type(self).__name__} cannot leave a batch out of a prior; set "
            "leave_batch_out=False, or use Conjugate, TaylorGGN or Laplace"
        )


def check_refresh(refresh: Refresh) -> Refresh:
    """Refuse a `refresh` other than "step", "epoch" or a number of steps.

    Raises:
        SettingError: naming what is allowed.
    """
    steps = isinstance(refresh, int) and not isinstance(refresh, bool) and refresh >= 1
    if refresh not in ("step", "epoch") and not steps:
        raise SettingError(
            f'refresh must be "step", "epoch" or a number of steps of at least 1, not {refresh!r}'
        )
    return refresh
