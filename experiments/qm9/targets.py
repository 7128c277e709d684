"""The nineteen QM9 properties, their units, and the eleven that the benchmark learns.

Units and order are those of PyTorch Geometric's ``QM9``; the benchmark's choice of columns is that
of Navon et al. (2022), *Multi-Task Learning as a Bargaining Game*: atomisation energies instead of
total ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

ELEMENTS: Final = (1, 6, 7, 8, 9)
"""Atomic numbers in the order used everywhere: H, C, N, O, F."""

HARTREE_IN_EV: Final = 27.211386246
HARTREE_IN_KCAL: Final = 627.509
KCAL_IN_EV: Final = 0.04336414


@dataclass(frozen=True)
class Property:
    """One property of a molecule.

    Attributes:
        name: Short name, safe as a file or dictionary key.
        symbol: How papers write it.
        unit: Unit of the stored value.
        reported_unit: Unit of the error in published tables.
        reported_factor: ``reported = stored * reported_factor``.
    """

    name: str
    symbol: str
    unit: str
    reported_unit: str
    reported_factor: float


def _energy(name: str, symbol: str) -> Property:
    return Property(name, symbol, "eV", "meV", 1000.0)


def _plain(name: str, symbol: str, unit: str) -> Property:
    return Property(name, symbol, unit, unit, 1.0)


PROPERTIES: Final[tuple[Property, ...]] = (
    _plain("mu", "μ", "D"),
    _plain("alpha", "α", "a0^3"),
    _energy("homo", "ε_HOMO"),
    _energy("lumo", "ε_LUMO"),
    _energy("gap", "Δε"),
    _plain("r2", "⟨R²⟩", "a0^2"),
    _energy("zpve", "ZPVE"),
    _energy("u0_total", "U₀ (total)"),
    _energy("u_total", "U (total)"),
    _energy("h_total", "H (total)"),
    _energy("g_total", "G (total)"),
    _plain("cv", "c_v", "cal/(mol K)"),
    _energy("u0", "U₀"),
    _energy("u", "U"),
    _energy("h", "H"),
    _energy("g", "G"),
    _plain("rotational_a", "A", "GHz"),
    _plain("rotational_b", "B", "GHz"),
    _plain("rotational_c", "C", "GHz"),
)
"""All nineteen, in the order of PyTorch Geometric."""

BENCHMARK_COLUMNS: Final = (0, 1, 2, 3, 5, 6, 12, 13, 14, 15, 11)
"""Which of the nineteen the benchmark learns, in the order in which its tables print them."""

BENCHMARK: Final[tuple[Property, ...]] = tuple(PROPERTIES[k] for k in BENCHMARK_COLUMNS)

RAW_COLUMNS: Final = (
    "Dipole_debye",
    "Polarizability_bohr3",
    "HOMO_au",
    "LUMO_au",
    "HOMO_LUMO_gap_au",
    "R2_bohr2",
    "ZPVE_au",
    "InternalEnergy_0K_au",
    "InternalEnergy_298K_au",
    "Enthalphy_298K_au",  # spelled so in the tables
    "GibbsFreeEnergy_298K_au",
    "Heatcapacity_Cv_cal_mol_K",
    "RotA_GHz",
    "RotB_GHz",
    "RotC_GHz",
)
"""Columns of the qm9pack tables that hold the properties: 0-11 of the nineteen, then A, B, C."""

_TOTAL_ENERGIES = slice(7, 11)

# Energies of the free atoms in Hartree, columns H, C, N, O, F (the QM9 paper's own reference
# values).
_FREE_ATOMS: Final = np.array(
    [
        [-0.500273, -37.846772, -54.583861, -75.064579, -99.718730],  # U at 0 K
        [-0.498857, -37.845355, -54.582445, -75.063163, -99.717314],  # U at 298.15 K
        [-0.497912, -37.844411, -54.581501, -75.062219, -99.716370],  # H at 298.15 K
        [-0.510927, -37.861317, -54.598897, -75.079532, -99.733544],  # G at 298.15 K
    ]
)

_FACTORS: Final = np.array(
    [1, 1, *[HARTREE_IN_EV] * 3, 1, *[HARTREE_IN_EV] * 5, 1, *[KCAL_IN_EV] * 4, 1, 1, 1],
    dtype=np.float32,
)


def property_matrix(
    raw: NDArray[np.float64], atom_counts: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Convert table values to the nineteen properties.

    The value is rounded to float32 before it is multiplied, because the public processed set does
    so; that makes the result equal to it to the last bit.

    Args:
        raw: [N, 15] table values in the order of ``RAW_COLUMNS``; energies in Hartree.
        atom_counts: [N, 5] atoms of each element in the order of ``ELEMENTS``.

    Returns:
        [N, 19] in the units of ``PROPERTIES``.
    """
    free = atom_counts @ _FREE_ATOMS.T
    atomisation = (raw[:, _TOTAL_ENERGIES] - free) * HARTREE_IN_KCAL
    values = np.concatenate([raw[:, :12], atomisation, raw[:, 12:]], axis=1)
    converted: NDArray[np.float32] = values.astype(np.float32) * _FACTORS
    return converted
