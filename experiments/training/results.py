"""The results file: everything needed to read a run, and to repeat it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from experiments import methods
from experiments.benchmark import Benchmark, Values
from experiments.errors import DamagedDataError, DataError, MissingDataError
from experiments.files import write_json
from experiments.files.reading import NUMBER, VALUE, fits, json_file

FORMAT = 1
#: What the record of a run has at least; other files of that name have not.
OF_A_RUN: Final = frozenset({"benchmark", "method", "settings", "best", "last", "history"})
#: An epoch in a history, as a pattern of :func:`experiments.files.reading.fits`.
EPOCH: Final = {
    "epoch": int,
    "phase": str,
    "train_loss": {str: VALUE},
    "validation": {str: VALUE},
    "score": NUMBER,
    "seconds": NUMBER,
    "seconds_per_step": NUMBER,
}
_MEASURED: Final = {
    "epoch?": int,
    "validation?": {str: VALUE},
    "validation_score?": NUMBER,
    "test": {str: VALUE},
    "test_figures": {str: VALUE},
    "test_delta_m?": VALUE,
    "test_score?": NUMBER,
}
_TASK: Final = {
    **dict.fromkeys(("name", "symbol", "unit"), str),
    "single_task": VALUE,
    "higher_is_better": bool,
}
_SEED: Final = {"split_seed?": (int, None)}
#: What a report needs.
_RECORD: Final = {
    "title?": str,
    "benchmark_title?": str,
    "usual?": dict,
    "benchmark": {"name": str, "options": _SEED},
    "method": {"name": str, "options": {"level?": (str, None)}},
    "settings": {"seed": int, "epochs": int, "batch_size": int},
    "tasks?": [_TASK],
    "losses?": [str],
    "examples?": {"train": int, "validation?": int, "test?": int},
    "missing?": {str: NUMBER},
    "left_out?": {str: int},
    "data?": {
        "sizes?": {str: NUMBER},
        "molecules?": NUMBER,
        "images?": (str, None),
        "sha256?": (str, None),
    },
    "best": {**_MEASURED, "validation_score": NUMBER},
    "last": _MEASURED,
    "constant?": _MEASURED,
    "timing?": {"seconds": NUMBER, "seconds_per_step": {str: NUMBER}},
    "history": [EPOCH],
    "weights?": [{"epoch": int, "by_example": [[VALUE]], "applied": [VALUE]}],
}
#: What tables and figures of single runs need besides.
_WHOLE: Final = {
    **dict.fromkeys(("title", "metric", "score_name", "single_task_source"), str),
    **{part: {"epoch": int, "test_score": NUMBER} for part in ("best", "last")},
    "constant": {"validation": {str: VALUE}, "test_score": NUMBER},
    **dict.fromkeys(("tasks", "history", "weights"), list),
    "timing": dict,
}


def by_task(benchmark: Benchmark, values: Values) -> dict[str, float | None]:
    """``{task name: value}`` of metrics."""
    return {task.name: value for task, value in zip(benchmark.tasks, values, strict=True)}


def by_loss(benchmark: Benchmark, values: Values) -> dict[str, float | None]:
    """``{name: value}`` of losses."""
    return dict(zip(benchmark.losses, values, strict=True))


def timing(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Total seconds, and the median over epochs of the seconds per step in each phase."""
    phases: dict[str, list[float]] = {}
    for record in history:
        phases.setdefault(record["phase"], []).append(record["seconds_per_step"])
    return {
        "seconds": sum(record["seconds"] for record in history),
        "seconds_per_step": {name: statistics.median(times) for name, times in phases.items()},
    }


def training_examples(record: Mapping[str, Any]) -> int | None:
    """How many examples the run was trained on; None where its file does not tell.

    Earlier files tell it in other places: the sizes of the splits, or the number of molecules
    that was asked for.
    """
    about, options = record.get("data", {}), record["benchmark"]["options"]
    places = (record.get("examples", about.get("sizes", {})).get("train"), options.get("molecules"))
    return next((int(count) for count in places if count is not None), None)


def contents(said: Mapping[str, Any]) -> str:
    """What data a run had: its parts, missing labels, what was left out; as far as is known.

    Args:
        said: A record, or what ``Data.contents`` gives.
    """
    sizes = said.get("examples") or said.get("data", {}).get("sizes") or {}
    if not sizes and "benchmark" in said and (count := training_examples(said)) is not None:
        sizes = {"train": count}
    names = [name for name in ("train", "validation", "test") if name in sizes]
    known = f"{'/'.join(f'{sizes[name]:,}' for name in names)} {'/'.join(names)}"
    told = [known if names else "sizes unknown"]
    if missing := said.get("missing"):
        shares = (f"{name} {100 * share:.1f} %" for name, share in missing.items())
        told.append(f"training labels missing: {', '.join(shares)}")
    if left_out := said.get("left_out"):
        counts = (f"{count:,} {what}" for what, count in left_out.items())
        told.append(f"left out: {', '.join(counts)}")
    return "; ".join(told)


