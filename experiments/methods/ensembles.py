"""Many heads, or many networks: ensembles, the plain kind of Bayesian training, and STL."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from bayesagg_pyro.heads import Bernoulli, Categorical, Head, Ordinal
from experiments.methods.base import Level, MethodOptions, Scale
from experiments.methods.branches import keep_branch, read_by, refuse
from experiments.methods.network import Network, mean_losses, reported, set_biases
from experiments.methods.weighted import WeightedLosses
from experiments.settings import require_numbers


@dataclass(frozen=True)
class HeadsOptions(MethodOptions):
    """Options of an ensemble of heads.

    Attributes:
        members: Heads for each task.
    """

    members: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "members", least=1)


@dataclass(frozen=True)
class NetworksOptions(HeadsOptions):
    """Options of an ensemble of networks.

    Attributes:
        members: Networks.
    """

    members: int = 10


class HeadEnsemble(Network):
    """Many heads for each task on one backbone, all at once; predictions are averaged.

    Each member starts from weights of its own and descends its own loss. The backbone descends the
    sum over tasks of the mean loss over members, so that its step is as large as that of LS, and
    so does what members share of a head, such as the cut-points of ordered classes.
    """

    name, title = "ensemble-heads", "Ensemble (heads)"
    scale = Scale.SUM
    level = Level.LOSSES
    options_type = HeadsOptions

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: HeadsOptions
    ) -> None:
        refuse(backbone, self.name, "its members share features, and here each head has its own")
        super().__init__(backbone, heads, options)
        self.members = options.members
        self.weights = self.kept["members"] = nn.ParameterDict(
            {name: _initial(head, options.members) for name, head in heads.items()}
        )
        self._shared = [
            parameter
            for head in heads.values()
            for parameter in head.parameters()
            if parameter is not head.weight and parameter.requires_grad
        ]

    def start_at(self, constants: Mapping[str, Tensor]) -> None:
        """Set the biases of all members, of heads that have some."""
        for name, head in self.by_name.items():
            if head.bias:
                every = self.weights[name].view(self.members, *head.weight.shape)
                set_biases(every, constants[name])

    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """One forward and backward pass for all members."""
        features = self.backbone(inputs)
        leaf = features.detach().requires_grad_()
        losses: dict[str, Tensor] = {}
        seen: list[Tensor] = []
        total: Tensor = leaf.new_zeros(())
        for name, head in self.by_name.items():
            outputs = head(leaf, self.weights[name])
            member, there = _member_losses(head, outputs, targets[name])  # [tasks, members]
            seen.append(there)
            losses[name] = member.mean(-1)
            total = total + member.sum()
        self._require_finite(losses)
        held = [(parameter, parameter.grad) for parameter in self._shared]
        for parameter in self._shared:
            parameter.grad = None
        total.backward()
        assert leaf.grad is not None
        features.backward(leaf.grad / self.members)
        for parameter, before in held:
            if parameter.grad is not None:
                parameter.grad /= self.members
            if before is not None:
                parameter.grad = before if parameter.grad is None else before + parameter.grad
        return self.done(features, targets, losses, torch.cat(seen))

    def predict(self, inputs: Any) -> dict[str, Tensor]:
        """Outputs of the averaged predictions."""
        features = self.backbone(inputs)
        return {
            name: average(head, head(features, self.weights[name]))
            for name, head in self.by_name.items()
        }

    def parameters(self) -> Iterator[Parameter]:
        """Backbone, the members' weights, what they share of heads; not the heads' own weights."""
        return chain(self.backbone.parameters(), self.weights.parameters(), self._shared)


class NetworkEnsemble(Network):
    """Several networks with initial weights of their own (deep ensembles), trained by LS.

    All see the same batches and share an optimiser, which treats each parameter alone, its learning
    rate and, with ``--clip-norm``, a norm. Predictions are averaged; the epoch is selected for the
    ensemble as a whole.

    Source: Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using
    Deep Ensembles, NeurIPS 2017, without adversarial training.
    """

    name, title = "ensemble-networks", "Ensemble (networks)"
    scale = Scale.SUM
    level = Level.LOSSES
    options_type = NetworksOptions
    wants = ("another",)

    def __init__(
        self,
        backbone: nn.Module,
        heads: Mapping[str, Head],
        options: NetworksOptions,
        *,
        another: Callable[[], tuple[nn.Module, Mapping[str, Head]]],
    ) -> None:
        more = [another() for _ in range(options.members - 1)]
        networks = [(backbone, heads), *more]
        super().__init__(nn.ModuleList([network for network, _ in networks]), heads, options)
        self.every = [dict(members) for _, members in networks]
        self.heads = nn.ModuleList([nn.ModuleDict(members) for members in self.every])  # type: ignore[assignment]

    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """One pass for each network; losses are averaged over them for the report."""
        found = [
            mean_losses(heads, backbone(inputs), targets) for backbone, heads in self._members()
        ]
        present = found[0][1]
        losses = {name: torch.stack([each[name] for each, _ in found]) for name in self.by_name}
        means = {name: loss.mean(0) for name, loss in losses.items()}
        self._require_finite(means)
        torch.cat([loss.flatten() for loss in losses.values()]).sum().backward()
        return reported(means, present)

    def predict(self, inputs: Any) -> dict[str, Tensor]:
        """Outputs of the averaged predictions."""
        outputs = []
        for backbone, heads in self._members():
            features = backbone(inputs)
            outputs.append({n: head(read_by(n, features)) for n, head in heads.items()})
        return {
            name: average(head, torch.stack([each[name] for each in outputs]))
            for name, head in self.by_name.items()
        }

    def likelihoods(self) -> dict[str, Head]:
        """The first network's heads; ordered classes have the mean of all networks' cut-points."""
        found = dict(self.by_name)
        for name, head in self.by_name.items():
            if isinstance(head, Ordinal):
                others = (heads[name] for heads in self.every)
                every = [other.cutpoints for other in others if isinstance(other, Ordinal)]
                mean = torch.stack(every).mean(0).detach()
                found[name] = copy.deepcopy(head)
                free = torch.cat([mean[:, :1], mean.diff(dim=1).log()], 1)
                found[name].free_cutpoints.data = free
        return found

    def _members(self) -> Iterator[tuple[nn.Module, dict[str, Head]]]:
        assert isinstance(self.backbone, nn.ModuleList)
        return zip(self.backbone, self.every, strict=True)


def average(head: Head, outputs: Tensor) -> Tensor:
    """Outputs of the mean over members' predictions, ``[B, ...]`` from ``[members, B, ...]``.

    Probabilities are averaged for classes, in logarithms; the outputs themselves for others.
    """
    if head.is_still(Bernoulli, "likelihood"):
        sure = nn.functional.logsigmoid(outputs).logsumexp(0)
        return sure - nn.functional.logsigmoid(-outputs).logsumexp(0)
    if head.is_still(Categorical, "likelihood"):
        return outputs.log_softmax(-1).logsumexp(0) - torch.tensor(float(len(outputs))).log()
    return outputs.mean(0)


def _member_losses(head: Head, outputs: Tensor, target: Any) -> tuple[Tensor, Tensor]:
    """Mean over observed examples of every member's loss, and which tasks have any.

    Returns:
        ``[tasks, members]``, 0 without a gradient where there is none; ``[tasks]``.
    """
    if isinstance(target, Tensor) and head.missing == "error":
        every = torch.ones(head.tasks, dtype=torch.bool, device=outputs.device)
        return head.loss(outputs, target).mean(1).mT, every
    observed = head.parse_targets(target, outputs.shape[1], validate=outputs.device.type == "cpu")
    each = head.loss(outputs, observed.values)
    there = observed.counts() > 0
    means = torch.stack([observed.mean(part) for part in each], -1)
    return torch.where(there[:, None], means, 0.0), there


def _initial(head: Head, members: int) -> Parameter:
    """Weights of all members, ``[members, tasks, P]``, drawn as the head draws its own.

    The first is the head as it is; the head itself is left as it was.
    """
    first = head.weight.detach().clone()
    drawn = [head.point().detach().clone()]
    for _ in range(members - 1):
        head.reset_parameters()
        drawn.append(head.point().detach().clone())
    with torch.no_grad():
        head.weight.copy_(first)
    return Parameter(torch.stack(drawn))


class SingleTask(WeightedLosses):
    """Each task has a backbone of its own, and descends its own loss in it.

    One run gives the single-task row of a comparison, at the cost of as many networks as there are
    tasks; outputs that are one task together (``Benchmark.joint``) share one. All begin with the
    same weights and see the same batches; since they share no parameter, each is trained exactly as
    if it were alone, but for what the run shares: the epoch that validation selects, a learning
    rate that waits for the mean score, and the norm that ``--clip-norm`` bounds. Benchmarks with an
    option for one task alone (``--task``) select, slow down and clip by that task.
    """

    name, title = "stl", "STL"
    wants = ("joint",)

    def __init__(
        self,
        backbone: nn.Module,
        heads: Mapping[str, Head],
        options: MethodOptions,
        *,
        joint: Collection[str] = (),
    ) -> None:
        self._alone = [
            (name, columns)
            for name, head in heads.items()
            for columns in (
                [slice(0, head.tasks)]
                if name in joint
                else [slice(task, task + 1) for task in range(head.tasks)]
            )
        ]
        networks = [backbone, *(copy.deepcopy(backbone) for _ in self._alone[1:])]
        for (name, _), network in zip(self._alone, networks, strict=True):
            keep_branch(network, name)
        super().__init__(nn.ModuleList(networks), heads, options)

    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """One forward and backward pass of every network."""
        found: dict[str, list[Tensor]] = {name: [] for name in self.by_name}
        seen: dict[str, Tensor | None] = {}
        for name, columns, features in self._features(inputs):
            own, seen[name] = mean_losses({name: self.by_name[name]}, features, targets)
            found[name].append(own[name][columns])
        losses = {name: torch.cat(values) for name, values in found.items()}
        self._require_finite(losses)
        self.total(torch.cat(list(losses.values())), None).backward()
        parts = [reported({name: loss}, seen[name]) for name, loss in losses.items()]
        return {name: loss for part in parts for name, loss in part.items()}

    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """Σ ℓ_k, whose terms share nothing."""
        return losses.sum()

    def predict(self, inputs: Any) -> dict[str, Tensor]:
        """Each task's outputs, from its own network."""
        found: dict[str, list[Tensor]] = {name: [] for name in self.by_name}
        for name, columns, features in self._features(inputs):
            head = self.by_name[name]
            outputs = head(features)
            found[name].append(outputs[:, columns] if head.tasks > 1 else outputs)
        return {name: torch.cat(outputs, 1) for name, outputs in found.items()}

    def _features(self, inputs: Any) -> Iterator[tuple[str, slice, Tensor]]:
        """Head, tasks in it, and the features of their network, in the order of the tasks."""
        assert isinstance(self.backbone, nn.ModuleList)
        for (name, columns), backbone in zip(self._alone, self.backbone, strict=True):
            yield name, columns, read_by(name, backbone(inputs))
