"""``python -m experiments cifar-mtl``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from experiments.cifar.benchmark import Cifar
from experiments.cifar.sources import Source
from experiments.cli import image_options as i
from experiments.cli import options as o

__all__ = ["EPILOG", "cifar_mtl"]

_DEFAULT = Cifar.default_settings

EPILOG = """
Examples:

The paper's run: CIFAR-100 is downloaded once, and the twenty super-classes are the tasks:
python -m experiments cifar-mtl --method bayesagg --out results/cifar

Images of your own, in DIR/train/CLASS/ and DIR/test/CLASS/:
python -m experiments cifar-mtl --source folder --data DIR --epochs 20 --method ls
"""


def cifar_mtl(
    method: o.MethodName = "bayesagg",
    level: o.Level = None,
    option: o.MethodOption = None,
    epochs: o.Epochs = _DEFAULT.epochs,
    seed: i.Seed = 0,
    device: o.Device = "auto",
    source: Annotated[
        str,
        typer.Option(
            metavar="cifar100|cifar10|folder",
            help="CIFAR-100 by super-class, CIFAR-10 by class (torchvision downloads either once), "
            "or a folder with train/CLASS/*.jpg and test/CLASS/*.jpg.",
            rich_help_panel=i.DATA,
        ),
    ] = "cifar100",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder, or where torchvision keeps its data sets.",
            show_default="a cache folder",
            rich_help_panel=i.DATA,
        ),
    ] = None,
    training: Annotated[
        int | None,
        typer.Option(
            help="Training images.",
            show_default="all",
            rich_help_panel=i.DATA,
        ),
    ] = None,
    validation: Annotated[
        int | None,
        typer.Option(
            help="Images set aside from the training images.",
            show_default="5,000, or a tenth of fewer",
            rich_help_panel=i.DATA,
        ),
    ] = None,
    split_seed: i.SplitSeed = None,
    width: Annotated[
        int,
        typer.Option(
            help="Channels of the three convolutions.",
            rich_help_panel=i.NETWORK,
        ),
    ] = 160,
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
    """Train one network on a binary task per class of small images.

    Each class is a task of its own, "this class or another", and the figure to watch is the error
    of taking the class with the largest logit; the paper reports 100 % minus that. The defaults are
    the paper's settings: 45,000 training images of CIFAR-100, 50 epochs.
    """
    given = dict(locals())
    i.train(
        lambda: Cifar(
            source=cast(Source, source),
            data=None if data is None else str(data),
            training=training,
            validation=validation,
            split_seed=seed if split_seed is None else split_seed,
            width=width,
        ),
        given,
    )
