"""A search by Optuna among values, in place of every combination of them.

The study lies beside the runs, whose validation scores are all that it is told. A trial that was
begun and has not ended is the first that goes on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from experiments.errors import DamagedDataError, SettingsError
from experiments.files import prepare_folder, strict
from experiments.runner import values
from experiments.runner.plan import Job, Request, plan
from experiments.runner.store import Place
from experiments.runner.worker import Ending, JobOutcome
from experiments.settings import require
from models.files import reason

STUDIES: Final = "search.log"
"""File of the store that holds its studies, one for each method and question."""

_WIDE: Final = 10.0
"""A range that spans such a factor is searched on a logarithmic scale."""


@dataclass(frozen=True)
class Trial:
    """One point and its runs, one for each seed."""

    number: int
    point: Mapping[str, Any]
    jobs: Sequence[Job]

    def __str__(self) -> str:
        return ", ".join(f"{name} {values.shown(value)}" for name, value in self.point.items())


class Study:
    """What is tried for one method.

    Args:
        request: For this method alone; what its axes hold is searched, a range as one text
            ``"LOW..HIGH"``.
        out: The results store.
        record: As for :class:`Job`.
        log: Likewise.

    Raises:
        SettingsError: Optuna is not installed, there is nothing to choose among, or a value does
            not fit.
    """

    def __init__(
        self, request: Request, out: Path, record: int | None = None, log: Sequence[str] = ()
    ) -> None:
        try:
            import optuna
        except ImportError as error:
            raise SettingsError(
                "search needs the package optuna: install it with "
                "pip install optuna, or leave --search out"
            ) from error
        (self.method,) = request.methods
        if not request.axes:
            raise SettingsError(
                f"search has nothing to choose among for method {self.method}: give an option "
                "several values or a range, such as --lr 1e-4..1e-2"
            )
        self._optuna, self._request = optuna, request
        self._place = (out, record, log)
        self._space = {name: self._among(name, found) for name, found in request.axes.items()}
        self._try_ends()

    @cached_property
    def _study(self) -> Any:
        """In the store, as it was left."""
        optuna, (out, *_) = self._optuna, self._place
        asked = json.dumps(strict(dataclasses.asdict(self._request)), sort_keys=True)
        digest = hashlib.sha256(asked.encode()).hexdigest()[:8]
        prepare_folder(out)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        file = optuna.storages.journal.JournalFileBackend(str(out / STUDIES))
        try:
            return optuna.create_study(
                storage=optuna.storages.JournalStorage(file),
                study_name=f"{self._request.benchmark} {self.method} {digest}",
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # optuna reads it all
            raise DamagedDataError(
                f"{out / STUDIES} is damaged ({reason(error)}): delete it; the search begins anew, "
                "and runs that are done are not run again"
            ) from error

    def next(self, many: int, total: int) -> list[Trial]:
        """Trials to run side by side: those that were begun, or so many new ones up to a total.

        What is proposed depends on the trials before and not on when a search was interrupted.
        """
        begun = self._study.get_trials(states=[self._optuna.trial.TrialState.RUNNING])
        tried = len(self._study.get_trials(deepcopy=False))
        if not begun:
            self._study.sampler = self._optuna.samplers.TPESampler(seed=tried)
            for _ in range(min(many, total - tried)):
                self._study.ask(self._space)
            begun = self._study.get_trials(states=[self._optuna.trial.TrialState.RUNNING])
        return [self._trial(found) for found in begun]

    def tell(self, trial: Trial, outcomes: Mapping[Job, JobOutcome]) -> None:
        """How its runs ended; a trial with a run that is left stays begun."""
        endings = [outcomes[job].ending for job in trial.jobs]
        if all(ending in (Ending.DONE, Ending.SKIPPED) for ending in endings):
            scores = [Place(job.folder).load()["best"]["validation_score"] for job in trial.jobs]
            self._study.tell(trial.number, statistics.fmean(scores), skip_if_finished=True)
        elif Ending.FAILED in endings:
            failed = self._optuna.trial.TrialState.FAIL
            self._study.tell(trial.number, state=failed, skip_if_finished=True)

    def plan(self, total: int) -> str:
        """What is searched, in words."""
        among = "; ".join(
            f"{name} {' '.join(map(values.shown, found))}"
            for name, found in self._request.axes.items()
        )
        return f"{self.method}: {total} trials, {among}"

    def best(self) -> str:
        """The best trial in words."""
        done = self._study.get_trials(states=[self._optuna.trial.TrialState.COMPLETE])
        if not done:
            return f"{self.method}: no trial has ended well"
        first = min(done, key=lambda trial: trial.value)
        return (
            f"{self.method}: best of {len(done)} trials on validation is trial "
            f"{first.number + 1}, {self._trial(first)} ({values.shown(first.value)})"
        )

    def _trial(self, found: Any) -> Trial:
        """With its values in the order in which they were given."""
        point = {name: found.params[name] for name in self._space}
        return Trial(found.number, point, self._jobs(point))

    def _among(self, name: str, found: Sequence[Any]) -> Any:
        """Optuna's distribution of an axis."""
        optuna = self._optuna
        ends = values.ends(found[0]) if len(found) == 1 else None
        if ends is None:
            plain = (str, int, float, bool)
            return optuna.distributions.CategoricalDistribution(
                [one if isinstance(one, plain) else json.dumps(strict(one)) for one in found]
            )
        low, high = ends
        require(low < high, name, found[0], "give the smaller number first")
        log = low > 0 and high / low >= _WIDE
        owner = self._request.owner(name, self.method) or object
        if values.whole(owner, name.rpartition(".")[2]):
            whole = low == int(low) and high == int(high)
            require(whole, name, found[0], "give whole numbers")
            return optuna.distributions.IntDistribution(int(low), int(high), log=log)
        return optuna.distributions.FloatDistribution(low, high, log=log)

    def _try_ends(self) -> None:
        """Refuse what could never be run before anything is."""
        for place in (0, -1):
            point = {}
            for name, among in self._space.items():
                given = getattr(among, "choices", None) or (among.low, among.high)
                point[name] = given[place]
            self._jobs(point)

    def _jobs(self, point: Mapping[str, Any]) -> list[Job]:
        changes = {**self._request.changes, **point}
        return plan(dataclasses.replace(self._request, changes=changes, axes={}), *self._place)
