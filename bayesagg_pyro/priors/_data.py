"""What the policies share that make a prior from data: base, temperature, statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from bayesagg_pyro._settings import numbers, positive
from bayesagg_pyro._state import finite, named, part, saved
from bayesagg_pyro.errors import SettingError, StateError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference import (
    Scheme,
    Statistics,
    Storage,
    learns_noise,
    scaled,
)
from bayesagg_pyro.inference._evidence import Evidence
from bayesagg_pyro.posteriors import GaussianFamily, KroneckerGaussian, Posterior, isotropic, where
from bayesagg_pyro.priors._packed import not_packed, packed, packed_posterior
from bayesagg_pyro.priors._policy import Policy, layout
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import CHECKED, Validity

#: Makes the prior before any data for a head, for example `lambda head: priors.diagonal(head, v)`.
Base: TypeAlias = Callable[[Head], GaussianFamily]


#: γ of the base prior: numbers, or how to choose it.
Variance: TypeAlias = float | Sequence[float] | Literal["learned"] | Evidence


class DataPolicy(Policy):
    """Base of policies whose priors are posteriors of data, starting from a base prior.

    It collects what training shows, and makes a posterior of it at each update.

    Args:
        variance: γ of the base prior N(0, γ I), in squared units of the weights; one number, or one
            per task. "learned" takes the γ of highest marginal likelihood at each update, as
            `Evidence()`, and `Evidence` has options; what was chosen is in the prior's `info`.
        base: a function that makes another base prior for a head; a `variance` that is a number
            is then not used, one that is learned multiplies its covariance.
        temperature: the data's log-likelihood counts divided by it. Above 1 the prior is wider.
        leave_batch_out: whether a step's prior is freed of the step's own batch, which is else
            counted twice. The batch's terms at the present features are subtracted; where they
            have moved so far that too little would be left of a task's prior, that prior stays and
            `mtl.info.left_out` is False for it.
        in_place: write each new prior into the tensors of the last, so that a captured CUDA graph
            sees it. Priors handed out before change with it.
        storage: how a scheme without sums keeps examples.
        dtype: keep dense precisions as lower triangles in this precision and make them some tasks
            at a time: torch.float32 takes 2 P² bytes a task in place of 16 P². None keeps
            precision and factor in float64.

    Raises:
        SettingError: if variance or temperature is not positive and finite.
    """

    def __init__(
        self,
        variance: Variance = 1.0,
        *,
        base: Base | None = None,
        temperature: float = 1.0,
        leave_batch_out: bool = False,
        in_place: bool = False,
        storage: Storage | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if isinstance(variance, str):
            if variance != "learned":
                raise SettingError(
                    f'variance must be positive numbers, "learned" or Evidence(), not {variance!r}'
                )
            variance = Evidence()
        self.evidence = variance if isinstance(variance, Evidence) else None
        variance = 1.0 if isinstance(variance, Evidence) else variance
        given = numbers("the prior variance", variance)
        if not (given.isfinite() & (given > 0)).all():
            raise SettingError(f"the prior variance must be positive and finite, not {variance}")
        positive("temperature", temperature)
        self.variance = variance
        self.base = base
        self.temperature = temperature
        self.leave_batch_out = leave_batch_out
        self.in_place = in_place
        self.storage = storage or Storage()
        if dtype is not None and not dtype.is_floating_point:
            raise SettingError(f"a prior is kept in a floating dtype, not {dtype}")
        self.dtype = dtype

    def base_for(self, head: Head) -> GaussianFamily:
        """The prior before any data.

        Raises:
            SettingError: if `base` gives no Gaussian.
            ShapeError: if it gives one over the weights of another head.
        """
        if self.base is None:
            return isotropic(head, self.variance)
        made = self.base(head)
        if not isinstance(made, GaussianFamily):
            raise SettingError(
                f"head {head.site!r}: base must return a Gaussian prior (priors.isotropic, "
                f"priors.diagonal, ...), not {made!r}"
            )
        head.check_weights(made, "base prior")
        return made

    #: What to do when there is nothing to make a prior of.
    remedy: ClassVar[str] = "only backward() in train mode collects"

    #: Whether posteriors become priors of later steps.
    _renews: ClassVar[bool] = True

    def begin(self) -> None:
        head, scheme = self.head, self.scheme
        self._base = self.base_for(head)
        self._scale: Tensor | None = None  # of the base's covariance, [tasks], once chosen
        self._choice = self._wanted_choice()
        scheme.check(head, self._base)
        _check_fit(head, scheme, self)
        if self._choice is not None:
            self._choice.check(head, scheme)
        if self._renews and scheme.refresh != "epoch":
            check_renewed(head, scheme)
        self._statistics = self._empty()
        if self._choice is not None:
            self._choice.check_statistics(self._statistics)
        if self.leave_batch_out and type(scheme).leave_out is Scheme.leave_out:
            raise SettingError(
                f"head {head.site!r}: {scheme!r} cannot leave a batch out of a prior; set "
                "leave_batch_out=False, or use Conjugate, TaylorGGN or Laplace"
            )

    def _empty(self) -> Statistics:
        storage = self.storage
        if self._choice is not None or self.dtype is not None:  # which go through examples
            storage = replace(storage, memory=None)
        return self.scheme.statistics(self.head, storage)

    def _wanted_choice(self) -> Evidence | None:
        """What chooses hyperparameters at an update; None where nothing is to choose."""
        if self.evidence is None and learns_noise(self.head):
            return Evidence(variance=None)
        return self.evidence

    def collect(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> None:
        """Add a batch to the statistics."""
        self._statistics.add(features, targets, validity)

    def holds(self, features: Tensor) -> Tensor | None:
        """Whether the statistics can keep these features; see `Policy.holds`."""
        return self._statistics.holds(features)

    @property
    def collected(self) -> bool:
        """Whether any batch was added since the last update."""
        return bool(self._statistics)

    def propose(self, start: Posterior | None = None) -> Posterior:
        """The posterior of all that was collected, tempered, on the base prior.

        A task without a target in it keeps the posterior that it has.
        """
        if not self._statistics:
            raise StateError(
                f"head {self.head.site!r}: no data has been collected since the last "
                f"update_prior(); {self.remedy}"
            )
        if self._choice is None and self._wanted_choice() is not None:
            raise StateError(
                f"head {self.head.site!r}: learn_noise() came after the engine was made, whose "
                "statistics do not serve it; call it before"
            )
        made, before = self._posterior_of(self._statistics, start), self.posterior
        labelled = None if before is None else self._statistics.labelled()
        if before is None or labelled is None or bool(labelled.all()):
            return made
        return where(labelled, made, before) if bool(labelled.any()) else before

    def _posterior_of(self, statistics: Statistics, start: Posterior | None) -> Posterior:
        how: dict[str, Any] = {"start": start, "generator": self.generator}
        if self._choice is not None:
            found = self._choice.posterior(
                statistics, self._base, temperature=self.temperature, **how
            )
            return found if self.dtype is None else packed(self.head, found, self.dtype)
        if self.temperature != 1.0:
            statistics = statistics.scaled(1 / self.temperature)
        if self.dtype is not None:
            return packed_posterior(self.head, statistics, self._base, self.dtype, **how)
        return statistics.posterior(self._base, **how)

    def accept(self, prior: Posterior) -> None:
        """Make it the prior and begin to collect anew."""
        self._adopt(prior)
        self.prior = self._renewed(self.prior, prior)
        self._statistics = self._cleared(self._statistics)

    def prior_for(self, features: Tensor, targets: Targets) -> Posterior:
        """The prior in force, without this batch if the policy leaves batches out."""
        if not self.leave_batch_out and self.prior is not None:
            return self.prior
        prior = super().prior_for(features, targets)
        weight = self._batch_weight() / self.temperature
        if weight == 0:
            return prior
        return self.scheme.leave_out(
            self.head,
            features,
            targets,
            prior,
            base=self._chosen_base,
            weight=weight,
        )

    @property
    def _chosen_base(self) -> GaussianFamily:
        """The base prior with the variance that was last chosen."""
        return self._base if self._scale is None else scaled(self._base, self._scale)

    def _batch_weight(self) -> float:
        """How much a training batch's log-likelihood counts in the prior, before tempering."""
        return 1.0

    def _renewed(self, old: Posterior | None, new: Posterior) -> Posterior:
        if self.in_place and old is not None:
            if not (isinstance(old, GaussianFamily) and isinstance(new, GaussianFamily)):
                raise _not_in_place(self.head, type(new))
            if layout(old) == layout(new):
                return old.copy_(new)
        return new

    def _cleared(self, statistics: Statistics) -> Statistics:
        if self.in_place and statistics.decays:
            statistics.scale_(0.0)
            return statistics
        return self._empty()

    def _adopt(self, posterior: Posterior) -> None:
        """Take over what the evidence chose beside the posterior."""
        info = posterior.info
        if info is None:
            return
        if learns_noise(self.head) and info.noise_scale is not None:
            self.head.noise_scale.copy_(info.noise_scale)
        if info.prior_scale is not None:
            self._scale = info.prior_scale

    def to(self, device: torch.device) -> None:
        """Move statistics and prior."""
        super().to(device)
        self._statistics.to(device)
        self._base = self._base.to(device=device)
        self._scale = None if self._scale is None else self._scale.to(device)

    def state(self) -> dict[str, Tensor]:
        state = super().state() | named("statistics", self._statistics.state_dict())
        return state if self._scale is None else {**state, "scale": saved(self._scale)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
        head = self.head
        self._statistics.load_state_dict(part(state, "statistics"))
        self._scale = None
        if "scale" in state:
            (scale,) = finite(f"head {head.site!r}", state, ["scale"])
            if scale.shape != (head.blocks,) or not (scale > 0).all():
                raise StateError(
                    f"head {head.site!r}: a saved scale of the prior must be {head.blocks} "
                    f"positive numbers, not {scale.tolist()}"
                )
            self._scale = scale.to(head.weight.device)

    def __repr__(self) -> str:
        shown = [f"variance={self.evidence or self.variance}"]
        if self.base is not None:
            shown = [f"base={self.base}", *([shown[0]] if self.evidence else [])]
        if self.temperature != 1.0:
            shown.append(f"temperature={self.temperature}")
        if self.leave_batch_out:
            shown.append("leave_batch_out=True")
        return f"{type(self).__name__}({', '.join(shown)})"


def _check_fit(head: Head, scheme: Scheme, policy: DataPolicy) -> None:
    """Refuse what a policy asks of posteriors that this scheme does not give."""
    if policy.temperature != 1.0 and not scheme.tempers:
        raise SettingError(
            f"head {head.site!r}: {scheme!r} cannot temper the data; make its policy with "
            "temperature=1"
        )
    kind = scheme.gives
    if kind is None:
        return
    if policy.in_place and not issubclass(kind, GaussianFamily):
        raise _not_in_place(head, kind)
    factored = issubclass(kind, KroneckerGaussian)  # dense, it would be no prior for the next
    if policy.dtype is not None and (factored or not issubclass(kind, GaussianFamily)):
        raise not_packed(head, kind)


def check_renewed(head: Head, scheme: Scheme) -> None:
    """Refuse a scheme whose posteriors are no priors for itself.

    Raises:
        SettingError: naming the remedy.
    """
    if scheme.gives is not None and not issubclass(scheme.gives, scheme.takes):
        raise SettingError(
            f"head {head.site!r}: {scheme!r} takes {scheme.takes.__name__} priors alone, and its "
            f"posteriors, which are {scheme.gives.__name__}, would be the next ones; use "
            "priors.FullData and refresh='epoch', or priors.Constant"
        )


def _not_in_place(head: Head, kind: type[Posterior]) -> SettingError:
    return SettingError(
        f"head {head.site!r}: only Gaussian priors are renewed in place, not {kind.__name__}; "
        "make the policy with in_place=False"
    )
