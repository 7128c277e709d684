"""An epoch's losses are means over targets that there are; a task without any has none."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from bayesagg_pyro import heads
from experiments import methods
from experiments.benchmark import Batch, Data
from experiments.comparisons import figure
from experiments.errors import SettingsError
from experiments.rows import Rows
from experiments.run import Run
from experiments.training import Trainer
from experiments.training.stepping import Step
from experiments.training.terminal import reporter
from tests.experiments.toy import Toy


def test_losses_are_averaged_over_targets() -> None:
    torch.manual_seed(0)
    made: dict[str, heads.Head] = {
        "a": heads.Gaussian(3, tasks=2, missing="nan"),
        "b": heads.Gaussian(3, missing="nan"),
        "c": heads.Categorical(3, classes=3, missing=-100),
    }
    method = methods.make("ls", nn.Identity(), made, methods.options("ls", {}))
    method.backbone.train()
    optimizer = torch.optim.SGD(method.parameters(), lr=0.0)
    step = Step(method, optimizer, ["a", "b", "c"])
    step.start()
    x, y = torch.randn(12, 3), torch.randn(12, 3)
    y[:4, 0] = y[6:, 0] = torch.nan  # two targets in all, and none in the second batch
    y[:, 2] = torch.nan
    kind = torch.tensor([0, 1, 2, 2] + 8 * [-100])
    for rows in (slice(0, 6), slice(6, 12)):
        step(Batch(x[rows], {"a": y[rows, :2], "b": y[rows, 2:], "c": kind[rows]}))
    assert step.loss is not None
    assert step.loss.isfinite()
    done = step.read(2)
    errors = (made["a"](x) - y[:, :2]).square().detach()
    assert done.losses[2] is None
    expected = [float(errors[4:6, 0].mean()), float(errors[:, 1].mean())]
    expected.append(float(nn.functional.cross_entropy(made["c"](x[:4]), kind[:4]).detach()))
    losses = [done.losses[place] for place in (0, 1, 3)]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected))
    assert done.effective_tasks is None


@pytest.mark.parametrize("terminal", [False, True])
def test_epochs_without_a_label_have_a_line(terminal: bool, tmp_path: Path) -> None:
    """A division by their number ended the run."""

    class Unlabelled(Toy):
        def load(self, device: torch.device) -> Data:
            data = super().load(device)
            assert isinstance(data.train, Rows)
            targets = {name: y * torch.nan for name, y in data.train.targets.items()}
            return replace(data, train=Rows(data.train.inputs, targets))

        def heads(self, bias: bool) -> dict[str, heads.Head]:
            return {
                "pair": heads.Gaussian(8, tasks=2, missing="nan"),
                "alone": heads.Gaussian(8, missing="nan"),
            }

    console = Console(file=io.StringIO(), force_terminal=terminal)
    run = Run(Unlabelled(), "ls", methods.options("ls", {}), Toy.default_settings)
    done = Trainer(run, tmp_path / "out", reporter=reporter(console)).train()
    assert [*done["history"][-1]["train_loss"].values()] == [None] * 3
    assert isinstance(console.file, io.StringIO)
    assert "no labels  lr 0.001" in console.file.getvalue()
    assert all(map(math.isnan, figure._loss(done["history"])))  # a gap in a comparison's curve


@pytest.mark.parametrize("name", ["ls", "bayesagg"])
def test_all_methods_learn_in_the_units_of_the_data(name: str) -> None:
    """An engine alone would choose others, and a comparison would be of units."""
    given = methods.options(name, {"pretrain": 1} if name == "bayesagg" else {})
    method = Run(Toy(dropout=0.0), name, given, Toy.default_settings).build(torch.device("cpu"))
    x = torch.randn(32, 4)
    targets = {"pair": 1e3 * torch.randn(32, 2), "alone": 100 + torch.randn(32, 1)}
    before = method.predict(x)
    losses = method.backward(x, targets)
    for head, values in targets.items():
        torch.testing.assert_close(losses[head], (before[head] - values).square().mean(0).detach())


@pytest.mark.parametrize(
    "head", [heads.Categorical(3, 2, missing=255), heads.Bernoulli(3, missing=-1)]
)
def test_marks_that_scores_do_not_know_are_refused(head: heads.Head) -> None:
    class Marked(Toy):
        def heads(self, bias: bool) -> dict[str, heads.Head]:
            return {"kind": head}

    run = Run(Marked(), "ls", methods.options("ls", {}), Marked.default_settings)
    with pytest.raises(SettingsError, match=r"missing of kind = .* give 'nan', or of classes -100"):
        run.build(torch.device("cpu"))
