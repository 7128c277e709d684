"""What every posterior over head weights offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from bayesagg_pyro._state import count, finite, named, number, part, saved
from bayesagg_pyro.errors import BayesAggError, NumericalError, StateError, UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import Self

    from bayesagg_pyro.posteriors._gaussian import Gaussian

__all__ = ["Info", "Posterior", "Shape"]

#: What torch takes for a shape.
Shape: TypeAlias = torch.Size | list[int] | tuple[int, ...]
#: What `Info` holds of a whole run rather than of each task, and what of each weight.
_OF_ALL_TASKS = ("elbo", "divergences", "acceptance")
_OF_WEIGHTS = ("r_hat", "ess")


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
        """What rounding may cost, [tasks or 1]: of deviations, and of how far data move the mean.

        The machine's precision times `condition`, or times its square root where the factor is a
        square root. `condition` being a lower bound, this is an estimate, mostly within a factor of
        100. A jitter of 0 says that nothing was added, not that nothing was lost; any other that
        some combination of weights is as wide as the jitter makes it: 1.
        """
        condition = self.condition
        if self.square_root is not None:
            condition = torch.where(self.square_root, condition.sqrt(), condition)
        lost = torch.finfo(condition.dtype).eps * condition
        return torch.where(self.jitter > 0, lost.clamp(min=1), lost)

    @property
    def overlong(self) -> Tensor | None:
        """Whether each task's Newton step went too far to be trusted, [tasks] bool.

        It gained less than a quarter of what its quadratic promised; the usual trust-region test.
        """
        return None if self.gain_ratio is None else self.gain_ratio < 0.25

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Info:
        """The same elsewhere; floating numbers in another precision."""
        return replace(
            self,
            **{
                name: value.to(device=device, dtype=dtype if value.is_floating_point() else None)
                for name, value in self._known().items()
            },
        )

    def part(self, rows: slice, tasks: int) -> Info:
        """Of some of so many tasks; what is of all together stays."""
        each = {name: value for name, value in self._known().items() if name not in _OF_ALL_TASKS}
        return replace(
            self, **{name: value[rows] for name, value in each.items() if len(value) == tasks}
        )

    def fits(self, tasks: int, size: int, chains: int | None = None) -> bool:
        """Whether all shapes are those of a posterior over so many tasks and weights."""
        return all(
            value.ndim == 1 and (name == "elbo" or chains in (None, len(value)))
            if name in _OF_ALL_TASKS
            else value.shape == (tasks, size)
            if name in _OF_WEIGHTS
            else value.shape in ((1,), (tasks,))
            for name, value in self._known().items()
        )

    def _known(self) -> dict[str, Tensor]:
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}


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
    #: Arguments of the constructor that it can make of the others, such as factors.
    derived: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Posterior._kinds[_kind(cls)] = cls

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

    def part(self, rows: slice) -> Self:
        """The distribution of some of the tasks."""
        own = {
            name: tensor[rows] if len(tensor) == self.tasks else tensor
            for name, tensor in self.tensors().items()
        }
        made = self._rebuilt(own)
        if self._info is not None:
            made.info = self._info.part(rows, self.tasks)
        return made

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
    ) -> Self:
        """The same distribution with its tensors elsewhere or in another precision."""
        own = self.tensors()
        moved = {name: tensor.to(device=device, dtype=dtype) for name, tensor in own.items()}
        if all(moved[name] is tensor for name, tensor in own.items()):
            return self
        made = self._rebuilt(moved)
        if self._info is not None:
            made.info = self._info.to(device, dtype)
        return made

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """Itself for its own batch shape, as Pyro's plates ask for.

        Raises:
            UnsupportedError: for another batch shape.
        """
        if torch.Size(batch_shape) == self.batch_shape:
            return self
        raise UnsupportedError(f"a {type(self).__name__} cannot be expanded to {batch_shape}")

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that the constructor takes, by argument name."""
        raise NotImplementedError

    @property
    def _info(self) -> Info | None:
        """`info` where it is known already; nothing is computed."""
        return vars(self).get("info")

    def _rebuilt(self, tensors: dict[str, Tensor]) -> Self:
        """One like this of other tensors, with all that it carries beside them but `info`."""
        build: Any = type(self)
        made: Self = build(**tensors)
        return made.for_outputs(self.outputs_per_task)

    def _as_dense(self, dense: Gaussian) -> Gaussian:
        """This distribution as a Gaussian, with what is known about it."""
        if self._info is not None:
            own = dense.info
            dense.info = replace(self._info, jitter=own.jitter, condition=own.condition)
        return dense.for_outputs(self.outputs_per_task)

    def sound(self) -> bool:
        """Whether this is a distribution: finite and, of a kind that has a precision, definite."""
        return all(bool(tensor.isfinite().all()) for tensor in self.tensors().values())

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors under plain names, which `from_state_dict` rebuilds to the bit.

        They are `<kind>.<argument of the constructor>`, `<kind>.outputs_per_task` and
        `<kind>.info.<field>`.
        """
        state = dict(_laid_out(name, tensor) for name, tensor in self.tensors().items())
        state["outputs_per_task"] = number(self.outputs_per_task)
        for field in fields(Info):
            value = None if self.info is None else getattr(self.info, field.name)
            if value is not None:
                state[f"info.{field.name}"] = saved(value)
        return named(_kind(type(self)), state)

    @staticmethod
    def from_state_dict(
        state: Mapping[str, Tensor], device: torch.device | None = None
    ) -> Posterior:
        """Rebuild a posterior of any class that has been defined, of copies of the tensors.

        Factors that do not belong to their matrices, as after averaging two states, are made anew.

        Raises:
            StateError: if its class is unknown here, or tensors are missing or misfit.
            NonFiniteError: if a tensor is not finite.
            NumericalError: if a precision is not positive definite.
        """
        kinds = [kind for kind in Posterior._kinds if part(state, kind)]
        if len(kinds) != 1:
            raise StateError(
                f"a saved posterior must be of one class that is defined here, but holds "
                f"{sorted(state)}; import the module that defines it first"
            )
        cls, own = Posterior._kinds[kinds[0]], part(state, kinds[0])
        told = {name: value.to(device, copy=True) for name, value in part(own, "info").items()}
        outputs = count(own, "outputs_per_task")
        given = {k: v for k, v in own.items() if k != "outputs_per_task" and "." not in k}
        given = dict(_by_columns(name, value) for name, value in given.items())
        finite(f"a posterior of class {kinds[0]}", given, [k for k in given if k != "chains"])
        arguments = {name: value.to(device).clone() for name, value in given.items()}
        try:
            rebuilt = cls._from_tensors(arguments)
            if not rebuilt.sound():
                arguments = {k: v for k, v in arguments.items() if k not in cls.derived}
                rebuilt, told = cls._from_tensors(arguments), {}
            sound = rebuilt.sound()
        except BayesAggError:
            raise
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            shapes = {name: list(value.shape) for name, value in given.items()}
            raise StateError(
                f"a saved {kinds[0]} posterior holds {shapes}, which do not make one: {error}"
            ) from error
        if not sound:
            raise NumericalError(
                f"a saved {kinds[0]} posterior is no distribution: its precision is not positive "
                "definite; load an earlier state"
            )
        if "jitter" in given and rebuilt.info is not None:
            _check_info(kinds[0], rebuilt, rebuilt.info)
        if told:
            rebuilt.info = _info(kinds[0], rebuilt, told)
        return rebuilt.for_outputs(outputs)

    @classmethod
    def _from_tensors(cls, tensors: dict[str, Tensor]) -> Posterior:
        build: Any = cls
        made: Posterior = build(**tensors)
        return made


def _info(kind: str, posterior: Posterior, told: dict[str, Tensor]) -> Info:
    """What was saved of how it came about.

    Raises:
        StateError: if that is of another posterior.
    """
    known = {field.name for field in fields(Info)}
    try:
        info = Info(**{name: value for name, value in told.items() if name in known})
    except TypeError as error:
        raise StateError(f"a saved {kind} posterior's info is not whole: {error}") from error
    _check_info(kind, posterior, info)
    return info


def _check_info(kind: str, posterior: Posterior, info: Info) -> None:
    chains = getattr(posterior, "chains", None)
    if not info.fits(posterior.tasks, posterior.event_shape[0], chains):
        shapes = {name: list(value.shape) for name, value in info._known().items()}
        raise StateError(
            f"a saved {kind} posterior is over {posterior.tasks} tasks of "
            f"{posterior.event_shape[0]} weights, its info {shapes} is not"
        )


def _kind(cls: type[Posterior]) -> str:
    """What a class is called in saved states: classes of users with their module."""
    inside = cls.__module__.startswith("bayesagg_pyro.")
    return cls.__name__ if inside else f"{cls.__module__}.{cls.__qualname__}"


#: Ends the names of matrices that are saved by columns, as LAPACK makes its factors: products of
#: the same numbers in another order round otherwise, and resuming is to be exact.
_COLUMNS = "_by_columns"


def _laid_out(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    columns = tensor.ndim > 1 and not tensor.is_contiguous() and tensor.mT.is_contiguous()
    return (f"{name}{_COLUMNS}", saved(tensor.mT)) if columns else (name, saved(tensor))


def _by_columns(name: str, value: Tensor) -> tuple[str, Tensor]:
    if not name.endswith(_COLUMNS) or value.ndim < 2:
        return name, value
    return name.removesuffix(_COLUMNS), value.mT
