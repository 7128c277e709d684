"""What is installed here, which data are there, what can run, and what would mend the rest.

Nothing is imported before it is looked at, so that a broken package is a line and no traceback.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import operator
import os
import platform
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

_IMPORTED_AS: Final = {
    "laplace-torch": "laplace",
    "pillow": "PIL",
    "pyro-ppl": "pyro",
    "scikit-learn": "sklearn",
}
_FITS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
#: Groups that are there for those who work on the project itself.
_FOR_DEVELOPERS: Final = ("dev", "docs")
#: It holds tables alone; its modules need others that are gone.
_NEVER_IMPORTED: Final = ("qm9pack",)


class State(Enum):
    """How it stands with something."""

    FINE = "ok"
    MISSING = "missing"
    WRONG = "wrong"
    LEFT = "not installed"
    """Nobody asked for it."""


@dataclass(frozen=True)
class Finding:
    """One line.

    Attributes:
        state: How it stands.
        name: Of what was looked at.
        told: What was found.
        remedy: A command, or what else to do; empty where nothing has to be done.
    """

    state: State
    name: str
    told: str
    remedy: str = ""

    @property
    def bad(self) -> bool:
        """Whether something that is needed is missing or does not work."""
        return self.state in (State.MISSING, State.WRONG)


@dataclass(frozen=True)
class Package:
    """A requirement as it is stated.

    Attributes:
        name: As pip knows it.
        bounds: Such as ``">=0.18,<0.19"``.
        extra: Or group, that it belongs to; empty for what the library needs.
    """

    name: str
    bounds: str
    extra: str

    @property
    def module(self) -> str:
        """What is imported."""
        return _IMPORTED_AS.get(self.name, self.name.replace("-", "_"))


def requirements(extra: str = "") -> list[str]:
    """What pyproject.toml asks for, for the library, an extra or a group, as written there."""
    found = re.search(
        rf"^{extra or 'dependencies'} = \[(.*?)\]$", _project(), re.DOTALL | re.MULTILINE
    )
    return re.findall(r'"([^"]+)"', found[1]) if found else []


def stated() -> list[Package]:
    """Every package that is asked for, the library's own first, once for every extra and group."""
    extras = []
    for table in ("project.optional-dependencies", "dependency-groups"):
        _, _, after = _project().partition(f"[{table}]")
        extras += re.findall(r"^([\w-]+) = \[", after.partition("\n[")[0], re.MULTILINE)
    found = []
    for extra in ["", *(name for name in extras if name not in _FOR_DEVELOPERS)]:
        for text in requirements(extra):
            parts = re.fullmatch(r"([\w-]+)(?:\[.*\])?(.*)", text)
            if parts is not None:
                found.append(Package(parts[1], parts[2], extra))
    return found


def supports(bounds: str, release: str) -> bool:
    """Whether a release is within bounds such as ``">=0.18,<0.19"``."""
    for sign, limit in re.findall(r"([<>=!]=|[<>])\s*([\w.]+)", bounds):
        pair = [_numbers(release), _numbers(limit)]
        width = max(map(len, pair))
        if not _FITS[sign](*(numbers + [0] * (width - len(numbers)) for numbers in pair)):
            return False
    return True


def machine() -> Iterator[Finding]:
    """Python, the library, the device, threads and the folder for data."""
    release = platform.python_version()
    told = f"{release}, {platform.system()} {platform.machine()}, {sys.executable}"
    (wanted,) = re.findall(r'^requires-python = "(.*)"$', _project(), re.MULTILINE)
    if supports(wanted, release):
        yield Finding(State.FINE, "Python", told)
    else:
        remedy = f"make a virtual environment with Python {wanted}"
        yield Finding(State.WRONG, "Python", f"{told}; {wanted} is needed", remedy)
    if broken("torch"):
        return  # told among the packages; the rest needs it
    error = broken("bayesagg_pyro")
    if error:
        yield Finding(State.WRONG, "bayesagg_pyro", f"fails to import: {error}")
    else:
        import bayesagg_pyro as library

        told = f"{library.__version__}, {Path(str(library.__file__)).parent}"
        yield Finding(State.FINE, "bayesagg_pyro", told)
    yield from _device()
    yield _folder()


def packages(needed: Mapping[str, str], *, imports: bool) -> Iterator[Finding]:
    """Every package that is stated anywhere, those that are needed first.

    Args:
        needed: Packages by name, with who needs them; the library's own are needed always.
        imports: Import all that are installed; otherwise those that are needed.
    """
    everything = stated()
    seen: set[str] = set()
    known = {one.name: one for one in reversed(everything)}
    asked = [known.get(name, Package(name, "", "")) for name in needed]
    for one in [*(p for p in everything if not p.extra), *asked, *everything]:
        if one.name not in seen:
            seen.add(one.name)
            users = sorted({p.extra for p in everything if p.name == one.name} - {""})
            wanted = not one.extra or one.name in needed
            yield _package(one, needed.get(one.name) or ", ".join(users), wanted, imports)


