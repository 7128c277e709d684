"""What a head needs of a user's network: one example at a time, no random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesagg_pyro.errors import SettingError, ShapeError

_NORMS = (nn.modules.batchnorm._NormBase,)
_DROPOUT = (nn.modules.dropout._DropoutNd,)


def check_module(module: nn.Module, in_features: int) -> None:
    """Refuse modules whose output for one example depends on the others or on chance.

    Raises:
        SettingError: naming the submodule.
        ShapeError: if the module does not map [B, d] to [B, outputs].
    """
    if not isinstance(module, nn.Module):
        raise SettingError(f"a torch.nn.Module is needed, not {type(module).__name__}")
    for name, part in module.named_modules():
        label = f"{name or 'the module'} ({type(part).__name__})"
        if isinstance(part, _NORMS):
            raise SettingError(
                f"{label} normalises over the batch, so that examples mix and have no gradient of "
                "their own; use LayerNorm or GroupNorm in heads"
            )
        if isinstance(part, _DROPOUT) and part.p > 0:
            raise SettingError(
                f"{label} draws random numbers; the posterior over weights is the randomness of a "
                "head: leave dropout to the backbone"
            )
    x = probe(module, in_features, 3)
    with torch.no_grad():
        try:
            together = in_precision(module, x)
        except RuntimeError as error:
            raise ShapeError(
                f"the module does not take [3, {in_features}], [examples, features]: {error}"
            ) from error
        if together.shape[:1] != (3,) or together.ndim != 2:
            raise ShapeError(
                f"the module maps [3, {in_features}] to {list(together.shape)}; heads need "
                "[examples, outputs]"
            )
        alone = in_precision(module, x[:1])
    if not torch.allclose(together[:1], alone, rtol=1e-6, atol=1e-8):
        raise SettingError(
            "the module's output for an example changes with the others in the batch (or with "
            "chance); heads need modules that treat examples one by one"
        )


def output_size(module: nn.Module, in_features: int) -> int:
    """Numbers that the module gives for each example."""
    with torch.no_grad():
        return int(in_precision(module, probe(module, in_features, 2)).shape[-1])


def widest(module: nn.Module, in_features: int) -> int:
    """The largest number of entries that a submodule gives for one example."""
    sizes = [in_features]

    def note(_: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel())

    hooks = [part.register_forward_hook(note) for part in module.modules()]
    try:
        with torch.no_grad():
            in_precision(module, probe(module, in_features, 1))
    finally:
        for hook in hooks:
            hook.remove()
    return max(sizes)


def in_precision(module: nn.Module, features: Tensor) -> Tensor:
    """The module's output with its parameters and buffers in the features' precision."""
    return call(module, dict(module.named_parameters()), features)


def call(module: nn.Module, parameters: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """The module's output at given parameters (others keep theirs), in the features' precision."""
    own = {**dict(module.named_parameters()), **dict(module.named_buffers()), **parameters}
    cast = {k: v.to(features.dtype) if v.is_floating_point() else v for k, v in own.items()}
    output: Tensor = torch.func.functional_call(module, cast, (features,))
    return output


def probe(module: nn.Module, in_features: int, examples: int) -> Tensor:
    """Features that are not all alike, without touching any generator's state."""
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    count = examples * in_features
    ramp = torch.arange(count, dtype=torch.float64, device=device).reshape(examples, in_features)
    return (ramp * 0.7).sin()
