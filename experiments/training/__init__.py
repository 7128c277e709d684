"""Training one run: the loop, its steps, checkpoints and files, and who hears how it goes."""

from experiments.training.checkpoints import CHECKPOINT, RECORD, RESULTS
from experiments.training.loop import Trainer
