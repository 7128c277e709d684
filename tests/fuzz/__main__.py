"""`python -m tests.fuzz --cases 20000 --seed 0 --jobs 2`: many lives, and what broke in them."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Iterator

from tests.fuzz.draw import draw
from tests.fuzz.shrink import one, shrunk


def many(seeds: list[str], jobs: int) -> Iterator[tuple[str, str, str] | None]:
    """The cases of all seeds, in order."""
    if jobs == 1:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(one, seeds, chunksize=50)


def main() -> int:
    """Exit status 1 where anything broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many lives")
    parser.add_argument("--seed", default="0", help="of the first; SEED:17 for one case alone")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--no-shrink", action="store_true", help="show cases as they were drawn")
    given = parser.parse_args()
    alone = ":" in given.seed
    seeds = [given.seed] if alone else [f"{given.seed}:{i}" for i in range(given.cases)]
    start = time.perf_counter()
    kinds: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for found in many(seeds, given.jobs):
        if found is not None:
            if found[1] not in kinds:
                print(f"{found[0]}  {found[1]}", flush=True)
            kinds[found[1]].append((found[0], found[2]))
    for kind, cases in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        seed, detail = cases[0]
        print(f"\n{len(cases)} x {kind}\n  {detail[:400]}")
        print(f"  seeds {' '.join(seed for seed, _ in cases[:5])}")
        case = draw(seed)
        print(f"  {case if given.no_shrink else shrunk(case, kind)}")
    broken = sum(map(len, kinds.values()))
    took = time.perf_counter() - start
    print(f"\n{len(seeds)} cases in {took:.0f} s: {broken} broke, of {len(kinds)} kinds")
    return int(broken > 0)


if __name__ == "__main__":
    raise SystemExit(main())
