"""The calls that one Bayesian step makes inside the library, as a tree: python -m benchmarks.trace.

It is what somebody reads who follows the step of one head, on one process, for the first time. By
default the head is binary and its own weights give the gradient; with `--infer` weights of tasks
read the gradients' variance, so a posterior is made.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, heads

_LIBRARY = Path(ba.__file__).parent
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class Call(NamedTuple):
    """A function of the library that is entered.

    Attributes:
        depth: how many others of the library are entered and not left yet.
        file: its file, below the library.
        name: its qualified name.
    """

    depth: int
    file: str
    name: str


def calls_of_a_step(*, infers: bool = False) -> list[Call]:
    """In their order; comprehensions are not counted, which newer Pythons run in their function.

    Args:
        infers: whether the step makes a posterior, which this head's needs by default for
            predictions alone.
    """
    torch.manual_seed(0)
    rule = aggregation.PrecisionWeighted() if infers else None
    backbone, mtl = torch.nn.Linear(6, 8), ba.BayesAgg({"label": heads.Bernoulli(8)}, rule)
    x = torch.randn(32, 6)
    y = {"label": (x[:, :1] > 0).float()}
    mtl.backward(backbone(x), y)
    mtl.update_prior()
    mtl.start_bayes()
    mtl.backward(backbone(x), y)
    features, found, depth = backbone(x), list[Call](), 0

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth
        code = frame.f_code
        path = Path(code.co_filename)
        if not path.is_relative_to(_LIBRARY) or code.co_name in _COMPREHENSIONS:
            return
        if event == "call":
            name = getattr(code, "co_qualname", code.co_name)
            found.append(Call(depth, str(path.relative_to(_LIBRARY)), name))
            depth += 1
        elif event == "return":
            depth -= 1

    sys.setprofile(look)
    try:
        mtl.backward(features, y)
    finally:
        sys.setprofile(None)
    return found


def main() -> None:
    calls = calls_of_a_step(infers="--infer" in sys.argv[1:])
    for call in calls:
        print(f"{'  ' * call.depth}{call.name}  ({call.file})")
    files = Counter(call.file for call in calls)
    functions = {call[1:] for call in calls}
    print(f"\n{len(calls)} calls of {len(functions)} functions in {len(files)} files")
    for file, count in files.most_common():
        print(f"{count:4} {file}")


if __name__ == "__main__":
    main()
