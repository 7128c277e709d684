"""Published methods whose aggregators come from TorchJD, from MGDA to Aligned-MTL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Final, Literal

import torch
from torch import Tensor, nn

from bayesagg_pyro.aggregation import Combined, MatrixAggregator
from bayesagg_pyro.heads import Head
from experiments.methods.base import Level, Scale
from experiments.methods.gradient_based import GradientBased, GradientOptions, Place
from experiments.methods.torchjd_classes import arguments_of, module
from experiments.methods.weighted import SeededOptions, new_generator
from experiments.settings import require, require_numbers

_OURS: Final = ("level", "seed", "scale_heads")
"""Options that an aggregator does not know."""


class WithAggregator(GradientBased):
    """Combines gradients with an aggregator of TorchJD, through :class:`MatrixAggregator`.

    Options are called as the aggregator's arguments are.
    """

    aggregator: ClassVar[str]

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: GradientOptions
    ) -> None:
        super().__init__(backbone, heads, options)
        kind = getattr(module("aggregation", self.name), self.aggregator)
        own = {one.name: getattr(options, one.name) for one in fields(options)}
        given = {name: value for name, value in own.items() if name not in _OURS}
        given |= given.pop("arguments", {})
        arguments = arguments_of(self.name, kind, len(self.tasks), given)
        try:
            aggregator = kind(**arguments)
        except ImportError as error:  # a solver
            require(False, "method", self.name, str(error))
        except (TypeError, ValueError) as error:
            require(False, "options", arguments, str(error))
        generator = new_generator(getattr(options, "seed", 0))
        self.rows = self.kept["aggregator"] = MatrixAggregator(aggregator, generator=generator)

    def combine(self, matrix: Tensor, present: Tensor | None = None) -> Combined:
        """The aggregator's direction and weights."""
        return self.rows(matrix, self.tasks, present)


@dataclass(frozen=True)
class MgdaOptions(GradientOptions):
    """Options of MGDA.

    Attributes:
        epsilon: The search for the shortest vector ends with steps below this.
        max_iters: It ends after so many steps at the latest.
    """

    epsilon: float = 1e-3
    max_iters: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "epsilon", above=0)
        require_numbers(self, "max_iters", least=1)


@dataclass(frozen=True)
class MgdaUbOptions(MgdaOptions):
    """The same, at the level of the representation unless told otherwise."""

    level: Place = "representation"


class Mgda(WithAggregator):
    """The shortest vector among convex combinations of the gradients (MGDA).

    Where that vector is zero (a task's gradient is, or two point against each other) the shared
    parameters rest: no common direction lowers every loss.

    Source: Sener and Koltun, Multi-Task Learning as Multi-Objective Optimization, NeurIPS 2018.
    """

    name, title = "mgda", "MGDA"
    aggregator = "MGDA"
    options_type = MgdaOptions


class MgdaUb(Mgda):
    """MGDA on gradients with respect to the representation, an upper bound of it (MGDA-UB)."""

    name, title = "mgda-ub", "MGDA-UB"
    level = Level.REPRESENTATION
    levels = (Level.REPRESENTATION, Level.PARAMETERS)
    options_type = MgdaUbOptions


@dataclass(frozen=True)
class PcgradOptions(SeededOptions, GradientOptions):
    """Options of PCGrad.

    Attributes:
        seed: Of the order of projections; None follows the seed of the run.
    """


class Pcgrad(WithAggregator):
    """Each gradient projected off those it conflicts with, in random order; then their sum.

    Source: Yu et al., Gradient Surgery for Multi-Task Learning, NeurIPS 2020.
    """

    name, title = "pcgrad", "PCGrad"
    scale = Scale.SUM
    aggregator = "PCGrad"
    options_type = PcgradOptions


@dataclass(frozen=True)
class CagradOptions(GradientOptions):
    """Options of CAGrad.

    Attributes:
        c: Size of the ball around the mean gradient, relative to its length; 0 is the mean.
    """

    c: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.c < math.inf, "c", self.c, "give 0 or more, usually below 1")


class Cagrad(WithAggregator):
    """The direction near the mean gradient that helps the worst task most (CAGrad).

    Source: Liu et al., Conflict-Averse Gradient Descent, NeurIPS 2021.
    """

    name, title = "cagrad", "CAGrad"
    aggregator = "CAGrad"
    options_type = CagradOptions


class ImtlG(WithAggregator):
    """The combination whose projections on all gradients are of one length (IMTL-G).

    Source: Liu et al., Towards Impartial Multi-Task Learning, ICLR 2021.
    """

    name, title = "imtl-g", "IMTL-G"
    aggregator = "IMTLG"


@dataclass(frozen=True)
class NashMtlOptions(GradientOptions):
    """Options of Nash-MTL.

    Attributes:
        max_norm: Longest update; 0 for any.
        update_weights_every: Steps between two solutions of the bargain, which is what costs time.
        optim_niter: Rounds of its solver.
    """

    max_norm: float = 1.0
    update_weights_every: int = 1
    optim_niter: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.max_norm >= 0, "max_norm", self.max_norm, "give 0 or more")
        require_numbers(self, "update_weights_every", "optim_niter", least=1)


class NashMtl(WithAggregator):
    """Weights of the Nash bargain between tasks: G α = 1 / α.

    A task whose gradient is zero has nothing to bargain for, and sits out the step.

    Source: Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022.
    """

    name, title = "nash-mtl", "Nash-MTL"
    scale = Scale.SUM
    aggregator = "NashMTL"
    options_type = NashMtlOptions


@dataclass(frozen=True)
class AlignedOptions(GradientOptions):
    """Options of Aligned-MTL.

    Attributes:
        scale_mode: The common length of the components: the ``"min"`` (the method's paper), the
            ``"median"``, or the root mean square (``"rmse"``) of theirs.
        scale_heads: Multiply the losses that heads descend by the tasks' weights as well.
    """

    scale_mode: Literal["min", "median", "rmse"] = "min"
    scale_heads: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        right = isinstance(self.scale_heads, bool)
        require(right, "scale_heads", self.scale_heads, "give true or false")


@dataclass(frozen=True)
class AlignedUbOptions(AlignedOptions):
    """The same, at the level of the representation unless told otherwise."""

    level: Place = "representation"


class Aligned(WithAggregator):
    """With G = J Jᵀ = V Λ Vᵀ, weights α = σ V Λ^(−1/2) Vᵀ 1/K, and the update Jᵀ α.

    The update is the mean of the rows of the matrix closest to J whose principal components all
    have the length σ. Directions without any gradient (eigenvalues at rounding level) are dropped.

    Source: Senushkin et al., Independent Component Alignment for Multi-Task Learning, CVPR 2023,
    algorithm 1; the scale modes are those that the comparison in the BayesAgg paper searched.
    """

    name, title = "aligned-mtl", "Aligned-MTL"
    aggregator = "AlignedMTL"
    options_type = AlignedOptions

    def head_weights(self, weights: Tensor) -> Tensor:
        """K α, K the tasks of the batch, when heads are to follow; K keeps the size of a sum."""
        assert isinstance(self.options, AlignedOptions)
        follow = self.options.scale_heads
        return (weights != 0).sum() * weights if follow else torch.ones_like(weights)


class AlignedUb(Aligned):
    """The upper-bound variant: J holds gradients with respect to the representation, [K, B · d]."""

    name, title = "aligned-mtl-ub", "Aligned-MTL-UB"
    level = Level.REPRESENTATION
    levels = (Level.REPRESENTATION, Level.PARAMETERS)
    options_type = AlignedUbOptions
