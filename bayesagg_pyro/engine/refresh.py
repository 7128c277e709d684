"""What the engine holds between steps for each head: a posterior, and a stream of randomness."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesagg_pyro._state import count, named, number, part
from bayesagg_pyro.errors import StateError
from bayesagg_pyro.heads import Gaussian, Head
from bayesagg_pyro.inference import Scheme
from bayesagg_pyro.posteriors import Posterior, where
from bayesagg_pyro.targets import RawTargets, Targets

__all__ = ["Held", "Refresher", "streams"]


@dataclass(frozen=True)
class Held:
    """A posterior in use.

    Attributes:
        posterior: the distribution.
        age: steps since it was inferred; 0 where this step did that.
        fresh: whether it is new in this step.
    """

    posterior: Posterior
    age: int = 0
    fresh: bool = True


class Refresher:
    """Infers a head's posterior when its scheme's `refresh` says so, and holds it in between.

    Args:
        head: the head.
        scheme: its scheme.
        generator: the head's stream of randomness; None leaves schemes to torch's global one.
    """

    def __init__(self, head: Head, scheme: Scheme, generator: torch.Generator | None) -> None:
        self.head = head
        self.scheme = scheme
        self.generator = generator
        self.held: Held | None = None
        self.due = True  # whether there is a new prior since the last step

    @property
    def start(self) -> Posterior | None:
        """The posterior held, which schemes that iterate start from."""
        return None if self.held is None else self.held.posterior

    @property
    def learns(self) -> bool:
        """Whether the head's weights learn by gradient after the warm-up, and predict.

        Gaussian heads predict with the posterior mean instead, unless their scheme expands around
        the point.
        """
        return self.scheme.needs_point or not isinstance(self.head, Gaussian)

    def step(
        self, features: Tensor, targets: Targets, prior: Posterior, full: Posterior | None
    ) -> Held:
        """The posterior for this step; nothing changes before `accept`.

        Args:
            features: [B, d].
            targets: [B, tasks].
            prior: of this step.
            full: the posterior of the last epoch's full data, None before there is one.

        Raises:
            StateError: if that one is due and not there.
        """
        held, refresh = self.held, self.scheme.refresh
        if refresh == "epoch":
            if full is None:
                raise StateError(
                    f"head {self.head.site!r}: {self.scheme!r} takes the posterior of the last "
                    "epoch's data, and there is none yet; run the first epoch's batches through "
                    "backward() or collect() and call update_prior()"
                )
            if held is None or self.due:
                return Held(full)
            return Held(full, held.age + 1, False)
        every = 1 if refresh == "step" else int(refresh)
        if held is not None and held.age + 1 < every:
            return Held(held.posterior, held.age + 1, False)
        return Held(self.infer(features, targets, prior))

    def infer(self, features: Tensor, targets: RawTargets, prior: Posterior) -> Posterior:
        """By the scheme, from the posterior held where it iterates."""
        return self.scheme.infer(
            self.head, features, targets, prior, start=self.start, generator=self.generator
        )

    def accept(self, held: Held, prior: Posterior, valid: Tensor | None = None) -> None:
        """Hold this step's posterior.

        Args:
            held: the posterior.
            prior: of the step.
            valid: the flag of deferred validation; where it is not set, and later steps would use
                the posterior, the one held before stays, or the prior if there was none.
        """
        lasting = self.scheme.warm_starts or self.scheme.refresh not in ("step", "epoch")
        if valid is not None and lasting and held.fresh:
            before = prior if self.held is None else self.held.posterior
            held = replace(held, posterior=where(valid, held.posterior, before))
        self.held, self.due = held, False

    def to(self, device: torch.device) -> None:
        """Move the posterior held."""
        if self.held is not None:
            moved = self.held.posterior.to(device=device)
            self.held = Held(moved, self.held.age, self.held.fresh)

    def state_dict(self) -> dict[str, Tensor]:
        """The posterior held, how it came about, and its age."""
        state = {"due": number(self.due)}
        if self.held is not None:
            state["age"] = number(self.held.age)
            state |= named("posterior", self.held.posterior.state_dict())
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` saved.

        Raises:
            ShapeError: if the posterior is over the weights of another head.
            BayesAggError: if it is no sound state.
        """
        held, saved = None, part(state, "posterior")
        if saved:
            posterior = Posterior.from_state_dict(saved, self.head.weight.device)
            self.head.check_weights(posterior, "saved posterior")
            held = Held(posterior, count(state, "age"), False)
        self.held, self.due = held, bool(count(state, "due", most=1))


def streams(
    generator: torch.Generator | None, names: list[str]
) -> dict[str, torch.Generator | None]:
    """One generator per name, on the given one's device: what a head draws depends on no other.

    Args:
        generator: gives one number; None gives None for every name.
        names: of the heads.
    """
    if generator is None:
        return dict.fromkeys(names)
    base = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    made: dict[str, torch.Generator | None] = {}
    for name in names:
        digest = hashlib.blake2b(f"{base}:{name}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "little") >> 1
        made[name] = torch.Generator(generator.device).manual_seed(seed)
    return made
