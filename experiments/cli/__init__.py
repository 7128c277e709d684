"""The command line: ``python -m experiments``."""

from experiments.cli.app import app

__all__ = ["app"]
