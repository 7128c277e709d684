"""The digits benchmark as studies want it: three quick tasks, labels missing, heads of any kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesagg_pyro import heads
from bayesagg_pyro.heads import Head
from experiments.benchmark import Data, Task
from experiments.digits.benchmark import Digits
from experiments.randomness import seed_of
from experiments.rows import Rows
from experiments.settings import require
from experiments.studies.runs import KINDS, make


@dataclass(frozen=True)
class ThreeTasks(Digits):
    """The digit as a number, whether it is odd and whether it has a loop; not its class.

    Without the ten-class head all gradient moments are exact or by quadrature, so that a run has no
    sampling noise of its own.

    Attributes:
        missing: Share of the training labels that are missing, independently for every image and
            task; at least one label of each task is kept.
        kind: Of the heads, one of :data:`experiments.studies.runs.KINDS`.
    """

    method_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bayesagg": {
            **Digits.method_options["bayesagg"],
            "power": {"regression": 0.5, "binary": 0.05},
        }
    }

    missing: float = 0.0
    kind: str = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.missing < 1, "missing", self.missing, "give 0 or more, below 1")
        require(self.kind in KINDS, "kind", self.kind, f"give one of {', '.join(KINDS)}")
        require(
            self.missing == 0 or self.kind == "linear",
            "missing",
            self.missing,
            "labels go missing with linear heads only",
        )

    @property
    def tasks(self) -> Sequence[Task]:
        """All but the class."""
        return tuple(task for task in super().tasks if task.name != "digit")

    def load(self, device: torch.device) -> Data:
        """The digits, with training labels taken out."""
        data = super().load(device)
        if self.missing == 0:
            return data
        whole = next(iter(data.train.batches(len(data.train))))
        generator = torch.Generator().manual_seed(seed_of(self.split_seed, "missing"))
        targets = {
            name: _with_holes(values, self.missing, generator)
            for name, values in whole.targets.items()
        }
        return dataclasses.replace(data, train=Rows(whole.inputs, targets))

    def heads(self, bias: bool) -> dict[str, Head]:
        """Regression and two binary tasks, by heads of the kind asked for."""
        if self.missing == 0:
            return make(self.kind, self.width, bias)
        return {
            "regression": heads.Gaussian(self.width, bias=bias, missing="nan", standardise=False),
            "binary": heads.Bernoulli(self.width, 2, bias=bias, missing="nan"),
        }

    def _select(self, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        return {head: values for head, values in targets.items() if head != "classes"}


def _with_holes(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A copy of [N, tasks] with NaN in place of missing labels."""
    draws = torch.rand(values.shape, generator=generator)
    hole = draws < share
    hole.scatter_(0, draws.argmax(0, keepdim=True), False)
    return values.masked_fill(hole.to(values.device), float("nan"))
