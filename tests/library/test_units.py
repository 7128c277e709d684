"""Units that a head chooses: with the first targets that differ, and right for all before them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import heads, inference

D, B = 5, 24


class Alone:
    """One regression task, in float32, whose first batch is not like the others."""

    def __init__(self, level: float, size: float, first: Callable[[Tensor], Tensor]) -> None:
        torch.manual_seed(0)
        self.head = heads.Gaussian(D, missing="nan")
        self.mtl = ba.BayesAgg({"r": self.head})
        self.x = torch.randn(6 * B, D)
        self.y = level + size * (self.x[:, :1] + 0.1 * torch.randn(6 * B, 1))
        for rows in torch.arange(6 * B).split(B):
            y = self.y[rows]
            self.mtl.collect(self.x[rows], {"r": first(y.clone()) if rows[0] == 0 else y})
        self.mtl.update_prior()
        self.mtl.start_bayes()

    def error(self) -> Tensor:
        """Of predictions, in standard deviations of the targets."""
        return (self.mtl.predict(self.x)["r"] - self.y).std() / self.y.std()


UNLIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "all the same": lambda y: y[:1].expand_as(y),
    "one label": lambda y: torch.where(torch.arange(B)[:, None] == 3, y, torch.nan),
    "like the others": lambda y: y,
}


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("level", [0.0, 3e3])
@pytest.mark.parametrize("first", list(UNLIKE))
def test_units_come_with_the_first_targets_that_differ(
    level: float, size: float, first: str
) -> None:
    if level > 1e6 * size:  # float32 has no digits left
        level = 1e6 * size
    made = Alone(level, size, UNLIKE[first])
    assert made.head.target_scale is not None
    assert 0.3 < made.head.target_scale / made.y.std() < 3.1
    assert made.error() < 0.3


def test_all_the_same_are_zeros_in_all_units() -> None:
    """The sums are those of the units that come, to rounding."""
    made = Alone(500.0, 20.0, UNLIKE["all the same"])
    y = torch.cat([made.y[:1].expand(B, 1), made.y[B:]]).double()
    h, loc, scale = made.x.double(), made.head.target_loc, made.head.target_scale
    assert loc is not None
    assert scale is not None
    values = (y - loc) / scale
    mean = torch.linalg.solve(h.T @ h + torch.eye(D).double(), h.T @ values)
    torch.testing.assert_close(made.mtl.posteriors()["r"].mean, mean.T, atol=1e-5, rtol=1e-5)


def test_one_outlier_does_not_choose_the_units() -> None:
    def spoiled(y: Tensor) -> Tensor:
        y[5] = 1e7
        return y

    with pytest.warns(RuntimeWarning, match=r"'r'.*\[0\].*outliers"):
        made = Alone(500.0, 20.0, spoiled)
    assert made.head.target_scale is not None
    assert 0.3 < made.head.target_scale / made.y.std() < 3.1


def test_fillers_of_weight_zero_do_not_choose_the_units() -> None:
    head = heads.Gaussian(D)
    mtl = ba.BayesAgg({"r": head})
    y, weight = torch.randn(B, 1), torch.ones(B, 1)
    y[::2], weight[::2] = -999.0, 0.0
    mtl.collect(torch.randn(B, D), {"r": (y, None, weight)})
    assert head.units is None


def test_units_that_prove_wrong_are_told() -> None:
    def sorted_by_target(y: Tensor) -> Tensor:
        return 1000 + 0.01 * y

    with pytest.warns(RuntimeWarning, match=r"'r'.*\[0\].*unlike the rest"):
        Alone(0.0, 1.0, sorted_by_target)


def test_units_that_are_the_users_are_not_called_a_choice() -> None:
    """No warning, which would be an error here."""
    head = heads.Gaussian(D).learn_noise()
    mtl = ba.BayesAgg({"r": head})
    mtl.collect(torch.randn(B, D), {"r": 500 + 20 * torch.randn(B, 1)})
    mtl.update_prior()
    assert head.units is None


def with_one(value: float) -> Tensor:
    return torch.where(torch.arange(B) == 3, value, 0.0)


#: Batches of labels of one task, [B] or fewer, in every order of which the sums are to be right.
BATCHES: dict[str, Callable[[], Tensor]] = {
    "0": lambda: torch.zeros(B),
    "7": lambda: torch.full((B,), 7.0),
    "0.3": lambda: torch.full((B,), 0.3),
    "one label": lambda: 500 + 20 * torch.randn(1),
    "a small one": lambda: torch.randn(1),
    "zeros and 1000": lambda: with_one(1000.0),
    "zeros and 0.1": lambda: with_one(0.1),
    "an outlier": lambda: torch.where(torch.arange(B) == 3, 1e5, torch.randn(B)),
    "zero-inflated": lambda: (torch.rand(B) < 0.2) * (1000 + 50 * torch.randn(B)),
    "standardised": lambda: torch.randn(B),
    "tiny": lambda: 1e-4 * torch.randn(B),
    "milli": lambda: 1e-3 * torch.randn(B),
    "far": lambda: 1e4 + 10 * torch.randn(B),
}


@pytest.mark.parametrize("seed", range(60))
def test_sums_are_those_of_targets_in_the_final_units(seed: int) -> None:
    """Whatever comes first: nothing that is stored has to be rewritten when units are chosen."""
    torch.manual_seed(seed)
    head = heads.Gaussian(D, missing="nan").double()
    mtl = ba.BayesAgg({"r": head})
    kinds = list(BATCHES)
    order = [kinds[i] for i in torch.randint(len(kinds), (5,))]
    if seed % 2:  # sorted data, as from a file
        order = [order[0], order[0], order[1]]
    x, y = [], []
    for kind in order:
        labels = BATCHES[kind]().double()
        y.append(torch.cat([labels, torch.full((B - len(labels),), torch.nan).double()]))
        x.append(torch.randn(B, D).double())
        mtl.collect(x[-1], {"r": y[-1][:, None]})
    h, values = torch.cat(x), torch.cat(y)
    h, values = h[~values.isnan()], values[~values.isnan()]
    if head.units is not None:
        values = (values - head.units.loc) / head.units.scale
    state = {name.rpartition(".")[2]: part for name, part in mtl.state_dict().items()}
    torch.testing.assert_close(state["moment"][0], h.T @ values, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(state["square"][0], values.square().sum(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("first", [0.0, -2.9, 0.3])
@pytest.mark.parametrize("rows", [B, 1])
def test_a_constant_first_batch_leaves_standardised_targets_alone(first: float, rows: int) -> None:
    torch.manual_seed(0)
    head = heads.Gaussian(D)
    mtl = ba.BayesAgg({"r": head})
    y = torch.cat([torch.full((rows, 1), first), torch.randn(4 * rows, 1)])
    for part in y.split(rows):
        mtl.collect(torch.randn(rows, D), {"r": part})
    assert head.units is None
    assert head.parse_targets(y, len(y)).values.equal(y)


@pytest.mark.parametrize("order", ["sorted", "shuffled", "one outlier first"])
@pytest.mark.parametrize("off", [0.0, 7.0])
@pytest.mark.parametrize("on", [1000.0, 30.0])
def test_targets_of_two_levels_are_predicted_in_every_order(
    order: str, off: float, on: float
) -> None:
    """A function of the features, which a default head has to fit, without a warning."""
    torch.manual_seed(0)
    flag = (torch.arange(600) >= 300).double()[:, None]
    if order == "shuffled":
        flag = flag[torch.randperm(600)]
    if order == "one outlier first":
        flag[3] = 1.0
    x = torch.cat([torch.randn(600, 2).double(), flag], 1)
    y = off + (on - off) * flag
    mtl = ba.BayesAgg({"r": heads.Gaussian(3, bias=True)}).double()
    mtl.refit([(x[rows], {"r": y[rows]}) for rows in torch.arange(600).split(60)])
    assert (mtl.predictive(x)["r"].mean - y).abs().max() < 0.02 * on


def raw(
    tasks: int, scheme: inference.Scheme | None = None, **made: bool
) -> tuple[ba.BayesAgg, Tensor, Tensor]:
    """An engine that has seen raw targets once, with its features and targets."""
    torch.manual_seed(0)
    x = torch.randn(50, 3).double()
    y = (100 + 20 * x[:, :tasks]) * torch.tensor([1.0, 50.0])[:tasks] + torch.randn(50, tasks)
    head = heads.Gaussian(3, tasks, bias=True, **made)
    mtl = ba.BayesAgg({"r": head}, inference=scheme).double()
    mtl.collect(x, {"r": y})
    mtl.update_prior()
    return mtl, x, y


@pytest.mark.parametrize("tasks", [1, 2])
def test_predictions_in_the_targets_units_take_values_as_others_do(tasks: int) -> None:
    mtl, x, y = raw(tasks)
    law, plain = mtl.predictive(x)["r"], raw(tasks, standardise=False)[0].predictive(x)["r"]
    normal = torch.distributions.Normal(law.mean, law.stddev)
    for value in (
        y,
        y[:, 0],
        y[:, :1].expand(50, 3),
        y[0],
        y.long(),
        y.float(),
        y.expand(4, 50, tasks),
        torch.tensor(100.0),
        torch.tensor([90.0, 100.0])[:, None, None],
        100.0,
    ):
        for name in ("log_prob", "cdf"):
            try:
                expected = getattr(plain, name)(value)
            except ba.errors.BayesAggError as error:
                with pytest.raises(type(error)):
                    getattr(law, name)(value)
                continue
            found = getattr(law, name)(value)
            assert found.shape == expected.shape
            one = value[:, None] if value.ndim == 1 else value
            torch.testing.assert_close(found, getattr(normal, name)(one.double()))


def test_a_noise_that_is_set_is_in_the_units_of_the_targets() -> None:
    mtl, x, y = raw(1)
    head = mtl.heads["r"]
    head.set_noise_scale(5.0)
    mtl.refit([(x, {"r": y})])
    h = torch.cat([x, torch.ones(50, 1)], 1)
    noise = 5.0 / head.units.scale
    covariance = (h.T @ h / noise.square() + torch.eye(4)).inverse()  # in the head's units
    expected = 25 + head.units.scale.square() * ((h @ covariance) * h).sum(1, keepdim=True)
    torch.testing.assert_close(mtl.predictive(x)["r"].variance, expected)
    with pytest.raises(ba.errors.SettingError, match="a unit for each of its tasks"):
        raw(2)[0].heads["r"].set_noise_scale(5.0)


def test_the_error_of_draws_is_in_the_units_of_the_targets() -> None:
    mtl, x, _ = raw(2, inference.Ensemble(members=16))
    law = mtl.predictive(x)["r"]
    means = mtl.heads["r"].in_target_units(law.standardised.means)
    torch.testing.assert_close(law.standard_error, means.std(0) / 4)
    with pytest.raises(AttributeError):
        _ = raw(2)[0].predictive(x)["r"].standard_error  # exact
