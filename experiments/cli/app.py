"""The commands; what each of them needs is imported when it runs, so that help is quick."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import typer
from typer.core import TyperGroup

from experiments import comparisons, presets, registry
from experiments.cli import dense, doctor, generated, options, report, study
from experiments.cli.fields import Source
from experiments.cli.launch import Command, friendly
from experiments.errors import SettingsError

PROGRAM: Final = os.environ.get("BAYESAGG_PROGRAM", "python -m experiments")
"""What the command line is called by; a shell can complete what is a single word."""

_EXAMPLES: Final[Mapping[str, str]] = {
    "digits": "python -m experiments digits --method ls",
    "diabetes": "python -m experiments diabetes --method bayesagg",
    "qm9": """
A first taste, a few minutes on a CPU:
python -m experiments qm9 --method ls --molecules 2000 --epochs 20 --width 32 --edge-width 32

The same with Bayesian aggregation and the recommended options:
python -m experiments qm9 --preset recommended --molecules 2000 --epochs 20 --pretrain 8 --width 32
--edge-width 32

The paper's run (hours without a GPU), an hour at a time; go on with --resume:
python -m experiments qm9 --preset paper --minutes 60 --out results/paper
""",
    "cifar-mtl": """
The paper's run: CIFAR-100 is downloaded once, and the twenty super-classes are the tasks:
python -m experiments cifar-mtl --method bayesagg --out results/cifar

Images of your own, in DIR/train/CLASS/ and DIR/test/CLASS/:
python -m experiments cifar-mtl --source folder --data DIR --epochs 20 --method ls
""",
    "chestxray14": "python -m experiments chestxray14 --data ChestX-ray14 --out results/chest",
    "utkface": """
python -m experiments utkface --data UTKFace --method bayesagg --out results/utkface

The three heads with exponents of their own:
python -m experiments utkface --data UTKFace --power age=0.3,gender=0.05,ethnicity=0.05
""",
    "tox21": """
The file as released (experiments/tox21/release.py tells where):
python -m experiments tox21 --data tox21.csv.gz

The test has scaffolds that training has not seen:
python -m experiments tox21 --data tox21.csv.gz --split scaffold --method uw
""",
    "rand": "python -m experiments rand --method bayesagg --out results/rand",
    "run": """
Every method on handwritten digits, in a few minutes:
python -m experiments run digits --method all --jobs 2 --out results/all

Five methods on three thousand molecules, three seeds:
python -m experiments run qm9 --preset small --method ls rlw uw imtl-g bayesagg --seeds 0 1 2
--jobs 2 --out results/small

Every combination of values, and a benchmark of your own:
python -m experiments run package.module:Class --power 0.3 0.5 --pretrain 2 5
""",
    "sweep": """
The values that the paper searched:
python -m experiments sweep cifar-mtl --method bayesagg --out results/sweep

Thirty trials that Optuna chooses:
python -m experiments sweep digits --method bayesagg ls --lr 1e-4..1e-2 --search 30
""",
    "compare": """
The small study on two cores, in pieces of half an hour; repeat it until all is done:
python -m experiments compare qm9-small --jobs 2 --minutes 30

The published protocol on a GPU, two runs side by side:
python -m experiments compare qm9-paper --jobs 2 --minutes 60 --data qm9.npz

The table alone, of what is there:
python -m experiments compare qm9-small --table-only
""",
    "demo": "python -m experiments demo --out results/demo",
}

_ABOUT: Final[Mapping[str, str]] = {
    "run": """Train several methods, seeds and settings, side by side, into one results store.

    An option that is given several values is run with each. A run that is done is skipped, one that
    was interrupted goes on, one that fails is recorded with its error while the others go on. The
    exit status is 0 when all are done, 1 when some failed, 3 when minutes are over.""",
    "sweep": """Train every combination of the values given, or of those that the paper searched.

    With --search some of them, chosen by Optuna from what came out before.

    The report picks, for each method, the configuration that is best on validation. Runs are kept
    as by the command run, in the same store.""",
    "compare": """Run a named comparison and print one table.

    What is finished is not run again, and what was stopped goes on where it stopped, so the same
    command may be given again and again until all is done. The exit status is 0 when it is, 1 when
    a run failed, 3 when runs are left.""",
    "demo": """Train five methods on real molecules: some ten minutes on two cores.

    The usual baseline (LS), two that weigh losses or gradients (UW, IMTL-G), one that aligns
    gradients (Aligned-MTL-UB) and the paper's learn eleven properties of 3,000 molecules with a
    small network, from the same initial weights. It ends with a table of test errors, figures, and
    the report: the paper's table of QM9 with these five beside it. What is finished is not run
    again.""",
}


def _made(name: str, function: Callable[..., None], about: str, examples: str | None = None) -> Any:
    """A command; its text is one line of help per paragraph."""
    paragraphs = inspect.cleandoc(about).split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    alone.command(
        name,
        cls=Command,
        help=text.replace("``", ""),
        epilog=f"Examples:\n\n{examples.strip()}" if examples else None,
    )(function)
    return typer.main.get_command(alone)


def _presets(name: str, parameters: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    """With a benchmark's own presets in the help."""
    known = presets.PRESETS.get(name, {})
    about = "".join(f" {preset}: {found.about}." for preset, found in known.items())
    settings: dict[str, Any] = {"metavar": "|".join(presets.names(name)), "show_default": "paper"}
    return [
        options.preset(about, **settings) if parameter.name == "preset" else parameter
        for parameter in parameters
    ]


