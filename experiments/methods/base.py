"""What a method for multi-task training is, as the trainer sees it."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from torch import Tensor, nn
from torch.nn import Parameter

from bayesagg_pyro.diagnostics import Recorder
from experiments.errors import SettingsError
from experiments.settings import require_words


class Scale(Enum):
    """Whether the update is of the size of the sum of the tasks' gradients or of their mean."""

    SUM = "sum"
    MEAN = "mean"


class Level(Enum):
    """Where tasks are combined."""

    LOSSES = "losses"
    PARAMETERS = "shared parameters"
    REPRESENTATION = "representation"

    @property
    def key(self) -> str:
        """The name in options: ``losses``, ``parameters`` or ``representation``."""
        return self.name.lower()


class Needs(Enum):
    """What a method looks at beyond the losses themselves."""

    GRADIENTS = "gradients"
    POSTERIOR = "posterior"
    EPOCHS = "epoch hooks"
    REPEAT = "a second forward pass"


class Capture(Enum):
    """How long a captured step of a method stays valid."""

    NEVER = "never"
    """Steps look at values on the host, or keep state that moves."""
    EPOCH = "epoch"
    """State moves between epochs only."""
    RUN = "run"
    """All state stays where it is."""


@dataclass(frozen=True)
class ExampleWeights:
    """Weights of tasks, averaged over the dimensions of the features.

    Attributes:
        by_example: ``[B, tasks]``, each example's own, before any averaging over examples; NaN
            where it has no target.
        applied: ``[tasks]``, mean over the examples with a target of the weights that an update
            uses; NaN where there are none.
    """

    by_example: Tensor
    applied: Tensor


