"""Every figure of the paper that a store allows, each with its numbers beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from experiments.files import prepare_folder, write_json
from experiments.report.collect import Setup, mean_std, setups
from experiments.report.curves import weights
from experiments.report.illustration import flow, update_directions
from experiments.report.style import OURS, typeset, write_figure
from experiments.scores.calibration import tells_calibration
from experiments.tables import escaping

Numbers = Mapping[str, Any]

_OTHERS = "#E08214"


def draw(records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Draw them as PNG and PDF, and write what was drawn of runs as JSON.

    The illustrations of the method need no runs. Of each method with weights the first seed's are
    drawn.

    Returns:
        The PNG files.

    Raises:
        OutputError: The folder cannot be written.
    """
    prepare_folder(folder)
    made = [write_figure(make, folder / make.__name__) for make in (update_directions, flow)]
    shown: dict[str, tuple[Callable[[Numbers], Figure], Numbers]] = {}
    for number, setup in enumerate(setups(records)):
        plain = setup.as_published and not setup.data
        name = setup.benchmark if plain else f"{setup.benchmark}_{number}"
        for key, group in setup.groups.items():
            record = group.records[0]
            if record["weights"]:
                kept = {k: record[k] for k in ("tasks", "losses", "weights") if k in record}
                shown[escaping.file_name(f"weights_{name}_{key}", shown)] = weights, kept
        for task, points in trust(setup).items():
            stem = escaping.file_name(f"calibration_{name}_{task}", shown)
            shown[stem] = calibration, {"task": task, "points": points}
    for stem, (make, numbers) in shown.items():
        made.append(write_figure(lambda make=make, numbers=numbers: make(numbers), folder / stem))  # type: ignore[misc]
        write_json(folder / f"{stem}.json", numbers)
    return made


def trust(setup: Setup) -> dict[str, dict[str, Numbers]]:
    """``{task: {method: ECE and Brier score}}``, each a mean and a standard deviation over seeds.

    The task is ``"all"`` where only the mean over tasks is known. Empty for less than two methods.
    """
    found: dict[str, dict[str, Numbers]] = {}
    for group in setup.groups.values() if len(setup.groups) > 1 else ():
        figures = [record["best"]["test_figures"] for record in group.records]
        for name in figures[0]:
            if tells_calibration(name) and name.startswith("ECE"):
                pair = {
                    kind: mean_std([each.get(name.replace("ECE", kind, 1)) for each in figures])
                    for kind in ("ECE", "Brier")
                }
                points = found.setdefault(name.partition(" ")[2] or "all", {})
                if all(mean is not None for mean, _ in pair.values()):
                    points[group.title] = {"ours": group.key.startswith("bayesagg"), **pair}
    return found


def calibration(numbers: Numbers) -> Figure:
    """ECE against Brier score on the test split; lower is better on both axes.

    As in the paper, baselines in orange and BayesAgg in purple, and named are the latter and the
    best of the others, by the sum of its ranks on both axes. Bars are standard deviations over
    seeds.

    Args:
        numbers: The ``task``, and its ``points`` as :func:`trust` gives them.
    """
    figure = Figure(figsize=(3.4, 2.9), layout="constrained")
    axes = figure.add_subplot()
    points: Mapping[str, Numbers] = numbers["points"]
    for point in points.values():
        (ece, ece_error), (brier, brier_error) = point["ECE"], point["Brier"]
        colour = OURS if point["ours"] else _OTHERS
        axes.errorbar(
            brier,
            ece,
            xerr=brier_error,
            yerr=ece_error,
            fmt="D" if point["ours"] else "o",
            color=colour,
            markersize=5 if point["ours"] else 4,
            elinewidth=0.6,
            ecolor=(*to_rgb(colour), 0.35),
            zorder=3 if point["ours"] else 2,
        )
    places = {title: (point["Brier"][0], point["ECE"][0]) for title, point in points.items()}
    rivals = {title: place for title, place in places.items() if not points[title]["ours"]}
    best = min(rivals, key=lambda title: _ranks(rivals, title), default=None)
    for title, place in places.items():
        if title == best or title not in rivals:
            axes.annotate(
                escaping.figure(title),
                place,
                xytext=(-5, -9) if title == best else (5, 4),
                ha="right" if title == best else "left",
                textcoords="offset points",
                fontsize=7,
            )
    axes.margins(0.2)
    axes.set_xlabel("Brier score ↓")
    axes.set_ylabel("ECE (15 bins) ↓")
    axes.set_title(typeset(numbers["task"]))
    return figure


def _ranks(points: Mapping[str, tuple[float, float]], title: str) -> int:
    """How many others are below it, on either axis."""
    x, y = points[title]
    return sum((a < x) + (b < y) for a, b in points.values())
