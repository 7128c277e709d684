"""Heads that read different features: one step, with weights that are joint over all of them.

It is the step on one tensor that holds the rows of all, where a head has no label at rows that it
does not read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from several import RULES, life, same, torchjd
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, diagnostics, errors, gradients, heads, inference, priors
from bayesagg_pyro.aggregation import PrecisionWeighted

F64 = torch.float64
B, T, D = 4, 6, 5


class Text(nn.Module):
    """Features of tokens, and those of sentences made of them."""

    def __init__(self, width: int = D) -> None:
        super().__init__()
        self.embed = nn.Linear(3, D)
        self.pool = nn.Linear(D, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.embed(x).tanh()
        return tokens, self.pool(tokens.mean(1)).tanh()


def made(width: int = D, **settings: Any) -> tuple[Text, ba.BayesAgg]:
    torch.manual_seed(0)
    net = Text(width).double()
    of = {
        "tag": heads.Bernoulli(D),
        "mood": heads.Gaussian(width, bias=True),
        "span": heads.Gaussian(D, 2, missing="nan"),
    }
    return net, ba.BayesAgg(of, generator=torch.Generator().manual_seed(0), **settings).double()


def data(rng: torch.Generator) -> tuple[Tensor, dict[str, Any]]:
    span = torch.randn(B, T, 2, generator=rng, dtype=F64)
    span[torch.rand(B, T, 2, generator=rng) < 0.3] = torch.nan
    return torch.randn(B, T, 3, generator=rng, dtype=F64), {
        "tag": (torch.rand(B, T, generator=rng) < 0.5).double(),
        "mood": torch.randn(B, generator=rng, dtype=F64),
        "span": span,
    }


def apart(net: Text, x: Tensor, y: dict[str, Any]) -> tuple[Any, Any]:
    tokens, sentence = net(x)
    return {"tag": tokens, "mood": sentence, "span": tokens}, y


def in_one(net: Text, x: Tensor, y: dict[str, Any]) -> tuple[Any, Any]:
    """The same with all rows in one tensor, and masks."""
    tokens, sentence = net(x)
    of_token = torch.arange(B * T + B) < B * T
    rows = torch.cat([tokens.reshape(-1, D), sentence])
    tag = torch.cat([y["tag"].flatten(), y["mood"] * 0])
    mood = torch.cat([y["tag"].flatten() * 0, y["mood"]])
    span = torch.cat([y["span"].reshape(-1, 2), torch.full((B, 2), torch.nan, dtype=F64)])
    return rows, {"tag": (tag, of_token), "mood": (mood, ~of_token), "span": span}


IN_PIECES = ["example", "of each task, example", "full", "mean"]


@pytest.mark.parametrize(
    ("name", "memory"), [*((name, None) for name in RULES), *((name, 3000) for name in IN_PIECES)]
)
def test_tokens_and_sentences_as_rows_of_one_tensor(
    name: str, memory: int | None, rng: torch.Generator
) -> None:
    x, y = data(rng)
    pairs = [made(aggregation=RULES[name](), working_memory=memory) for _ in range(2)]
    found, expected = (life(*pair, w, x, y) for pair, w in zip(pairs, (apart, in_one), strict=True))
    assert len(found) > 20
    same(found, expected, 1e-9 if name in ("full", "full, dimension", "UPGrad") else 1e-12)


def test_a_first_token_is_a_sentence(rng: torch.Generator) -> None:
    """Its features as a tensor of their own, or a label at the first token alone.

    Alike where weights need no inner products: gradients by tensors of their own are orthogonal.
    """
    x, y = data(rng)
    first = torch.zeros(B, T, dtype=torch.bool)
    first[:, 0] = True

    def own(net: Text, x: Tensor, y: dict[str, Any]) -> tuple[Any, Any]:
        tokens, _ = net(x)
        return {"tag": tokens, "span": tokens, "mood": tokens[:, 0]}, y

    def masked(net: Text, x: Tensor, y: dict[str, Any]) -> tuple[Any, Any]:
        tokens, _ = net(x)
        return tokens, {**y, "mood": (y["mood"][:, None].expand(B, T), first)}

    rule = RULES["power of each head"]
    found, expected = (life(*made(aggregation=rule()), way, x, y) for way in (own, masked))
    same(found, expected)


def test_weights_where_widths_differ_by_hand(rng: torch.Generator) -> None:
    """Each task's variance is the sum over its dimensions, the mean over its examples."""
    x, y = data(rng)
    net, mtl = made(3, aggregation=PrecisionWeighted(0.7))
    life(net, mtl, apart, x, y, 1)
    net.zero_grad()
    mtl.backward(*apart(net, x, y))
    with torch.no_grad():
        features, _ = apart(net, x, y)
        moments = {}
        for name, head in mtl.heads.items():
            h = features[name].reshape(-1, head.in_features)
            of = y[name].reshape(-1, head.tasks)
            posterior = mtl.schemes[name].infer(head, h, of, mtl.priors()[name])
            moments[name] = gradients.distribution(head, posterior, h, of)
        total, counts = [], []
        for grad in moments.values():
            seen = grad.labelled()
            counts.append(seen.sum(1))
            total.append((grad.variance.sum(2) * seen).sum(1) / seen.sum(1))
        alpha = (-0.7 * torch.cat(total).log()).softmax(0)
    info = mtl.info
    assert info is not None
    torch.testing.assert_close(info.weights, alpha, rtol=1e-10, atol=0)
    torch.testing.assert_close(info.effective_tasks, 1 / alpha.square().sum())
    tokens, sentence = net(x)
    direction = {
        name: 4 * (weight[:, None, None] * grad.mean / count[:, None, None]).sum(0)
        for weight, count, grad, name in zip(
            alpha.split([1, 1, 2]), counts, moments.values(), moments, strict=True
        )
    }
    of_tokens = (direction["tag"] + direction["span"]).reshape(tokens.shape)
    expected = torch.autograd.grad(
        [tokens, sentence], list(net.parameters()), [of_tokens, direction["mood"]]
    )
    same([p.grad for p in net.parameters() if p.grad is not None], list(expected), 1e-10)


