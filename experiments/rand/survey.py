"""The survey as statsmodels ships it: ``randhie.csv``, a person and year a row.

Persons were in the experiment for three or five years. Insurance plan, household and health are of
the time of enrolment, alike in all rows of a person; visits, spending and age are of the year.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.errors import DataError
from experiments.files import reading
from experiments.rows import Parts

INPUTS: Final = {
    "logc": "log of the coinsurance rate, in per cent plus 1",
    "idp": "individual deductible plan",
    "lpi": "log of the yearly participation incentive",
    "fmde": "log of the maximum yearly expenditure over the coinsurance rate",
    "tookphys": "examined at enrolment",
    "linc": "log of the family's income",
    "lfam": "log of the size of the family",
    "educdec": "years of education of the family's head",
    "xage": "age",
    "female": "female",
    "child": "younger than 18",
    "fchild": "both",
    "black": "the family's head is black",
    "disea": "index of chronic diseases",
    "time": "share of the year in the experiment",
}
"""Columns that are inputs as they are; site and year are besides, one input for each value."""

_ONE_HOT: Final = {"site": 6, "year": 5}
_TARGETS: Final = ("mdvis", "hlthg", "hlthf", "hlthp", "physlm", "lnmeddol")
_FAMILY: Final = ("site", "income")
_COLUMNS: Final = (*INPUTS, *_ONE_HOT, *_TARGETS, "income", "zper")
_REMEDY: Final = "give the file randhie.csv of statsmodels with --data, or leave it out"


@dataclass(frozen=True)
class Survey:
    """N rows.

    Attributes:
        inputs: [N, 26] float64; NaN where unknown.
        visits: [N], to a physician, in the year.
        health: [N] int64, as the person rates it: 0 excellent, 1 good, 2 fair, 3 poor.
        limited: [N], 1 for a physical limitation, else 0; NaN where the survey's authors put in
            an estimate for an answer that they did not have.
        spending: [N], log of the year's medical spending in dollars; NaN where there was none.
        persons: [N] int64.
        families: [N] int64: rows of the same site and income.
    """

    inputs: Tensor
    visits: Tensor
    health: Tensor
    limited: Tensor
    spending: Tensor
    persons: Tensor
    families: Tensor

    def __len__(self) -> int:
        return len(self.persons)


def read(path: Path | None) -> Survey:
    """Read the survey.

    Args:
        path: The file; None for that of the installed statsmodels.

    Raises:
        DataError: It is missing, damaged, or not this survey; statsmodels is not installed.
    """
    return reading.read(place(path), lambda raw: _parsed(raw.read().decode("utf-8-sig")), _REMEDY)


def split(survey: Survey, seed: int) -> Parts:
    """Rows of training (60 %), validation (20 %) and test (20 %), with whole families in each.

    Whose rows are of one family the file does not say. Income and site are alike in a family, so no
    two parts share a pair of these: a person's years are together, and so are brothers and sisters.
    (Families of unknown income, which have that of their site's average, are together, too.)

    Raises:
        DataError: There are too few families for three parts.
    """
    count = int(survey.families.max()) + 1
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    sizes = survey.families.bincount(minlength=count)[order]
    middle = (sizes.cumsum(0) - sizes / 2) / len(survey)
    part = torch.empty_like(order)
    part[order] = (middle > 0.2).long() + (middle > 0.4).long()
    of_row = part[survey.families]
    validation, test, train = ((of_row == place).nonzero()[:, 0] for place in range(3))
    found = Parts(train, validation, test)
    if min(found.sizes().values()) == 0:
        raise DataError(f"{count} families are too few for three parts: give more")
    return found


def place(path: Path | None) -> Path:
    """The file; None is that of the installed statsmodels.

    Raises:
        DataError: It is missing; statsmodels is not installed.
    """
    if path is not None:
        if not path.is_file():
            raise DataError(f"there is no file {path}: {_REMEDY}")
        return path
    found = find_spec("statsmodels")  # its file alone: to import it takes seconds
    if found is None or found.origin is None:
        raise DataError(
            "the survey comes with statsmodels, which is not installed: pip install statsmodels"
        )
    return Path(found.origin).parent / "datasets" / "randhie" / "src" / "randhie.csv"


def _parsed(text: str) -> Survey:
    table = reading.rows(text.splitlines(), _COLUMNS)
    rows = [[float(row[name] or "nan") for name in _COLUMNS] for row in table]
    if not rows:
        raise ValueError("there are no rows")
    columns = dict(zip(_COLUMNS, np.array(rows).T, strict=True))
    _check(columns)
    limited = columns["physlm"]
    pairs = np.stack([columns[name] for name in _FAMILY], 1)
    health = columns["hlthg"] + 2 * columns["hlthf"] + 3 * columns["hlthp"]
    return Survey(
        inputs=torch.from_numpy(_inputs(columns)),
        visits=torch.from_numpy(columns["mdvis"]),
        health=torch.from_numpy(health).long(),
        limited=torch.from_numpy(np.where(np.isin(limited, (0, 1)), limited, np.nan)),
        spending=torch.from_numpy(columns["lnmeddol"]),
        persons=torch.from_numpy(columns["zper"]).long(),
        families=torch.from_numpy(np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)),
    )


def _check(columns: dict[str, NDArray[np.float64]]) -> None:
    """Refuse values that no row of the survey can have."""
    health = ("hlthg", "hlthf", "hlthp")
    for name in ("mdvis", "zper", *_FAMILY, "year", *health):
        if np.isnan(columns[name]).any():
            raise ValueError(f"column {name!r} has holes")
    allowed = {name: range(1, count + 1) for name, count in _ONE_HOT.items()}
    allowed |= dict.fromkeys(health, range(2))
    for name, values in columns.items():
        wrong = np.isinf(values)
        if name == "mdvis":
            wrong |= (values < 0) | (values != np.floor(values))
        if name in allowed:
            wrong |= ~np.isin(values, allowed[name])
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(f"line {row + 2}: {name} is {values[row]:g}")
    if (np.sum([columns[name] for name in health], 0) > 1).any():
        raise ValueError(f"more than one of {', '.join(health)} is 1")


def _inputs(columns: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    parts = [columns[name][:, None] for name in INPUTS]
    for name, values in _ONE_HOT.items():
        parts.append((columns[name][:, None] == np.arange(1, values + 1)).astype(np.float64))
    return np.concatenate(parts, 1)
