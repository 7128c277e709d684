"""What every posterior over head weights offers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from copy import copy
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.distributions import constraints

from bayesagg_pyro._torch_distribution import TorchDistribution
from bayesagg_pyro.errors import ShapeError, UnsupportedError
from bayesagg_pyro.posteriors._info import Info
from bayesagg_pyro.posteriors._saved import rebuilt, state_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from bayesagg_pyro.posteriors._gaussian import Gaussian

#: What torch takes for a shape.
Shape: TypeAlias = torch.Size | list[int] | tuple[int, ...]


class Posterior(TorchDistribution):
    """A distribution over the weights of a head's tasks: batch shape [tasks], event shape [P].

    The tasks are independent given the features, so nothing couples them. Subclasses give `mean`
    and `variance` ([tasks, P]), `sample` and, where it exists, `log_prob`; those that are to be
    moved, cut or saved name their tensors in `arguments`.

    Args:
        tasks: number of tasks.
        size: P.
        outputs_per_task: linear outputs of one task (classes of a Categorical head), D weights
            each: P = outputs_per_task · D.
        info: how it came about, if that is known.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector
    has_rsample = True
    info: Info | None = None
    _kinds: ClassVar[dict[str, type[Posterior]]] = {}
    #: Tensors that the constructor takes, which are attributes (or None), tasks along the first
    #: axis where there is one for each.
    arguments: ClassVar[tuple[str, ...]] = ()
    #: Those of them that it can make of the others, such as factors.
    derived: ClassVar[tuple[str, ...]] = ()
    #: Whole numbers that it takes besides, likewise.
    numbers: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Posterior._kinds[_kind(cls)] = cls

    def __init__(
        self, tasks: int, size: int, *, outputs_per_task: int = 1, info: Info | None = None
    ) -> None:
        super().__init__(torch.Size([tasks]), torch.Size([size]), validate_args=False)
        self.outputs_per_task = outputs_per_task
        if info is not None:
            self.info = info

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return int(self.batch_shape[0])

    @property
    def weight_mean(self) -> Tensor:
        """Mean as a weight matrix, one row per output, [tasks · outputs_per_task, D]."""
        return self.mean.reshape(self.tasks * self.outputs_per_task, -1)

    def replace(self, *, outputs_per_task: int | None = None, info: Info | None = None) -> Self:
        """The same distribution with another meaning of its weights, or more known about it."""
        if info is None and outputs_per_task in (None, self.outputs_per_task):
            return self
        made = copy(self)  # with all that was derived from its tensors
        if outputs_per_task is not None:
            made.outputs_per_task = outputs_per_task
        if info is not None:
            made.info = info
        return made

    def with_info(self, **known: Tensor | None) -> Self:
        """The same distribution with more known of how it came about, by the names in `Info`."""
        info, told = self.info or Info.unknown(self.mean), dict[str, Any](known)
        return self.replace(info=dataclasses.replace(info, **told))

    def part(self, rows: slice) -> Self:
        """The distribution of some of the tasks."""
        own = {
            name: tensor[rows] if len(tensor) == self.tasks else tensor
            for name, tensor in self.tensors().items()
        }
        return self._rebuilt(own, self._info and self._info.part(rows, self.tasks))

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
        """Draw weights as `sample` does, differentiable where the distribution is."""
        raise NotImplementedError

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same distribution with its tensors elsewhere or in another precision."""
        own, moved = self.tensors(), {}
        for name, tensor in own.items():
            moved[name] = tensor.to(device=device, dtype=dtype)
        if all(map(is_, moved.values(), own.values())):
            return self
        return self._rebuilt(moved, self._info and self._info.to(device, dtype))

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """Itself for its own batch shape, as Pyro's plates ask for.

        Raises:
            UnsupportedError: for another batch shape.
        """
        if torch.Size(batch_shape) == self.batch_shape:
            return self
        raise UnsupportedError(f"a {type(self).__name__} cannot be expanded to {batch_shape}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(tasks={self.tasks}, weights={self.event_shape[-1]})"

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that the constructor takes, by argument name."""
        if not self.arguments:
            raise NotImplementedError
        found = {name: getattr(self, name) for name in self.arguments}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def _from_mean(self, value: Tensor) -> Tensor:
        """Weights [..., tasks, P] less the mean; [P] and [..., 1, P] stand for all tasks.

        Raises:
            ShapeError: for anything else.
        """
        tasks = value.shape[-2] if value.ndim > 1 else 1
        fits = tasks == self.tasks or 1 in (tasks, self.tasks)
        if value.shape[-1:] != self.event_shape or not fits:
            raise ShapeError(
                f"weights must have shape [..., {self.tasks}, {self.event_shape[0]}] (tasks, "
                f"weights of one task), not {list(value.shape)}"
            )
        return value - self.mean

    @property
    def _info(self) -> Info | None:
        """`info` where it is known already; nothing is computed."""
        return vars(self).get("info")

    def _rebuilt(self, tensors: dict[str, Tensor], info: Info | None) -> Self:
        """A distribution of this class made of other tensors, with the same settings."""
        build: Any = type(self)
        made: Self = build(**tensors, **{name: getattr(self, name) for name in self.numbers})
        return made.replace(outputs_per_task=self.outputs_per_task, info=info)

    def _as_dense(self, dense: Gaussian) -> Gaussian:
        """This distribution as a Gaussian, with what is known about it."""
        own = dense.info
        info = self._info and dataclasses.replace(
            self._info, jitter=own.jitter, condition=own.condition
        )
        return dense.replace(outputs_per_task=self.outputs_per_task, info=info)

    def sound(self) -> bool:
        """Whether this is a distribution: finite and, of a kind that has a precision, definite."""
        return all(bool(tensor.isfinite().all()) for tensor in self.tensors().values())

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors under plain names, which `from_state_dict` rebuilds to the bit.

        They are `<kind>.<argument of the constructor>`, `<kind>.outputs_per_task` and
        `<kind>.info.<field>`; a kind is a class with its module, of this package
        `bayesagg_pyro.<class>`.
        """
        return state_of(_kind(type(self)), self)

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
        return rebuilt(Posterior._kinds, state, device)


def _kind(cls: type[Posterior]) -> str:
    """What a class is called in saved states."""
    inside = cls.__module__.startswith("bayesagg_pyro.")
    return f"bayesagg_pyro.{cls.__name__}" if inside else f"{cls.__module__}.{cls.__qualname__}"
