"""What methods of users' classes return: errors name the class and the method."""

from __future__ import annotations

import pytest
import torch

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, priors
from bayesagg_pyro.inference import Iterative


class BareDirection(aggregation.Aggregation):
    def aggregate(self, grad):
        return grad.mean.sum(0)


class FlatDirection(aggregation.Aggregation):
    def aggregate(self, grad):
        return aggregation.Aggregated(grad.mean.sum((0, 1)))


class BareMoments(gradients.Estimator):
    def estimate(self, head, posterior, features, targets, generator=None):
        return features.expand(head.tasks, -1, -1)


class BareMean(Iterative):
    def fit(self, joint, start, generator):
        return joint.head.point()


class BareSums(inference.Conjugate):
    def infer(self, head, features, targets, prior, *, start=None, generator=None):
        return features


class NoProposal(priors.FullData):
    def propose(self, start=None):
        return None


def _step(**settings: object) -> None:
    torch.manual_seed(0)
    mtl = ba.BayesAgg({"energy": heads.Gaussian(4)}, **settings)
    features = torch.randn(8, 4, requires_grad=True)
    mtl.backward(features, {"energy": torch.randn(8, 1)})
    mtl.update_prior()
    mtl.start_bayes()
    mtl.backward(features, {"energy": torch.randn(8, 1)})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"aggregation": BareDirection()}, "BareDirection.aggregate returned a Tensor.*Aggregated"),
        ({"aggregation": FlatDirection()}, r"FlatDirection.aggregate.*\[4\].*\[B, d\] = \[8, 4\]"),
        ({"estimator": BareMoments()}, "BareMoments.estimate returned a Tensor"),
        ({"inference": BareMean()}, "BareMean.fit returned a .*Posterior"),
        ({"inference": BareSums()}, "BareSums.infer returned a Tensor"),
        ({"prior": NoProposal()}, "NoProposal.propose returned a NoneType"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_users_own_class_returns_is_looked_at(settings, words) -> None:
    with pytest.raises((errors.DtypeError, errors.ShapeError), match=words):
        _step(**settings)
