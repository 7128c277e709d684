"""State of a scalarization of TorchJD, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Adam

from bayesagg_pyro.aggregation._torchjd_state import load_state, read_state

__all__ = ["load_scalarizer", "read_scalarizer"]


def read_scalarizer(scalarizer: Any) -> dict[str, Any]:
    """Parameters, memory, and the optimiser that FAMO keeps to itself."""
    optimizer = getattr(scalarizer, "_optimizer", None)
    return {
        "module": scalarizer.state_dict(),
        "memory": read_state(scalarizer),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
    }


def load_scalarizer(scalarizer: Any, state: Mapping[str, Any]) -> None:
    """Restore what :func:`read_scalarizer` gave."""
    scalarizer.load_state_dict(state["module"])
    load_state(scalarizer, state["memory"])
    if state["optimizer"] is not None:
        scalarizer._optimizer = Adam(
            [scalarizer._w], lr=scalarizer.lr, weight_decay=scalarizer.weight_decay
        )
        scalarizer._optimizer.load_state_dict(state["optimizer"])
