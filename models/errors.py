"""Errors of the backbones. Each names what is wrong, its value and the remedy."""

from __future__ import annotations


class GraphError(ValueError):
    """Molecules that do not fit together, or do not fit the network that is given them."""


class NetworkError(ValueError):
    """A network's setting is outside its range."""


class MissingPackageError(ImportError):
    """An optional package is needed and not installed."""
