"""A small soft actor-critic whose actions are weights of tasks."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_LOG_DEVIATION = (-20.0, 2.0)


class SoftActorCritic:
    """Learns a policy from states (losses) to actions (weights that sum to K).

    The policy draws logits u ~ N(μ(s), diag σ(s)²) and acts with K softmax(u); its entropy is that
    of u. Two critics, slow copies of them as targets, and a temperature that holds the entropy at
    −K, as in Haarnoja et al., Soft Actor-Critic Algorithms and Applications, 2018.

    Args:
        tasks: K.
        rate: Adam's, for policy, critics and temperature.
        capacity: Transitions kept; the oldest go first.
        batch_size: Transitions per update.
        hidden: Width of the two hidden layers of each network.
        discount: γ.
        smoothing: Share of the critics that their targets take over at each update.
        temperature: The first one.
        generator: Randomness, on the CPU.
        device: Where to compute.
    """

    def __init__(
        self,
        tasks: int,
        *,
        rate: float = 3e-4,
        capacity: int = 10_000,
        batch_size: int = 256,
        hidden: int = 128,
        discount: float = 0.99,
        smoothing: float = 0.005,
        temperature: float = 0.2,
        generator: torch.Generator,
        device: torch.device,
    ) -> None:
        self.tasks, self.capacity, self.batch_size = tasks, capacity, batch_size
        self.discount, self.smoothing = discount, smoothing
        self.generator, self.device = generator, device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**63 - 1, (), generator=generator)))
            self.actor = _network(tasks, hidden, 2 * tasks).to(device)
            self.critics = nn.ModuleList([_network(2 * tasks, hidden, 1) for _ in range(2)]).to(
                device
            )
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_temperature = torch.full(
            (), math.log(temperature), device=device, requires_grad=True
        )
        trained = {
            "actor": self.actor.parameters(),
            "critics": self.critics.parameters(),
            "temperature": [self.log_temperature],
        }
        self.optimizers = {name: torch.optim.Adam(p, lr=rate) for name, p in trained.items()}
        # One row per transition: state, action, reward, next state.
        self._memory = torch.zeros(capacity, 3 * tasks + 1, device=device)
        self._remembered = 0

    @torch.no_grad()
    def act(self, state: Tensor) -> Tensor:
        """Weights ``[K]`` drawn for a state ``[K]``."""
        return self._draw(state)[0]

    def remember(self, state: Tensor, action: Tensor, reward: Tensor, following: Tensor) -> None:
        """Keep one transition."""
        row = torch.cat([state, action, reward.reshape(1), following])
        self._memory[self._remembered % self.capacity] = row
        self._remembered += 1

    def learn(self, updates: int) -> None:
        """So many updates, each on a fresh batch of what is remembered.

        Both number and size grow with the memory, from half to all of what was asked for.
        """
        size = min(self._remembered, self.capacity)
        if not size:
            return
        share = (1 + size / self.capacity) / 2
        for _ in range(max(1, int(updates * share))):
            count = max(1, int(self.batch_size * share))
            rows = torch.randint(size, (count,), generator=self.generator).to(self.device)
            self._update(self._memory[rows])

    def state_dict(self) -> dict[str, Any]:
        """Networks, optimisers and memory; the generator belongs to the caller."""
        return {
            "actor": self.actor.state_dict(),
            "critics": self.critics.state_dict(),
            "targets": self.targets.state_dict(),
            "log_temperature": self.log_temperature.detach(),
            "optimizers": {name: opt.state_dict() for name, opt in self.optimizers.items()},
            "memory": self._memory[: self._remembered],
            "remembered": self._remembered,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self.actor.load_state_dict(state["actor"])
        self.critics.load_state_dict(state["critics"])
        self.targets.load_state_dict(state["targets"])
        with torch.no_grad():
            self.log_temperature.copy_(state["log_temperature"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(copy.deepcopy(state["optimizers"][name]))
        self._memory[: len(state["memory"])] = state["memory"].to(self.device)
        self._remembered = state["remembered"]

    def _draw(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """An action, and the log density of its logits, ``[...]``."""
        mean, log_deviation = self.actor(state).chunk(2, -1)
        log_deviation = log_deviation.clamp(*_LOG_DEVIATION)
        noise = torch.randn(mean.shape, generator=self.generator).to(mean)
        logits = mean + log_deviation.exp() * noise
        density = -noise.square() / 2 - log_deviation - math.log(2 * math.pi) / 2
        return self.tasks * logits.softmax(-1), density.sum(-1)

    def _values(self, critics: nn.ModuleList, state: Tensor, action: Tensor) -> Tensor:
        """``[2, batch]``."""
        both = torch.cat([state, action], -1)
        return torch.stack([critic(both).squeeze(-1) for critic in critics])

    def _update(self, rows: Tensor) -> None:
        k = self.tasks
        state, action, reward, following = rows.split([k, k, 1, k], -1)
        temperature = self.log_temperature.detach().exp()
        with torch.no_grad():
            next_action, density = self._draw(following)
            value = self._values(self.targets, following, next_action).amin(0)
            target = reward.squeeze(-1) + self.discount * (value - temperature * density)
        values = self._values(self.critics, state, action)
        self._step("critics", functional.mse_loss(values, target.expand_as(values)) * 2)
        chosen, density = self._draw(state)
        self.critics.requires_grad_(False)
        value = self._values(self.critics, state, chosen).amin(0)
        self.critics.requires_grad_(True)
        self._step("actor", (temperature * density - value).mean())
        surplus = (density.detach() - k).mean()  # how far the entropy is below its target, −K
        self._step("temperature", -self.log_temperature * surplus)
        with torch.no_grad():
            for slow, fast in zip(
                self.targets.parameters(), self.critics.parameters(), strict=True
            ):
                slow.lerp_(fast, self.smoothing)

    def _step(self, name: str, loss: Tensor) -> None:
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _network(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )
