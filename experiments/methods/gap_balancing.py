"""Improvable gap balancing with reinforcement learning (IGBv2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesagg_pyro.heads import Head
from experiments.errors import SettingsError
from experiments.methods.actor_critic import SoftActorCritic
from experiments.methods.base import Needs
from experiments.methods.weighted import (
    SeededOptions,
    WeightedLosses,
    balanced,
    log_losses,
    new_generator,
    shared_out,
)
from experiments.settings import require, require_numbers


@dataclass(frozen=True)
class GapBalancingOptions(SeededOptions):
    """Options of IGBv2.

    Attributes:
        seed: Of everything that it draws; None follows the seed of the run.
        base_epoch: The epoch (from 1) whose mean losses are the base losses.
        learn_after: Epochs before the agent begins to learn.
        act_after: Epochs of random weights before it begins to act.
        every: Steps between two rounds of learning, and updates in a round at full memory.
        rate: Adam's learning rate for the agent.
        capacity: Transitions that it remembers.
        batch_size: Transitions in an update at full memory.
    """

    base_epoch: int = 2
    learn_after: int = 3
    act_after: int = 5
    every: int = 50
    rate: float = 3e-4
    capacity: int = 10_000
    batch_size: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "base_epoch", "every", "capacity", "batch_size", least=1)
        require(
            self.learn_after >= self.base_epoch,
            "learn_after",
            self.learn_after,
            "rewards need base losses: give at least base_epoch",
        )
        require(
            self.act_after >= self.learn_after,
            "act_after",
            self.act_after,
            "an agent that has not learned acts at random: give at least learn_after",
        )
        require(self.rate > 0, "rate", self.rate, "give a positive number, such as 3e-4")

    def check(self, epochs: int) -> None:
        """There must be at least one epoch in which the agent acts."""
        if self.act_after >= epochs:
            raise SettingsError(
                f"igbv2: act_after = {self.act_after} leaves no epoch to the agent in a run of "
                f"{epochs}: raise --epochs, or lower act_after, learn_after and base_epoch"
            )


class GapBalancing(WeightedLosses):
    """Descend Σ w_k log ℓ_k with weights that a soft actor-critic chooses for each batch.

    State: the batch's losses over the base losses. Action: weights K softmax(u). Reward: the
    smallest improvement of any task from this batch to the next, (ℓ_k(t) − ℓ_k(t + 1)) / base_k,
    so that the agent serves the task that gains least. Weights are random, as in RLW, until the
    agent begins to act.

    Source: Dai et al., Improvable Gap Balancing for Multi-Task Learning, UAI 2023 (IGBv2). State,
    action, reward, the schedule of learning and the sizes of networks and memory follow that paper
    and its published experiments. Two choices are ours: losses are divided by the base losses in
    the state, which makes the method independent of their units, and the agent's entropy is that
    of the logits u, whose density is exact.
    """

    name, title = "igbv2", "IGBv2"
    needs = frozenset({Needs.EPOCHS})
    options_type = GapBalancingOptions

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: GapBalancingOptions
    ) -> None:
        super().__init__(backbone, heads, options)
        self.settings = options
        self.generator = self.kept["generator"] = new_generator(options.seed)
        self.agent = self.kept["agent"] = SoftActorCritic(
            len(self.tasks),
            rate=options.rate,
            capacity=options.capacity,
            batch_size=options.batch_size,
            generator=self.generator,
            device=next(iter(heads.values())).weight.device,
        )
        self.base: Tensor | None = None
        self._epoch = 0
        self._steps = 0
        self._sum: Tensor | None = None
        self._batches = torch.zeros(len(self.tasks))
        self._latest: Tensor | None = None
        self._last: tuple[Tensor, Tensor] | None = None

    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """Σ w_k log ℓ_k; lets the agent see what its last action did, and learn when it is time.

        Of a task without targets the agent sees the loss it had last, which has not improved: the
        reward is that of the others.
        """
        seen = losses.detach()
        if present is not None:
            latest = seen if self._latest is None else self._latest
            seen = torch.where(present, seen, latest)
        self._latest = seen
        state = None if self.base is None else (seen / self.base).float()
        if state is not None:
            if self._last is not None:
                before, action = self._last
                gain = before - state
                if present is not None:
                    gain = torch.where(present | ~present.any(), gain, torch.inf)
                self.agent.remember(before, action, gain.amin(), state)
            if self._epoch >= self.settings.learn_after and self._steps % self.settings.every == 0:
                self.agent.learn(self.settings.every)
        if state is not None and self._epoch >= self.settings.act_after:
            weights = self.agent.act(state)
        else:
            drawn = torch.randn(len(losses), generator=self.generator)
            weights = balanced(drawn, None).to(seen.device)
        if state is not None:
            self._last = (state, weights.float())
        self._sum = losses.detach() + (0.0 if self._sum is None else self._sum)
        self._batches = self._batches.to(seen.device) + (1 if present is None else present)
        self._steps += 1
        if present is not None:
            weights = shared_out(weights, present)
        return (weights.to(losses) * log_losses(losses, self.tasks)).sum()

    def start_epoch(self, epoch: int) -> None:
        """Remember which it is."""
        self._epoch = epoch

    def end_epoch(self, epoch: int) -> None:
        """Fix the base losses after their epoch."""
        if self._sum is not None and epoch + 1 == self.settings.base_epoch:
            mean = self._sum / self._batches
            mean = torch.where(self._batches > 0, mean, mean.nanmean())  # no target all the epoch
            self.base = mean.clamp(min=torch.finfo(mean.dtype).tiny)
        self._sum, self._batches = None, torch.zeros(len(self.tasks))

    def phase(self, epoch: int) -> str:
        """``"random"`` or ``"agent"``."""
        return "random" if epoch < self.settings.act_after else "agent"

    def state_dict(self) -> dict[str, Any]:
        """State of the network, the agent and its draws, and the losses that it compares with."""
        return {
            **super().state_dict(),
            "base": self.base,
            "last": self._last,
            "latest": self._latest,
            "steps": self._steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        super().load_state_dict(state)
        place = self.agent.device
        self.base = None if state["base"] is None else state["base"].to(place)
        last = state["last"]
        self._last = None if last is None else (last[0].to(place), last[1].to(place))
        latest = state["latest"]
        self._latest = None if latest is None else latest.to(place)
        self._steps = state["steps"]
        self._sum, self._batches = None, torch.zeros(len(self.tasks))
