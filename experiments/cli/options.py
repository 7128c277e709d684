"""Command-line options that every benchmark has in common, in groups of their own in the help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.methods import METHODS

__all__ = [
    "BatchSize",
    "Bias",
    "Covariance",
    "Debug",
    "Device",
    "Epochs",
    "Figures",
    "LearningRate",
    "Level",
    "Mean",
    "MethodName",
    "MethodOption",
    "Noise",
    "Out",
    "Overwrite",
    "Power",
    "Pretrain",
    "PriorVariance",
    "Record",
    "Resolution",
    "Resume",
    "Scale",
    "Seed",
    "Threads",
]

_WHAT = "What to train"
_TRAINING = "Training"
_BAYES = "Bayesian aggregation (only with --method bayesagg)"
_OUTPUT = "Output"

MethodName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="How tasks are combined: ls sums their losses (the usual baseline); bayesagg weighs "
        "their gradients by how certain they are (the paper's method). All: "
        f"{', '.join(METHODS)}; and torchjd:NAME, such as torchjd:UPGrad.",
        rich_help_panel=_WHAT,
    ),
]
Level = Annotated[
    str | None,
    typer.Option(
        metavar="losses|parameters|representation",
        help="Where a method that compares gradients takes them: at all shared parameters, with "
        "one backward pass for each task, or at the features.",
        show_default="the method's own",
        rich_help_panel=_WHAT,
    ),
]
MethodOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="Any option of the method, such as c=0.5 for cagrad; docs/methods.md lists them. "
        "Repeat it for several.",
        rich_help_panel=_WHAT,
    ),
]
Epochs = Annotated[
    int, typer.Option(help="Passes over the training examples.", rich_help_panel=_WHAT)
]
Seed = Annotated[
    int,
    typer.Option(
        help="Decides initial weights, order of examples and, unless --split-seed is given, which "
        "molecules are in which part.",
        rich_help_panel=_WHAT,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda|cuda:N",
        help="Where to compute; auto takes a GPU if there is one.",
        rich_help_panel=_WHAT,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        help="CPU threads. 1 is best for several runs side by side, and for small networks.",
        show_default="one per core",
        rich_help_panel=_TRAINING,
    ),
]
BatchSize = Annotated[int, typer.Option(help="Examples per step.", rich_help_panel=_TRAINING)]
LearningRate = Annotated[
    float,
    typer.Option(
        "--lr",
        help="Adam's learning rate at the start; it is multiplied by 0.7 after 5 epochs without a "
        "better validation Δm, down to 1e-5.",
        rich_help_panel=_TRAINING,
    ),
]
Bias = Annotated[
    bool,
    typer.Option(
        "--bias/--no-bias",
        help="Give heads a bias; the paper's have none.",
        rich_help_panel=_TRAINING,
    ),
]
Pretrain = Annotated[
    int | None,
    typer.Option(
        help="Epochs of ls before the first Bayesian one.",
        show_default="50",
        rich_help_panel=_BAYES,
    ),
]
Power = Annotated[
    float | None,
    typer.Option(
        help="Exponent of the precision in the weights: 0 weighs all tasks alike, 1 fully by "
        "certainty.",
        show_default="0.85",
        rich_help_panel=_BAYES,
    ),
]
PriorVariance = Annotated[
    float | None,
    typer.Option(
        help="Variance of the prior over head weights. The default suits the whole data set; a "
        "few thousand molecules want 1.",
        show_default="0.001",
        rich_help_panel=_BAYES,
    ),
]
Resolution = Annotated[
    str | None,
    typer.Option(
        metavar="example|dimension|task",
        help="What gets a weight of its own: each example and dimension (the paper), each "
        "dimension of a task, or each task.",
        show_default="example",
        rich_help_panel=_BAYES,
    ),
]
Covariance = Annotated[
    str | None,
    typer.Option(
        metavar="diagonal|full",
        help="Treat dimensions one by one, or together, which needs --power 1 and much more time.",
        show_default="diagonal",
        rich_help_panel=_BAYES,
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(
        metavar="posterior|plug-in",
        help="Average each gradient over the posterior (the paper), or take it at the posterior "
        "mean, where uncertainty decides the weights alone.",
        show_default="posterior",
        rich_help_panel=_BAYES,
    ),
]
Noise = Annotated[
    str | None,
    typer.Option(
        metavar="unit|learned|integrated",
        help="Noise of the regression heads: that of standardised targets (the paper), for each "
        "task what the training data make most probable, or unknown and integrated over.",
        show_default="unit",
        rich_help_panel=_BAYES,
    ),
]
Scale = Annotated[
    str | None,
    typer.Option(
        metavar="mean|sum",
        help="Size of the update: mean (the paper), or sum, which keeps the size that the "
        "pre-training had.",
        show_default="mean",
        rich_help_panel=_BAYES,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder for checkpoint, results and figures; made if missing.",
        show_default="results/BENCHMARK-METHOD-seedS",
        rich_help_panel=_OUTPUT,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on from the checkpoint in --out. Give the same settings; more --epochs and "
        "another --device are fine.",
        rich_help_panel=_OUTPUT,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Start anew even if --out holds a run.", rich_help_panel=_OUTPUT
    ),
]
Record = Annotated[
    int | None,
    typer.Option(
        metavar="EVERY",
        help="Write diagnostics of one training step in so many (features, posteriors, gradients, "
        "weights) into record.jsonl beside the results.",
        show_default="none",
        rich_help_panel=_OUTPUT,
    ),
]
Figures = Annotated[
    bool, typer.Option("--figures/--no-figures", help="Draw figures.", rich_help_panel=_OUTPUT)
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show the full traceback of an error.", rich_help_panel=_OUTPUT),
]