def save(path: Path, record: Mapping[str, Any]) -> None:
    """Write a results file."""
    write_json(path, {"format": FORMAT, **record})


def load(path: Path) -> dict[str, Any]:
    """Read the results file of a run.

    Raises:
        DataError: There is none, or it is not one.
    """
    try:
        record = read(path)
    except MissingDataError as error:
        below = min(path.parent.rglob(path.name), default=None)
        if below is None:
            raise
        raise MissingDataError(
            f"{path.parent} is no run and holds several: give the folder of one, such as "
            f"{below.parent}"
        ) from error
    check(record, path)
    return record


def load_whole(path: Path) -> dict[str, Any]:
    """Read the results file of a run, with all that tables and figures of single runs show.

    Raises:
        DataError: There is none, or parts of it are missing.
    """
    record = load(path)
    try:
        fits(record, _WHOLE)
        _belong_together(record)
    except (ValueError, KeyError) as error:
        raise DamagedDataError(f"{path} is not whole ({error}): repeat the run") from error
    return record


def read(path: Path) -> dict[str, Any]:
    """Read a file of that name, whoever wrote it.

    Raises:
        DataError: There is none, it is damaged, or it cannot be read.
    """
    try:
        record: dict[str, Any] = json_file(path, f"finish a run with --out {path.parent}")
    except DataError as error:
        raise type(error)(f"no readable results file at {path.parent}: {error}") from error
    if isinstance(record.get("method"), Mapping):
        record["method"] = methods.current(record["method"])
    return record


def check(record: Mapping[str, Any], path: Path) -> None:
    """Refuse what is not the record of a run.

    Raises:
        DataError: A part of it is missing or of another type, or another version wrote it.
    """
    missing = sorted(OF_A_RUN - record.keys())
    if missing:
        raise DataError(
            f"{path} is not the results file of a run (it has no {', '.join(missing)}): give the "
            "output folder of a finished run"
        )
    if record.get("format") != FORMAT:
        raise DataError(
            f"{path} has format {record.get('format')!r}, this version reads {FORMAT}: repeat the "
            "run, or read it with the version that wrote it"
        )
    try:
        fits(record, _RECORD)
        names = {task["name"] for task in record.get("tasks", ())}
        if len(names) < len(record.get("tasks", ())):
            raise ValueError("two of its tasks have one name")
        epochs, most = [e["epoch"] for e in record["history"]], record["settings"]["epochs"]
        if epochs != [*range(1, len(epochs) + 1)] or len(epochs) > most:
            raise ValueError(f"its history is not of epochs 1 to {most} in order")
        if absent := sorted(names - record["best"]["test"].keys()):
            raise ValueError(f"its best epoch has no metric of {', '.join(absent)}")
        stages = record.get("weights", ())
        rows = [row for s in stages for row in (s["applied"], *s["by_example"])]
        trained = len(record.get("losses", names))
        if len(stages) > 3 or any(len(row) != trained for row in rows):
            raise ValueError("its weights are not those of its tasks at up to three epochs")
        if not all(stage["by_example"] for stage in stages):
            raise ValueError("its weights are of no example")
    except ValueError as error:
        raise DamagedDataError(f"{path} is damaged ({error}): repeat the run") from error


def _belong_together(record: Mapping[str, Any]) -> None:
    """Raise ValueError or KeyError where parts speak of other tasks, epochs or phases."""
    names = [task["name"] for task in record["tasks"]]
    epochs = [epoch["epoch"] for epoch in record["history"]]
    places = [record["last"]["test"], record["constant"]["test"], record["constant"]["validation"]]
    for part in [*places, *(epoch["validation"] for epoch in record["history"])]:
        if not part.keys() >= {*names}:
            raise ValueError(f"no metric of {', '.join(sorted({*names} - part.keys()))}")
    for part in (record["best"], record["last"]):
        if not part["test_figures"].keys() >= record["constant"]["test_figures"].keys():
            raise ValueError("its figures differ from those of the constant prediction")
    if not names or record["best"]["epoch"] not in epochs:
        raise ValueError("it has no tasks, or not its best epoch")
    record["timing"]["seconds_per_step"][record["history"][-1]["phase"]]
