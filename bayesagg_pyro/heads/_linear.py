"""The linear part of a head: its weights, and outputs f = W φ(h) (+ b)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesagg_pyro import linalg
from bayesagg_pyro._settings import integers
from bayesagg_pyro.errors import SettingError, ShapeError
from bayesagg_pyro.heads._embedding import Body, Embedding
from bayesagg_pyro.heads._formulas import DerivedFormulas

if TYPE_CHECKING:
    from typing_extensions import Self


def following(features: Tensor) -> torch.set_grad_enabled:
    """A graph where the features have one; parameters alone make none."""
    return torch.set_grad_enabled(features.requires_grad and torch.is_grad_enabled())


class LinearOutputs(DerivedFormulas):
    """Weights of T tasks and the outputs that they make of features; base of `Head`.

    Args:
        in_features: d, the number of features.
        tasks: T.
        outputs_per_task: outputs of one task.
        bias: whether a constant 1 is appended to the features; its weight comes last.
        name: prefix of the Pyro sites, and in messages.

    Raises:
        SettingError: if a size is no positive integer.
    """

    weight: nn.Parameter  #: the point estimate, [tasks · outputs_per_task, D], bias last

    def __init__(
        self,
        in_features: int,
        tasks: int,
        *,
        outputs_per_task: int,
        bias: bool,
        name: str | None,
    ) -> None:
        super().__init__()
        integers(in_features=in_features, tasks=tasks, outputs_per_task=outputs_per_task)
        self.in_features = in_features
        self.tasks = tasks
        self.bias = bias
        self.name = name
        self.outputs_per_task = outputs_per_task
        self.embedding: Embedding | None = None
        self._make_weight(in_features)

    @property
    def site(self) -> str:
        """Prefix of this head's Pyro sites."""
        return self.name or "head"

    def _make_weight(self, size: int) -> None:
        """The point estimate of a head that is linear in `size` numbers (and a constant)."""
        rows = self.tasks * self.outputs_per_task
        self.weight = nn.Parameter(torch.empty(rows, size + self.bias))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the point estimate as `torch.nn.Linear` does: uniform within 1/sqrt(inputs)."""
        bound = 1 / math.sqrt(self.weight.shape[1] - self.bias)
        nn.init.uniform_(self.weight, -bound, bound)

    def embed(self, embedding: nn.Module) -> Self:
        """Make the outputs linear in φ(h), f = W φ(h) (+ b), and draw weights of that size.

        All inference goes on as before, with φ(h) in place of h; gradient distributions stay those
        of the features h. Parameters of φ are point estimates, learned by the head's loss.

        Args:
            embedding: φ, of d features: an `Embedding`, or a module that `Body` makes one of.

        Returns:
            The head itself.

        Raises:
            SettingError: if φ is of another number of features, or no module.
            ShapeError: if a module does not take [B, d] or give [B, k].
        """
        if not isinstance(embedding, Embedding):
            embedding = Body(embedding, self.in_features)
        if embedding.in_features != self.in_features:
            raise SettingError(
                f"head {self.site!r} is of {self.in_features} features, the embedding of "
                f"{embedding.in_features}; make both of the backbone's output size"
            )
        like = self.weight
        self._make_weight(embedding.out_features)
        self.weight.data = self.weight.data.to(like)
        self.embedding = embedding
        return self

    @property
    def blocks(self) -> int:
        """Independent groups of weights: one per task, or 1 where all tasks share their weights.

        Posteriors and priors have batch shape [blocks].
        """
        return self.tasks

    @property
    def has_own_parameters(self) -> bool:
        """Whether the loss must teach parameters that no posterior is over, at the weights in use.

        Those are the parameters of an embedding.
        """
        embedding = self.embedding
        return embedding is not None and any(p.requires_grad for p in embedding.parameters())

    def numbers_per_draw(self, examples: int) -> int:
        """Entries of the largest temporary that the gradients at one draw of the weights take."""
        per_example = max(self.in_features, self.outputs_per_task, self.weight.shape[-1])
        return self.tasks * max(examples * per_example, self.weight_size)

    def point(self) -> Tensor:
        """The point estimate as weights of tasks, [blocks, P]."""
        return self.weight.reshape(self.tasks, -1)

    @property
    def weight_size(self) -> int:
        """P, the number of weights of one task (of one block)."""
        return self.weight.numel() // self.tasks

    def design(self, features: Tensor) -> Tensor:
        """Features, embedded if the head embeds, with the bias' constant appended, [..., B, D]."""
        if self.embedding is not None:
            features = self.embedding(features)
        if not self.bias:
            return features
        return torch.cat([features, features.new_ones((*features.shape[:-1], 1))], -1)

    def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
        """Outputs at the point estimate, or at given weights.

        Args:
            features: [B, d].
            weight: [..., tasks, P], for example samples of a posterior.

        Returns:
            [B, tasks], or [..., B, tasks] for given weights; with a last axis of outputs where
            one task has several.
        """
        if weight is None:
            weight = self.point()
        with torch.autocast(features.device.type, enabled=False):  # heads stay exact
            return self.outputs_of(self.design(features).to(weight.dtype), weight)

    def outputs_of(self, design: Tensor, weight: Tensor) -> Tensor:
        """W φ of a design [..., B, D] at weights [..., tasks, P], as `forward` gives it."""
        if self.outputs_per_task == 1:
            return design @ weight.mT
        rows = weight.unflatten(-1, (self.outputs_per_task, -1)).flatten(-3, -2)
        outputs: Tensor = design @ rows.mT
        return self.arranged(outputs.unflatten(-1, (self.tasks, self.outputs_per_task)))

    def arranged(self, outputs: Tensor) -> Tensor:
        """Several outputs of a task, [..., B, tasks, C], as the likelihood takes them."""
        return outputs

    def design_matrix(
        self, features: Tensor, *, attached: bool = False, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Design matrix in the precision of head algebra, or in `dtype`, [B, D].

        Args:
            features: [B, d].
            attached: whether it can be differentiated in the features, where these can.
            dtype: of the result.
        """
        if not attached:
            features = features.detach()
        with following(features):
            return self.design(features.to(dtype or linalg.head_dtype(features.device)))

    def unexpressed(self, features: Tensor) -> Tensor | None:
        """Prior variance of the outputs that an embedding cannot express, [B]; None for none.

        It is at least 0, in the precision of head algebra, and differentiable in the features.
        """
        if self.embedding is None:
            return None
        with following(features):
            found = self.embedding.residual(features.to(linalg.head_dtype(features.device)))
        # Where it is 0 so is its slope, but its root has an infinite one.
        return None if found is None else torch.where(found > 0, found, 0.0)

    def check_weights(self, distribution: Any, what: str) -> None:
        """Refuse a prior or posterior over the weights of another head.

        Raises:
            ShapeError: naming both shapes.
        """
        given = [*distribution.batch_shape, *distribution.event_shape]
        if given != [self.blocks, self.weight_size]:
            meaning = (
                "tasks, weights of one task" if self.blocks == self.tasks else "1, shared weights"
            )
            raise ShapeError(
                f"head {self.site!r}: the {what} is over weights of shape {given}, the head's are "
                f"[{self.blocks}, {self.weight_size}] ({meaning})"
            )
