"""Priors over very many tasks, made some tasks at a time and kept packed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro._pieces import LARGE, fitting, slices
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.heads._part import divisible, part
from bayesagg_pyro.inference import Examples, Statistics
from bayesagg_pyro.inference._cross_validation import with_noise
from bayesagg_pyro.posteriors import DiagonalGaussian, GaussianFamily, PackedGaussian, Posterior


def packed_posterior(
    head: Head, statistics: Statistics, base: GaussianFamily, dtype: torch.dtype, **how: Any
) -> Posterior:
    """`statistics.posterior(base, **how)`, its precision packed into `dtype` if it is dense.

    Raises:
        SettingError: if the scheme's posterior is no Gaussian.
    """
    size = fitting(5 * head.weight_size**2, 4 * LARGE)  # so many dense matrices for each task
    if head.tasks <= size or not (divisible(head) and isinstance(statistics, Examples)):
        return packed(head, statistics.posterior(base, **how), dtype)
    parts: list[dict[str, Tensor]] = []
    for rows in slices(head.tasks, size):
        own = part(head, rows)
        made = statistics.part(own, rows).posterior(base.part(rows), **how)
        made = packed(head, made, dtype)
        if not isinstance(made, PackedGaussian):  # no large matrices: all at once
            return statistics.posterior(base, **how)
        parts.append(made.tensors())
    whole = {name: torch.cat([own[name] for own in parts]) for name in parts[0]}
    made = PackedGaussian(
        whole["mean"],
        whole["lower"],
        whole.get("scale"),
        outputs_per_task=head.outputs_per_task,
    )
    return with_noise(head, made, statistics.chunks(), statistics.share)


def not_packed(head: Head, kind: type[Posterior]) -> SettingError:
    """Says why posteriors of that kind cannot be packed."""
    return SettingError(
        f"head {head.site!r}: only dense Gaussian priors are kept in another precision, not "
        f"{kind.__name__}; make the policy with dtype=None"
    )


def packed(head: Head, posterior: Posterior, dtype: torch.dtype) -> Posterior:
    """The posterior in `dtype` if it is dense, diagonal ones as they are.

    Raises:
        SettingError: if it is no Gaussian.
    """
    if not isinstance(posterior, GaussianFamily):
        raise not_packed(head, type(posterior))
    if isinstance(posterior, DiagonalGaussian):
        return posterior
    return PackedGaussian.pack(posterior, dtype)
