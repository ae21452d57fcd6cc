"""Random numbers that depend only on (seed, purpose, index), for rows, features and solvers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# The primes of xxhash64, numbered as in its specification.
_PRIME_1, _PRIME_2, _PRIME_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME_4, _PRIME_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def generator(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """Return the random generator of (seed, purpose, index).

    An xxhash64 of the three is the key of the counter-based Philox generator (Salmon et al. 2011), so any worker draws the same
    numbers for the same address in any order.
    """
    import xxhash  # here, because states are imported without it

    address = f"{seed}/{purpose}/{index}".encode()
    key = [xxhash.xxh64_intdigest(address, seed=half) for half in (0, 1)]
    return np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))


def hashes(values: NDArray[np.uint64], seed: int, purpose: str, index: int = 0) -> NDArray[np.uint64]:
    """Return xxhash64 of each of `values` as eight little-endian bytes, by the hash function of (seed, purpose, index).

    The hash of the address is the seed of the function, so functions of different addresses are unrelated. The bits are
    those of ``xxhash.xxh64_intdigest``, without a call for each value.

    References
    ----------
    Collet (2012), xxHash fast digest algorithm, specification of XXH64 for inputs of 8 bytes.
    """
    import xxhash

    start = xxhash.xxh64_intdigest(f"{seed}/{purpose}/{index}".encode()) + _PRIME_5 + 8
    mixed = values * np.uint64(_PRIME_2)
    _rotate(mixed, 31)
    mixed *= np.uint64(_PRIME_1)
    mixed ^= np.uint64(start % 2**64)
    _rotate(mixed, 27)
    mixed *= np.uint64(_PRIME_1)
    mixed += np.uint64(_PRIME_4)
    for shift, prime in ((33, _PRIME_2), (29, _PRIME_3)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(prime)
    mixed ^= mixed >> np.uint64(32)
    return mixed


def _rotate(bits: NDArray[np.uint64], count: int) -> None:
    """Rotate `bits` to the left by `count` places, in place."""
    upper = bits >> np.uint64(64 - count)
    bits <<= np.uint64(count)
    bits |= upper
