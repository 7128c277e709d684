"""The paper's tables as data: Δm recomputed, errata and doubts open."""

from __future__ import annotations

import pytest

from experiments import published
from experiments.chestxray14.benchmark import SINGLE_TASK, ChestXray14
from experiments.errors import DataError
from experiments.scores.delta_m import delta_m
from experiments.utkface.benchmark import UtkFace

CHEST, FACES = published.load("chestxray14"), published.load("utkface")
DOUBTED = {doubt.row: doubt for doubt in FACES.doubts}


def of(table: published.Table, name: str) -> float:
    return delta_m(table.rows[name].values, table.single_task, table.higher_is_better)


def test_tables_are_complete() -> None:
    assert CHEST.tasks == tuple(task.name for task in ChestXray14().tasks)
    assert CHEST.single_task == SINGLE_TASK
    assert FACES.tasks == tuple(task.name for task in UtkFace().tasks)
    rows = UtkFace().tasks
    for task, printed, factor in zip(rows, FACES.single_task, FACES.factors, strict=True):
        assert printed == pytest.approx((task.single_task or 0.0) * factor)
    names = list(published.load("qm9").rows)
    assert list(CHEST.rows) == list(FACES.rows) == names
    assert list(published.load("cifar-mtl").rows) == names[1:]
    assert published.load("cifar-mtl").rows["MGDA"].bold == {"accuracy"}


@pytest.mark.parametrize("name", list(CHEST.rows)[1:])
def test_chest_delta_m_is_the_printed_one(name: str) -> None:
    assert of(CHEST, name) == pytest.approx(CHEST.rows[name].delta_m, abs=0.02)


@pytest.mark.parametrize("name", [name for name in list(FACES.rows)[1:] if name not in DOUBTED])
def test_faces_delta_m_is_the_printed_one(name: str) -> None:
    """Age is printed as 1.40 or so: half a unit of its last digit is 0.12 in Δm."""
    assert of(FACES, name) == pytest.approx(FACES.rows[name].delta_m, abs=0.15)


def test_what_does_not_fit_is_said() -> None:
    (erratum,) = CHEST.errata
    assert (erratum.row, erratum.task, erratum.printed) == ("SI", "delta_m", -1.94)
    assert CHEST.rows["SI"].delta_m == -10.94
    assert set(DOUBTED) == {"RLW", "SI"}
    for name, doubt in DOUBTED.items():
        assert of(FACES, name) == pytest.approx(doubt.recomputed, abs=0.01)
        assert FACES.rows[name].delta_m == doubt.printed
        assert abs(doubt.recomputed - doubt.printed) > 0.24


def test_other_tables() -> None:
    ensembles = published.other("ensembles")
    for benchmark in ensembles["columns"]:
        row = published.load(benchmark).rows["BayesAgg-MTL"]
        assert ensembles["rows"]["BayesAgg-MTL"][benchmark] == [row.delta_m, row.delta_m_std]
    assert len(published.other("run_time")["rows"]) == 15
    with pytest.raises(DataError, match="no published table 'none'"):
        published.other("none")
