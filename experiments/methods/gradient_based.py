"""Methods that combine the gradients of the tasks into one update of the shared parameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from bayesagg_pyro.aggregation import Combined, effective_tasks
from bayesagg_pyro.heads import Head
from experiments import processes
from experiments.errors import DivergenceError, SettingsError
from experiments.methods.base import Level, MethodOptions, Needs, Scale
from experiments.methods.branches import halves, parameters, refuse
from experiments.methods.network import Network


def representation_gradients(losses: Tensor, features: Tensor, *, at_once: bool = True) -> Tensor:
    """∂ℓ_k/∂H for all tasks, ``[K, B, d]``.

    Args:
        losses: ``[K]``, on a graph that begins at ``features`` and is kept.
        features: ``[B, d]``, a leaf.
        at_once: Where only the heads lie between the two, one batched pass costs little more than
            one task's. Layers that cannot be batched take one pass for each.
    """
    if not at_once:
        return torch.stack(
            [
                torch.autograd.grad(loss, features, retain_graph=True, materialize_grads=True)[0]
                for loss in losses
            ]
        )
    (rows,) = torch.autograd.grad(
        losses,
        features,
        torch.eye(len(losses), dtype=losses.dtype, device=losses.device),
        retain_graph=True,
        is_grads_batched=True,
    )
    return rows


def parameter_gradients(features: Tensor, rows: Tensor, parameters: Sequence[Parameter]) -> Tensor:
    """∂ℓ_k/∂θ for all tasks, ``[K, n]``: one backward pass through the backbone for each.

    Args:
        features: ``[B, d]``, on the backbone's graph, which is freed.
        rows: ``[K, B, d]``, the gradients with respect to the features.
        parameters: θ, of ``n`` entries in all.
    """
    size = sum(parameter.numel() for parameter in parameters)
    matrix = rows.new_empty(len(rows), size)
    for task, row in enumerate(rows):
        grads = torch.autograd.grad(
            features,
            list(parameters),
            row.to(features.dtype),
            retain_graph=task + 1 < len(rows),
            materialize_grads=True,
        )
        torch.cat([grad.reshape(-1) for grad in grads], out=matrix[task])
    return matrix


def add_to_grad(parameters: Sequence[Parameter], direction: Tensor) -> None:
    """Add a flat direction, ``[n]``, to ``.grad``."""
    begin = 0
    for parameter in parameters:
        part = direction[begin : begin + parameter.numel()].view_as(parameter).to(parameter.dtype)
        begin += parameter.numel()
        if parameter.grad is None:
            parameter.grad = part.clone()
        else:
            parameter.grad += part


Place = Literal["parameters", "representation"]


@dataclass(frozen=True)
class GradientOptions(MethodOptions):
    """Options that all such methods have.

    Attributes:
        level: Combine gradients with respect to the shared ``"parameters"`` (one backward pass for
            each task), or to the ``"representation"`` (the features of the batch; one pass in all).
    """

    level: Place = "parameters"


class GradientBased(Network):
    """Combines one gradient per task; heads, and branches to them, descend each its own loss.

    The update of the shared parameters is decided before any gradient changes, so that an error
    leaves everything as it was.
    """

    scale = Scale.MEAN
    level = Level.PARAMETERS
    levels = (Level.PARAMETERS, Level.REPRESENTATION)
    needs = frozenset({Needs.GRADIENTS})
    options_type = GradientOptions

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: GradientOptions
    ) -> None:
        super().__init__(backbone, heads, options)
        self.place = self.require_level(options.level)
        self._weights: Tensor | None = None

    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """One forward pass, gradients of every task, and the combined update."""
        features, decode = halves(self.backbone, inputs)
        leaf = features.detach().requires_grad_()
        own_features = decode(leaf)
        losses, present = self.losses(own_features, targets)
        if present is not None and bool(present.all()):
            present = None
        vector = torch.cat(list(losses.values()))
        shared, of_branches = parameters(self.backbone)
        rows = representation_gradients(vector, leaf, at_once=not of_branches)
        if self.place is Level.PARAMETERS:
            matrix = parameter_gradients(features, rows, shared)
            processes.add_up([matrix])
        else:
            matrix = rows.flatten(1)
        self._require_finite_gradients(matrix)
        if present is None or bool(present.any()):
            combined = self._combined(matrix, present)
        else:
            combined = Combined(torch.zeros_like(matrix[0]), None)
        own = vector if combined.weights is None else self.head_weights(combined.weights) * vector
        learned = [p for p in self.heads.parameters() if p.requires_grad]
        own.sum().backward(inputs=[*learned, *of_branches])
        if self.place is Level.PARAMETERS:
            add_to_grad(shared, combined.direction)
        else:
            features.backward(combined.direction.view_as(features).to(features.dtype))
        self._weights = combined.weights
        return self.done(own_features, targets, losses, present)

    def distribute(self) -> None:
        """As any method; gradients of all parameters are added up before they are combined.

        Raises:
            SettingsError: Heads have branches of their own.
        """
        refuse(
            self.backbone,
            self.name,
            "this network has a branch for each head, which this method trains in one process only:"
            " leave --nproc away, or give a method that weighs losses",
        )
        super().distribute()
        if self.place is Level.PARAMETERS:
            self.divided = ()

    @abstractmethod
    def combine(self, matrix: Tensor, present: Tensor | None = None) -> Combined:
        """The update ``[n]`` from the tasks' gradients ``[K, n]``, and its weights if it has any.

        Tasks that are not ``present``, ``[K]``, have rows of zeros, take no part and get weight 0;
        None when all are. At the level of the representation ``n`` is ``B · d``, which differs in a
        last, smaller batch.
        """

    def _combined(self, matrix: Tensor, present: Tensor | None) -> Combined:
        found = self.combine(matrix, present)
        if not isinstance(found, Combined):
            raise SettingsError(
                f"{type(self).__name__}.combine gives a {type(found).__name__}: "
                "return bayesagg_pyro.aggregation.Combined(direction, weights)"
            )
        return found

    def head_weights(self, weights: Tensor) -> Tensor:
        """Factor of each task's loss for its own head, ``[K]``; ones unless a method differs."""
        return torch.ones_like(weights)

    def effective_tasks(self) -> Tensor | None:
        """Of the last step; None when the method has no weights."""
        return None if self._weights is None else effective_tasks(self._weights)

    def _require_finite_gradients(self, matrix: Tensor) -> None:
        """A row of NaN would reach every parameter; see who it was.

        Raises:
            DivergenceError: A gradient is not finite, naming the task.
        """
        finite = matrix.isfinite().all(1)
        if not finite.all():
            task = int((~finite).nonzero()[0])
            raise DivergenceError(
                f"the gradient of task {self.tasks[task]} holds NaN or infinity, although its loss "
                "is finite: training is about to diverge; lower --lr, or look at the data"
            )
