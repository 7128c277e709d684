"""What belongs to each head besides its weights: scheme, prior over time, randomness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor, nn

from bayesagg_pyro.engine.batch import Batch
from bayesagg_pyro.engine.pipeline import HeadStages
from bayesagg_pyro.engine.refresh import Refresher
from bayesagg_pyro.engine.settings import check_posteriors
from bayesagg_pyro.engine.step import follows
from bayesagg_pyro.engine.transaction import (
    Undo,
    of_attributes,
    of_generators,
    of_gradients,
    of_values,
)
from bayesagg_pyro.errors import StateError
from bayesagg_pyro.gradients import Estimator
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference import Scheme
from bayesagg_pyro.priors import Policy, Tracker

__all__ = ["Settled", "Slots"]


class Slots:
    """All heads' schemes, priors, posteriors held and streams of randomness.

    Args:
        heads: {name: head}.
        schemes: {name: scheme}.
        policies: {name: policy}.
        streams: {name: generator or None}.

    Attributes:
        refreshers: {name: what infers its posterior}; empty while weights have no place (meta).
        trackers: {name: its prior over time}; likewise.
        weights_then: weights that a posterior was made for: of a copy when it was made, or before
            others were loaded without a posterior.
    """

    def __init__(
        self,
        heads: nn.ModuleDict,
        schemes: Mapping[str, Scheme],
        policies: Mapping[str, Policy],
        streams: dict[str, torch.Generator | None],
    ) -> None:
        self._modules = heads
        self.schemes = schemes
        self._policies = policies
        self.streams = streams
        self.refreshers: dict[str, Refresher] = {}
        self.trackers: dict[str, Tracker] = {}
        self.weights_then: dict[str, Tensor] = {}
        self.start()

    @property
    def heads(self) -> dict[str, Head]:
        """{name: head}."""
        return dict(self._modules.items())  # type: ignore[arg-type]  # only heads are let in

    def stages(self, estimators: Mapping[str, Estimator | None]) -> dict[str, HeadStages]:
        """{name: what a step needs}."""
        return {
            name: HeadStages(head, self.refreshers[name], self.trackers[name], estimators[name])
            for name, head in self.heads.items()
        }

    # -- priors ----------------------------------------------------------------------------------

    def start(self) -> None:
        """New trackers and refreshers, once the weights have a place."""
        if not any(head.weight.is_meta for head in self.heads.values()):
            self.refreshers, self.trackers = self.fresh()

    def fresh(self) -> tuple[dict[str, Refresher], dict[str, Tracker]]:
        """Refreshers and trackers that have seen nothing."""
        refreshers = {
            name: Refresher(head, self.schemes[name], self.streams[name])
            for name, head in self.heads.items()
        }
        trackers = {
            name: self._policies[name].start(head, self.schemes[name])
            for name, head in self.heads.items()
        }
        for name, tracker in trackers.items():
            tracker.generator = self.streams[name]
        return refreshers, trackers

    @torch.no_grad()
    def collect(self, batch: Batch) -> None:
        """Show a batch to all priors."""
        for name, tracker in self.trackers.items():
            tracker.collect(batch.features.detach(), batch.observed[name], batch.valid)

    def held_to_what_is_kept(self, batch: Batch) -> Batch:
        """The batch, its flag unset where features do not fit the form to keep them in."""
        if batch.valid is None:
            return batch
        found = [tracker.holds(batch.features.detach()) for tracker in self.trackers.values()]
        valid = reduce(torch.logical_and, [one for one in found if one is not None], batch.valid)
        return replace(batch, valid=valid)

    def renew(self) -> None:
        """Put in force what was collected, for all heads or none.

        Raises:
            StateError: if nothing was.
            NumericalError: if a posterior cannot be made.
        """
        empty = [name for name, tracker in self.trackers.items() if not tracker.collected]
        if empty:
            raise StateError(
                f"nothing has been collected for {empty} since the last update_prior(); "
                "only backward() in train mode (mtl.train()) collects"
            )
        found = {
            name: tracker.propose(self.refreshers[name].start)
            for name, tracker in self.trackers.items()
        }
        check_posteriors(found)
        for name, tracker in self.trackers.items():
            tracker.accept(found[name])
            self.refreshers[name].due = True
        self.weights_then = {}

    def draw_from(self, streams: dict[str, torch.Generator | None]) -> None:
        """Other streams of randomness."""
        self.streams = streams
        for name, refresher in self.refreshers.items():
            refresher.generator = self.trackers[name].generator = streams[name]

    # -- weights that follow posteriors ----------------------------------------------------------

    def following(self) -> list[str]:
        """Names of heads whose weights are their posterior's mean, not learned by gradient."""
        return [name for name, own in self.refreshers.items() if not own.learns]

    @torch.no_grad()
    def follow(self) -> None:
        """Write those means into the weights."""
        for name in self.following():
            posterior, head = self.trackers[name].posterior, self.heads[name]
            if posterior is not None:
                head.weight.copy_(posterior.mean.reshape(head.weight.shape))

    def stop_learning(self) -> None:
        """Drop the gradients of heads that no longer learn, or momentum would move them on."""
        for name in self.following():
            self.heads[name].weight.grad = None
        self.follow()

    def remember(self) -> None:
        """Note which weights the posteriors belong to, in a copy, whose weights may be averaged."""
        self.weights_then = {
            name: self.heads[name].point().detach().clone()
            for name, tracker in self.trackers.items()
            if tracker.predicts
        }

    def check_weights(self) -> None:
        """Refuse posteriors that are not those of the weights.

        Raises:
            StateError: naming the head and the remedy.
        """
        for name in self.weights_then:
            if not self._unchanged(name):
                raise StateError(
                    f"the weights of head {name!r} are not those that its posterior was made for: "
                    "they were averaged, edited, or loaded without one; call refit(batches)"
                )

    @contextmanager
    def moving(self, *, bayesian: bool) -> Iterator[None]:
        """A block in which heads' tensors move to another place or precision; the rest follows.

        Args:
            bayesian: whether the warm-up is over. Weights that follow a mean are rounded once.
        """
        following = bayesian and any(self._follows(name) for name in self.following())
        unchanged = [name for name in self.weights_then if self._unchanged(name)]
        yield
        if not self.trackers:  # weights without a place may have got one
            self.start()
            return
        for name, head in self.heads.items():
            self.trackers[name].to(head.weight.device)
            self.refreshers[name].to(head.weight.device)
        if following:
            self.follow()
        for name, then in self.weights_then.items():
            now = self.heads[name].point().detach().clone()
            self.weights_then[name] = now if name in unchanged else then.to(now.device)

    def _unchanged(self, name: str) -> bool:
        then, now = self.weights_then[name], self.heads[name].point().detach()
        return torch.equal(then, now.to(then))

    def _follows(self, name: str) -> bool:
        posterior, weight = self.trackers[name].posterior, self.heads[name].point().detach()
        return posterior is not None and bool(follows(weight, posterior.mean))

    # -- all or nothing --------------------------------------------------------------------------

    def undo(self, *, step: bool) -> Iterator[Undo]:
        """What puts everything here back to what it is now.

        Args:
            step: whether heads' buffers stay as they are in what is to come.
        """
        heads = self.heads
        written: list[Tensor] = [heads[name].weight for name in self.following()]
        if not step:
            written += [buffer for head in heads.values() for buffer in head.buffers()]
        yield of_values(written)
        yield of_gradients(
            w for head in heads.values() for w in head.parameters() if w.requires_grad
        )
        yield of_generators(self.streams.values())
        yield from map(of_attributes, self.refreshers.values())
        yield from map(of_attributes, self.trackers.values())
        yield of_attributes(self)


class Settled(Mapping[str, Scheme]):
    """The schemes of an engine, {name: scheme}, which it was made with and keeps."""

    def __init__(self, schemes: Mapping[str, Scheme]) -> None:
        self._schemes = dict(schemes)

    def __getitem__(self, name: str) -> Scheme:
        return self._schemes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schemes)

    def __len__(self) -> int:
        return len(self._schemes)

    def __setitem__(self, name: str, scheme: Scheme) -> None:
        raise StateError(
            f"the scheme of head {name!r} is settled, since its prior rests on it; make a new "
            "engine of the same heads, BayesAgg(dict(mtl.heads), inference=...), and refit(batches)"
        )

    def __repr__(self) -> str:
        return repr(self._schemes)
