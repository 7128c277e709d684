"""One experiment: a benchmark, a method with its options, and settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesagg_pyro.heads import Gaussian, Head
from experiments import methods
from experiments.benchmark import Benchmark
from experiments.methods import Method, MethodOptions
from experiments.methods.network import set_biases
from experiments.randomness import seed_of
from experiments.settings import Settings, require

FREE_ON_RESUME = ("epochs", "device", "threads", "graph")


@dataclass(frozen=True)
class Run:
    """What is to be run.

    Raises:
        SettingsError: An unknown method, or options that do not fit the method or the epochs.
    """

    benchmark: Benchmark
    method: str
    options: MethodOptions
    settings: Settings

    def __post_init__(self) -> None:
        methods.check(self.method, self.options)
        self.options.check(self.settings.epochs)
        least, batch = self.benchmark.smallest_batch, self.settings.batch_size
        require(batch >= least, "batch_size", batch, f"give at least {least} for this network")

    def build(self, device: torch.device, constants: Mapping[str, Tensor] | None = None) -> Method:
        """The method with new weights, drawn on the CPU from the settings' seed, on ``device``.

        Backbone and heads start the same for every method with the same seed.

        Args:
            device: Where it is to be.
            constants: Of the data, see `Data`, at which biases start if the settings say so.
        """
        torch.manual_seed(seed_of(self.settings.seed, "initial weights"))

        def another() -> tuple[nn.Module, dict[str, Head]]:
            backbone = self.benchmark.backbone().to(device)
            heads = self.benchmark.heads(self.settings.head_bias)
            for name, head in heads.items():
                wrong = isinstance(head.missing, int) and (
                    head.missing >= 0 or head.target_kind != "class"
                )
                remedy = "scores know NaN and classes below 0: give 'nan', or of classes -100"
                require(not wrong, f"missing of {name}", head.missing, remedy)
                if isinstance(head, Gaussian):
                    head.keep_units()  # the data's, which under other methods it would keep, too
            if self.settings.fitted_bias and constants is not None:
                for name, head in heads.items():
                    if head.bias:
                        set_biases(head.weight, constants[name])
            return backbone, {name: head.to(device) for name, head in heads.items()}

        backbone, heads = another()
        joint = self.benchmark.joint
        method = methods.make(
            self.method, backbone, heads, self.options, another=another, joint=joint
        )
        if isinstance(method, methods.Network):
            method.tasks = tuple(self.benchmark.losses)
        if isinstance(method, methods.HeadEnsemble) and self.settings.fitted_bias and constants:
            method.start_at(constants)
        return method

    def describe(self) -> dict[str, Any]:
        """Everything that was chosen, as plain values."""
        return {
            "benchmark": {"name": self.benchmark.name, "options": self.benchmark.options()},
            "method": {"name": self.method, "options": dataclasses.asdict(self.options)},
            "settings": dataclasses.asdict(self.settings),
        }

    def identity(self) -> dict[str, Any]:
        """What must be the same when a checkpoint is resumed: all but how long and where."""
        described = self.describe()
        for name in FREE_ON_RESUME:
            del described["settings"][name]
        described["benchmark"]["options"] = self.benchmark.identity()
        return described

    def defaults(self) -> dict[str, Any]:
        """What `describe` says of options that were not given: what a version without them did."""
        return {
            "benchmark": {"options": defaults_of(self.benchmark)},
            "method": {"options": defaults_of(self.options)},
            "settings": defaults_of(self.settings),
        }


def defaults_of(options: Any) -> dict[str, Any]:
    """Defaults of the fields that have some, of a dataclass or an object of one."""
    found = {}
    for item in dataclasses.fields(options):
        if item.default is not dataclasses.MISSING:
            found[item.name] = item.default
        elif item.default_factory is not dataclasses.MISSING:
            found[item.name] = item.default_factory()
    return found


@contextmanager
def limited_threads(threads: int | None) -> Iterator[None]:
    """Let torch use so many CPU threads, and give it back what it had; None changes nothing."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
