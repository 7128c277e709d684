"""Regression by a sparse Gaussian process on the features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads._gaussian import Gaussian
from bayesagg_pyro.heads._inducing import InducingPoints
from bayesagg_pyro.targets import RawTargets


class GaussianProcess(Gaussian):
    """T regression tasks, each a Gaussian process on the features; they share one kernel.

    The weights are the whitened values at M inducing points, in which the head is linear: a
    Gaussian head on φ(h) = K_ZZ^(−1/2) k(Z, h). So posteriors given a batch or an epoch are exact
    (`Conjugate`), priors over time keep their meaning, and gradient moments are exact too: with
    J = ∂φ/∂h, the gradient is 2 (φᵀw − y) Jᵀw, of a jointly Gaussian pair (φᵀw, Jᵀw).

    For other likelihoods give the map to a linear head:
    `heads.Bernoulli(d, bias=False).embed(heads.InducingPoints(d, 64))`.

    Args:
        in_features: d, the number of features.
        tasks: T, the number of tasks.
        inducing: the points [M, d], or their number; then call `place` before training.
        kernel: see `InducingPoints`. Its scale is the prior's: leave the prior's variance at 1, for
            `predictive` takes the kernel's residual variance as it is.
        deep: a network d -> p for a deep kernel.
        learn_points: whether the inducing points are learned.
        bias: whether each task has a constant mean, with the prior of a weight.
        noise_scale: τ, one number or one per task, in the targets' own units.
        missing: "nan" reads a NaN target as not observed.
        name: prefix of the Pyro sites.

    Raises:
        SettingError, ShapeError: for arguments outside their range.
        MissingPackageError: for the default kernel without GPyTorch.
    """

    embedding: InducingPoints

    def __init__(
        self,
        in_features: int,
        tasks: int = 1,
        *,
        inducing: int | Tensor = 64,
        kernel: nn.Module | None = None,
        deep: nn.Module | None = None,
        learn_points: bool = False,
        bias: bool = False,
        noise_scale: float | Sequence[float] | Tensor = 1.0,
        missing: Literal["error", "nan"] = "error",
        name: str | None = None,
    ) -> None:
        super().__init__(
            in_features, tasks, bias=bias, noise_scale=noise_scale, missing=missing, name=name
        )
        self.embed(
            InducingPoints(in_features, inducing, kernel, deep=deep, learn_points=learn_points)
        )
        with torch.no_grad():
            self.weight.zero_()  # the prior mean

    @property
    def inducing(self) -> InducingPoints:
        """The inducing points and their kernel."""
        return self.embedding

    def place(self, features: Tensor, *, generator: torch.Generator | None = None) -> None:
        """Put the inducing points among these features, see `InducingPoints.place`."""
        self.inducing.place(features, generator=generator)

    def log_evidence_bound(self, features: Tensor, targets: RawTargets) -> Tensor:
        """Titsias' lower bound on log p(y | H), per task, [tasks]; prior variance 1.

        Titsias (2009), https://proceedings.mlr.press/v5/titsias09a.html.

        log N(y; 0, Q + τ² I) − Σ (k(h, h) − Q(h, h)) / 2τ². Maximise it to fit hyperparameters and,
        where they are learned, inducing points; it is differentiable in them and the features.

        Args:
            features: [N, d].
            targets: [N, tasks], or (values, mask); weights of examples count as repetitions.

        Raises:
            SettingError: for a subclass that has changed the model.
        """
        if not self.is_still(Gaussian):
            raise SettingError(
                f"head {self.site!r}: {self.changed(Gaussian)}, whose evidence this bounds"
            )
        observed = self.parse_targets(targets, len(features))
        dtype = linalg.head_dtype(features.device)
        design = self.design(features.to(dtype))
        y = observed.values.to(dtype)
        factor = observed.factor(dtype)
        factor = torch.ones_like(y) if factor is None else factor
        noise = self.noise_scale.to(dtype).square().expand(self.tasks)
        eye = torch.eye(design.shape[1], dtype=dtype, device=design.device)
        precision = eye + linalg.gram(design, factor) / noise[:, None, None]  # [tasks, P, P]
        tril = linalg.cholesky(precision, what=f"precision of head {self.site!r}").tril
        shift = (y * factor).mT @ design / noise[:, None]
        explained = (linalg.solve(tril, shift) * shift).sum(-1)
        misfit = (y.square() * factor).sum(0) / noise - explained
        log_det = 2 * tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        count = factor.sum(0)
        residual = (self.inducing.residual(features)[:, None] * factor).sum(0) / noise
        return -0.5 * (misfit + log_det + count * (2 * math.pi * noise).log() + residual)
