"""The base of all heads: linear outputs, a likelihood, a loss, and the Pyro model they make."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyro
import torch
from pyro import poutine
from torch import Tensor, nn

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import SettingError, ShapeError
from bayesagg_pyro.heads._embedding import Embedding
from bayesagg_pyro.heads._input import (
    TargetKind,
    check_device,
    check_features,
    check_finite,
    parse_targets,
)
from bayesagg_pyro.targets import RawTargets, Targets

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Head"]


class Head(nn.Module, ABC):
    """T like tasks on shared features: outputs f = W h (+ b), and a likelihood p(y | f).

    To write a head of your own, subclass this and give it a `likelihood`. Inference by sampling,
    the sampled gradient moments and the engine then work at once; register moments
    (`bayesagg_pyro.gradients.register`) to make it fast.

    Args:
        in_features: d, the number of features.
        tasks: T, the number of tasks held by this head.
        outputs_per_task: linear outputs that one task's likelihood needs.
        bias: whether a constant 1 is appended to the features; its weight comes last.
        prior_variance: variance of the default prior N(0, prior_variance · I) of `model`.
        missing: "nan" reads a NaN target as not observed; "error" refuses it.
        name: prefix of the Pyro sites. The engine sets it to the head's key unless given.

    Raises:
        SettingError: if a size, the variance or `missing` is outside its range.
    """

    weight: nn.Parameter  #: the point estimate, [tasks · outputs_per_task, D], bias last
    #: Buffers that hold one value for each task, or one for all.
    per_task: ClassVar[tuple[str, ...]] = ()
    target_kind: ClassVar[TargetKind] = "real"

    def __init__(
        self,
        in_features: int,
        tasks: int = 1,
        *,
        outputs_per_task: int = 1,
        bias: bool = False,
        prior_variance: float = 1.0,
        missing: Literal["error", "nan"] = "error",
        name: str | None = None,
    ) -> None:
        super().__init__()
        sizes = {"in_features": in_features, "tasks": tasks, "outputs_per_task": outputs_per_task}
        for label, size in sizes.items():
            if not isinstance(size, int) or size < 1:
                raise SettingError(f"{label} must be a positive integer, not {size!r}")
        if not (prior_variance > 0 and math.isfinite(prior_variance)):
            raise SettingError(f"prior_variance must be positive and finite, not {prior_variance}")
        if missing not in ("error", "nan"):
            raise SettingError(f'missing must be "error" or "nan", not {missing!r}')
        self.in_features = in_features
        self.tasks = tasks
        self.bias = bias
        self.prior_variance = prior_variance
        self.missing = missing
        self.name = name
        self.outputs_per_task = outputs_per_task
        self.embedding: Embedding | None = None
        self._make_weight(in_features)

    def _make_weight(self, size: int) -> None:
        """The point estimate of a head that is linear in `size` numbers (and a constant)."""
        rows = self.tasks * self.outputs_per_task
        self.weight = nn.Parameter(torch.empty(rows, size + self.bias))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the point estimate as `torch.nn.Linear` does: uniform within 1/sqrt(inputs)."""
        bound = 1 / math.sqrt(self.weight.shape[1] - self.bias)
        nn.init.uniform_(self.weight, -bound, bound)

    def embed(self, embedding: Embedding) -> Self:
        """Make the outputs linear in φ(h), f = W φ(h) (+ b), and draw weights of that size.

        All inference goes on as before, with φ(h) in place of h; gradient distributions stay those
        of the features h. Parameters of φ are point estimates, learned by the head's loss.

        Args:
            embedding: φ, of d features.

        Returns:
            The head itself.

        Raises:
            SettingError: if φ is of another number of features.
        """
        if embedding.in_features != self.in_features:
            raise SettingError(
                f"head {self.site!r} is of {self.in_features} features, the embedding of "
                f"{embedding.in_features}; make both of the backbone's output size"
            )
        like = self.weight
        self._make_weight(embedding.out_features)
        self.weight.data = self.weight.data.to(like)
        self.embedding = embedding
        return self

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

    def negative_log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−log p(y | f) times `target_weight`, [..., B, tasks]: what inference sums."""
        log_prob: Tensor = self.likelihood(outputs).log_prob(targets)
        weight = self.target_weight(targets)
        return -log_prob if weight is None else -log_prob * weight.to(log_prob.dtype)

    def target_weight(self, targets: Tensor) -> Tensor | None:
        """Factor of the log-likelihood that depends on the target (class weights), [B, tasks].

        None stands for 1.
        """
        return None

    def check_values(self, targets: Targets) -> None:
        """Refuse target values outside the support of the likelihood; nothing to refuse here.

        Raises:
            ShapeError: naming the value and the remedy.
        """
        return

    def losses(self, features: Tensor, targets: Targets, weight: Tensor | None = None) -> Tensor:
        """`loss` at the point estimate or at given weights, [..., B, tasks].

        Missing targets hold a filler and weights of examples are left out: callers see to both.

        Args:
            features: [B, d].
            targets: [B, tasks].
            weight: [..., blocks, P].
        """
        outputs = self(features, weight)
        return self.loss(outputs, _like(targets.values, outputs))

    def negative_log_probs(
        self, features: Tensor, targets: Targets, weight: Tensor | None = None
    ) -> Tensor:
        """As `losses`, of `negative_log_prob`."""
        outputs = self(features, weight)
        return self.negative_log_prob(outputs, _like(targets.values, outputs))

    # -- its weights -----------------------------------------------------------------------------

    @property
    def blocks(self) -> int:
        """Independent groups of weights: one per task, or 1 where all tasks share their weights.

        Posteriors and priors have batch shape [blocks].
        """
        return self.tasks

    @property
    def has_own_parameters(self) -> bool:
        """Whether the loss must teach parameters that no posterior is over, at the weights in use.

        Those are the parameters of an embedding.
        """
        embedding = self.embedding
        return embedding is not None and any(p.requires_grad for p in embedding.parameters())

    def numbers_per_draw(self, examples: int) -> int:
        """Entries of the largest temporary that the gradients at one draw of the weights take."""
        per_example = max(self.in_features, self.outputs_per_task, self.weight.shape[-1])
        return self.tasks * max(examples * per_example, self.weight_size)

    def point(self) -> Tensor:
        """The point estimate as weights of tasks, [blocks, P]."""
        return self.weight.reshape(self.tasks, -1)

    # -- the linear part -------------------------------------------------------------------------

    @property
    def weight_size(self) -> int:
        """P, the number of weights of one task (of one block)."""
        return self.weight.numel() // self.tasks

    def design(self, features: Tensor) -> Tensor:
        """Features, embedded if the head embeds, with the bias' constant appended, [..., B, D]."""
        if self.embedding is not None:
            features = self.embedding(features)
        if not self.bias:
            return features
        return torch.cat([features, features.new_ones((*features.shape[:-1], 1))], -1)

    def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
        """Outputs at the point estimate, or at given weights.

        Args:
            features: [B, d].
            weight: [..., tasks, P], for example samples of a posterior.

        Returns:
            [B, tasks], or [..., B, tasks] for given weights; with a last axis of outputs where
            one task has several.
        """
        if weight is None:
            weight = self.point()
        with torch.autocast(features.device.type, enabled=False):  # heads stay exact
            design = self.design(features).to(weight.dtype)
            if self.outputs_per_task == 1:
                return design @ weight.mT
            rows = weight.unflatten(-1, (self.outputs_per_task, -1)).flatten(-3, -2)
            outputs: Tensor = design @ rows.mT
            outputs = outputs.unflatten(-1, (self.tasks, self.outputs_per_task))
            return outputs

    # -- the Pyro model --------------------------------------------------------------------------

    @property
    def site(self) -> str:
        """Prefix of this head's Pyro sites."""
        return self.name or "head"

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
        if prior is None:
            from bayesagg_pyro import priors  # priors are built from heads: no import at load time

            prior = priors.isotropic(self, self.prior_variance)
        prior = prior.to(device=features.device, dtype=features.dtype)
        observed = None if targets is None else self.parse_targets(targets, len(features))
        task_plate = pyro.plate(f"{self.site}.tasks", self.tasks, dim=-1)
        shared = pyro.plate(f"{self.site}.weights", self.blocks, dim=-1)
        with task_plate if self.blocks == self.tasks else shared:
            weight = pyro.sample(f"{self.site}.weight", prior)
        if weight.ndim > 2:  # drawn in parallel: [S, 1, tasks, P], the 1 standing for the examples
            weight = weight.squeeze(-3)
        likelihood = self.likelihood(self(features, weight))
        examples = pyro.plate(f"{self.site}.examples", len(features), dim=-2)
        obs = None
        contexts: list[AbstractContextManager[Any]] = [examples, task_plate]
        if observed is not None:
            obs = observed.values
            if self.target_kind != "class":
                obs = obs.to(features.dtype)
            contexts += _tempering(observed, self.target_weight(observed.values), features.dtype)
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            drawn: Tensor = pyro.sample(f"{self.site}.targets", likelihood, obs=obs)
        return drawn

    # -- predictions -----------------------------------------------------------------------------

    def predictive(
        self,
        features: Tensor,
        posterior: Any,
        *,
        method: Literal["auto", "quadrature", "probit", "samples"] = "auto",
        samples: int = 512,
        generator: torch.Generator | None = None,
    ) -> Any:
        """p(y | h) with the weights integrated out; see `bayesagg_pyro.predictive.predictive`.

        Args:
            features: [B, d].
            posterior: over the weights; Gaussian, or any that can be sampled.
            method: "auto" takes the most exact there is.
            samples: draws of the weights, where they are drawn.
            generator: a fresh one with a fixed seed if None, so that calls agree.

        Returns:
            A distribution of batch shape [B, tasks] with `mean`, `log_prob` and `sample`.

        Raises:
            SettingError: for a method that this head or posterior does not have.
        """
        from bayesagg_pyro import predictive  # built from heads: no import at load time

        return predictive.predictive(
            self, features, posterior, method=method, samples=samples, generator=generator
        )

    # -- input -----------------------------------------------------------------------------------

    def check_features(self, features: Tensor, *, values: bool = True) -> None:
        """Refuse features that are not a finite, floating [B, d] with B of at least 1.

        Args:
            features: what the user passed.
            values: whether to look for NaN and infinity, which on a GPU waits for the device.

        Raises:
            ShapeError, DtypeError, NonFiniteError, DeviceError: naming the head and the remedy.
        """
        owner = f"head {self.site!r}"
        check_device(owner, "features", features, self.weight.device)
        check_features(owner, features, self.in_features, values=values)

    def check_weights(self, distribution: Any, what: str) -> None:
        """Refuse a prior or posterior over the weights of another head.

        Raises:
            ShapeError: naming both shapes.
        """
        given = [*distribution.batch_shape, *distribution.event_shape]
        if given != [self.blocks, self.weight_size]:
            meaning = (
                "tasks, weights of one task" if self.blocks == self.tasks else "1, shared weights"
            )
            raise ShapeError(
                f"head {self.site!r}: the {what} is over weights of shape {given}, the head's are "
                f"[{self.blocks}, {self.weight_size}] ({meaning})"
            )

    def valid(self, targets: Targets) -> Tensor:
        """Whether all target values are usable, as a boolean scalar on their device."""
        return targets.values.isfinite().all()

    def parse_targets(self, targets: RawTargets, batch: int, *, validate: bool = True) -> Targets:
        """Bring targets to one form and refuse what is wrong with them.

        Args:
            targets: [B, tasks], or [B] for one task; (values, mask) with True for observed, or
                (values, mask or None, weight) with the weight of each example, [B] or [B, tasks].
            batch: B.
            validate: whether to look at the values, which on a GPU waits for the device.

        Raises:
            ShapeError, DtypeError: wrong shape or type of values or mask.
            NonFiniteError: an observed value is infinite or NaN (NaN is "not observed" for a head
                made with missing="nan").
        """
        if isinstance(targets, Targets):
            return targets
        owner = f"head {self.site!r}"
        check_device(owner, "targets", targets, self.weight.device)
        parsed = parse_targets(
            owner,
            targets,
            batch,
            self.tasks,
            kind=self.target_kind,
            nan_missing=self.missing == "nan",
        )
        if validate:
            check_finite(owner, parsed)
            self.check_values(parsed)
        return parsed

    def exact(self, features: Tensor) -> Tensor:
        """Detached design matrix in the precision of head algebra, [B, D]."""
        features = features.detach()
        with torch.no_grad():
            return self.design(features.to(linalg.head_dtype(features.device)))

    def extra_repr(self) -> str:
        """What `print(head)` shows."""
        return f"in_features={self.in_features}, tasks={self.tasks}, bias={self.bias}"


def _like(values: Tensor, outputs: Tensor) -> Tensor:
    """Real targets in the outputs' precision; class indices as they are."""
    return values.to(outputs.dtype) if values.is_floating_point() else values


def _tempering(
    observed: Targets, target_weight: Tensor | None, dtype: torch.dtype
) -> list[AbstractContextManager[Any]]:
    """Pyro contexts that mask and weigh the log-likelihood of each example."""
    factor = observed.factor(dtype)
    if target_weight is not None:
        weight = target_weight.to(dtype)
        factor = weight if factor is None else factor * weight
    if factor is None:
        return []
    # Pyro scales by positive numbers only; zeros are masked.
    scale = torch.where(factor > 0, factor, 1.0)
    mask: Any = factor > 0
    return [poutine.mask(mask=mask), poutine.scale(scale=scale)]
