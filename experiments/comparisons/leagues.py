"""Leagues: every method on one data set, each at the learning rate that validation chose for it."""

from __future__ import annotations

from typing import Any, Final

from experiments.comparisons.entries import QM9_SMALL, Comparison, Entry

OURS: Final = "defaults"
_FEATURES: Final = {"level": "representation"}


def _everybody(**ours: Any) -> list[Entry]:
    """The paper's methods, its ensembles, four younger ones and ours, slow ones last.

    Methods that compare gradients do so at the features, where they can.

    Args:
        ours: Options of Bayesian aggregation beside its default rule.
    """
    return [
        Entry("ls", "LS", "ls"),
        Entry(OURS, "BayesAgg", changes={**ours, "rule": "default"}),
        Entry("si", "SI", "si"),
        Entry("uw", "UW", "uw"),
        Entry("rlw", "RLW", "rlw"),
        Entry("dwa", "DWA", "dwa"),
        Entry("stch", "STCH", "torchjd:STCH"),
        Entry("famo", "FAMO", "torchjd:FAMO"),
        Entry("igbv2", "IGBv2", "igbv2"),
        Entry("mgda", "MGDA", "mgda", _FEATURES),
        Entry("pcgrad", "PCGrad", "pcgrad", _FEATURES),
        Entry("cagrad", "CAGrad", "cagrad", _FEATURES),
        Entry("imtl-g", "IMTL-G", "imtl-g", _FEATURES),
        Entry("aligned-mtl-ub", "Aligned-MTL-UB", "aligned-mtl-ub"),
        Entry("upgrad", "UPGrad", "torchjd:UPGrad", _FEATURES),
        Entry("fairgrad", "FairGrad", "torchjd:FairGrad", _FEATURES),
        Entry("stl", "STL", "stl"),
        Entry("ensemble-heads", "Ensemble (heads)", "ensemble-heads"),
        Entry("ensemble-networks", "Ensemble (networks)", "ensemble-networks"),
        Entry(
            "nash-mtl",
            "Nash-MTL, a bargain in ten steps",
            "nash-mtl",
            {**_FEATURES, "update_weights_every": 10},
        ),
    ]


def _fitted(aggregator: str, title: str, **ours: Any) -> Entry:
    """A published aggregator on gradients at the heads of the default rule."""
    changes = {**ours, "rule": "default", "aggregator": aggregator}
    return Entry(f"fitted-{aggregator.lower()}", f"{title} on fitted heads", changes=changes)


def _neighbours(**ours: Any) -> list[Entry]:
    """What else could be done with the same posteriors.

    Args:
        ours: Options of Bayesian aggregation beside its rule.
    """
    default = {**ours, "rule": "default"}
    return [
        Entry(OURS, "BayesAgg", changes=default),
        Entry("bargain", "BayesAgg, a bargain", changes={**default, "aggregator": "Bargain"}),
        _fitted("IMTLG", "IMTL-G", **ours),
        _fitted("FairGrad", "FairGrad", **ours),
        _fitted("AlignedMTL", "Aligned-MTL", **ours),
        _fitted("UPGrad", "UPGrad", **ours),
        Entry(
            "evidence",
            "BayesAgg, prior variance from the evidence",
            changes={**default, "prior": "evidence"},
        ),
        Entry(
            "running",
            "BayesAgg, a prior that keeps up within the epoch",
            changes={**default, "prior": "running"},
        ),
        Entry(
            "once",
            "BayesAgg, a batch left out of its prior",
            changes={**default, "leave_batch_out": True},
        ),
        Entry(
            "half",
            "BayesAgg, s = 0.5 for all",
            changes={
                **ours,
                "rule": "given",
                "resolution": "task",
                "power": 0.5,
                "mean": "learned",
            },
        ),
    ]


