"""Named comparisons: entries that differ in one thing; data, of which :mod:`.tuning` makes runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from experiments.comparisons.entries import QM9_SMALL, Comparison, Entry
from experiments.comparisons.leagues import LEAGUES
from experiments.errors import SettingsError

# A fifth of the epochs, so that a setting is two to four minutes of one core.
_SHORT: Final = {**QM9_SMALL, "epochs": 40}
_BASE: Final = {"pretrain": 5, "resolution": "dimension"}
_TASK: Final = {"resolution": "task"}
_HALF: Final = {"power": 0.5}
_PLATEAU: Final = {"schedule": "plateau", "plateau_factor": 0.7, "plateau_patience": 2}

_LS: Final = Entry("ls", "LS", "ls")
_SI: Final = Entry("si", "SI", "si")


def _recommended(label: str, title: str, **changes: Any) -> Entry:
    return Entry(label, title, changes=changes, preset="recommended")


def _paper(label: str, title: str, **changes: Any) -> Entry:
    return Entry(label, title, changes=changes)


def _changed(label: str, title: str, **changes: Any) -> Entry:
    """One thing changed from the base of the ablations."""
    return _recommended(label, title, **{**_BASE, **changes})


_ABLATIONS: Final = (
    _changed("base", "base: weights per dimension"),
    _LS,
    _SI,
    _paper("paper", "BayesAgg, paper", pretrain=8),
    _changed("prior-variance", "γ = 1e-3", prior_variance=1e-3),
    _changed("scale", "weights that sum to 1", reduction="mean"),
    _changed("resolution", "weights per example", resolution="example"),
    _changed("task-resolution", "weights per task (recommended)", **_TASK),
    _changed("fresh-share", "fresh features of a quarter of the molecules", fresh_share=0.25),
    _changed("full-data", "prior of the last epoch's features", prior="full-data"),
    _changed("running", "prior with forgetting", prior="running", half_life=4200.0),
    _changed(
        "task-running",
        "weights per task, prior with forgetting",
        **_TASK,
        prior="running",
        half_life=4200.0,
    ),
    _changed("task-half", "weights per task, s = 0.5", **_TASK, power=0.5),
    _changed(
        "task-powers",
        "weights per task, s = 0.5 for the four energies and 0.8 for the others",
        **_TASK,
        power=[0.8] * 6 + [0.5] * 4 + [0.8],
    ),
    _changed("task-1", "weights per task, s = 1", **_TASK, power=1.0),
    _changed("task-noise", "weights per task, learned noise", **_TASK, noise="learned"),
    _changed(
        "task-noise-half",
        "weights per task, learned noise, s = 0.5",
        **_TASK,
        noise="learned",
        power=0.5,
    ),
    _changed(
        "task-noise-evidence",
        "weights per task, noise and prior variance from the evidence",
        **_TASK,
        noise="learned",
        prior="evidence",
    ),
    _changed("evidence", "prior variance from the evidence", prior="evidence"),
    _changed("leave-batch-out", "batch taken out of its prior", leave_batch_out=True),
    _changed("mean-only", "s = 0", power=0.0),
    _changed("power-0.5", "s = 0.5", power=0.5),
    _changed("power-1", "s = 1", power=1.0),
    _changed("long-pretraining", "pre-training of 24 epochs", pretrain=24),
    _changed("plug-in", "gradient at the posterior mean", mean="plug-in"),
    _changed("floor", "variances of at least a tenth of the median", floor=0.1),
    _changed("max-ratio", "weights within a factor of 10", max_ratio=10.0),
    _changed("bias", "bias in the head", head_bias=True),
    _changed("clip", "gradients clipped to norm 1", clip_norm=1.0),
    _changed("plateau", "plateau schedule", **_PLATEAU),
    _changed("smoothed", "plateau schedule on a smoothed score", **_PLATEAU, score_smoothing=0.8),
    _changed("task-plateau", "weights per task, plateau schedule", **_TASK, **_PLATEAU),
    Entry("ls-plateau", "LS, plateau schedule", "ls", _PLATEAU),
    Entry("si-plateau", "SI, plateau schedule", "si", _PLATEAU),
    _changed("silu", "SiLU features", activation="silu"),
)
"""What is changed, one thing at a time."""


def _rates() -> list[Entry]:
    """LS, SI and the recommended preset, each at several learning rates."""
    base = (_LS, _recommended("recommended", "BayesAgg, recommended", pretrain=5), _SI)
    return [
        replace(
            entry,
            label=f"{entry.label}-{thousandths}",
            title=f"{entry.title}, rate {thousandths}e-3",
            changes={**entry.changes, "learning_rate": thousandths / 1000},
        )
        for thousandths in (1, 2, 3, 5, 10, 20)
        for entry in base
    ]


_CIFAR_BASE: Final = {"prior_variance": 1.0, "reduction": "sum"}


def _cifar(label: str, title: str, **changes: Any) -> Entry:
    """The benchmark's own options, with a step that stays as large as that of the pre-training."""
    return Entry(label, title, changes={**_CIFAR_BASE, **changes})


