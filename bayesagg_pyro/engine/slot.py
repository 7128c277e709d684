"""What belongs to one head between steps, and what the head comes to in one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from bayesagg_pyro import gradients, linalg, predictive
from bayesagg_pyro.engine.loss_size import loss_size
from bayesagg_pyro.errors import DtypeError, NumericalError, SettingError, ShapeError, StateError
from bayesagg_pyro.gradients import Estimator, GradientDistribution, loss_scale
from bayesagg_pyro.gradients._derived import weighted
from bayesagg_pyro.gradients._samples import at_weights
from bayesagg_pyro.heads import Gaussian, Head
from bayesagg_pyro.heads._standardising import Standardising
from bayesagg_pyro.inference import Scheme
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.priors import Policy
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import Validity

#: Whose posterior each head's weights followed last: a head may be in two engines.
_LEADERS: WeakKeyDictionary[Head, ref[Slot]] = WeakKeyDictionary()


class Slot:
    """A head's scheme, estimator, prior over time, posterior held and stream of randomness.

    Args:
        name: of the head.
        head: the head.
        scheme: infers its posteriors.
        estimators: {name: estimator, or None to choose by types}, as users may change them.
        policy: of its prior over time, as the user made it; `tracker` is the copy at work.
        generator: the head's stream of randomness; None for torch's global one.
        sized: whether a loss of the user's own is brought to the size of `standard_loss`.

    Attributes:
        posterior: in use since the last step; None before.
        age: steps since that was inferred; 0 where the last step did.
        due: whether there is a new prior since the last step.
        calibration: [tasks], how wide predictions are, fitted to data that training has not seen;
            None after each update of the prior.
        learns: whether the head's weights learn by gradient after the warm-up, and predict. Those
            of Gaussian heads follow the posterior mean, unless the scheme expands around them.
        weight_then: the weights that the full-data posterior was made for, where the head's may be
            others: in a copy, or after others were loaded without a posterior; else None.
    """

    def __init__(
        self,
        name: str,
        head: Head,
        scheme: Scheme,
        estimators: Mapping[str, Estimator | None],
        policy: Policy,
        generator: torch.Generator | None,
        *,
        sized: bool = False,
    ) -> None:
        self.name = name
        self.head = head
        self.scheme = scheme
        self.learns = learns(head, scheme)
        self.generator = generator
        self.estimators = estimators
        self.policy = policy
        self._sized = sized
        self._shape = head.weight.shape
        self.restart()

    def restart(self) -> None:
        """Forget everything seen; begin with the policy's prior, once the weights have a place."""
        self._tracker: Policy | None = None
        self.posterior: Posterior | None = None
        self.calibration: Tensor | None = None
        self.weight_then: Tensor | None = None
        vars(self).pop("loss_size", None)
        self.age = 0
        self.due = True
        if not self.head.weight.is_meta:
            self._tracker = self.policy.start(self.head, self.scheme)
            self._tracker.generator = self.generator

    def draw_from(self, generator: torch.Generator | None) -> None:
        """Take another stream of randomness."""
        self.generator = generator
        if self._tracker is not None:
            self._tracker.generator = generator

    @property
    def placed(self) -> bool:
        """Whether the weights have a place, which those on the meta device have not."""
        return self._tracker is not None

    @property
    def tracker(self) -> Policy:
        """This head's own copy of the policy, which follows its prior over training.

        `policy` is the setting, which heads may share.

        Raises:
            StateError: while the weights have no place.
        """
        if self._tracker is None:
            raise StateError(
                f"head {self.name!r} is on the meta device: load a state with assign=True, or call "
                "to_empty(device=...) and give its weights values"
            )
        return self._tracker

    # -- a step ----------------------------------------------------------------------------------

    def infer(self, features: Tensor, targets: Targets, *, variance: bool = True) -> HeadStep:
        """Prior and posterior of a step on these examples; nothing changes before `hold`.

        Args:
            features: [B, d], detached.
            targets: [B, tasks].
            variance: whether anybody reads the gradients' variance. Where the head's own weights
                give the mean, a step makes no posterior without.

        Raises:
            StateError: if there is no prior yet, or no full-data posterior and the scheme takes it.
            DtypeError: for what a scheme of the user's own returns.
        """
        prior = self.tracker.prior_for(features, targets)
        estimator = self.estimators[self.name]
        if not (variance or estimator is None or estimator.mean_needs_posterior):
            return HeadStep(self, features, targets, prior, prior, 0, made=False)
        held, refresh, age = self.posterior, self.scheme.refresh, 0
        if refresh == "epoch":
            if (posterior := self.tracker.posterior) is None:
                raise StateError(
                    f"head {self.head.site!r}: {self.scheme!r} takes the posterior of the last "
                    "epoch's data, and there is none yet; run the first epoch's batches through "
                    "collect() and call update_prior()"
                )
            age = 0 if held is None or self.due else self.age + 1
        elif held is not None and self.age + 1 < (1 if refresh == "step" else int(refresh)):
            posterior, age = held, self.age + 1
        else:
            posterior = self.scheme.infer(
                self.head, features, targets, prior, start=held, generator=self.generator
            )
            if not isinstance(posterior, Posterior):
                raise DtypeError.returned(self.scheme, "infer", posterior, "a Posterior")
        return HeadStep(self, features, targets, prior, posterior, age)

    # -- weights ---------------------------------------------------------------------------------

    def point(self, *, warmup: bool) -> Tensor | None:
        """Weights that predict; None stands for the head's own parameter."""
        posterior = None if warmup or self.learns else self.tracker.posterior
        if posterior is None:
            return None
        mean, weight = posterior.mean, self.head.point().detach()
        # Averages and copies change the parameter, which holds the mean else, rounded to its dtype.
        return torch.where(_follows(weight, mean), mean, weight.to(mean))

    def losses(self, features: Tensor, targets: Targets, *, warmup: bool) -> Tensor:
        """Mean loss of each task at those weights, [tasks]; 0 for a task without examples."""
        each = self.head.losses(features, targets, self.point(warmup=warmup))
        wide = torch.promote_types(features.dtype, torch.float32)
        return targets.mean(each, none=0.0).to(wide)

    @cached_property
    def loss_size(self) -> Tensor | None:
        """What the loss is to be divided by, [tasks]; None for 1."""
        return loss_size(self.head) if self._sized else None

    @torch.no_grad()
    def follow(self) -> None:
        """Write the posterior's mean into weights that do not learn by gradient."""
        posterior = None if self.learns or self._tracker is None else self._tracker.posterior
        if posterior is not None:
            self.head.weight.copy_(posterior.mean.reshape(self.head.weight.shape))
            _LEADERS[self.head] = ref(self)

    def check_shape(self, *, trains: bool = True) -> None:
        """Refuse a weight of another shape than the prior's, and one that hooks leave out of date.

        Args:
            trains: whether steps and posteriors are to read it, before the head's next pass.

        Raises:
            ShapeError, SettingError: naming the head and the remedy.
        """
        own = self.head._parameters
        if "weight" not in own:  # something computes it
            if trains and "weight" in vars(self.head):
                raise SettingError(
                    f"the weight of head {self.name!r} is computed at its next pass (torch's prune "
                    "and the old weight_norm do so), and is until then that of the last step: use "
                    "torch.nn.utils.parametrize or parametrizations, or make it a parameter again "
                    "(prune.remove)"
                )
            return
        shape = None if own["weight"] is None else own["weight"].shape
        if shape != self._shape:
            found = "has been removed" if shape is None else f"has shape {list(shape)}"
            raise ShapeError(
                f"the weight of head {self.name!r} {found}, and its prior is over weights of shape "
                f"{list(self._shape)}: put that one back, or make a new head and a new engine"
            )

    def check_follows(self) -> None:
        """Refuse weights that are to follow the posterior mean and cannot hold it.

        Raises:
            SettingError: naming the head and the remedy.
        """
        if not (self.learns or isinstance(self.head.weight, nn.Parameter)):
            raise SettingError(
                f"the weight of head {self.name!r} is to hold its posterior mean, and something "
                "computes it anew (weight normalisation): remove that from the head, or "
                "let the head learn by gradient with inference=TaylorGGN()"
            )

    def check_leads(self, *, warmup: bool) -> None:
        """Refuse to predict with weights that follow another engine's posterior.

        Raises:
            StateError: naming the head and the remedy.
        """
        leader = _LEADERS.get(self.head)
        posterior = None if warmup or self.learns else self.tracker.posterior
        if posterior is None or leader is None or leader() in (self, None):
            return
        if not _follows(self.head.point().detach(), posterior.mean):
            raise StateError(
                f"the weights of head {self.name!r} follow the posterior of another engine that "
                "has this head: give each engine heads of its own (copy.deepcopy), and call "
                "refit(batches) to go on with this one"
            )

    def stop_learning(self) -> None:
        """End of the warm-up; an old gradient's momentum would move weights that follow."""
        if not self.learns:
            self.head.weight.grad = None
            self.follow()

    def renew(self) -> None:
        """Put in force what was collected.

        Raises:
            NumericalError: if no posterior can be made of it.
            DtypeError: for what a policy of the user's own proposes.
        """
        found = self.tracker.propose(self.posterior)
        if not isinstance(found, Posterior):
            raise DtypeError.returned(self.tracker, "propose", found, "a Posterior")
        if not all(linalg.all_finite(tensor) for tensor in found.tensors().values()):
            raise NumericalError(
                f"the posterior of head {self.name!r}, made of what was collected, is not finite; "
                "the priors stay as they were. Standardise features and targets, and begin anew "
                "with refit(batches)"
            )
        self.tracker.accept(found)
        if isinstance(self.head, Standardising):
            self.head.settle_units()
        self.due = True
        self.weight_then = self.calibration = None

    @property
    def predicting(self) -> Posterior | None:
        """The posterior of all data, with what it was calibrated to; None if there is none yet."""
        posterior = self.tracker.posterior
        if posterior is None or self.calibration is None:
            return posterior
        return predictive.calibrated(self.head, posterior, self.calibration)

    # -- copies, and other places ----------------------------------------------------------------

    def remember(self) -> None:
        """Note which weights the posterior belongs to, in a copy, whose weights may be averaged."""
        if self.weight_then is None and self._tracker is not None and self._tracker.predicts:
            self.weight_then = self.head.point().detach().clone()

    @property
    def other_weight(self) -> Tensor | None:
        """Weights other than the head's that the posterior belongs to; None if it is the head's."""
        then = self.weight_then
        return None if then is None or self._unchanged(then) else then

    def check_weights(self) -> None:
        """Refuse a posterior that is not that of the weights.

        Raises:
            StateError: naming the head and the remedy.
        """
        if self.other_weight is not None:
            raise StateError(
                f"the weights of head {self.name!r} are not those that its posterior was made for: "
                "they were averaged, edited, or loaded without one; call refit(batches)"
            )

    @contextmanager
    def moving(self, *, bayesian: bool) -> Iterator[None]:
        """A block in which the head's tensors change place or precision; the rest follows.

        Args:
            bayesian: whether the warm-up is over. Weights that follow a mean are rounded once.
        """
        then, following = self.weight_then, False
        unchanged = then is not None and self._unchanged(then)
        if bayesian and not self.learns and self._tracker is not None:
            mean, weight = self._tracker.posterior, self.head.point().detach()
            following = mean is not None and bool(_follows(weight, mean.mean))
        yield
        if self._tracker is None:
            self.restart()  # they may have got a place
            return
        device = self.head.weight.device
        vars(self).pop("loss_size", None)
        self._tracker.to(device)
        self.posterior = None if self.posterior is None else self.posterior.to(device=device)
        self.calibration = None if self.calibration is None else self.calibration.to(device)
        if following:
            self.follow()
        if then is not None:
            now = self.head.point().detach().clone()
            self.weight_then = now if unchanged else then.to(now.device)

    def _unchanged(self, then: Tensor) -> bool:
        return torch.equal(then, self.head.point().detach().to(then))


