"""Errors, as types: every message names the task or head, the value and the remedy.

Each error is also the built-in exception that a caller would expect (`ShapeError` is a
`ValueError`), so code that does not know this library still catches it.
"""

__all__ = [
    "BayesAggError",
    "DeviceError",
    "DtypeError",
    "MissingPackageError",
    "NonFiniteError",
    "NumericalError",
    "SettingError",
    "ShapeError",
    "StateError",
    "TaskError",
    "UnsupportedError",
]


class BayesAggError(Exception):
    """Base of every error raised on purpose by this library."""


class ShapeError(BayesAggError, ValueError):
    """A tensor has the wrong number of dimensions or sizes, or a batch is empty."""


class DtypeError(BayesAggError, TypeError):
    """A tensor or argument has the wrong type."""

    @classmethod
    def returned(cls, owner: object, method: str, value: object, wanted: str) -> "DtypeError":
        """For a method of somebody's own class that returns what it must not.

        Args:
            owner: whose method it is.
            method: its name.
            value: what it returned.
            wanted: what it is to return, with the way to make one.
        """
        return cls(
            f"{type(owner).__name__}.{method} returned a {type(value).__name__}; it must return "
            f"{wanted}"
        )


class DeviceError(BayesAggError, ValueError):
    """Tensors in one computation are on different devices."""


class NonFiniteError(BayesAggError, ValueError):
    """Features or targets hold NaN or infinity."""


class TaskError(BayesAggError, ValueError):
    """Task names are missing, unknown, duplicated or unusable."""


class SettingError(BayesAggError, ValueError):
    """An argument lies outside its range or does not fit another argument."""


class StateError(BayesAggError, RuntimeError):
    """A call came at the wrong time: no prior yet, nothing collected, no gradient graph."""


class NumericalError(BayesAggError, ArithmeticError):
    """A matrix that must be positive definite is not, even after the allowed jitter."""


class UnsupportedError(BayesAggError, NotImplementedError):
    """Parts that could go together, but for whose combination there is no formula."""


class MissingPackageError(BayesAggError, ImportError):
    """An optional package is not installed; the message names the extra to install."""
