"""Facts about the whole set, from the installed tables. One test, because it builds for a while."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from experiments.qm9 import PROPERTIES, WHOLE_SET, bonds, qm9pack_source
from experiments.qm9.targets import ELEMENTS

# Mean and unbiased standard deviation over 130,831 molecules, six digits.
STATISTICS = {
    "mu": (2.67295, 1.50348),
    "alpha": (75.2812, 8.17383),
    "homo": (-6.53645, 0.597741),
    "lumo": (0.322044, 1.27486),
    "gap": (6.85849, 1.28417),
    "r2": (1189.41, 280.478),
    "zpve": (4.05694, 0.901723),
    "cv": (31.6204, 4.06758),
    "u0": (-76.1160, 10.3238),
    "u": (-76.5805, 10.4152),
    "h": (-77.0183, 10.4893),
    "g": (-70.8367, 9.49834),
}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("qm9pack") is None, reason="qm9pack is not installed")
def test_whole_set() -> None:
    molecules = qm9pack_source.build(qm9pack_source.installed_folder())

    # The public processed set: 130,831 graphs, x [2359210, 11], edge_index [2, 4883516].
    assert len(molecules) == WHOLE_SET["molecules"] == 130_831
    assert len(molecules.z) == WHOLE_SET["atoms"] == 2_359_210
    assert 2 * len(molecules.bond_i) == 2 * WHOLE_SET["bonds"] == 4_883_516
    assert (np.diff(molecules.idx) > 0).all()
    assert (molecules.n_atoms.min(), molecules.n_atoms.max()) == (3, 29)

    exceptional = molecules.idx[molecules.status == 1] + 1
    assert exceptional.tolist() == sorted(bonds.EXCEPTIONS)
    assert molecules.bond_ghost.sum() == 1_398
    assert np.bincount(molecules.bond_order).size == 3

    shares = [(molecules.z == e).mean() for e in ELEMENTS]
    assert shares == pytest.approx([0.5122, 0.3526, 0.0562, 0.0777, 0.0013], abs=5e-5)

    values = molecules.y.astype(float)
    for k, one in enumerate(PROPERTIES):
        if one.name in STATISTICS:
            mean, std = STATISTICS[one.name]
            assert values[:, k].mean() == pytest.approx(mean, rel=1e-5), one.name
            assert values[:, k].std(ddof=1) == pytest.approx(std, rel=1e-5), one.name
