"""Training one run: the loop, its steps, checkpoints and files, and who hears how it goes."""

from experiments.training.loop import Trainer
from experiments.training.output import CHECKPOINT, RECORD, RESULTS

__all__ = ["CHECKPOINT", "RECORD", "RESULTS", "Trainer"]
