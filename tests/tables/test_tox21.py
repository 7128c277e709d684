"""Tox21 from a file of the released format: reading, fingerprints, scaffolds, masked metrics."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest
import torch

from experiments import methods
from experiments.errors import DataError, SettingsError
from experiments.files.cache import FOLDER_VARIABLE
from experiments.run import Run
from experiments.settings import Settings
from experiments.tox21.benchmark import HEAD, Tox21
from experiments.tox21.chemistry import NODE_FEATURES, describe, graphs
from experiments.tox21.release import ASSAYS, PLACE, parts, read
from experiments.training import Trainer
from experiments.training.results import contents

CPU = torch.device("cpu")
CHAINS = ["C" * n + end for n in range(1, 8) for end in ("O", "N", "Cl", "C(=O)O", "S")]
RINGS = ["c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccc2ccccc2c1", "C1CCNCC1"]
SMILES = [*CHAINS, *(f"{chain}{ring}" for ring in RINGS for chain in ("", "C", "CC", "OC", "NC"))]
UNREADABLE = "O=CO[AlH3](OC=O)OC=O"


def text(smiles: list[str]) -> str:
    """Chlorides are toxic to the first assay, rings to the second; the last was never measured."""
    lines = [",".join([*ASSAYS, "mol_id", "smiles"])]
    for row, one in enumerate(smiles):
        rest = [str(row // 2 % 2), "", "0", "1"][row % 4]
        labels = [str(int("Cl" in one)), str(int("1" in one)), *[rest] * 9, ""]
        lines.append(",".join([*labels, f"TOX{row}", one]))
    return "\n".join(lines) + "\n"


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("rdkit")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "kept"))
    file = tmp_path / "tox21.csv.gz"
    file.write_bytes(gzip.compress(text([*SMILES[:7], UNREADABLE, *SMILES[7:]]).encode()))
    return file


def test_the_table_is_read_however_it_is_compressed(tmp_path: Path) -> None:
    content = text(SMILES).encode()
    found = []
    for name, data in (
        ("a.csv", content),
        ("a.csv.gz", gzip.compress(content)),
        ("a.csv.xz", lzma.compress(content)),
    ):
        (tmp_path / name).write_bytes(data)
        found.append(read(tmp_path / name))
    assert found[0].smiles == found[1].smiles == found[2].smiles == tuple(SMILES)
    assert found[0].names[3] == "TOX3"
    labels = found[0].labels
    assert labels.shape == (len(SMILES), 12)
    assert labels[:, 11].isnan().all()
    assert labels[1, 2:11].isnan().all()
    assert labels[2, :3].tolist() == [1, 0, 0]
    assert torch.equal(labels, found[1].labels) or labels.isnan().equal(found[1].labels.isnan())


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"no file .*fetch {PLACE}.*--data"):
        read(tmp_path / "absent.csv.gz")
    with pytest.raises(DataError, match=r"is a folder: give the file tox21\.csv\.gz"):
        read(tmp_path)
    for content, message in (
        (text(SMILES).replace("SR-MMP", "SR-XXX"), "no column 'SR-MMP'"),
        (text(SMILES).replace("0,0,0", "0,2,0", 1), r"line \d+: NR-AR-LBD is '2', not 0, 1"),
        (text(["C", "C,O"]), "line 3: 15 cells instead of 14"),
        (text([*SMILES[:3], ""]), "line 5: there is no structure"),
        (text([]), "no molecule"),
    ):
        (tmp_path / "bad.csv").write_text(content)
        with pytest.raises(DataError, match=message):
            read(tmp_path / "bad.csv")
    (tmp_path / "bad.csv.gz").write_bytes(gzip.compress(text(SMILES).encode())[:-9])
    with pytest.raises(DataError, match=r"bad\.csv\.gz is damaged"):
        read(tmp_path / "bad.csv.gz")
    with pytest.raises(SettingsError, match="split = 'time'"):
        Tox21(split="time")  # type: ignore[arg-type]


def test_descriptions_are_rdkits_and_kept(tmp_path: Path) -> None:
    chem = pytest.importorskip("rdkit.Chem")
    from rdkit.Chem import rdFingerprintGenerator

    smiles = [SMILES[0], UNREADABLE, *SMILES[1:]]
    found = describe(smiles, 2, 512, tmp_path)
    assert found.rows.tolist() == [0, *range(2, len(smiles))]
    morgan = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=512)
    for place, row in enumerate(found.rows.tolist()):
        expected = list(morgan.GetFingerprint(chem.MolFromSmiles(smiles[row])))
        assert found.fingerprints[place].tolist() == expected
    # Chains have no ring, and benzyl alcohol has the ring of benzene.
    scaffolds = dict(
        zip([smiles[row] for row in found.rows], found.scaffolds.tolist(), strict=True)
    )
    assert len({scaffolds[chain] for chain in CHAINS}) == 1
    assert scaffolds["OCc1ccccc1"] == scaffolds["c1ccccc1"] != scaffolds["c1ccncc1"]
    (file,) = tmp_path.iterdir()
    before = file.stat().st_mtime_ns
    again = describe(smiles, 2, 512, tmp_path)
    assert torch.equal(again.fingerprints, found.fingerprints)
    assert file.stat().st_mtime_ns == before
    with pytest.raises(DataError, match="can read none of 1"):
        describe([UNREADABLE], 2, 512, tmp_path)


def test_no_molecule_and_no_scaffold_is_in_two_parts() -> None:
    g = torch.Generator().manual_seed(0)
    scaffolds = (torch.rand(1000, generator=g) ** 3 * 300).long()
    seen = []
    for split, seed in (("random", 0), ("random", 1), ("scaffold", 0), ("scaffold", 1)):
        rows = parts(scaffolds, split, seed)  # type: ignore[arg-type]
        again = parts(scaffolds, split, seed)  # type: ignore[arg-type]
        assert all(map(torch.equal, vars(rows).values(), vars(again).values()))
        every = torch.cat(list(vars(rows).values()))
        assert torch.equal(every.sort().values, torch.arange(1000))
        seen.append(rows)
        if split == "scaffold":
            kinds = [set(scaffolds[part].tolist()) for part in vars(rows).values()]
            assert len(set.union(*kinds)) == sum(map(len, kinds))
            assert abs(len(rows.train) - 800) < 5
            assert abs(len(rows.validation) - 100) < 5
            counts = scaffolds.bincount()
            assert counts[scaffolds[rows.train]].min() >= counts[scaffolds[rows.test]].max() - 1
        else:
            assert [len(part) for part in vars(rows).values()] == [800, 100, 100]
    assert not torch.equal(seen[0].test, seen[1].test)
    assert torch.equal(seen[2].test, seen[3].test)
    with pytest.raises(DataError, match="too few for three parts"):
        parts(torch.zeros(50, dtype=torch.long), "scaffold", 0)


def test_graphs_are_rdkits(tmp_path: Path) -> None:
    chem = pytest.importorskip("rdkit.Chem")
    smiles = ["CC(=O)[O-].[Na+]", "c1ccncc1", "C#N", "C"]
    whole = graphs(smiles, tmp_path, CPU)
    assert whole.sizes.tolist() == [5, 6, 2, 1]
    group = whole.gather(torch.tensor([3, 1, 0]), 6)
    assert group.atoms.tolist() == [1, 6, 5]
    assert group.nodes.shape == (3, 6, NODE_FEATURES)
    assert group.nodes[0, 0].tolist() == [1, *[0] * 11, 1, 0, 0, 0, 0, 4]  # methane: C, sp3, 4 H
    assert group.nodes[1, :, 13:15].eq(1).all()  # aromatic, in a ring
    assert group.nodes[2, 3, 16] == group.nodes[2, 4, 15] == group.nodes[2, 4, 9] == 1
    pyridine = chem.MolFromSmiles(smiles[1])
    distance = torch.tensor(chem.GetDistanceMatrix(pyridine)).float()
    assert torch.equal(group.edges[1, :, :, 4], distance)
    assert torch.equal(group.edges[1, :, :, 3], (distance == 1).float())
    assert group.edges[2, 1, 2, :4].tolist() == [0, 1, 0, 0]  # C=O
    assert group.edges[2, 0, 4].tolist() == [0, 0, 0, 0, 20]  # no path to sodium
    assert whole.gather(torch.tensor([2]), 2).edges[0, 0, 1].tolist() == [0, 0, 1, 0, 1]
    again = graphs(smiles, tmp_path, CPU).gather(torch.tensor([3, 1, 0]), 6)
    assert torch.equal(again.edges, group.edges)


def test_batches_of_graphs_keep_their_labels(released: Path) -> None:
    benchmark = Tox21(data=str(released), network="mpnn", width=8)
    train = benchmark.load(CPU).train
    plain = Tox21(data=str(released)).load(CPU).train
    labels = torch.cat([batch.targets[HEAD] for batch in plain.batches(7)])
    count = 0
    for batch in train.batches(20, torch.Generator().manual_seed(0)):
        count += len(batch.targets[HEAD])
        chloride = torch.cat([group.nodes[:, :, 5].amax(1) for group in batch.inputs])
        assert torch.equal(chloride, batch.targets[HEAD][:, 0])
        sizes = torch.cat([group.atoms for group in batch.inputs])
        assert torch.equal(sizes, sizes.sort().values)
    assert count == len(labels) == len(train)


@pytest.mark.parametrize(
    ("method", "network"), [("ls", "mlp"), ("bayesagg", "mlp"), ("imtl-g", "mlp"), ("uw", "mpnn")]
)
def test_it_trains_with_labels_missing(
    method: str, network: str, released: Path, tmp_path: Path
) -> None:
    benchmark = Tox21(
        data=str(released),
        network=network,  # type: ignore[arg-type]
        bits=128,
        width=8,
        layers=1,
        dropout=0.0,
    )
    data = benchmark.load(CPU)
    assert data.about["unreadable"] == ["TOX7"]
    assert data.about["molecules"] == len(SMILES) + 1
    told = contents(data.contents(benchmark.losses))
    assert told.startswith("48/6/6 train/validation/test; training labels missing: nr-ahr 25.0 %, ")
    assert told.endswith("; left out: 1 molecules that RDKit cannot read")
    assert (len(data.train), len(data.validation), len(data.test)) == (48, 6, 6)
    batch = next(iter(data.train.batches(100)))
    assert batch.targets[HEAD].isnan().any()
    settings = Settings(epochs=2, batch_size=16, head_bias=True, device="cpu", schedule="cosine")
    options = methods.options(method, {}, benchmark.method_options)
    record = Trainer(Run(benchmark, method, options, settings), tmp_path / "out").train()
    test = record["best"]["test"]
    assert test["sr-p53"] is None  # never measured
    told = [value for value in test.values() if value is not None]
    assert record["best"]["test_figures"]["mean AUC"] == pytest.approx(100 * sum(told) / len(told))
    assert all(0 <= value <= 1 for value in told)
    assert record["history"][-1]["train_loss"]["sr-p53"] is None
