"""No inference at all: the head's own weights, as linear scalarisation uses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._state import count, number
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._scheme import Scheme
from bayesagg_pyro.inference._statistics import Statistics, Storage
from bayesagg_pyro.posteriors import Point, Posterior
from bayesagg_pyro.targets import RawTargets, Targets
from bayesagg_pyro.validity import CHECKED, Validity


class Delta(Scheme):
    """A point estimate instead of a posterior: weights learn by gradient, without a prior.

    The gradient distribution is then the ordinary gradient with variance 0, and precision weighting
    gives tasks of variance 0 equal weights: with Delta for all heads the update is that of linear
    scalarisation divided by the number of tasks (times it, for the engine's `reduction="sum"`). A
    Delta head beside one with uncertainty takes all the weight.
    """

    needs_point: ClassVar[bool] = True
    gives = Point
    tempers = False  # no width to temper

    def infer(
        self,
        head: Head,
        features: Tensor,
        targets: RawTargets,
        prior: Posterior,
        *,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> Point:
        """The head's own weights, whatever the rest."""
        return _point(head)

    def statistics(self, head: Head, storage: Storage) -> Statistics:
        """Nothing is kept but whether there was a batch."""
        return _Seen(head)


def _point(head: Head) -> Point:
    # A copy: the head's weights move on while a prior or a held posterior stays.
    point = head.point().detach().to(linalg.head_dtype(head.weight.device), copy=True)
    return Point(point, outputs_per_task=head.outputs_per_task)


class _Seen(Statistics):
    def __init__(self, head: Head) -> None:
        super().__init__(head)
        self._any = False

    def posterior(
        self,
        prior: Posterior,
        *,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> Point:
        return _point(self.head)

    def __bool__(self) -> bool:
        return self._any

    def add(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> None:
        self._any = True

    def to(self, device: torch.device) -> None:
        pass

    def state_dict(self) -> dict[str, Tensor]:
        return {"any": number(self._any)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._any = bool(count(state, "any", most=1))
