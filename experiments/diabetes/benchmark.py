"""scikit-learn's diabetes table: a small set, on which too narrow predictions are easy to make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import torch
from torch import nn

from bayesagg_pyro import heads
from bayesagg_pyro.heads import Head
from experiments.benchmark import Benchmark, Data, Task
from experiments.rows import fifths, log_odds, parts_of, shipped, standardised
from experiments.scores.distributions import DistributionMeter, Kind
from experiments.settings import Settings, require_numbers

KINDS: Final[Mapping[str, Kind]] = {"progression": "number", "high": "binary"}
"""Heads, with one task each, in order."""

_HIGH: Final = 200.0


@dataclass(frozen=True)
class Diabetes(Benchmark):
    """442 diabetics of scikit-learn: progression of the disease in a year, and whether it is high.

    Ten inputs (age, sex, body mass, blood). Two heads on one small network: ``progression``, the
    score of the release, standardised over the training rows, and ``high``, whether it is above 200
    (a quarter of the rows). Both are measured by -log of the predictive density, as in ``rand``.

    Attributes:
        split_seed: Which rows are in which part: 60 % training, 20 % validation, 20 % test.
        width: Width of the hidden layer, whose outputs are the features.
    """

    name: ClassVar[str] = "diabetes"
    title: ClassVar[str] = "Diabetes"
    metric: ClassVar[str] = "negative log predictive density"
    single_task_source: ClassVar[str] = (
        "own networks (python -m experiments run diabetes --method stl --seeds 0 1 2 3 4), mean "
        "over seeds at the best epoch on validation"
    )
    packages: ClassVar[Sequence[str]] = ("scikit-learn",)
    default_settings: ClassVar[Settings] = Settings(
        epochs=20, batch_size=32, learning_rate=1e-2, schedule="cosine", head_bias=True
    )
    method_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bayesagg": {"pretrain": 2, "rule": "default", "prior_variance": 1.0, "reduction": "sum"}
    }

    split_seed: int = 0
    width: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "width", least=1)

    @property
    def tasks(self) -> Sequence[Task]:
        """One for each head."""
        return (
            Task("progression", "progression", "nats", 1.115),
            Task("high", "high", "nats", 0.3744),
        )

    def look(self) -> str:
        """It comes with scikit-learn."""
        return "442 rows that come with scikit-learn"

    def load(self, device: torch.device) -> Data:
        """Split the rows, and standardise by those of training.

        Raises:
            DataError: scikit-learn is not installed.
        """
        inputs = shipped("diabetes_data_raw.csv.gz", " ")
        score = shipped("diabetes_target.csv.gz")
        rows = fifths(len(score), self.split_seed)
        train = rows.train
        targets = {"progression": standardised(score, train)[0], "high": (score > _HIGH).float()}
        inputs, _, _ = standardised(inputs, train)
        return Data(
            *parts_of(inputs, targets, rows, device),
            constants={"progression": torch.zeros(1), "high": log_odds(targets["high"][train])},
            meter=partial(DistributionMeter, KINDS),
            about={"source": "scikit-learn"},
            likelihoods=self.heads(True),
        )

    def backbone(self) -> nn.Module:
        """One layer with ELU."""
        return nn.Sequential(nn.Linear(10, self.width), nn.ELU())

    def heads(self, bias: bool) -> dict[str, Head]:
        """A number and a probability."""
        return {
            "progression": heads.Gaussian(self.width, bias=bias, standardise=False),
            "high": heads.Bernoulli(self.width, bias=bias),
        }
