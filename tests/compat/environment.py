"""Virtual environments with chosen releases, and tests in them on what a user installs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.compat.parts import PARTS, ROOT, SHOWN, TOOLS, lowest, wanted

__all__ = ["MissingPythonError", "run"]

#: What the tests read beside the installed library; `bayesagg_pyro/` is not among them.
_BESIDE: Final = ("docs", "experiments", "models", "tests", "README.md", "CHANGELOG.md")
_TOLD: Final = """
import importlib.metadata as m, json, platform
found = {d.metadata["Name"].lower(): d.version for d in m.distributions()}
print(json.dumps({"python": platform.python_version(), "packages": found}))
"""


class MissingPythonError(RuntimeError):
    """There is no interpreter of that release here."""


def run(name: str, folder: Path, pins: Sequence[str] = ()) -> dict[str, Any]:
    """A row of the table: what was installed, and how the tests went.

    Args:
        name: of the part.
        folder: for environments, which are used again if they are there.
        pins: requirements that go before the part's own, such as ``"torch==2.13.0"``.

    Raises:
        MissingPythonError: there is no such Python here.
        subprocess.CalledProcessError: something could not be installed.
    """
    part = PARTS[name]
    python = _environment(name, folder / part.environment, pins)
    told = json.loads(subprocess.check_output([python, "-c", _TOLD], text=True))
    beside = _beside(folder / "beside")
    pytest = [python, *part.flags, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    plugin = ["-p", part.plugin] if part.plugin else []
    allowed = [word for one in part.allowed for word in ("-W", one)]
    tests = subprocess.run(
        [*pytest, *plugin, *allowed, *part.tests],
        cwd=beside,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(beside)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    print(tests.stdout)
    # Some package talks after the summary.
    (summary,) = re.findall(r"^=*\s*(.* in \d[\d.]*s.*)$", tests.stdout, re.MULTILINE)[-1:] or [""]
    found = re.findall(r"(\d+) (passed|failed|skipped|error)", summary)
    counts = {word: int(number) for number, word in found}
    return {
        "python": told["python"],
        "packages": {p: told["packages"][p] for p in (*SHOWN, *part.more) if p in told["packages"]},
        "passed": counts.get("passed", 0),
        "failed": counts.get("failed", 0) + counts.get("error", 0) or int(tests.returncode != 0),
        "skipped": counts.get("skipped", 0),
    }


def _environment(name: str, folder: Path, pins: Sequence[str]) -> str:
    """The interpreter of an environment with the library installed from a wheel."""
    part = PARTS[name]
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    python = str(scripts / "python")
    stated = wanted(part.extras)
    chosen = [lowest(one) for one in stated] if part.lowest else []
    if not (folder / "done").is_file():
        subprocess.run([_interpreter(part.python), "-m", "venv", "--clear", folder], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *pins, *chosen, *stated, *part.more, *TOOLS], check=True)
        (folder / "done").touch()
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--force-reinstall", str(ROOT)], check=True)
    return python


def _beside(folder: Path) -> Path:
    """A copy of the tree without the library, so that the installed one is what is imported."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in (*_BESIDE, "pyproject.toml"):
        place = ROOT / name
        if place.is_dir():
            shutil.copytree(place, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, folder)
    return folder


def _interpreter(release: str) -> str:
    """An interpreter of a minor release: on the path, or of pyenv."""
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    kept = sorted(map(str, roots.glob(f"{release}.*/bin/python")))
    for place in (shutil.which(f"python{release}"), *kept):
        if place and subprocess.run([place, "-c", ""], capture_output=True).returncode == 0:
            return place
    raise MissingPythonError(
        f"there is no python{release} here: install it (`uv python install {release}`, or pyenv), "
        "or leave the part out"
    )
