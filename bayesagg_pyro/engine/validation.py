"""Validation of batches: at once on the CPU, deferred on an accelerator.

Looking at a value on an accelerator waits for it. Deferred validation keeps a flag there instead,
turns the update of a bad batch into zeros, and raises when the engine synchronises anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.engine.batch import Batch
from bayesagg_pyro.engine.settings import check_names
from bayesagg_pyro.errors import NonFiniteError, SettingError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.targets import RawTargets, Targets

if TYPE_CHECKING:
    from bayesagg_pyro.engine.pipeline import HeadStages

__all__ = ["Guard", "refuse_weights", "reported_losses"]


class Guard:
    """Checks batches and remembers what deferred checks found.

    Args:
        mode: "now", "deferred", or "auto": "now" for features on the CPU.

    Raises:
        SettingError: for another mode.
    """

    def __init__(self, mode: Literal["auto", "now", "deferred"]) -> None:
        if mode not in ("auto", "now", "deferred"):
            raise SettingError(f'validate must be "auto", "now" or "deferred", not {mode!r}')
        self.mode = mode
        self._bad: Tensor | None = None  # set in place, so that replays of a captured step find it

    def defers(self, features: Tensor) -> bool:
        """Whether to leave values to the device, for these features."""
        return self.mode == "deferred" or (
            self.mode == "auto" and isinstance(features, Tensor) and features.device.type != "cpu"
        )

    def parse(
        self, heads: Mapping[str, Head], features: Tensor, targets: Mapping[str, RawTargets]
    ) -> Batch:
        """The batch with parsed targets, and for deferred validation a flag on the device.

        Heads that `targets` leaves out have no label in this batch.

        Raises:
            ShapeError, DtypeError, DeviceError, TaskError: always at once.
            NonFiniteError, SettingError: for bad values, unless deferred.
        """
        deferred = self.defers(features)
        check_names(targets, heads, all_of_them=False)
        observed: dict[str, Targets] = {}
        for name, head in heads.items():
            head.check_features(features, values=not deferred)
            observed[name] = (
                head.parse_targets(targets[name], len(features), validate=not deferred)
                if name in targets
                else head.unlabelled(len(features))
            )
        if not deferred:
            return Batch(features, observed, None)
        valid = features.detach().isfinite().all()
        for name, head in heads.items():
            valid = valid & head.valid(observed[name])
            weight = observed[name].weight
            if weight is not None:
                valid = valid & (weight.isfinite() & (weight >= 0)).all()
        return Batch(features, observed, valid)

    def check_finite(
        self,
        what: str,
        values: Sequence[Tensor],
        valid: Tensor | None,
        suspects: Callable[[], list[str]],
        stages: Mapping[str, HeadStages],
    ) -> Tensor | None:
        """Good input may still overflow: raise, or note it for deferred validation.

        Args:
            what: how an error names the values.
            values: what must be finite.
            valid: the flag of deferred validation, None for "now".
            suspects: names the heads that they come from; called for an error alone.
            stages: {name: what belongs to the head} of heads whose own weights have a part in it;
                looked at for an error alone.

        Raises:
            NonFiniteError: naming the head, and whether its weights are the cause.
        """
        if valid is not None:
            for value in values:
                valid = valid & value.isfinite().all()
            self.note(valid)
        elif not all(linalg.all_finite(value.detach()) for value in values):
            refuse_weights(stages)
            heads = "".join(f" of head {name!r}" for name in suspects()[:1])
            raise NonFiniteError(
                f"{what}{heads} overflows {values[0].dtype}, although features and targets are "
                "finite; standardise the targets, or look for a backbone that diverges"
            )
        return valid

    def raise_deferred(self) -> None:
        """Raise what was found since the last call.

        Raises:
            NonFiniteError: if features, targets or an update were bad.
        """
        if self._bad is not None and bool(self._bad):
            self._bad.zero_()
            raise NonFiniteError(
                "a batch since the last check had features, targets or an update that were not "
                "finite; its update was zero. Make the engine with validate='now' to find it"
            )

    def forget(self) -> None:
        """Drop what was found."""
        if self._bad is not None:
            self._bad.zero_()

    def note(self, valid: Tensor) -> None:
        """Remember a flag, to raise if it was not set."""
        if self._bad is None or self._bad.device != valid.device:
            self._bad = torch.zeros_like(valid)
        self._bad.logical_or_(~valid)


def refuse_weights(stages: Mapping[str, HeadStages]) -> None:
    """Raise if a head's own weights are the cause of what failed.

    Raises:
        NonFiniteError: naming the head and the parameter.
    """
    for name, own in stages.items():
        for which, weight in own.head.named_parameters():
            if not linalg.all_finite(weight.detach()):
                raise NonFiniteError(
                    f"{which!r} of head {name!r} is not finite: an earlier step has made it so; "
                    "go back to an earlier state, and lower the learning rate"
                )


def reported_losses(
    losses: Mapping[str, Tensor], observed: Mapping[str, Targets], valid: Tensor | None
) -> dict[str, Tensor]:
    """Losses to report: NaN for tasks without a label, and where the batch was found bad."""
    losses = {
        name: loss.detach()
        if observed[name].mask is None
        else torch.where(observed[name].counts() > 0, loss.detach(), torch.nan)
        for name, loss in losses.items()
    }
    if valid is None:
        return losses
    return {name: torch.where(valid, loss, torch.nan) for name, loss in losses.items()}
