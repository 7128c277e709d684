"""One of two posteriors, chosen on their device by a flag, or task by task."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.posteriors._diagonal import DiagonalGaussian
from bayesagg_pyro.posteriors._empirical import Empirical
from bayesagg_pyro.posteriors._family import GaussianFamily
from bayesagg_pyro.posteriors._kronecker import KroneckerGaussian
from bayesagg_pyro.posteriors._posterior import Posterior


def where(flag: Tensor, new: Posterior, old: Posterior) -> Posterior:
    """`new` where the flag is set, else `old`.

    Args:
        flag: [] bool, or [tasks].
        new: decides the kind of the result; two Gaussians of different kinds become dense ones, but
            an isotropic `old` beside a Kronecker `new`, which must be that where it is diagonal.
        old: over the weights of the same head. Where it is of another kind that cannot be brought
            to that of `new` (samples beside a Gaussian), `new` is returned.
    """
    new, old = _alike(new, old)
    before, after = old.tensors(), new.tensors()
    if type(new) is not type(old) or before.keys() != after.keys():
        return new
    try:
        tensors = {
            name: torch.where(_over(flag, t.ndim, new), t, before[name])
            for name, t in after.items()
        }
    except RuntimeError:  # other numbers of samples, or another rank
        return new
    info = new._info
    if flag.ndim and info is not None and old._info is not None:
        info = info.where(flag, old._info)
    return new._rebuilt(tensors, info)


def _over(flag: Tensor, dims: int, posterior: Posterior) -> Tensor:
    """The flag over tensors of so many axes, of which that of tasks is the first."""
    if not flag.ndim:
        return flag
    return flag.reshape(-1, *[1] * (dims - 1 - isinstance(posterior, Empirical)))


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
