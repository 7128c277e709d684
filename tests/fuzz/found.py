"""Cases that broke once, made small; each stays in the short run."""

from __future__ import annotations

from tests.fuzz.draw import Call, Case, Part

__all__ = ["FOUND"]

_START = (Call(), Call("update_prior"), Call("start_bayes"))
_KEPT = (("keep_gradients", True),)


def _one(head: str, *calls: Call, **options: str | None) -> Case:
    return Case(parts=(Part(head, **options),), settings=_KEPT, calls=calls)


FOUND: dict[str, Case] = {
    # State made in another grad mode.
    "sums made under inference_mode are added to": _one(
        "heads.Gaussian(2)", Call(), Call("update_prior", mode="inference"), Call()
    ),
    "a prior made under inference_mode is renewed in place": _one(
        "heads.Bernoulli(2)",
        Call(),
        Call("update_prior", mode="inference"),
        Call(),
        Call("update_prior"),
        prior="priors.FullData(in_place=True)",
    ),
    "a posterior mean made under inference_mode teaches an embedding": _one(
        "heads.Gaussian(2).embed(heads.Body(body(2), 2))",
        *_START,
        Call(),
        Call("update_prior", mode="inference"),
        Call(),
    ),
    "sums made under inference_mode fade": _one(
        "heads.Gaussian(2)",
        Call("collect", mode="inference", mask="partial"),
        Call(),
        prior="priors.Running(10)",
    ),
    "a flag of deferred validation made under inference_mode": Case(
        parts=(Part("heads.Gaussian(2)"),),
        settings=(("validate", "'deferred'"),),
        calls=(Call("collect", mode="inference"), Call()),
    ),
    "Variational under inference_mode": _one(
        "heads.Bernoulli(2)",
        Call(),
        Call("update_prior", mode="inference"),
        scheme="inference.Variational(steps=5)",
    ),
    "NUTS under inference_mode": _one(
        "heads.Bernoulli(2)",
        Call("collect", examples=6),
        Call("update_prior", mode="inference"),
        scheme="inference.NUTS(draws=4, warmup=3, chains=1)",
    ),
    "Ensemble under inference_mode": _one(
        "heads.Bernoulli(2)",
        Call(),
        Call("update_prior", mode="inference"),
        scheme="inference.Ensemble(members=4)",
    ),
    # Refused after something had changed.
    "Fresh keeps the batches of a refused update": Case(
        parts=(Part("heads.Bernoulli(2)", prior="priors.Fresh()"), Part("heads.Bernoulli(2)")),
        calls=(Call("update_prior"),),
    ),
    "one head's batch is refused, another's is taken": Case(
        parts=(
            Part("heads.Gaussian(2)"),
            Part("heads.Gaussian(2)", "inference.Ensemble()", "priors.PreviousBatch()"),
        ),
        calls=(Call(), Call("collect")),
    ),
    "a base prior that the curvature cannot be added to": _one(
        "heads.Bernoulli(2)",
        Call(),
        Call("update_prior"),
        scheme="inference.TaylorGGN('diag')",
        prior="priors.FullData(base=lambda head: priors.dense(head, covariance(head)))",
    ),
    "a base prior that only a saved state would have found": _one(
        "heads.Bernoulli(2)",
        Call("collect"),
        scheme="inference.Laplace('diag')",
        prior="priors.Running(10, base=lambda head: priors.dense(head, covariance(head)))",
    ),
    "in place of what is no Gaussian": _one(
        "heads.Gaussian(2)",
        *_START,
        Call(),
        Call("update_prior"),
        scheme="inference.IntegratedNoise()",
        prior="priors.FullData(in_place=True)",
    ),
    "an estimator that its head cannot take": _one(
        "heads.Categorical(2, 3)", *_START, Call(), estimator="gradients.Quadrature(16)"
    ),
    "no exact moments": _one("heads.Bernoulli(2)", *_START, Call(), estimator="gradients.Exact()"),
    "Delta has nothing to temper": _one(
        "heads.Bernoulli(2)",
        Call(),
        Call("update_prior"),
        scheme="inference.Delta()",
        prior="priors.FullData(temperature=4.0)",
    ),
    "draws of a step that is refused": Case(
        parts=(Part("heads.Gaussian(2)", estimator="gradients.MonteCarlo(16)"),),
        settings=(("generator", "torch.Generator().manual_seed(1)"),),
        calls=(*_START, Call(targets=1e30)),
    ),
    # Taken, and everything after it fails.
    "features that half precision does not hold": _one(
        "heads.Bernoulli(2)",
        Call("collect", features=1e6),
        Call("update_prior"),
        prior="priors.FullData(storage=inference.Storage(dtype=torch.float16))",
    ),
    "precisions that half precision does not hold": _one(
        "heads.Categorical(2, 3)",
        Call(weight="huge"),
        Call("update_prior"),
        prior="priors.FullData(dtype=torch.float16)",
    ),
    "a curvature that overflows": _one(
        "heads.Poisson(2)", Call("collect", features=1e15), Call("update_prior")
    ),
    "targets whose fit overflows in the next step": _one(
        "heads.Gaussian(2)",
        Call(),
        Call("collect", targets=1e30),
        Call("update_prior"),
        Call("start_bayes"),
        Call(),
    ),
    # Side effects.
    "a variational update leaves gradients": _one(
        "heads.Ordinal(2, 3)",
        Call("collect"),
        Call("update_prior"),
        scheme="inference.Variational(steps=5)",
    ),
    # Values.
    "tasks without a label": _one("heads.Poisson(2, 3)", Call(mask="task")),
    "a tiny weight is no certainty": _one("heads.StudentT(2, 2)", *_START, Call(weight="tiny")),
    "full covariances in pieces of tasks": Case(
        parts=(Part("heads.Gaussian(2, 2)", "inference.Laplace()", "priors.Fresh()"),),
        aggregation="aggregation.PrecisionWeighted(covariance='full')",
        calls=(*_START, Call(law="chunked", examples=6)),
    ),
    # Targets as they come.
    "lists of values and masks": _one(
        "heads.Bernoulli(2)", Call(mask="partial", form="list", weight="spread")
    ),
    "log_prob of [B]": _one("heads.Gaussian(2)", *_START, Call("predictive")),
    "log_prob of integer labels": _one(
        "heads.Bernoulli(2)", *_START, Call("predictive", form="int")
    ),
    "log_prob of draws for [B]": _one(
        "heads.Gaussian(2)", *_START, Call("predictive"), scheme="inference.Delta()"
    ),
    **{
        f"a bad state {seed}": _one("heads.Bernoulli(2)", *_START, Call("load_bad", seed=seed))
        for seed in range(12)
    },
    "features that float16 has not, predicted for under deferred validation": Case(
        parts=(Part("heads.Gaussian(2, 3)"),),
        settings=(("validate", "'deferred'"),),
        dtype="float16",
        calls=(Call("collect"), Call("update_prior"), Call("predictive", features=1e15)),
    ),
}
