"""One job: skipped, resumed, refused while another process is at work, recorded when it fails."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.errors import DataError
from experiments.runner import (
    Ending,
    Job,
    Place,
    Request,
    State,
    execute,
    plan,
    records,
    summary,
    work,
)
from experiments.training import Trainer
from experiments.training.checkpoints import restore
from tests.experiments.toy import without_times
from tests.runner.jobs import Here, job


def longer(one: Job, epochs: int) -> Job:
    settings = dataclasses.replace(one.run.settings, epochs=epochs)
    return Job(dataclasses.replace(one.run, settings=settings), one.folder)


def test_a_job_is_done_once(tmp_path: Path) -> None:
    one = job(tmp_path / "a")
    place = Place(one.folder)
    assert place.state() is State.NEW
    assert work(one).ending is Ending.DONE
    assert place.state() is State.DONE
    assert place.status()["state"] == "done"
    before = place.results.stat().st_mtime_ns
    assert work(one).ending is Ending.SKIPPED
    assert place.results.stat().st_mtime_ns == before


def test_what_was_begun_goes_on(tmp_path: Path) -> None:
    Trainer(job(tmp_path / "a", epochs=2).run, tmp_path / "a").train()
    (tmp_path / "a" / "results.json").unlink()
    (tmp_path / "a" / ".checkpoint.pt.1.tmp").write_bytes(b"half")
    assert Place(tmp_path / "a").state() is State.STARTED
    assert work(longer(job(tmp_path / "a"), 4)).ending is Ending.DONE
    assert not list((tmp_path / "a").glob(".*.tmp"))
    assert work(job(tmp_path / "b", epochs=4)).ending is Ending.DONE
    mine, whole = (Place(tmp_path / name).load() for name in "ab")
    assert without_times(mine["history"]) == without_times(whole["history"])
    assert mine["best"] == whole["best"]


def hold(folder: str, ready: Any) -> None:
    with Place(Path(folder)).locked() as mine:
        ready.put(mine)
        time.sleep(60)


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    one = job(tmp_path / "a")
    context = multiprocessing.get_context("fork")
    ready = context.SimpleQueue()
    other = context.Process(target=hold, args=(str(one.folder), ready))
    other.start()
    assert ready.get() is True
    assert work(one).ending is Ending.ELSEWHERE
    assert not (one.folder / "checkpoint.pt").exists()
    other.kill()
    other.join()
    assert work(one).ending is Ending.DONE


def test_a_failure_is_recorded_and_forgiven(tmp_path: Path) -> None:
    place = Place(tmp_path / "a")
    ending, message = work(job(tmp_path / "a", "error"))
    assert ending is Ending.FAILED
    assert message == "DataError: the data set is missing: give another"
    assert place.state() is State.FAILED
    assert "in load" in place.failure()["traceback"]
    assert work(job(tmp_path / "a")).ending is Ending.DONE
    assert place.state() is State.DONE
    assert place.failure() == {}


def test_records_of_a_store(tmp_path: Path) -> None:
    work(job(tmp_path / "x" / "a"))
    work(job(tmp_path / "b", "error"))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "results.json").write_text(json.dumps({"format": 1, "runs": []}))
    told = r"left out: the run in .*b failed \(DataError: the data set is missing: give another\)"
    with pytest.warns(UserWarning, match=told):
        (record,) = records(tmp_path)
    assert record["method"]["name"] == "ls"
    with pytest.raises(DataError, match=r"no folder .*nowhere"):
        records(tmp_path / "nowhere")


@pytest.mark.parametrize("content", ["", '{"format": 1'])
@pytest.mark.parametrize("begun", [True, False])
def test_unreadable_results_are_written_again(content: str, begun: bool, tmp_path: Path) -> None:
    one = job(tmp_path / "a")
    place = Place(one.folder)
    work(one)
    whole = place.load()
    place.results.write_text(content)
    with pytest.warns(UserWarning, match=r"left out: .*results\.json"):
        assert records(tmp_path) == []
    if not begun:
        place.checkpoint.unlink()
    assert place.state() is (State.STARTED if begun else State.NEW)
    assert work(one).ending is Ending.DONE
    assert place.load()["best"] == whole["best"]
    assert (one.folder / "results.json.damaged").read_text() == content
    assert "is written again" in place.log.read_text()


def test_results_of_another_version_are_named(tmp_path: Path) -> None:
    one = job(tmp_path / "a")
    work(one)
    record = json.loads(Place(one.folder).results.read_text())
    Place(one.folder).results.write_text(json.dumps({**record, "format": 99}))
    told: list[str] = []
    assert records(tmp_path, told.append) == []
    assert "has format 99, this version reads 1" in told[0]


def test_a_damaged_checkpoint_is_set_aside(tmp_path: Path) -> None:
    one = job(tmp_path / "a")
    place = Place(one.folder)
    work(one)
    whole = place.load()
    place.results.unlink()
    place.checkpoint.write_bytes(b"half")
    assert work(one).ending is Ending.DONE
    assert place.load()["best"] == whole["best"]
    assert (one.folder / "checkpoint.pt.damaged").read_bytes() == b"half"
    assert "training begins anew" in place.log.read_text()


def test_done_jobs_start_no_process(tmp_path: Path) -> None:
    one = job(tmp_path / "a")
    work(one)

    def never(parallel: int) -> Any:
        raise AssertionError("an engine was made")

    outcomes = execute([one], never, 2)
    assert [outcome.ending for outcome in outcomes.values()] == [Ending.SKIPPED]


def test_runs_of_earlier_versions_go_on_and_are_done(tmp_path: Path) -> None:
    """An option was called otherwise: in the folder's name, in results, in checkpoints."""
    changes = {"epochs": 3, "pretrain": 1, "reduction": "sum", "threads": 1}
    (one,) = plan(Request("digits", ["bayesagg"], changes=changes), tmp_path)
    assert one.configuration == "bayesagg-569b60c1"
    place = Place(one.folder)
    work(one)
    whole = place.load()
    text = place.results.read_text()
    assert '"reduction": "sum"' in text
    place.results.write_text(text.replace('"reduction": "sum"', '"scale": "sum"'))
    assert place.load() == whole
    assert place.differences(one.run) == []
    assert work(one).ending is Ending.SKIPPED
    assert restore(one.folder, torch.device("cpu"))[0] == one.run
    place.results.unlink()
    saved = torch.load(place.checkpoint, weights_only=True)
    options = saved["identity"]["method"]["options"]
    options["scale"] = options.pop("reduction")
    options["half_life"] = 77_000.0  # without a prior that has one
    torch.save(saved, place.checkpoint)
    assert work(one).ending is Ending.DONE
    assert not list(one.folder.glob("*.damaged"))
    assert place.load()["best"] == whole["best"]


def test_a_done_run_tells_which_data_it_had(tmp_path: Path) -> None:
    one = job(tmp_path / "a")
    work(one)
    assert work(one) == (Ending.SKIPPED, "")
    place = Place(one.folder)
    record = json.loads(place.results.read_text())
    record["benchmark"]["options"]["data"] = "old.csv"
    place.results.write_text(json.dumps(record))
    outcomes = execute([one], Here, 1)
    assert (
        summary(outcomes) == "1 done before, 1 of these with data old.csv, not in the default place"
    )
