"""Which inputs scikit-learn checks, and lazy arrays of rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.execution.distributed.active_client import share_credentials
from streampca.sources import Source
from streampca.typing import Array, DType

if TYPE_CHECKING:
    pass


def _is_array_like(X: Any) -> bool:
    """Tell whether scikit-learn checks and converts `X`; stores, lazy arrays and memory maps are opened by our own readers."""
    if isinstance(X, np.memmap | str | Path | Source):
        return False
    module = type(X).__module__
    return not module.startswith(("zarr.", "dask.", "xarray.", "anndata."))


def _map_rows(function: Callable[..., Array], lazy: Any, n_columns: int, dtype: DType) -> Any:
    """Return the lazy array of `function` applied to every block of rows, `n_columns` wide."""
    meta = np.empty((0, 0), dtype=dtype)
    return lazy.map_blocks(function, dtype=dtype, chunks=(lazy.chunks[0], (n_columns,)), meta=meta)


def _is_dask(X: Any) -> bool:
    return type(X).__module__.startswith("dask.array")


def _lazy_rows(source: Source) -> Any:
    """Return the rows as a lazy Dask array of blocks of about 32 MiB in whole chunks, readable by an active cluster."""
    share_credentials(source)
    rows = max(1, 2**25 // source.row_bytes)
    return source.to_dask(max(1, source.chunk_rows, rows // source.chunk_rows * source.chunk_rows))