@dataclass(frozen=True)
class MethodOptions:
    """Options of a method; subclasses add fields with the paper's values as defaults.

    Attributes:
        renamed: What fields were called in earlier versions, ``{former name: name}``.
    """

    renamed: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        require_words(self)

    def check(self, epochs: int) -> None:
        """Raise a ``SettingsError`` when the options do not fit a run of ``epochs`` epochs."""

    @classmethod
    def current(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options as any version recorded them, as this one would."""
        return {cls.renamed.get(name, name): value for name, value in options.items()}

    @classmethod
    def former(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options of today as the first version recorded them."""
        old = {name: old for old, name in cls.renamed.items()}
        return {old.get(name, name): value for name, value in options.items()}

    @classmethod
    def arrange(cls, method: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the class from options by name.

        Raises:
            SettingsError: The method has no such option.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        hints = get_type_hints(cls)
        for key, value in given.items():
            if key not in known:
                has = f"its options are {', '.join(known)}" if known else "it has no options"
                raise SettingsError(
                    f"{key} = {value!r} has no meaning for method {method}: leave it out ({has})"
                )
            wanted = hints[key]
            if isinstance(value, str) and not _takes_words(wanted):
                remedy = "true or false" if wanted is bool else "a number"
                raise SettingsError(f"{key} = {value!r} cannot work: give {remedy}")
        return dict(given)


def _takes_words(hint: Any) -> bool:
    """Whether a word can be a value of this type."""
    if get_origin(hint) in (Union, UnionType):
        return any(_takes_words(part) for part in get_args(hint))
    return hint is str or get_origin(hint) is Literal


class Method(ABC):
    """A backbone, heads and a rule that turns a batch into gradients of their parameters.

    The trainer zeroes gradients, calls :meth:`backward` and steps the optimiser; epochs are
    counted from 0 and framed by :meth:`start_epoch` and :meth:`end_epoch`.

    Attributes:
        name: As on the command line and in files.
        title: For tables and figures.
        scale: Size of the update of the shared parameters.
        level: Where tasks are combined, unless the option ``level`` says otherwise.
        levels: The levels that may be chosen; ``(level,)`` where left out.
        needs: What the method looks at beyond the losses.
        options_type: The class of its options.
        wants: Keywords that it takes: ``another``, a function that gives another newly initialised
            backbone and heads; ``joint``, heads whose outputs are one task together.
        divided: Parameters whose gradients are those of this process's examples alone.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    scale: ClassVar[Scale]
    level: ClassVar[Level]
    levels: ClassVar[tuple[Level, ...]] = ()
    needs: ClassVar[frozenset[Needs]] = frozenset()
    options_type: ClassVar[type[MethodOptions]] = MethodOptions
    wants: ClassVar[Collection[str]] = ()

    backbone: nn.Module
    capture: Capture = Capture.NEVER
    divided: Sequence[Parameter] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if hasattr(cls, "level") and "levels" not in vars(cls) and len(cls.levels) < 2:
            cls.levels = (cls.level,)

    @classmethod
    def why_not(cls, level: Level) -> str:
        """Why the method cannot work at a level that is not among its ``levels``."""
        if cls.level is Level.LOSSES:
            return "it weighs losses, and a weighted sum has the same gradient at every level"
        return "it compares gradients, and losses have none of their own"

    @classmethod
    def require_level(cls, key: str) -> Level:
        """The level called ``key``.

        Raises:
            SettingsError: The method does not have it; the message says why.
        """
        level = next((level for level in Level if level.key == key), None)
        own = [level.key for level in cls.levels]
        if level is None:
            remedy = "has no levels to choose from; leave it out"
            if len(own) > 1:
                remedy = f"has {' and '.join(own)}; give one of them"
            raise SettingsError(f"level = {key!r} is unknown: method {cls.name} {remedy}")
        if level not in cls.levels:
            raise SettingsError(
                f"level = {key!r} does not fit method {cls.name}: {cls.why_not(level)}; give "
                f"{' or '.join(own)}"
            )
        return level

    @classmethod
    def more_options(cls) -> list[tuple[str, Any]]:
        """Options with their defaults that are not fields of ``options_type``, for tables."""
        return []

    @abstractmethod
    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add the update of one batch to ``.grad``.

        Returns:
            The loss of each task before the step, ``{head: [tasks]}``, detached; NaN for a task
            without any target in the batch.
        """

    @abstractmethod
    def distribute(self) -> None:
        """Take every batch together with the other processes of the group.

        Raises:
            SettingsError: It cannot with this backbone.
        """

    @abstractmethod
    def predict(self, inputs: Any) -> dict[str, Tensor]:
        """Point predictions, ``{head: [B, tasks]}``, in the units of training."""

    @abstractmethod
    def calibrate(self, batches: Iterable[tuple[Any, dict[str, Tensor]]] | None) -> None:
        """Fit the width of predictive distributions to inputs and targets not trained on.

        What is fitted serves :meth:`predictive` alone, until the method trains on; None forgets it.
        """

    @abstractmethod
    def predictive(self, inputs: Any) -> dict[str, Any]:
        """Predictive distributions, ``{head: distribution}`` of batch shape ``[B, tasks]``."""

    @abstractmethod
    def parameters(self) -> Iterator[Parameter]:
        """Everything that the optimiser is to train, the backbone's parameters first."""

    @abstractmethod
    def train(self, mode: bool = True) -> None:
        """Switch backbone and heads between training and evaluation."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All state, as tensors and plain values."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave, bit for bit."""

    def watch(
        self, path: Path, every: int, start: int, inputs: Any, targets: dict[str, Tensor]
    ) -> Recorder:
        """Let a recorder write one record every so many steps, from step ``start`` on.

        Args:
            path: Where to.
            every: Steps.
            start: Steps that were done before.
            inputs: Training examples whose features show whether a prior is out of date.
            targets: Their targets.

        Raises:
            SettingsError: The method offers nothing to record.
        """
        raise SettingsError(
            f"record = {every} cannot work: method {self.name} offers nothing to record; "
            "leave --record away"
        )

    def start_epoch(self, epoch: int) -> None:  # noqa: B027 - most methods do nothing
        """Before the first batch of epoch ``epoch``."""

    def fresh_share(self, epoch: int) -> float:
        """Share of the training examples that :meth:`refresh` wants after epoch ``epoch``."""
        return 0.0

    def refresh(self, batches: Iterable[tuple[Any, dict[str, Tensor]]]) -> None:  # noqa: B027
        """Look at training examples once more, in :meth:`end_epoch` or before; no gradients."""

    def end_epoch(self, epoch: int) -> None:  # noqa: B027 - as above
        """After the last batch of epoch ``epoch``, before it is evaluated."""

    def phase(self, epoch: int) -> str:
        """What epoch ``epoch`` is for, in a word."""
        return "training"

    def effective_tasks(self) -> Tensor | float | None:
        """Effective number of tasks in the last step; None when the method has no weights."""
        return None

    def example_weights(self, inputs: Any, targets: dict[str, Tensor]) -> ExampleWeights | None:
        """The weights that these examples would get as a batch.

        None when the method has no such weights (or not yet). Must change no state.
        """
        return None
