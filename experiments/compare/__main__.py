"""One run of a comparison: ``python -m experiments.compare NAME LABEL SEED --out DIR``."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path

from bayesagg_pyro.errors import BayesAggError
from experiments.compare.catalogue import find
from experiments.compare.work import BUSY, FINISHED, STOPPED
from experiments.errors import ExperimentError, OutOfTime, RunInterrupted
from experiments.escaping import PlainConsole
from experiments.runner.store import Place
from experiments.terminal import Lines
from experiments.training import CHECKPOINT, Trainer

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Train one run to its end, or until the minutes are over."""
    parser = argparse.ArgumentParser(prog="python -m experiments.compare", description=__doc__)
    parser.add_argument("comparison")
    parser.add_argument("label")
    parser.add_argument("seed", type=int)
    parser.add_argument("--out", type=Path, required=True, help="folder of the comparison")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--device")
    parser.add_argument("--graph")
    parser.add_argument("--data", help="where the data is")
    parser.add_argument("--epochs", type=int, help="fewer epochs, to try things out")
    parser.add_argument("--lr", type=float, help="another learning rate, to try things out")
    parser.add_argument("--record", type=int, help="diagnostics of one step in so many")
    given = parser.parse_args(arguments)
    try:
        everywhere = {
            "device": given.device,
            "graph": given.graph,
            "epochs": given.epochs,
            "learning_rate": given.lr,
        }
        (job,) = find(given.comparison).jobs([given.label], [given.seed], **everywhere)
        run = job.run
        if given.data is not None:
            run = dataclasses.replace(run, benchmark=run.benchmark.at(given.data))
        folder = given.out / job.folder
        with Place(folder).locked() as mine:
            if not mine:
                print(f"another process is at work in {folder}")
                return BUSY
            Trainer(
                run,
                folder,
                resume=os.path.lexists(folder / CHECKPOINT),
                reporter=Lines(PlainConsole(width=200)),
                record=given.record,
                minutes=given.minutes,
            ).train()
    except (OutOfTime, RunInterrupted) as stopped:
        print(stopped)
        return STOPPED
    except (ExperimentError, BayesAggError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return FINISHED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
