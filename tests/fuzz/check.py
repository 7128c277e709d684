"""A life, call by call, and what must hold of every one.

A call is either refused by an error of the library, and then nothing has changed; or it is taken,
and then what comes out is finite, and right as far as an oracle or a law can tell.
"""

from __future__ import annotations

import contextlib
import copy
import io
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro.errors import (
    BayesAggError,
    DtypeError,
    NonFiniteError,
    NumericalError,
    SettingError,
)
from tests.fuzz import laws, oracle
from tests.fuzz.broken import Broken, untyped
from tests.fuzz.build import Batch, batch, engine
from tests.fuzz.draw import Call, Case
from tests.fuzz.outputs import check_predicted, check_predictive
from tests.fuzz.snapshot import changed, flat, snapshot
from tests.fuzz.spoil_state import spoilt_state

__all__ = ["run"]


def run(case: Case) -> Broken | None:
    """Live the case; what broke first, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*torch.jit.script")  # third-party imports
        true = "badly conditioned", "nothing to weigh", "unlike the rest"  # and in so many words
        for said in true:
            warnings.filterwarnings("ignore", f".*{said}")
        try:
            Life(case).live()
        except Broken as broken:
            return broken
    return None


@contextlib.contextmanager
def _mode(name: str) -> Iterator[None]:
    modes: dict[str, Callable[[], Any]] = {
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    }
    with modes[name]() if name else contextlib.nullcontext():
        yield


class Unfit(Exception):
    """The settings do not fit each other, which was said before anything happened."""


class Life:
    """An engine between calls, and what is known of it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.taken = False  # whether a batch was
        self.wild = False  # whether one that might have been refused was taken
        self.heavy = False  # whether one that outweighs others by 1e10 and more was taken
        self.far = False  # whether one with targets of 1e10 and more was
        self.collected = False
        self.prior = False
        self.doubled = False

    def live(self) -> None:
        """All calls in turn."""
        try:
            self.mtl = engine(self.case)
        except BayesAggError:
            return  # a refusal in the constructor is always right
        except Exception as error:
            raise untyped("constructor", error) from error
        for index, call in enumerate(self.case.calls):
            try:
                getattr(self, f"_{call.do}")(call)
            except Broken as broken:
                broken.call = index
                raise
            except Unfit:
                return

    # -- the transaction -------------------------------------------------------------------------

    def _attempt(
        self,
        call: Call,
        action: Callable[[], Any],
        *,
        may_refuse: bool = False,
        reads: bool = False,
    ) -> tuple[bool, Any]:
        """Whether the call was taken, and its result."""
        before = self._snapshot()
        try:
            with _mode(call.mode):
                result = action()
                self.mtl.raise_deferred()
        except BayesAggError as error:
            if difference := self._changed(before):
                raise Broken(
                    f"refused {call.do} changed {_kinds(difference)}", str(error)
                ) from error
            with contextlib.suppress(NonFiniteError):  # a flag that was set before the error
                self.mtl.raise_deferred()
            self._judge(call, error, may_refuse)
            return False, None
        except Broken:
            raise
        except Exception as error:
            raise untyped(call.do, error) from error
        after = self._snapshot()
        if reads and (difference := changed(before, after)):
            raise Broken(f"{call.do} changed {_kinds(difference)}", str(difference))
        if call.do in ("collect", "update_prior", "start_bayes"):
            # Heads that no longer learn drop their gradients.
            dropped = {path for path, value in after.items() if value is None}
            found = set(changed(before, after)) - dropped
            grads = [path for path in found if path.startswith("grad/")]
            if grads:
                raise Broken(f"{call.do} changed gradients", str(grads))
        self._finite(call, before, after)
        return True, result

    def _changed(self, before: dict[str, Any]) -> list[str]:
        """What a refused call has changed; validation that is deferred has gone on meanwhile."""
        after = self._snapshot()
        return [] if self.mtl._validation.mode == "deferred" else changed(before, after)

    def _judge(self, call: Call, error: BayesAggError, may_refuse: bool) -> None:
        if may_refuse or not call.tame:
            return
        if call.weight and "LaplaceTorch" in repr(self.case):
            return  # which has no weights
        if isinstance(error, SettingError | DtypeError):
            if not self.taken and not call.form:
                raise Unfit from error
            raise Broken(f"late {type(error).__name__} in {call.do}", str(error)) from error
        if isinstance(error, NumericalError | NonFiniteError) and self._touchy():
            return
        kind = "refused after a wild batch was taken" if self.wild else "refused"
        raise Broken(f"tame {call.do} {kind}: {type(error).__name__}", str(error)) from error

    def _touchy(self) -> bool:
        """Whether draws may coincide, exponentials overflow, or the precision at hand not do."""
        few = any("draws=4" in (part.scheme or "") for part in self.case.parts)
        steep = ("Poisson", "NegativeBinomial", "Heteroscedastic")
        narrow = any("dtype=torch.float16)" in (part.prior or "") for part in self.case.parts)
        return (
            few
            or narrow
            or self.heavy
            or self.far
            or any(name in part.head for name in steep for part in self.case.parts)
        )

    def _snapshot(self) -> dict[str, Any]:
        try:
            return snapshot(self.mtl)
        except Exception as error:
            raise untyped("state_dict", error) from error

    def _finite(self, call: Call, before: dict[str, Any], after: dict[str, Any]) -> None:
        """What was finite, or is new, is finite."""
        for path, value in after.items():
            if isinstance(value, Tensor) and value.is_floating_point() and "info" not in path:
                old = before.get(path)
                was = not isinstance(old, Tensor) or bool(old.isfinite().all())
                if was and not value.isfinite().all():
                    raise Broken(f"{call.do} left {_kinds([path])} not finite", path)

    # -- training --------------------------------------------------------------------------------

    def _batch(self, call: Call) -> Batch:
        return batch(self.case, call, dict(self.mtl.heads.items()))

    def _backward(self, call: Call) -> None:
        given = self._batch(call)
        leaf = given.leaf()
        graphless = call.mode in ("no_grad", "inference")
        x = leaf * 1 if isinstance(leaf, Tensor) else leaf
        if self._plain(call, given):
            laws.check(self.case, self.mtl, call, given)
        early = not self.mtl.warmup and not self.prior
        self.mtl.zero_grad(set_to_none=True)
        taken, losses = self._attempt(
            call,
            lambda: self.mtl.backward(x, given.targets),
            may_refuse=graphless or early or bool(given.spoilt),
        )
        self._must_refuse(call, given, taken, graphless)
        if not taken:
            self._untouched(leaf, x)
            return
        self._took(call)
        self._absent(given, losses)
        laws.all_finite("backward", {"losses": losses, "update": leaf.grad})
        self.mtl.zero_grad(set_to_none=True)
        if any("in_place" in (part.prior or "") for part in self.case.parts):
            return  # priors that the step kept have changed since
        try:
            oracle.check_step(self.mtl, leaf.grad)
        except Broken:
            raise
        except BayesAggError as error:
            raise Broken("what a step kept cannot be read", str(error)) from error

    def _absent(self, given: Batch, losses: dict[str, Tensor]) -> None:
        """A task without a label has no loss, which is not the same as a loss of 0."""
        for name, head in self.mtl.heads.items():
            parsed = head.parse_targets(given.targets[name], len(given.features))
            if (losses[name][parsed.counts() == 0] == 0).any():
                raise Broken("the loss of a task without any label is 0", str(losses))

    def _collect(self, call: Call) -> None:
        given = self._batch(call)
        if self._plain(call, given):
            laws.check(self.case, self.mtl, call, given)
        action = lambda: self.mtl.collect(given.features, given.targets)  # noqa: E731
        taken, _ = self._attempt(call, action, may_refuse=bool(given.spoilt))
        self._must_refuse(call, given, taken, False)
        if taken:
            self._took(call)

    def _plain(self, call: Call, given: Batch) -> bool:
        return bool(call.law) and not (given.spoilt or call.mode or self.heavy) and call.tame

    def _took(self, call: Call) -> None:
        self.collected = self.taken = True
        self.wild = self.wild or not call.tame
        self.far = self.far or call.targets >= 1e10
        self.heavy = self.heavy or call.weight == "huge" or call.features >= 1e10

    def _must_refuse(self, call: Call, given: Batch, taken: bool, graphless: bool) -> None:
        if taken and given.spoilt and call.spoil != "weight int":
            raise Broken(f"{call.do} takes {call.spoil}", "")
        if taken and graphless:
            raise Broken(f"{call.do} works without gradients", call.mode)

    def _untouched(self, leaf: Any, x: Any) -> None:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return
        if leaf.grad is not None and (self.mtl._validation.mode != "deferred" or leaf.grad.any()):
            raise Broken("refused backward left a gradient in the features", "")
        if leaf.grad is not None:
            return
        try:
            x.sum().backward()
        except RuntimeError as error:
            raise Broken("refused backward freed the features' graph", str(error)) from error

    def _update_prior(self, call: Call) -> None:
        fresh = any("Fresh" in (part.prior or "") for part in self.case.parts)
        shown = self._batch(Call(seed=call.seed))
        batches = [(shown.features, shown.targets)] * 2 if fresh else None
        taken, _ = self._attempt(
            call, lambda: self.mtl.update_prior(batches), may_refuse=not self.collected
        )
        if taken:
            self.collected, self.prior = False, True

    def _start_bayes(self, call: Call) -> None:
        self._attempt(call, self.mtl.start_bayes, may_refuse=not self.prior)

    def _step(self, call: Call) -> None:
        """A step of the heads' own parameters, of bounded length."""
        with torch.no_grad():
            for weight in self.mtl.parameters():
                if weight.requires_grad:
                    weight.mul_(0.95)

    def _double(self, call: Call) -> None:
        self._attempt(call, self.mtl.double)
        self.doubled = True

    # -- predictions -----------------------------------------------------------------------------

    def _predict(self, call: Call) -> None:
        given = self._batch(call)
        taken, found = self._attempt(call, lambda: self.mtl.predict(given.features), reads=True)
        if taken:
            check_predicted(self.mtl, given, found, call)

    def _predictive(self, call: Call) -> None:
        given = self._batch(call)
        taken, found = self._attempt(
            call,
            lambda: self.mtl.predictive(given.features),
            may_refuse=not self.prior,
            reads=True,
        )
        if taken and (call.tame or self.mtl._validation.mode != "deferred"):
            with _mode(call.mode):
                check_predictive(self.mtl, given, found, call)

    # -- state -----------------------------------------------------------------------------------

    def _save(self, call: Call) -> None:
        """Into a fresh engine, which goes on in this one's place."""
        self.mtl.zero_grad(set_to_none=True)
        _, state = self._attempt(call, self.mtl.state_dict, reads=True)
        stored = self._stored(state)
        fresh = engine(self.case, seed=self.case.seed + 1)
        fresh = fresh.double() if self.doubled else fresh
        old, self.mtl = self.mtl, fresh
        self._load_into(call, stored)
        if difference := changed(snapshot(old, world=False), snapshot(self.mtl, world=False)):
            raise Broken(f"a loaded engine differs in {_kinds(difference)}", str(difference))
        self._go_on_alike(old, call)

    def _load(self, call: Call) -> None:
        """Into itself."""
        before = snapshot(self.mtl)
        self._load_into(call, self._stored(self.mtl.state_dict()))
        if difference := changed(before, snapshot(self.mtl)):
            raise Broken(f"loading its own state changed {_kinds(difference)}", str(difference))

    def _stored(self, state: Any) -> Any:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        try:
            return torch.load(file, weights_only=True)
        except Exception as error:
            raise Broken(
                "a saved state is not loaded with weights_only", str(error)[:200]
            ) from error

    def _load_into(self, call: Call, state: Any) -> None:
        try:
            with _mode(call.mode):
                self.mtl.load_state_dict(state)
        except Exception as error:
            raise Broken(f"own state refused: {type(error).__name__}", str(error)) from error

    def _load_bad(self, call: Call) -> None:
        path, state = spoilt_state(self.mtl.state_dict(), call.seed)
        before = self._snapshot()
        try:
            self.mtl.load_state_dict(state)
        except BayesAggError as error:
            if difference := changed(before, self._snapshot()):
                raise Broken(f"refused load changed {_kinds(difference)}", path) from error
        except Exception as error:
            broken = untyped(f"load_state_dict of a bad {path}", error)
            if difference := changed(before, self._snapshot()):
                broken.detail += f"; changed {_kinds(difference)}"
            raise broken from error
        else:
            raise Broken(f"bad state taken: {path.rpartition(' ')[2]} {_kinds([path])}", path)

    def _copy(self, call: Call) -> None:
        self.mtl.zero_grad(set_to_none=True)  # torch copies no gradients
        old, self.mtl = self.mtl, copy.deepcopy(self.mtl)
        if difference := changed(snapshot(old), snapshot(self.mtl)):
            raise Broken(f"a copied engine differs in {_kinds(difference)}", str(difference))
        self._go_on_alike(old, call)

    def _go_on_alike(self, old: ba.BayesAgg, call: Call) -> None:
        """The old and the new engine do the same with the next batch."""
        if not old.warmup and not self.prior:
            return
        given = self._batch(Call(examples=3, seed=call.seed))
        one, two = (laws.settled(mtl, given, "backward") for mtl in (old, self.mtl))
        if difference := changed(dict(flat(one)), dict(flat(two))):
            raise Broken(f"after {call.do} the next step differs in {_kinds(difference)}", "")


def _kinds(paths: list[str]) -> str:
    """What the paths belong to, each once; no names of heads and numbers."""
    words = ("generator", "grad/", "statistics", "held", "prior", "posterior", "aggregation")
    found = set()
    for path in paths:
        own = [word.strip("/") for word in words if word in path]
        found.add(own[0] if own else re.sub(r"h\d|\d+", "*", path.partition(" ")[0]))
    return ", ".join(sorted(found)[:3])
