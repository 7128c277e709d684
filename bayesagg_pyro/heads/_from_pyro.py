"""Any Pyro model of features and targets as a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NoReturn

import pyro
import torch
from pyro.distributions import MaskedDistribution
from torch import Tensor, nn

from bayesagg_pyro.errors import SettingError, ShapeError
from bayesagg_pyro.heads._batches import check_batches
from bayesagg_pyro.heads._columns import Columns
from bayesagg_pyro.heads._input import Missing, like
from bayesagg_pyro.heads._pyro_model import prior_over_weights
from bayesagg_pyro.heads._shared import SharedWeights
from bayesagg_pyro.heads._trace import find_layout, run
from bayesagg_pyro.targets import RawTargets, Targets

Kind = Literal["real", "binary", "class"]


class FromPyro(SharedWeights):
    """Any Pyro model as a head: `def model(features, targets=None)` with an observed site.

    The model is traced once to find its sites. All latents together are functions of one weight
    vector w in R^P that is standard normal under the model's own priors (the non-centred
    parametrisation: z = T(w); hierarchies included). So `priors.isotropic(head, 1.0)` is the
    model's own prior exactly, another variance widens or narrows it, and priors over time take its
    place as they do for every head. The loss is −log p(y | h, w) per example and task.

    Inference needs `negative_log_probs` only (`inference.log_joint`): NUTS, HMC and Variational
    take it as it is; `Laplace` and `TaylorGGN` expand it by automatic differentiation, with the
    Hessian in place of a GGN. Gradients in the features are sampled. Write the model for one draw
    of its latents: many are run at once by `torch.func.vmap`, so values may not decide its course.

    Args:
        model: takes features [B, d] and targets [B, tasks] ([B] for one task) or None. Observed
            sites have a log-density per example ([B]: one task) or [B, tasks]; tasks follow the
            order of the sites. An `nn.Module` may hold parameters: they are point estimates.
        in_features: d.
        tasks: T.
        target_kind: "real" (any number), "binary" (0, 1), or "class" (class indices; one task).
        missing: "nan" reads a NaN target as not observed.
        name: prefix of the Pyro sites of `model`; the user's own names stay inside.

    Raises:
        SettingError: if no site is observed, its distribution is not of the labels that
            `target_kind` says, a latent is discrete, local to an example or of a prior that is no
            known map of a standard normal, examples depend on each other, the number of observed
            tasks is not T, or the model cannot be run in a batch. Likewise if a subclass overrides
            what the model itself says.

    Example:
        >>> import pyro, pyro.distributions as dist, torch
        >>> from bayesagg_pyro import heads
        >>> def model(features, targets=None):
        ...     weight = pyro.sample("weight", dist.Normal(torch.zeros(8), 1.0).to_event(1))
        ...     scale = pyro.sample("scale", dist.HalfNormal(1.0))
        ...     with pyro.plate("examples", len(features)):
        ...         pyro.sample("y", dist.StudentT(4.0, features @ weight, scale), obs=targets)
        >>> heads.FromPyro(model, 8).sites
        {'weight': slice(0, 8, None), 'scale': slice(8, 9, None)}
    """

    def __init__(
        self,
        model: Callable[..., Any],
        in_features: int,
        tasks: int = 1,
        *,
        target_kind: Kind = "real",
        prior_variance: float = 1.0,
        missing: Missing = "error",
        name: str | None = None,
    ) -> None:
        super().__init__(
            in_features, tasks, prior_variance=prior_variance, missing=missing, name=name
        )
        ignored = set(self.changes(FromPyro)) - {"losses", "negative_log_probs"}
        if ignored:
            raise SettingError(
                f"head {self.site!r}: {type(self).__name__} overrides {sorted(ignored)}, which a "
                "Pyro model says by itself; change the model, or override negative_log_probs"
            )
        if target_kind not in ("real", "binary", "class"):
            raise SettingError(f'target_kind is "real", "binary" or "class", not {target_kind!r}')
        if target_kind == "class" and (tasks > 1 or missing == "nan"):
            raise SettingError("class indices are for one task, and have no NaN")
        self.target_kind: Kind = target_kind  # type: ignore[misc]
        self.user_model = model
        owner = f"head {self.site!r}"
        sizes = (tasks + 2, tasks + 3)
        self.layout = find_layout(model, self._probe, sizes, owner)
        found = sum(self.layout.observed.values())
        if found != tasks:
            raise SettingError(
                f"{owner}: the observed sites {dict(self.layout.observed)} make {found} tasks, not "
                f"{tasks}; set tasks={found}"
            )
        self.weight = nn.Parameter(0.1 * torch.randn(1, self.layout.size))
        self._classes = self._count_classes()
        check_batches(self, *self._probe(tasks + 2))

    def _count_classes(self) -> int:
        """How many labels there are; 0 for numbers."""
        if self.target_kind == "real":
            return 0
        with torch.no_grad():
            laws = self.likelihood_at(self._probe(self.tasks + 2)[0], self.weight[0])
        binary = self.target_kind == "binary"
        if laws.are_of_two_labels() if binary else hasattr(laws.parts[0], "logits"):
            return 2 if binary else laws.logits.shape[-1]
        needed = "0 and 1, such as Bernoulli" if binary else "classes, such as Categorical"
        raise SettingError(
            f"head {self.site!r}: {self.target_kind} targets need distributions of {needed}, not "
            f"{', '.join(type(law).__name__ for law in laws.parts)}; set target_kind"
        )

    @property
    def support_description(self) -> str:
        """What labels must be, for messages; empty for numbers, which a model may transform."""
        return f"{self.target_kind} targets are 0 to {self._classes - 1}" if self._classes else ""

    def supports(self, values: Tensor) -> Tensor:
        """Which values are labels; for numbers, which are finite."""
        if not self._classes:
            return values.isfinite()
        return (values >= 0) & (values < self._classes) & (values == values.long())

    def _make_weight(self, size: int) -> None:
        """Do nothing: the weight is made once the model has been traced."""

    @property
    def sites(self) -> dict[str, slice]:
        """The weights of each latent site of the model."""
        return dict(self.layout.latents)

    @property
    def has_own_parameters(self) -> bool:
        """Whether the model is a module with parameters to learn."""
        model = self.user_model
        return isinstance(model, nn.Module) and any(p.requires_grad for p in model.parameters())

    def numbers_per_draw(self, examples: int) -> int:
        """Entries of the largest temporary that the gradients at one draw take (a guess)."""
        return self.tasks * max(examples * max(self.in_features, self.weight_size), 1)

    # -- what the model says ---------------------------------------------------------------------

    def losses(self, features: Tensor, targets: Targets, weight: Tensor | None = None) -> Tensor:
        """−log p(y | h, w), [..., B, tasks]."""
        return self.negative_log_probs(features, targets, weight)

    def negative_log_probs(
        self, features: Tensor, targets: Targets, weight: Tensor | None = None
    ) -> Tensor:
        """−log p(y | h, w) of every example and task, at the point estimate or weights [..., 1, P].

        Where a target is missing the value is of no meaning, but finite and so are its derivatives.
        """
        weight = self.point() if weight is None else weight
        values = _filled(like(targets.values, weight), targets.mask)

        def one(h: Tensor, w: Tensor) -> Tensor:
            return self._negative_log_probs(h, values, w)

        return self._at(one, features, weight)

    def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
        """Means of the targets given w, [..., B, tasks]; class logits [..., B, C] for classes."""
        weight = self.point() if weight is None else weight
        return self._at(self._means, features, weight)

    def latents(self, weight: Tensor, features: Tensor) -> dict[str, Tensor]:
        """The latent sites' values, [..., *site], at weights [..., 1, P], by the model's names.

        Args:
            weight: [..., 1, P]: one vector, or draws from a posterior.
            features: [B, d], with which to run the model.

        Raises:
            ShapeError: for weights of another shape, such as draws [S, P].
        """
        if weight.shape[-2:] != (1, self.weight_size):
            raise ShapeError(
                f"head {self.site!r}: the weight has shape {[*weight.shape]}, which is no [..., 1, "
                f"{self.weight_size}]; pass draws [S, P] as draws[:, None]"
            )

        def at(w: Tensor) -> dict[str, Tensor]:
            trace: Any = pyro.poutine.trace(self.user_model)
            run(trace, self.layout, w, features.to(w.dtype), None)
            return {name: trace.trace.nodes[name]["value"] for name in self.layout.latents}

        if weight.ndim == 2:
            return at(weight[0])
        found = torch.func.vmap(at)(weight.reshape(-1, self.weight_size))
        return {name: x.reshape(*weight.shape[:-2], *x.shape[1:]) for name, x in found.items()}

    def likelihood(self, outputs: Tensor) -> NoReturn:
        """A model's likelihood takes more than outputs: see `likelihood_at`."""
        raise NotImplementedError("use likelihood_at(features, weight)")

    def likelihood_at(self, features: Tensor, weight: Tensor) -> Columns:
        """p(y | h, w) of the observed sites side by side, batch shape [B, tasks], without masks.

        Args:
            features: [B, d].
            weight: [P], one draw.
        """
        seen = run(self.user_model, self.layout, weight, features.to(weight.dtype), None)
        laws = [site["fn"] for site in seen.values()]
        return Columns([x.base_dist if isinstance(x, MaskedDistribution) else x for x in laws])

    def model(
        self, features: Tensor, targets: RawTargets | None = None, *, prior: Any = None
    ) -> Tensor:
        """The head as a Pyro model of its weights: site `<name>.weight`, targets as a factor.

        Args:
            features: [B, d].
            targets: [B, tasks] (or (values, mask)); None draws them.
            prior: a distribution over weights of batch shape [1]; N(0, prior_variance · I) if None.

        Returns:
            The targets, [B, tasks].
        """
        prior = prior_over_weights(self, prior, features)
        with pyro.plate(f"{self.site}.weights", 1, dim=-1):
            weight = pyro.sample(f"{self.site}.weight", prior)
        if weight.ndim > 2:  # drawn in parallel: [S, 1, 1, P]
            weight = weight.squeeze(-3)
        if targets is None:
            draws = weight.reshape(-1, self.weight_size)
            drawn = torch.stack([self._draw(features, w) for w in draws])
            drawn = drawn.reshape(*weight.shape[:-2], len(features), self.tasks)
            examples = pyro.plate(f"{self.site}.examples", len(features), dim=-2)
            with examples, pyro.plate(f"{self.site}.tasks", self.tasks, dim=-1):
                pyro.deterministic(f"{self.site}.targets", drawn)
            return drawn
        observed = self.parse_targets(targets, len(features))
        nll = self.negative_log_probs(features, observed, weight)
        factor = observed.factor(nll.dtype)
        total = nll if factor is None else torch.where(factor > 0, nll * factor, 0.0)
        pyro.factor(f"{self.site}.targets", -total.sum((-2, -1)))
        return observed.values

    # -- running it ------------------------------------------------------------------------------

    def _at(
        self, function: Callable[[Tensor, Tensor], Tensor], features: Tensor, weight: Tensor
    ) -> Tensor:
        """The function of features and weights [P] at weights [..., 1, P]."""
        with torch.autocast(features.device.type, enabled=False):  # heads stay exact
            return self._at_draws(function, features, weight, features.numel() * self.tasks)

    def _negative_log_probs(self, features: Tensor, values: Tensor, weight: Tensor) -> Tensor:
        seen = run(self.user_model, self.layout, weight, features, self._as_taken(values))
        parts = []
        for name, columns in self.layout.observed.items():
            site = seen[name]
            log_prob = site["fn"].log_prob(site["value"])
            if site["mask"] is not None:
                log_prob = torch.where(torch.as_tensor(site["mask"]), log_prob, 0.0)
            parts.append((log_prob * site["scale"]).reshape(len(features), columns))
        return -torch.cat(parts, -1)

    def _means(self, features: Tensor, weight: Tensor) -> Tensor:
        columns = self.likelihood_at(features, weight)
        return columns.logits if self.target_kind == "class" else columns.mean

    def _draw(self, features: Tensor, weight: Tensor) -> Tensor:
        seen = run(self.user_model, self.layout, weight, features, None, draw=True)
        parts = [
            seen[name]["value"].reshape(len(features), columns)
            for name, columns in self.layout.observed.items()
        ]
        return torch.cat(parts, -1)

    def _as_taken(self, values: Tensor) -> Tensor:
        return values[:, 0] if self.tasks == 1 else values

    def _probe(self, examples: int) -> tuple[Tensor, Tensor]:
        """Features and targets of some examples, to look at the model with."""
        count = examples * self.in_features
        features = (0.7 * torch.arange(count)).sin()
        targets = torch.ones(examples, self.tasks)
        if self.target_kind == "class":
            targets = torch.zeros(examples, self.tasks, dtype=torch.long)
        return features.reshape(examples, self.in_features), self._as_taken(targets)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, sites={list(self.layout.latents)}"


def _filled(values: Tensor, mask: Tensor | None) -> Tensor:
    """Missing targets replaced by an observed one of their task, which is in the support."""
    if mask is None:
        return values
    row = mask.to(torch.uint8).argmax(0, keepdim=True)
    return torch.where(mask, values, values.gather(0, row))
