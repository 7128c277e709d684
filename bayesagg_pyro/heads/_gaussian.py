"""Regression: y = hᵀ w + ε, ε ~ N(0, τ²)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyro.distributions as dist
from torch import Tensor

from bayesagg_pyro._settings import positive_each
from bayesagg_pyro.errors import SettingError, ShapeError
from bayesagg_pyro.heads._standardising import Standardising

if TYPE_CHECKING:
    from typing_extensions import Self


class Gaussian(Standardising):
    """T regression tasks with Gaussian noise.

    The noise scale enters the posterior and the predictive, and through the posterior the moments
    of the gradient; all read the one buffer `noise_scale`, so all see a learned value at once. A
    task that fits well would so weigh ever more; left out, the scale stays 1 where it weighs, and
    the data choose it where it predicts. `inference.IntegratedNoise` integrates over it instead.
    Without a noise scale of the user's, an engine also chooses the units in which 1 is the noise:
    those of standardised targets, whatever the user's.

    Args:
        in_features: d, the number of features.
        tasks: T, the number of tasks.
        bias: whether each task has an intercept. The paper's regression heads have none.
        noise_scale: τ, the standard deviation of the noise in units of the targets; one number, or
            one per task. "learned" starts each task at 1 and takes the value of highest marginal
            likelihood whenever the prior is updated. None takes 1 as the unit of weights and prior,
            and predicts N(hᵀm, τ² (1 + hᵀSh)) with the τ that cross-validation finds in an epoch's
            data (`posterior.info.noise_scale`); with 1 in posteriors that are not made of those, as
            under `PreviousBatch`, or of streamed sums other than those of `Conjugate`.
        prior_variance: variance of the default prior of `model`.
        missing: "nan" reads a NaN target as not observed.
        standardise: let an engine bring targets to mean 0 and standard deviation 1, see
            `Standardising`; never where a noise scale is given, which is in units of the targets.
        name: prefix of the Pyro sites.

    Raises:
        SettingError: if a noise scale is not positive and finite, or a size is not positive.
        ShapeError: if there is neither one noise scale nor one per task.
    """

    per_task: ClassVar[tuple[str, ...]] = ("noise_scale", *Standardising.per_task)
    exact: ClassVar[Mapping[str, float]] = {"noise_scale": 1.0, **Standardising.exact}
    noise_scale: Tensor  #: τ in the head's units, [] or [tasks], float64
    noise_source: Literal["given", "learned", "estimated"]  #: where τ comes from

    def __init__(
        self,
        in_features: int,
        tasks: int = 1,
        *,
        bias: bool = False,
        noise_scale: float | Sequence[float] | Tensor | Literal["learned"] | None = None,
        prior_variance: float = 1.0,
        missing: Literal["error", "nan"] = "error",
        standardise: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(
            in_features, tasks, bias=bias, prior_variance=prior_variance, missing=missing, name=name
        )
        own = self.is_still(Gaussian, "outputs", "likelihood", "loss")
        self.choose_units(standardise and noise_scale is None and own)
        self.noise_source = "given"
        if noise_scale is None:
            self.noise_source, noise_scale = "estimated", 1.0
        elif isinstance(noise_scale, str):
            if noise_scale != "learned":
                raise SettingError(
                    f'noise_scale must be positive numbers or "learned", not {noise_scale!r}'
                )
            self.noise_source = "learned"
            noise_scale = [1.0] * tasks
        self.register_buffer("noise_scale", positive_each("noise_scale", noise_scale, tasks))

    def learn_noise(self) -> Self:
        """Let the data choose τ, as `noise_scale="learned"` does; returns itself.

        Each task has a τ of its own from then on and starts at what it was. For before the engine
        is made.
        """
        self.noise_source = "learned"
        self.keep_units()
        self.noise_scale = self.noise_scale.expand(self.tasks).clone()
        return self

    def set_noise_scale(self, noise_scale: float | Sequence[float] | Tensor) -> None:
        """Replace τ, in place; one number, or one per task for a head made with one per task.

        Args:
            noise_scale: in units of the targets, also where the head has chosen others.

        Raises:
            SettingError, ShapeError: as for the constructor.
            SettingError: for a head with one τ for all tasks that has chosen a unit for each.
        """
        scale = positive_each("noise_scale", noise_scale, self.tasks)
        if scale.ndim > self.noise_scale.ndim:
            raise ShapeError(
                f"head {self.site!r} has one noise scale for all its tasks; make it with "
                f"noise_scale=[...] of {self.tasks} numbers to give each its own"
            )
        if (units := self.units) is not None:
            scale = scale.to(units.scale) / units.scale
            if self.noise_scale.ndim == 0:
                if (scale != scale[0]).any():
                    raise SettingError(
                        f"head {self.site!r} has chosen a unit for each of its tasks and has one "
                        "noise scale for all; make it with the noise_scale, or call this before "
                        "the first batch"
                    )
                scale = scale[0]
        self.noise_scale.copy_(scale)
        self.keep_units()
        self.noise_source = "learned" if self.noise_source == "learned" else "given"

    def with_noise_scale(self, noise_scale: Tensor) -> Gaussian:
        """This head with another τ: parameters are shared, nothing of the head itself changes."""
        view = copy(self)
        vars(view)["_buffers"] = {**self._buffers, "noise_scale": noise_scale}
        return view

    def likelihood(self, outputs: Tensor) -> Any:
        """Normal(f, τ), batch shape [..., B, tasks]."""
        return dist.Normal(outputs, self.noise_scale.to(outputs.dtype))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(y − f)², [..., B, tasks]: the paper's loss, the same for every noise scale."""
        return (targets - outputs).square()

    def standard_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(y − f)²."""
        return (targets - outputs).square()

    def loss_derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """2 (u − y)."""
        return 2 * (outputs - targets)

    def nll_derivatives(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(u − y) / τ² and 1 / τ²."""
        precision = self.noise_scale.to(outputs.dtype).square().reciprocal()
        slope = (outputs - targets) * precision
        curvature = precision.expand_as(slope)
        return self.weighed(slope, targets), self.weighed(curvature, targets)
