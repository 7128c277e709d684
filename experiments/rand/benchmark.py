"""The RAND survey as a mixed benchmark: four kinds of outcomes, measured by their densities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import torch
from torch import nn

from bayesagg_pyro import heads
from bayesagg_pyro.heads import Head
from experiments.benchmark import Benchmark, Data, Task
from experiments.rand.survey import INPUTS, place, read, split
from experiments.rows import log_odds, parts_of, standardised
from experiments.scores.distributions import DistributionMeter, Kind
from experiments.settings import Settings, require_numbers
from models.perceptron import layers

Counts = Literal["negative-binomial", "poisson"]

KINDS: Final[Mapping[str, Kind]] = {
    "visits": "count",
    "health": "classes",
    "limited": "binary",
    "spending": "number",
}
"""Heads, with one task each, in order."""

_CUTS: Final = (0.184, 2.29, 4.18)
"""Where cut-points begin: the log-odds of at least good, fair and poor health in the survey."""

SINGLE_TASK: Final = (2.1106, 0.8815, 0.3331, 1.3408)
"""Negative log densities of single-task networks, in nats, in the order of the heads."""


@dataclass(frozen=True)
class Rand(Benchmark):
    """The RAND health insurance experiment: visits, health, limitation and spending of a year.

    20,190 rows, each a person in a year of the experiment; the file comes with statsmodels (``pip
    install statsmodels``). Inputs are those of Cameron and Trivedi (2005, chapter 20):
    plan, household, age, sex, diseases; and site, year, and how much of it the person took part
    in. What is a target is no input. Four heads on one network:

    * ``visits`` to a physician, a count;
    * ``health``, as the person rates it, four ordered classes;
    * ``limited``, whether there is a physical limitation (5 % of the labels missing);
    * ``spending``, the log of medical spending, standardised over the training rows (missing in
      the 22 % of the rows without any).

    Tasks are measured by −log of the predictive density: BayesAgg's own, with the weights of heads
    integrated out; the likelihood at the outputs for other methods. The noise of ``spending`` and
    the temperatures of ``health`` and ``limited`` are fitted to the validation rows for all. A run
    of the defaults takes 10 s of one core, BayesAgg a minute: its densities are integrals, at every
    epoch.

    Attributes:
        data: The file ``randhie.csv``; None for that of the installed statsmodels.
        split_seed: Which families are in which part: 60 % training, 20 % validation, 20 % test.
            All rows of a person, and persons of one site and income, are in one part.
        counts: Likelihood of visits.
        dispersion: Variance of visits in excess of Poisson's over the squared mean, of the
            negative binomial; a linear model of all rows has 1.16.
        width: Width of the hidden layers and of the features.
        layers: Number of them.
    """

    name: ClassVar[str] = "rand"
    title: ClassVar[str] = "RAND"
    metric: ClassVar[str] = "negative log predictive density"
    single_task_source: ClassVar[str] = (
        "own networks (python -m experiments run rand --method stl --seeds 0 1 2), mean over seeds "
        "at the best epoch on validation"
    )
    default_settings: ClassVar[Settings] = Settings(
        epochs=10, batch_size=256, learning_rate=3e-3, schedule="cosine", head_bias=True
    )
    method_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bayesagg": {"pretrain": 1, "rule": "default", "prior_variance": 1.0, "reduction": "sum"}
    }

    places: ClassVar[frozenset[str]] = frozenset({"data"})

    data: str | None = None
    split_seed: int = 0
    counts: Counts = "negative-binomial"
    dispersion: float = 1.2
    width: int = 64
    layers: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "dispersion", above=0)
        require_numbers(self, "width", "layers", least=1)

    @property
    def tasks(self) -> Sequence[Task]:
        """One for each head."""
        return tuple(
            Task(name, name, "nats", single)
            for name, single in zip(KINDS, SINGLE_TASK, strict=True)
        )

    def look(self) -> str:
        """Where the file is."""
        return f"{place(None if self.data is None else Path(self.data))} (20,190 rows are released)"

    def load(self, device: torch.device) -> Data:
        """Read the survey, split it, and standardise inputs and spending by the training rows."""
        survey = read(None if self.data is None else Path(self.data))
        rows = split(survey, self.split_seed)
        inputs, _, _ = standardised(survey.inputs, rows.train)
        spending, mean, std = standardised(survey.spending[:, None], rows.train, fill=False)
        targets = {
            "visits": survey.visits.float()[:, None],
            "health": survey.health[:, None],
            "limited": survey.limited.float()[:, None],
            "spending": spending.float(),
        }
        train = {name: values[rows.train] for name, values in targets.items()}
        return Data(
            *parts_of(inputs.float(), targets, rows, device),
            constants={
                "visits": train["visits"].mean(0).clamp(min=1e-3).log(),
                "health": torch.zeros(1),
                "limited": log_odds(train["limited"]),
                "spending": torch.zeros(1),
            },
            meter=partial(DistributionMeter, KINDS),
            about={
                "source": "statsmodels" if self.data is None else "file",
                "rows": len(survey),
                "persons": {
                    name: len(survey.persons[part].unique()) for name, part in vars(rows).items()
                },
                "spending_mean": float(mean),
                "spending_std": float(std),
            },
            likelihoods=self.heads(True),
        )

    def backbone(self) -> nn.Module:
        """Layers with ELU."""
        widths = [len(INPUTS) + 11, *[self.width] * self.layers]
        return layers(widths, lambda: [nn.ELU()])

    def heads(self, bias: bool) -> dict[str, Head]:
        """Four kinds; cut-points stand for the bias of the ordered one."""
        count: Head = (
            heads.Poisson(self.width, bias=bias)
            if self.counts == "poisson"
            else heads.NegativeBinomial(self.width, dispersion=self.dispersion, bias=bias)
        )
        return {
            "visits": count,
            "health": heads.Ordinal(
                self.width, len(_CUTS) + 1, cutpoints=_CUTS, learn_cutpoints=True
            ),
            "limited": heads.Bernoulli(self.width, bias=bias, missing="nan"),
            "spending": heads.Gaussian(self.width, bias=bias, missing="nan", standardise=False),
        }
