"""Command-line options of presets, remedies and long runs."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.presets import PRESETS

__all__ = [
    "Activation",
    "ClipNorm",
    "Floor",
    "FreshShare",
    "Graph",
    "HalfLife",
    "LeaveBatchOut",
    "MaxAtoms",
    "MaxRatio",
    "Minutes",
    "PresetName",
    "Prior",
    "Schedule",
    "Smoothing",
]

_WHAT = "What to train"
_DATA = "Data"
_NETWORK = "Network"
_TRAINING = "Training"
_BAYES = "Bayesian aggregation (only with --method bayesagg)"
_OUTPUT = "Output"

PresetName = Annotated[
    str,
    typer.Option(
        "--preset",
        metavar="|".join(PRESETS),
        help="What other options start from: "
        + "; ".join(f"{preset.name}: {preset.about}" for preset in PRESETS.values())
        + ".",
        rich_help_panel=_WHAT,
    ),
]
MaxAtoms = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Only molecules of at most so many atoms, for studies at a smaller scale.",
        show_default="all",
        rich_help_panel=_DATA,
    ),
]
Activation = Annotated[
    str,
    typer.Option(
        metavar="relu|silu|elu|softplus|tanh",
        help="Of the features; all but relu have no dead units.",
        rich_help_panel=_NETWORK,
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        metavar="plateau|steps|cosine",
        help="How the learning rate falls: when the validation score stalls, in two steps, or "
        "along a cosine to 1e-5.",
        show_default="the preset's",
        rich_help_panel=_TRAINING,
    ),
]
Smoothing = Annotated[
    float | None,
    typer.Option(
        "--score-smoothing",
        metavar="SHARE",
        help="The plateau schedule looks at a moving average of the validation score, in which the "
        "past weighs so much.",
        show_default="0",
        rich_help_panel=_TRAINING,
    ),
]
ClipNorm = Annotated[
    float | None,
    typer.Option(
        help="Largest norm of all gradients together.",
        show_default="none",
        rich_help_panel=_TRAINING,
    ),
]
Graph = Annotated[
    str,
    typer.Option(
        metavar="auto|on|off|twin|compile",
        help="Capture steps in CUDA graphs: auto where it can be done. twin: the same way without "
        "capture, on any device. compile: the same with a compiled backbone, for long runs on a "
        "CPU.",
        rich_help_panel=_TRAINING,
    ),
]
Prior = Annotated[
    str | None,
    typer.Option(
        metavar="full-data|fresh|running|previous-batch|constant|evidence",
        help="Where priors come from: the last epoch's features (the paper), features computed "
        "anew at its end, all steps with forgetting, the batch before, no data, or the last epoch "
        "with the variance of highest evidence.",
        show_default="the preset's",
        rich_help_panel=_BAYES,
    ),
]
FreshShare = Annotated[
    float | None,
    typer.Option(
        help="Share of the training molecules that --prior fresh looks at.",
        show_default="1",
        rich_help_panel=_BAYES,
    ),
]
HalfLife = Annotated[
    float | None,
    typer.Option(
        help="Of a step's weight under --prior running, in molecules.",
        show_default="77000",
        rich_help_panel=_BAYES,
    ),
]
LeaveBatchOut = Annotated[
    bool | None,
    typer.Option(
        "--leave-batch-out/--keep-batch",
        help="Take a step's own molecules out of its prior, where they would count twice.",
        show_default="keep",
        rich_help_panel=_BAYES,
    ),
]
Floor = Annotated[
    float | None,
    typer.Option(
        help="Raise variances to this multiple of the tasks' median.",
        show_default="none",
        rich_help_panel=_BAYES,
    ),
]
MaxRatio = Annotated[
    float | None,
    typer.Option(
        help="Largest ratio of two tasks' weights.", show_default="none", rich_help_panel=_BAYES
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        metavar="M",
        help="Stop at the end of the last epoch that fits into so many minutes, with exit status "
        "3; --resume goes on.",
        show_default="no limit",
        rich_help_panel=_OUTPUT,
    ),
]
