"""The paper's two illustrations, computed by the library on a problem with two features.

Two regression tasks share one example. The first has seen inputs that tell its second weight well
and its first hardly; for the second task it is the other way round. What is drawn are the posterior
of each, the distribution of gradients that it induces, and what becomes of them.
``python -m experiments.report.illustration DIR`` draws both into a folder.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from bayesagg_pyro import aggregation, gradients, heads, inference, priors
from bayesagg_pyro.gradients import GradientDistribution
from bayesagg_pyro.posteriors import Posterior
from experiments.report.style import OURS, write_figure

_COLOURS: Final = ("#E08214", "#1B7837")
_RED: Final = "#D7191C"
_WEIGHTS: Final = ((0.2, -1.0), (-1.0, 0.2))
_SPREADS: Final = ((0.25, 1.0), (1.0, 0.25))
_EXAMPLES: Final = 60
_RESIDUAL: Final = 0.5
_DRAWS: Final = 300

Points = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Two tasks at one example.

    Attributes:
        posteriors: Of the head weights of each.
        grads: Distribution of the loss's gradient with respect to the example's features, of each.
        update: BayesAgg's step, minus the aggregated gradient, [2].
        average: The step against the plain mean of the expected gradients, [2].
    """

    posteriors: tuple[Posterior, ...]
    grads: tuple[GradientDistribution, ...]
    update: Points
    average: Points


def problem(power: float = 1.0) -> Problem:
    """Work it all out."""
    generator = torch.Generator().manual_seed(0)
    example = torch.tensor([[0.4, 0.4]], dtype=torch.float64)
    found: list[Posterior] = []
    grads: dict[str, GradientDistribution] = {}
    for number, (weight, spread) in enumerate(zip(_WEIGHTS, _SPREADS, strict=True)):
        head = heads.Gaussian(2, tasks=1, bias=False)
        w = torch.tensor([weight], dtype=torch.float64)
        inputs = torch.tensor(spread) * torch.randn(_EXAMPLES, 2, generator=generator)
        targets = inputs.double() @ w.mT  # without noise, so that the posterior mean is near w
        prior = priors.isotropic(head, 10.0)
        posterior = inference.Conjugate().infer(head, inputs.double(), targets, prior)
        at = example @ w.mT - _RESIDUAL
        found.append(posterior)
        grads[str(number)] = gradients.distribution(head, posterior, example, at)
    joint = gradients.cat(grads)
    step = aggregation.PrecisionWeighted.paper(power=power)(joint)
    return Problem(
        tuple(found), tuple(grads.values()), _array(-step[0]), _array(-joint.mean[:, 0].mean(0))
    )


def update_directions() -> Figure:
    """Steps for a representation of two features, over contours of each task's distribution.

    Black: each task's mean step; red: their average; blue: BayesAgg.
    """
    given = problem()
    figure = Figure(figsize=(3.6, 3.7), layout="constrained")
    axes = figure.add_subplot()
    means = [-_array(grad.mean[0, 0]) for grad in given.grads]
    for number, (mean, grad) in enumerate(zip(means, given.grads, strict=True)):
        deviation = np.sqrt(_array(grad.variance[0, 0]))
        _density(axes, mean, np.diag(deviation**2), _COLOURS[number])
        _arrow(axes, mean, "black")
        left = number == 0
        axes.annotate(
            f"task {number + 1}",
            (float(mean[0]), float(mean[1])),
            xytext=(-4, 7) if left else (6, -10),
            textcoords="offset points",
            fontsize=7,
            ha="right" if left else "left",
        )
    _arrow(axes, given.average, _RED)
    _arrow(axes, given.update, OURS)
    axes.plot(0, 0, "o", color="black", markersize=3)
    axes.set_aspect("equal")
    axes.set_xlim(-2.0, 2.4)
    axes.set_ylim(-2.0, 2.4)
    axes.set_xlabel("step in feature 1")
    axes.set_ylabel("step in feature 2")
    told = (("black", "mean step of a task"), (_RED, "average of the means"), (OURS, "BayesAgg"))
    lines = [axes.plot([], [], color=colour, label=text)[0] for colour, text in told]
    figure.legend(handles=lines, loc="outside lower center", ncols=2)
    return figure


