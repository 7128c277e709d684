"""An epoch's losses are means over targets that there are; a task without any has none."""

from __future__ import annotations

import torch
from torch import nn

from bayesagg_pyro import heads
from experiments import methods
from experiments.benchmark import Batch
from experiments.training.stepping import Step


def test_losses_are_averaged_over_targets() -> None:
    torch.manual_seed(0)
    made: dict[str, heads.Head] = {
        "a": heads.Gaussian(3, tasks=2, missing="nan"),
        "b": heads.Gaussian(3, missing="nan"),
    }
    method = methods.make("ls", nn.Identity(), made, methods.options("ls", {}))
    method.backbone.train()
    optimizer = torch.optim.SGD(method.parameters(), lr=0.0)
    step = Step(method, optimizer, ["a", "b"])
    step.start()
    x, y = torch.randn(12, 3), torch.randn(12, 3)
    y[:4, 0] = y[6:, 0] = torch.nan  # two targets in all, and none in the second batch
    y[:, 2] = torch.nan
    for rows in (slice(0, 6), slice(6, 12)):
        step(Batch(x[rows], {"a": y[rows, :2], "b": y[rows, 2:]}))
    assert step.loss is not None
    assert step.loss.isfinite()
    done = step.read(2)
    errors = (made["a"](x) - y[:, :2]).square().detach()
    assert done.losses[2] is None
    expected = [float(errors[4:6, 0].mean()), float(errors[:, 1].mean())]
    torch.testing.assert_close(torch.tensor(done.losses[:2]), torch.tensor(expected))
    assert done.effective_tasks is None
