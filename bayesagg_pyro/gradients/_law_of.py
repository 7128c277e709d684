"""Which form the joint law of logits and weights has, by posterior and number of classes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.gradients._interpolated_law import interpolated_law
from bayesagg_pyro.gradients._logit_laws import Law, dense_law, independent_law
from bayesagg_pyro.heads import Categorical
from bayesagg_pyro.posteriors import DiagonalGaussian, GaussianFamily, KroneckerGaussian

#: Classes from which no law has a matrix of C × d, or of C × C, for each example.
_MANY = 128


def law_of(head: Categorical, posterior: GaussianFamily, design: Tensor, dtype: torch.dtype) -> Law:
    """The law for some rows of a design matrix, in `dtype` once it is found."""
    law: Law
    if not independent(posterior):
        law = dense_law(head, posterior, design)
    elif many(head.classes) and isinstance(posterior, KroneckerGaussian):
        law = interpolated_law(head, posterior, design)
    else:
        law = independent_law(head, posterior, design, by_samples=many(head.classes))
    parts = {field.name: getattr(law, field.name) for field in fields(law)}
    moved: dict[str, Any] = {k: v.to(dtype) for k, v in parts.items() if isinstance(v, Tensor)}
    return replace(law, **moved)


def many(classes: int) -> bool:
    """Whether C weights for each feature of each example are too many to hold or to combine."""
    return classes > _MANY


def independent(posterior: GaussianFamily) -> bool:
    """Whether there is a basis in which all weights are independent."""
    return isinstance(posterior, DiagonalGaussian | KroneckerGaussian)
