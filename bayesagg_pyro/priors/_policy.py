"""Policies: where the prior of a step comes from, and how it changes over training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from bayesagg_pyro._state import named, part
from bayesagg_pyro.errors import StateError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference import Scheme
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import CHECKED, Validity

if TYPE_CHECKING:
    from typing_extensions import Self


class Policy(ABC):
    """Decides where the prior of a step comes from, and how it changes over training.

    As the user makes it, it is a setting, which heads may share. `start` gives each head its own
    copy, which holds what changes: what was collected on the way and the prior in force.

    The engine calls, of such a copy: `begin` once, through `start`; in each step `prior_for`, then
    `collect`; in `update_prior` `propose` and `accept`, after `restart` and `show` where the policy
    `takes_batches`; in `refit` the same of a new copy, which is shown all batches.

    A policy of your own gives `collect` and `propose`, and `begin` where it sets something up.
    One that makes posteriors of all that was collected has less to do from `DataPolicy`.

    Where a call of the engine fails, attributes are put back to what they were, statistics to
    copies of what they were; tensors and lists should be replaced, not written to.
    """

    #: Whose prior a copy follows, and what infers its posteriors; set by `start`.
    head: Head
    scheme: Scheme
    #: The prior in force, None before the first `accept`.
    prior: Posterior | None = None
    #: Randomness for schemes that draw; the engine sets it.
    generator: torch.Generator | None = None
    #: Whether `update_prior` must be given batches, which `show` takes.
    takes_batches: ClassVar[bool] = False
    #: Attributes that are moved and saved, posteriors or None; states have no leading underscore.
    held: ClassVar[tuple[str, ...]] = ("prior",)

    def start(self, head: Head, scheme: Scheme) -> Self:
        """A copy that follows the prior of `head`, whose posteriors `scheme` infers.

        Raises:
            SettingError, DtypeError: if the two do not fit the policy, or each other.
        """
        made = copy(self)
        made.head, made.scheme = head, scheme
        made.begin()
        return made

    def begin(self) -> None:
        """Set up what changes over training, in a copy of the setting."""
        return

    @property
    def posterior(self) -> Posterior | None:
        """What predicts: the posterior of all data, None before there is one.

        It is the prior in force unless a policy keeps the two apart.
        """
        return self.prior

    @property
    def predicts(self) -> bool:
        """Whether there is such a posterior; makes none."""
        return self.posterior is not None

    def prior_for(self, features: Tensor, targets: Targets) -> Posterior:
        """The prior of one step on this batch; its `info` says how it came about.

        Args:
            features: [B, d].
            targets: [B, tasks].

        Raises:
            StateError: if there is none yet.
        """
        if self.prior is None:
            raise StateError(
                f"there is no prior yet for {[self.head.site]}, which a step after the warm-up "
                "needs: run an epoch through collect() and call update_prior(), or make it of "
                "batches with refit()"
            )
        return self.prior

    def restart(self) -> None:
        """Forget batches shown before; where `takes_batches` is set."""
        return

    def show(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> bool:
        """Take in a batch of `update_prior(batches=...)` or `refit`; whether more are wanted."""
        self.collect(features, targets, validity)
        return True

    @abstractmethod
    def collect(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> None:
        """Take in a training batch: features [B, d] (no graph is kept), targets [B, tasks].

        Args:
            features: [B, d].
            targets: [B, tasks].
            validity: whether to believe it; a bad batch is left out.
        """

    def holds(self, features: Tensor) -> Tensor | None:
        """Whether `collect` or `show` can keep these features, on their device.

        Asked where validation is deferred; None where whatever is finite can be kept.
        """
        return None

    @abstractmethod
    def propose(self, start: Posterior | None = None) -> Posterior:
        """End of an epoch: the next prior, from what was collected; changes nothing.

        Args:
            start: an earlier posterior, for schemes that iterate to start from.

        Raises:
            StateError: if nothing was collected.
            NumericalError: if it cannot be computed.
        """

    def accept(self, prior: Posterior) -> None:
        """Put the proposed prior in force, and begin to collect anew if the policy does."""
        self.prior = prior

    def update(self) -> None:
        """Propose and accept, for use without an engine."""
        self.accept(self.propose())

    @property
    def collected(self) -> bool:
        """Whether there is anything to make a prior from; if so, `propose` is asked for one."""
        return True

    def to(self, device: torch.device) -> None:
        """Move prior and statistics."""
        for name in self.held:
            one: Posterior | None = getattr(self, name)
            setattr(self, name, one and one.to(device=device))

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, as tensors under plain names; copies."""
        return named(type(self).__name__, self.state())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` saved; the engine calls it on a copy that is new.

        Raises:
            StateError: for the state of another policy, naming both.
            BayesAggError: for what is no sound state.
        """
        own, others = type(self).__name__, {name.partition(".")[0] for name in state}
        if others - {own}:
            raise StateError(
                f"head {self.head.site!r} has the prior policy {own}, the saved state is of "
                f"{', '.join(sorted(others))}; make the engine with the policy as saved"
            )
        self.load(part(state, own))

    def state(self) -> dict[str, Tensor]:
        """What `state_dict` saves behind the policy's name: the prior, and what a subclass adds."""
        state: dict[str, Tensor] = {}
        for name in self.held:
            one: Posterior | None = getattr(self, name)
            state |= {} if one is None else named(name.lstrip("_"), one.state_dict())
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave.

        Raises:
            ShapeError: if it is of another head.
            DtypeError: if it is of a scheme whose posteriors are no priors of this one.
            BayesAggError: for what is no sound state.
        """
        for name in self.held:
            one, own = None, part(state, name.lstrip("_"))
            if own:
                one = Posterior.from_state_dict(own, self.head.weight.device)
                self.head.check_weights(one, f"saved {name.lstrip('_')}")
                if self.scheme.refresh != "epoch":  # else it is a prior of no step
                    self.scheme.check(self.head, one)
            setattr(self, name, one)


def layout(posterior: GaussianFamily) -> tuple[type, dict[str, torch.Size]]:
    """Kind and shapes: those of one layout can be copied into one another."""
    shapes = {name: tensor.shape for name, tensor in posterior.tensors().items()}
    return type(posterior), shapes
