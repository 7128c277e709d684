"""Named sets of options: what to start from, with every single option still free."""

from experiments.presets._preset import Preset
from experiments.presets.qm9 import PAPER, PRESETS, RECOMMENDED, find

__all__ = ["PAPER", "PRESETS", "RECOMMENDED", "Preset", "find"]
