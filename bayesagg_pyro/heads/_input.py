"""What users pass to a head: brought to one form and checked, before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch.distributions import constraints

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import DeviceError, DtypeError, NonFiniteError, SettingError, ShapeError
from bayesagg_pyro.heads._linear import LinearOutputs
from bayesagg_pyro.targets import Parsed, RawTargets, Targets

#: Types that few of torch's functions take.
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
#: How a head takes targets that were not observed: not at all, as NaN, or as that number.
Missing: TypeAlias = Literal["error", "nan"] | int
#: What targets are: floating numbers; 0 or 1; 0, 1, 2, ... of any dtype; indices of classes.
TargetKind: TypeAlias = Literal["real", "binary", "count", "class"]


class CheckedInput(LinearOutputs):
    """Linear outputs of features that are checked, and of targets that are; base of `Head`."""

    target_kind: ClassVar[TargetKind] = "real"

    missing: Missing
    likelihood: Callable[[Tensor], Any]

    @property
    def _owner(self) -> str:
        """Who speaks in errors."""
        return f"head {self.site!r}"

    # -- features --------------------------------------------------------------------------------

    def check_features(self, features: Tensor, *, values: bool = True, empty: bool = False) -> None:
        """Refuse features that are not a finite, floating [B, d] with B of at least 1.

        Args:
            features: what the user passed.
            values: whether to look for NaN and infinity, which on a GPU waits for the device.
            empty: whether B may be 0.

        Raises:
            ShapeError, DtypeError, NonFiniteError, DeviceError: naming the head and the remedy.
            StateError: if the head embeds by inducing points that have no place yet.
        """
        size = self.in_features
        self._check_device("features", features)
        if not isinstance(features, Tensor):
            raise DtypeError(
                f"{self._owner}: features must be a tensor, not {type(features).__name__}"
            )
        if features.layout != torch.strided or features.is_nested:
            raise not_dense(f"{self._owner}: features", features)
        if features.ndim != 2 or features.shape[1] != size:
            raise ShapeError(
                f"{self._owner}: features must have shape [examples, {size}], not "
                f"{list(features.shape)}; flatten other dimensions into the examples (an engine "
                "does, and takes {head: features} where heads read different ones)"
            )
        if features.shape[0] == 0 and not empty:
            raise ShapeError(f"{self._owner}: the batch is empty; leave it out")
        if not features.is_floating_point() or features.dtype.itemsize < 2:
            raise DtypeError(
                f"{self._owner}: features must be floating point of 16 bits or more, not "
                f"{features.dtype}"
            )
        if values and not linalg.all_finite(features.detach()):
            example, column = (~features.isfinite()).nonzero()[0].tolist()
            raise NonFiniteError(
                f"{self._owner}: feature {column} of example {example} is "
                f"{features[example, column].item()}; the input is bad or the backbone has diverged"
            )
        if self.embedding is not None:
            self.embedding.check_ready(self._owner)

    def _check_device(self, what: str, tensors: Any) -> None:
        """Refuse tensors that do not live where the head does, naming both devices."""
        device = self.weight.device
        for tensor in tensors if isinstance(tensors, tuple | list) else (tensors,):
            if isinstance(tensor, Tensor) and tensor.device != device:
                raise DeviceError(
                    f"{self._owner}: {what} are on {tensor.device}, the head is on {device}; "
                    f"move one with .to({str(device)!r})"
                )

    # -- targets ---------------------------------------------------------------------------------

    @cached_property
    def _support(self) -> tuple[str, constraints.Constraint] | None:
        """The likelihood and its support, where one that outputs do not decide bounds targets."""
        outputs = torch.zeros(1, self.tasks, self.outputs_per_task, device=self.weight.device)
        if self.outputs_per_task == 1:
            outputs = outputs.squeeze(-1)
        try:
            found = type(self.likelihood(outputs))
        except (NotImplementedError, RuntimeError, TypeError, ValueError):
            return None
        support: Any = getattr(found, "support", None)
        if not isinstance(support, constraints.Constraint) or constraints.is_dependent(support):
            return None
        if support.event_dim or support is constraints.real:
            return None
        return found.__name__, support

    @property
    def support_description(self) -> str:
        """What a message says targets are where some are not; empty where all finite ones are."""
        return "{} takes targets in {}".format(*self._support) if self._support else ""

    def supports(self, values: Tensor) -> Tensor:
        """Which target values are in the likelihood's support, as booleans of their shape.

        Overridden where outputs decide the support, or the distribution does not say.
        """
        good = values.isfinite()
        return good & self._support[1].check(values) if self._support else good

    @property
    def filler(self) -> float:
        """What stands for a missing target: in the support, since 0 · ∞ would still be NaN.

        1 for real targets, else 0. A head that does not take it names another.
        """
        return 1.0 if self.target_kind == "real" else 0.0

    def check_values(self, targets: Targets) -> None:
        """Refuse target values outside the support of the likelihood.

        Raises:
            SettingError: naming the first one and what targets are.
        """
        wanted = self.support_description
        if wanted and not (good := self._supported(targets)).all():
            example, task = (~good).nonzero()[0].tolist()
            raise SettingError(
                f"{self._owner}: target of task {task}, example {example}, is "
                f"{targets.values[example, task].item()}; {wanted}"
            )

    def valid(self, targets: Targets) -> Tensor:
        """Whether all target values are usable, as a boolean scalar on their device."""
        return self._supported(targets).all()

    def _supported(self, targets: Targets) -> Tensor:
        """Which targets are in the support or were not observed, [B, tasks]."""
        good = self.supports(targets.values)
        return good if targets.mask is None else good | ~targets.mask

    def parse_targets(self, targets: RawTargets, batch: int, *, validate: bool = True) -> Parsed:
        """Bring targets to one form, [B, tasks], and refuse what is wrong with them.

        Args:
            targets: [B, tasks], or [B] for one task; (values, mask) with True for observed, or
                (values, mask or None, weight) with the weight of each example, [B] or [B, tasks].
                A list will do for a tuple, and so will the user's own `Targets`.
            batch: B.
            validate: whether to look at the values, which on a GPU waits for the device.

        Raises:
            ShapeError, DtypeError: wrong shape or type of values or mask.
            NonFiniteError: an observed value is infinite or NaN (NaN is "not observed" for a head
                made with missing="nan").
        """
        if isinstance(targets, Parsed) and targets.values.shape == (batch, self.tasks):
            return targets
        self._check_device("targets", targets)
        parsed = self._parsed(targets, batch)
        if validate:
            self._check_finite(parsed)
            self.check_values(parsed)
        return parsed

    def _parsed(self, targets: RawTargets, batch: int) -> Parsed:
        """Shapes and types are checked, missing targets replaced by the filler."""
        kind = self.target_kind
        values, mask, weight = targets, None, None
        if not isinstance(targets, Tensor):
            values, mask, weight = _split(self._owner, targets)
        values = self._columns(values, batch, "targets")
        if wrong := wrong_kind(values, kind):
            raise DtypeError(f"{self._owner}: {wrong}")
        counts = kind == "count" and not values.is_floating_point()
        if kind == "class" or counts or values.dtype in _UNSIGNED:
            values = values.long()  # what indexing takes, and wide enough to be kept beside others
        if mask is not None:
            mask = self._columns(mask, batch, "the mask", for_all=True)
            if mask.dtype != torch.bool:
                raise DtypeError(
                    f"{self._owner}: the mask must be bool (True: observed), not {mask.dtype}; the "
                    "weight of examples comes third, as in (values, None, weight)"
                )
        if weight is not None:
            weight = self._columns(weight, batch, "the weight", for_all=True)
            if not weight.is_floating_point():
                raise DtypeError(
                    f"{self._owner}: the weight must be floating point, not {weight.dtype}"
                )
        if self.missing != "error":
            number = values if values.is_floating_point() else values.long()
            present = ~number.isnan() if self.missing == "nan" else number != self.missing
            mask = present if mask is None else mask & present
        if mask is not None:
            values = torch.where(mask, values, torch.full_like(values, self.filler))
        return Parsed(values, mask, weight)

    def _columns(self, tensor: object, batch: int, what: str, *, for_all: bool = False) -> Tensor:
        """One value for each example and task; `for_all`: or for each example, of all tasks."""
        tasks = self.tasks
        if not isinstance(tensor, Tensor):
            raise DtypeError(f"{self._owner}: {what} must be a tensor, not {type(tensor).__name__}")
        if tensor.layout != torch.strided or tensor.is_nested:
            raise not_dense(f"{self._owner}: {what}", tensor)
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            tensor = tensor.clone()  # the labels of a teacher, say: autograd keeps no such tensor
        if for_all and tensor.shape == (batch,):
            return tensor[:, None].expand(batch, tasks)
        if tensor.ndim == 1 and tasks == 1:
            tensor = tensor[:, None]
        if tensor.shape != (batch, tasks):
            remedy = ""
            if self.target_kind == "class" and tensor.ndim == 2 and len(tensor) == batch:
                remedy = "; of one-hot rows take .argmax(-1)"
            elif tensor.shape == (batch,):
                remedy = "; of one tensor for each task take torch.stack(tensors, -1)"
            raise ShapeError(
                f"{self._owner}: {what} must have shape [{batch}, {tasks}] (examples, tasks), "
                f"not {list(tensor.shape)}{remedy}"
            )
        return tensor

    def _check_finite(self, targets: Targets) -> None:
        """Refuse observed targets and weights that are NaN or infinite, and negative weights."""
        if targets.weight is not None:
            if not targets.weight.isfinite().all():
                raise NonFiniteError(f"{self._owner}: an example's weight is NaN or infinite")
            if (targets.weight < 0).any():
                raise SettingError(
                    f"{self._owner}: an example's weight is {targets.weight.min().item()}"
                )
        if linalg.all_finite(targets.values):
            return
        example, task = (~targets.values.isfinite()).nonzero()[0].tolist()
        bad = targets.values[example, task].item()
        remedy = (
            "; if it was not observed, pass (targets, mask) or make the head with missing='nan'"
            if math.isnan(bad)
            else ""
        )
        raise NonFiniteError(
            f"{self._owner}: target of task {task}, example {example}, is {bad}{remedy}"
        )

    def unlabelled(self, batch: int) -> Parsed:
        """Targets of a batch of B examples of which none has a label for any task."""
        device = self.weight.device
        # The widest dtype there is: what keeps examples makes room for that of the first batch.
        dtype = torch.long if self.target_kind == "class" else linalg.head_dtype(device)
        values = torch.full((batch, self.tasks), self.filler, dtype=dtype, device=device)
        nobody = torch.zeros(batch, 1, dtype=torch.bool, device=device)
        return Parsed(values, nobody.expand_as(values))  # a mask that is common to the tasks


def _split(owner: str, targets: RawTargets) -> tuple[Any, Any, Any]:
    if not isinstance(targets, tuple | list):
        return targets, None, None
    if isinstance(targets, list) and not all(isinstance(x, Tensor | None) for x in targets):
        return targets, None, None  # numbers, which are no tensor
    if len(targets) == 2:
        return targets[0], targets[1], None
    if len(targets) == 3:
        return targets[0], targets[1], targets[2]
    raise ShapeError(
        f"{owner}: a tuple or list of targets is (values, mask) or (values, mask, weight), not of "
        f"length {len(targets)}; stack targets of single examples or tasks into one tensor"
    )


def not_dense(what: str, tensor: Tensor) -> DtypeError:
    """Says what to do with a sparse or nested tensor."""
    kind = "nested" if tensor.is_nested else tensor.layout
    return DtypeError(
        f"{what} must be a dense tensor, not {kind}; take .to_dense() of a sparse one, and "
        ".values() of a nested one, whose rows are examples"
    )


def wrong_kind(values: Tensor, kind: TargetKind) -> str | None:
    """What an error says of a dtype that targets of that kind cannot have; None if they can."""
    floating = values.is_floating_point()
    if values.is_complex():
        return f"targets must be real, not {values.dtype}"
    if floating and values.dtype.itemsize < 2:
        return f"targets must have 16 bits or more, not {values.dtype}; convert them with .float()"
    if kind == "real" and not floating:
        return (
            f"targets must be floating point, not {values.dtype}; convert them with targets.float()"
        )
    if kind == "count" and values.dtype == torch.bool:
        return (
            "targets are counts, integer or floating point, not bool; "
            "convert them with targets.long()"
        )
    if kind == "class" and (floating or values.dtype == torch.bool):
        return (
            f"targets must be integer class indices, not {values.dtype}; "
            "convert them with targets.long()"
        )
    return None


def like(values: Tensor, outputs: Tensor) -> Tensor:
    """Real targets in the outputs' precision; class indices as they are."""
    return values.to(outputs.dtype) if values.is_floating_point() else values
