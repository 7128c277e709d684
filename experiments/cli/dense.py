"""``python -m experiments render`` and ``predictions``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.launch import Debug, friendly


def render(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for train/ and val/.")],
    layout: Annotated[
        str,
        typer.Option(
            metavar="nyuv2|cityscapes",
            help="nyuv2: depth in metres, and normals; cityscapes: inverse depth alone.",
        ),
    ] = "nyuv2",
    train: Annotated[int, typer.Option(help="Images in train/.")] = 160,
    val: Annotated[int, typer.Option(help="Images in val/.")] = 40,
    height: Annotated[int, typer.Option(help="Of the images in pixels.")] = 48,
    image_width: Annotated[int, typer.Option(help="Of the images in pixels.")] = 64,
    seeds: Annotated[int, typer.Option(metavar="N", help="Decides the rooms.")] = 0,
    debug: Debug = False,
) -> None:
    """Write rendered rooms as files, in the layout of a public release.

    The benchmarks nyuv2 and cityscapes read them with --data DIR.
    """
    with friendly(debug) as console:
        from experiments.dense.rooms import Camera
        from experiments.dense.scenes import LAYOUTS, as_files
        from experiments.settings import require, require_seed

        require(layout in LAYOUTS, "layout", layout, f"give {' or '.join(LAYOUTS)}")
        require_seed("seed", seeds)
        counts = {"train": train, "val": val}
        for name, number in {**counts, "height": height, "image_width": image_width}.items():
            require(number >= 1, name, number, "give at least 1")
        as_files(out, layout, counts, Camera(height, image_width), seeds)
        console.say(f"images: {out}")


def predictions(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of a finished run.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of the figure.", show_default="DIR/predictions"),
    ] = None,
    image: Annotated[
        list[int] | None,
        typer.Option(help="Places in the test split of the images to show.", show_default="0 1"),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where the data are now, if elsewhere.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Draw what a run of scenes, nyuv2 or cityscapes predicts for pixels, and how sure it is.

    A figure of truths, predictions, errors and uncertainties, and of how far the latter tell the
    former. Methods without posteriors get those of their weights.
    """
    with friendly(debug) as console:
        import torch

        from experiments.dense.benchmark import Dense
        from experiments.dense.figure import draw
        from experiments.dense.predictions import predicted
        from experiments.errors import SettingsError
        from experiments.files import prepare_folder
        from experiments.report.style import write_figure
        from experiments.training.checkpoints import restore

        for new in [] if out is None else prepare_folder(out.parent):  # it can be made
            new.rmdir()
        found, method = restore(run, torch.device("cpu"))
        benchmark = found.benchmark if data is None else found.benchmark.at(data)
        if not isinstance(benchmark, Dense):
            raise SettingsError(f"{run} is a run of {benchmark.title}, which has no pixels")
        loaded = benchmark.load(torch.device("cpu"))
        chosen = list(dict.fromkeys(image or range(min(2, len(loaded.test)))))
        shown, trust = predicted(method, loaded, chosen)
        if out is not None:
            prepare_folder(out.parent)
        path = write_figure(
            lambda: draw(
                [shown[place] for place in chosen],
                trust,
                benchmark.class_names,
                benchmark.depth_unit,
            ),
            out or run / "predictions",
            formats=("png",),
        )
        console.say(f"figure: {path}")
