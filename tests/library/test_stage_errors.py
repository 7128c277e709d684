"""Bad input to the stages themselves."""

from __future__ import annotations

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch

from bayesagg_pyro import aggregation, errors, gradients, heads, inference, posteriors, priors

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"in_features": 0}, errors.SettingError, "in_features"),
        ({"in_features": -2}, errors.SettingError, "in_features"),
        ({"in_features": 2.0}, errors.SettingError, "in_features"),
        ({"in_features": "3"}, errors.SettingError, "in_features"),
        ({"tasks": 0}, errors.SettingError, "tasks"),
        ({"tasks": 1.5}, errors.SettingError, "tasks"),
        ({"noise_scale": 0.0}, errors.SettingError, "noise_scale"),
        ({"noise_scale": -1.0}, errors.SettingError, "noise_scale"),
        ({"noise_scale": NAN}, errors.SettingError, "noise_scale"),
        ({"noise_scale": INF}, errors.SettingError, "noise_scale"),
        ({"noise_scale": [1.0, -1.0], "tasks": 2}, errors.SettingError, "noise_scale"),
        ({"noise_scale": [1.0, 1.0], "tasks": 3}, errors.ShapeError, "noise_scale.*3 tasks"),
        ({"noise_scale": [[1.0]]}, errors.ShapeError, "noise_scale"),
        ({"prior_variance": 0.0}, errors.SettingError, "prior_variance"),
        ({"prior_variance": -1.0}, errors.SettingError, "prior_variance"),
        ({"prior_variance": NAN}, errors.SettingError, "prior_variance"),
        ({"missing": "zero"}, errors.SettingError, "missing.*zero"),
    ],
    ids=str,
)
def test_bad_heads(settings, error, words) -> None:
    with pytest.raises(error, match=words):
        heads.Gaussian(**{"in_features": 3, **settings})


@pytest.mark.parametrize(
    "wrong", ["2", True, [1.0, "a"], {"a": "b"}, NAN, -1.0, dist.Gamma(2.0, 1.0)], ids=str
)
@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda v: heads.Gaussian(3, prior_variance=v), "prior_variance"),
        (lambda v: heads.Gaussian(3, noise_scale=v), "noise_scale"),
        (lambda v: heads.StudentT(3, df=v), "df"),
        (lambda v: heads.InducingPoints(3, 4, tolerance=v), "tolerance"),
        (lambda v: heads.InducingPoints(3, v), "points"),
        (lambda v: heads.Ordinal(3, classes=3, cutpoints=v), "cutpoints"),
        (lambda v: inference.Laplace(tolerance=v), "tolerance"),
        (lambda v: inference.IntegratedNoise(shape=v), "shape"),
        (lambda v: inference.NUTS(target_acceptance=v), "target_acceptance"),
        (lambda v: gradients.Quadrature(tolerance=v), "tolerance"),
        (lambda v: priors.FullData(temperature=v), "temperature"),
        (lambda v: priors.FullData(v), "variance"),
        (lambda v: priors.Running(v), "half_life"),
        (lambda v: priors.PreviousBatch(v), "forgetting"),
        (lambda v: priors.Evidence(bounds=v), "bounds"),
        (lambda v: priors.isotropic(heads.Gaussian(3), v), "variance"),
        (lambda v: priors.diagonal(heads.Gaussian(3), v), "prior"),
        (lambda v: aggregation.PrecisionWeighted(v), "power"),
        (lambda v: aggregation.PrecisionWeighted(floor=v), "floor"),
        (lambda v: aggregation.PrecisionWeighted(max_ratio=v), "max_ratio"),
    ],
)
def test_settings_that_are_no_numbers(make, setting, wrong) -> None:
    """Words, flags and lists of them ended in Python's own error, or counted as 1."""
    with pytest.raises(errors.BayesAggError, match=setting):
        make(wrong)


def test_numbers_of_all_kinds_are_settings() -> None:
    for two in (2, 2.0, np.float32(2), np.int64(2), np.array(2.0), torch.tensor(2.0)):
        assert priors.FullData(temperature=two).temperature == 2
        assert priors.FullData(two).base_for(heads.Gaussian(3)).variance.eq(2).all()
        assert heads.Gaussian(3, noise_scale=two).noise_scale == 2


@pytest.mark.parametrize(
    ("variance", "error"),
    [
        (0.0, errors.SettingError),
        (-1.0, errors.SettingError),
        (NAN, errors.SettingError),
        (INF, errors.SettingError),
        ([1.0, 0.0], errors.SettingError),
        ([1.0, 1.0, 1.0], errors.ShapeError),
        ([[1.0, 1.0]], errors.ShapeError),
    ],
    ids=str,
)
def test_bad_priors(variance, error) -> None:
    head = heads.Gaussian(3, tasks=2, name="energy")
    with pytest.raises(error, match=r"energy.*variance"):
        priors.isotropic(head, variance)


def parts(tasks: int = 2):
    head = heads.Gaussian(3, tasks=tasks, name="energy")
    return head, torch.randn(5, 3), torch.randn(5, tasks), priors.isotropic(head, 1.0)


