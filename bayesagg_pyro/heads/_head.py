"""The base of all heads: linear outputs, a likelihood, a loss, and the Pyro model they make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from bayesagg_pyro._settings import integers, positive, positive_or_none
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads._input import CheckedInput, Missing, like
from bayesagg_pyro.heads._output_curvature import OutputCurvature, derivatives
from bayesagg_pyro.heads._predictive import predictive_of
from bayesagg_pyro.heads._pyro_model import sample_targets
from bayesagg_pyro.targets import RawTargets, Targets

#: Of a model. "outputs": f = W φ(h), of the design. "design": φ(h) is the features, or their
#: embedding, with a constant for the bias. "likelihood": p(y | f). "weight": a factor of its log.
#: "loss": ℓ. "pointwise": loss and likelihood of an example are functions of its outputs.
Aspect: TypeAlias = Literal["outputs", "design", "likelihood", "weight", "loss", "pointwise"]

_METHODS: Mapping[Aspect, tuple[str, ...]] = {
    "outputs": ("forward", "outputs_of", "design_matrix"),
    "design": ("design",),
    "likelihood": ("likelihood", "negative_log_prob", "negative_log_probs"),
    "weight": ("target_weight",),
    "loss": ("loss", "losses"),
    "pointwise": ("negative_log_probs", "losses"),
}
_ALL: tuple[Aspect, ...] = tuple(_METHODS)


class Head(CheckedInput, ABC):
    """T tasks of one kind on shared features: outputs f = W h (+ b) and a likelihood p(y | f).

    To write a head of your own, subclass this and give it a `likelihood`. All general schemes,
    the sampled gradient moments and the engine then work at once; register moments
    (`bayesagg_pyro.gradients.register`) to make it fast.

    A subclass of any head may override `forward`, `design`, `likelihood`, `negative_log_prob`,
    `target_weight` and `loss`. What it changes is honoured by every scheme, moment and predictive:
    through its own methods, or by a refusal that names them (`is_still` decides). Outputs of a
    task are to depend on the weights of that task alone.

    Args:
        in_features: d, the number of features.
        tasks: T, the number of tasks held by this head.
        outputs_per_task: linear outputs that one task's likelihood needs.
        bias: whether a constant 1 is appended to the features; its weight comes last.
        prior_variance: variance of the default prior N(0, prior_variance · I) of `model`.
        missing: "nan" reads a NaN target as not observed, a number (-100, 255) reads that one so;
            "error" refuses what is no target.
        name: prefix of the Pyro sites. The engine sets it to the head's key unless given.

    Raises:
        SettingError: if a size, the variance or `missing` is outside its range.
    """

    #: Buffers that hold one value for each task, or one for all.
    per_task: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        in_features: int,
        tasks: int = 1,
        *,
        outputs_per_task: int = 1,
        bias: bool = False,
        prior_variance: float = 1.0,
        missing: Missing = "error",
        name: str | None = None,
    ) -> None:
        positive("prior_variance", prior_variance)
        if missing not in ("error", "nan") and type(missing) is not int:
            raise SettingError(f'missing must be "error", "nan" or an integer, not {missing!r}')
        if missing == "nan" and self.target_kind == "class":
            raise SettingError(
                "class indices have no NaN: missing takes the label that is to be ignored, such as "
                "-100 or 255"
            )
        super().__init__(
            in_features, tasks, outputs_per_task=outputs_per_task, bias=bias, name=name
        )
        self.prior_variance = prior_variance
        self.missing = missing

    # -- what the task is ------------------------------------------------------------------------

    @abstractmethod
    def likelihood(self, outputs: Tensor) -> Any:
        """p(y | f): a torch or Pyro distribution of batch shape [..., B, tasks].

        Args:
            outputs: [..., B, tasks].
        """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss per example and task, [..., B, tasks]: the negative log-likelihood.

        This is the function whose gradient is aggregated, whatever estimates its moments.

        Args:
            outputs: [..., B, tasks].
            targets: [B, tasks].
        """
        return self.negative_log_prob(outputs, targets)

    def standard_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What a loss of one's own is measured by, [..., B, tasks]: −log p, in nats."""
        return self.negative_log_prob(outputs, targets)

    def negative_log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−log p(y | f) times `target_weight`, [..., B, tasks]: what inference sums."""
        return self.weighed(-self.likelihood(outputs).log_prob(targets), targets)

    def output_curvature(
        self, outputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor | OutputCurvature]:
        """Slope and curvature of `negative_log_prob` in the outputs of each task.

        Second-order schemes are made of them. Here they come from automatic differentiation; a head
        with a closed form overrides this. The curvature is to be positive semi-definite: negative
        eigenvalues are dropped and `info.dropped_curvature` tells of them. A head whose likelihood
        is not log-concave does better with Fisher's information, as `Heteroscedastic`.

        Args:
            outputs: as `forward` gives them, [B, tasks], or [B, tasks, C] for C of a task.
            targets: [B, tasks].

        Returns:
            [B, tasks, C], and [B, tasks, C, C]; [B, tasks, C] where that is diagonal.
        """
        return derivatives(lambda f: self.negative_log_prob(f, targets), outputs, self.tasks)

    def target_weight(self, targets: Tensor) -> Tensor | None:
        """Factor of the log-likelihood that depends on the target (class weights), [B, tasks].

        None stands for 1.
        """
        return None

    def weighed(self, values: Tensor, targets: Tensor) -> Tensor:
        """Values [..., B, tasks] of −log p, or of its derivatives, times `target_weight`."""
        weight = self.target_weight(targets)
        return values if weight is None else values * weight.to(values.dtype)

    def losses(self, features: Tensor, targets: Targets, weight: Tensor | None = None) -> Tensor:
        """`loss` of features: at the point estimate or at given weights, [..., B, tasks].

        Missing targets hold a filler and weights of examples are left out: callers see to both.

        Args:
            features: [B, d].
            targets: [B, tasks].
            weight: [..., blocks, P].
        """
        outputs = self._counted(features, targets, weight)
        return self.loss(outputs, like(targets.values, outputs))

    def negative_log_probs(
        self, features: Tensor, targets: Targets, weight: Tensor | None = None
    ) -> Tensor:
        """`negative_log_prob` of features, [..., B, tasks]; arguments as for `losses`."""
        outputs = self._counted(features, targets, weight)
        return self.negative_log_prob(outputs, like(targets.values, outputs))

    def _counted(self, features: Tensor, targets: Targets, weight: Tensor | None) -> Tensor:
        outputs: Tensor = self(features, weight)
        if targets.mask is None and targets.weight is None:
            return outputs
        return self.counted(outputs, targets)

    def counted(self, outputs: Tensor, targets: Targets) -> Tensor:
        """Outputs, and harmless ones for examples that do not count, where they may overflow."""
        return outputs

    # -- what a subclass has changed: closed forms hold only for what it has not ------------------

    def is_still(self, base: type | tuple[type, ...], *aspects: Aspect) -> bool:
        """Whether this is a `base` with these aspects of its model unchanged (all of them if none).

        Args:
            base: a class of heads, or several, of which one will do.
            aspects: see `Aspect`.
        """
        for one in base if isinstance(base, tuple) else (base,):
            if isinstance(self, one) and not self.changes(one, *aspects):
                return True
        return False

    def changes(self, base: type, *aspects: Aspect) -> tuple[str, ...]:
        """Names of what differs from `base`: methods, and "hooks" on the outputs."""
        found: dict[str, None] = {}
        for aspect in aspects or _ALL:
            for name in _METHODS[aspect]:
                # As a method of the object, so that one assigned to it counts as well.
                if getattr(getattr(self, name), "__func__", None) is not getattr(base, name):
                    found[name] = None
        if (self._forward_hooks or self._forward_pre_hooks) and "outputs" in (aspects or _ALL):
            found["hooks"] = None
        return tuple(found)

    def changed(self, base: type, *aspects: Aspect) -> str:
        """What `changes` finds, for a message: "Mine overrides forward of Gaussian"."""
        names = " and ".join(self.changes(base, *aspects))
        return f"{type(self).__name__} overrides {names} of {base.__name__}"

    # -- the Pyro model --------------------------------------------------------------------------

    def model(
        self, features: Tensor, targets: RawTargets | None = None, *, prior: Any = None
    ) -> Tensor:
        """The head as a Pyro model, with sites `<name>.weight` and `<name>.targets`.

        Args:
            features: [B, d].
            targets: [B, tasks] (or (values, mask)); None draws them.
            prior: a distribution over weights of batch shape [tasks]; N(0, prior_variance · I) if
                None.

        Returns:
            The targets, [B, tasks].
        """
        return sample_targets(self, features, targets, prior)

    # -- predictions -----------------------------------------------------------------------------

    def predictive(
        self,
        features: Tensor,
        posterior: Any,
        *,
        method: Literal["auto", "quadrature", "probit", "samples"] = "auto",
        samples: int | None = None,
        tolerance: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Any:
        """p(y | h) = ∫ p(y | w, h) dposterior(w), by the most exact way there is for the two.

        With a Gaussian posterior: `Gaussian` heads in closed form; other heads of one linear
        predictor, `Heteroscedastic` and two-class `Categorical` by quadrature over the predictors.
        Everything else, and heads whose outputs are no longer linear in the weights, by draws of
        these: all stored ones of an `Empirical` posterior, else `samples` new ones.

        Args:
            features: [B, d].
            posterior: over the weights.
            method: "auto" as above; "quadrature" or a closed form, or an error; "probit", MacKay's
                approximation, for Bernoulli heads; "samples", a mixture over draws, for all.
            samples: draws of the weights; None for 512, or 128 of a Pyro model. What is made of
                draws has an attribute `standard_error`, of the probabilities (that of 1,
                [B, tasks], or of all classes, [B, tasks, C]) or of the mean, [B, tasks]: below
                sqrt(p (1 − p) / samples) for a probability p.
            tolerance: largest standard error allowed, of a probability, or of a mean in predictive
                standard deviations (those of E[y | w] where y has no variance): draws are doubled
                until it is met, up to 131,072 (8,192 of a Pyro model) and then with a warning.
                Stored draws are as many as they are.
            generator: a new one with a fixed seed if None, so that calls agree.

        Returns:
            A distribution of batch shape [B, tasks] in the precision of head algebra: Bernoulli or
            Categorical for classes, else a `PredictiveDistribution`, which knows the two parts of
            its variance.

        Raises:
            SettingError: for a method that this head or posterior does not have, or a number of
                samples or a tolerance that is not positive.
            ShapeError, DtypeError: for features that are no [B, d], or a posterior over the weights
                of another head.
        """
        self.check_features(features, values=False, empty=True)
        self.check_weights(posterior, "posterior")
        positive_or_none("tolerance", tolerance)
        if samples is not None:
            integers(samples=samples)
        return predictive_of(
            self,
            features,
            posterior,
            method=method,
            samples=samples,
            tolerance=tolerance,
            generator=generator,
        )

    def in_target_units(self, outputs: Tensor) -> Tensor:
        """Outputs as the user's targets are, for heads that have units of their own."""
        return outputs

    def extra_repr(self) -> str:
        """What `print(head)` shows."""
        return f"in_features={self.in_features}, tasks={self.tasks}, bias={self.bias}"
