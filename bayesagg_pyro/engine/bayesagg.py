"""The engine: calls the stages one after the other, and holds no formula.

What happens in a step is in `step`, what belongs to a head in `slot`, how a call begins in `calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.amp import GradScaler

from bayesagg_pyro._modes import plain, uncompiled
from bayesagg_pyro.aggregation import Aggregation
from bayesagg_pyro.engine.batch import Batch
from bayesagg_pyro.engine.calls import Batches, Calls, Given, show
from bayesagg_pyro.engine.defaults import (
    default_aggregation,
    default_estimators,
    default_scheme,
)
from bayesagg_pyro.engine.info import Observer, StepInfo
from bayesagg_pyro.engine.kept import WATCHED, Estimators, Heads, Settled, check_attribute
from bayesagg_pyro.engine.layout import Layout, check_axis
from bayesagg_pyro.engine.peers import exchange
from bayesagg_pyro.engine.pieces import Pieces
from bayesagg_pyro.engine.predictions import InLayout, InTargetUnits
from bayesagg_pyro.engine.processes import Processes
from bayesagg_pyro.engine.reading import (
    Features,
    GivenTargets,
    Pair,
    rows_of,
)
from bayesagg_pyro.engine.settings import (
    active,
    check_aggregation,
    check_estimators,
    check_followers,
    check_heads,
    check_settings,
    known,
    named_heads,
    per_head,
)
from bayesagg_pyro.engine.slot import Slot
from bayesagg_pyro.engine.step import bayesian_step, finite_losses, warmup_step
from bayesagg_pyro.engine.streams import streams
from bayesagg_pyro.engine.transaction import all_or_nothing, as_a_whole, of_steps
from bayesagg_pyro.engine.validation import Validation
from bayesagg_pyro.errors import StateError
from bayesagg_pyro.gradients import Estimator
from bayesagg_pyro.heads import Head
from bayesagg_pyro.heads._standardising import Standardising
from bayesagg_pyro.inference import Scheme
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.predictive import calibration
from bayesagg_pyro.priors import FullData, Policy

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class BayesAgg(Calls):
    """Bayesian heads on a shared backbone, trained through aggregated gradient distributions.

    One epoch of training is `backward` and an optimiser step per batch, then `update_prior()`.
    Training starts with a warm-up, in which the heads are ordinary linear layers and `backward` is
    the gradient of the summed losses; `start_bayes()` ends it.

    A head's parameter `weight` is always what predicts: where a head does not learn it by gradient,
    it holds the posterior mean, rounded to its dtype. So averages and copies of weights predict;
    `refit` makes the posteriors that belong to them.

    A call that raises leaves the engine as it was, to the bit (docs/guarantees.md). Gradients of
    the backbone are added last, by autograd.

    Args:
        heads: {name: head}. Names must be usable as names of submodules.
        aggregation: how gradient distributions become one direction. None takes the rule that
            docs/settings.md recommends for tasks of all kinds and units: among Gaussian heads,
            which predict with their posterior mean, `PrecisionWeighted` with one weight per task,
            s = 0.8 and `keep_length`; every other task has weight 1 / T, as in a mean of losses,
            and a custom loss is scaled to the size of −log p.
        inference: a scheme for all heads, or {name: scheme}. The default is Conjugate for Gaussian
            heads (unless a subclass changes the model) and TaylorGGN for others, with structure
            "kron" for Categorical heads of more than 768 weights per task if the prior allows it
            (docs/schemes.md says what that costs).
        estimator: of the gradients' moments, likewise. None picks by the types of head and
            posterior. If no aggregation is given either, heads that learn by gradient contribute
            the gradient at their own weights, `gradients.PlugIn(at="weights")`, and no step makes
            a posterior for them.
        prior: a policy for all heads, or {name: policy}. The default is `FullData(variance=1.0)`:
            the paper's policy, with a weaker prior than the paper chose (1e-3 on QM9).
        warmup: whether to begin with a warm-up. Without one, an `update_prior()` must still come
            before the first Bayesian step: run the first epoch's batches through `collect`.
        warmup_epochs: how many calls of `update_prior()` end the warm-up, instead of
            `start_bayes()`.
        reduction: "sum" makes a Bayesian update as large as the warm-up's, the gradient of T mean
            losses. In the paper ("mean") weights sum to 1, so it is about T times smaller, which
            Adam's second moments take a thousand steps to adapt to.
        validate: "now" checks all values before anything changes (on a GPU this synchronises);
            "deferred" turns the update into zeros on the device if values are bad, and raises at
            the next synchronisation point (`update_prior`, `refit`, `raise_deferred`); "auto" is
            "now" on the CPU, else "deferred".
        generator: randomness of sampled schemes and estimators; each head has a stream of its own,
            whatever the order of heads. None uses torch's global generator.
        keep_gradients: keep the last step's gradient distribution, weights, features and
            posteriors in `info`.
        working_memory: bytes above which a step cuts its temporaries into chunks, of tasks for
            dense posteriors and of examples for moments; None for never. Where gradients are kept
            nothing is cut. Deterministic estimators give the same result either way.
        distributed: in a process group of torch, take the batches of all processes as one: each
            calls with its share, which may be empty (`features[:0]`), as often as the others, and
            the backbone's gradients are averaged by DistributedDataParallel or `fully_shard`, which
            stay outside of the engine. A ProcessGroup is that of the processes that share out the
            data, where others split the backbone. False keeps each process to itself.
        feature_axis: which axis of the features is theirs: -1 for [B, d] and tokens [B, T, d], 1
            for images [B, d, H, W]. Everything else are axes of examples. Targets have the
            features' shape with the tasks on that axis, or without it where there is one task;
            masks and weights likewise, or without it for all tasks; predictions have their tasks
            or classes on it.

    Attributes:
        schemes: {name: scheme}; fixed: for another one make a new engine of the same heads and
            `refit` it.
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
        reduction: Literal["mean", "sum"] = "sum",
        validate: Literal["auto", "now", "deferred"] = "auto",
        generator: torch.Generator | None = None,
        keep_gradients: bool = False,
        working_memory: int | None = 2**28,
        distributed: bool | ProcessGroup = True,
        feature_axis: int = -1,
    ) -> None:
        super().__init__()
        check_heads(heads)
        check_settings(reduction, warmup, warmup_epochs, working_memory)
        check_axis(feature_axis)
        self.heads = Heads(heads)
        self._heads = dict(heads)
        policies = per_head("prior", prior, heads, Policy, lambda name: FullData())

        def scheme(name: str) -> Scheme:
            return default_scheme(heads[name], policies[name])

        with named_heads(heads):
            self.schemes = Settled(per_head("inference", inference, heads, Scheme, scheme))
            estimators = check_estimators(estimator, heads, self.schemes)
            sized = aggregation is None
            if aggregation is None:
                aggregation = default_aggregation(heads, self.schemes)
                estimators = default_estimators(heads, self.schemes, estimators)
            self.estimators = Estimators(estimators, self._heads, self.schemes)
            self.aggregation = aggregation
            own = streams(generator, list(heads))
            self._slots = {
                n: Slot(n, head, self.schemes[n], estimators, policies[n], own[n], sized=sized)
                for n, head in heads.items()
            }
            check_followers(self._slots.values())
        self.reduction = reduction
        self._validation = Validation(validate)
        self._processes = Processes(distributed)
        self._generator = generator
        self.keep_gradients = keep_gradients
        self.working_memory = working_memory
        self.feature_axis = feature_axis
        self.warmup = warmup
        self.warmup_epochs = warmup_epochs
        self._epochs = 0
        self.info: StepInfo | None = None
        self.observer: Observer | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in WATCHED:
            check_attribute(self, name, value)
        super().__setattr__(name, value)

    @property
    def aggregation(self) -> Aggregation:
        """How gradient distributions become one direction; may be set between steps."""
        return self._aggregation

    @aggregation.setter
    def aggregation(self, aggregation: Aggregation) -> None:
        check_aggregation(aggregation, self._heads)
        self._aggregation = aggregation

    @property
    def generator(self) -> torch.Generator | None:
        """The source of the heads' streams of randomness; setting one begins all of them anew."""
        return self._generator

    @generator.setter
    def generator(self, generator: torch.Generator | None) -> None:
        own = streams(generator, list(self._slots))
        for name, slot in self._slots.items():
            slot.draw_from(own[name])
        self._generator = generator

    # -- training --------------------------------------------------------------------------------

    @uncompiled
    def backward(
        self,
        features: Features | Sequence[Pair],
        targets: GivenTargets | None = None,
        *,
        collect: bool = True,
        retain_graph: bool = False,
        scaler: GradScaler | None = None,
    ) -> dict[str, Tensor]:
        """Add this batch's update to the `.grad` of the backbone (and of heads that learn).

        Args:
            features: [B, d], or with more axes (`feature_axis`), attached to the backbone's graph;
                {name: features} where heads read different ones. Heads that are given the same
                object share its examples; a head without features has no label. Or, with nothing
                for `targets`, a list of pairs (features, targets), such as one batch per domain: it
                is the step on the rows of all, where a head has no label in batches that leave it
                out.
            targets: {name: [B, tasks]}; (values, mask) where targets are missing. A head that is
                left out has no label in this batch. Where no head has one (padding), features may
                be anything.
            collect: whether the batch counts. Without, gradients are added and `info` is set, and
                all else stays as it was: priors, statistics, posteriors held and their age, random
                states, what the aggregation remembers. For optimisers that look at a batch more
                than once.
            retain_graph: keep the backbone's graph for further losses.
            scaler: multiplies the gradients of backbone and heads alike, for `scaler.unscale_`,
                `scaler.step` and `scaler.update` to be called as after `scaler.scale(loss)`.

        Returns:
            {name: [tasks]}: mean of each task's loss over its observed examples, at the weights
            that `predict` uses, before the update; NaN for a task without any. They are for
            logging and carry no graph. If a `heads.Gaussian` standardises its targets, its losses
            are in standardised units.

        Raises:
            ShapeError, DtypeError, NonFiniteError, DeviceError, TaskError: for bad input, before
                any gradient has changed.
            StateError: if the features carry no graph, or no prior exists yet; in several
                processes if the call is not that of the others, if another one refused its share
                or is gone, or if nobody averages the backbone's gradients.
        """
        scaler = None if scaler is None else active(scaler)
        call = "backward" if collect else "backward(collect=False)"
        batch = self._next(call, iter([(features, targets)]), attached=True, scaler=scaler)
        assert batch is not None
        return self._take(batch, collect, scaler, retain_graph=retain_graph)

    @uncompiled
    def backward_in_pieces(
        self,
        backbone: Callable[..., Features],
        pieces: Iterable[tuple[Any, GivenTargets]],
        *,
        collect: bool = True,
        scaler: GradScaler | None = None,
    ) -> dict[str, Tensor]:
        """`backward` for a batch whose graph is too big: exactly its step, a piece at a time.

        The backbone runs over all pieces without a graph, the heads take one step on the features
        of all, and the backbone runs again over each piece, whose graph takes its share of the
        update: one more forward pass, in the memory of one piece and of all features. Dropout draws
        the same in both passes, and buffers change once. What depends on the other examples of its
        piece (batch norm) is that of the piece. Autocast is as where this is called.

        Args:
            backbone: gives features; a module, so that its buffers are known. It is called as
                backbone(*inputs) for a tuple or list of inputs, backbone(**inputs) for a mapping,
                else backbone(inputs). Its `no_sync()` is used if it has one, so that processes
                average gradients once, in the last piece; each has one piece at least.
            pieces: pairs (inputs, {name: targets}) that make up the batch, drawn once.
            collect: see `backward`.
            scaler: see `backward`.

        Returns:
            {name: [tasks]}: as `backward`, of the batch.

        Raises:
            BayesAggError: what `backward` raises.
            StateError: if a piece has other features in its second pass.
            SettingError: if there are no pieces.
        """
        scaler = None if scaler is None else active(scaler)
        passes = Pieces(backbone)

        def given() -> Iterator[Given]:
            yield passes.first(pieces), None

        with all_or_nothing([passes.undo]):
            call = "backward_in_pieces" if collect else "backward_in_pieces(collect=False)"
            batch = self._next(
                call, given(), attached=True, parameters=passes.parameters, scaler=scaler
            )
            assert batch is not None
            return self._take(batch, collect, scaler, passes=passes)

    @uncompiled
    def collect(
        self, features: Features | Sequence[Pair], targets: GivenTargets | None = None
    ) -> None:
        """Let the priors see a batch without taking a step; arguments as for `backward`."""
        with plain():
            batch = self._next("collect", iter([(features, targets)]))
            assert batch is not None
            finite_losses(self._slots.values(), batch, warmup=self.warmup)
            with as_a_whole(self, step=True):
                self._collect(batch)

    @uncompiled
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
        call = "update_prior()" if batches is None else "update_prior(batches)"
        with plain(), self._all_at(call):
            given = None if batches is None else self._each(call, batches, as_steps=True)
            show(self._slots.values(), given)
            self.raise_deferred()
            self._renew()
            self._epochs += 1
            if not self.warmup:
                for slot in self._slots.values():
                    slot.follow()
            elif self._epochs == self.warmup_epochs:
                self.start_bayes()

    @uncompiled
    def refit(self, batches: Batches) -> None:
        """Make every head's posterior for the weights as they are now, from these data alone.

        What was collected and the priors before are dropped, and the warm-up is over: for weights
        that were averaged (EMA, SWA), loaded alone or put onto other features, for a new scheme on
        heads that are trained, and for a frozen backbone, whose heads need no more than this.
        Heads that learn by gradient (classification) keep their weights, around which their
        schemes expand; under `inference.Laplace` the posterior is at the maximum whatever they are.

        Args:
            batches: pairs (features, {name: targets}), drawn once, without gradients; typically all
                training data, with the backbone in evaluation mode.

        Raises:
            StateError: if there are no batches, or a head has no target in them that counts.
            BayesAggError: for batches that `collect` would refuse.
        """
        self.raise_deferred()
        with plain(), self._all_at("refit"):
            for slot in self._slots.values():
                slot.restart()
            show(self._slots.values(), self._each("refit", batches), everyone=True)
            self.raise_deferred()
            self._renew()
            self.start_bayes()

    @uncompiled
    def calibrate(self, batches: Batches | None) -> dict[str, Tensor]:
        """Make predictions as wide as data that training has not seen show them to be.

        A backbone that fits its training data too well leaves residuals there that are too small,
        and so predictions that are too sure. One number for each task mends that, the noise scale
        of `heads.Gaussian` without a given one and the temperature of heads of classes, ordered or
        not (`predictive.calibration`), until the next `update_prior()`. Steps never see it. A
        noise scale from n labels is known to within a share of about (2 n)^(−1/2). An earlier
        calibration is forgotten, but for tasks without a target of positive weight in them.

        Args:
            batches: pairs (features, {name: targets}), drawn once, without gradients; kept in
                memory meanwhile. Best those of a validation set, the backbone in evaluation mode.
                None: predict by default again.

        Returns:
            {name: [tasks]}, noise scales in units of the targets; heads of other kinds are left
            out.

        Raises:
            StateError: before the first `update_prior()`, or if there are no batches.
            BayesAggError: for batches that `collect` would refuse.
        """
        self.raise_deferred()
        with plain(), self._all_at("calibrate"), torch.no_grad():
            before = {name: slot.calibration for name, slot in self._slots.items()}
            for slot in self._slots.values():
                slot.calibration = None
            posteriors = self.posteriors()  # as they predict by default
            if batches is None:
                return {}
            shown = [
                {name: batch.examples(name) for name in posteriors}
                for batch in self._each("calibrate", batches)
            ]
            self.raise_deferred()
            if not shown:
                raise StateError("there are no batches to calibrate to")
            found = {}
            for name, posterior in posteriors.items():
                slot, last = self._slots[name], before[name]
                examples = [each[name] for each in shown]
                value = calibration(slot.head, posterior, examples)
                if value is None:
                    continue
                if last is not None:
                    seen = torch.stack([targets.seen() for _, targets in examples]).any(0)
                    value = torch.where(seen, value, last)
                slot.calibration = value
                found[name] = value
                if isinstance(slot.head, Standardising) and slot.head.units is not None:
                    found[name] = value * slot.head.units.scale.to(value)
            return found

    def start_bayes(self) -> None:
        """End the warm-up: from now on `backward` aggregates gradient distributions.

        Raises:
            StateError: if there is no prior yet.
            SettingError: for a head whose weight cannot hold its posterior mean.
        """
        self.priors()
        for slot in self._slots.values():
            slot.check_follows()
        self.warmup = False
        for slot in self._slots.values():
            slot.stop_learning()

    def raise_deferred(self) -> None:
        """Raise what deferred validation found since the last call; waits for the device.

        Raises:
            NonFiniteError: if features, targets or an update were not finite.
        """
        self._validation.raise_deferred()

    # -- predictions -----------------------------------------------------------------------------

    def predict(self, features: Features) -> dict[str, Tensor]:
        """Outputs at the point estimate (warm-up, heads that learn), else at the posterior mean.

        Args:
            features: [B, d], or with more axes, or {name: features}, as for `backward`; heads that
                are left out are not asked.

        Returns:
            {name: [B, tasks]} ([B, C] for classes), in the features' dtype (float32 for lower
            precisions); for features with more axes in their shape, tasks or classes on their axis.

        Raises:
            ShapeError, DtypeError, DeviceError: for features that are no floating [B, d].
            StateError: if another engine that has this head has written its weights since.
        """
        found = {}
        where = self._rows(features, values=False)
        for name, (rows, layout) in where.items():
            slot = self._slots[name]
            slot.check_leads(warmup=self.warmup)
            outputs = slot.head(rows, slot.point(warmup=self.warmup))
            outputs = slot.head.in_target_units(outputs)
            wide = torch.promote_types(rows.dtype, torch.float32)
            found[name] = layout.back(outputs.to(wide))
        return found

    def predictive(self, features: Features) -> dict[str, Any]:
        """p(y | h) under each head's full-data posterior: {name: distribution [B, tasks]}.

        Raises:
            StateError: before the first `update_prior()`.
            ShapeError, DtypeError, DeviceError: as for `predict`.
            NonFiniteError: for NaN or infinite features, unless validation is deferred.
        """
        first = next(iter(features.values()), None) if isinstance(features, Mapping) else features
        values = not self._validation.defers(first)
        where = self._rows(features, values=values)
        found, posteriors = {}, self.posteriors()
        for name, (rows, layout) in where.items():
            head = self._heads[name]
            predictive = head.predictive(rows, posteriors[name])
            if isinstance(head, Standardising) and head.units is not None:
                predictive = InTargetUnits(predictive, head.units)
            found[name] = predictive if layout.plain else InLayout(predictive, layout)
        return found

    def _rows(self, features: Features, *, values: bool) -> dict[str, tuple[Tensor, Layout]]:
        for slot in self._slots.values():
            slot.check_shape(trains=False)
        return rows_of(features, self._heads, self.feature_axis, values=values)

    def posteriors(self) -> dict[str, Posterior]:
        """The posterior of all data for each head, which predicts: {name: distribution}.

        Under most policies it is the prior in force.

        Raises:
            StateError: if there is none yet, or weights are no longer those that it belongs to.
        """
        for slot in self._slots.values():
            slot.check_weights()
        return known("posterior", {slot.name: slot.predicting for slot in self._slots.values()})

    def priors(self) -> dict[str, Posterior]:
        """The prior in force for each head: {name: distribution}.

        Raises:
            StateError: if there is none yet.
        """
        return known("prior", {n: slot.tracker.prior for n, slot in self._slots.items()})

    def extra_repr(self) -> str:
        """What `print(engine)` shows of its stages."""
        policies = {name: slot.policy for name, slot in self._slots.items()}
        stages = {"aggregation": self.aggregation, "inference": self.schemes, "prior": policies}
        return "\n".join(f"{name}={stage}" for name, stage in stages.items())

    def forward(self, features: Features) -> dict[str, Tensor]:
        """Predictions, as `predict` makes them."""
        return self.predict(features)

    # -- parts -----------------------------------------------------------------------------------

    def _take(
        self,
        batch: Batch,
        collect: bool,
        scaler: GradScaler | None,
        *,
        retain_graph: bool = False,
        passes: Pieces | None = None,
    ) -> dict[str, Tensor]:
        """A step of the heads, and of the backbone, as a whole or not at all; the losses.

        Args:
            batch: checked.
            collect: see `backward`.
            scaler: see `backward`.
            retain_graph: see `backward`.
            passes: of the pieces that the batch consists of.
        """
        observer = self.observer if self.training and collect else None
        keep = batch.watched or self.keep_gradients
        keep = keep or (observer is not None and observer.wants())
        # A batch that does not count: what every step moves on is put back at the end.
        put_back = [] if collect else of_steps(self)
        # Heads and backward stay exact under autocast.
        device = batch.groups[0].features.device.type
        with torch.autocast(device, enabled=False), as_a_whole(self, step=True):
            if self.warmup:
                updates, info = warmup_step(self._slots.values(), batch, keep=keep, scaler=scaler)
            else:
                updates, info = bayesian_step(
                    self._slots.values(),
                    self._aggregation,
                    batch,
                    reduction=self.reduction,
                    memory=None if keep else self.working_memory,
                    keep=keep,
                    hold=collect,
                    scaler=scaler,
                )
            self.info = info
            if collect:
                if self.training:  # without what turned out to overflow
                    self._collect(batch)
                for slot in self._slots.values():
                    slot.weight_then = None
            for undo in put_back:
                undo()
            if observer is not None:  # may fail: a record's disk can be full
                observer.passed(info)
            # Last, after everything of the engine's own.
            with exchange() if batch.processes > 1 else nullcontext():
                batch.into_backbone(updates, retain_graph=retain_graph)
                if passes is not None:
                    passes.second(batch.validity)
        if keep and not self.keep_gradients:
            self.info = info.light()
        return info.losses
