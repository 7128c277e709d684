"""A non-linear head: any module of the features, with a posterior over all its parameters."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from bayesagg_pyro.errors import SettingError, ShapeError
from bayesagg_pyro.heads._embedding import Body
from bayesagg_pyro.heads._head import Head
from bayesagg_pyro.heads._input import TargetKind
from bayesagg_pyro.heads._module import call, check_module, in_precision, output_size, probe, widest
from bayesagg_pyro.heads._output_curvature import OutputCurvature
from bayesagg_pyro.heads._shared import SharedWeights
from bayesagg_pyro.targets import Targets


class Network(SharedWeights):
    """T tasks whose outputs are a network of the features, with a posterior over its parameters.

    `TaylorGGN` and `Laplace` expand the likelihood through the generalised Gauss-Newton matrix
    Σ Jᵀ H J (Immer et al., 2021, https://arxiv.org/abs/2008.08304) of all parameters,
    `structure="full"` (P² numbers) or "diag". Gradients in the features are sampled. The parameters
    are learned by the gradient of the loss, as a point estimate.

    For a posterior over the last layer alone, which has exact moments, see `last_layer`.

    Args:
        module: maps [B, d] to [B, tasks · outputs of one task], one example at a time: no batch
            normalisation, no dropout. Parameters that need no gradient stay as they are.
        likelihood: a head of d features and T tasks; its likelihood, loss, handling of missing
            targets and name are taken, its weights are not.
        prior_variance: variance of the default prior of `model`; the likelihood's if None.

    Raises:
        SettingError: if the module mixes examples, draws random numbers or has nothing to infer.
        ShapeError: if its outputs are not as many as the likelihood needs.

    Example:
        >>> import torch
        >>> from bayesagg_pyro import heads
        >>> module = torch.nn.Sequential(
        ...     torch.nn.Linear(8, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)
        ... )
        >>> heads.Network(module, heads.Gaussian(8, tasks=3)).weight_size
        51
    """

    def __init__(
        self, module: nn.Module, likelihood: Head, *, prior_variance: float | None = None
    ) -> None:
        likelihood = _likelihood_of(likelihood)
        super().__init__(
            likelihood.in_features,
            likelihood.tasks,
            prior_variance=prior_variance or likelihood.prior_variance,
            missing=likelihood.missing,
            name=likelihood.name,
        )
        self.target_kind: TargetKind = likelihood.target_kind  # type: ignore[misc]
        _check_outputs(module, likelihood)
        self.module = module
        self.observation = likelihood
        self._names = [name for name, p in module.named_parameters() if p.requires_grad]
        if not self._names:
            raise SettingError("no parameter of the module needs a gradient: nothing to infer")
        self._widest = widest(module, likelihood.in_features)

    @classmethod
    def last_layer(cls, module: nn.Module, likelihood: Head) -> Head:
        """The same network with a posterior over its last linear layer, per task.

        The layers below are a deterministic map φ, learned by the gradient of the loss under every
        scheme. Outputs are linear in the weights, so all schemes for linear heads work, Conjugate
        included, and gradient moments are exact: with g_φ = ∂ℓ/∂φ and J = ∂φ/∂h,
        E[g] = Jᵀ E[g_φ] and Cov[g] = Jᵀ Cov[g_φ] J.

        Args:
            module: maps [B, d] to [B, tasks · outputs of one task]; ends with a `torch.nn.Linear`.
            likelihood: a head of d features and T tasks, with a bias if the layer has one.

        Returns:
            The likelihood, embedded (`Head.embed`), with the layer's weights as point estimate.

        Raises:
            SettingError: if the module does not end with a linear layer, or the bias is missing.
            ShapeError: if its outputs are not as many as the likelihood needs.
        """
        _check_outputs(module, likelihood)
        _check_linear(likelihood)
        body, layer = _split(module, likelihood.in_features)
        if layer.bias is not None and not likelihood.bias:
            raise SettingError(
                f"the last layer has a bias, the {type(likelihood).__name__} likelihood has none; "
                "make it with bias=True, or the layer with bias=False"
            )
        head = likelihood.embed(Body(body, likelihood.in_features))
        with torch.no_grad():
            head.weight.zero_()
            head.weight[:, : layer.in_features] = layer.weight
            if layer.bias is not None:
                head.weight[:, -1] = layer.bias
        return head.to(layer.weight.device)

    # -- weights and outputs ---------------------------------------------------------------------

    def _make_weight(self, size: int) -> None:
        """The weights are the module's own parameters."""

    @property
    def weight(self) -> Tensor:  # type: ignore[override]  # made of the module's parameters
        """The parameters as one vector, [1, P], in the order of `module.parameters()`."""
        parameters = dict(self.module.named_parameters())
        return torch.cat([parameters[name].reshape(-1) for name in self._names])[None]

    @property
    def weight_size(self) -> int:
        """P, the number of parameters."""
        parameters = dict(self.module.named_parameters())
        return sum(parameters[name].numel() for name in self._names)

    def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
        """Outputs as the likelihood takes them, [..., B, tasks] (logits for Categorical).

        Args:
            features: [B, d].
            weight: [..., 1, P]; the module's own parameters if None.
        """
        with torch.autocast(features.device.type, enabled=False):  # heads stay exact
            if weight is None:
                dtype = next(self.module.parameters()).dtype
                return self.shaped(in_precision(self.module, features.to(dtype)))
            entries = len(features) * self._widest
            return self.shaped(self._at_draws(self.flat_outputs, features, weight, entries))

    def flat_outputs(self, features: Tensor, weight: Tensor) -> Tensor:
        """The module's own output at weights [P], [B, tasks · outputs of one task]."""
        own = dict(self.module.named_parameters())
        sizes = [own[name].numel() for name in self._names]
        parts = zip(self._names, weight.split(sizes), strict=True)
        return call(self.module, {name: part.view_as(own[name]) for name, part in parts}, features)

    def shaped(self, outputs: Tensor) -> Tensor:
        """The module's own output as the likelihood takes it."""
        each = self.observation.outputs_per_task
        return (
            outputs if each == 1 else self.observation.arranged(outputs.unflatten(-1, (-1, each)))
        )

    def numbers_per_draw(self, examples: int) -> int:
        """Entries of the largest temporary that the gradients at one draw take."""
        return max(self.tasks * examples * self._widest, self.weight_size)

    # -- the likelihood --------------------------------------------------------------------------

    def likelihood(self, outputs: Tensor) -> Any:
        """Taken from `observation`, the likelihood that was given."""
        return self.observation.likelihood(outputs)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of `observation`; where that is −log p, −log p of this head."""
        if self.observation.is_still(Head, "loss"):
            return self.negative_log_prob(outputs, targets)
        return self.observation.loss(outputs, targets)

    def standard_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """That of `observation`."""
        return self.observation.standard_loss(outputs, targets)

    def counted(self, outputs: Tensor, targets: Targets) -> Tensor:
        """Outputs, and harmless ones for examples that do not count, as `observation` has it."""
        return self.observation.counted(outputs, targets)

    def negative_log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−log p of `observation`, unless a subclass weighs targets otherwise."""
        if not self.is_still(Network, "weight"):
            return super().negative_log_prob(outputs, targets)
        return self.observation.negative_log_prob(outputs, targets)

    def output_curvature(
        self, outputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor | OutputCurvature]:
        """As the given one's, unless a subclass changes the likelihood."""
        if not self.is_still(Network, "likelihood", "weight"):
            return super().output_curvature(outputs, targets)
        return self.observation.output_curvature(outputs, targets)

    def target_weight(self, targets: Tensor) -> Tensor | None:
        """Taken from `observation`, the likelihood that was given."""
        return self.observation.target_weight(targets)

    @property
    def filler(self) -> float:
        """Taken from `observation`, the likelihood that was given."""
        return self.observation.filler

    @property
    def support_description(self) -> str:
        """Taken from `observation`, the likelihood that was given."""
        return self.observation.support_description

    def supports(self, values: Tensor) -> Tensor:
        """Taken from `observation`, the likelihood that was given."""
        return self.observation.supports(values)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, weights={self.weight_size}"


def _likelihood_of(head: Head) -> Head:
    """A copy of a head without its weights, of which an empty tensor keeps the device."""
    if not isinstance(head, Head) or isinstance(head, SharedWeights) or head.embedding is not None:
        raise SettingError(
            "the likelihood of a network is given by a plain head, such as heads.Bernoulli(d, "
            f"tasks=T), not by {type(head).__name__}"
        )
    _check_linear(head)
    likelihood = copy.deepcopy(head)
    likelihood.weight = nn.Parameter(head.weight.detach()[:, :0].clone(), requires_grad=False)
    return likelihood


def _check_linear(head: Head) -> None:
    """Refuse a likelihood that changes its own outputs: here the module makes them."""
    if not head.is_still(Head, "outputs", "design", "pointwise"):
        raise SettingError(
            f"head {head.site!r}: the likelihood of a network gets its outputs from the module, "
            f"not from the forward, design or sums of {type(head).__name__}; put those into the "
            "module, or give a head that leaves them as they are"
        )


def _check_outputs(module: nn.Module, likelihood: Head) -> None:
    check_module(module, likelihood.in_features)
    needed = likelihood.tasks * likelihood.outputs_per_task
    found = output_size(module, likelihood.in_features)
    if found != needed:
        raise ShapeError(
            f"the module gives {found} outputs for each example; {likelihood.tasks} tasks of "
            f"{type(likelihood).__name__} need {needed}"
        )


def _split(module: nn.Module, in_features: int) -> tuple[nn.Module, nn.Linear]:
    """A copy of the module without its last linear layer, and that layer."""
    body = copy.deepcopy(module)
    linear = [(n, part) for n, part in body.named_modules() if isinstance(part, nn.Linear)]
    if linear:
        name, layer = linear[-1]
        if not name:
            return nn.Identity(), layer
        parent, _, child = name.rpartition(".")
        setattr(body.get_submodule(parent), child, nn.Identity())
        x = probe(module, in_features, 3)
        with torch.no_grad():
            phi = in_precision(body, x)
            if phi.shape == (3, layer.in_features) and torch.allclose(
                in_precision(layer, phi), in_precision(module, x)
            ):
                return body, layer
    raise SettingError(
        "the module's output is not that of its last torch.nn.Linear; end it with one (and leave "
        "the link function to the likelihood), or give heads.Body(module, d) to Head.embed"
    )