@pytest.mark.parametrize(
    "rule", [PrecisionWeighted(resolution="dimension"), PrecisionWeighted.paper()]
)
def test_finer_weights_where_widths_differ(rule: PrecisionWeighted, rng: torch.Generator) -> None:
    """Tensors of other widths share no dimension: each task has its share, alone that of all."""
    x, y = data(rng)
    net, mtl = made(3, aggregation=rule)
    life(net, mtl, apart, x, y, 2)
    assert mtl.info is not None
    assert mtl.info.weights is not None
    assert float(mtl.info.weights[1]) == pytest.approx(1 / 4)
    assert float(mtl.info.weights[[0, 2, 3]].min()) != pytest.approx(1 / 4, rel=1e-3)
    assert 1 < float(mtl.info.effective_tasks) < 4  # type: ignore[arg-type]


@pytest.mark.parametrize("draws", [0, 8])
def test_a_vector_for_each_task_may_be_of_any_features(draws: int, rng: torch.Generator) -> None:
    """Against TorchJD on the matrix of all gradients of mean losses."""
    x, y = data(rng)
    net, mtl = made(3, aggregation=torchjd("UPGrad"))
    life(net, mtl, apart, x, y, 1)
    features, _ = apart(net, x, y)
    posteriors, grads = mtl.posteriors(), {}
    for name, head in mtl.heads.items():
        h, of = features[name].detach().reshape(-1, head.in_features), y[name]
        of = of.reshape(-1, head.tasks)
        grads[name] = gradients.distribution(head, posteriors[name], h, of)
    tokens = gradients.cat({name: grads[name] for name in ("tag", "span")})
    sentence = gradients.cat({"mood": grads["mood"]})
    rule = torchjd("UPGrad")
    if draws:
        rule = aggregation.PerSample(rule, samples=draws)
    first, second = rule.aggregate_each([tokens, sentence], {"tag": 1, "mood": 1, "span": 2})
    assert first.direction.shape == (B * T, D)
    assert second.direction.shape == (B, 3)
    if draws:
        assert second.direction.isfinite().all()
        return
    matrix = torch.zeros(4, B * T * D + B * 3, dtype=F64)
    for at, grad in enumerate((tokens.mean[0], sentence.mean[0], *tokens.mean[1:])):
        scale = tokens.loss_scale()
        one = grad / B if at == 1 else grad / (B * T)
        if at != 1 and scale is not None:
            one = one * scale[max(at - 1, 0)]
        start = B * T * D if at == 1 else 0
        matrix[at, start : start + one.numel()] = one.flatten()
    expected = aggregation.MatrixAggregator(rule.rows.aggregator)(matrix).direction  # type: ignore[attr-defined]
    torch.testing.assert_close(first.direction.flatten() / (B * T), expected[: B * T * D])
    torch.testing.assert_close(second.direction.flatten() / B, expected[B * T * D :])


