"""A case: one engine's life as a printable value, drawn from a seed.

Heads, schemes, policies and the rest are expressions, so that `repr(case)` is itself one: it can be
read, pasted into a test, and made smaller piece by piece.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random
from typing import Any

from tests.fuzz import pieces

__all__ = ["LAWS", "SPOILS", "Call", "Case", "Part", "draw"]


class _Brief:
    """Shows the fields that are not at their defaults."""

    def __repr__(self) -> str:
        shown = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value != field.default:
                shown.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Part(_Brief):
    """One head and what belongs to it in every stage."""

    head: str = ""
    scheme: str | None = None
    prior: str | None = None
    estimator: str | None = None


@dataclass(frozen=True, repr=False)
class Call(_Brief):
    """One call on the engine, with the batch that it is given.

    Attributes:
        do: the method, or "save", "copy", "step" and such; see `check.Life`.
        law: what must come out the same another way; see `laws`.
        mode: "no_grad", "inference" or "autocast" around the call.
        spoil: what is wrong with the batch; see `batches.SPOILS`.
        examples: B.
        features: scale of the features, and
        targets: of real targets and counts.
        mask: which targets are missing, and
        weight: how examples are weighted, and
        form: how targets are written down; see `batches`.
        seed: of the batch's numbers.
    """

    do: str = "backward"
    law: str = ""
    mode: str = ""
    spoil: str = ""
    examples: int = 4
    features: float = 1.0
    targets: float = 1.0
    mask: str = ""
    weight: str = ""
    form: str = ""
    seed: int = 0

    @property
    def tame(self) -> bool:
        """Whether nothing about the batch is a reason to refuse it."""
        scales = all(0.1 <= scale <= 10 for scale in (self.features, self.targets))
        return scales and not self.spoil and self.weight not in ("tiny", "huge")


@dataclass(frozen=True, repr=False)
class Case(_Brief):
    """An engine and the calls on it."""

    d: int = 2
    parts: tuple[Part, ...] = ()
    aggregation: str | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    dtype: str = "float32"
    calls: tuple[Call, ...] = ()
    seed: int = 0


def draw(seed: str) -> Case:
    """The case of a seed."""
    rng = Random(seed)
    d = rng.randint(1, 6)
    parts = tuple(_part(rng, d) for _ in range(rng.choice([1, 1, 2, 2, 3])))
    settings: list[tuple[str, Any]] = [("keep_gradients", rng.random() < 0.6)]
    if rng.random() < 0.7:
        settings.append(("generator", "torch.Generator().manual_seed(1)"))
    if rng.random() < 0.3:
        settings.append(("reduction", rng.choice(["'sum'", "'mean'"])))
    if rng.random() < 0.15:
        settings.append(("warmup", False))
    if rng.random() < 0.1:
        settings.append(("warmup_epochs", 1))
        settings = [pair for pair in settings if pair[0] != "warmup"]
    if rng.random() < 0.2:
        settings.append(("working_memory", rng.choice([1, 2000, None])))
    if rng.random() < 0.1:
        settings.append(("validate", "'deferred'"))
    return Case(
        d=d,
        parts=parts,
        aggregation=pieces.aggregation(rng, len(parts)),
        settings=tuple(settings),
        dtype=rng.choice(["float32"] * 4 + ["float64"] * 4 + ["bfloat16", "float16"]),
        calls=_calls(rng),
        seed=rng.randrange(10**6),
    )


def _part(rng: Random, d: int) -> Part:
    head = pieces.head(rng, d)
    return Part(head, pieces.scheme(rng, head), pieces.prior(rng), pieces.estimator(rng))


# -- calls -------------------------------------------------------------------------------------

LAWS = ("repeated", "permuted", "dropped", "ones", "chunked", "doubled", "precise", "reordered")
SPOILS = (
    "features [B, d+1]",
    "features [d]",
    "features int",
    "features complex",
    "features NaN",
    "features inf",
    "features [0, d]",
    "features a list",
    "targets [B+1]",
    "targets [B, T+1]",
    "targets NaN",
    "targets inf",
    "targets outside",
    "targets complex",
    "targets None",
    "targets unknown",
    "targets a tensor",
    "mask [B+1]",
    "mask float",
    "weight [B+1]",
    "weight negative",
    "weight NaN",
    "weight inf",
    "weight int",
)


_EXTRAS = ["backward", "collect", "predict", "predictive", "save", "copy"] * 2
_EXTRAS += ["update_prior", "start_bayes", "load", "load_bad", "step", "double"]


def _calls(rng: Random) -> tuple[Call, ...]:
    """A training run in outline, with whatever else comes in between."""
    outline = ["backward"] * rng.randint(0, 2) + ["update_prior", "start_bayes"]
    if not outline[0].startswith("backward"):
        outline.insert(0, "collect")
    outline += ["backward"] * rng.randint(1, 3) + ["update_prior", "backward"]
    for _ in range(rng.randint(0, 4)):
        extra = rng.choice(_EXTRAS)
        outline.insert(rng.randint(0, len(outline)), extra)
    return tuple(_call(rng, do) for do in outline)


def _scale(rng: Random) -> float:
    if rng.random() < 0.85:
        return 1.0
    return rng.choice([1e-30, 1e-20, 1e-10, 1e-4, 0.1, 10.0, 1e3, 1e5, 1e10, 1e15, 1e20, 1e30, 0.0])


def _call(rng: Random, do: str) -> Call:
    law = spoil = mode = ""
    chance = rng.random()
    takes = do in ("backward", "collect")
    if chance < 0.25 and takes:
        law = rng.choice(LAWS)
    elif chance < 0.35 and takes:
        spoil = rng.choice(SPOILS)
    elif chance < 0.45 and do not in ("copy", "double", "step"):
        mode = rng.choice(["no_grad", "inference", "autocast"])
    if not takes and do not in ("predict", "predictive"):
        return Call(do, mode=mode, seed=rng.randrange(10**6))
    masks = ["partial", "partial", "task", "head", "example", "all", "nan"]
    weights = ["ones", "spread", "spread", "zero", "zeros", "tiny", "huge"]
    return Call(
        do,
        law=law,
        mode=mode,
        spoil=spoil,
        examples=rng.randint(1, 9),
        features=_scale(rng),
        targets=_scale(rng),
        mask=rng.choice(masks) if rng.random() < 0.3 else "",
        weight=rng.choice(weights) if rng.random() < 0.2 else "",
        form=rng.choice(["flat", "int", "half", "list"]) if rng.random() < 0.1 else "",
        seed=rng.randrange(10**6),
    )
