"""The engine: strings the four stages together. It holds no formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bayesagg_pyro._backbone import reported_dtype
from bayesagg_pyro._checks import (
    check_aggregation,
    check_estimators,
    check_graph,
    check_heads,
    check_settings,
    known,
    per_head,
)
from bayesagg_pyro._guard import Guard, cleaned
from bayesagg_pyro._pipeline import HeadStages
from bayesagg_pyro._refresh import Refresher, streams
from bayesagg_pyro._state import Stateful, load_states, states
from bayesagg_pyro._steps import Batch, Done, bayes_step, point, warmup_step
from bayesagg_pyro.aggregation import Aggregation, PrecisionWeighted
from bayesagg_pyro.errors import StateError
from bayesagg_pyro.gradients import Estimator
from bayesagg_pyro.heads import Gaussian, Head
from bayesagg_pyro.inference import Conjugate, Scheme, TaylorGGN
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.priors import Batches, FullData, Policy, Tracker, show
from bayesagg_pyro.step import Observer, StepInfo
from bayesagg_pyro.targets import RawTargets, Targets

__all__ = ["BayesAgg"]


class BayesAgg(nn.Module):
    """Bayesian heads on a shared backbone, trained through aggregated gradient distributions.

    One epoch of training is `backward` and an optimiser step per batch, then `update_prior()`.
    Training starts with a warm-up, in which the heads are ordinary linear layers and `backward` is
    the gradient of the summed losses; `start_bayes()` ends it.

    Scale of the update. The warm-up's gradient is that of a sum of T mean losses. Precision weights
    sum to 1 over the tasks, so with `scale="mean"` (the paper) the Bayesian update is about T times
    smaller; Adam's second moments remember the warm-up for a thousand steps, during which its
    steps shrink as much. `scale="sum"` multiplies by T and keeps the step.

    Args:
        heads: {name: head}. Names must be usable as names of submodules.
        aggregation: how gradient distributions become one direction.
        inference: a scheme for all heads, or {name: scheme}; None takes Conjugate for Gaussian
            heads and TaylorGGN for others.
        estimator: of the gradients' moments, likewise; None picks by head and posterior types.
        prior: a policy for all heads, or {name: policy}. None takes `FullData(variance=1.0)`: the
            paper's policy, with a weaker prior than its own choices (1e-3 on QM9).
        warmup: whether to begin with a warm-up. Without one, an `update_prior()` must still come
            before the first Bayesian step: run the first epoch's batches through `collect`.
        warmup_epochs: call `start_bayes()` on the so many-th `update_prior()` by itself.
        scale: "mean" or "sum", see above.
        validate: "now" looks at all values before anything changes (on a GPU this waits for the
            device); "deferred" turns the update into zeros on the device where values are bad and
            raises at the next synchronisation point (`update_prior`, `state_dict`,
            `raise_deferred`); "auto" is "now" on the CPU, else "deferred".
        generator: randomness of sampled schemes and estimators. Each head draws from a stream of
            its own, made here of one number from this generator and the head's name, so that the
            order of heads does not matter. None leaves them to torch's global generator.
        keep_gradients: keep the last step's gradient distribution, weights, features and
            posteriors in `info`.
        working_memory: bytes above which a step cuts its temporaries into chunks, of tasks for
            dense posteriors and of examples for moments; None for never. Where gradients are kept
            nothing is cut. Deterministic estimators give the same result either way.

    Attributes:
        info: what the last step did.
        observer: is told about training steps (`diagnostics.Recorder` puts itself here); or None.

    Raises:
        TaskError: for unusable names or a head given twice.
        SettingError: for arguments outside their range.
    """

    def __init__(
        self,
        heads: Mapping[str, Head],
        aggregation: Aggregation | None = None,
        *,
        inference: Scheme | Mapping[str, Scheme] | None = None,
        estimator: Estimator | Mapping[str, Estimator] | None = None,
        prior: Policy | Mapping[str, Policy] | None = None,
        warmup: bool = True,
        warmup_epochs: int | None = None,
        scale: Literal["mean", "sum"] = "mean",
        validate: Literal["auto", "now", "deferred"] = "auto",
        generator: torch.Generator | None = None,
        keep_gradients: bool = False,
        working_memory: int | None = 2**28,
    ) -> None:
        super().__init__()
        check_heads(heads)
        check_settings(scale, warmup, warmup_epochs, working_memory)
        for name, head in heads.items():
            if head.name is None:
                head.name = name
        self.heads = nn.ModuleDict(heads)
        self.aggregation = PrecisionWeighted() if aggregation is None else aggregation
        check_aggregation(self.aggregation, heads)
        self.schemes = per_head("inference", inference, heads, Scheme, _default_scheme)
        self.estimators = check_estimators(estimator, heads)
        policies = per_head("prior", prior, heads, Policy, lambda head: FullData())
        own = streams(generator, list(heads))
        self._refreshers = {
            name: Refresher(head, self.schemes[name], own[name]) for name, head in heads.items()
        }
        self._trackers: dict[str, Tracker] = {
            name: policies[name].start(head, self._refreshers[name].bound())
            for name, head in heads.items()
        }
        self.scale = scale
        self._guard = Guard(validate)
        self.generator = generator
        self.keep_gradients = keep_gradients
        self.working_memory = working_memory
        self.warmup = warmup
        self.warmup_epochs = warmup_epochs
        self._epochs = 0
        self.info: StepInfo | None = None
        self.observer: Observer | None = None

    # -- training --------------------------------------------------------------------------------

    def backward(self, features: Tensor, targets: Mapping[str, RawTargets]) -> dict[str, Tensor]:
        """Add this batch's update to the `.grad` of the backbone (and of heads that learn).

        Args:
            features: [B, d], attached to the backbone's graph, which is freed.
            targets: {name: [B, tasks]}; (values, mask) where targets are missing.

        Returns:
            {name: [tasks]}: mean of each task's loss over its observed examples, at the weights
            that `predict` uses, before the update.

        Raises:
            ShapeError, DtypeError, NonFiniteError, DeviceError, TaskError: for bad input, before
                any gradient has changed.
            StateError: if the features carry no graph, or no prior exists yet.
        """
        check_graph(features)
        observed, valid = self._guard.parse(self._heads(), features, targets)
        if valid is not None:
            features, observed = cleaned(self._heads(), features, observed, valid)
        batch = Batch(features, observed, valid)
        observer = self.observer if self.training else None
        keep = self.keep_gradients or (observer is not None and observer.wants())
        with torch.autocast(features.device.type, enabled=False):  # heads and backward stay exact
            done = self._step(batch, keep)
            info = self.info = done.info
            if self.training:  # without what turned out to overflow
                self._collect(features, observed, done.valid)
        if observer is not None:
            observer.passed(info)
            self.info = info if self.keep_gradients else info.light()
        return info.losses

    def collect(self, features: Tensor, targets: Mapping[str, RawTargets]) -> None:
        """Let the priors see a batch without taking a step; arguments as for `backward`."""
        observed, valid = self._guard.parse(self._heads(), features, targets)
        self._collect(features, observed, valid)

    def update_prior(self, batches: Batches | None = None) -> None:
        """End of an epoch: make each head's next prior from what was collected, and clear that.

        Args:
            batches: pairs (features, {name: targets}) for the policies that are made of fresh ones
                (`priors.Fresh`); drawn once, without gradients. The others use what was collected.

        Raises:
            StateError: if nothing was collected, or batches are missing or not used.
            NonFiniteError: if deferred validation found bad values since the last call.
        """
        self.raise_deferred()
        show(self._trackers, batches, lambda h, y: self._guard.parse(self._heads(), h, y))
        self.raise_deferred()
        empty = [name for name, tracker in self._trackers.items() if not tracker.collected]
        if empty:
            raise StateError(
                f"nothing has been collected for {empty} since the last update_prior(); "
                "only backward() in train mode (mtl.train()) collects"
            )
        found = {name: tracker.propose() for name, tracker in self._trackers.items()}
        for name, tracker in self._trackers.items():  # all or none
            tracker.accept(found[name])
            self._refreshers[name].due = True
        self._epochs += 1
        if self.warmup and self._epochs == self.warmup_epochs:
            self.start_bayes()

    def start_bayes(self) -> None:
        """End the warm-up: from now on `backward` aggregates gradient distributions.

        Raises:
            StateError: if there is no prior yet.
        """
        self.priors()
        self.warmup = False

    def raise_deferred(self) -> None:
        """Raise what deferred validation found since the last call; waits for the device.

        Raises:
            NonFiniteError: if features, targets or an update were not finite.
        """
        self._guard.raise_deferred()

    # -- predictions -----------------------------------------------------------------------------

    def predict(self, features: Tensor) -> dict[str, Tensor]:
        """Outputs at the point estimate (warm-up, heads that learn), else at the posterior mean.

        Args:
            features: [B, d].

        Returns:
            {name: [B, tasks]}, in the features' dtype (float32 for lower precisions).

        Raises:
            ShapeError, DtypeError, DeviceError: for features that are no floating [B, d].
        """
        self._check_features(features)
        dtype = reported_dtype(features)
        return {
            name: own.head(features, point(own, warmup=self.warmup)).to(dtype)
            for name, own in self._stages().items()
        }

    def predictive(self, features: Tensor) -> dict[str, Any]:
        """p(y | h) under each head's full-data posterior: {name: distribution [B, tasks]}.

        Raises:
            StateError: before the first `update_prior()`.
            ShapeError, DtypeError, DeviceError: as for `predict`.
            NonFiniteError: for NaN or infinite features, unless validation is deferred.
        """
        self._check_features(features, values=not self._guard.defers(features))
        known = self.posteriors()
        return {
            name: head.predictive(features, known[name]) for name, head in self._heads().items()
        }

    def posteriors(self) -> dict[str, Posterior]:
        """The posterior of all data for each head, which predicts: {name: distribution}.

        Under most policies it is the prior in force.

        Raises:
            StateError: if there is none yet.
        """
        return known("posterior", {name: t.posterior for name, t in self._trackers.items()})

    def priors(self) -> dict[str, Posterior]:
        """The prior in force for each head: {name: distribution}.

        Raises:
            StateError: if there is none yet.
        """
        return known("prior", {name: t.prior for name, t in self._trackers.items()})

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """As `predict`."""
        return self.predict(features)

    # -- parts -----------------------------------------------------------------------------------

    def _step(self, batch: Batch, keep: bool) -> Done:
        if self.warmup:
            return warmup_step(self._stages(), self._guard, batch, keep=keep)
        self.priors()
        return bayes_step(
            self._stages(),
            self.aggregation,
            self._guard,
            batch,
            scale=self._scale(sum(head.tasks for head in self._heads().values())),
            memory=None if keep else self.working_memory,
            keep=keep,
        )

    def _collect(
        self, features: Tensor, observed: dict[str, Targets], valid: Tensor | None
    ) -> None:
        with torch.no_grad():
            for name, tracker in self._trackers.items():
                tracker.collect(features.detach(), observed[name], valid)

    def _scale(self, tasks: int) -> float:
        if self.scale == self.aggregation.scale:
            return 1.0
        return float(tasks) if self.scale == "sum" else 1 / tasks

    def _check_features(self, features: Tensor, *, values: bool = False) -> None:
        for head in self._heads().values():
            head.check_features(features, values=values)

    def _stages(self) -> dict[str, HeadStages]:
        return {
            name: HeadStages(
                head, self._refreshers[name], self._trackers[name], self.estimators[name]
            )
            for name, head in self._heads().items()
        }

    def _heads(self) -> dict[str, Head]:
        return dict(self.heads.items())  # type: ignore[arg-type]  # only heads are let in

    # -- state -----------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        """Warm-up flag, epochs, priors, sums, posteriors held, generators; see `state_dict()`."""
        self.raise_deferred()
        return {
            "warmup": self.warmup,
            "epochs": self._epochs,
            "generator": None if self.generator is None else self.generator.get_state(),
            **states(self._stateful()),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_extra_state` saved; part of `load_state_dict()`."""
        load_states(self._stateful(), state)
        self.warmup = state["warmup"]
        self._epochs = state["epochs"]
        if state["generator"] is not None and self.generator is not None:
            self.generator.set_state(state["generator"])
        self._guard.forget()

    def __getstate__(self) -> dict[str, Any]:
        # What `keep_gradients` keeps holds functions, which cannot be pickled.
        light = None if self.info is None else self.info.light()
        return {**self.__dict__, "info": light}

    def _stateful(self) -> dict[str, Mapping[str, Stateful]]:
        return {
            "trackers": self._trackers,
            "held": self._refreshers,
            "aggregation": {"": self.aggregation},
        }

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BayesAgg:
        super()._apply(fn, recurse)
        for name, head in self._heads().items():
            self._trackers[name].to(head.weight.device)
            self._refreshers[name].to(head.weight.device)
        return self


def _default_scheme(head: Head) -> Scheme:
    """Exact where that exists, else the paper's."""
    exact = head.is_still(Gaussian, "outputs", "likelihood", "weight")
    return Conjugate() if exact else TaylorGGN()