@pytest.mark.parametrize("rule", ["a user's", "full"])
def test_what_needs_common_dimensions_says_so_and_changes_nothing(
    rule: str, rng: torch.Generator
) -> None:
    x, y = data(rng)
    net, mtl = made(3, aggregation=RULES[rule]())
    life(net, mtl, apart, x, y, 1)
    net.zero_grad()
    before = {k: v.clone() for k, v in mtl.state_dict().items()}
    with pytest.raises(errors.UnsupportedError, match=r"'tag': 5.*'mood': 3"):
        mtl.backward(*apart(net, x, y))
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(v, before[k]) for k, v in mtl.state_dict().items())


@pytest.mark.parametrize("name", ["task", "dimension", "example", "full"])
def test_what_is_kept_is_that_of_one_tensor(name: str, rng: torch.Generator) -> None:
    x, y = data(rng)
    kept = []
    for way in (apart, in_one):
        net, mtl = made(aggregation=RULES[name](), keep_gradients=True)
        life(net, mtl, way, x, y, 2)
        info = mtl.info
        assert info is not None
        assert info.gradients is not None
        assert info.aggregated is not None
        assert info.stages is not None
        size, grad = (4, B * T + B, D), info.gradients
        found = [grad.mean, grad.variance, grad.covariance_matrix, grad.loss_scale()]
        found += [grad.moment_error.mean, grad.labelled() * 1.0, info.aggregated.direction]
        found += [info.aggregated.weights.expand(size), info.stages.features]
        for head, one in zip(mtl.heads.values(), info.stages.targets.values(), strict=True):
            assert one.mask is not None
            found += [one.mask * 1.0, one.values.where(one.mask, head.filler)]
        kept.append(found)
    same(*kept, 1e-9)


def test_draws_are_those_of_each_tensor(rng: torch.Generator) -> None:
    parts = []
    for size, names in ((3, ["a", "c"]), (2, ["b"])):
        pieces = {}
        for name in names:
            head = heads.Gaussian(D, 2 if name == "c" else 1)
            h = torch.randn(size, D, generator=rng)
            y = torch.randn(size, head.tasks, generator=rng)
            posterior = priors.isotropic(head, 1.0)
            pieces[name] = gradients.distribution(head, posterior, h, y)
        parts.append(gradients.cat(pieces))
    joint = gradients.block_diag(parts, {"a": 1, "b": 1, "c": 2, "none": 1})
    drawn = joint.sample((4,), generator=torch.Generator().manual_seed(3))
    source = torch.Generator().manual_seed(3)
    first, second = (part.sample((4,), generator=source) for part in parts)
    assert drawn.shape == (4, 5, 5, D)
    assert torch.equal(drawn[:, [0, 2, 3], :3], first)
    assert torch.equal(drawn[:, 1:2, 3:], second)
    assert int((drawn != 0).sum()) == first.numel() + second.numel()
    assert joint.labelled().sum(1).tolist() == [3, 2, 3, 3, 0]
    assert joint.loss_scale().flatten().tolist() == pytest.approx([5 / 3, 5 / 2, 5 / 3, 5 / 3, 0])


