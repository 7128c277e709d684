"""Heads, schemes, policies, estimators and aggregations, drawn as expressions.

What does not fit together is drawn now and then as well: it must be refused by name.
"""

from __future__ import annotations

from random import Random
from typing import Any

__all__ = ["aggregation", "estimator", "head", "prior", "scheme"]


def _make(name: str, *args: object, **options: object) -> str:
    """The code of a call."""
    given = [str(arg) for arg in args] + [f"{key}={value}" for key, value in options.items()]
    return f"{name}({', '.join(given)})"


def _maybe(rng: Random, chance: float, **options: Any) -> dict[str, Any]:
    """Each option with that probability; of a list one is chosen."""
    return {
        name: rng.choice(value) if isinstance(value, list) else value
        for name, value in options.items()
        if rng.random() < chance
    }


# -- heads -------------------------------------------------------------------------------------

_KINDS = ["Gaussian"] * 5 + ["Bernoulli"] * 4 + ["Categorical"] * 3
_KINDS += ["Poisson", "StudentT", "Ordinal", "NegativeBinomial", "Heteroscedastic"]


def head(rng: Random, d: int) -> str:
    """A head of d features."""
    tasks = rng.choice([1, 1, 2, 3, 4])
    rare = rng.random()
    if rare < 0.004:
        return _make("heads.FromPyro", "linear_model", d)
    if rare < 0.01:
        points = f"torch.linspace(-1, 1, {3 * d}).reshape(3, {d})"
        return _make("heads.GaussianProcess", d, tasks, inducing=points)
    if rare < 0.05:
        likelihood = rng.choice(["Gaussian", "Bernoulli", "Poisson", "StudentT"])
        name = rng.choice(["heads.Network", "heads.Network.last_layer"])
        plain = _make(f"heads.{likelihood}", d, tasks, bias=True)
        return _make(name, f"network({d}, {tasks})", plain)
    plain = _linear(rng, d, tasks)
    return f"{plain}.embed(heads.Body(body({d}), {d}))" if rare < 0.09 else plain


def _linear(rng: Random, d: int, tasks: int) -> str:
    kind = rng.choice(_KINDS)
    options = _maybe(rng, 0.5, bias=[True, False])
    each = [rng.choice([0.1, 0.5, 1.0, 3.0]) for _ in range(tasks)]
    scales = [0.3, 1e-3, 30.0, each]
    classes = rng.choice([2, 3, 3, 5])
    if kind == "Gaussian":
        options |= _maybe(rng, 0.5, noise_scale=[*scales, "'learned'"])
    elif kind == "Bernoulli":
        options |= _maybe(rng, 0.25, pos_weight=scales)
    elif kind == "StudentT":
        options |= _maybe(rng, 0.5, df=[1.0, 2.5, 30.0], scale=scales)
    elif kind == "NegativeBinomial":
        options |= {"dispersion": rng.choice([0.1, 1.0, 20.0])}
    elif kind == "Categorical":
        weights = str([rng.choice([0.2, 1.0, 5.0]) for _ in range(classes)])
        options |= _maybe(rng, 0.25, class_weight=weights)
        return _make("heads.Categorical", d, classes, tasks=tasks, **options)
    elif kind == "Ordinal":
        cuts = str(sorted(rng.sample([-2.0, -1.0, -0.1, 0.0, 0.5, 2.0], classes - 1)))
        options |= _maybe(rng, 0.4, link="'probit'", cutpoints=cuts)
        return _make("heads.Ordinal", d, classes, tasks, **options)
    options |= _maybe(rng, 0.3, missing="'nan'")
    return _make(f"heads.{kind}", d, tasks, **options)


# -- schemes -----------------------------------------------------------------------------------


def scheme(rng: Random, head: str) -> str | None:
    """One that fits the head, mostly."""
    chance = rng.random()
    if chance < 0.25:
        return None
    if chance < 0.27:
        return rng.choice(["inference.Conjugate()", "inference.Laplace('kron', max_steps=20)"])
    if chance < 0.33:
        return _iterative(rng)
    structures = ["'full'"] * 3 + ["'diag'"] + ["'kron'"] * head.startswith("heads.Categorical")
    structure = rng.choice(structures)
    if head.startswith("heads.Gaussian") and rng.random() < 0.65:
        shape = _maybe(rng, 0.3, shape=5.0)
        choices = ["inference.Conjugate()"] * 4 + [_make("inference.IntegratedNoise", **shape)]
        return rng.choice(choices)
    taylor = _make("inference.TaylorGGN", structure)
    laplace = _make("inference.Laplace", structure, max_steps=20)
    return rng.choice([taylor, taylor, taylor, laplace, laplace, "inference.Delta()"])


