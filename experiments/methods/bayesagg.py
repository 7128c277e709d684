"""The paper's method, as the trainer sees it: the library's engine and the order of its calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, gradients, priors
from bayesagg_pyro.diagnostics import Recorder
from bayesagg_pyro.heads import Head
from experiments.errors import SettingsError
from experiments.methods.base import ExampleWeights, Level, Method, MethodOptions, Needs, Scale
from experiments.settings import require

__all__ = ["BayesAggMethod", "BayesAggOptions"]


@dataclass(frozen=True)
class BayesAggOptions(MethodOptions):
    """Options of Bayesian aggregation; the defaults are the paper's for QM9.

    Attributes:
        pretrain: Epochs of linear scalarisation before the first Bayesian one.
        power: Exponent s of the precision in the weights, 0 (plain mean) to 1; one for all heads,
            or ``{head: s}``.
        prior_variance: Variance γ of the prior under the full-data posterior.
        resolution: A weight for each ``"example"`` and dimension (the paper), with the variance
            averaged over the batch for each ``"dimension"``, or over both for each ``"task"``.
        scale: Size of the update: ``"mean"`` (the paper; weights sum to 1) or ``"sum"`` (times the
            number of tasks, the size that the pre-training had).
        covariance: ``"diagonal"``, or the paper's ``"full"`` solution, which is defined for power 1
            alone and takes a matrix for each task and example.
        mean: The gradient averaged over the ``"posterior"`` (the paper), or taken at its mean
            (``"plug-in"``), where the uncertainty decides the weights alone.
    """

    pretrain: int = 50
    power: float | Mapping[str, float] = 0.85
    prior_variance: float = 1e-3
    resolution: Literal["example", "dimension", "task"] = "example"
    scale: Literal["mean", "sum"] = "mean"
    covariance: Literal["diagonal", "full"] = "diagonal"
    mean: Literal["posterior", "plug-in"] = "posterior"

    def __post_init__(self) -> None:
        require(self.pretrain >= 1, "pretrain", self.pretrain, "the first prior needs 1 epoch")
        powers = self.power.values() if isinstance(self.power, Mapping) else (self.power,)
        require(all(0 <= s <= 1 for s in powers), "power", self.power, "give numbers from 0 to 1")
        require(
            0 < self.prior_variance < float("inf"),
            "prior_variance",
            self.prior_variance,
            "give a positive number",
        )
        require(
            self.resolution in ("example", "dimension", "task"),
            "resolution",
            self.resolution,
            "give example, dimension or task",
        )
        require(self.scale in ("mean", "sum"), "scale", self.scale, "give mean or sum")
        require(
            self.covariance in ("diagonal", "full"),
            "covariance",
            self.covariance,
            "give diagonal or full",
        )
        require(
            self.mean in ("posterior", "plug-in"), "mean", self.mean, "give posterior or plug-in"
        )
        if self.covariance == "full":
            require(self.power == 1, "power", self.power, "covariance = 'full' needs power = 1")
            require(
                self.resolution != "task",
                "resolution",
                self.resolution,
                "covariance = 'full' needs resolution example or dimension",
            )

    def check(self, epochs: int) -> None:
        """There must be at least one Bayesian epoch."""
        if self.pretrain >= epochs:
            raise SettingsError(
                f"pretrain = {self.pretrain} leaves no Bayesian epoch in a run of {epochs}: "
                "lower --pretrain or raise --epochs"
            )


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
        self.pretrain = options.pretrain
        self._heads = dict(heads)
        self._aggregation, self._finest = (
            aggregation.PrecisionWeighted(
                power=options.power, resolution=resolution, covariance=options.covariance
            )
            for resolution in (options.resolution, "example")
        )
        self._base_priors = {
            name: priors.isotropic(head, options.prior_variance)
            for name, head in self._heads.items()
        }
        self.mtl = ba.BayesAgg(
            heads=self._heads,
            aggregation=self._aggregation,
            prior=priors.FullData(variance=options.prior_variance),
            warmup=True,
            scale=options.scale,
            estimator=gradients.PlugIn() if options.mean == "plug-in" else None,
        )

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
            for name, loss in self.mtl.backward(self.backbone(inputs), targets).items()
        }

    def predict(self, inputs: Any) -> dict[str, Tensor]:
        """The engine's point predictions."""
        return dict(self.mtl.predict(self.backbone(inputs)))

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

    def end_epoch(self, epoch: int) -> None:
        """Build the next epoch's prior from this one's data."""
        self.mtl.update_prior()

    def phase(self, epoch: int) -> str:
        """``"pre-training"`` or ``"Bayesian"``."""
        return "pre-training" if epoch < self.pretrain else "Bayesian"

    def effective_tasks(self) -> Tensor | None:
        """Mean over examples and dimensions, in the last step; None in the pre-training."""
        return None if self.mtl.info is None else self.mtl.info.effective_tasks

    @torch.no_grad()
    def example_weights(self, inputs: Any, targets: dict[str, Tensor]) -> ExampleWeights | None:
        """What the engine's aggregation would give these examples, had they been a batch."""
        if self.mtl.warmup:
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
        applied, finest = self._aggregation.weights(joint), self._finest.weights(joint)
        if applied is None or finest is None:
            return None
        return ExampleWeights(by_example=finest.mean(-1).mT, applied=applied.mean((1, 2)))

    def state_dict(self) -> dict[str, Any]:
        """State of backbone and engine."""
        return {"backbone": self.backbone.state_dict(), "mtl": self.mtl.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        self.backbone.load_state_dict(state["backbone"])
        self.mtl.load_state_dict(state["mtl"])
