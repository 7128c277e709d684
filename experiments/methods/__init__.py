"""Methods for multi-task training, chosen by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import nn

from bayesagg_pyro.heads import Head
from experiments.errors import SettingsError
from experiments.methods.base import Capture, Level, Method, MethodOptions, Needs, Scale
from experiments.methods.bayesagg import BayesAggMethod, BayesAggOptions
from experiments.methods.ensembles import HeadEnsemble, NetworkEnsemble, SingleTask
from experiments.methods.gap_balancing import GapBalancing
from experiments.methods.gradient_based import GradientBased, GradientOptions
from experiments.methods.network import Network
from experiments.methods.published import (
    Aligned,
    AlignedUb,
    Cagrad,
    ImtlG,
    Mgda,
    MgdaUb,
    NashMtl,
    Pcgrad,
)
from experiments.methods.torchjd import torchjd_method
from experiments.methods.torchjd_classes import PREFIX
from experiments.methods.weighted import (
    DynamicAverage,
    LinearScalarization,
    RandomWeights,
    ScaleInvariant,
    UncertaintyWeights,
    WeightedLosses,
)
from experiments.registry import imported

#: Every method with a name of its own; ``torchjd:NAME`` stands for one more for each class there,
#: ``module:Class`` for a user's.
METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        SingleTask,
        LinearScalarization,
        ScaleInvariant,
        RandomWeights,
        DynamicAverage,
        UncertaintyWeights,
        Mgda,
        MgdaUb,
        Pcgrad,
        Cagrad,
        ImtlG,
        NashMtl,
        GapBalancing,
        Aligned,
        AlignedUb,
        BayesAggMethod,
        HeadEnsemble,
        NetworkEnsemble,
    )
}

#: The methods of the paper's tables, in its order, BayesAgg last.
PAPER: tuple[str, ...] = (
    "stl",
    "ls",
    "si",
    "rlw",
    "dwa",
    "uw",
    "mgda",
    "pcgrad",
    "cagrad",
    "imtl-g",
    "nash-mtl",
    "igbv2",
    "aligned-mtl-ub",
    "bayesagg",
)

#: The paper's comparison to standard approximate Bayesian training.
ENSEMBLES: tuple[str, ...] = ("ensemble-heads", "ensemble-networks")


def find(name: str) -> type[Method]:
    """The method called ``name``.

    Raises:
        SettingsError: There is none; the message lists those there are. Or it is one of TorchJD's,
            which is not installed, or ``module:Class`` is no method.
    """
    if name.startswith(PREFIX):
        return torchjd_method(name)
    if ":" in name:
        found: type[Method] = imported(f"method = {name!r}", name, Method)
        return found
    if name not in METHODS:
        raise SettingsError(
            f"method = {name!r} is unknown: give one of {', '.join(METHODS)}, {PREFIX}NAME for an "
            "aggregator or scalarization of TorchJD, or module:Class for one of your own"
        )
    return METHODS[name]


def current(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name and options of a method as any version recorded them, as this one would."""
    kind, options = METHODS.get(str(said.get("name"))), said.get("options")
    if kind is None or not isinstance(options, Mapping):
        return said
    return {**said, "options": kind.options_type.current(options)}


def check(name: str, options: MethodOptions) -> type[Method]:
    """The method called ``name``, whose options are of the right type.

    Raises:
        SettingsError: There is no such method, ``options`` are another method's, or their level is
            not one of the method's.
    """
    kind = find(name)
    if type(options) is not kind.options_type:
        raise SettingsError(
            f"method {name} takes {kind.options_type.__name__}, not {type(options).__name__}"
        )
    if isinstance(options, GradientOptions):
        kind.require_level(options.level)
    return kind


def options(
    name: str, given: Mapping[str, Any], usual: Mapping[str, Mapping[str, Any]] | None = None
) -> MethodOptions:
    """Options of a method: those that are given, the benchmark's or the method's for the rest.

    ``level`` may be given for any method, to be told why it does not fit if it does not.

    Args:
        name: The method.
        given: Values by name; None stands for "not given".
        usual: The benchmark's ``method_options``.

    Raises:
        SettingsError: There is no such method, it has no such option, or the value cannot work.
    """
    method = find(name)
    kind = method.options_type
    chosen = {key: value for key, value in given.items() if value is not None}
    if "level" in chosen:
        method.require_level(chosen["level"])
        if not issubclass(kind, GradientOptions):
            del chosen["level"]
    try:
        return kind(**{**(usual or {}).get(name, {}), **kind.arrange(name, chosen)})
    except TypeError as error:  # a word where a number belongs
        raise SettingsError(f"options {chosen} of method {name} cannot work: {error}") from error


def make(
    name: str,
    backbone: nn.Module,
    heads: Mapping[str, Head],
    options: MethodOptions,
    *,
    another: Callable[[], tuple[nn.Module, Mapping[str, Head]]] | None = None,
    joint: Collection[str] = (),
) -> Method:
    """The method called ``name`` on a backbone and heads.

    Args:
        name: The method.
        backbone: The network that it trains.
        heads: ``{name: head}`` on the backbone's features.
        options: Its options.
        another: Makes another backbone and heads; needed by methods that train several networks.
        joint: Heads whose outputs are one task together.

    Raises:
        SettingsError: As in :func:`check`, or ``another`` is missing.
    """
    kind: Any = check(name, options)
    if another is None and "another" in kind.wants:
        raise SettingsError(f"method {name} trains several networks: give make(..., another=...)")
    given = {"another": another, "joint": joint}
    method: Method = kind(backbone, heads, options, **{key: given[key] for key in kind.wants})
    return method
