"""Options of the image benchmarks, and the run that they describe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import typer

from experiments import methods
from experiments.benchmark import Benchmark
from experiments.cli.launch import friendly, launch
from experiments.cli.method_options import merged
from experiments.errors import SettingsError
from experiments.run import Run

__all__ = [
    "DATA",
    "NETWORK",
    "Bias",
    "Depth",
    "LearningRate",
    "PowerText",
    "Pretrain",
    "PriorVariance",
    "ScheduleName",
    "Seed",
    "SplitSeed",
    "WeightDecay",
    "Weights",
    "describe",
    "power_of",
    "train",
]

DATA = "Data"
NETWORK = "Network"
_WHAT = "What to train"
_TRAINING = "Training"
_BAYES = "Bayesian aggregation (only with --method bayesagg)"

Seed = Annotated[
    int,
    typer.Option(
        help="Decides initial weights, order and augmentation of images and, unless --split-seed "
        "is given, which images are in which part.",
        rich_help_panel=_WHAT,
    ),
]
SplitSeed = Annotated[
    int | None,
    typer.Option(
        help="Decides which images are in which part.",
        show_default="--seed",
        rich_help_panel=DATA,
    ),
]
Depth = Annotated[
    int, typer.Option(help="Layers of the residual network, 18 or 34.", rich_help_panel=NETWORK)
]
Weights = Annotated[
    str,
    typer.Option(
        metavar="imagenet|none|FILE",
        help="What the network starts from: ImageNet weights through torchvision, nothing, or a "
        "file with a state dict.",
        rich_help_panel=NETWORK,
    ),
]
LearningRate = Annotated[
    float,
    typer.Option("--lr", help="Adam's learning rate at the start.", rich_help_panel=_TRAINING),
]
WeightDecay = Annotated[float, typer.Option(help="Adam's.", rich_help_panel=_TRAINING)]
ScheduleName = Annotated[
    str,
    typer.Option(
        metavar="steps|plateau|cosine",
        help="steps: a tenth of the learning rate after 60 % and again after 80 % of the epochs; "
        "plateau: 0.7 times it after 5 epochs without a better validation score; cosine: along a "
        "cosine to 1e-5.",
        rich_help_panel=_TRAINING,
    ),
]
Bias = Annotated[
    bool,
    typer.Option("--bias/--no-bias", help="Give heads a bias.", rich_help_panel=_TRAINING),
]
Pretrain = Annotated[
    int | None,
    typer.Option(
        help="Epochs of ls before the first Bayesian one.",
        show_default="the paper's for this benchmark",
        rich_help_panel=_BAYES,
    ),
]
PowerText = Annotated[
    str | None,
    typer.Option(
        "--power",
        metavar="S|HEAD=S,...",
        help="Exponent of the precision in the weights: 0 weighs all tasks alike, 1 fully by "
        "certainty. One for all heads, or one for each.",
        show_default="the paper's for this benchmark",
        rich_help_panel=_BAYES,
    ),
]
PriorVariance = Annotated[
    float | None,
    typer.Option(
        help="Variance of the prior over head weights.",
        show_default="this benchmark's",
        rich_help_panel=_BAYES,
    ),
]


def power_of(text: str | None) -> float | dict[str, float] | None:
    """``"0.5"`` is one power for all heads, ``"age=0.5,gender=0.05"`` one for each.

    Raises:
        SettingsError: It is neither.
    """
    if text is None:
        return None
    try:
        if "=" not in text:
            return float(text)
        pairs = [part.split("=") for part in text.split(",")]
        powers = {name.strip(): float(value) for name, value in pairs}
    except ValueError as error:
        raise SettingsError(
            f"power = {text!r} cannot be read: give a number such as 0.5, or one for each head "
            "such as age=0.5,gender=0.05,ethnicity=0.05"
        ) from error
    if len(powers) < len(pairs):
        raise SettingsError(f"power = {text!r} names a head twice: give one number for each")
    return powers


#: Options of the method, and of training by the name of their setting.
_METHOD: Final = (
    "pretrain",
    "power",
    "prior_variance",
    "resolution",
    "scale",
    "covariance",
    "mean",
)
_SETTINGS: Final = {
    "epochs": "epochs",
    "batch_size": "batch_size",
    "learning_rate": "lr",
    "weight_decay": "weight_decay",
    "schedule": "schedule",
    "seed": "seed",
    "device": "device",
    "head_bias": "bias",
}


def describe(benchmark: Benchmark, given: Mapping[str, Any]) -> Run:
    """The run of a benchmark with what was given on the command line.

    Args:
        benchmark: Data, backbone and heads.
        given: Every option of the command by its parameter's name; those of the benchmark itself
            are passed over.

    Raises:
        SettingsError: Something does not fit.
    """
    method = str(given["method"])
    named = {name: given[name] for name in _METHOD}
    named["power"] = power_of(named["power"])
    options = merged(named, given["level"], given["option"])
    settings = {setting: given[option] for setting, option in _SETTINGS.items()}
    chosen = methods.options(method, options, benchmark.method_options)
    if isinstance(chosen, methods.BayesAggOptions):
        chosen = _powers_of_heads(benchmark, chosen, given=named["power"] is not None)
    return Run(
        benchmark=benchmark,
        method=method,
        options=chosen,
        settings=dataclasses.replace(benchmark.default_settings, **settings),
    )


def train(make: Callable[[], Benchmark], given: Mapping[str, Any]) -> None:
    """Describe the run and do it; what goes wrong is printed as one line.

    Args:
        make: Makes the benchmark, which may refuse its settings.
        given: As for :func:`describe`.
    """
    with friendly(given["debug"]) as console:
        launch(
            describe(make(), given),
            given["out"],
            resume=given["resume"],
            overwrite=given["overwrite"],
            draw=given["figures"],
            console=console,
            record=given["record"],
        )


def _powers_of_heads(
    benchmark: Benchmark, options: methods.BayesAggOptions, *, given: bool
) -> methods.BayesAggOptions:
    """Powers by head, of the heads that there are.

    Args:
        benchmark: Its usual powers are for all heads, of which an option may leave some out.
        options: Of the method.
        given: Whether the powers are the user's.

    Raises:
        SettingsError: The user's are for other heads.
    """
    power = options.power
    if not isinstance(power, Mapping):
        return options
    names = list(benchmark.heads(True))
    if given and set(power) != set(names):
        raise SettingsError(
            f"--power is given for {', '.join(power)}; the heads are {', '.join(names)}: give one "
            "for each, or one number for all"
        )
    return dataclasses.replace(
        options, power={name: value for name, value in power.items() if name in names}
    )