_ALL: Final = (
    Comparison(
        "demo",
        "3,000 molecules, a network of half the width, 24 epochs on the CPU",
        "qm9",
        # One of each kind that takes about as long a step as LS.
        [
            _LS,
            Entry("uw", "UW", "uw"),
            Entry("imtl-g", "IMTL-G", "imtl-g", {"level": "representation"}),
            Entry("aligned-mtl-ub", "Aligned-MTL-UB", "aligned-mtl-ub"),
            Entry("bayesagg", "BayesAgg"),
        ],
        {"device": "cpu", "threads": 1},
        preset="small",
        seeds=(0,),
    ),
    Comparison(
        "digits",
        "scikit-learn's digits: regression, two binary tasks and ten classes, five seeds; seconds "
        "a run on one core",
        "digits",
        [
            _LS,
            _SI,
            Entry("uw", "UW", "uw"),
            Entry("imtl-g", "IMTL-G", "imtl-g", {"level": "representation"}),
            Entry("nash-mtl", "Nash-MTL", "nash-mtl", {"level": "representation"}),
            Entry("defaults", "BayesAgg, the library's defaults", changes={"rule": "default"}),
            Entry("dimension", "BayesAgg, the benchmark's own powers, weights per dimension"),
            Entry(
                "half", "BayesAgg, s = 0.5 for all, weights per task", changes={**_TASK, **_HALF}
            ),
            Entry(
                "half-learned",
                "the same, learned weights give the mean of classes",
                changes={**_TASK, **_HALF, "mean": "learned"},
            ),
            Entry(
                "regression-only",
                "a fitted regression head alone: s = 0, learned weights for classes",
                changes={**_TASK, "power": 0.0, "mean": "learned"},
            ),
        ],
        {"threads": 1},
        seeds=range(5),
    ),
    Comparison(
        "qm9-small",
        "6,000 molecules of at most 17 atoms, width 32, batch 60, 200 epochs (pre-training: 40 "
        "of them in the paper's preset, 8 in the recommended one), cosine schedule; eight to "
        "thirteen minutes a run on one core",
        "qm9",
        # Shares of the epochs as in the presets: a sixth rounded up to a fifth, and a 25th.
        [
            _LS,
            _recommended("recommended", "BayesAgg, recommended", pretrain=8),
            _SI,
            _paper("paper", "BayesAgg, paper", pretrain=40),
            Entry(
                "defaults",
                "BayesAgg, the library's defaults",
                changes={"pretrain": 8, "prior": "full-data", "rule": "default"},
                preset="recommended",
            ),
        ],
        QM9_SMALL,
    ),
    Comparison(
        "qm9-ablations",
        "one thing changed at a time, from weights per dimension (the recommended preset has "
        "one per task); 40 epochs, two to three minutes a run on one core",
        "qm9",
        _ABLATIONS,
        _SHORT,
        seeds=(0,),
    ),
    Comparison(
        "qm9-rates",
        "LS, SI and the recommended preset at learning rates from 1e-3 to 2e-2; 40 epochs, two "
        "to three minutes a run on one core",
        "qm9",
        _rates(),
        _SHORT,
    ),
    Comparison(
        "qm9-paper",
        "the published protocol: all molecules, 300 epochs, of which 50 are pre-training "
        "in the paper's preset, plateau schedule; a GPU's work",
        "qm9",
        # The published grid of powers beside LS, and the recommended preset.
        [
            _LS,
            _paper("paper-0.85", "BayesAgg, paper, s = 0.85", power=0.85),
            _recommended("recommended", "BayesAgg, recommended"),
            _paper("paper-0.75", "BayesAgg, paper, s = 0.75", power=0.75),
            _paper("paper-0.95", "BayesAgg, paper, s = 0.95", power=0.95),
            _SI,
        ],
    ),
    Comparison(
        "cifar-small",
        "CIFAR-10, ten binary tasks, 10,000 training images, width 64, 20 epochs (BayesAgg: 3 of "
        "them pre-training); four minutes a run on one core",
        "cifar-mtl",
        [
            _LS,
            _cifar("bayesagg", "BayesAgg: γ = 1, s = 5e-4, scale kept"),
            _cifar("mean-only", "s = 0", power=0.0),
            _cifar("plug-in", "uncertainty in the weights only", mean="plug-in"),
            _cifar("example", "s = 0.5, weights per example", power=0.5),
            _cifar(
                "dimension", "s = 0.5, weights per dimension", power=0.5, resolution="dimension"
            ),
            _cifar("task", "s = 0.5, weights per task", power=0.5, resolution="task"),
            _cifar("scale", "weights that sum to 1", reduction="mean"),
            _cifar(
                "narrow", "weights that sum to 1, γ = 5e-4", reduction="mean", prior_variance=5e-4
            ),
        ],
        {
            "source": "cifar10",
            "training": 10_000,
            "validation": 1_000,
            "width": 64,
            "epochs": 20,
            "threads": 1,
        },
    ),
)

COMPARISONS: Final[Mapping[str, Comparison]] = {found.name: found for found in (*_ALL, *LEAGUES)}


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
