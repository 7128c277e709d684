"""Cost of one refresh of every inference scheme: a binary head of 65 weights, 128 examples.

python -m benchmarks.schemes prints a table: processor milliseconds on one thread, and how far mean
and standard deviations are from a run of HMC, in units of its standard deviations.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import torch

from bayesagg_pyro import heads, inference, priors
from bayesagg_pyro.posteriors import Posterior


def schemes() -> dict[str, inference.Scheme]:
    """Every scheme for a binary head, as its defaults are."""
    return {
        "TaylorGGN()": inference.TaylorGGN(),
        "Laplace()": inference.Laplace(),
        "Delta()": inference.Delta(),
        "Ensemble()": inference.Ensemble(),
        'Variational("diagonal")': inference.Variational("diagonal"),
        'Variational("low_rank")': inference.Variational("low_rank"),
        "Variational()": inference.Variational(),
        "HMC()": inference.HMC(),
        "NUTS()": inference.NUTS(),
    }


def problem(tasks: int) -> tuple[heads.Head, torch.Tensor, torch.Tensor, Posterior]:
    """Labels drawn from a head of unit-variance weights on 64 standard normal features."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(128, 64, generator=generator, dtype=torch.float64)
    truth = torch.randn(64, tasks, generator=generator, dtype=torch.float64) / 4
    labels = torch.rand(128, tasks, generator=generator) < (features @ truth).sigmoid()
    torch.manual_seed(0)
    head = heads.Bernoulli(64, tasks)
    return head, features, labels.double(), priors.isotropic(head, 1 / 16)


def timed(call: Callable[[], Posterior]) -> tuple[float, Posterior]:
    """Processor milliseconds and result of a call; of the second one where the first was short."""
    for _ in range(2):
        start = time.process_time()
        found = call()
        cost = (time.process_time() - start) * 1e3
        if cost > 2e3:
            break
    return cost, found


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    head, h, y, prior = problem(1)
    reference = inference.HMC(1000, chains=1)
    truth = reference.infer(head, h, y, prior, generator=torch.Generator().manual_seed(1))
    spread = truth.variance.sqrt()
    print("| scheme | 1 task, ms | 20 tasks, ms | error of mean | error of sd |")
    print("| --- | --- | --- | --- | --- |")
    many = problem(20)
    for name, scheme in schemes().items():
        settings = {"generator": torch.Generator().manual_seed(2)}
        cost, found = timed(lambda: scheme.infer(head, h, y, prior, **settings))  # noqa: B023
        cost_many, _ = timed(lambda: scheme.infer(*many, **settings))  # noqa: B023
        mean = ((found.mean - truth.mean) / spread).square().mean().sqrt()
        sd = (found.variance.sqrt() / spread - 1).square().mean().sqrt()
        print(f"| `{name}` | {cost:.1f} | {cost_many:.1f} | {mean:.2f} | {sd:.2f} |", flush=True)


if __name__ == "__main__":
    main()
