"""``python -m experiments utkface``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli import image_options as i
from experiments.cli import options as o
from experiments.utkface.benchmark import UtkFace

__all__ = ["EPILOG", "utkface"]

_DEFAULT = UtkFace.default_settings

EPILOG = """
Examples:

python -m experiments utkface --data UTKFace --method bayesagg --out results/utkface

The three heads with exponents of their own:
python -m experiments utkface --data UTKFace --power age=0.3,gender=0.05,ethnicity=0.05
"""


def utkface(
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
            help="The folder with the released images, [age]_[gender]_[race]_[date&time].jpg.",
            rich_help_panel=i.DATA,
        ),
    ] = Path("UTKFace"),
    split_seed: i.SplitSeed = None,
    depth: i.Depth = 18,
    weights: i.Weights = "none",
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
    """Train one network to tell age, gender and ethnicity from a face.

    A regression, a binary and a five-class task share the network. Files whose name lacks a label
    are left out and listed in the results.
    """
    given = dict(locals())
    i.train(
        lambda: UtkFace(
            data=str(data),
            split_seed=seed if split_seed is None else split_seed,
            depth=depth,
            weights=None if weights == "none" else weights,
        ),
        given,
    )
