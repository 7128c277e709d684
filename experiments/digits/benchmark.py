"""scikit-learn's handwritten digits as a mixed benchmark that trains in seconds.

The 1,797 images of 8×8 pixels come with scikit-learn. Four tasks of three kinds share one small
network:

* regression: ``number``, the digit as a number, standardised over the training images;
* binary: ``odd``, and ``loop``, whether the digit encloses an area (0, 6, 8, 9);
* ten classes: ``digit``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Literal

import torch
from torch import Tensor, nn

from bayesagg_pyro import heads
from bayesagg_pyro.heads import Head
from experiments.benchmark import Benchmark, Data, Task
from experiments.rows import fifths, log_frequencies, log_odds, parts_of, shipped
from experiments.scores import BinaryAccuracy, ClassAccuracy, MeanSquaredError, Score, mixed
from experiments.scores.calibration import Calibration
from experiments.settings import Settings, require, require_numbers
from models.perceptron import layers

TASKS: Final = {
    "number": ("regression", 0),
    "odd": ("binary", 0),
    "loop": ("binary", 1),
    "digit": ("classes", 0),
}
"""Head of each task, and its column there."""

_CLASSES: Final = 10
_LOOPS: Final = (0, 6, 8, 9)


@dataclass(frozen=True)
class Digits(Benchmark):
    """Handwritten digits of scikit-learn: a number, two yes-or-no questions and ten classes.

    Attributes:
        split_seed: Which images are in which part: 60 % training, 20 % validation, 20 % test.
        width: Width of the hidden layer and of the features.
        only: Name of one task, to train a network for it alone; None for all. Single-task metrics
            are measured with it.
    """

    name: ClassVar[str] = "digits"
    title: ClassVar[str] = "Digits"
    metric: ClassVar[str] = "mean squared error of standardised targets, and accuracy"
    single_task_source: ClassVar[str] = (
        "own networks, one for each task (python -m experiments digits --method ls --task TASK), "
        "mean over seeds 0 to 4 at the best epoch on validation, split seed 0"
    )
    packages: ClassVar[Sequence[str]] = ("scikit-learn",)
    default_settings: ClassVar[Settings] = Settings(
        epochs=20, batch_size=128, learning_rate=1e-2, schedule="steps", head_bias=True
    )
    method_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bayesagg": {
            "pretrain": 5,
            "power": {"regression": 0.5, "binary": 0.05, "classes": 0.05},
            "prior_variance": 1.0,
            "resolution": "dimension",
            "reduction": "sum",
        }
    }

    split_seed: int = 0
    width: int = 32
    only: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "width", least=1)
        require(
            self.only is None or self.only in TASKS,
            "task",
            self.only,
            f"give one of {', '.join(TASKS)}, or leave it out",
        )

    @property
    def tasks(self) -> Sequence[Task]:
        """Four tasks, or the one that is trained alone."""
        every = (
            Task("number", "number", "", 0.136),
            Task("odd", "odd", "%", 98.55, higher_is_better=True),
            Task("loop", "loop", "%", 96.16, higher_is_better=True),
            Task("digit", "digit", "%", 96.94, higher_is_better=True),
        )
        return tuple(task for task in every if self.only in (None, task.name))

    def look(self) -> str:
        """They come with scikit-learn."""
        return "1,797 images that come with scikit-learn"

    def load(self, device: torch.device) -> Data:
        """Split the images and work out the targets.

        Raises:
            DataError: scikit-learn is not installed.
        """
        images, digits = read()
        rows = fifths(len(images), self.split_seed)
        targets = self._select(
            {
                "regression": _standardised(digits, rows.train),
                "binary": torch.stack(
                    [digits % 2, torch.isin(digits, torch.tensor(_LOOPS))], 1
                ).float(),
                "classes": digits[:, None],
            }
        )
        scores: dict[str, type[Score]] = {
            "regression": MeanSquaredError,
            "binary": BinaryAccuracy,
            "classes": ClassAccuracy,
        }
        constant: dict[str, Callable[[Tensor], Tensor]] = {
            "regression": lambda values: values.mean(0),
            "binary": log_odds,
            "classes": partial(log_frequencies, classes=_CLASSES),
        }
        kinds: dict[str, Literal["binary", "classes"]] = {"binary": "binary", "classes": "classes"}
        return Data(
            *parts_of(images.flatten(1) / 8 - 1, targets, rows, device),
            constants={head: constant[head](v[rows.train]) for head, v in targets.items()},
            meter=mixed(
                {head: scores[head] for head in targets},
                calibrations={
                    head: partial(Calibration, self._of(head), kind)
                    for head, kind in kinds.items()
                    if head in targets
                },
            ),
            about={"source": "scikit-learn"},
        )

    def backbone(self) -> nn.Module:
        """Two layers with ELU."""
        return layers([64, self.width, self.width], lambda: [nn.ELU()])

    def heads(self, bias: bool) -> dict[str, Head]:
        """One head for each kind of task."""
        make: dict[str, Callable[[int], Head]] = {
            "regression": lambda n: heads.Gaussian(self.width, n, bias=bias, standardise=False),
            "binary": lambda n: heads.Bernoulli(self.width, n, bias=bias),
            "classes": lambda n: heads.Categorical(self.width, _CLASSES, tasks=n, bias=bias),
        }
        return {head: make[head](len(self._of(head))) for head in make if self._of(head)}

    def _of(self, head: str) -> list[str]:
        """Names of the tasks of a head."""
        return [task.name for task in self.tasks if TASKS[task.name][0] == head]

    def _select(self, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """The column of the one task that is trained alone, or all."""
        if self.only is None:
            return targets
        head, column = TASKS[self.only]
        return {head: targets[head][:, column : column + 1]}


def read() -> tuple[Tensor, Tensor]:
    """Images [1797, 8, 8] float32, 0 to 16, and digits [1797] int64.

    Raises:
        DataError: scikit-learn is not installed, or without them.
    """
    rows = shipped("digits.csv.gz")
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].long()


def _standardised(digits: Tensor, train: Tensor) -> Tensor:
    """[N, 1], the digits with mean 0 and standard deviation 1 over the training rows."""
    values = digits.float()[:, None]
    return (values - values[train].mean()) / values[train].std()
