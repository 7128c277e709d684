"""Properties of the aggregators of TorchJD: scale, randomness, and what they cannot take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Traits:
    """Properties of an aggregator.

    Attributes:
        reduction: Of which size its result is.
        random: Whether it draws from torch's global generator.
        scaled: Whether the matrix may be brought to a common size first, because the result
            follows its scale and no state remembers it.
        skips_zeros: Whether it cannot take rows of zeros.
    """

    reduction: Literal["mean", "sum"] = "mean"
    random: bool = False
    scaled: bool = True
    skips_zeros: bool = False


_TRAITS: Mapping[str, Traits] = {
    "AlignedMTL": Traits(),
    "CAGrad": Traits(),
    "ConFIG": Traits("sum"),
    "Constant": Traits("sum"),
    "DualProj": Traits(),
    "ExcessMTL": Traits(scaled=False),
    "FairGrad": Traits("sum", skips_zeros=True),
    "GradDrop": Traits("sum", random=True),
    "GradVac": Traits("sum", random=True),
    "IMTLG": Traits(),
    "Krum": Traits(),
    "MGDA": Traits(),
    "Mean": Traits(),
    "NashMTL": Traits("sum", skips_zeros=True),
    "PCD": Traits(scaled=False),
    "PCGrad": Traits("sum", random=True),
    "Random": Traits(random=True),
    "Sum": Traits("sum"),
    "TrimmedMean": Traits(),
    "UPGrad": Traits(),
}
_UNKNOWN = Traits(random=True, scaled=False)


def traits_of(kind: type) -> Traits:
    """The properties of a class of aggregators; a careful guess for one that is not TorchJD's."""
    published = kind.__module__.startswith("torchjd.")
    return _TRAITS.get(kind.__name__, _UNKNOWN) if published else _UNKNOWN