@dataclass(frozen=True)
class HeadStep:
    """One head in one step: what it was given, and what it made of that.

    Attributes:
        slot: what belongs to the head.
        features: [B, d].
        targets: [B, tasks].
        prior: of this step.
        posterior: in use; the prior stands for one that is not made.
        age: steps since that was inferred; 0 where this one did.
        made: whether there is one; without, gradients are those at the head's own weights.
    """

    slot: Slot
    features: Tensor
    targets: Targets
    prior: Posterior
    posterior: Posterior
    age: int
    made: bool = field(default=True, kw_only=True)

    def gradient(self, rows: slice | None, average: bool) -> GradientDistribution:
        """The gradient's distribution for some of the examples, [tasks, B, d].

        Args:
            rows: which examples; None for all.
            average: whether the variance of the average example will do.
        """
        slot, mask = self.slot, self.targets.mask
        features = self.features if rows is None else self.features[rows]
        targets = self.targets if rows is None else self.targets.examples(rows)
        if self.made:
            grad = gradients.distribution(
                slot.head,
                self.posterior,
                features,
                targets,
                estimator=slot.estimators[slot.name],
                generator=slot.generator,
                average=average,
            )
        else:
            grad = at_weights(slot.head, features, targets, average=average)
        if slot.loss_size is not None:
            grad = weighted(grad, (1 / slot.loss_size).expand(grad.shape[1], -1))
        if mask is None:
            return grad
        return grad.changed(batch_loss_scale=loss_scale(mask.mT, grad.like.dtype))

    def hold(self, validity: Validity) -> None:
        """Keep the posterior for later steps; after a bad batch the one before, if they use it."""
        slot = self.slot
        posterior: Posterior | None = self.posterior
        counts = slot.scheme.refresh not in ("step", "epoch")
        if (slot.scheme.warm_starts or counts) and self.age == 0:
            before = self.prior if slot.posterior is None else slot.posterior
            posterior = validity.keep_posterior(self.posterior, before)
        if counts and not self.made:  # for later steps there is none to use
            posterior = None
        slot.posterior, slot.age, slot.due = posterior, self.age, False


def learns(head: Head, scheme: Scheme) -> bool:
    """Whether the head's weights learn by gradient after the warm-up, see `Slot.learns`."""
    return scheme.needs_point or not isinstance(head, Gaussian)


def _follows(weight: Tensor, mean: Tensor) -> Tensor:
    """Whether a weight is that mean, rounded to its dtype; [] bool, on their device."""
    return (weight == mean.to(weight.dtype)).all()
