"""The value that passes from the gradient stage to aggregation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError, ShapeError, StateError

_Way = TypeVar("_Way")


class MomentError(NamedTuple):
    """How far moments may be off their exact values, in absolute terms, [tasks, B, d] each.

    A standard error where they are sampled, an estimate from a finer rule where they are
    integrated, 0 where they are in closed form. Rounding, to the features' dtype first of all, is
    not in it.
    """

    mean: Tensor
    variance: Tensor


@dataclass(frozen=True, repr=False)
class GradientDistribution:
    """The distribution of ∂ℓ_tb/∂h_b over head weights, for every task t and example b.

    It is of the gradient of a single example's loss, not of a batch mean. Mean and variance are the
    moments of the exact distribution (or estimates of them); reading it as a Gaussian is the moment
    matching of the paper.

    Attributes:
        mean: E[g], [tasks, B, d], in the features' dtype or a wider one.
        variance: Var[g], [tasks, B, d], at least 0.
        observed: [tasks, B] bool, False where a task has no target, or an example no weight for
            it; None when all are observed.
            Moments are 0 where not observed.
        groups: which rows belong to which named head, once several are joined.
        covariance: makes the full covariance [tasks, B, d, d] when somebody asks for it.
        sampler: draws [S, tasks, B, d] from the exact distribution.
        batch_loss_scale: `loss_scale` of the batch of which these are some examples; None if they
            are all.
        error: estimates the moments' own error when somebody asks for it.
        shape: of the moments: tasks, B, d.
    """

    mean: Tensor
    variance: Tensor
    observed: Tensor | None = None
    groups: Mapping[str, slice] = field(default_factory=dict)
    covariance: Callable[[], Tensor] | None = None
    sampler: Callable[[int, torch.Generator | None], Tensor] | None = None
    batch_loss_scale: Tensor | None = None
    error: Callable[[], MomentError] | None = None
    shape: torch.Size = field(init=False)

    def __post_init__(self) -> None:
        if self.mean.ndim != 3 or self.mean.shape != self.variance.shape:
            raise ShapeError(
                "mean and variance must both be [tasks, B, d], not "
                f"{list(self.mean.shape)} and {list(self.variance.shape)}"
            )
        if self.observed is not None and self.observed.shape != self.mean.shape[:2]:
            raise ShapeError(
                f"observed must be {list(self.mean.shape[:2])} (tasks, B), "
                f"not {list(self.observed.shape)}"
            )
        object.__setattr__(self, "shape", self.mean.shape)

    def __repr__(self) -> str:
        tasks, examples, features = self.shape
        return f"{type(self).__name__}(tasks={tasks}, examples={examples}, features={features})"

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return self.shape[0]

    @property
    def like(self) -> Tensor:
        """A tensor of the moments' dtype and device, of whatever shape."""
        return self.mean

    def labelled(self) -> Tensor:
        """`observed`, or True for all, [tasks, B]."""
        if self.observed is not None:
            return self.observed
        return self.like.new_ones(self.shape[:2], dtype=torch.bool)

    @classmethod
    def joined(
        cls, parts: Mapping[str, GradientDistribution], **fields: Any
    ) -> GradientDistribution:
        """The tasks of several; arguments as `cat` gives them."""
        return mapped(list(parts.values()), lambda own: torch.cat(own, -3), torch.cat, **fields)

    def changed(self, **fields: Any) -> GradientDistribution:
        """The same with other fields, as `dataclasses.replace`; what is not made yet stays so."""
        return replace(self, **fields)

    def combined(self, weights: Tensor) -> Tensor:
        """Σ_t α_t E[g_t] with each task's loss averaged over its own observed examples, [B, d].

        Args:
            weights: α, broadcastable to [tasks, B, d].
        """
        scale = self.loss_scale()
        if scale is not None:
            weights = weights * scale
        return (weights * self.mean).sum(0)

    def averaged(self) -> Tensor:
        """Var[g] averaged over each task's observed examples, [tasks, 1, d]; 0 without any."""
        if self.observed is None:
            return self.variance.mean(1, keepdim=True)
        return averaged(self.variance, self.observed)

    def examples(self, rows: slice) -> GradientDistribution:
        """Moments of some of the examples, which weigh what they do in the whole batch."""
        return mapped(
            [self],
            lambda parts: parts[0][..., rows, :],
            lambda parts: parts[0][:, rows],
            observed=None if self.observed is None else self.observed[:, rows],
            batch_loss_scale=self.loss_scale(),
        )

    @property
    def moment_error(self) -> MomentError:
        """How far mean and variance may be off; computed at each call, at a multiple of their cost.

        Raises:
            StateError: if nothing is known of it.
        """
        error = _there(self.error, "has moments whose error is not known")
        with torch.no_grad():  # as moments are made: a head may have parameters that learn
            return error()

    @property
    def covariance_matrix(self) -> Tensor:
        """Full covariance, [tasks, B, d, d]; computed at each call, since it is large.

        Raises:
            StateError: if the estimator kept no way to compute it.
        """
        return _there(self.covariance, "has no full covariance")()

    def sample(
        self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw gradients, through draws of the weights: [*sample_shape, tasks, B, d].

        Raises:
            StateError: if the distribution was built from moments alone.
        """
        sampler = _there(self.sampler, "cannot be sampled")
        count = int(torch.Size(sample_shape).numel())
        return sampler(count, generator).reshape(*sample_shape, *self.mean.shape)

    def loss_scale(self) -> Tensor | None:
        """B / n_t for each task, [tasks, 1, 1]; None when every target is observed.

        A task's loss averages over its own n_t observed examples, the update over all B; the factor
        makes the two agree. It is 0 for a task without any observation.
        """
        if self.batch_loss_scale is not None or self.observed is None:
            return self.batch_loss_scale
        return loss_scale(self.observed, self.like.dtype)


def cat(parts: Mapping[str, GradientDistribution]) -> GradientDistribution:
    """Stack the tasks of several heads on the same features; `groups` maps heads to rows.

    Args:
        parts: {name: distribution [tasks_name, B, d]}.

    Raises:
        SettingError: if there is nothing to join.
        ShapeError: if batch sizes or feature sizes differ.
    """
    if not parts:
        raise SettingError("there is nothing to join: give at least one gradient distribution")
    grads = list(parts.values())
    first = grads[0]
    groups: dict[str, slice] = {}
    start = 0
    for name, part in parts.items():
        if part.shape[1:] != first.shape[1:]:
            raise ShapeError(
                f"gradients of {name!r} have shape {list(part.shape)}; "
                f"[tasks, {first.shape[1]}, {first.shape[2]}] is needed"
            )
        groups[name] = slice(start, start + part.shape[0])
        start += part.shape[0]
    if len(grads) == 1:
        return first.changed(groups=groups)
    observed = scale = None
    if any(grad.observed is not None for grad in grads):
        observed = torch.cat([grad.labelled() for grad in grads])
    if any(grad.batch_loss_scale is not None for grad in grads):  # else it follows from the mask
        scales = [(grad.loss_scale(), grad) for grad in grads]
        scale = torch.cat([g.like.new_ones(g.tasks, 1, 1) if s is None else s for s, g in scales])
    # A kind that makes moments late joins late.
    kinds = [type(grad) for grad in grads if type(grad) is not GradientDistribution]
    kind = kinds[0] if kinds else GradientDistribution
    return kind.joined(parts, observed=observed, groups=groups, batch_loss_scale=scale)


def _there(way: _Way | None, lacks: str) -> _Way:
    """What makes something of a distribution, if there is such a way."""
    if way is None:
        raise StateError(
            f"this gradient distribution {lacks}; it was built from a mean and a variance alone"
        )
    return way


def mapped(
    grads: Sequence[GradientDistribution],
    first: Callable[[list[Tensor]], Tensor],
    second: Callable[[list[Tensor]], Tensor],
    **fields: Any,
) -> GradientDistribution:
    """The distribution of gradients that are made of others' gradients.

    Args:
        grads: those others.
        first: what becomes of gradients, means and errors of means, [..., tasks, B, d] each.
        second: what becomes of variances and their errors, [tasks, B, d], and of covariances,
            [tasks, B, d, d].
        fields: `observed`, `groups` and `batch_loss_scale`, where they are not those of the first.
    """

    def have(name: str) -> bool:
        return all(getattr(grad, name) is not None for grad in grads)

    def covariance() -> Tensor:
        return second([grad.covariance_matrix for grad in grads])

    def sampler(count: int, generator: torch.Generator | None) -> Tensor:
        return first([grad.sample((count,), generator=generator) for grad in grads])

    def error() -> MomentError:
        means, variances = zip(*(grad.moment_error for grad in grads), strict=True)
        return MomentError(first(list(means)), second(list(variances)))

    kept = {name: getattr(grads[0], name) for name in ("observed", "groups", "batch_loss_scale")}
    return GradientDistribution(
        first([grad.mean for grad in grads]),
        second([grad.variance for grad in grads]),
        covariance=covariance if have("covariance") else None,
        sampler=sampler if have("sampler") else None,
        error=error if have("error") else None,
        **kept | fields,
    )


def averaged(moment: Tensor, observed: Tensor) -> Tensor:
    """Over the observed examples of each task, [tasks, B, ...] to [tasks, 1, ...]."""
    seen = observed.reshape(*observed.shape, *[1] * (moment.ndim - 2))
    total = torch.where(seen, moment, 0.0).sum(1, keepdim=True)
    return total / seen.sum(1, keepdim=True).clamp(min=1)


def loss_scale(observed: Tensor, dtype: torch.dtype) -> Tensor:
    """B / n_t of each task, [tasks, 1, 1], for observed [tasks, B]; 0 where nothing is observed."""
    count = observed.sum(1, keepdim=True)[..., None].to(dtype)
    return torch.where(count > 0, observed.shape[1] / count.clamp(min=1), 0.0)
