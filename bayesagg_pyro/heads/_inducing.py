"""Inducing points of a Gaussian process, as a feature map: φ(h) = K_ZZ^(−1/2) k(Z, h)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bayesagg_pyro import linalg
from bayesagg_pyro._settings import integers, real
from bayesagg_pyro._state import count, number
from bayesagg_pyro.errors import (
    MissingPackageError,
    NonFiniteError,
    SettingError,
    ShapeError,
    StateError,
)
from bayesagg_pyro.heads._embedding import Embedding
from bayesagg_pyro.heads._module import check_module, in_precision


class InducingPoints(Embedding):
    """A Gaussian process through its whitened values at M points: f(h) = φ(h)ᵀ w, w ~ N(0, I).

    Under that prior f has the covariance Q(h, h') = k(h, Z) K_ZZ⁺ k(Z, h'), the part of the kernel
    that the points can express; conditioning w on data gives the posterior of the deterministic
    training conditional, which is also the optimal variational one (Titsias, 2009,
    https://proceedings.mlr.press/v5/titsias09a.html). The rest,
    k(h, h) − Q(h, h), is `residual`: predictive distributions add it, gradients do not. (It is
    prior variance at h whatever the weights are; its gradient would pull features towards the
    inducing points, without regard to any target.)

    Kernel hyperparameters, a deep kernel's network and, if asked for, the points are point
    estimates, learned by the head's loss in the engine or through
    `GaussianProcess.log_evidence_bound`. All is computed in float64 where the device has it.
    GPyTorch's kernels can be differentiated, but not by the transforms of `torch.func`.

    Args:
        in_features: d.
        points: Z [M, d], or their number; then `place` chooses them among features.
        kernel: a GPyTorch kernel, or any module that maps ([B, p], [M, p]) to k [B, M] and, called
            with diag=True, ([B, p], [B, p]) to [B]. None: a scaled RBF kernel whose length scale
            starts at the median distance of the points.
        deep: a network d -> p through which features and points go first (a deep kernel).
        learn_points: whether the points are parameters.
        tolerance: directions with eigenvalues of K_ZZ below this share of the largest are left out.

    Raises:
        SettingError, ShapeError: for arguments outside their range.
        MissingPackageError: for the default kernel without GPyTorch.
    """

    points: Tensor  #: Z, [M, d]

    def __init__(
        self,
        in_features: int,
        points: int | Tensor,
        kernel: nn.Module | None = None,
        *,
        deep: nn.Module | None = None,
        learn_points: bool = False,
        tolerance: float = 1e-8,
    ) -> None:
        count = len(points) if isinstance(points, Tensor) else points
        integers(in_features=in_features, points=count)
        if not 0 < real(tolerance) < 1:
            raise SettingError(f"tolerance must lie between 0 and 1, not {tolerance!r}")
        if isinstance(points, Tensor) and points.shape != (count, in_features):
            raise ShapeError(
                f"inducing points must have shape [M, {in_features}], not {list(points.shape)}"
            )
        super().__init__(in_features, count)
        if deep is not None:
            check_module(deep, in_features)
        self.deep = deep
        self._default = kernel is None
        self.kernel = _default_kernel() if kernel is None else kernel
        self.tolerance = tolerance
        self.placed = isinstance(points, Tensor)
        start = points if isinstance(points, Tensor) else torch.zeros(count, in_features)
        start = start.detach().clone()
        if learn_points:
            self.points = nn.Parameter(start)
        else:
            self.register_buffer("points", start)
        if self.placed and self._default:
            self._median_length_scale()

    def place(self, features: Tensor, *, generator: torch.Generator | None = None) -> None:
        """Put the points at the k-means centres of some features (20 rounds of Lloyd's algorithm).

        Weights and priors learned before refer to the old points: place them before the epoch whose
        `update_prior` ends the warm-up.

        Args:
            features: [N, d], N of at least M.
            generator: chooses the first centres.

        Raises:
            ShapeError: if there are too few features, or they are of another size.
            NonFiniteError: if some are NaN or infinite.
        """
        if features.ndim != 2 or features.shape[1] != self.in_features:
            raise ShapeError(
                f"features must be [N, {self.in_features}], not {list(features.shape)}"
            )
        if len(features) < self.out_features:
            raise ShapeError(
                f"{self.out_features} inducing points cannot be placed among {len(features)} "
                "features; give more features or ask for fewer points"
            )
        if not features.isfinite().all():
            raise NonFiniteError("features to place inducing points among are NaN or infinite")
        wide = torch.promote_types(features.dtype, self.points.dtype)  # sums overflow in float16
        features = features.detach().to(self.points.device, wide)
        with torch.no_grad():
            self.points.copy_(_centres(features, self.out_features, generator))
        self.placed = True
        if self._default:
            self._median_length_scale()

    def forward(self, features: Tensor) -> Tensor:
        """φ(h), [..., B, M], in the precision of head algebra.

        Raises:
            StateError: if the points have not been placed.
        """
        inputs, points = self._inputs(features)
        root = inverse_root(_dense(self.kernel(points, points)), self.tolerance)
        phi: Tensor = _dense(self.kernel(inputs, points)) @ root
        return phi

    def residual(self, features: Tensor) -> Tensor:
        """k(h, h) − Q(h, h), at least 0, [B]: prior variance that the points cannot express."""
        inputs, _ = self._inputs(features)
        prior = self.kernel(inputs, inputs, diag=True)
        rest: Tensor = _dense(prior) - self(features).square().sum(-1)
        return rest.clamp(min=0)

    def check_ready(self, owner: str) -> None:
        """Points need a place.

        Raises:
            StateError: if they have none.
        """
        if not self.placed:
            raise StateError(
                f"{owner}: the inducing points have no place yet: call place(features) with "
                "features of the backbone first, or give the points themselves"
            )

    def _inputs(self, features: Tensor) -> tuple[Tensor, Tensor]:
        self.check_ready(type(self).__name__)
        dtype = linalg.head_dtype(features.device)
        inputs, points = features.to(dtype), self.points.to(dtype)
        if self.deep is None:
            return inputs, points
        return in_precision(self.deep, inputs), in_precision(self.deep, points)

    def _median_length_scale(self) -> None:
        with torch.no_grad():
            _, points = self._inputs(self.points)
            distances = torch.pdist(points)
            if len(distances) and distances.median() > 0:
                kernel: Any = self.kernel
                kernel.base_kernel.lengthscale = distances.median().item()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}placed"] = number(self.placed)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        placed = f"{prefix}placed"
        own = {key: value for key, value in state_dict.items() if key != placed}
        if placed in state_dict:
            self.placed = bool(count(state_dict, placed, most=1))
        elif strict:
            lists[0].append(placed)  # of missing keys
        super()._load_from_state_dict(own, prefix, local_metadata, strict, *lists)


def _centres(features: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    device = None if generator is None else generator.device
    order = torch.randperm(len(features), generator=generator, device=device)
    centres = features[order[:count].to(features.device)]
    for _ in range(20):
        nearest = torch.cdist(features, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, features)
        sizes = torch.bincount(nearest, minlength=count)[:, None]
        centres = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)
    return centres


def _dense(kernel: Any) -> Tensor:
    """A kernel matrix as a tensor, also where GPyTorch gives a lazy one."""
    dense: Tensor = kernel if isinstance(kernel, Tensor) else kernel.to_dense()
    return dense


def _default_kernel() -> nn.Module:
    try:
        from gpytorch.kernels import RBFKernel, ScaleKernel
    except ImportError as error:
        raise MissingPackageError(
            "the default kernel of a Gaussian process is GPyTorch's: "
            "pip install 'bayesagg_pyro[gp]', or pass a kernel of your own"
        ) from error
    kernel: nn.Module = ScaleKernel(RBFKernel())
    return kernel


def inverse_root(matrix: Tensor, tolerance: float) -> Tensor:
    """The symmetric K^(−1/2) on the range of K, and zero on its null space.

    No jitter is needed where inducing points are more than a kernel can tell apart: directions with
    an eigenvalue below `tolerance` times the largest carry nothing and are left out. Unlike a
    triangular or an eigenvector whitening it depends on K alone, on no order or sign.

    Args:
        matrix: K, [M, M], symmetric positive semi-definite; differentiable.
        tolerance: relative size of an eigenvalue that counts as zero.
    """
    root: Tensor = _InverseRoot.apply(0.5 * (matrix + matrix.mT), tolerance)[0]
    return root


class _InverseRoot(torch.autograd.Function):
    """K^(−1/2) with a derivative that divides by no gap of eigenvalues (Daleckii and Krein).

    For f(λ) = λ^(−1/2) and s = sqrt(λ) the divided differences (f_i − f_j)/(λ_i − λ_j) are
    −1/(s_i s_j (s_i + s_j)); between a kept and a dropped direction they are f_i/λ_i.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(matrix)
        kept = values > tolerance * values[-1:].clamp(min=torch.finfo(values.dtype).tiny)
        s = torch.where(kept, values, 1.0).sqrt()
        inverse = torch.where(kept, s.reciprocal(), 0.0)
        return (vectors * inverse) @ vectors.mT, vectors, s, kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, vectors, s, kept = output
        ctx.mark_non_differentiable(vectors, s, kept)
        ctx.save_for_backward(vectors, s, kept)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        vectors, s, kept = ctx.saved_tensors
        gradient = 0.5 * (gradients[0] + gradients[0].mT)
        both = -(s[:, None] * s * (s[:, None] + s)).reciprocal()
        one = torch.where(kept[:, None], s[:, None], s).pow(-3)
        pair = torch.where(kept[:, None] & kept, both, torch.where(kept[:, None] ^ kept, one, 0.0))
        return vectors @ (pair * (vectors.mT @ gradient @ vectors)) @ vectors.mT, None
