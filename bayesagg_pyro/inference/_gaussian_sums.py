"""Sufficient statistics of a Gaussian head: sums, so they add over batches and over processes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._state import finite, saved
from bayesagg_pyro.errors import NonFiniteError, StateError
from bayesagg_pyro.heads import Gaussian
from bayesagg_pyro.inference._cross_validation import cross_validated
from bayesagg_pyro.inference._curvature import gaussian_prior
from bayesagg_pyro.inference._normal_equations import condition, gaussian, noise_precision, sums
from bayesagg_pyro.inference._statistics import Statistics
from bayesagg_pyro.posteriors import Gaussian as GaussianPosterior
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import CHECKED, Validity

if TYPE_CHECKING:
    from typing_extensions import Self

_WHO = "Conjugate inference"

#: Relative rounding error of a full-data posterior that is warned of.
_WORTH_TELLING = 1e-6

#: Targets whose root mean square is this far from 1, in units of their own, are warned of; so many
#: at least.
_FAR, _FEW = 10.0, 8


class GaussianStatistics(Statistics):
    """Sums of h hᵀ, h y and y² over all examples seen, O(T D²) memory at most.

    They hold no noise: a posterior takes the head's τ of the moment, so a τ that is learned, or
    integrated out, needs no new pass. All sums are updated in place, with static shapes once the
    first batch with missing targets has come.

    Attributes:
        gram: Σ ω h hᵀ, [1, D, D] while all tasks share their examples, else [tasks, D, D]; float64.
        moment: Σ ω h y, [tasks, D].
        square: Σ ω y², [tasks].
        total: Σ ω, [tasks]: observed examples, weighted.
        count: [tasks], observed examples.
        rows: [], examples, observed or not.
    """

    decays = True
    _SUMS = ("gram", "moment", "square", "total", "count", "rows")

    head: Gaussian

    def __init__(self, head: Gaussian) -> None:
        super().__init__(head)
        device = head.weight.device
        size, dtype = head.weight_size, linalg.head_dtype(device)
        self.gram = torch.zeros(1, size, size, dtype=dtype, device=device)
        self.moment = torch.zeros(head.tasks, size, dtype=dtype, device=device)
        self.square = torch.zeros(head.tasks, dtype=dtype, device=device)
        self.total = torch.zeros(head.tasks, dtype=dtype, device=device)
        self.count = torch.zeros(head.tasks, dtype=dtype, device=device)
        self.rows = torch.zeros((), dtype=dtype, device=device)

    def __bool__(self) -> bool:
        return bool(self.rows > 0)

    def labelled(self) -> Tensor:
        """Those with a sum of weights above 0."""
        return self.total > 0

    def add(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> None:
        """Add a batch's terms to the sums."""
        found = sums(self.head, features, targets)
        factor, count = targets.factor(found.gram.dtype), targets.counts().to(found.gram.dtype)
        terms = {
            **found._asdict(),
            "total": count if factor is None else factor.sum(0),
            "count": count,
            "rows": count.new_full((), len(features)),
        }
        if len(terms["gram"]) > len(self.gram):  # the first batch with missing targets
            self.gram = self.gram.expand_as(terms["gram"]).clone()
        for name, term in terms.items():
            held: Tensor = getattr(self, name)
            held += validity.keep(term, 0.0)
        if validity.now:
            self._check()

    def _check(self) -> None:
        """Refuse sums that overflow, of which no posterior could be made any more.

        Raises:
            NonFiniteError: naming the head.
        """
        if not all(linalg.all_finite(s) for s in (self.gram, self.moment, self.square)):
            raise NonFiniteError(
                f"head {self.head.site!r}: squares of these features or targets overflow "
                f"{self.moment.dtype}; standardise them, or look for a backbone that diverges"
            )

    def posterior(
        self,
        prior: Posterior,
        *,
        start: Posterior | None = None,
        generator: torch.Generator | None = None,
    ) -> Posterior:
        """The exact Gaussian posterior, see `Conjugate`.

        Raises:
            DtypeError: if the prior is not Gaussian, or the head no longer is.
            NumericalError: if the precision cannot be factored.
        """
        head = gaussian(self.head, _WHO)
        known = (
            gaussian_prior(head, prior, _WHO)
            .to_gaussian()
            .to(self.moment.device, self.moment.dtype)
        )
        beta = noise_precision(head, self.moment).reshape(-1, 1)
        precision, shift = self.gram * beta[..., None], self.moment * beta
        # Σ h (y − hᵀm_p) = Σ h y − (Σ h hᵀ) m_p; with the usual zero mean nothing is subtracted.
        explained = linalg.matvec(precision, known.mean)
        total = known.precision_matrix + precision
        made = condition(head, known, total, shift - explained)
        if head.noise_source == "estimated":
            tau = self._noise_scale(made, precision, shift, beta[:, 0])
            made = made.with_info(noise_scale=tau)
        self.tell_units()
        if shift.device.type == "cpu" and made.info.rounding.max() > _WORTH_TELLING:
            warnings.warn(
                f"head {head.site!r}: the precision is so badly conditioned, at least "
                f"{made.info.condition.max():.1e}, that the posterior of these sums may be off by "
                f"{made.info.rounding.max():.0e}, relatively. Strengthen the prior, or standardise "
                "or decorrelate the features.",
                RuntimeWarning,
                stacklevel=2,
            )
        return made

    def tell_units(self) -> None:
        """Warn where targets are far from the size that the first batch had; on the CPU alone."""
        head, size = self.head, (self.square / self.total).sqrt()
        chose = head.target_scale is not None and head.noise_source == "estimated"
        if not chose or size.device.type != "cpu":
            return
        far = (self.count >= _FEW) & (size > 0) & ((size < 1 / _FAR) | (size > _FAR))
        if far.any():
            warnings.warn(
                f"head {head.site!r}: targets of tasks {far.nonzero().flatten().tolist()} have a "
                f"root mean square of {[float(f'{s:.1g}') for s in size[far]]} in the units that "
                "their first batch suggested: it was unlike the rest, or there are outliers. "
                "Standardise the targets, or collect() a typical batch before all others.",
                RuntimeWarning,
                stacklevel=3,
            )

    def _noise_scale(
        self, posterior: GaussianPosterior, precision: Tensor, shift: Tensor, beta: Tensor
    ) -> Tensor:
        """τ for predictions, [tasks], see `cross_validated`.

        Args:
            posterior: N(m, S).
            precision: τ⁻² HᵀH.
            shift: τ⁻² Hᵀy.
            beta: τ⁻², [1 or tasks].
        """
        mean = posterior.mean
        fitted = ((linalg.matvec(precision, mean) - 2 * shift) * mean).sum(-1)
        rest = self.square + fitted / beta
        used = (posterior.covariance_matrix * precision).sum((-2, -1))
        return cross_validated(rest, used, self.total, self.square, beta.rsqrt(), self.share)

    def scaled(self, factor: float) -> Self:
        """A copy whose sums are all multiplied by `factor`."""
        other = copy(self)
        other.scale_(factor)
        other.share = self.share * factor
        return other

    def scale_(self, factor: float | Tensor) -> None:
        """Multiply all sums."""
        for name in self._SUMS:
            getattr(self, name).mul_(factor)

    def to(self, device: torch.device) -> None:
        """Move the sums."""
        for name in self._SUMS:
            setattr(self, name, getattr(self, name).to(device))

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        for name in self._SUMS:  # they are updated in place
            setattr(other, name, getattr(self, name).clone())
        return other

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the sums, which later batches leave alone."""
        return {name: saved(getattr(self, name)) for name in self._SUMS}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over saved sums.

        Raises:
            StateError: if they are those of another head, or no such sums.
            NonFiniteError: if one is not finite.
        """
        owner = f"head {self.head.site!r}"
        found = dict(zip(self._SUMS, finite(owner, state, list(self._SUMS)), strict=True))
        tasks, size = self.moment.shape
        grams = [(1, size, size), (tasks, size, size)]
        wanted = {name: getattr(self, name).shape for name in self._SUMS if name != "gram"}
        fits = all(found[name].shape == shape for name, shape in wanted.items())
        if not fits or tuple(found["gram"].shape) not in grams:
            raise StateError(
                f"{owner} has weights of shape {[tasks, size]}, the saved sums are for "
                f"{list(found['moment'].shape)}; make the heads as saved"
            )
        weights = ("square", "total", "count", "rows")
        if any(bool((found[name] < 0).any()) for name in weights):
            raise StateError(f"{owner}: the saved sums of squares or weights are negative")
        for name, value in found.items():
            setattr(self, name, value.to(self.moment).clone())
