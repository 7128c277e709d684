"""What the published aggregators of TorchJD are like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Nature", "nature_of"]


@dataclass(frozen=True)
class Nature:
    """What a published aggregator is like.

    Attributes:
        scale: Of which size its result is.
        random: Whether it draws from torch's global generator.
        scaled: Whether the matrix may be brought to a common size first, because the result
            follows its scale and no state remembers it.
        skips_zeros: Whether it cannot take rows of zeros.
    """

    scale: Literal["mean", "sum"] = "mean"
    random: bool = False
    scaled: bool = True
    skips_zeros: bool = False


_NATURES: Mapping[str, Nature] = {
    "AlignedMTL": Nature(),
    "CAGrad": Nature(),
    "ConFIG": Nature("sum"),
    "Constant": Nature("sum"),
    "DualProj": Nature(),
    "ExcessMTL": Nature(scaled=False),
    "FairGrad": Nature("sum", skips_zeros=True),
    "GradDrop": Nature("sum", random=True),
    "GradVac": Nature("sum", random=True),
    "IMTLG": Nature(),
    "Krum": Nature(),
    "MGDA": Nature(),
    "Mean": Nature(),
    "NashMTL": Nature("sum", skips_zeros=True),
    "PCD": Nature(scaled=False),
    "PCGrad": Nature("sum", random=True),
    "Random": Nature(random=True),
    "Sum": Nature("sum"),
    "TrimmedMean": Nature(),
    "UPGrad": Nature(),
}
_UNKNOWN = Nature(random=True, scaled=False)


def nature_of(kind: type) -> Nature:
    """Of a class of aggregators; of one that is not TorchJD's, the most careful guess."""
    published = kind.__module__.startswith("torchjd.")
    return _NATURES.get(kind.__name__, _UNKNOWN) if published else _UNKNOWN