#: Adam's second moments at 0.999 remember 1,000 steps, of which a run has 360.
_DIGITS: Final[dict[str, Any]] = {
    "changes": {"threads": 1},
    "seeds": range(10, 20),
    "tuned": {"learning_rate": (1e-2, 3e-2, 1e-1), "beta2": (0.9, 0.999)},
    "tuning_seeds": (20, 21),
    "ours": OURS,
}
_RAND: Final[dict[str, Any]] = {
    "changes": {"threads": 1, "fitted_bias": True},
    "seeds": (10, 11, 12),
    "tuned": {"learning_rate": (1e-3, 3e-3, 1e-2)},
    "tuning_seeds": (20,),
    "ours": OURS,
}
#: Weight decay, which Adam adds to gradients, is weak for a method whose updates are long.
_TOX21: Final[dict[str, Any]] = {
    **_RAND,
    "tuned": {"learning_rate": (1e-3, 3e-3), "weight_decay": (1e-4, 3e-3)},
}
_CIFAR: Final[dict[str, Any]] = {
    "changes": {
        "source": "cifar10",
        "training": 10_000,
        "validation": 1_000,
        "width": 32,
        "epochs": 10,
        "learning_rate": 5e-3,
        "optimizer": "adamw",  # Adam's decay is strong for a method whose updates are short
        **_RAND["changes"],
    },
    "seeds": range(10, 15),
    "tuned": {"weight_decay": (0.1, 0.5)},
    "tuning_seeds": (20, 21),
    "ours": OURS,
}
_LIBRARY: Final = {"pretrain": 5, "prior_variance": 1.0, "reduction": "sum"}
_QM9: Final[dict[str, Any]] = {
    "changes": {**QM9_SMALL, "epochs": 40},
    "seeds": (10, 11, 12),
    "tuned": {"learning_rate": (3e-3, 1e-2)},
    "tuning_seeds": (20,),
    "ours": OURS,
}
_DIGITS_POWERS: Final = Entry(
    "powers",
    "BayesAgg, s = 0.5 / 0.4 / 0.4",
    changes={
        "resolution": "task",
        "power": {"regression": 0.5, "binary": 0.4, "classes": 0.4},
        "mean": "learned",
    },
)
#: Four tasks have a fourth of the step, after a warm-up that is the same: the rule, or its length?
_DIGITS_SHORTER: Final = Entry(
    "bargain-shorter",
    "BayesAgg, a bargain, a quarter of the step",
    changes={"rule": "default", "aggregator": "Bargain", "reduction": "mean"},
)

LEAGUES: Final = (
    Comparison(
        "league-digits",
        "scikit-learn's digits: every method, 20 epochs, ten seeds; seconds a run on one core",
        "digits",
        _everybody(),
        **_DIGITS,
    ),
    Comparison(
        "neighbours-digits",
        "scikit-learn's digits: other uses of the same posteriors, trained as in league-digits",
        "digits",
        [*_neighbours(), _DIGITS_POWERS, _DIGITS_SHORTER],
        **_DIGITS,
    ),
    Comparison(
        "league-tox21",
        "Tox21 from fingerprints, random split: every method, 20 epochs; half a minute a run on "
        "one core",
        "tox21",
        _everybody(),
        **_TOX21,
    ),
    Comparison(
        "neighbours-tox21",
        "Tox21: other uses of the same posteriors, trained as in league-tox21",
        "tox21",
        _neighbours(),
        **_TOX21,
    ),
    Comparison(
        "league-rand",
        "the RAND health insurance experiment: every method, 10 epochs; half a minute a run on one "
        "core",
        "rand",
        _everybody(),
        **_RAND,
    ),
    Comparison(
        "neighbours-rand",
        "the RAND experiment: other uses of the same posteriors, trained as in league-rand",
        "rand",
        _neighbours(),
        **_RAND,
    ),
    Comparison(
        "league-cifar",
        "CIFAR-10, ten binary tasks, 10,000 training images, width 32: every method, 10 epochs; "
        "about a minute a run on one core",
        "cifar-mtl",
        _everybody(prior_variance=1.0, reduction="sum"),
        **_CIFAR,
    ),
    Comparison(
        "neighbours-cifar",
        "CIFAR-10: other uses of the same posteriors, trained as in league-cifar",
        "cifar-mtl",
        _neighbours(prior_variance=1.0, reduction="sum"),
        **_CIFAR,
    ),
    Comparison(
        "league-qm9",
        "6,000 molecules of at most 17 atoms, width 32, cosine schedule: every method, 40 epochs; "
        "two to six minutes a run on one core",
        "qm9",
        _everybody(**_LIBRARY),
        **_QM9,
    ),
    Comparison(
        "league-qm9-full",
        "all 110,831 molecules, the paper's network and batches, cosine schedule: every method, 30 "
        "epochs, a tenth of the paper's; about three hours a run on one core",
        "qm9",
        _everybody(**{**_LIBRARY, "pretrain": 1}),
        {"epochs": 30, "schedule": "cosine", "network": "bfloat16", "threads": 1},
        seeds=(0,),
        tuned={"learning_rate": (1e-3, 3e-3)},
        tuning_seeds=(20,),
        tuning_changes={"epochs": 2},
        ours=OURS,
    ),
    Comparison(
        "neighbours-qm9",
        "molecules: other uses of the same posteriors, trained as in league-qm9",
        "qm9",
        [
            *_neighbours(**_LIBRARY),
            Entry(
                "summed",
                "BayesAgg, weights that sum to 1",
                changes={**_LIBRARY, "resolution": "task", "power": 0.8},
            ),
        ],
        **_QM9,
    ),
)
"""All that there are; ``comparisons.COMPARISONS`` has them by name."""