def test_a_head_that_reads_nothing_is_as_one_without_a_label(rng: torch.Generator) -> None:
    x, y = data(rng)
    some = {name: y[name] for name in ("tag", "span")}
    found, expected = (
        life(*made(), way, x, y)
        for way in (
            lambda net, x, y: (dict.fromkeys(some, net(x)[0]), some),
            lambda net, x, y: (net(x)[0], some),
        )
    )
    same(found, expected)  # NaN for the loss of the head that is absent
    assert any(one.isnan().any() for one in found)


def test_predictions_of_each_head_s_features(rng: torch.Generator) -> None:
    x, y = data(rng)
    net, mtl = made(3)
    life(net, mtl, apart, x, y, 1)
    features, _ = apart(net, x, y)
    found = mtl.predict(features)
    assert {name: tuple(one.shape) for name, one in found.items()} == {
        "tag": (B, T, 1),
        "mood": (B, 1),
        "span": (B, T, 2),
    }
    for name, head in mtl.heads.items():
        rows = features[name].reshape(-1, head.in_features)
        alone = mtl.predict({name: rows})
        assert list(alone) == [name]
        assert torch.equal(alone[name].reshape(found[name].shape), found[name])
        law = mtl.predictive({name: rows})[name]
        assert torch.equal(law.mean.reshape(found[name].shape), mtl.predictive(features)[name].mean)


def test_refit_and_fresh_priors_read_them_too(rng: torch.Generator) -> None:
    x, y = data(rng)
    found = []
    for way in (apart, in_one):
        net, mtl = made(prior=priors.Fresh())
        mtl.update_prior([way(net, x, y)])
        found.append([prior.mean for prior in mtl.priors().values()])
        mtl.refit([way(net, x, y)])
        found[-1] += [posterior.mean for posterior in mtl.posteriors().values()]
    same(*found)


def test_recording_changes_nothing(rng: torch.Generator, tmp_path: Path) -> None:
    x, y = data(rng)
    plain = life(*made(), apart, x, y)
    net, mtl = made()
    with_recorder = diagnostics.Recorder(mtl, tmp_path / "steps.jsonl", every=1)
    same(life(net, mtl, apart, x, y), plain, 0.0)
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    assert rows[2]["observed_tasks"] == 4
    with_recorder.close()


@pytest.mark.parametrize("rule", ["task", "dimension", "example"])
def test_a_recorder_takes_features_of_different_widths(
    rule: str, rng: torch.Generator, tmp_path: Path
) -> None:
    """Joint numbers are those of the update; features' own are of each head's tensor."""
    x, y = data(rng)
    plain = life(*made(3, aggregation=RULES[rule]()), apart, x, y)
    net, mtl = made(3, aggregation=RULES[rule](), keep_gradients=True)
    recorder = diagnostics.Recorder(mtl, tmp_path / "steps.jsonl", every=1)
    same(life(net, mtl, apart, x, y), plain, 0.0)
    row, info = diagnostics.read(recorder.path)[-1], mtl.info
    assert info is not None
    assert info.stages is not None
    assert info.weights is not None
    assert "rank" not in row
    assert row["rank/mood"] <= 3
    mood = info.stages.features[info.stages.rows["mood"], :3]
    assert row["feature_norm/mood"] == pytest.approx(float(mood.norm(dim=1).mean()), rel=1e-5)
    assert row["feature_norm/tag"] == row["feature_norm/span"]
    assert row["weight/mood"] == pytest.approx(float(info.weights[1]), rel=1e-5)
    assert info.aggregated is not None
    norm = info.update_factor * float(info.aggregated.direction.norm())
    assert row["update_norm"] == pytest.approx(norm, rel=1e-5)
    shares = [row[f"share/{name}"] for name in ("tag", "span.0", "span.1", "mood")]
    assert sum(shares) == pytest.approx(1, rel=1e-5)


