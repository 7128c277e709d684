"""Training one run: the loop, its steps, checkpoints and files, and who hears how it goes."""

from experiments.training.loop import CHECKPOINT, RECORD, RESULTS, Trainer

__all__ = ["CHECKPOINT", "RECORD", "RESULTS", "Trainer"]
