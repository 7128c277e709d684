"""Tox21 as MoleculeNet releases it, and its parts: a table of molecules, empty where not measured.

NR-AR, ..., SR-p53     the twelve assays: 0, 1 or nothing
mol_id                 name of the molecule
smiles                 its structure
"""

from __future__ import annotations

import gzip
import io
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal

import torch
from torch import Tensor

from experiments.errors import DataError
from experiments.files import reading
from experiments.rows import Parts

ASSAYS: Final = (
    *("NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD", "NR-PPAR-gamma"),
    *("SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"),
)
"""In the order of the released columns: nuclear receptors, then stress responses."""

PLACE: Final = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/tox21.csv.gz"
"""Where the file is released."""

_REMEDY: Final = f"fetch {PLACE} and say where it is with --data"
_LABELS: Final = {"": float("nan"), "0": 0.0, "0.0": 0.0, "1": 1.0, "1.0": 1.0}


@dataclass(frozen=True)
class Release:
    """N molecules.

    Attributes:
        names: N names.
        smiles: N structures.
        labels: [N, 12] float32, 0 or 1; NaN where not measured.
    """

    names: tuple[str, ...]
    smiles: tuple[str, ...]
    labels: Tensor


def require_table(path: Path) -> Path:
    """The same file.

    Raises:
        DataError: It is missing, or a folder.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder: give the file tox21.csv.gz in it")
    if not path.exists():
        raise DataError(f"there is no file {path}: {_REMEDY}")
    return path


def read(path: Path) -> Release:
    """Read the table: a csv, plain or compressed (``.gz``, ``.xz``).

    Raises:
        DataError: It is missing, damaged, or not this table.
    """
    require_table(path)
    return reading.read(path, lambda file: _parsed(_unpacked(file, path.suffix)), _REMEDY)


def _unpacked(file: IO[bytes], suffix: str) -> str:
    opener = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(suffix, bytes)
    return opener(file.read()).decode("utf-8-sig")


def _parsed(text: str) -> Release:
    table = reading.rows(io.StringIO(text), (*ASSAYS, "mol_id", "smiles"), strict=True)
    names, smiles, labels = [], [], []
    for line, row in enumerate(table, 2):
        for assay in ASSAYS:
            if row[assay] not in _LABELS:
                raise ValueError(f"line {line}: {assay} is {row[assay]!r}, not 0, 1 or empty")
        if not row["smiles"]:
            raise ValueError(f"line {line}: there is no structure")
        names.append(row["mol_id"])
        smiles.append(row["smiles"])
        labels.append([_LABELS[row[assay]] for assay in ASSAYS])
    if not names:
        raise ValueError("there is no molecule")
    return Release(tuple(names), tuple(smiles), torch.tensor(labels))


Split = Literal["random", "scaffold"]

SHARES: Final = (0.8, 0.1)
"""Of training and validation; the rest is for the test."""


def parts(scaffolds: Tensor, split: Split, seed: int) -> Parts:
    """Rows of the three parts, each sorted.

    By scaffold, no scaffold is in two parts: the most frequent ones come first and go to training,
    then to validation, as long as they fit, and the test has the rare ones. There is nothing to
    draw then. MoleculeNet splits so (Wu et al., 2018, https://doi.org/10.1039/C7SC02664A).

    Args:
        scaffolds: [M] int64.
        split: At random or by scaffold.
        seed: Of the random one.

    Raises:
        DataError: There are too few molecules, or scaffolds, for three parts.
    """
    count = len(scaffolds)
    ends = int(SHARES[0] * count), int(sum(SHARES) * count)
    if split == "random":
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        cut = torch.tensor_split(order, ends)
    else:
        cut = _by_scaffold(scaffolds, *ends)
    train, validation, test = (rows.sort().values for rows in cut)
    found = Parts(train, validation, test)
    sizes = found.sizes()
    if 0 in sizes.values():
        raise DataError(f"{count} molecules are too few for three parts ({sizes}): give more")
    return found


def _by_scaffold(scaffolds: Tensor, training: int, held: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the parts, which are to end at these numbers of molecules."""
    groups: dict[int, list[int]] = {}
    for row, scaffold in enumerate(scaffolds.tolist()):
        groups.setdefault(scaffold, []).append(row)
    found: tuple[list[int], list[int], list[int]] = ([], [], [])
    train, validation, test = found
    for rows in sorted(groups.values(), key=lambda rows: (len(rows), rows[0]), reverse=True):
        if len(train) + len(rows) <= training:
            train += rows
        elif len(train) + len(validation) + len(rows) <= held:
            validation += rows
        else:
            test += rows
    first, second, third = (torch.tensor(rows, dtype=torch.long) for rows in found)
    return first, second, third
