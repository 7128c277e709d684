"""The comparisons there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from experiments import methods
from experiments.compare.cifar import CIFAR_SMALL
from experiments.compare.comparison import Comparison, Entry
from experiments.errors import SettingsError
from experiments.methods import MethodOptions
from experiments.presets import PAPER, RECOMMENDED, Preset
from experiments.qm9.benchmark import Qm9

__all__ = ["COMPARISONS", "find"]

# 6,000 molecules of at most 17 atoms and a narrow network: minutes on one core, not hours.
_SMALL: Final = Qm9(molecules=6000, max_atoms=17, width=32, edge_width=16, passes=2, groups=1)
_SMALL_SETTINGS: Final = {"epochs": 200, "batch_size": 60, "schedule": "cosine", "threads": 1}
# Shares of the epochs as in the presets: a sixth rounded up to a fifth, and a twenty-fifth.
_SMALL_PAPER: Final = {"pretrain": 40}
_SMALL_RECOMMENDED: Final = {"pretrain": 8}
# A fifth of the epochs, so that a setting is two to four minutes of one core.
_SHORT_SETTINGS: Final = {**_SMALL_SETTINGS, "epochs": 40}
_SHORT_BASE: Final = {"pretrain": 5, "resolution": "dimension"}

_PLATEAU: Final = {"schedule": "plateau", "plateau_factor": 0.7, "plateau_patience": 2}

_ABLATIONS: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("prior-variance", "γ = 1e-3", {"prior_variance": 1e-3}),
    ("scale", "weights that sum to 1", {"scale": "mean"}),
    ("resolution", "weights per example", {"resolution": "example"}),
    ("task-resolution", "weights per task (recommended)", {"resolution": "task"}),
    ("fresh-share", "fresh features of a quarter of the molecules", {"fresh_share": 0.25}),
    ("full-data", "prior of the last epoch's features", {"prior": "full-data"}),
    ("running", "prior with forgetting", {"prior": "running", "half_life": 4200.0}),
    (
        "task-running",
        "weights per task, prior with forgetting",
        {"resolution": "task", "prior": "running", "half_life": 4200.0},
    ),
    ("task-half", "weights per task, s = 0.5", {"resolution": "task", "power": 0.5}),
    (
        "task-powers",
        "weights per task, s = 0.5 for the four energies and 0.8 for the others",
        {"resolution": "task", "power": [0.8] * 6 + [0.5] * 4 + [0.8]},
    ),
    ("task-1", "weights per task, s = 1", {"resolution": "task", "power": 1.0}),
    ("task-noise", "weights per task, learned noise", {"resolution": "task", "noise": "learned"}),
    (
        "task-noise-half",
        "weights per task, learned noise, s = 0.5",
        {"resolution": "task", "noise": "learned", "power": 0.5},
    ),
    (
        "task-noise-evidence",
        "weights per task, noise and prior variance from the evidence",
        {"resolution": "task", "noise": "learned", "prior": "evidence"},
    ),
    ("evidence", "prior variance from the evidence", {"prior": "evidence"}),
    ("leave-batch-out", "batch taken out of its prior", {"leave_batch_out": True}),
    ("mean-only", "s = 0", {"power": 0.0}),
    ("power-0.5", "s = 0.5", {"power": 0.5}),
    ("power-1", "s = 1", {"power": 1.0}),
    ("long-pretraining", "pre-training of 24 epochs", {"pretrain": 24}),
    ("plug-in", "gradient at the posterior mean", {"mean": "plug-in"}),
    ("floor", "variances of at least a tenth of the median", {"floor": 0.1}),
    ("max-ratio", "weights within a factor of 10", {"max_ratio": 10.0}),
)
"""What is changed, one thing at a time."""


def _entry(
    label: str,
    title: str,
    method: str,
    preset: Preset,
    *,
    settings: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    benchmark: Qm9 | None = None,
) -> Entry:
    made: MethodOptions
    if method == "bayesagg":
        made = preset.make_options(method, options or {})
    else:
        made = methods.options(method, {})
    return Entry(label, title, method, made, preset.make_settings(settings or {}), benchmark)


def _main(
    settings: Mapping[str, Any], paper: Mapping[str, Any], recommended: Mapping[str, Any]
) -> list[Entry]:
    """LS, SI, the paper's preset and the recommended one."""
    return [
        _entry("ls", "LS", "ls", PAPER, settings=settings),
        _entry("recommended", "BayesAgg, recommended", "bayesagg", RECOMMENDED,
               settings=settings, options=recommended),
        _entry("si", "SI", "si", PAPER, settings=settings),
        _entry("paper", "BayesAgg, paper", "bayesagg", PAPER,
               settings=settings, options=paper),
    ]  # fmt: skip


