"""Sums with exponential forgetting: a full-data posterior that keeps up within the epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._settings import integers, real
from bayesagg_pyro._state import count, number
from bayesagg_pyro.errors import SettingError, StateError
from bayesagg_pyro.inference import Statistics, Storage
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.priors._data import Base, DataPolicy, Variance
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import CHECKED, Validity

#: Half-life in epochs, where none is given.
_EPOCHS: Final = 0.25


class Running(DataPolicy):
    """Posterior of all training batches so far, in which older batches fade.

    The sums of a batch count half after `half_life` more examples, so about 1.44 · half_life
    examples count in all: 0.7 training sets weigh as `FullData` does, less follows faster. A step's
    prior holds every batch before it and, but for what is left of the last epoch, not its own.

    It needs a scheme with sums: Conjugate and IntegratedNoise, or TaylorGGN and Laplace with
    streamed expansions, each at the weights of its moment. For Gaussian heads everything is device
    code of static shape on sums updated in place; with `refresh=1` a captured step includes it.

    Args:
        half_life: in training examples with a target of the head that counts. None for a quarter
            of those between the last two updates of the prior, an epoch; nothing fades before the
            first update.
        refresh: make the prior anew every so many batches.
        variance: γ of the base prior, which does not fade.
        base: makes another base prior, see `DataPolicy`.
        temperature: divides the data's log-likelihood; above 1 the prior is wider.
        leave_batch_out: subtract what is left of the batch from one epoch ago (2^(−N/half_life) of
            it, N being the examples between the last two updates) at its present features.

    Raises:
        SettingError: if half_life or refresh is not positive; as `FullData` else.
    """

    def __init__(
        self,
        half_life: float | None = None,
        *,
        refresh: int = 1,
        variance: Variance = 1.0,
        base: Base | None = None,
        temperature: float = 1.0,
        leave_batch_out: bool = False,
    ) -> None:
        super().__init__(
            variance,
            base=base,
            temperature=temperature,
            leave_batch_out=leave_batch_out,
            storage=Storage(streaming=True),
        )
        if half_life is not None and not real(half_life) > 0:  # infinity lets nothing fade
            raise SettingError(f"half_life must be positive (in examples), not {half_life!r}")
        integers(refresh=refresh)
        self.half_life = half_life
        self.refresh = refresh

    held = ("_prior",)  # saving and moving make none

    def begin(self) -> None:
        # The prior, as of so many batches ago.
        self._prior: Posterior | None = None
        self._age = 0
        self._next: Posterior | None = None  # what a step would find, once somebody has looked
        self._any = False
        self._examples: int | Tensor = 0  # since the last update, with a target
        self._epoch: int | None = None  # between the last two
        super().begin()

    def _empty(self) -> Statistics:
        statistics = super()._empty()
        if not statistics.decays:
            raise SettingError(
                f"head {self.head.site!r}: priors.Running needs sums that can fade, but "
                f"{self.scheme!r} keeps examples; use priors.FullData or priors.Fresh, or "
                "Conjugate, TaylorGGN or Laplace"
            )
        return statistics

    def collect(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> None:
        examples = _labelled(features, targets, validity)
        if self._any:
            kept: Any = 0.5 ** (examples / self._fading)
            self._statistics.scale_(validity.keep(kept, 1.0))  # a bad batch lets nothing fade
        super().collect(features, targets, validity)
        self._any, self._next = True, None
        self._age += 1
        self._examples = self._examples + examples
        if validity.now:  # a batch that no prior can be made of is refused with all it changed
            self._settle()

    @property
    def prior(self) -> Posterior | None:
        """The posterior of the sums, made anew once it is `refresh` batches old.

        Looking at it changes nothing of the state: steps alone settle which batches it holds.
        """
        if not self._due:
            return self._prior
        if self._next is None:
            self._next = self._made()
        return self._next

    @prior.setter
    def prior(self, value: Posterior | None) -> None:
        self._prior, self._next = value, None

    def prior_for(self, features: Tensor, targets: Targets) -> Posterior:
        """The prior for this batch; made anew first where `refresh` batches have passed."""
        self._settle()
        return super().prior_for(features, targets)

    @property
    def predicts(self) -> bool:
        """Whether there is a posterior, or what it takes to make one."""
        return self._any or self._prior is not None

    @property
    def _due(self) -> bool:
        return self._any and (self._prior is None or self._age >= self.refresh)

    def _settle(self) -> None:
        if self._due:
            self.prior, self._age = self.prior, 0

    def _made(self) -> Posterior:
        statistics = self._statistics
        if self.temperature != 1.0:
            statistics = statistics.scaled(1 / self.temperature)
        # Between updates the evidence's choices stand.
        return statistics.posterior(self._chosen_base, start=self._prior, generator=self.generator)

    def propose(self, start: Posterior | None = None) -> Posterior:
        if not self._any:
            raise StateError(
                f"head {self.head.site!r}: no data has been collected yet; {self.remedy}"
            )
        return self._posterior_of(self._statistics, start)

    @property
    def collected(self) -> bool:
        return self._any

    def accept(self, prior: Posterior) -> None:
        """Make it the prior; the sums stay."""
        self._adopt(prior)
        self.prior, self._age = prior, 0
        self._epoch, self._examples = int(self._examples) or self._epoch, 0

    def _batch_weight(self) -> float:
        return 0.0 if self._epoch is None else 0.5 ** (self._epoch / self._fading)

    @property
    def _fading(self) -> float:
        """The half-life in force; infinite as long as nobody knows it."""
        if self.half_life is not None:
            return self.half_life
        return math.inf if self._epoch is None else _EPOCHS * self._epoch

    def to(self, device: torch.device) -> None:
        super().to(device)
        self._examples, self._next = int(self._examples), None

    def state(self) -> dict[str, Tensor]:
        own = {"age": self._age, "any": self._any, "examples": int(self._examples)}
        if self._epoch is not None:
            own["epoch"] = self._epoch
        return {**super().state(), **{name: number(value) for name, value in own.items()}}

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
        self._age, self._examples = count(state, "age"), count(state, "examples")
        self._any = bool(count(state, "any", most=1))
        self._epoch = count(state, "epoch") if "epoch" in state else None

    def __repr__(self) -> str:
        shown = "" if self.half_life is None else f"half_life={self.half_life:g}, "
        return f"Running({shown}refresh={self.refresh})"


def _labelled(features: Tensor, targets: Targets, validity: Validity) -> int | Tensor:
    """How many have a target that counts; [] on their device where nobody is to wait for it."""
    labelled = targets.labelled()
    if validity.now:
        return len(features) if labelled is None else int(labelled.sum())
    dtype = linalg.head_dtype(features.device)  # of two numbers, `keep` would make a float32
    if labelled is None:
        return features.new_full((), len(features), dtype=dtype)
    return labelled.sum(dtype=dtype)
