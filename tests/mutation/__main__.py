"""A mutation test of the stages: small faults are planted one by one, and the tests should fail.

    make coverage
    python -m tests.mutation --count 300 --seed 0

The first tells which test runs which line. The tree is copied, and each mutant meets the tests that
run its line, in a process of its own, seconds each. A call that was interrupted goes on where it
stopped; mutants that survived are tried again once the tests have changed. Survivors stand in
tests/mutation/survivors.md, where a reason is written by hand for those that no test could kill.

Not seen: faults in a process that a test starts, and in lines that only an accelerator runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.mutation.mutants import Mutant, mutant, places
from tests.mutation.process import run, warm
from tests.mutation.report import write
from tests.mutation.tracing import Coverage, digest, recorded
from tests.mutation.verdict import chosen, verdict

AREAS = {
    "heads": "bayesagg_pyro/heads/*.py",
    "aggregation": "bayesagg_pyro/aggregation/*.py",
    "gradients": "bayesagg_pyro/gradients/*.py",
    "inference": "bayesagg_pyro/inference/*.py",
    "priors": "bayesagg_pyro/priors/*.py",
    "posteriors": "bayesagg_pyro/posteriors/*.py",
    "predictive": "bayesagg_pyro/predictive/*.py",
    "engine": "bayesagg_pyro/engine/*.py",
    "diagnostics": "bayesagg_pyro/diagnostics/*.py",  # and not how figures look
    "shared": "bayesagg_pyro/*.py",
}
#: Folders of tests that are of other parts than the library, or slow and wide, or of this.
SKIPPED = {
    "experiments", "fuzz", "images", "models", "mutation", "qm9", "qm9_scale", "report", "runner",
    "studies", "swap",
}  # fmt: skip
#: Seconds of tests that meet a mutant first; most are killed by then.
_FIRST = 3.0


def sources(root: Path, *areas: str) -> list[Path]:
    """Files that faults are planted in, of some areas or of all."""
    found = [path for area in areas or AREAS for path in sorted(root.glob(AREAS[area]))]
    return [path for path in found if path.name not in ("__init__.py", "errors.py")]


def sample(root: Path, count: int, seed: int, only: str) -> list[Mutant]:
    """Mutants from all areas in turn, at most one of a statement.

    Args:
        root: of the tree.
        count: as many as are wanted.
        seed: of the choice.
        only: what their paths start with.
    """
    choose = random.Random(seed)
    waiting = []
    for area in AREAS:
        sites = []
        for path in sources(root, area):
            name, source = str(path.relative_to(root)), path.read_text(encoding="utf-8")
            if name.startswith(only):
                sites += [(name, source, choose.choice(numbers)) for numbers in places(source)]
        choose.shuffle(sites)
        waiting.append(sites)
    found: list[Mutant] = []
    while len(found) < count and any(waiting):
        for sites in waiting:
            while sites:
                one = mutant(*sites.pop())
                if one is not None:
                    found.append(one)
                    break
    return found[:count]


def snapshot(root: Path, folder: Path) -> None:
    """Copy what git would keep of a tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=root, capture_output=True, check=True, text=True,
    )  # fmt: skip
    for name in listed.stdout.split("\0"):
        if name and (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)


def judge(
    root: Path, found: Sequence[Mutant], coverage: Coverage, results: dict[str, Any],
    limit: float, jobs: int,
) -> dict[str, Any]:  # fmt: skip
    """Results of some mutants: {key: {"status", ...}}."""
    kills = Counter((one["path"], one["by"]) for one in results.values() if "by" in one)
    new: dict[str, Any] = {}
    for seconds in (_FIRST, limit):
        left = [
            one for one in found if new.get(one.key, {"status": ""})["status"] in ("", "survived")
        ]
        calls, costs = [], []
        for one in left:
            before = {test: n for (path, test), n in kills.items() if path == one.path}
            tests = chosen(coverage.of(one.path, one.lines), coverage.seconds, before, seconds)
            calls.append(lambda one=one, tests=tests: verdict(root, one, tests) if tests else NONE)
            costs.append(2 * sum(coverage.seconds[test] for test in tests) + 10)
        for one, outcome in zip(left, run(calls, costs, jobs), strict=True):
            new[one.key] = {**asdict(one), **(outcome or {"status": "timeout"})}
    return new


NONE = {"status": "survived", "tests": 0}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=300, help="mutants")
    parser.add_argument("--seed", type=int, default=0, help="of their choice")
    parser.add_argument("--only", default="", help="start of the paths to plant in")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--limit", type=float, default=60, help="seconds of tests for a mutant")
    parser.add_argument("--out", type=Path, default=Path("results/mutation"))
    parser.add_argument("--coverage", type=Path, default=Path("results/coverage"))
    options = parser.parse_args(arguments)
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).resolve().parents[2]
    os.nice(5)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    coverage = recorded(here, options.coverage.resolve(), sources(here))
    for test in [one for one in coverage.seconds if Path(one).parts[1] in SKIPPED]:
        del coverage.seconds[test]
    warm()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        snapshot(here, root)
        tests = digest(sorted((root / "tests").rglob("*.py")))
        log = options.out / "results.json"
        results = json.loads(log.read_text(encoding="utf-8")) if log.exists() else {}
        found = sample(root, options.count, options.seed, options.only)
        left = [
            one
            for one in found
            if one.key not in results
            or (results[one.key]["status"] == "survived" and results[one.key]["of"] != tests)
        ]
        size = 16 * options.jobs
        for start in range(0, len(left), size):
            part = left[start : start + size]
            new = judge(root, part, coverage, results, options.limit, options.jobs)
            results |= {key: {**one, "of": tests} for key, one in new.items()}
            log.write_text(json.dumps(results, indent=1), encoding="utf-8")
            print(
                f"{start + len(part)} of {len(left)}:",
                dict(Counter(o["status"] for o in new.values())),
                flush=True,
            )
        write(here / "tests/mutation/survivors.md", found, results)


if __name__ == "__main__":
    main()