def _iterative(rng: Random) -> str:
    refresh = _maybe(rng, 0.5, refresh=["'step'", "'epoch'", 2])
    kind = rng.choice(["Ensemble", "Variational"] * 4 + ["NUTS", "HMC", "LaplaceTorch"])
    if kind == "LaplaceTorch":
        return _make("inference.LaplaceTorch", **refresh)
    if kind == "Ensemble":
        return _make("inference.Ensemble", members=4, **refresh)
    if kind == "Variational":
        guide = rng.choice(["'full'", "'diagonal'", "'low_rank'"])
        return _make("inference.Variational", guide, steps=5, draws=8, **refresh)
    return _make(f"inference.{kind}", draws=4, warmup=3, chains=1, **refresh)


# -- priors ------------------------------------------------------------------------------------

_BASES = [
    "lambda head: priors.isotropic(head, 0.3)",
    "lambda head: priors.diagonal(head, 2.0, mean=0.1)",
    "lambda head: priors.dense(head, covariance(head))",
    "lambda head: priors.weight_and_bias(head, 1.0, 10.0)",
]
_STORAGES = ["streaming=True", "dtype=torch.float16", "capacity=3"]


def prior(rng: Random) -> str | None:
    """A policy."""
    if rng.random() < 0.2:
        return None
    shared = _maybe(rng, 0.2, variance=[0.1, 100.0, 1e-6, 1e6], temperature=[0.5, 4.0])
    if rng.random() < 0.1:
        shared = _maybe(rng, 0.3, temperature=2.0) | {"base": rng.choice(_BASES)}
    out = _maybe(rng, 0.15, leave_batch_out=True)
    in_place = _maybe(rng, 0.15, in_place=True)
    storage = _maybe(rng, 0.15, storage=f"inference.Storage({rng.choice(_STORAGES)})")
    names = ["FullData", "PreviousBatch", "Running", "Constant"] * 4 + ["Fresh"] * 2 + ["learned"]
    kind = rng.choice(names)
    if kind == "Constant":
        return _make("priors.Constant", **shared, **storage)
    if kind == "PreviousBatch":
        return _make(
            "priors.PreviousBatch", rng.choice([0.05, 0.0, 0.3, 1.0]), **shared, **in_place
        )
    if kind == "Running":
        refresh = _maybe(rng, 0.3, refresh=[2, 3])
        return _make("priors.Running", rng.choice([1.0, 10, 1e4]), **shared, **out, **refresh)
    if kind == "Fresh":
        examples = _maybe(rng, 0.5, examples=5)
        return _make("priors.Fresh", **shared, **out, **in_place, **storage, **examples)
    if kind == "learned":
        options = _maybe(rng, 0.4, variance=["'task'", "'shared'"], bounds="(1e-2, 1e2)")
        shared["variance"] = _make("priors.Evidence", **options)
        kind = rng.choice(["FullData", "FullData", "Fresh", "Constant"])
        return _make(f"priors.{kind}", **shared, **(out | in_place if kind != "Constant" else {}))
    packed = _maybe(rng, 0.15, dtype=["torch.float32", "torch.float64", "torch.float16"])
    return _make("priors.FullData", **shared, **out, **in_place, **storage, **packed)


# -- estimators and aggregations -----------------------------------------------------------------


def estimator(rng: Random) -> str | None:
    """None mostly."""
    chance = rng.random()
    if chance < 0.75:
        return None
    if chance < 0.95:
        return rng.choice(["gradients.MonteCarlo(16)", "gradients.PlugIn()"])
    return rng.choice(
        [f"gradients.{way}" for way in ("Exact()", "Quadrature(16)", "Conditional(16)")]
    )


def aggregation(rng: Random, heads: int) -> str | None:
    """Precision weights mostly."""
    chance = rng.random()
    if chance < 0.1:
        return None
    if chance < 0.2:
        return f"aggregation.{rng.choice(['Mean', 'Sum', 'Bargain'])}()"
    if chance < 0.32:
        names = ["UPGrad", "MGDA", "Mean", "PCGrad", "IMTLG", "AlignedMTL", "GradVac"]
        inner = rng.choice([f"torchjd.{name}()" for name in names] + ["torchjd.CAGrad(c=0.5)"])
        ways = [f"aggregation.PerSample({inner}, samples=3)", f"aggregation.TorchJD({inner})"]
        return rng.choice([*ways, ways[1]])
    if chance < 0.4:
        return "aggregation.PrecisionWeighted(covariance='full')"
    power: Any = rng.choice([0.0, 0.3, 0.5, 0.5, 0.85, 1.0, 1.0])
    if rng.random() < 0.2:
        power = {f"h{i}": rng.choice([0.0, 0.5, 1.0]) for i in range(heads)}
    options = _maybe(rng, 0.5, resolution=["'example'", "'dimension'", "'task'"])
    options |= _maybe(rng, 0.2, floor=[0.1, 2.0], max_ratio=[1.0, 10.0])
    weighted = _make("aggregation.PrecisionWeighted", power, **options)
    return f"aggregation.PerSample({weighted}, samples=3)" if chance < 0.45 else weighted
