"""Time and memory of a case's steps, in turns: LS, by the default rule, with all posteriors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import heads
from bayesagg_pyro.aggregation import PrecisionWeighted
from benchmarks.cases import Case
from benchmarks.published import SAMPLES, published_binary_step, published_softmax_step
from benchmarks.timing import interleave, peak_memory

#: Settings of Bayesian steps: of a `BayesAgg(heads)`, and of one whose steps read every posterior.
RULES: dict[str, dict[str, Any]] = {"default": {}, "all": {"aggregation": PrecisionWeighted()}}
#: Entries of a matrix of the published algorithm, in 2 GiB, above which it is left out.
_LARGE = 2**29


def measure(case: Case, rounds: int = 10, seed: int = 0) -> dict[str, Any]:
    """Time and memory of a warm-up step, which is LS's, and of Bayesian ones.

    Returns:
        ``seconds`` and ``peak_bytes`` of "ls" and of each of `RULES`, ``over_ls`` of the latter and
        of "published" where that can be had: ratio with an interval.
        Times are those of the processor, which other work on the machine does not add to.
    """
    torch.manual_seed(seed)
    inputs = torch.randn(case.inputs)
    all_read = RULES["all"]
    calls = {"ls": _step(case, inputs, all_read, bayes=False)}
    calls |= {rule: _step(case, inputs, given) for rule, given in RULES.items()}
    for call in calls.values() if not case.slow else ():
        call()
    peak_bytes = {name: peak_memory(call) for name, call in calls.items()}
    timings = interleave(calls, rounds=rounds, warmup=0, clock=time.process_time)
    over_ls = {rule: list(timings.ratio(rule, "ls")) for rule in RULES}
    published = _published(case, inputs)
    if published is not None:
        two = interleave(
            {"ls": calls["ls"], "published": published},
            rounds=max(2, rounds // 5),
            warmup=1,
            clock=time.process_time,
        )
        over_ls["published"] = list(two.ratio("published", "ls"))
    schemes = _engine(case, all_read).schemes
    return {
        "case": case.name,
        "schemes": ", ".join(dict.fromkeys(map(repr, schemes.values()))),
        "seconds": {name: timings.median(name) for name in calls},
        "over_ls": over_ls,
        "peak_bytes": peak_bytes,
    }


def _published(case: Case, inputs: Tensor) -> Callable[[], None] | None:
    """A step of the published algorithm, for binary tasks and for classes.

    It is left out where its Jacobian or the gradients at all its draws are too large, and of more
    than 4,096 weights, whose cube it takes.
    """
    made = case.heads()
    head = next(iter(made.values()))
    if len(made) > 1 or type(head) not in (heads.Bernoulli, heads.Categorical) or inputs.ndim > 2:
        return None
    outputs = head.classes if isinstance(head, heads.Categorical) else head.tasks
    weights = outputs * (head.in_features + 1)
    drawn = SAMPLES * len(inputs) * head.tasks * head.in_features
    if max(len(inputs) * outputs * weights, 32 * weights**2, drawn) > _LARGE:
        return None
    step = published_softmax_step if outputs > head.tasks else published_binary_step
    return step(inputs, _targets(head, inputs))


def _engine(case: Case, settings: Mapping[str, Any]) -> ba.BayesAgg:
    return ba.BayesAgg(case.heads(), **{**settings, **case.settings})


def _step(
    case: Case, inputs: Tensor, settings: Mapping[str, Any], *, bayes: bool = True
) -> Callable[[], None]:
    backbone = case.backbone()
    mtl = _engine(case, settings)
    with torch.no_grad():
        features = backbone(inputs)
    each = [(name, head) for name, head in mtl.heads.items() if isinstance(head, heads.Head)]
    targets = {name: _targets(head, features) for name, head in each}
    mtl.collect(features, targets)
    mtl.update_prior()
    if bayes:
        mtl.start_bayes()
    mtl.eval()  # an epoch's examples are not kept
    backbone.train()

    def step() -> None:
        backbone.zero_grad()
        mtl.zero_grad()
        mtl.backward(backbone(inputs), targets)

    return step


def _targets(head: heads.Head, features: Tensor) -> Tensor:
    """Of rows [B, d] or pixels [B, d, H, W]."""
    batch, *pixels = features.shape[0], *features.shape[2:]
    if isinstance(head, heads.Categorical):
        return torch.randint(head.classes, (batch, head.tasks, *pixels))
    values = torch.randn(batch, head.tasks, *pixels)
    if isinstance(head, heads.Ordinal):
        return torch.randint(head.classes, values.shape)
    counts = isinstance(head, heads.Bernoulli | heads.Poisson | heads.NegativeBinomial)
    return (values > 1).float() if counts else values
