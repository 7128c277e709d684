"""Which molecules train, which validate, which test; and the scale of the targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from experiments.errors import DataError, SettingsError
from experiments.qm9.targets import BENCHMARK
from experiments.rows import Parts

HELD_OUT: Final = 10_000
"""Molecules in the benchmark's validation set, and again in its test set, out of 130,831."""

_WHOLE: Final = 130_831
_SMALL: Final = 1_000


def split(
    total: int,
    *,
    generator: torch.Generator,
    molecules: int | None = None,
    validation: int | None = None,
    test: int | None = None,
) -> Parts:
    """Split ``total`` molecules by one random permutation.

    The permutation's first 10,000 rows are for testing, the next 10,000 for validation, the rest
    for training. With ``molecules``, each part keeps only its beginning: smaller runs of one seed
    use subsets of what larger ones use, and no run tests on what another run of that seed trains
    on.

    Args:
        total: Size of the data set. Below 130,831 the two held-out parts shrink in proportion.
        generator: Source of the permutation (CPU).
        molecules: Training molecules to use; None for all.
        validation: Validation molecules to use. Default: all if ``molecules`` is None, else a tenth
            of ``molecules``, but at least 1,000 and at most what the part holds.
        test: Likewise.

    Raises:
        SettingsError: A part would be empty, or more is asked for than the part holds.
    """
    held = HELD_OUT if total >= _WHOLE else max(1, total * HELD_OUT // _WHOLE)
    if total - 2 * held < 2:
        raise SettingsError(f"{total} molecules are too few for three parts; give at least 4")
    order = torch.randperm(total, generator=generator)
    available = {"train": total - 2 * held, "validation": held, "test": held}
    few = held if molecules is None else min(held, max(_SMALL, molecules // 10))
    wanted = {
        "train": available["train"] if molecules is None else molecules,
        "validation": few if validation is None else validation,
        "test": few if test is None else test,
    }
    for name, count in wanted.items():
        least = 2 if name == "train" else 1
        if not least <= count <= available[name]:
            raise SettingsError(
                f"cannot take {count} molecules for the {name} part: {least} to {available[name]} "
                "are possible"
            )
    return Parts(
        train=order[2 * held :][: wanted["train"]],
        validation=order[held : 2 * held][: wanted["validation"]],
        test=order[:held][: wanted["test"]],
    )


@dataclass(frozen=True)
class Standardiser:
    """Brings targets to mean 0 and standard deviation 1, and errors back to reported units.

    Attributes:
        mean: [11] float64.
        std: [11] float64, unbiased.
    """

    mean: Tensor
    std: Tensor

    @classmethod
    def fit(cls, targets: Tensor) -> Standardiser:
        """Mean and unbiased standard deviation of ``targets`` [N, 11] over its rows.

        Raises:
            DataError: Fewer than two rows, or a target that never varies.
        """
        if targets.ndim != 2 or targets.shape[1] != len(BENCHMARK) or len(targets) < 2:
            raise DataError(
                f"targets must be [N, {len(BENCHMARK)}] with N > 1, got {list(targets.shape)}"
            )
        wide = targets.to("cpu", torch.float64)
        std = wide.std(dim=0)
        constant = [p.name for p, s in zip(BENCHMARK, std.tolist(), strict=True) if not s > 0]
        if constant:
            raise DataError(
                f"target {', '.join(constant)} is the same for all {len(targets)} training "
                "molecules; use more molecules"
            )
        return cls(wide.mean(dim=0), std)

    def transform(self, targets: Tensor) -> Tensor:
        """Standardised targets, in the dtype and on the device of the input."""
        mean, std = self.mean.to(targets.device), self.std.to(targets.device)
        return ((targets - mean) / std).to(targets.dtype)

    def inverse(self, standardised: Tensor) -> Tensor:
        """Targets in the units of ``targets.BENCHMARK``."""
        mean, std = self.mean.to(standardised.device), self.std.to(standardised.device)
        return (standardised * std + mean).to(standardised.dtype)

    @property
    def error_scale(self) -> Tensor:
        """[11] float64: what an error of standardised targets is multiplied by to be reported."""
        factors = [p.reported_factor for p in BENCHMARK]
        return self.std * torch.tensor(factors, dtype=torch.float64)