WRONG = [
    (lambda h, y: (h[None], y), errors.ShapeError, "examples, 3"),
    (lambda h, y: (h[:, :2], y), errors.ShapeError, "examples, 3"),
    (lambda h, y: (h[:0], y[:0]), errors.ShapeError, "empty"),
    (lambda h, y: (h.long(), y), errors.DtypeError, "floating"),
    (lambda h, y: (h.tolist(), y), errors.DtypeError, "tensor"),
    (lambda h, y: (h * NAN, y), errors.NonFiniteError, "nan"),
    (lambda h, y: (h * INF, y), errors.NonFiniteError, "inf"),
    (lambda h, y: (h, y[:, 0]), errors.ShapeError, r"\[5, 2\]"),
    (lambda h, y: (h, y[:4]), errors.ShapeError, r"\[5, 2\]"),
    (lambda h, y: (h, y.long()), errors.DtypeError, r"float\(\)"),
    (lambda h, y: (h, y.tolist()), errors.DtypeError, "tensor"),
    (lambda h, y: (h, y * NAN), errors.NonFiniteError, "missing"),
    (lambda h, y: (h, y * INF), errors.NonFiniteError, "inf"),
    (lambda h, y: (h.to("meta"), y), errors.DeviceError, "meta"),
    (lambda h, y: (h, y.to("meta")), errors.DeviceError, "meta"),
]


@pytest.mark.parametrize(("change", "error", "words"), WRONG)
def test_inference_and_gradients_name_the_head(change, error, words) -> None:
    head, h, y, prior = parts()
    posterior = inference.Conjugate().infer(head, h, y, prior)
    bad = change(h, y)
    with pytest.raises(error, match=f"energy.*{words}"):
        inference.Conjugate().infer(head, *bad, prior)
    for estimator in (None, gradients.Exact(), gradients.MonteCarlo(4)):
        with pytest.raises(error, match=f"energy.*{words}"):
            gradients.distribution(head, posterior, *bad, estimator=estimator)


def test_the_model_checks_its_targets() -> None:
    head, h, y, _ = parts()
    with pytest.raises(errors.ShapeError, match="energy"):
        head.model(h, y[:, :1])
    with pytest.raises(errors.NonFiniteError, match="energy"):
        head.model(h, y * NAN)


def test_one_task_takes_targets_without_the_task_axis() -> None:
    head, h, y, prior = parts(tasks=1)
    one = inference.Conjugate().infer(head, h, y, prior)
    two = inference.Conjugate().infer(head, h, y[:, 0], prior)
    assert torch.equal(one.mean, two.mean)
    mask = torch.tensor([True, False, True, True, True])
    three = inference.Conjugate().infer(head, h, (y[:, 0], mask), prior)
    four = inference.Conjugate().infer(head, h[mask], y[mask], prior)
    torch.testing.assert_close(three.mean, four.mean)


def test_conjugate_refuses_other_heads_and_priors() -> None:
    class Other(heads.Head):
        def likelihood(self, outputs):
            raise AssertionError

    head, h, y, prior = parts()
    with pytest.raises(errors.DtypeError, match=r"Other.*another scheme"):
        inference.Conjugate().infer(Other(3, tasks=2), h, y, prior)
    with pytest.raises(errors.DtypeError, match="Empirical"):
        inference.Conjugate().infer(head, h, y, posteriors.Empirical(prior.sample((4,))))
    with pytest.raises(errors.DtypeError, match="Other"):
        inference.Conjugate().statistics(Other(3), inference.Storage())


@pytest.mark.parametrize("size", [(3, 3), (2, 4), (1, 3)], ids=str)
def test_a_prior_of_another_head_is_refused(size) -> None:
    """A prior of one task would silently serve all; one of other sizes would fail far away."""
    head, h, y, _ = parts()
    prior = priors.isotropic(heads.Gaussian(size[1], tasks=size[0]), 1.0)
    with pytest.raises(errors.ShapeError, match="energy"):
        inference.Conjugate().infer(head, h, y, prior)


@pytest.mark.parametrize("size", [(3, 3), (2, 4), (1, 3)], ids=str)
@pytest.mark.parametrize("estimator", [None, gradients.MonteCarlo(4)], ids=str)
def test_a_posterior_of_another_head_is_refused(size, estimator) -> None:
    head, h, y, _ = parts()
    posterior = priors.isotropic(heads.Gaussian(size[1], tasks=size[0]), 1.0)
    with pytest.raises(errors.ShapeError, match="energy"):
        gradients.distribution(head, posterior, h, y, estimator=estimator)


def test_every_error_is_also_a_built_in_one() -> None:
    pairs = {
        errors.ShapeError: ValueError,
        errors.DtypeError: TypeError,
        errors.DeviceError: ValueError,
        errors.NonFiniteError: ValueError,
        errors.TaskError: ValueError,
        errors.SettingError: ValueError,
        errors.StateError: RuntimeError,
        errors.NumericalError: ArithmeticError,
        errors.MissingPackageError: ImportError,
        errors.UnsupportedError: NotImplementedError,
    }
    for error, builtin in pairs.items():
        assert issubclass(error, errors.BayesAggError)
        assert issubclass(error, builtin)
    listed = {getattr(errors, name) for name in errors.__all__}
    assert listed == {*pairs, errors.BayesAggError}
