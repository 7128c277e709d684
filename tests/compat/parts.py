"""What is tried: which Python, which releases of which packages, and which tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from experiments.doctor import requirements

__all__ = ["PARTS", "ROOT", "SHOWN", "Part", "lowest", "wanted"]

ROOT: Final = Path(__file__).resolve().parents[2]

#: Extras of the library, and groups of the benchmarks, that the tests below need.
EXTRAS: Final = ("diagnostics", "experiments", "gp", "laplace", "optuna", "torchjd")
#: What the tests themselves need, beyond the library.
TOOLS: Final = ("hypothesis", "mpmath", "pytest", "scipy")
#: Packages whose releases stand in the table.
SHOWN: Final = ("torch", "pyro-ppl", "numpy", "gpytorch", "laplace-torch", "torchjd", "arviz")

#: The library alone, no optional package: a head, a step, a state dict, what was promised.
LIBRARY: Final = (
    "tests/library/test_aggregation.py",
    "tests/library/test_engine_life.py",
    "tests/library/test_engine_state.py",
    "tests/library/test_engine_steps.py",
    "tests/library/test_moments.py",
    "tests/library/test_posterior.py",
    "tests/library/test_documentation.py::test_pages[README.md]",
    "tests/heads/test_small_heads.py",
    "tests/nonlinear/test_from_pyro.py",
    "tests/schemes/test_variational.py",
)
#: One file or two for each optional package.
OPTIONAL: Final = (
    "tests/classification/test_laplace_torch.py",
    "tests/schemes/test_laplace_torch_scheme.py",
    "tests/nonlinear/test_gaussian_process.py",
    "tests/methods/test_torchjd_in_engine.py",
    "tests/diagnostics/test_posterior_diagnostics.py",
    "tests/runner/test_search.py",
)
#: The command line and the benchmarks that need no download.
BENCHMARKS: Final = (
    "tests/experiments/test_cli_refusals.py",
    "tests/experiments/test_files.py",
    "tests/experiments/test_options.py",
    "tests/images/test_digits.py",
    "tests/qm9/test_qm9_build.py",
    "tests/runner/test_store.py",
)


@dataclass(frozen=True)
class Part:
    """One environment and the tests that run in it.

    Attributes:
        about: for the table.
        python: the minor release, such as "3.12".
        environment: parts of one name share a virtual environment.
        lowest: whether every package is the oldest that pyproject.toml allows.
        extras: of the library, and groups.
        tests: files or ids, as pytest takes them.
        more: packages beyond those.
        plugin: a module that pytest loads, which changes what the tests meet.
        flags: of the interpreter.
        allowed: warnings that are no errors there.
    """

    about: str
    python: str
    environment: str
    lowest: bool = False
    extras: Sequence[str] = EXTRAS
    tests: Sequence[str] = (*LIBRARY, *OPTIONAL, *BENCHMARKS)
    more: Sequence[str] = ()
    plugin: str | None = None
    flags: Sequence[str] = ()
    allowed: Sequence[str] = ()


PARTS: Final = {
    "lowest": Part(
        "the oldest release that is allowed, of every package; a warning of typer about click and "
        "one of torch about its own pickles are let through",
        "3.10",
        "lowest",
        True,
        allowed=(
            "ignore::DeprecationWarning:typer",
            "ignore:You are using `torch.load` with `weights_only=False`:FutureWarning",
        ),
    ),
    "python3.10": Part("the newest releases for Python 3.10", "3.10", "python3.10"),
    "python3.11": Part("the newest releases for Python 3.11", "3.11", "python3.11"),
    "python3.12": Part("the newest releases for Python 3.12", "3.12", "python3.12"),
    "python3.13": Part("the newest releases for Python 3.13", "3.13", "python3.13"),
    "base": Part("`pip install .`, no extra", "3.11", "base", extras=(), tests=LIBRARY),
    "float64": Part(
        "`torch.set_default_dtype(torch.float64)`",
        "3.11",
        "python3.11",
        tests=(*LIBRARY, *OPTIONAL),
        plugin="tests.compat.double",
    ),
    "windows": Part(
        "what Windows does otherwise, tried on Linux: processes are spawned, no file name has a "
        "reserved letter, text is written in a stated encoding",
        "3.11",
        "python3.11",
        tests=("tests/compat/spawned.py", *BENCHMARKS, "tests/runner/test_plan.py"),
        plugin="tests.compat.as_windows",
        flags=("-X", "warn_default_encoding"),
    ),
    "trackers": Part(
        "TensorBoard, Weights & Biases (offline) and MLflow themselves, from the command line",
        "3.11",
        "trackers",
        extras=("experiments",),
        tests=("tests/compat/trackers.py",),
        more=("mlflow", "tensorboard", "wandb"),
    ),
}


def wanted(extras: Sequence[str]) -> list[str]:
    """What pyproject.toml asks for, with some extras and groups, as it is written there."""
    return [one for extra in ("", *extras) for one in requirements(extra)]


def lowest(requirement: str) -> str:
    """The oldest release that a requirement allows: ``a[b]>=1.2,<2`` gives ``a[b]==1.2``."""
    name, _, bounds = requirement.partition(">=")
    if not bounds:
        raise ValueError(f"{requirement!r} states no oldest release")
    return f"{name}=={bounds.split(',')[0]}"
