"""QM9 from wherever it is: a built file, the package ``qm9pack``, or PyTorch Geometric."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from experiments.errors import DataError, SettingsError
from experiments.files import cache
from experiments.files.progress import Tick, progress
from experiments.qm9 import chemistry, pyg_source, qm9pack_source
from experiments.qm9.molecules import Molecules

Source = Literal["qm9pack", "pyg"]
Features = Literal["pyg", "chemistry"]

WHOLE_SET: Final = {"molecules": 130_831, "atoms": 2_359_210, "bonds": 2_441_758}
"""Totals of the public processed set."""


@dataclass(frozen=True)
class QM9:
    """A loaded set.

    Attributes:
        molecules: The arrays.
        source: Where they came from first.
        features: "pyg" (derived columns zero) or "chemistry" (filled by RDKit).
        sha256: Checksum of the base arrays.
        file: The built file that was read or written.
    """

    molecules: Molecules
    source: str
    features: Features
    sha256: str
    file: Path

    def __len__(self) -> int:
        return len(self.molecules)

    @property
    def about(self) -> dict[str, Any]:
        """What a results file should keep."""
        return {
            "name": "QM9",
            "source": self.source,
            "features": self.features,
            "molecules": len(self),
            "sha256": self.sha256,
        }


_OTHER_FILE = "name another file, or leave --data out to build one from the installed qm9pack"


def load(
    source: Source = "qm9pack",
    *,
    path: str | Path | None = None,
    features: Features = "pyg",
    folder: str | Path | None = None,
) -> QM9:
    """Load QM9, building and keeping a compact file on first use (about 20 s).

    Args:
        source: "qm9pack", the tables of that package, or "pyg", PyTorch Geometric's data set.
        path: Without it, the installed package, or PyTorch Geometric's files in ``folder``. For
            "qm9pack": a built file, or a folder with the package's three tables. For "pyg": the
            root folder given to PyTorch Geometric.
        features: "pyg" leaves the columns aromatic, sp, sp2, sp3 and the aromatic bond at zero, as
            published benchmarks do; "chemistry" fills them with RDKit.
        folder: Where built files are kept; default ``$BAYESAGG_DATA``, or the user's cache folder.

    Raises:
        DataError: The data are missing, damaged or not QM9, a package that is needed is missing, or
            the built file cannot be written. The message says what to do.
        SettingsError: An unknown source or kind of features.
    """
    if source not in get_args(Source):
        raise SettingsError(
            f"unknown source {source!r}; choose one of {', '.join(get_args(Source))}"
        )
    if features not in get_args(Features):
        raise SettingsError(
            f"unknown features {features!r}; choose one of {', '.join(get_args(Features))}"
        )
    home = Path(folder) if folder is not None else cache.default_folder()
    given = Path(path).expanduser() if path is not None else None
    if source == "pyg":
        root = given if given is not None else home / "pyg"
        file = home / f"qm9-pyg-{_short_hash(str(root.resolve()))}.npz"
        molecules, about = _kept(file, source, lambda tick: pyg_source.build(root, tick))
    elif given is None:
        file = home / "qm9.npz"
        molecules, about = _kept(file, source, _build_installed)
    elif given.is_dir():
        tables = given
        file = home / f"qm9-{_fingerprint(tables)}.npz"
        molecules, about = _kept(file, source, lambda tick: qm9pack_source.build(tables, tick))
    else:
        file = given
        molecules, about = _read(file, _OTHER_FILE)
    sha256 = str(about["sha256"])
    if features == "chemistry":
        molecules = _with_chemistry(molecules, file, sha256, home)
    return QM9(molecules, str(about.get("source", "unknown")), features, sha256, file)


def look(source: Source, *, path: str | Path | None = None) -> str:
    """What of the set that :func:`load` would read is there, in a line, without reading it.

    Raises:
        DataError: There is nothing, or half of a file; the message says what to do.
    """
    home = cache.default_folder()
    given = Path(path).expanduser() if path is not None else None
    if source == "pyg":
        root = given if given is not None else home / "pyg"
        if not root.is_dir():
            raise DataError(f"there is no folder {root}: PyTorch Geometric makes it by a download")
        return f"PyTorch Geometric's, in {root}"
    if given is not None and given.is_dir():
        return f"tables in {given}, number {_fingerprint(given)}"
    file = home / "qm9.npz" if given is None else given
    if file.exists():
        if not zipfile.is_zipfile(file):
            raise DataError(f"{file} is no whole data file; {cache.REBUILD}")
        return f"built: {file}, {file.stat().st_size / 1e6:,.0f} MB"
    if given is not None:
        raise DataError(f"there is no data file {file}; {_OTHER_FILE}")
    tables = qm9pack_source.installed_folder()
    return f"tables in {tables}, from which {file} is built when it is first read"


def _build_installed(tick: Tick) -> Molecules:
    """The whole set from the installed package, checked against the known totals."""
    molecules = qm9pack_source.build(qm9pack_source.installed_folder(), tick)
    totals = {
        "molecules": len(molecules),
        "atoms": len(molecules.z),
        "bonds": len(molecules.bond_i),
    }
    if totals != WHOLE_SET:
        raise DataError(
            f"the installed qm9pack gives {totals}, expected {WHOLE_SET}; install version 1.0.3 of "
            "it"
        )
    return molecules


def _read(file: Path, remedy: str = cache.REBUILD) -> tuple[Molecules, dict[str, Any]]:
    arrays, about = cache.read(file, remedy)
    try:
        return Molecules(**arrays), about
    except (TypeError, DataError) as error:
        raise DataError(f"{file} does not hold QM9 ({error}); {remedy}") from error


def _kept(
    file: Path, source: str, build: Callable[[Tick], Molecules]
) -> tuple[Molecules, dict[str, Any]]:
    """Read ``file``, or build it first."""
    if file.exists():
        return _read(file)
    if source == "qm9pack" and file.name == "qm9.npz":
        qm9pack_source.installed_folder()  # a missing package is reported before any folder is made
    cache.require_writable(file.parent)
    with progress("Building QM9 (once)", WHOLE_SET["molecules"]) as tick:
        molecules = build(tick)
    about = {"source": source, "molecules": len(molecules)}
    sha256 = cache.write(file, molecules.arrays(), about)
    return molecules, {**about, "sha256": sha256}


def _with_chemistry(molecules: Molecules, base: Path, sha256: str, home: Path) -> Molecules:
    """``molecules`` with the derived features, which are kept in a file of their own."""
    file = home / f"qm9-chemistry-{sha256[:12]}.npz"
    if file.exists():
        arrays, about = cache.read(file)
        if about.get("base") != sha256 or set(arrays) != {"columns", "bond_order"}:
            raise DataError(
                f"{file} does not belong to {base}; delete it, and it will be built again"
            )
        return chemistry.apply(molecules, chemistry.Derived(**arrays))
    cache.require_writable(home)
    title = "Perceiving aromaticity and hybridisation (once)"
    with progress(title, len(molecules)) as tick:
        derived = chemistry.perceive(molecules, tick)
    cache.write(
        file, {"columns": derived.columns, "bond_order": derived.bond_order}, {"base": sha256}
    )
    return chemistry.apply(molecules, derived)


def _fingerprint(folder: Path) -> str:
    """Identifies the tables in a folder by size and date: other tables get another file."""
    if not qm9pack_source.is_folder_of_tables(folder):
        raise DataError(
            f"{folder} does not hold {', '.join(qm9pack_source.TABLES)}; give such a folder, or a "
            "built file"
        )
    sizes = [(folder / name).stat() for name in qm9pack_source.TABLES]
    return _short_hash(repr([(s.st_size, s.st_mtime_ns) for s in sizes]))


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
