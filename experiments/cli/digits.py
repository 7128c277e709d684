"""``python -m experiments digits``."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.cli import image_options as i
from experiments.cli import options as o
from experiments.digits.benchmark import TASKS, Digits

__all__ = ["EPILOG", "digits"]

_DEFAULT = Digits.default_settings

EPILOG = """
Examples:

python -m experiments digits --method ls

python -m experiments digits --method bayesagg
"""


def digits(
    method: o.MethodName = "bayesagg",
    level: o.Level = None,
    option: o.MethodOption = None,
    epochs: o.Epochs = _DEFAULT.epochs,
    seed: i.Seed = 0,
    device: o.Device = "auto",
    only: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(TASKS),
            help="Train a network for this task alone.",
            show_default="all tasks together",
            rich_help_panel=i.DATA,
        ),
    ] = None,
    split_seed: i.SplitSeed = None,
    width: Annotated[
        int,
        typer.Option(
            help="Width of the hidden layer and of the features.",
            rich_help_panel=i.NETWORK,
        ),
    ] = Digits.width,
    batch_size: o.BatchSize = _DEFAULT.batch_size,
    lr: i.LearningRate = _DEFAULT.learning_rate,
    weight_decay: i.WeightDecay = _DEFAULT.weight_decay,
    schedule: i.ScheduleName = _DEFAULT.schedule,
    bias: i.Bias = _DEFAULT.head_bias,
    pretrain: i.Pretrain = None,
    power: i.PowerText = None,
    prior_variance: i.PriorVariance = None,
    resolution: o.Resolution = None,
    scale: o.Scale = None,
    covariance: o.Covariance = None,
    mean: o.Mean = None,
    out: o.Out = None,
    resume: o.Resume = False,
    overwrite: o.Overwrite = False,
    record: o.Record = None,
    figures: o.Figures = True,
    debug: o.Debug = False,
) -> None:
    """Train one small network on handwritten digits with tasks of three kinds, in seconds.

    The digit as a number, whether it is odd, whether it has a loop, and which of the ten it is. The
    images come with scikit-learn.
    """
    given = dict(locals())
    i.train(
        lambda: Digits(
            only=only,
            split_seed=seed if split_seed is None else split_seed,
            width=width,
        ),
        given,
    )
