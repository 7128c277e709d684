"""Many runs: which, where, in which process, and what is already done.

A run itself is :class:`experiments.run.Run`, trained by :class:`experiments.training.Trainer`.
"""

from __future__ import annotations

from experiments.runner.engines import Engine, Handle, Local
from experiments.runner.estimate import Cost, estimate
from experiments.runner.execute import execute
from experiments.runner.live import Watcher, plan_table, summary
from experiments.runner.plan import SPLIT, Job, Request, choose, configurations, fingerprint, plan
from experiments.runner.queues import Dask, Queue, Submitit
from experiments.runner.search import Study
from experiments.runner.store import Place, State, records
from experiments.runner.worker import Ending, JobOutcome, work
