"""A whole training step, Bayesian against linear scalarisation: ``python -m benchmarks.step``.

Forward, backward and Adam on the benchmark's own network and sizes. The baseline is what a user
would write: one linear layer for each head, and a mean squared error or cross-entropy per task.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, heads
from benchmarks.network import random_groups
from benchmarks.timing import interleave
from models import CifarNetwork, MessagePassing
from models.encoder_decoder import EncoderDecoder
from models.segnet import SegNetDecoder, SegNetEncoder

Heads = Mapping[str, heads.Head]


@dataclass(frozen=True)
class Problem:
    """What both kinds of step are taken on.

    Attributes:
        backbone: Makes the network.
        inputs: Its inputs.
        targets: For each head.
        heads: Made for features of a size.
        loss: The baseline's, of outputs by the names of heads and of the targets.
        settings: Of the engine.
    """

    backbone: Callable[[], nn.Module]
    inputs: Any
    targets: Mapping[str, Tensor]
    heads: Callable[[int], Heads]
    loss: Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)


def _qm9() -> Problem:
    return Problem(
        MessagePassing,
        random_groups(120),
        {"tasks": torch.randn(120, 11)},
        lambda size: {"tasks": heads.Gaussian(size, 11)},
        lambda outputs, y: F.mse_loss(outputs["tasks"], y["tasks"]) * 11,
        {"aggregation": aggregation.PrecisionWeighted.paper(power=0.85)},
    )


def _cifar() -> Problem:
    def loss(outputs: Mapping[str, Tensor], y: Mapping[str, Tensor]) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs["tasks"], y["tasks"]) * 20

    return Problem(
        CifarNetwork,
        torch.rand(128, 3, 32, 32),
        {"tasks": F.one_hot(torch.randint(20, (128,)), 20).float()},
        lambda size: {"tasks": heads.Bernoulli(size, 20)},
        loss,
        {"aggregation": aggregation.PrecisionWeighted.paper(power=5e-4)},
    )


def _dense(height: int = 288, width: int = 384, levels: int = 5) -> Problem:
    """Two images of NYUv2's size."""

    def loss(outputs: Mapping[str, Tensor], y: Mapping[str, Tensor]) -> Tensor:
        classes = F.cross_entropy(outputs["segments"], y["segments"][:, 0])
        squares = [F.mse_loss(outputs[n], y[n]) * y[n].shape[1] for n in ("depth", "normals")]
        return classes + squares[0] + squares[1]

    pixels = (height, width)
    return Problem(
        lambda: EncoderDecoder(SegNetEncoder(levels=levels), SegNetDecoder(levels=levels)),
        torch.rand(2, 3, *pixels),
        {
            "segments": torch.randint(13, (2, 1, *pixels)),
            "depth": torch.randn(2, 1, *pixels),
            "normals": F.normalize(torch.randn(2, 3, *pixels), dim=1),
        },
        lambda size: {
            "segments": heads.Categorical(size, 13),
            "depth": heads.Gaussian(size),
            "normals": heads.Gaussian(size, 3),
        },
        loss,
        {"feature_axis": 1},
    )


CASES: dict[str, Callable[[], Problem]] = {"qm9": _qm9, "cifar": _cifar, "dense": _dense}


def problem(case: str, device: torch.device | str = "cpu", seed: int = 0) -> Problem:
    """One of `CASES`, on a device.

    Args:
        case: "qm9" (batch 120, 11 regressions, 64 features), "cifar" (batch 128, 20 binary tasks,
            160 features) or "dense" (2 × 288 × 384 pixels, 13 classes, depth and normals).
        device: Where everything lies.
        seed: Of weights and data.
    """
    torch.manual_seed(seed)
    found = CASES[case]()
    inputs = found.inputs
    moved = [x.to(device) for x in inputs] if isinstance(inputs, list) else inputs.to(device)
    targets = {name: y.to(device) for name, y in found.targets.items()}
    return replace(
        found, backbone=lambda: found.backbone().to(device), inputs=moved, targets=targets
    )


def steps(
    of: Problem, *, capturable: bool = False
) -> dict[str, tuple[nn.Module, Callable[[], None]]]:
    """Network and step of "ls" and of "bayesagg".

    Args:
        of: What on.
        capturable: Whether Adam keeps its count of steps on the device.
    """
    device = next(iter(of.targets.values())).device
    axis = of.settings.get("feature_axis", -1)
    plain = of.backbone()
    with torch.no_grad():
        size = plain(of.inputs).shape[axis]
    layers = nn.ModuleDict({name: _layer(head) for name, head in of.heads(size).items()}).to(device)
    adam = {"lr": 1e-3, "capturable": capturable}
    optimizer = torch.optim.Adam([*plain.parameters(), *layers.parameters()], **adam)

    def ls() -> None:
        optimizer.zero_grad()
        features = plain(of.inputs).movedim(axis, -1)
        outputs = {name: layer(features).movedim(-1, axis) for name, layer in layers.items()}
        of.loss(outputs, of.targets).backward()
        optimizer.step()

    network = of.backbone()
    mtl = ba.BayesAgg(of.heads(size), **of.settings).to(device)
    own = torch.optim.Adam([*network.parameters(), *mtl.parameters()], **adam)
    for _ in range(4):
        with torch.no_grad():
            mtl.collect(network(of.inputs), of.targets)
    mtl.update_prior()
    mtl.start_bayes()
    mtl.eval()  # an epoch's examples are not kept

    def bayesagg() -> None:
        own.zero_grad()
        mtl.backward(network(of.inputs), of.targets)
        own.step()

    return {"ls": (plain, ls), "bayesagg": (network, bayesagg)}


def _layer(head: heads.Head) -> nn.Linear:
    outputs = head.outputs_per_task * head.tasks
    return nn.Linear(head.in_features, outputs, bias=head.bias)


def run(
    case: str = "qm9",
    rounds: int = 20,
    warmup: int = 3,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Time both kinds of step in turns."""
    calls = {name: step for name, (_, step) in steps(problem(case, device, seed)).items()}
    timings = interleave(calls, rounds=rounds, warmup=warmup)
    return {
        "case": case,
        "bayesagg_over_ls": list(timings.ratio("bayesagg", "ls")),
        "seconds": {name: timings.median(name) for name in calls},
        "threads": torch.get_num_threads(),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.add_argument("--case", choices=list(CASES), default="qm9")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(arguments)
    print(json.dumps(run(options.case, options.rounds), indent=2))


if __name__ == "__main__":
    main()
