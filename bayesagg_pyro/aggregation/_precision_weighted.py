"""Tasks weigh by the precision of their gradients, as in the paper (eqs nll_solution_*).

Achituve et al. (2024), https://proceedings.mlr.press/v235/achituve24a.html.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from bayesagg_pyro.aggregation._aggregation import Aggregated, Aggregation, from_weights
from bayesagg_pyro.aggregation._bounds import cap_ratio, check_bounds, raise_floor
from bayesagg_pyro.aggregation._full_covariance import weighed_by_matrices
from bayesagg_pyro.aggregation._lengths import lengthening
from bayesagg_pyro.aggregation._powers import Power, checked
from bayesagg_pyro.aggregation._single_labels import SingleLabels
from bayesagg_pyro.errors import SettingError, TaskError
from bayesagg_pyro.gradients import GradientDistribution

Resolution: TypeAlias = Literal["example", "dimension", "task"]

#: The logit of a task without variance: beyond any other, and finite in every floating type.
_HUGE = 3e4


class PrecisionWeighted(Aggregation):
    """g = Σ_t α_t μ_t with α_t ∝ λ_t^s, λ_t = 1 / Var[g_t].

    By default one weight for each task and batch, with s = 0.5: the power at which the units of a
    task's loss do not matter, since a loss times c has a gradient times c and a weight over c.
    Weights per example, as in the paper (`PrecisionWeighted.paper`), go with the examples' own
    residuals, so that an example teaches little as soon as one of its tasks fits.

    Weights sum to the share of the tasks that have a target: per task and per dimension that is of
    the tasks of the batch, α = (T_observed / T) softmax_t(−s log Var), per example of the tasks of
    that example. Where variances are equal, or s = 0, each task with a target has 1 / T, whatever
    the pattern of missing targets, which is linear scalarisation.
    Where a task's variance is 0, the tasks without variance share the weight and the others get
    none. With one common power the direction scales as the losses do; with powers that differ it
    depends on the units of the targets, so standardise them. The weight w that an example was given
    scales its gradient, so its α goes with w^(−2s): s = 0.5 is where it cancels; 0 is as no target.

    Weights that favour short gradients make the update shorter than a mean of the losses does: with
    `keep_length` those of the tasks that are compared are all multiplied by one factor, so that
    these tasks' part of the update is as long as with 1 / T each, in root mean square over the
    posterior: E‖Σ_t α_t g_t‖² = E‖Σ_t g_t / T‖², of the gradients of mean losses by the features of
    the whole batch. Second moments of an optimiser, made in the warm-up, then fit what follows.

    Args:
        power: s in [0, 1]: one for all tasks, one per task, or {head name: s}. Tasks of power 0
            take no part in the comparison: each has 1 / T, whatever its variance, and the others
            share the rest. Left out, 0.5, or 1 with full covariances.
        covariance: "diagonal", or "full": g = (Σ Λ_t)⁻¹ Σ Λ_t μ_t with Λ_t = Cov[g_t]⁻¹, whose cost
            is [tasks, B, d, d]; for power 1 and without the resolution "task" alone.
        resolution: at what grain the variance is taken: averaged over batch and dimensions
            ("task"), over the batch ("dimension"), or per example and dimension ("example"). Left
            out, "task", or "example" with full covariances.
        floor: raise variances to this multiple of the median over the tasks, at the grain above.
        max_ratio: no task's weight exceeds another's by more than this factor, among those that
            are compared.
        keep_length: whether the update is as long as that of equal weights, rather than the sum of
            weights as large; for the resolution "task" alone.

    Raises:
        DtypeError: if a power is not a number.
        SettingError: if a power is outside [0, 1], or settings do not fit each other.

    Warns:
        UserWarning: once, if weights are per example and (nearly) no example has two targets.
    """

    def __init__(
        self,
        power: Power | EllipsisType = ...,
        *,
        covariance: Literal["diagonal", "full"] = "diagonal",
        resolution: Resolution | EllipsisType = ...,
        floor: float | None = None,
        max_ratio: float | None = None,
        keep_length: bool = False,
    ) -> None:
        if isinstance(power, EllipsisType):
            power = 1.0 if covariance == "full" else 0.5
        if isinstance(resolution, EllipsisType):
            resolution = "example" if covariance == "full" else "task"
        powers = checked(power)
        if covariance not in ("diagonal", "full"):
            raise SettingError(f'covariance must be "diagonal" or "full", not {covariance!r}')
        if resolution not in get_args(Resolution):
            raise SettingError(
                f'resolution must be "example", "dimension" or "task", not {resolution!r}'
            )
        if covariance == "full":
            if any(value != 1 for value in powers):
                raise SettingError("covariance='full' is defined for power=1 only")
            if resolution == "task":
                raise SettingError("covariance='full' has no resolution 'task'")
            if floor is not None or max_ratio is not None:
                raise SettingError(
                    "covariance='full' has matrices for weights, which floor and max_ratio do not "
                    "bound; leave them out"
                )
        if keep_length and resolution != "task":
            raise SettingError(
                f"keep_length is for one weight per task: leave resolution={resolution!r} out"
            )
        check_bounds(floor, max_ratio)
        self.power = power
        self.covariance = covariance
        self.resolution = resolution
        self.floor = floor
        self.max_ratio = max_ratio
        self.keep_length = keep_length
        self._single_labels = SingleLabels()

    @classmethod
    def paper(
        cls, power: Power = 1.0, *, covariance: Literal["diagonal", "full"] = "diagonal"
    ) -> PrecisionWeighted:
        """The paper's rule: weights per example and dimension, eqs nll_solution_*.

        Its update is the mean over tasks:
        `BayesAgg(..., PrecisionWeighted.paper(), reduction="mean")`.

        Args:
            power: s; the paper derives 1 and uses 0.3 to 0.95 for regression, 5e-4 to 0.1 for
                classification.
            covariance: as for the class.
        """
        return cls(power, covariance=covariance, resolution="example")

    def check_heads(self, tasks: Mapping[str, int]) -> None:
        """Refuse powers that do not match heads of so many tasks."""
        _per_task(self.power, tasks, sum(tasks.values()))

    @property
    def per_example(self) -> bool:
        """Whether each example has weights of its own: for the resolution "example"."""
        return self.resolution == "example"

    @property
    def variance_per_example(self) -> bool:
        """For the resolution "example", and for full covariances."""
        return self.resolution == "example" or self.covariance == "full"

    def reads_variance(self, head: str) -> bool:
        """False for heads of power 0."""
        power = self.power.get(head) if isinstance(self.power, Mapping) else self.power
        return power != 0

    def aggregate(self, grad: GradientDistribution) -> Aggregated:
        """Direction and weights.

        Raises:
            TaskError: if the powers do not match the tasks or the names of their heads.
            NumericalError: if a full covariance cannot be factored.
        """
        heads = {name: rows.stop - rows.start for name, rows in grad.groups.items()}
        powers = _per_task(self.power, heads, grad.shape[0])
        return self._weighed([grad], [powers], len(powers))[0]

    def aggregate_each(
        self, grads: Sequence[GradientDistribution], heads: Mapping[str, int]
    ) -> list[Aggregated]:
        """As for joint rows, without making them.

        Weights per task are normalised over the tasks of all tensors, weights per dimension over
        those of tensors of one width. Where widths differ, a task's variance is the sum over its
        dimensions.
        """
        if self.covariance == "full":
            return super().aggregate_each(grads, heads)
        each = iter(_per_task(self.power, heads, sum(heads.values())))
        own = {name: [next(each) for _ in range(size)] for name, size in heads.items()}
        powers = [[power for name in grad.groups for power in own[name]] for grad in grads]
        return self._weighed(grads, powers, sum(heads.values()))

    def _weighed(
        self, grads: Sequence[GradientDistribution], powers: Sequence[list[float]], tasks: int
    ) -> list[Aggregated]:
        """Results for one or several tensors.

        Args:
            grads: of each tensor.
            powers: of the tasks of each.
            tasks: how many there are in all.
        """
        holes = len(grads) > 1 or grads[0].observed is not None
        if self.resolution == "example" and holes and any(map(any, powers)):
            self._single_labels.look([grad.labelled() for grad in grads])
        if self.covariance == "full":  # of one tensor
            return [weighed_by_matrices(grads[0], self.resolution == "dimension")]
        together: dict[int, list[int]] = {}  # which tensors' tasks share one sum of weights
        for i, grad in enumerate(grads):
            key = {"example": i, "dimension": grad.shape[2], "task": 0}[self.resolution]
            together.setdefault(key, []).append(i)
        found: dict[int, Tensor] = {}
        for some in together.values():
            joint = [power for i in some for power in powers[i]]
            found |= zip(some, self._weights([grads[i] for i in some], joint, tasks), strict=True)
        return [from_weights(found[i], grad) for i, grad in enumerate(grads)]

    def _weights(
        self, grads: Sequence[GradientDistribution], powers: list[float], tasks: int
    ) -> list[Tensor]:
        """Weights of the tasks of one or several tensors, which share one sum.

        Args:
            grads: of each tensor.
            powers: of their tasks.
            tasks: how many there are in all, of which these have their share.
        """
        if not any(powers):  # no variance is looked at
            return [grad.like.new_full((grad.shape[0], 1, 1), 1 / tasks) for grad in grads]
        variances, widths, masked = [], [], False
        task = self.resolution == "task"
        for grad in grads:
            variance = grad.variance if self.resolution == "example" else grad.averaged()
            variances.append(variance.mean(2, keepdim=True) if task else variance)
            widths.append(grad.shape[2])
            masked = masked or grad.observed is not None
        if task and min(widths) < max(widths):
            variances = [each * width for each, width in zip(variances, widths, strict=True)]
        variance = torch.cat(variances)
        seen = None
        if masked:
            # A weight for a task must not depend on which others have a target for the same
            # example: where examples have one each, it would be constant.
            labelled = [grad.labelled() for grad in grads]
            if self.resolution != "example":
                labelled = [each.any(1, keepdim=True) for each in labelled]
            seen = torch.cat(labelled)[..., None]
        power: Tensor | float = float(powers[0])
        compared = None
        if any(one != power for one in powers):
            power = grads[0].like.new_tensor(powers).reshape(-1, 1, 1)
            compared = power != 0
            seen = compared.expand(-1, variance.shape[1], 1) if seen is None else seen & compared
        if self.floor is not None:
            variance = raise_floor(variance, self.floor, seen)
        weights = _softmax(variance, power, seen, self.max_ratio)
        if len(variance) < tasks:
            weights = weights * (len(variance) / tasks)
        sizes = list(map(len, variances))
        if self.keep_length and sum(map(bool, powers)) > 1:  # one alone has 1 / T anyway
            weights = weights * lengthening(grads, weights.split(sizes), compared, tasks)
        if compared is not None:
            weights = torch.where(compared, weights, 1 / tasks)
        return list(weights.split(sizes))

    def __repr__(self) -> str:
        given = {"floor": self.floor, "max_ratio": self.max_ratio}
        bounds = "".join(f", {name}={value}" for name, value in given.items() if value is not None)
        bounds += ", keep_length=True" if self.keep_length else ""
        return (
            f"PrecisionWeighted(power={self.power}, covariance={self.covariance!r}, "
            f"resolution={self.resolution!r}{bounds})"
        )


def _per_task(power: Power, groups: Mapping[str, int], tasks: int) -> list[float]:
    """One power for each task, heads in order.

    Raises:
        TaskError: if names or numbers do not match.
    """
    if isinstance(power, Mapping):
        missing = [name for name in groups if name not in power]
        extra = [name for name in power if name not in groups]
        if missing or extra or not groups:
            raise TaskError(
                f"powers are given for {sorted(power)}, the gradients belong to "
                f"{sorted(groups) or 'unnamed tasks'}: missing {missing}, unknown {extra}; "
                "join heads with gradients.cat({name: grad, ...})"
            )
        return [power[name] for name, size in groups.items() for _ in range(size)]
    if isinstance(power, Sequence):
        if len(power) != tasks:
            raise TaskError(
                f"{len(power)} powers are given for {tasks} tasks: give one, or one for each"
            )
        return list(power)
    return [power] * tasks


def _softmax(
    variance: Tensor, power: Tensor | float, seen: Tensor | None, max_ratio: float | None
) -> Tensor:
    """α = softmax over tasks of −s log Var; only logarithms survive variances of 1e±30.

    Args:
        variance: [tasks, B or 1, d or 1].
        power: s, or [tasks, 1, 1].
        seen: [tasks, B or 1, 1] bool, which tasks take part; None when all do. Weights sum to their
            share of all tasks.
        max_ratio: see `cap_ratio`.
    """
    # A task without variance has a logit of infinity; any huge number that can be subtracted from
    # itself leaves the weight to such tasks alone, in equal parts.
    logits = variance.log().mul_(-power).clamp_(max=_HUGE)
    if seen is not None:
        logits = torch.where(seen, logits, -torch.inf)
    weights = (logits if max_ratio is None else cap_ratio(logits, max_ratio)).softmax(0)
    if seen is None:
        return weights
    # Where no task takes part there is 0/0, which is masked with the rest.
    return torch.where(seen, weights, 0.0) * seen.to(weights.dtype).mean(0)