def _apart(
    fields: Iterable[inspect.Parameter], own: Iterable[inspect.Parameter]
) -> list[inspect.Parameter]:
    """The fields whose names are none of the command's own; ``--set`` gives the others."""
    taken = {parameter.name for parameter in own}
    return [field for field in fields if field.name not in taken]


def _single(name: str) -> Any:
    """One run of a benchmark."""
    place = registry.place(name)
    own = _presets(name, options.SINGLE)
    fields = _apart(generated.of_benchmark(place, several=False), own)

    def body(given: dict[str, Any]) -> None:
        from experiments.cli.single import train

        train(name, given, [field.name for field in fields])

    function = options.command([*own, *fields], body)
    return _made(name, function, Source(place).about, _EXAMPLES.get(name))


def _many(name: str, kind: str) -> Any:
    """Many runs of a benchmark, or a sweep."""
    place = registry.place(name)
    sweep = kind == "sweep"
    own = [
        *_presets(name, options.RUNS),
        *([options.SEARCH] if sweep else []),
        *generated.of_queue(),
    ]
    fields = _apart(generated.of_benchmark(place, several=True), own)

    def body(given: dict[str, Any]) -> None:
        from experiments.cli.many import run

        run(name, given, [field.name for field in fields], sweep=sweep)

    about = f"{Source(place).about}\n\n{_ABOUT[kind]}"
    return _made(name, options.command([*own, *fields], body), about, _EXAMPLES[kind])


def _comparison(name: str, command: str = "compare") -> Any:
    """One comparison; the demonstration is one that shows more."""
    found = comparisons.find(name)
    own = [*(options.DEMO if command == "demo" else options.COMPARE), *generated.of_queue()]
    fields = _apart(generated.of_benchmark(registry.place(found.benchmark), several=False), own)

    def body(given: dict[str, Any]) -> None:
        from experiments.cli import compare

        names = [field.name for field in fields]
        if command == "demo":
            compare.demonstrate(given, names)
        else:
            compare.compare(name, given, names)

    about = _ABOUT[command] if command == "demo" else f"{found.about}\n\n{_ABOUT[command]}"
    return _made(
        command if command == "demo" else name,
        options.command([*own, *fields], body),
        about,
        _EXAMPLES[command],
    )


class _Generated(TyperGroup):
    """A group of commands that are made when they are asked for."""

    def names(self) -> list[str]:
        """Those that are listed."""
        return registry.names()

    def make(self, name: str) -> Any:
        """The command of that name."""
        return _many(name, str(self.name))

    def list_commands(self, ctx: Any) -> list[str]:
        """All that have a name."""
        return [*super().list_commands(ctx), *self.names()]

    def get_command(self, ctx: Any, name: str) -> Any:
        """One of the group's own, or a generated one; refused in one line."""
        found = super().get_command(ctx, name)
        if found is None:
            try:
                return self.make(name)
            except SettingsError as error:
                with friendly(debug=False):
                    raise error
        return found


class _Comparisons(_Generated):
    def names(self) -> list[str]:
        return [*comparisons.COMPARISONS]

    def make(self, name: str) -> Any:
        return _comparison(name)


class _Commands(_Generated):
    """Benchmarks among the other commands: each is a short form of ``run`` for a single run."""

    def names(self) -> list[str]:
        return ["demo", *registry.names()]

    def make(self, name: str) -> Any:
        if name == "demo":
            return _comparison("demo", "demo")
        return _single(name) if ":" in name or name in registry.names() else None


app = typer.Typer(
    cls=_Commands,
    help="Train and compare methods for multi-task learning on the paper's benchmarks.",
    no_args_is_help=True,
    add_completion=" " not in PROGRAM,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for _name, _cls in (("run", _Generated), ("sweep", _Generated), ("compare", _Comparisons)):
    app.add_typer(
        typer.Typer(rich_markup_mode="rich"),
        name=_name,
        cls=_cls,
        help=" ".join(_ABOUT[_name].split("\n\n")[0].split()),
        no_args_is_help=True,
    )
for _command in (
    *(doctor.doctor, report.report, report.figures, study.study),
    *(dense.predictions, dense.render),
):
    app.command(cls=Command)(_command)
