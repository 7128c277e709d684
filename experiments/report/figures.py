"""Every figure of the paper that a store allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.escaping import file_name
from experiments.figures import write_figure
from experiments.files import prepare_folder
from experiments.report.calibration_figure import calibrated_tasks, calibration
from experiments.report.collect import setups
from experiments.report.illustration import flow, update_directions
from experiments.weight_figure import weights

__all__ = ["draw"]


def draw(records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Draw them as PNG and PDF.

    The illustrations of the method need no runs. Of each method with weights the first seed's are
    drawn.

    Returns:
        The PNG files.

    Raises:
        OutputError: The folder cannot be written.
    """
    prepare_folder(folder)
    figures: dict[str, Callable[[], Figure]] = {
        "update_directions": update_directions,
        "flow": flow,
    }
    for number, setup in enumerate(setups(records)):
        plain = setup.as_published and not setup.data
        name = setup.benchmark if plain else f"{setup.benchmark}_{number}"
        for key, group in setup.groups.items():
            record = group.records[0]
            if record["weights"]:
                stem = file_name(f"weights_{name}_{key}", figures)
                figures[stem] = lambda record=record: weights(record)  # type: ignore[misc]
        for task in calibrated_tasks(setup):
            stem = file_name(f"calibration_{name}_{task}", figures)
            figures[stem] = lambda setup=setup, task=task: calibration(setup, task)  # type: ignore[misc]
    return [write_figure(make, folder / name) for name, make in figures.items()]
