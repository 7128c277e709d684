"""``python -m experiments chestxray14``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from experiments.chestxray14.benchmark import ChestXray14
from experiments.chestxray14.release import Overlap
from experiments.cli import image_options as i
from experiments.cli import options as o

__all__ = ["EPILOG", "chestxray14"]

_DEFAULT = ChestXray14.default_settings

EPILOG = """
Example:

python -m experiments chestxray14 --data ChestX-ray14 --method bayesagg --out results/chest
"""


def chestxray14(
    method: o.MethodName = "bayesagg",
    level: o.Level = None,
    option: o.MethodOption = None,
    epochs: o.Epochs = _DEFAULT.epochs,
    seed: i.Seed = 0,
    device: o.Device = "auto",
    data: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="The NIH release: Data_Entry_2017*.csv, train_val_list.txt, test_list.txt, and "
            "images/ or images_001/ to images_012/.",
            rich_help_panel=i.DATA,
        ),
    ] = Path("ChestX-ray14"),
    overlap: Annotated[
        str,
        typer.Option(
            metavar="error|drop",
            help="When a patient is on both lists (in the official ones nobody is): stop, or drop "
            "their training images.",
            rich_help_panel=i.DATA,
        ),
    ] = "error",
    split_seed: i.SplitSeed = None,
    depth: i.Depth = 34,
    weights: i.Weights = "imagenet",
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
    """Train one network to see fourteen findings in chest X-rays.

    The official test list is kept; a tenth of all images is set aside for validation, by patient.
    Images are decoded once, which takes a while, and kept in grey at 224×224 (5.6 GB).
    """
    given = dict(locals())
    i.train(
        lambda: ChestXray14(
            data=str(data),
            overlap=cast(Overlap, overlap),
            split_seed=seed if split_seed is None else split_seed,
            depth=depth,
            weights=None if weights == "none" else weights,
        ),
        given,
    )
