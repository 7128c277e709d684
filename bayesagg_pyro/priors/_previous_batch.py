"""The posterior of the batch before, as in Bayesian filtering."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._settings import real
from bayesagg_pyro.errors import DtypeError, SettingError, StateError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference import Scheme, learns_noise
from bayesagg_pyro.posteriors import (
    DiagonalGaussian,
    Gaussian,
    GaussianFamily,
    KroneckerGaussian,
    Posterior,
)
from bayesagg_pyro.priors._data import Base, DataPolicy, Variance, check_renewed
from bayesagg_pyro.priors._policy import Policy, layout
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import CHECKED, Validity


class PreviousBatch(DataPolicy):
    """The prior of a batch is the posterior of the previous one, partly forgotten.

    Forgetting mixes the posterior with the base prior geometrically,
    p ∝ posterior^(1−φ) · base^φ ("stabilised forgetting", Kulhavý and Zarrop, 1993,
    https://doi.org/10.1080/00207179308923034), so about 1/φ
    batches count and directions without data go back to the base. It takes one more inference for
    each batch, of any scheme with Gaussian posteriors; the step after next sees it, `update_prior`
    has nothing to do. A prior holds earlier batches only, so none need be left out.

    Args:
        forgetting: φ, the share forgotten at each batch, in [0, 1]. 0 forgets nothing: over many
            epochs the data then count many times and the prior freezes. 1 is `Constant`.
        variance: γ of the base prior N(0, γ I), one number or one per task; also the first prior.
        base: makes another base prior, see `DataPolicy`. Under "kron" it must be isotropic.
        temperature: divides each batch's log-likelihood; above 1 the prior is wider.
        in_place: write each new prior into the tensors of the last.

    Raises:
        SettingError: if forgetting is not in [0, 1]; as `FullData` else.
    """

    def __init__(
        self,
        forgetting: float = 0.05,
        *,
        variance: Variance = 1.0,
        base: Base | None = None,
        temperature: float = 1.0,
        in_place: bool = False,
    ) -> None:
        super().__init__(variance, base=base, temperature=temperature, in_place=in_place)
        if not 0 <= real(forgetting) <= 1:
            raise SettingError(f"forgetting must lie in [0, 1], not {forgetting!r}")
        self.forgetting = forgetting

    held = ("prior", "_last")

    def begin(self) -> None:
        head, scheme = self.head, self.scheme
        if self.evidence is not None or learns_noise(head):
            raise SettingError(
                f"head {head.site!r} learns its noise or its prior's variance, which PreviousBatch "
                "keeps no data for; use FullData, Running or Fresh, or give numbers"
            )
        if not issubclass(scheme.gives or GaussianFamily, GaussianFamily):
            raise DtypeError(_not_gaussian(head, scheme))
        check_renewed(head, scheme)  # whatever its `refresh` is: every batch goes through it
        scheme.statistics(head, self.storage)  # refuses heads that the scheme cannot take
        self._base = self.base_for(head)
        scheme.check(head, self._base)
        self.prior: GaussianFamily = self._base
        self._last: GaussianFamily | None = None

    @property
    def posterior(self) -> Posterior | None:
        """The last batch's posterior before forgetting; None before the first batch."""
        return self._last

    def holds(self, features: Tensor) -> Tensor | None:
        """None: whatever is finite will do, of which a posterior alone is kept."""
        return None

    def collect(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> None:
        if self.temperature != 1.0:
            dtype, weight = linalg.head_dtype(features.device), targets.weight
            if weight is None:
                weight = torch.ones_like(targets.values, dtype=dtype)
            targets = targets._replace(weight=weight.to(dtype) / self.temperature)
        features, targets = validity.keep_examples(features, targets, self.head.filler)
        found = self.scheme.infer(
            self.head, features, targets, self.prior, start=self._last, generator=self.generator
        )
        if not isinstance(found, GaussianFamily):
            raise DtypeError(_not_gaussian(self.head, self.scheme))
        new = self._forget(found)
        first = self._last is None
        found = validity.keep_posterior(found, self._last or self.prior)
        new = validity.keep_posterior(new, self.prior)
        self._last = found
        if self.in_place and not first and layout(self.prior) == layout(new):
            self.prior.copy_(new)
        else:
            self.prior = new

    def _forget(self, found: GaussianFamily) -> GaussianFamily:
        """posterior^(1−φ) · base^φ: precisions mix, means by precision."""
        keep, lose = 1 - self.forgetting, self.forgetting
        base = self._base.to(found.mean.device, found.mean.dtype)
        if isinstance(found, KroneckerGaussian) and isinstance(base, DiagonalGaussian):
            isotropic = base.precision[:, 0]
            mixed: GaussianFamily = KroneckerGaussian(
                found.mean,
                keep * found.outputs,
                keep * found.inputs,
                keep * found.count,
                keep * found.isotropic + lose * isotropic,
            )
        elif isinstance(found, DiagonalGaussian) and isinstance(base, DiagonalGaussian):
            mixed = DiagonalGaussian(found.mean, keep * found.precision + lose * base.precision)
        else:
            mixed = Gaussian(
                found.mean, keep * found.precision_matrix + lose * base.precision_matrix
            )
        pull = mixed.solve(base.precision_times(found.mean - base.mean))
        mixed = mixed.with_mean(found.mean - lose * pull)
        return mixed.replace(outputs_per_task=found.outputs_per_task)

    @property
    def collected(self) -> bool:
        return self._last is not None

    def propose(self, start: Posterior | None = None) -> Posterior:
        """The prior in force: it is renewed at every batch."""
        if self._last is None:
            raise StateError(
                f"head {self.head.site!r}: no data has been collected yet; "
                "only backward() in train mode collects"
            )
        assert self.prior is not None
        return self.prior

    def accept(self, prior: Posterior) -> None:
        """Change nothing: batches have renewed the prior already."""

    def to(self, device: torch.device) -> None:
        Policy.to(self, device)
        self._base = self._base.to(device=device)

    def state(self) -> dict[str, Tensor]:
        return Policy.state(self)

    def load(self, state: Mapping[str, Tensor]) -> None:
        Policy.load(self, state)
        held = self.prior, self._last or self.prior
        if not all(isinstance(one, GaussianFamily) for one in held):
            raise StateError(
                f"head {self.head.site!r}: the saved state of PreviousBatch holds no Gaussian "
                "prior; make the engine with the policy as saved"
            )

    def __repr__(self) -> str:
        return f"PreviousBatch(forgetting={self.forgetting})"


def _not_gaussian(head: Head, scheme: Scheme) -> str:
    return (
        f"head {head.site!r}: priors.PreviousBatch needs Gaussian posteriors, which {scheme!r} "
        "does not give; use priors.FullData"
    )
