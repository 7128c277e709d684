"""How an engine is saved, loaded, copied and moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesagg_pyro._modes import plain
from bayesagg_pyro.aggregation import Aggregation
from bayesagg_pyro.engine import saving
from bayesagg_pyro.engine.info import StepInfo
from bayesagg_pyro.engine.slot import Slot
from bayesagg_pyro.engine.transaction import all_or_nothing, as_a_whole, of_tensors
from bayesagg_pyro.errors import BayesAggError, StateError

if TYPE_CHECKING:
    from typing_extensions import Self


class _Names:
    """Has every name: torch.distributed.checkpoint looks the keys of a state up in its modules."""

    def __getattr__(self, name: str) -> _Names:
        return self

    def __call__(self) -> dict[str, str]:  # torch's _fqn_modifiers()
        return {}


class Stateful(nn.Module):
    """Base of the engine: heads and all that belongs to them, saved, loaded and moved as a whole.

    Attributes:
        heads: {name: head}.
        aggregation: what it remembers is a part of the state.
        warmup: whether the heads are ordinary layers still.
        info: what the last step did.
    """

    heads: nn.ModuleDict
    aggregation: Aggregation
    warmup: bool
    info: StepInfo | None
    _aggregation: Aggregation
    _slots: dict[str, Slot]
    _epochs: int
    _generator: torch.Generator | None

    def __init__(self) -> None:
        super().__init__()
        self._loading: saving.Loading | None = None
        self._strict = False  # while a state is loaded into a module around this one
        self.register_load_state_dict_post_hook(saving.commit)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Take over a state; a state that is refused changes nothing.

        Args:
            state_dict: what `state_dict()` gave: tensors under plain names, those of the heads, and
                `state.…` for warm-up, priors, statistics, posteriors held and generators.
            strict: whether all heads must be there and no others. If not, heads of the same name
                are taken over, and heads whose posterior is not there keep theirs; weights without
                any posterior want a `refit`.
            assign: as for `torch.nn.Module`.

        Returns:
            Missing and unexpected names, as torch does.

        Raises:
            TaskError: if the state is of other heads.
            ShapeError, DtypeError, StateError, NonFiniteError, NumericalError: for what does not
                fit, was made by an earlier version, or is no sound state, naming the entry.
        """
        with plain(), all_or_nothing([of_tensors(self.heads)]), as_a_whole(self):
            self._strict = strict  # torch does not hand it on
            try:
                found = super().load_state_dict(state_dict, strict=strict, assign=assign)
                self._strict = False
                return found
            except BayesAggError:
                raise
            except RuntimeError as error:
                raise StateError(f"the state does not fit this engine: {error}") from error

    @property
    def state(self) -> _Names:
        """For torch alone; the state itself is in `state_dict()`."""
        return _Names()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, tensor in saving.state(self).items():
            destination[f"{prefix}state.{name}"] = tensor

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        self._loading = loading = saving.checked(self, state_dict, prefix, self._strict)
        lists[0].extend(prefix + name for name in loading.missing)
        lists[1].extend(prefix + name for name in loading.unexpected)
        heads = {k: v for k, v in state_dict.items() if k.startswith(f"{prefix}heads.")}
        super()._load_from_state_dict(heads, prefix, local_metadata, strict, *lists)

    def __getstate__(self) -> dict[str, Any]:
        # What `keep_gradients` keeps holds functions, which cannot be pickled.
        light = None if self.info is None else self.info.light()
        return {**self.__dict__, "info": light}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for slot in self._slots.values():
            slot.remember()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        with ExitStack() as stack:
            for slot in self._slots.values():
                stack.enter_context(slot.moving(bayesian=not self.warmup))
            super()._apply(fn, recurse)
        return self
