"""Where heads meet the stage that predicts: it is built from heads, and registers its ways here."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from torch import Tensor

from bayesagg_pyro.errors import UnsupportedError


@singledispatch
def predictive_of(head: Any, features: Tensor, posterior: Any, **options: Any) -> Any:
    """p(y | h) of a head, by the function that `bayesagg_pyro.predictive` registers for its type.

    As torch's `register_kl` does for divergences; arguments as of `predictive.predictive`.
    """
    raise UnsupportedError(f"there is no predictive distribution for a {type(head).__name__}")
