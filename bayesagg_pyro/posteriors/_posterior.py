"""What every posterior over head weights offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from bayesagg_pyro.errors import StateError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Info", "Posterior", "Shape"]

#: What torch takes for a shape.
Shape: TypeAlias = torch.Size | list[int] | tuple[int, ...]


@dataclass(frozen=True)
class Info:
    """How a posterior came about. Tensors stay on their device: reading one may synchronise.

    Attributes:
        jitter: [tasks or 1], multiple of the precision's diagonal added to factor it (0: none).
        condition: [tasks or 1], a lower bound on the condition number of the precision, read off
            its factor's diagonal at no cost.
        square_root: [tasks or 1] bool, whether the factor was made without forming the precision.
        newton_decrement: [tasks], sqrt(aᵀ Λ⁻¹ a) for the gradient a of the negative log-posterior
            at the expansion point: the length of the Newton step in posterior standard deviations.
        gain_ratio: [tasks], actual over predicted decrease of the negative log-posterior along
            that step. 1 where the quadratic is exact, negative where the step made things worse.
        steps: [tasks], damped Newton steps taken before the last expansion.
        converged: [tasks] bool, whether the decrement fell below the tolerance; for variational
            inference, whether the bound had stopped rising before its steps became small.
        elbo: [steps], estimates of the evidence lower bound (all tasks) while it was maximised.
        divergences: [chains], trajectories after the warm-up that left the energy's level.
        acceptance: [chains], mean acceptance probability after the warm-up.
        r_hat: [tasks, P], split R-hat (Gelman et al., 2013) of the chains.
        ess: [tasks, P], effective sample size over all chains.
        log_evidence: [tasks], log p(targets) under prior and noise, where the scheme maximised it.
        prior_variance: [tasks], mean variance of the prior chosen with it, and
        prior_scale: [tasks], the factor γ by which that prior is wider than the one given.
        noise_scale: [tasks], τ chosen with it, for heads that learn their noise.
        left_out: [tasks] bool, whether a batch was left out of this prior.
    """

    jitter: Tensor
    condition: Tensor
    newton_decrement: Tensor | None = None
    gain_ratio: Tensor | None = None
    steps: Tensor | None = None
    converged: Tensor | None = None
    elbo: Tensor | None = None
    divergences: Tensor | None = None
    acceptance: Tensor | None = None
    r_hat: Tensor | None = None
    ess: Tensor | None = None
    log_evidence: Tensor | None = None
    prior_variance: Tensor | None = None
    prior_scale: Tensor | None = None
    noise_scale: Tensor | None = None
    left_out: Tensor | None = None
    square_root: Tensor | None = None

    @property
    def rounding(self) -> Tensor:
        """What rounding may cost mean and variances, relatively, [tasks or 1].

        The machine's precision times `condition`, or times its square root where the factor is a
        square root. `condition` being a lower bound, this is an estimate, mostly within a factor of
        100. A jitter of 0 says that nothing was added, not that nothing was lost.
        """
        condition = self.condition
        if self.square_root is not None:
            condition = torch.where(self.square_root, condition.sqrt(), condition)
        return torch.finfo(condition.dtype).eps * condition

    @property
    def overlong(self) -> Tensor | None:
        """Whether each task's Newton step went too far to be trusted, [tasks] bool.

        It gained less than a quarter of what its quadratic promised; the usual trust-region test.
        """
        return None if self.gain_ratio is None else self.gain_ratio < 0.25


class Posterior(TorchDistribution):
    """A distribution over the weights of a head's tasks: batch shape [tasks], event shape [P].

    The tasks are independent given the features, so nothing couples them. Subclasses give `mean`
    and `variance` ([tasks, P]), `sample` and, where it exists, `log_prob`.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (torch's own convention)
    support = constraints.real_vector
    has_rsample = True
    info: Info | None = None
    #: Linear outputs of one task (classes of a Categorical head): P = outputs_per_task · D.
    outputs_per_task: int = 1
    _kinds: ClassVar[dict[str, type[Posterior]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Posterior._kinds[cls.__name__] = cls

    def __init__(self, tasks: int, size: int) -> None:
        super().__init__(torch.Size([tasks]), torch.Size([size]), validate_args=False)

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return int(self.batch_shape[0])

    @property
    def weight_mean(self) -> Tensor:
        """Mean as a weight matrix, one row per output, [tasks · outputs_per_task, D]."""
        return self.mean.reshape(self.tasks * self.outputs_per_task, -1)

    def for_outputs(self, outputs_per_task: int) -> Self:
        """Say how many outputs the weights of one task belong to; returns itself."""
        self.outputs_per_task = outputs_per_task
        return self

    def part(self, rows: slice) -> Posterior:
        """The distribution of some of the tasks."""
        own = {
            name: tensor[rows] if len(tensor) == self.tasks else tensor
            for name, tensor in self.tensors().items()
        }
        build: Any = type(self)
        made: Posterior = build(**own)
        return made.for_outputs(self.outputs_per_task)

    def sample(
        self,
        sample_shape: Shape = (),
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw weights, [*sample_shape, tasks, P] (torch's global generator if none is given)."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator=generator)

    def rsample(
        self,
        sample_shape: Shape = (),
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """As `sample`, differentiable where the distribution is."""
        raise NotImplementedError

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Posterior:
        """The same distribution with its tensors elsewhere or in another precision."""
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that the constructor takes, by argument name."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What `from_state_dict` needs to rebuild this distribution to the bit."""
        return {
            "kind": type(self).__name__,
            "outputs_per_task": self.outputs_per_task,
            **self.tensors(),
        }

    @staticmethod
    def from_state_dict(state: dict[str, Any], device: torch.device | None = None) -> Posterior:
        """Rebuild a posterior of any class that has been defined, of copies of the tensors.

        Raises:
            StateError: if its class is unknown here.
        """
        arguments = dict(state)
        kind, outputs = arguments.pop("kind"), arguments.pop("outputs_per_task")
        if kind not in Posterior._kinds:
            raise StateError(
                f"the saved posterior is of class {kind!r}, which is not defined here; "
                "import the module that defines it first"
            )
        for name, value in arguments.items():
            arguments[name] = value.to(device, copy=True) if isinstance(value, Tensor) else value
        rebuilt = Posterior._kinds[kind](**arguments)
        return rebuilt.for_outputs(outputs)
