"""The paper's method, as the trainer sees it: the library's engine and the order of its calls."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

import bayesagg_pyro as ba
from bayesagg_pyro import gradients, priors
from bayesagg_pyro.aggregation import Aggregation
from bayesagg_pyro.diagnostics import Recorder
from bayesagg_pyro.heads import Gaussian, Head
from bayesagg_pyro.inference import IntegratedNoise, Scheme, TaylorGGN
from experiments import processes
from experiments.methods.base import (
    Capture,
    ExampleWeights,
    Level,
    Method,
    MethodOptions,
    Needs,
    Scale,
)
from experiments.methods.bayesagg_options import BayesAggOptions
from experiments.methods.branches import branched, refuse
from experiments.processes.norms import share_norms
from experiments.settings import require


class BayesAggMethod(Method):
    """Bayesian aggregation of the tasks' gradients with respect to the features."""

    name: ClassVar[str] = "bayesagg"
    title: ClassVar[str] = "BayesAgg"
    scale: ClassVar[Scale] = Scale.MEAN
    level: ClassVar[Level] = Level.REPRESENTATION
    needs: ClassVar[frozenset[Needs]] = frozenset({Needs.GRADIENTS, Needs.POSTERIOR, Needs.EPOCHS})
    options_type: ClassVar[type[MethodOptions]] = BayesAggOptions

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: BayesAggOptions
    ) -> None:
        self.backbone = backbone
        self._net = backbone
        self.pretrain = options.pretrain
        self._heads = dict(heads)
        self._options = options
        self._aggregation: Aggregation = options.combination(sum(h.tasks for h in heads.values()))
        self._finest = options.aggregation("example")
        self._fresh: Iterator[tuple[Tensor, dict[str, Tensor]]] | None = None
        moving = ("running", "previous-batch")  # their priors change from step to step
        self.capture = Capture.NEVER if options.prior in moving else Capture.EPOCH
        regressions = {n: head for n, head in self._heads.items() if isinstance(head, Gaussian)}
        require(
            options.noise == "unit" or bool(regressions),
            "noise",
            options.noise,
            "there is no regression head, leave it out",
        )
        if options.noise == "learned":
            for head in regressions.values():
                head.learn_noise()
        integrated: dict[str, Scheme] | None = None
        if options.noise == "integrated":
            integrated = {n: IntegratedNoise() if n in regressions else TaylorGGN() for n in heads}
        self._base_priors = {
            name: priors.isotropic(head, options.prior_variance)
            for name, head in self._heads.items()
        }
        self.mtl = ba.BayesAgg(
            heads=self._heads,
            aggregation=None if self._usual else self._aggregation,
            inference=integrated,
            prior=options.policy(),
            warmup=True,
            reduction=options.reduction,
            estimator=self._estimators(),
        )
        self._aggregation = self.mtl.aggregation

    @property
    def _usual(self) -> bool:
        """Whether the library decides how gradients are made and combined."""
        return self._options.rule == "default" and self._options.aggregator == "precision"

    def _estimators(self) -> dict[str, gradients.Estimator] | gradients.Estimator | None:
        if self._usual:
            return None
        if self._options.rule == "default" or self._options.mean == "learned":
            exact, learned = gradients.Exact(), gradients.PlugIn(at="weights")
            heads = self._heads.items()
            return {n: exact if isinstance(head, Gaussian) else learned for n, head in heads}
        return gradients.PlugIn() if self._options.mean == "plug-in" else None

    @classmethod
    def why_not(cls, level: Level) -> str:
        """Uncertainty is that of heads, whose gradients end at the features."""
        if level is Level.LOSSES:
            return "its weights differ between dimensions and examples, which a loss does not have"
        return (
            "the gradients' distribution comes from the heads' posterior at the features; for all "
            "shared parameters it would take a Jacobian of the network for every example"
        )

    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """One step of the engine, which runs the backbone's backward pass itself."""
        return {
            name: loss.detach()
            for name, loss in self.mtl.backward(*self._pair(self._net, inputs, targets)).items()
        }

    def _pair(
        self, net: nn.Module, inputs: Any, targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Features and targets, in several processes of this one's examples."""
        if processes.count() == 1:
            return net(inputs), targets
        mine, rows, size = processes.own(inputs)
        features = net(mine)
        return features if len(rows) else features[:0], processes.own_targets(targets, rows, size)

    def distribute(self) -> None:
        """Let the backbone's gradients be averaged; the engine does the rest.

        Raises:
            SettingsError: Heads have branches of their own.
        """
        refuse(
            self.backbone,
            self.name,
            "this network has a branch for each head, which the benchmarks train in one process "
            "only: leave --nproc away",
        )
        share_norms(self.backbone)
        self._net = DistributedDataParallel(self.backbone)
        self.capture = Capture.NEVER

    def predict(self, inputs: Any) -> dict[str, Tensor]:
        """The engine's point predictions."""
        return dict(self.mtl.predict(self.backbone(inputs)))

    def calibrate(self, batches: Iterable[tuple[Any, dict[str, Tensor]]] | None) -> None:
        """As the engine does it."""
        shown = None if batches is None else (self._pair(self.backbone, *one) for one in batches)
        self.mtl.calibrate(shown)

    def predictive(self, inputs: Any) -> dict[str, Any]:
        """The engine's, with the weights of heads integrated out."""
        return self.mtl.predictive(self.backbone(inputs))

    def parameters(self) -> Iterator[Parameter]:
        """Backbone, then heads (which are trained in the pre-training only)."""
        return chain(self.backbone.parameters(), self.mtl.parameters())

    def train(self, mode: bool = True) -> None:
        """Switch both between training and evaluation."""
        self.backbone.train(mode)
        self.mtl.train(mode)

    def watch(
        self, path: Path, every: int, start: int, inputs: Any, targets: dict[str, Tensor]
    ) -> Recorder:
        """Record every stage of a step, and how stale the priors are for the examples given."""

        def fresh() -> tuple[Tensor, dict[str, Tensor]]:
            self.backbone.eval()
            features = self.backbone(inputs)
            self.backbone.train()
            return features, targets

        return Recorder(
            self.mtl, path, every=every, start=start, fresh=fresh, base=self._base_priors
        )

    def start_epoch(self, epoch: int) -> None:
        """End the pre-training when its epochs are over."""
        if epoch == self.pretrain:
            self.mtl.start_bayes()

    def fresh_share(self, epoch: int) -> float:
        """What the prior wants; while pre-training goes on nothing reads it, so a batch will do."""
        if self._options.prior != "fresh":
            return 0.0
        return self._options.fresh_share if epoch >= self.pretrain - 1 else 1e-9

    def refresh(self, batches: Iterable[tuple[Any, dict[str, Tensor]]]) -> None:
        """Keep the batches for the next prior, which computes their features."""
        self._fresh = (self._pair(self.backbone, *batch) for batch in batches)

    def end_epoch(self, epoch: int) -> None:
        """Build the next epoch's prior from this one's data, or from fresh features."""
        if self._fresh is None:
            self.mtl.update_prior()
        else:
            self.mtl.update_prior(batches=self._fresh)
            self._fresh = None

    def phase(self, epoch: int) -> str:
        """``"pre-training"`` or ``"Bayesian"``."""
        return "pre-training" if epoch < self.pretrain else "Bayesian"

    def effective_tasks(self) -> Tensor | None:
        """Mean over examples and dimensions, in the last step; None in the pre-training."""
        return None if self.mtl.info is None else self.mtl.info.effective_tasks

    @torch.no_grad()
    def example_weights(self, inputs: Any, targets: dict[str, Tensor]) -> ExampleWeights | None:
        """What the engine's aggregation would give these examples, had they been a batch."""
        if self.mtl.warmup or branched(self.backbone):
            return None
        self.backbone.eval()
        features = self.backbone(inputs)
        self.backbone.train()
        generator = torch.Generator(features.device).manual_seed(0)  # for heads that need samples
        parts = {}
        for name, prior in self.mtl.priors().items():
            head = self._heads[name]
            posterior = self.mtl.schemes[name].infer(head, features, targets[name], prior)
            parts[name] = gradients.distribution(
                head,
                posterior,
                features,
                targets[name],
                estimator=self.mtl.estimators[name],
                generator=generator,
            )
        joint = gradients.cat(parts)
        with warnings.catch_warnings():  # of weights per example, which are not the ones in use
            warnings.simplefilter("ignore")
            finest = self._finest.weights(joint)
        applied = self._aggregation.weights(joint)
        if applied is None or finest is None:
            return None
        by_example, mean = finest.mean(-1).mT, applied.mean(-1)
        if joint.observed is None:
            return ExampleWeights(by_example, mean.mean(1))
        nan = torch.nan
        return ExampleWeights(
            torch.where(joint.observed.mT, by_example, nan),
            torch.where(joint.observed, mean, nan).nanmean(1),
        )

    def state_dict(self) -> dict[str, Any]:
        """State of backbone and engine."""
        return {"backbone": self.backbone.state_dict(), "mtl": self.mtl.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        self.backbone.load_state_dict(state["backbone"])
        self.mtl.load_state_dict(state["mtl"])
