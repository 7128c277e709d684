"""Last-layer posteriors by the package laplace-torch.

Daxberger et al. (2021), https://arxiv.org/abs/2106.14806.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bayesagg_pyro.errors import DtypeError, MissingPackageError, SettingError
from bayesagg_pyro.heads import Categorical, Gaussian, Head
from bayesagg_pyro.inference._examples import Examples
from bayesagg_pyro.inference._iterative import Iterative, default_dtype
from bayesagg_pyro.inference._joint import Joint
from bayesagg_pyro.inference._laplace import Laplace
from bayesagg_pyro.inference._scheme import Refresh
from bayesagg_pyro.inference._statistics import Statistics, Storage
from bayesagg_pyro.posteriors import DiagonalGaussian, GaussianFamily, Posterior
from bayesagg_pyro.posteriors import Gaussian as GaussianPosterior
from bayesagg_pyro.posteriors._family import laplace_order
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import CHECKED, Validity


class LaplaceTorch(Iterative):
    """The posterior of laplace-torch, which sees each task as a linear last layer.

    Needs the extra `laplace`. A check on, or a bridge from, that package: `inference.Laplace` finds
    the same posterior faster, and knows dense priors, weights, and binary tasks.

    Args:
        structure: of the curvature, in its words: "full", "kron" (its factors leave out the
            covariance between features and bias) or "diag".
        at: "map" hands over the mode, which `inference.Laplace` finds, as the package presumes.
            "point" hands over the head's own weights.
        refresh: "epoch" by default: the posterior that one refresh leaves is dense, and as a prior
            for every step the package cannot take it.

    Raises:
        SettingError: for arguments outside their range.
    """

    needs_point: ClassVar[bool] = True
    warm_starts: ClassVar[bool] = False
    takes = DiagonalGaussian
    tempers = False

    def __init__(
        self,
        structure: Literal["full", "kron", "diag"] = "full",
        *,
        at: Literal["map", "point"] = "map",
        refresh: Refresh = "epoch",
    ) -> None:
        if structure not in ("full", "kron", "diag"):
            raise SettingError(f'structure must be "full", "kron" or "diag", not {structure!r}')
        if at not in ("map", "point"):
            raise SettingError(f'at must be "map" or "point", not {at!r}')
        super().__init__(refresh=refresh)
        self.structure = structure
        self.at = at
        self.gives = DiagonalGaussian if structure == "diag" else GaussianPosterior

    def check(self, head: Head, prior: Posterior) -> None:
        """Refuse heads and priors that laplace-torch does not support."""
        _supported(head, prior, self.structure)

    def statistics(self, head: Head, storage: Storage) -> Statistics:
        """Examples, none of them weighted."""
        return _Unweighted(head, storage, self)

    def fit(
        self, joint: Joint, start: Posterior | None, generator: torch.Generator | None
    ) -> GaussianFamily:
        """A dense Gaussian, or a diagonal one for structure="diag"; in float64.

        Raises:
            MissingPackageError: if laplace-torch is not installed.
            SettingError: for what the package has not: other heads, weights of examples or
                classes, dense priors; for "kron", priors that are not isotropic.
        """
        head, features = joint.head, joint.features
        prior = _supported(head, joint.prior, self.structure)
        whole = _unweighted(head, joint.targets)
        point = joint.point()
        if self.at == "map":
            point = Laplace().infer(head, features, whole, prior).mean
        found = [
            self._task(head, task, features, whole, point[task], prior)
            for task in range(head.tasks)
        ]
        matrices = torch.stack(found)
        diagonal = self.structure == "diag"
        return (DiagonalGaussian if diagonal else GaussianPosterior)(point, matrices)

    def _task(
        self,
        head: Head,
        task: int,
        features: Tensor,
        targets: Targets,
        point: Tensor,
        prior: DiagonalGaussian,
    ) -> Tensor:
        """Precision of one task in our order: [P, P], or [P] for "diag"."""
        values = targets.values[:, task]
        if targets.mask is not None:
            rows = targets.mask[:, task]
            features, values = features[rows], values[rows]
        precision = prior.precision.expand_as(prior.mean)[task]
        if len(features) == 0:
            return precision if self.structure == "diag" else torch.diag(precision)
        order = laplace_order(head.weight, head.weight_size, head.outputs_per_task, bias=head.bias)
        regression, noise = isinstance(head, Gaussian), {}
        if isinstance(head, Gaussian):
            noise["sigma_noise"] = float(head.noise_scale.expand(head.tasks)[task])
        with _package() as package:
            theirs = package.Laplace(
                _layer(head, point, features),
                "regression" if regression else "classification",
                subset_of_weights="last_layer",
                hessian_structure=self.structure,
                prior_precision=precision[0] if self.structure == "kron" else precision[order],
                prior_mean=prior.mean[task, order],
                **noise,
            )
            values = values[:, None].to(features.dtype) if regression else values
            theirs.fit(
                DataLoader(
                    TensorDataset(features, values),
                    batch_size=None,
                    sampler=[slice(None)],  # all at once
                    generator=torch.Generator(),  # else it takes a seed from torch's
                )
            )
            matrix = theirs.posterior_precision
            if self.structure == "kron":
                matrix = matrix.to_matrix()
        found: Tensor = matrix.detach()
        ours = torch.argsort(order)
        return found[ours] if self.structure == "diag" else found[ours][:, ours]

    def __repr__(self) -> str:
        return f"LaplaceTorch(structure={self.structure!r}, at={self.at!r})"


@contextmanager
def _package() -> Iterator[Any]:
    """laplace-torch, with float64 as torch's default dtype, in which it makes its own tensors."""
    with warnings.catch_warnings():
        # Its dependencies, and torch for them, warn under newer releases of torch.
        warnings.filterwarnings("ignore", message="`torch.jit", category=FutureWarning)
        warnings.filterwarnings("ignore", message="`torch.jit", category=DeprecationWarning)
        try:
            import laplace
        except ImportError as error:
            raise MissingPackageError(
                "inference.LaplaceTorch needs laplace-torch: pip install 'bayesagg_pyro[laplace]', "
                "or use inference.Laplace"
            ) from error
        with default_dtype(torch.float64), torch.enable_grad():
            yield laplace


