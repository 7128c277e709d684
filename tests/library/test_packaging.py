"""What users install: the library alone, typed, light to import."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import bayesagg_pyro

ROOT = Path(__file__).resolve().parents[2]

#: Heavy or optional packages that plain use must not need.
OPTIONAL = [
    "arviz",
    "gpytorch",
    "laplace",
    "lightning",
    "matplotlib",
    "optuna",
    "pandas",
    "qm9pack",
    "rdkit",
    "rich",
    "scipy",
    "sklearn",
    "torch_geometric",
    "torchjd",
    "torchmetrics",
    "torchvision",
    "transformers",
    "typer",
    "experiments",
    "models",
]


def run(*command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the tree; offline if the backend is here."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("bayesagg_pyro", "models", "experiments", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    out = source / "dist"
    if importlib.util.find_spec("hatchling"):
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    else:
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(out), "."]
    result = run(*command, cwd=source)
    if result.returncode and not importlib.util.find_spec("hatchling"):
        pytest.skip("no build backend here, and none could be fetched")
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_the_library_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    info = f"bayesagg_pyro-{bayesagg_pyro.__version__}.dist-info"
    assert tops == {"bayesagg_pyro", info}
    assert "bayesagg_pyro/py.typed" in names
    assert any(re.search("LICENSE", name) for name in names)
    packed = {name for name in names if name.startswith("bayesagg_pyro/") and name.endswith(".py")}
    tree = wheel.parents[1]
    source = {path.relative_to(tree).as_posix() for path in tree.glob("bayesagg_pyro/**/*.py")}
    assert packed == source


def test_the_installed_wheel_is_light_and_needs_no_optional_package(
    wheel: Path, tmp_path: Path
) -> None:
    """Unpacked elsewhere: imports bring nothing optional and no warnings; a step needs nothing."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = f"""
import json, sys, torch, pyro
def new():
    return sorted({{name.split(".")[0] for name in set(sys.modules) - before}})
before = set(sys.modules)
import bayesagg_pyro as ba
library = new()
sys.path.append({str(ROOT)!r})
import models
networks = new()
for name in {OPTIONAL}:
    sys.modules[name] = None
from bayesagg_pyro import aggregation, gradients, heads, inference, priors
head = heads.Gaussian(3, tasks=2)
prior = priors.isotropic(head, 1.0)
h, y = torch.randn(4, 3), torch.randn(4, 2)
grad = gradients.distribution(head, inference.Conjugate().infer(head, h, y, prior), h, y)
shape = list(aggregation.PrecisionWeighted()(grad).shape)
print(json.dumps([ba.__file__, sorted(before), library, networks, shape]))
"""
    result = run(sys.executable, "-W", "error", "-c", code, cwd=tmp_path, PYTHONPATH=str(site))
    assert result.returncode == 0, result.stderr
    file, before, library, networks, shape = json.loads(result.stdout)
    assert file.startswith(str(site))
    assert not {*before, *library} & {*OPTIONAL}
    assert "models" in networks
    assert "torch_geometric" not in networks
    assert shape == [4, 3]
    (distribution,) = importlib.metadata.distributions(path=[str(site)])
    assert distribution.version == bayesagg_pyro.__version__
    extras = set(distribution.metadata.get_all("Provides-Extra") or ())
    assert extras == {"diagnostics", "gp", "laplace", "torchjd"}, "packages for code that is not in"
    base = [r for r in distribution.requires or [] if "extra ==" not in r]
    assert sorted(re.split(r"[<>=!~ ;]", r)[0] for r in base) == ["pyro-ppl", "torch"]


def test_one_version_everywhere() -> None:
    """The changelog is tagged with the version, or ahead of it."""
    heading = re.search(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert heading
    assert heading[1] in ("Unreleased", bayesagg_pyro.__version__)
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {bayesagg_pyro.__version__}\n" in cited


def test_every_public_name_exists() -> None:
    """`__all__` of each module is true, sorted or not, and free of doubles."""
    for info in pkgutil.walk_packages(bayesagg_pyro.__path__, "bayesagg_pyro."):
        module = importlib.import_module(info.name)
        names = getattr(module, "__all__", [])
        assert len(names) == len(set(names)), info.name
        for name in names:
            assert hasattr(module, name), f"{info.name}.{name}"
