"""Randomness: a stream for each head, so that the order of heads does not matter."""

from __future__ import annotations

import hashlib

import torch

from bayesagg_pyro.errors import DtypeError


def streams(
    generator: torch.Generator | None, names: list[str]
) -> dict[str, torch.Generator | None]:
    """One generator per name, on the given one's device: what a head draws depends on no other.

    Args:
        generator: gives one number; None gives None for every name.
        names: of the heads.

    Raises:
        DtypeError: for what is no generator, such as a seed.
    """
    if generator is None:
        return dict.fromkeys(names)
    if not isinstance(generator, torch.Generator):
        raise DtypeError(
            f"generator must be a torch.Generator, such as torch.Generator().manual_seed(0), not "
            f"{generator!r}"
        )
    base = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    made: dict[str, torch.Generator | None] = {}
    for name in names:
        digest = hashlib.blake2b(f"{base}:{name}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "little") >> 1
        made[name] = torch.Generator(generator.device).manual_seed(seed)
    return made
