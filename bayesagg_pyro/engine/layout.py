"""Features of any shape as rows [examples, d], and what comes of rows in the features' shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError, ShapeError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.heads._input import not_dense
from bayesagg_pyro.targets import Parsed, RawTargets, Targets


@dataclass(frozen=True)
class Layout:
    """Where the features of each example lie in a tensor.

    Attributes:
        others: sizes of the other axes, whose product is the number of examples.
        axis: which of the tensor's axes holds the features, from 0.
    """

    others: torch.Size
    axis: int

    @classmethod
    def of(cls, features: Tensor, axis: int) -> Layout:
        """The layout of features on this axis, which may count from the end; [B, d] has the second.

        Raises:
            ShapeError: if there is no such axis, or no other.
            DtypeError: if the tensor is not dense.
        """
        if features.layout != torch.strided or features.is_nested:
            raise not_dense("features", features)
        dims = features.ndim
        if dims == 2:
            axis = 1
        elif dims < 2 or not -dims < axis < dims:
            raise ShapeError(
                f"features of shape {list(features.shape)} have no axis {axis} beside one of "
                "examples; BayesAgg(..., feature_axis=) says which axis the features are on"
            )
        axis %= dims
        return cls(features.shape[:axis] + features.shape[axis + 1 :], axis)

    @property
    def plain(self) -> bool:
        """Whether the tensor is [examples, d] already."""
        return len(self.others) == 1

    def check(self, head: Head, features: Tensor) -> None:
        """Refuse features that are not as wide as the head's.

        Raises:
            ShapeError: naming the head.
        """
        size = features.shape[self.axis]
        if size != head.in_features:
            raise ShapeError(
                f"head {head.site!r}: features of shape {list(features.shape)} have {size} entries "
                f"on axis {self.axis}, the head needs {head.in_features}; BayesAgg(..., "
                "feature_axis=) says which axis the features are on"
            )

    def rows(self, tensor: Tensor) -> Tensor:
        """Examples first: [..., d, ...] as [examples, d]; a view where the memory allows it."""
        if self.plain:
            return tensor
        return tensor.movedim(self.axis, -1).reshape(-1, tensor.shape[self.axis])

    def back(self, rows: Tensor, *, leading: int = 0) -> Tensor:
        """Rows [..., examples, *own] with their own axes where the features' axis was.

        Args:
            rows: [..., examples, *own].
            leading: number of axes in front, as of draws.
        """
        if self.plain:
            return rows
        apart: Tensor = rows.unflatten(leading, self.others)
        own = apart.ndim - leading - len(self.others)
        start = leading + len(self.others)
        return apart.movedim(
            tuple(range(start, start + own)),
            tuple(range(leading + self.axis, leading + self.axis + own)),
        )

    def targets(self, owner: str, targets: RawTargets, tasks: int) -> RawTargets:
        """Values, mask and weight as [examples, tasks], or [examples] where they are for all tasks.

        Args:
            owner: who speaks in an error.
            targets: what the user passed: tensors of the features' shape with the tasks where the
                features are, or without that axis.
            tasks: of the head.

        Raises:
            ShapeError: for other shapes.
        """
        if isinstance(targets, Parsed):  # of rows
            return targets
        if isinstance(targets, Tensor):
            return self._part(owner, "targets", targets, tasks)
        if isinstance(targets, tuple | list) and 2 <= len(targets) <= 3:
            parts: Any = [
                self._part(owner, what, part, tasks) if isinstance(part, Tensor) else part
                for what, part in zip(("targets", "the mask", "the weight"), targets, strict=False)
            ]
            return Targets(*parts) if isinstance(targets, Targets) else tuple(parts)
        return targets  # the head says what is wrong with it

    def _part(self, owner: str, what: str, part: Tensor, tasks: int) -> Tensor:
        for_all = tasks == 1 or what != "targets"
        if for_all and part.shape == self.others:
            return part.reshape(-1)
        wanted = [*self.others[: self.axis], tasks, *self.others[self.axis :]]
        if list(part.shape) != wanted:
            raise ShapeError(
                f"{owner}: {what} must have the features' shape with the tasks in place of the "
                f"features, {wanted}"
                + (f", or without that axis, {list(self.others)}" if for_all else "")
                + f"; not {list(part.shape)}"
            )
        return self.rows(part)


def check_axis(axis: Any) -> None:
    """Refuse what cannot be the axis of features.

    Raises:
        SettingError: for what is no integer, and for 0, the axis of the batch.
    """
    if not isinstance(axis, int) or isinstance(axis, bool) or axis == 0:
        raise SettingError(
            f"feature_axis must be an integer other than 0, the axis of the batch, not {axis!r}"
        )
