"""``python -m experiments qm9``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from experiments import presets
from experiments.cli import options as o
from experiments.cli import training_options as t
from experiments.cli.launch import friendly, launch
from experiments.cli.method_options import merged
from experiments.qm9.benchmark import Qm9
from experiments.qm9.dataset import Features, Source
from experiments.run import Run

__all__ = ["EPILOG", "qm9"]

_DATA = "Data"
_NETWORK = "Network"

EPILOG = """
Examples:

A first taste, a few minutes on a CPU:
python -m experiments qm9 --method ls --molecules 2000 --epochs 20 --width 32 --edge-width 32

The same with Bayesian aggregation and the recommended options:
python -m experiments qm9 --preset recommended --molecules 2000 --epochs 20 --pretrain 8 --width 32
--edge-width 32

The paper's run (hours without a GPU), an hour at a time; go on with --resume:
python -m experiments qm9 --preset paper --minutes 60 --out results/paper
"""


def qm9(
    method: o.MethodName = "bayesagg",
    level: o.Level = None,
    option: o.MethodOption = None,
    preset: t.PresetName = "paper",
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Passes over the training molecules.",
            show_default="300",
            rich_help_panel="What to train",
        ),
    ] = None,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    molecules: Annotated[
        int | None,
        typer.Option(help="Training molecules.", show_default="all", rich_help_panel=_DATA),
    ] = None,
    validation: Annotated[
        int | None,
        typer.Option(
            help="Validation molecules.",
            show_default="10,000, or a tenth of --molecules but at least 1,000",
            rich_help_panel=_DATA,
        ),
    ] = None,
    test: Annotated[
        int | None,
        typer.Option(help="Test molecules.", show_default="as --validation", rich_help_panel=_DATA),
    ] = None,
    split_seed: Annotated[
        int | None,
        typer.Option(
            help="Decides which molecules are in which part.",
            show_default="--seed",
            rich_help_panel=_DATA,
        ),
    ] = None,
    max_atoms: t.MaxAtoms = None,
    source: Annotated[
        str,
        typer.Option(
            metavar="qm9pack|pyg",
            help="Where molecules come from: the package qm9pack, or PyTorch Geometric's download.",
            rich_help_panel=_DATA,
        ),
    ] = "qm9pack",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A data file built before, or a folder with the source's own files.",
            show_default="the installed package; built once, then kept",
            rich_help_panel=_DATA,
        ),
    ] = None,
    features: Annotated[
        str,
        typer.Option(
            metavar="pyg|chemistry",
            help="Node features as in published benchmarks, or with aromaticity and hybridisation "
            "filled in by RDKit (not comparable to published numbers).",
            rich_help_panel=_DATA,
        ),
    ] = "pyg",
    peer_normalisation: Annotated[
        bool,
        typer.Option(
            "--peer-normalisation",
            help="Standardise targets over all molecules, test set included, as published code "
            "does.",
            rich_help_panel=_DATA,
        ),
    ] = False,
    network: Annotated[
        str,
        typer.Option(
            metavar="factorised|pyg",
            help="The same network, fast, or through torch-geometric as a reference.",
            rich_help_panel=_NETWORK,
        ),
    ] = "factorised",
    width: Annotated[
        int, typer.Option(help="Width of node states and features.", rich_help_panel=_NETWORK)
    ] = 64,
    edge_width: Annotated[
        int, typer.Option(help="Hidden width of the edge network.", rich_help_panel=_NETWORK)
    ] = 128,
    passes: Annotated[
        int, typer.Option(help="Rounds of message passing.", rich_help_panel=_NETWORK)
    ] = 3,
    activation: t.Activation = "relu",
    batch_size: o.BatchSize = Qm9.default_settings.batch_size,
    lr: o.LearningRate = Qm9.default_settings.learning_rate,
    schedule: t.Schedule = None,
    score_smoothing: t.Smoothing = None,
    clip_norm: t.ClipNorm = None,
    bias: o.Bias = False,
    threads: o.Threads = None,
    graph: t.Graph = "auto",
    pretrain: o.Pretrain = None,
    power: o.Power = None,
    prior: t.Prior = None,
    prior_variance: o.PriorVariance = None,
    fresh_share: t.FreshShare = None,
    half_life: t.HalfLife = None,
    leave_batch_out: t.LeaveBatchOut = None,
    resolution: o.Resolution = None,
    floor: t.Floor = None,
    max_ratio: t.MaxRatio = None,
    scale: o.Scale = None,
    covariance: o.Covariance = None,
    mean: o.Mean = None,
    noise: o.Noise = None,
    out: o.Out = None,
    resume: o.Resume = False,
    overwrite: o.Overwrite = False,
    minutes: t.Minutes = None,
    record: o.Record = None,
    figures: o.Figures = True,
    debug: o.Debug = False,
) -> None:
    """Train one network to predict eleven properties of a molecule.

    The defaults are the paper's settings: 110,831 molecules, 300 epochs, with the first 50 of
    bayesagg trained as ls. QM9 itself comes with the package qm9pack, so nothing is downloaded.

    After each epoch the validation errors are summed up as Δm: by how many per cent the eleven
    errors are above published single-task networks, on average; lower is better. The test set is
    looked at once, at the end.
    """
    with friendly(debug) as console:
        start = presets.find(preset)
        run = Run(
            benchmark=Qm9(
                molecules=molecules,
                validation=validation,
                test=test,
                max_atoms=max_atoms,
                split_seed=seed if split_seed is None else split_seed,
                features=cast(Features, features),
                peer_normalisation=peer_normalisation,
                source=cast(Source, source),
                data=None if data is None else str(data),
                network=network,
                width=width,
                edge_width=edge_width,
                passes=passes,
                activation=activation,
            ),
            method=method,
            options=start.make_options(
                method,
                merged(
                    {
                        "pretrain": pretrain,
                        "power": power,
                        "prior": prior,
                        "prior_variance": prior_variance,
                        "fresh_share": fresh_share,
                        "half_life": half_life,
                        "leave_batch_out": leave_batch_out,
                        "resolution": resolution,
                        "floor": floor,
                        "max_ratio": max_ratio,
                        "scale": scale,
                        "covariance": covariance,
                        "mean": mean,
                        "noise": noise,
                    },
                    level,
                    option,
                ),
            ),
            settings=start.make_settings(
                {
                    "epochs": epochs,
                    "batch_size": batch_size,
                    "learning_rate": lr,
                    "schedule": schedule,
                    "score_smoothing": score_smoothing,
                    "clip_norm": clip_norm,
                    "seed": seed,
                    "device": device,
                    "head_bias": bias,
                    "threads": threads,
                    "graph": graph,
                }
            ),
        )
        launch(
            run,
            out,
            resume=resume,
            overwrite=overwrite,
            draw=figures,
            console=console,
            record=record,
            minutes=minutes,
        )
