"""One of two posteriors, chosen on their device by a flag that nobody looks at."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.posteriors._diagonal import DiagonalGaussian
from bayesagg_pyro.posteriors._family import GaussianFamily
from bayesagg_pyro.posteriors._kronecker import KroneckerGaussian
from bayesagg_pyro.posteriors._posterior import Posterior


def where(flag: Tensor, new: Posterior, old: Posterior) -> Posterior:
    """`new` where the flag is set, else `old`.

    Args:
        flag: [] bool.
        new: decides the kind of the result; two Gaussians of different kinds become dense ones.
        old: over the weights of the same head. Where it is of another kind that cannot be brought
            to that of `new` (samples beside a Gaussian), `new` is returned.
    """
    new, old = _alike(new, old)
    before, after = old.tensors(), new.tensors()
    if type(new) is not type(old) or before.keys() != after.keys():
        return new
    try:
        tensors = {name: torch.where(flag, t, before[name]) for name, t in after.items()}
    except RuntimeError:  # other numbers of samples, or another rank
        return new
    return new._rebuilt(tensors, new._info)


def _alike(new: Posterior, old: Posterior) -> tuple[Posterior, Posterior]:
    if not (isinstance(new, GaussianFamily) and isinstance(old, GaussianFamily)):
        return new, old
    old = old.to(new.mean.device, new.mean.dtype)
    if type(new) is type(old):
        return new, old
    if isinstance(new, KroneckerGaussian) and isinstance(old, DiagonalGaussian):
        outputs, inputs, count = map(torch.zeros_like, (new.outputs, new.inputs, new.count))
        return new, KroneckerGaussian(old.mean, outputs, inputs, count, old.precision[:, 0])
    return new.to_gaussian(), old.to_gaussian()