def _layer(head: Head, point: Tensor, features: Tensor) -> nn.Module:
    """The task as a network whose last layer is linear."""
    rows = point.reshape(head.outputs_per_task, -1)
    linear: nn.Linear = nn.utils.skip_init(  # whose own initialisation draws from torch's generator
        nn.Linear,
        head.in_features,
        len(rows),
        bias=head.bias,
        device=features.device,
        dtype=features.dtype,
    )
    with torch.no_grad():
        linear.weight.copy_(rows[:, : head.in_features])
        if head.bias:
            linear.bias.copy_(rows[:, -1])
    return nn.Sequential(nn.Identity(), linear)


class _Unweighted(Examples):
    """Examples that refuse weights when they are taken in, not when a posterior is made of them."""

    def add(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> None:
        super().add(features, _unweighted(self.head, targets), validity)


def _unweighted(head: Head, targets: Targets) -> Targets:
    """The targets, with weights of 0 as missing ones; deferred validation gives those.

    Raises:
        SettingError: for other weights.
    """
    weight = targets.weight
    whole = weight is None or bool(((weight == 0) | (weight == 1)).all())
    if not whole or head.target_weight(targets.values) is not None:
        raise SettingError(
            f"head {head.site!r}: laplace-torch has no weights of examples or classes; use "
            "inference.Laplace"
        )
    if weight is None:
        return targets
    counted = weight > 0
    mask = counted if targets.mask is None else targets.mask & counted
    return targets._replace(mask=mask, weight=None)


def _supported(head: Head, prior: Posterior, structure: str) -> DiagonalGaussian:
    """The prior, if the package can do all this."""
    owner, remedy = f"head {head.site!r}: laplace-torch has no", "use inference.Laplace"
    if not head.is_still((Categorical, Gaussian), "likelihood"):
        raise SettingError(
            f"{owner} likelihood for {type(head).__name__} heads, only for Categorical and "
            f"Gaussian ones; {remedy}"
        )
    if not head.is_still(Head, "outputs", "design"):
        raise SettingError(
            f"{owner} place for outputs that are not linear in the features, as those of "
            f"{type(head).__name__}; {remedy}"
        )
    if head.embedding is not None:
        raise SettingError(
            f"{owner} place for the embedding of a head; {remedy}, or hand the package the "
            "likelihood without it, on embedded features"
        )
    if not isinstance(prior, GaussianFamily):
        raise DtypeError(f"head {head.site!r}: the prior must be Gaussian; {remedy}")
    if not isinstance(prior, DiagonalGaussian):
        raise SettingError(
            f"{owner} dense priors, and this one is a {type(prior).__name__}; set refresh='epoch', "
            f"whose only prior is the policy's isotropic one, or {remedy}"
        )
    if structure == "kron" and not (prior.precision == prior.precision[..., :1]).all():
        raise SettingError(f"{owner} Kronecker posterior on priors that vary by weight; {remedy}")
    return prior
