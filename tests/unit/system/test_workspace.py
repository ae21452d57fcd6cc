"""Scratch memory that threads hand on to each other between passes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from streampca.system.workspace import borrow, keep_released, release


def _address(purpose: str, n_bytes: int) -> int:
    """Borrow in a thread of its own, release, and return where the memory was."""

    def one() -> int:
        address = int(borrow(purpose, (n_bytes,), np.uint8).__array_interface__["data"][0])
        release()
        return address

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(one).result()


def test_a_thread_takes_what_an_earlier_one_released() -> None:
    with keep_released(2 << 20):
        first = _address("block", 1 << 20)
        assert _address("block", 1000) == first
        held = np.empty(1 << 20, dtype=np.uint8)  # else the allocator may return the same place
        assert _address("panel", 1 << 20) != first
        assert _address("block", 1 << 20) == first
        del held


def test_no_more_than_the_limit_is_kept() -> None:
    from streampca.system import workspace

    with keep_released(1 << 20):
        _address("block", (1 << 20) + 1)
        assert workspace._SHELF.take("block", 1) is None
        _address("block", 1 << 20)
        _address("panel", 1)
        assert workspace._SHELF.take("panel", 1) is None
        assert workspace._SHELF.take("block", 1) is not None


def test_a_buffer_that_is_too_small_is_dropped() -> None:
    from streampca.system import workspace

    with keep_released(1 << 20):
        _address("block", 1000)
        assert workspace._SHELF.take("block", 1001) is None
        assert workspace._SHELF.take("block", 1000) is None


def test_nothing_is_kept_after_the_last_holder() -> None:
    from streampca.system import workspace

    with keep_released(1 << 20):
        with keep_released(0):
            _address("block", 1000)
        assert workspace._SHELF.take("block", 1000) is not None
        _address("block", 1000)
    assert workspace._SHELF.take("block", 1) is None
