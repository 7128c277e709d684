"""``python -m experiments compare``, and ``demo``, which is a comparison that shows more."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import comparisons
from experiments.cli.launch import friendly
from experiments.cli.many import conduct, leave, left, seeds
from experiments.cli.single import given_values
from experiments.comparisons import tuning
from experiments.comparisons.table import require_figures, table
from experiments.files import prepare_folder, strict
from experiments.report.runs import comparison
from experiments.runner import Job, JobOutcome, Place, records
from experiments.runner.store import TRIALS
from experiments.settings import require, resolve_device
from experiments.tables.escaping import PlainConsole
from experiments.tables.render import markdown, terminal
from experiments.training import RESULTS, results


def compare(name: str, given: Mapping[str, Any], names: Collection[str]) -> None:
    """The runs of a comparison, and one table."""
    with friendly(given["debug"]) as console:
        found = tuning.untuned(comparisons.find(name), given_values(given, names))
        out: Path = given["out"] or Path("results") / name
        began, outcomes = time.time(), dict[Job, JobOutcome]()
        if tuned := bool(found.tuned):
            found = _settled(found, out, given, names, outcomes, console)
            given = {**given, "labels": None, "minutes": left(given["minutes"], began)}
        if not found.entries:
            leave(outcomes, console)
            return
        todo = _compared(found, out, given, names)
        if not given["table_only"]:
            loaded = tuned or _require_figures(todo, given)
            outcomes |= conduct(todo, given, out, console, loaded=loaded)
        if given["plan"]:
            return
        shown = table(found, todo, given["show"] or ())
        if given["markdown"]:
            print(markdown(shown))
        else:
            console.print(terminal(shown))
        if given["figure"] is not None:
            from experiments.comparisons.figure import draw  # drawing takes seconds to import

            prepare_folder(given["figure"].parent)
            drawn = draw(found, todo, given["figure"])
            for path in drawn:
                console.say(f"figure: {path}")
            if not drawn:
                console.say("no figure: there are no results to draw")
        leave(outcomes, console)


def _settled(
    found: comparisons.Comparison,
    out: Path,
    given: Mapping[str, Any],
    names: Collection[str],
    outcomes: dict[Job, JobOutcome],
    console: PlainConsole,
) -> comparisons.Comparison:
    """The entries that are asked for, each with what validation chose after the trials."""
    found = dataclasses.replace(
        found,
        entries=found.chosen(given["labels"] or ()),
        seeds=seeds(given["seeds"]) or found.seeds,
    )
    every = {**given, "labels": None, "seeds": None}
    todo = _compared(tuning.trials(found), out / TRIALS, every, names, found.tuning_changes)
    if not given["table_only"]:
        loaded = _require_figures(todo, given)
        outcomes |= conduct(todo, given, out, console, loaded=loaded)
    chosen = tuning.best(found, todo)
    for entry in found.entries:
        if entry.label not in chosen:
            told = "nothing chosen yet, its trials are not finished or failed"
            console.print(f"{entry.title}: {told}")
    return tuning.settled(found, chosen)


def _require_figures(todo: Sequence[Job], given: Mapping[str, Any]) -> bool:
    """A misspelt ``--show`` is told before anything runs; by the table if data is elsewhere.

    Returns:
        Whether the data was loaded for it.
    """
    if here := given["show"] and not given["plan"] and given["engine"] == "local":
        require_figures(given["show"], todo[0].run)
    return bool(here)


def demonstrate(given: Mapping[str, Any], names: Collection[str]) -> None:
    """The comparison ``demo``, with everything that can be shown of it."""
    from experiments.report import curves as figures
    from experiments.report.figures import draw as report_figures  # pandas, which no run needs
    from experiments.report.write import tables, write

    with friendly(given["debug"]) as console:
        out: Path = given["out"] or Path("results/demo")
        todo = _compared(comparisons.find("demo"), out, given, names)
        outcomes = conduct(todo, given, out, console)
        if given["plan"]:
            return
        leave(outcomes, console)
        found = [Place(job.folder).load() for job in todo]
        results.save(out / RESULTS, {"runs": [strict(record) for record in found]})
        console.print(terminal(comparison(found)))
        made = tables(out, ["qm9", "qm9-full"])
        console.print(terminal(made[0]))
        console.say(f"results: {out / RESULTS}")
        report = write(made, "md", out / "report")
        console.say(f"report: {report}")
        drawn = figures.draw(found, out / "figures")
        for figure in [*drawn, *report_figures(records(out), out / "report" / "figures")]:
            console.say(f"figure: {figure}")


def _compared(
    found: comparisons.Comparison,
    out: Path,
    given: Mapping[str, Any],
    names: Collection[str],
    fixed: Collection[str] = (),
) -> list[Job]:
    """The jobs, with what is given but for what is fixed."""
    values = {k: v for k, v in given_values(given, names).items() if k not in fixed}
    for name, several in values.items():
        require(len(several) == 1, name, several, "a comparison takes one value for all entries")
    every = given["record"]
    require(every is None or every >= 1, "record", every, "give 1 or more steps")
    jobs = tuning.compared(
        found,
        out.resolve(),
        only=given["labels"] or (),
        seeds=seeds(given["seeds"]),
        changes={name: several[0] for name, several in values.items()},
        record=every,
        log=given["log"] or (),
    )
    resolve_device(jobs[0].run.settings.device)
    return jobs