def flow() -> Figure:
    """From weights to gradients to one step: samples and moments, from left to right."""
    given = problem()
    generator = torch.Generator().manual_seed(0)
    figure = Figure(figsize=(7.4, 2.95), layout="constrained")
    weights, induced, combined = figure.subplots(1, 3)
    for number, (posterior, grad) in enumerate(zip(given.posteriors, given.grads, strict=True)):
        colour = _COLOURS[number]
        drawn = _array(posterior.rsample((_DRAWS,), generator=generator))[:, 0]
        weights.scatter(*drawn.T, s=4, color=colour, alpha=0.35, linewidths=0)
        weights.plot(*drawn.mean(0), "+", color="black", markersize=6)
        if grad.sampler is None:
            raise AssertionError("a Gaussian head's gradients can be drawn")
        sampled = _array(grad.sampler(_DRAWS, generator))[:, 0, 0]
        mean = _array(grad.mean[0, 0])
        induced.scatter(*sampled.T, s=4, color=colour, alpha=0.35, linewidths=0)
        spread = np.diag(_array(grad.variance[0, 0]))
        for axes in (induced, combined):
            _ellipses(axes, mean, spread, colour)
            axes.plot(*mean, "+", color="black", markersize=6)
        weights.plot([], [], "o", color=colour, markersize=4, label=f"task {number + 1}")
    combined.plot(*-given.update, "X", color=OURS, markersize=8, label="BayesAgg")
    combined.plot(*-given.average, "o", color=_RED, markersize=5, label="average of the means")
    for axes, title, name in (
        (weights, "1. head weights given data", "weight"),
        (induced, "2. gradients that they induce", "gradient, feature"),
        (combined, "3. moments, aggregated", "gradient, feature"),
    ):
        axes.set_title(title)
        axes.set_aspect("equal")
        axes.set_xlabel(f"{name} 1")
        axes.set_ylabel(f"{name} 2")
        axes.set_xlim(-2.9, 2.9)
        axes.set_ylim(-3.2, 2.6)
    told = [axes.get_legend_handles_labels() for axes in (weights, combined)]
    handles, labels = ([*one, *other] for one, other in zip(*told, strict=True))
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _density(axes: Axes, mean: Points, covariance: Points, colour: str) -> None:
    """Filled contours of a Gaussian, darker where it is denser."""
    x, y = np.meshgrid(np.linspace(-3, 3, 241), np.linspace(-3, 3, 241))
    offset = np.stack([x - mean[0], y - mean[1]], -1)
    distance = np.einsum("...i,ij,...j", offset, np.linalg.inv(covariance), offset)
    levels = [-(k**2) for k in (2.5, 2.0, 1.5, 1.0, 0.5)] + [0.0]
    shades = [to_rgba(colour, 0.08 + 0.09 * k) for k in range(len(levels) - 1)]
    axes.contourf(x, y, -distance, levels=levels, colors=shades)


def _ellipses(axes: Axes, mean: Points, covariance: Points, colour: str) -> None:
    """One and two standard deviations."""
    turn = np.linspace(0, 2 * np.pi, 200)
    circle = np.stack([np.cos(turn), np.sin(turn)])
    root = np.linalg.cholesky(covariance)
    for size in (1, 2):
        axes.plot(*(mean[:, None] + size * root @ circle), color=colour, linewidth=1.1)


def _arrow(axes: Axes, tip: Points, colour: str) -> None:
    axes.annotate(
        "",
        (float(tip[0]), float(tip[1])),
        (0, 0),
        arrowprops={
            "arrowstyle": "-|>",
            "color": colour,
            "linewidth": 1.6,
            "shrinkA": 0,
            "shrinkB": 0,
            "mutation_scale": 11,
        },
        zorder=4,
    )


def _array(values: Tensor) -> Points:
    return np.asarray(values.detach().double().numpy(), dtype=np.float64)


if __name__ == "__main__":
    for maker in (update_directions, flow):
        print(write_figure(maker, Path(sys.argv[1]) / f"report_{maker.__name__}", formats=("png",)))
