"""The posterior of training data whose features are computed now."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro._settings import integers
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.inference import Storage
from bayesagg_pyro.priors._data import Base, DataPolicy, Variance
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import CHECKED, Validity


class Fresh(DataPolicy):
    """Posterior of the batches given to `update_prior(batches=...)`, at their current features.

    Nothing is collected on the way, so the prior never mixes old networks with new ones; it costs
    forward passes at each update, and grows old from there as the network moves on:

        mtl.update_prior(batches=((backbone(x), {"y": y}) for x, y in loader))

    `update_prior` draws from the iterable under `torch.no_grad()`. Put layers that behave otherwise
    in training (dropout, batch normalisation) as the steps will use them.

    Args:
        examples: stop after so many with a target of the head; None goes through all. Their
            log-likelihood is not scaled up to the whole set: the prior of a part is wider by what
            is missing (`temperature` below 1 can make up for it).
        variance: γ of the base prior N(0, γ I), one number or one per task.
        base: makes another base prior, see `DataPolicy`.
        temperature: divides the data's log-likelihood; above 1 the prior is wider.
        leave_batch_out: whether a step's prior is freed of the step's own batch, see `DataPolicy`;
            needs all training examples in the prior, so `examples=None`.
        in_place: write each new prior into the tensors of the last.
        storage: how a scheme without sums keeps the examples until the posterior is made.

    Raises:
        SettingError: if examples is not positive, or set together with leave_batch_out; as
            `FullData` else.
    """

    def __init__(
        self,
        examples: int | None = None,
        *,
        variance: Variance = 1.0,
        base: Base | None = None,
        temperature: float = 1.0,
        leave_batch_out: bool = False,
        in_place: bool = False,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(
            variance,
            base=base,
            temperature=temperature,
            leave_batch_out=leave_batch_out,
            in_place=in_place,
            storage=storage,
        )
        integers(examples=1 if examples is None else examples)
        if examples is not None and leave_batch_out:
            raise SettingError(
                "leave_batch_out needs a prior that holds every training batch, but "
                f"examples={examples} may not; leave one of the two out"
            )
        self.examples = examples

    takes_batches = True
    remedy = "the batches given to update_prior held no example"

    def begin(self) -> None:
        super().begin()
        self._shown = 0

    def collect(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> None:
        """Leave out a training batch: the prior is made of fresh ones."""

    def restart(self) -> None:
        self._statistics = self._cleared(self._statistics)
        self._shown = 0

    def show(self, features: Tensor, targets: Targets, validity: Validity = CHECKED) -> bool:
        if self.examples is not None:
            left = self.examples - self._shown
            if left <= 0:
                return False
            labelled = targets.labelled()
            if labelled is None:
                labelled = torch.ones(len(features), dtype=torch.bool)
            end = int((labelled.cumsum(0) <= left).sum())
            features, targets = features[:end], targets.examples(slice(end))
            self._shown += int(labelled[:end].sum())
        self._statistics.add(features, targets, validity)
        return self.examples is None or self._shown < self.examples

    def __repr__(self) -> str:
        return f"Fresh(examples={self.examples})"