def _package(one: Package, users: str, wanted: bool, imports: bool) -> Finding:
    told = f"{one.bounds or 'any release'}{f', for {users}' if users else ''}"
    install = f'pip install "{one.name}{one.bounds}"'
    try:
        release = importlib.metadata.version(one.name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(State.MISSING if wanted else State.LEFT, one.name, told, install)
    if not supports(one.bounds, release):
        return Finding(State.WRONG, one.name, f"{release} is not {told}", install)
    if one.name not in _NEVER_IMPORTED and (wanted or imports):
        error = broken(one.module)
        if error:
            again = f'pip install --force-reinstall "{one.name}{one.bounds}"'
            return Finding(
                State.WRONG, one.name, f"{release} is installed and fails to import: {error}", again
            )
    return Finding(State.FINE, one.name, f"{release} ({told})")


def broken(module: str) -> str:
    """Why a module cannot be imported, in a line; empty when it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    except Exception as error:  # whatever a broken package does
        return line(error)
    return ""


def line(error: BaseException) -> str:
    """An error's type and first sentence."""
    told = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {told}" if told else type(error).__name__


def benchmarks(names: list[str], data: str | None) -> Iterator[Finding]:
    """Which can run: their packages, and what of their data is there, without reading it.

    Args:
        names: Benchmarks.
        data: Where the data of the only one are; None for the places that it looks in.

    Raises:
        SettingsError: There is no benchmark of that name, or it reads no data.
    """
    from experiments import registry
    from experiments.errors import ExperimentError

    for name in names:
        registry.place(name)
        try:
            kind = registry.find(name)
            benchmark: Any = kind() if data is None else kind().at(data)
            absent = [
                p
                for p in kind.packages
                if importlib.util.find_spec(Package(p, "", "").module) is None
            ]
            if absent:
                remedy = f"pip install {' '.join(absent)}"
                yield Finding(State.MISSING, name, f"needs {', '.join(absent)}", remedy)
                continue
            told = benchmark.look() or "its data are read when it runs, and were not looked at"
            yield Finding(State.FINE, name, told)
        except ExperimentError as error:
            yield Finding(State.MISSING, name, str(error))
        except Exception as error:  # of a benchmark of somebody's own, or of a broken package
            yield Finding(State.WRONG, name, line(error))


def needs(name: str) -> Mapping[str, str]:
    """Packages of a benchmark and of the command line, with who needs them; none if unknown."""
    from experiments import registry

    try:
        return dict.fromkeys(registry.find(name).packages, name)
    except Exception:  # told by `benchmarks`
        return {}


def _numbers(release: str) -> list[int]:
    """1.12 of ``1.12.0rc1+cpu``: what comes before letters."""
    found = re.match(r"\d+(\.\d+)*", release.strip())
    return [int(part) for part in found[0].split(".")] if found else []


def _project() -> str:
    return (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")


def _device() -> Iterator[Finding]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(index) for index in range(count)]
    if names:
        told = f"cuda: {', '.join(names)}"
    else:
        built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else ""
        told = f"the processor{f'; {built}, and sees no card' if built else ''}"
    yield Finding(State.FINE, "device", told)
    chosen = os.environ.get("OMP_NUM_THREADS")
    said = f", as OMP_NUM_THREADS={chosen} says" if chosen else ""
    told = f"{torch.get_num_threads()} of {os.cpu_count()} processors{said}; --threads changes it"
    yield Finding(State.FINE, "threads", told)


def _folder() -> Finding:
    from experiments.files.cache import FOLDER_VARIABLE, default_folder

    folder = default_folder()
    try:
        there = next(place for place in (folder, *folder.parents) if place.exists())
    except OSError as error:  # no name that a file can have
        remedy = f"name another folder in {FOLDER_VARIABLE}"
        return Finding(State.WRONG, "data folder", line(error), remedy)
    free = shutil.disk_usage(there).free / 1e9
    told = f"{folder}, {free:,.0f} GB free{'' if there == folder else '; made when it is needed'}"
    if there.is_dir() and os.access(there, os.W_OK):
        return Finding(State.FINE, "data folder", told)
    remedy = f"name another folder in {FOLDER_VARIABLE}, or change its permissions"
    return Finding(State.WRONG, "data folder", f"{folder} cannot be written", remedy)