def _ablations(settings: Mapping[str, Any], options: Mapping[str, Any]) -> list[Entry]:
    changed = [
        _entry(label, title, "bayesagg", RECOMMENDED, settings=settings,
               options={**options, **change})
        for label, title, change in _ABLATIONS
    ]  # fmt: skip
    trainer = [
        _entry("bias", "bias in the head", "bayesagg", RECOMMENDED,
               settings={**settings, "head_bias": True}, options=options),
        _entry("clip", "gradients clipped to norm 1", "bayesagg", RECOMMENDED,
               settings={**settings, "clip_norm": 1.0}, options=options),
        _entry("plateau", "plateau schedule", "bayesagg", RECOMMENDED,
               settings={**settings, **_PLATEAU}, options=options),
        _entry("smoothed", "plateau schedule on a smoothed score", "bayesagg", RECOMMENDED,
               settings={**settings, **_PLATEAU, "score_smoothing": 0.8}, options=options),
    ]  # fmt: skip
    plateau = {**settings, **_PLATEAU}
    per_task = {**options, "resolution": "task"}
    schedules = [
        _entry("task-plateau", "weights per task, plateau schedule", "bayesagg", RECOMMENDED,
               settings=plateau, options=per_task),
        _entry("ls-plateau", "LS, plateau schedule", "ls", PAPER, settings=plateau),
        _entry("si-plateau", "SI, plateau schedule", "si", PAPER, settings=plateau),
    ]  # fmt: skip
    base = _entry("base", "base: weights per dimension", "bayesagg", RECOMMENDED,
                  settings=settings, options=options)  # fmt: skip
    others = [
        entry for entry in _main(settings, {"pretrain": 8}, options) if entry.label != "recommended"
    ]
    return [base, *others, *changed, *trainer, *schedules]


def _rates(settings: Mapping[str, Any]) -> list[Entry]:
    """LS, SI and the recommended preset, each at several learning rates."""
    found = []
    for rate in (1e-3, 2e-3, 3e-3, 5e-3, 1e-2, 2e-2):
        number = round(rate * 1e3)
        for entry in _main({**settings, "learning_rate": rate}, {}, {"pretrain": 5}):
            if entry.label != "paper":
                title = f"{entry.title}, rate {number}e-3"
                found.append(replace(entry, label=f"{entry.label}-{number}", title=title))
    return found


def _paper() -> list[Entry]:
    """The published grid of powers beside LS, with the published schedule, and the recommended."""
    powers = [
        _entry(f"paper-{s}", f"BayesAgg, paper, s = {s}", "bayesagg", PAPER, options={"power": s})
        for s in (0.85, 0.75, 0.95)
    ]
    return [
        _entry("ls", "LS", "ls", PAPER),
        powers[0],
        _entry("recommended", "BayesAgg, recommended", "bayesagg", RECOMMENDED),
        *powers[1:],
        _entry("si", "SI", "si", PAPER),
    ]


def _all() -> dict[str, Comparison]:
    silu = _entry("silu", "SiLU features", "bayesagg", RECOMMENDED, settings=_SHORT_SETTINGS,
                  options=_SHORT_BASE, benchmark=_changed(activation="silu"))  # fmt: skip
    found = (
        Comparison(
            "qm9-small",
            "6,000 molecules of at most 17 atoms, width 32, batch 60, 200 epochs (pre-training: 40 "
            "of them in the paper's preset, 8 in the recommended one), cosine schedule; eight to "
            "thirteen minutes a run on one core",
            _SMALL,
            _main(_SMALL_SETTINGS, _SMALL_PAPER, _SMALL_RECOMMENDED),
        ),
        Comparison(
            "qm9-ablations",
            "one thing changed at a time, from weights per dimension (the recommended preset has "
            "one per task); 40 epochs, two to three minutes a run on one core",
            _SMALL,
            [*_ablations(_SHORT_SETTINGS, _SHORT_BASE), silu],
            seeds=(0,),
        ),
        Comparison(
            "qm9-rates",
            "LS, SI and the recommended preset at learning rates from 1e-3 to 2e-2; 40 epochs, two "
            "to three minutes a run on one core",
            _SMALL,
            _rates(_SHORT_SETTINGS),
        ),
        Comparison(
            "qm9-paper",
            "the published protocol: all molecules, 300 epochs, of which 50 are pre-training "
            "in the paper's preset, plateau schedule; a GPU's work",
            Qm9(),
            _paper(),
        ),
        CIFAR_SMALL,
    )
    return {comparison.name: comparison for comparison in found}


def _changed(**changes: Any) -> Qm9:
    return Qm9(**{**_SMALL.options(), **changes})


COMPARISONS: Final[dict[str, Comparison]] = _all()


def find(name: str) -> Comparison:
    """The comparison called ``name``.

    Raises:
        SettingsError: There is none; the message lists those there are.
    """
    if name not in COMPARISONS:
        raise SettingsError(
            f"comparison = {name!r} is unknown: give one of {', '.join(COMPARISONS)}"
        )
    return COMPARISONS[name]
