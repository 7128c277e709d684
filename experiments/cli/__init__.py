"""The command line: ``python -m experiments``."""

from experiments.cli.app import PROGRAM, app
