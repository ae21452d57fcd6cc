"""A preload of Dask workers that are started by hand: readings are written down, and take longer while a file is there."""

from __future__ import annotations

import os
import time
from typing import Any

DELAY, LOG, HOLD = "STREAMPCA_TEST_DELAY", "STREAMPCA_TEST_LOG", "STREAMPCA_TEST_HOLD"


def dask_setup(worker: Any) -> None:
    """Slow down the readings of this worker process."""
    from streampca.sources.zarr.reader import ZarrSource

    read, delay, log, hold = ZarrSource.read, float(os.environ[DELAY]), os.environ[LOG], os.environ[HOLD]

    def slow(self: ZarrSource, start: int, stop: int, out: Any = None) -> Any:
        if os.path.exists(hold):
            time.sleep(delay)
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {start} {stop}\n")
        return read(self, start, stop, out)

    ZarrSource.read = slow  # type: ignore[method-assign]
