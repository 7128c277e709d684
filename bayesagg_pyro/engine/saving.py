"""The engine's state: which tensors it has, and what is checked before any of it is taken over.

Under `state.` a state dict holds `format`, `warmup`, `epochs`, `generator`, and for each head
`priors.<head>`, `held.<head>` and `streams.<head>` (its generator, and what scheme and estimator
have of their own), besides `aggregation`. Heads' own tensors stay where torch puts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._state import (
    check_generator,
    count,
    finite,
    named,
    number,
    part,
    read_generator,
    saved,
    set_generator,
)
from bayesagg_pyro.engine.reading import check_names
from bayesagg_pyro.engine.slot import Slot
from bayesagg_pyro.engine.transaction import of_aggregation
from bayesagg_pyro.errors import BayesAggError, NonFiniteError, ShapeError, StateError
from bayesagg_pyro.heads._standardising import Standardising
from bayesagg_pyro.posteriors import Posterior

if TYPE_CHECKING:
    from bayesagg_pyro.engine.stateful import Stateful

#: Raised with every change that older code could not read.
FORMAT = 2
_REFIT = "or take the weights alone with strict=False and call refit(batches)"


@dataclass(frozen=True)
class Loading:
    """A state that has passed all checks, on its way into an engine.

    Attributes:
        own: the engine's entries; {} where weights come alone.
        names: heads that it holds.
        made: {name: new slot with its state}, of heads whose weights have a place.
        before: weights of heads that keep a posterior of their own, as they were.
        missing: entries that the engine wants and the state lacks, and
        unexpected: those that it does not know.
    """

    own: dict[str, Tensor]
    names: list[str]
    made: dict[str, Slot]
    before: dict[str, Tensor]
    missing: list[str]
    unexpected: list[str]


def state(engine: Stateful) -> dict[str, Tensor]:
    """All that a resumed run needs beside the heads' tensors; only reads and copies."""
    found = {
        "format": number(FORMAT),
        "warmup": number(engine.warmup),
        "epochs": number(engine._epochs),
        **read_generator(engine._generator),
        **named("aggregation", engine.aggregation.state_dict()),
    }
    for name, slot in engine._slots.items():
        if slot.placed:
            found |= named(f"priors.{name}", slot.tracker.state_dict())
            found |= named(f"held.{name}", _held(slot))
            found |= named(f"streams.{name}", read_generator(slot.generator))
            for owner, generator in _own_generators(slot).items():
                found |= named(f"streams.{name}.{owner}", read_generator(generator))
    # Whether entries were lost on the way shows in no other place: a part may be empty.
    return {**found, "entries": number(len(found))}


def checked(engine: Stateful, state_dict: Mapping[str, Any], prefix: str, strict: bool) -> Loading:
    """Check a saved state and give what is to be taken over; changes nothing.

    Raises:
        BayesAggError: naming what is wrong with the state.
    """
    inside = {k[len(prefix) :]: v for k, v in state_dict.items() if k.startswith(prefix)}
    old = "_extra_state" in inside
    for key, value in inside.items():
        if key != "_extra_state" and not isinstance(value, Tensor):
            kind = type(value).__name__
            raise StateError(f"a state holds tensors alone, but {key!r} is a {kind}")
    unexpected = [k for k in inside if k.partition(".")[0] not in ("heads", "state")]
    own = part(inside, "state")
    if own or strict:
        _check_format(own, old, strict)
    saved = dict.fromkeys(key.split(".")[1] for key in own if key.startswith("held."))
    names = [name for name in engine.heads if name in saved]
    if strict:
        check_names(saved, engine.heads)
        if unexpected:
            raise StateError(f"the state dict has an entry {unexpected[0]!r} that no engine has")
    missing = [f"state.held.{name}" for name in engine.heads if name not in saved]
    unexpected += [f"state.held.{name}" for name in saved if name not in engine.heads]
    if own and (entries := count(own, "entries")) != len(own) - 1:
        missing.append(f"state.* ({len(own) - 1} of {entries} entries)")
    _check_weights(engine, inside, strict)
    made = _made(engine, own, names)
    if own and not _rehearse(engine, own, strict):
        missing.append(f"state.aggregation ({engine.aggregation!r})")
    before = {
        name: slot.head.point().detach().clone()
        for name, slot in engine._slots.items()
        if name not in names and slot.placed and part(inside, f"heads.{name}")
        if slot.tracker.posterior is not None
    }
    return Loading(own, names, made, before, missing, unexpected)