def test_a_recorder_without_an_engine_takes_them_too(rng: torch.Generator, tmp_path: Path) -> None:
    own = {"a": heads.Gaussian(3), "b": heads.Gaussian(5)}
    recorder = diagnostics.Recorder(own, tmp_path / "steps.jsonl", every=1)
    h = {"a": torch.randn(9, 3, generator=rng), "b": torch.randn(7, 5, generator=rng)}
    y = {name: torch.randn(len(one), generator=rng) for name, one in h.items()}
    recorder.see(h, y, {name: torch.ones(1) for name in own})
    (row,) = diagnostics.read(recorder.path)
    assert (row["rank/a"], row["rank/b"]) == (3, 5)
    assert row["loss/a"] == 1


def test_an_example_level_rule_on_tensors_of_one_task_each_warns(rng: torch.Generator) -> None:
    head = {name: heads.Gaussian(D) for name in "ab"}
    mtl = ba.BayesAgg(head, PrecisionWeighted.paper())
    h = {name: torch.randn(9, D, generator=rng, requires_grad=True) for name in "ab"}
    y = {name: torch.randn(9, generator=rng) for name in "ab"}
    mtl.backward(h, y)
    mtl.update_prior()
    mtl.start_bayes()
    with pytest.warns(UserWarning, match='resolution="task"'):
        mtl.backward(h, y)
    mtl.backward(h, y)  # once


def test_names_and_graphs_that_do_not_fit_are_refused(rng: torch.Generator) -> None:
    x, y = data(rng)
    net, mtl = made()
    tokens, sentence = net(x)
    features = {"tag": tokens, "mood": sentence, "span": tokens}
    with pytest.raises(errors.TaskError, match=r"targets for \['mood'\], but no features"):
        mtl.backward({"tag": tokens, "span": tokens}, y)
    with pytest.raises(errors.TaskError, match="'other'"):
        mtl.backward({**features, "other": tokens}, y)
    with pytest.raises(errors.TaskError, match="features are given for"):
        mtl.predict({})
    with pytest.raises(errors.DtypeError, match="must be a tensor, not list"):
        mtl.backward({**features, "mood": sentence.tolist()}, y)
    with pytest.raises(errors.StateError, match=r"'mood' need no gradient.*requires_grad_\(\)"):
        mtl.backward({**features, "mood": sentence.detach()}, y)
    with pytest.raises(errors.ShapeError, match=r"'mood'.*must have shape \[4, 1\]"):
        mtl.backward(features, {**y, "mood": y["mood"][:3]})
    with pytest.raises(errors.NonFiniteError, match="'mood'"):
        mtl.backward({**features, "mood": sentence / 0}, y)
    late = made(validate="deferred")[1]
    spoilt = sentence.masked_fill(torch.arange(B)[:, None] == 1, torch.nan)
    late.backward({**features, "mood": spoilt}, y)
    assert all(p.grad is None or not p.grad.any() for p in net.parameters())
    with pytest.raises(errors.NonFiniteError):
        late.raise_deferred()


def test_one_scheme_for_each_head(rng: torch.Generator) -> None:
    """Sampled gradients are drawn for each tensor: the update is finite and repeats itself."""
    x, y = data(rng)
    settings = {
        "inference": {
            "tag": inference.Laplace(),
            "mood": inference.Conjugate(),
            "span": inference.Ensemble(members=4),
        }
    }
    first, again = (life(*made(3, **settings), apart, x, y) for _ in range(2))
    same(first, again, 0.0)
    assert all(one.isfinite().all() for one in first)
