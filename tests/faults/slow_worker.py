"""A preload of Dask workers that are started by hand: readings are written down, and take longer while a file is there."""

from __future__ import annotations

import os
import time
from typing import Any

DELAY, LOG, HOLD = "STREAMPCA_TEST_DELAY", "STREAMPCA_TEST_LOG", "STREAMPCA_TEST_HOLD"


def dask_setup(worker: Any) -> None:
    """Slow down the readings of this worker process."""
    import zarr

    from streampca.sources import open_source

    reader: Any = type(open_source(zarr.create_array({}, shape=(1, 1), dtype="f8")))
    read, delay, log, hold = reader.read, float(os.environ[DELAY]), os.environ[LOG], os.environ[HOLD]

    def slow(self: Any, start: int, stop: int, out: Any = None) -> Any:
        if os.path.exists(hold):
            time.sleep(delay)
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {start} {stop}\n")
        return read(self, start, stop, out)

    reader.read = slow
