"""What users' type checkers know of this package."""

from __future__ import annotations

from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api")

SNIPPET = """\
import torch
from bayesagg_pyro import BayesAgg, heads, posteriors, priors
posterior = posteriors.Gaussian(torch.zeros(1, 2), torch.eye(2)[None])
posterior.does_not_exist()
posterior.rsample((3,)).no_tensor_has_this()
head = heads.Gaussian(2)
head.does_not_exist()
BayesAgg({"y": head}, prior=priors.FullData()).does_not_exist()
"""


@pytest.mark.slow
def test_what_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET)
    root = Path(__file__).parents[2]
    # With what `make check` has left there, a tenth of the time.
    arguments = [str(path), "--config-file", str(root / "pyproject.toml")]
    told, _, _ = api.run([*arguments, "--cache-dir", str(root / ".mypy_cache")])
    lines = [line for line in told.splitlines() if ": error: " in line]
    assert [int(line.split(":")[1]) for line in lines] == [4, 5, 7, 8], told
