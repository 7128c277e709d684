"""Check that a Pyro model treats the draws and the examples of a batch independently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.targets import Targets

if TYPE_CHECKING:
    from bayesagg_pyro.heads._from_pyro import FromPyro


def check_batches(head: FromPyro, features: Tensor, targets: Tensor) -> None:
    """Run the model on two draws at once, and on an example by itself.

    Args:
        head: made of the model, with weights.
        features: [B, d].
        targets: [B, tasks], or [B] for one task.

    Raises:
        SettingError: if the model cannot be run in a batch, or its densities change there.
    """
    owner = f"head {head.site!r}"
    values = targets.reshape(-1, head.tasks)
    weight = head.weight.detach().double()  # inference runs in float64
    weight = torch.stack([weight, -weight])
    with torch.no_grad():
        each = [head.negative_log_probs(features, Targets(values), w) for w in weight]
        alone = head.negative_log_probs(features[:1], Targets(values[:1]), weight[0])
        try:
            both = head.negative_log_probs(features, Targets(values), weight)
        except (RuntimeError, TypeError) as error:
            raise SettingError(
                f"{owner}: the model cannot be run on many draws at once by torch.func.vmap; "
                "values may not decide its course, nor tensors be written in place, as "
                f"OrderedLogistic does (give Categorical its probabilities instead): {error}"
            ) from error
    if not torch.allclose(both, torch.stack(each), equal_nan=True):
        raise SettingError(
            f"{owner}: the model gives other densities on many draws than on one; does it draw "
            "random numbers other than by pyro.sample?"
        )
    if not torch.allclose(alone, each[0][:1], equal_nan=True):
        raise SettingError(
            f"{owner}: the log-density of an example changes with the others in the batch; a "
            "head's examples must be independent given its weights (and not subsampled)"
        )