def commit(engine: Any, keys: Any) -> None:
    """Put what was checked in force; called once torch has loaded the heads' tensors."""
    loading: Loading | None = engine._loading
    engine._loading = None
    if loading is None:
        return
    own = loading.own
    for slot in engine._slots.values():
        if not slot.placed:
            slot.restart()  # its weights may have got a place
    late = [name for name in loading.names if name not in loading.made]
    engine._slots = {**engine._slots, **loading.made, **_made(engine, own, late)}
    for name, slot in engine._slots.items():
        if name not in loading.names:
            slot.weight_then = loading.before.get(name, slot.weight_then)
    if not own:
        return
    engine.warmup, engine._epochs = bool(count(own, "warmup", most=1)), count(own, "epochs")
    set_generator(engine._generator, own)
    for name, slot in engine._slots.items():
        if not (engine.warmup or slot.learns):
            slot.head.weight.grad = None  # of the warm-up: momentum would move what follows
        if name in loading.names:
            _take_stream(slot, part(own, f"streams.{name}"))
    _take_aggregation(engine, own)
    engine._validation.forget()
    engine._processes.joined = False  # others may have loaded something else, or nothing


def _made(engine: Stateful, own: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Slot]:
    """New slots with their state, of heads whose weights have a place."""
    made = {name: copy(engine._slots[name]) for name in names if engine._slots[name].placed}
    for name, slot in made.items():
        slot.restart()
        slot.tracker.load_state_dict(part(own, f"priors.{name}"))
        _take_held(slot, part(own, f"held.{name}"))
    return made


def _own_generators(slot: Slot) -> dict[str, torch.Generator]:
    """Those that a head's scheme and estimator were given, by whose they are."""
    estimator = slot.estimators[slot.name]
    owners = {
        "scheme": slot.scheme,
        "estimator": estimator,
        "variance": getattr(estimator, "estimator", None),
    }
    found = {name: getattr(owner, "generator", None) for name, owner in owners.items()}
    return {name: own for name, own in found.items() if isinstance(own, torch.Generator)}


def _held(slot: Slot) -> dict[str, Tensor]:
    """The posterior held, its age, the calibration, and `Slot.other_weight`."""
    state = {"due": number(slot.due)}
    if slot.posterior is not None:
        state["age"] = number(slot.age)
        state |= named("posterior", slot.posterior.state_dict())
    if slot.calibration is not None:
        state["calibration"] = saved(slot.calibration)
    if (other := slot.other_weight) is not None:
        state["other_weight"] = saved(other)
    return state


def _take_held(slot: Slot, state: Mapping[str, Tensor]) -> None:
    """Take over what `_held` saved.

    Raises:
        ShapeError: if the posterior is over the weights of another head.
        BayesAggError: if it is no sound state.
    """
    head, posterior, age = slot.head, None, 0
    device, held = head.weight.device, part(state, "posterior")
    if held:
        posterior = Posterior.from_state_dict(held, device)
        head.check_weights(posterior, "saved posterior")
        age = count(state, "age")
    calibration = None
    if "calibration" in state:
        (found,) = finite(f"head {slot.name!r}", state, ["calibration"])
        if found.shape != (head.tasks,) or not (found > 0).all():
            raise StateError(
                f"head {slot.name!r}: a saved calibration must be {head.tasks} positive numbers, "
                f"not {found.tolist()}"
            )
        calibration = found.to(device, linalg.head_dtype(device))
    slot.posterior, slot.age, slot.due = posterior, age, bool(count(state, "due", most=1))
    slot.calibration = calibration
    if "other_weight" in state:
        (found,) = finite(f"head {slot.name!r}", state, ["other_weight"])
        slot.weight_then = found.to(device)


