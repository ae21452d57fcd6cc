"""All randomness: what a row, a feature or a solver draws depends on (seed, purpose, index) and on nothing else."""

from __future__ import annotations

import numpy as np
import xxhash


def generator(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """Return the generator that belongs to (seed, purpose, index).

    xxhash64 of the three keys the counter-based Philox generator (Salmon et al. 2011), so any worker draws the same
    numbers for the same address in any order.
    """
    address = f"{seed}/{purpose}/{index}".encode()
    key = [xxhash.xxh64_intdigest(address, seed=half) for half in (0, 1)]
    return np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))
