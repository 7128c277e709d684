"""Running a user's Pyro model with latents that are functions of a weight vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Unit
from pyro.poutine import runtime
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch import distributions as td

from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads._cumulative import log_upper_tail, upper_tail


@dataclass(frozen=True)
class Layout:
    """Where a model's latents lie in the weight vector, and which sites are its targets.

    Attributes:
        latents: {site: its slice of the weights}, in the order of the model.
        observed: {site: number of tasks}, likewise.
    """

    latents: Mapping[str, slice]
    observed: Mapping[str, int]

    @property
    def size(self) -> int:
        """P, the number of weights."""
        return sum(s.stop - s.start for s in self.latents.values())


class _Weights(Messenger):
    """Gives each latent its value, and notes the observed sites as they pass."""

    def __init__(self, layout: Layout, weight: Tensor, *, draw: bool) -> None:
        super().__init__()
        self._layout = layout
        self._weight = weight
        self._draw = draw
        self.seen: dict[str, Any] = {}

    def _pyro_sample(self, msg: Any) -> None:
        name, fn = msg["name"], msg["fn"]
        if name in self._layout.latents:
            w = self._weight[self._layout.latents[name]]
            msg["value"] = from_normal(fn, w.reshape(fn.shape()))
        elif name in self._layout.observed and msg["value"] is None:
            # No targets are given: the value stands in and is not looked at, unless drawn.
            msg["value"] = fn.sample() if self._draw else torch.zeros(fn.shape()).to(self._weight)

    def _pyro_param(self, msg: Any) -> None:
        """Parameters of a Pyro module are its own, and pass by the store."""
        if len(msg["args"]) > 1 and isinstance(msg["args"][1], nn.Parameter):
            msg["value"] = msg["args"][1]

    def _pyro_post_sample(self, msg: Any) -> None:
        if msg["name"] in self._layout.observed:
            self.seen[msg["name"]] = dict(msg)


def run(
    model: Callable[..., Any],
    layout: Layout,
    weight: Tensor,
    features: Tensor,
    targets: Tensor | None,
    *,
    draw: bool = False,
) -> dict[str, Any]:
    """The observed sites ({name: Pyro message}) of the model at weights [P].

    Args:
        model: takes (features, targets).
        layout: of the model.
        weight: [P].
        features: [B, d].
        targets: as the model takes them; None for none.
        draw: without targets, whether to draw them (else nothing random happens).
    """
    with _alone(), _Weights(layout, weight, draw=draw) as weights:
        model(features, targets)
    return weights.seen


@contextmanager
def _alone() -> Iterator[None]:
    """Keep the model apart from handlers and parameter stores outside it."""
    outer, dims = list(runtime._PYRO_STACK), runtime._DIM_ALLOCATOR._stack
    runtime._PYRO_STACK.clear()
    runtime._DIM_ALLOCATOR._stack = []
    try:
        with (
            pyro.get_param_store().scope(),
            pyro.settings.context(
                validate_distributions_pyro=False,
                validate_distributions_torch=False,
                validate_poutine=False,
            ),
        ):
            yield
    finally:
        runtime._PYRO_STACK[:] = outer
        runtime._DIM_ALLOCATOR._stack = dims


def find_layout(
    model: Callable[..., Any],
    probe: Callable[[int], tuple[Tensor, Tensor]],
    sizes: tuple[int, int],
    owner: str,
) -> Layout:
    """Trace the model on two batches of different sizes and read its sites.

    Args:
        model: takes (features, targets).
        probe: makes features and targets of so many examples.
        sizes: of the two batches, of which none is a number of tasks.
        owner: who speaks in errors.

    Raises:
        SettingError: naming the site and the remedy.
    """
    first, second = (_trace(model, *probe(size), owner) for size in sizes)
    sampled = [s for s in first.nodes.values() if s["type"] == "sample" and not _is_bookkeeping(s)]
    if not any(site["is_observed"] for site in sampled):
        raise SettingError(
            f"{owner}: no site of the model is observed: give the targets to one, as in "
            'pyro.sample("y", distribution, obs=targets)'
        )
    latents: dict[str, slice] = {}
    observed: dict[str, int] = {}
    start = 0
    for name, site in first.nodes.items():
        if site["type"] == "param" and not _belongs(site, model):
            raise SettingError(
                f"{owner}: {name!r} is a pyro.param, which lives in Pyro's global store; make it a "
                "latent (pyro.sample) or an nn.Parameter of a module that is the model"
            )
        if isinstance(site.get("fn"), Unit):
            raise SettingError(
                f"{owner}: {name!r} is a pyro.factor, which belongs to no example and no latent "
                "site; make it a part of the targets' distribution, or of a prior"
            )
        if poutine.util.site_is_subsample(site) and len(site["value"]) != site["fn"].size:
            raise SettingError(
                f"{owner}: the plate {name!r} is subsampled; leave subsample and subsample_size "
                "out: a head is given one batch at a time, and its priors count the examples"
            )
        if site["type"] != "sample" or _is_bookkeeping(site):
            continue
        if site["is_observed"]:
            observed[name] = _columns(owner, name, site, sizes[0])
            continue
        size = _latent_size(owner, name, site, second)
        latents[name] = slice(start, start + size)
        start += size
    if not latents:
        raise SettingError(f"{owner}: the model has no latent site, so there is nothing to infer")
    return Layout(latents, observed)


def _trace(model: Callable[..., Any], features: Tensor, targets: Tensor, owner: str) -> Any:
    found: Any
    devices = [features.device] if features.device.type == "cuda" else []
    with torch.random.fork_rng(devices), _alone(), torch.no_grad():
        torch.default_generator.manual_seed(0)  # torch.manual_seed would reset every GPU's, too
        try:
            found = poutine.trace(model).get_trace(features, targets)
            for site in found.nodes.values():
                if site["type"] == "sample" and not _is_bookkeeping(site):
                    site["log_prob"] = site["fn"].log_prob(site["value"])
        except (RuntimeError, ValueError) as error:  # of shapes, most of all
            shapes = f"{list(features.shape)} and targets of shape {list(targets.shape)}"
            raise SettingError(
                f"{owner}: the model fails on features of shape {shapes}; are in_features and "
                f"tasks those of the model? {error}"
            ) from error
    return found


def _belongs(site: Any, model: Any) -> bool:
    """Whether a parameter is one of the module that is the model (which the head then holds)."""
    own = model.parameters() if isinstance(model, nn.Module) else ()
    return any(site["value"] is parameter for parameter in own)


def _is_bookkeeping(site: Any) -> bool:
    """Plates, and values that `pyro.deterministic` records."""
    return bool(
        poutine.util.site_is_subsample(site)
        or site["infer"].get("_deterministic")
        or site["infer"].get("is_auxiliary")
    )


def _columns(owner: str, name: str, site: Any, examples: int) -> int:
    shape = list(site["log_prob"].shape)
    if shape == [examples]:
        return 1
    if len(shape) == 2 and shape[0] == examples:
        return int(shape[1])
    raise SettingError(
        f"{owner}: the log-density of the observed site {name!r} has shape {shape} for {examples} "
        "examples; it must be one number per example, or [examples, tasks] (tasks along the last "
        "dimension, without to_event; for one task the model gets targets of shape [examples])"
    )


def _latent_size(owner: str, name: str, site: Any, other: Any) -> int:
    fn, shape = site["fn"], site["value"].shape
    if fn.support.is_discrete:
        raise SettingError(
            f"{owner}: the latent site {name!r} is discrete ({type(fn).__name__}); sum it out in "
            "the likelihood (a mixture distribution), or observe it"
        )
    if name not in other.nodes or other.nodes[name]["value"].shape != shape:
        raise SettingError(
            f"{owner}: the latent site {name!r} has a value per example; integrate it out in the "
            "likelihood, for a head's weights are common to all examples"
        )
    if site["mask"] is not None or site["scale"] != 1:
        raise SettingError(
            f"{owner}: the prior of the latent site {name!r} is masked or scaled; leave the "
            "handler out, and widen the prior's distribution instead"
        )
    try:
        from_normal(fn, torch.zeros(fn.shape(), dtype=site["value"].dtype))
    except NotImplementedError:
        kind = type(fn.base_dist if isinstance(fn, td.Independent) else fn).__name__
        raise SettingError(
            f"{owner}: the prior of the latent site {name!r} ({kind}) is not known as a map of "
            "a standard normal; use Normal, MultivariateNormal, LogNormal, HalfNormal, HalfCauchy, "
            "Exponential, Uniform, another distribution with icdf, or a transformed one"
        ) from None
    return int(shape.numel())


def from_normal(fn: Any, w: Tensor) -> Any:
    """T(w) with T(w) ~ fn where w is standard normal; smooth, and one-to-one.

    Args:
        fn: a torch or Pyro distribution.
        w: of `fn.shape()`.

    Raises:
        NotImplementedError: if no such map is known for the distribution.
    """
    if isinstance(fn, td.Independent):
        return from_normal(fn.base_dist, w)
    if isinstance(fn, td.Normal):
        return fn.loc + fn.scale * w
    if isinstance(fn, td.MultivariateNormal | td.LowRankMultivariateNormal):
        return fn.loc + (fn.scale_tril @ w[..., None])[..., 0]
    if isinstance(fn, td.HalfNormal):  # tails by the complement, which keeps its digits
        return -fn.scale * torch.special.ndtri(0.5 * upper_tail(w))
    if isinstance(fn, td.HalfCauchy):
        return fn.scale / torch.tan(0.5 * math.pi * upper_tail(w))
    if isinstance(fn, td.Exponential):
        return -log_upper_tail(w) / fn.rate
    if isinstance(fn, td.TransformedDistribution):
        base: Any = fn.base_dist
        if base.batch_shape + base.event_shape != w.shape or not all(
            t.bijective for t in fn.transforms
        ):
            raise NotImplementedError
        x = from_normal(base, w)
        for transform in fn.transforms:
            x = transform(x)
        return x
    # Where Φ(w) rounds to 0 or 1 the quantile would be infinite.
    eps = torch.finfo(w.dtype).eps
    return fn.icdf(torch.special.ndtr(w).clamp(eps, 1 - eps))