def _check_format(own: Mapping[str, Tensor], old: bool, strict: bool) -> None:
    if not own:
        found = "an engine's state of format 1" if old else "no engine's state"
        raise StateError(f"the state dict has {found}: load it with what made it, {_REFIT}")
    found_format = count(own, "format")
    if found_format != FORMAT:
        raise StateError(
            f"the state has format {found_format}, this version reads {FORMAT}: load it with the "
            f"version that made it, {_REFIT}"
        )
    entries = count(own, "entries")
    if strict and entries != len(own) - 1:
        raise StateError(
            f"the state was saved with {entries} entries and has {len(own) - 1}: some were lost "
            f"or added; save it again, {_REFIT}"
        )


def _rehearse(engine: Stateful, own: Mapping[str, Tensor], strict: bool) -> bool:
    """Check in advance what the end of loading will read; whether the aggregation takes its own."""
    count(own, "warmup", most=1), count(own, "epochs")
    check_generator(engine._generator, own)
    for name, slot in engine._slots.items():
        streams = part(own, f"streams.{name}")
        check_generator(slot.generator, streams)
        for owner, generator in _own_generators(slot).items():
            check_generator(generator, part(streams, owner))
    undo = of_aggregation(engine.aggregation)
    try:
        engine.aggregation.load_state_dict(part(own, "aggregation"))
    except BayesAggError:
        if strict:
            raise
        return False
    finally:
        undo()
    return True


def _take_stream(slot: Slot, saved: Mapping[str, Tensor]) -> None:
    """Go on with a head's stream, also where only several processes have made it one."""
    if slot.generator is None and "generator" in saved:
        made = torch.Generator(slot.head.weight.device)
        if made.get_state().shape == saved["generator"].shape:  # that of the same kind of device
            slot.draw_from(made)
    set_generator(slot.generator, saved)
    for owner, generator in _own_generators(slot).items():
        set_generator(generator, part(saved, owner))


def _take_aggregation(engine: Stateful, own: Mapping[str, Tensor]) -> None:
    undo = of_aggregation(engine.aggregation)
    try:
        engine.aggregation.load_state_dict(part(own, "aggregation"))
    except BayesAggError:  # refused before under strict; else another kind keeps its own
        undo()


def _check_weights(engine: Stateful, state: Mapping[str, Tensor], strict: bool) -> None:
    """Refuse heads' tensors that are missing, misfit or not finite."""
    for name, head in engine.heads.items():
        given = part(state, f"heads.{name}")
        wanted = head.state_dict()
        learned = {key for key, _ in head.named_parameters()}
        # An older state lacks all of it.
        newer = set(head.newer_state if isinstance(head, Standardising) else ())
        lacking = sorted(wanted.keys() - given.keys() - (set() if newer & given.keys() else newer))
        unknown = sorted(given.keys() - wanted)
        if strict and (lacking or unknown):
            raise StateError(
                f"the state of head {name!r} lacks {lacking} and has unknown {unknown}; make the "
                "heads as saved"
            )
        for key in wanted.keys() & given.keys():
            new, old = given[key], wanted[key]
            if not isinstance(old, Tensor):
                continue
            if new.shape != old.shape:
                raise ShapeError(
                    f"head {name!r}: the saved {key!r} has shape {list(new.shape)}, the head's "
                    f"has {list(old.shape)}; make the heads as saved"
                )
            if new.is_floating_point() != old.is_floating_point():
                raise StateError(
                    f"head {name!r}: the saved {key!r} is {new.dtype}, not {old.dtype}"
                )
            # Settings of others' modules may be infinite (bounds of a kernel's parameters).
            if not new.is_floating_point() or new.is_meta:
                continue
            finite = new.isfinite()
            if key not in learned and not old.is_meta:
                finite = finite | (new == old.to(new.device))
            if not finite.all():
                raise NonFiniteError(
                    f"head {name!r}: the saved {key!r} is not finite: the training had failed "
                    "before it was saved; load an earlier state"
                )
