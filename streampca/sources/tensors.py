"""Torch tensors as arrays if they are in memory, or one block at a time if they are on a card; torch is never imported here."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from streampca.block import rows_of_tensor
from streampca.errors import DataError
from streampca.sources.arrays import ArraySource
from streampca.sources.base import ReadCount, Source, require_table
from streampca.system.device import device_of
from streampca.typing import Array

_SAMPLED = 64


def tensor_rows(tensor: Any, description: str) -> Source:
    """Return the rows of a tensor, ``(n_samples, n_features)``: without a copy, unless it is of bfloat16 or on a card, whose blocks are copied.

    Raises
    ------
    DataError
        If it has another number of dimensions, or no real numbers.
    """
    if tensor.ndim != 2:
        raise DataError(
            f"{description} has shape {tuple(tensor.shape)}: expected (n_samples, n_features); tensor.flatten(1) makes a row of each sample"
        )
    values = tensor.detach()
    if values.device.type == "cpu" and "bfloat16" not in str(values.dtype):
        return ArraySource(values.numpy(), description)
    return TensorSource(values, description)


class TensorSource(Source):
    """A tensor on a card, or of bfloat16: blocks are copies in the memory of the process, float32 for bfloat16."""

    buffered = False
    in_memory = True

    def __init__(self, tensor: Any, description: str):
        self.tensor, self.description = tensor, description
        self.dtype = rows_of_tensor(tensor[:1]).dtype
        self.shape = (int(tensor.shape[0]), int(tensor.shape[1]))
        require_table(self.shape, self.dtype, description)

    @property
    def fingerprint(self) -> str:
        """Return a hash of shape, type and a sample of the rows, which differs between the tensors of one session."""
        sample = np.ascontiguousarray(rows_of_tensor(self.tensor[:: max(1, self.shape[0] // _SAMPLED)][:_SAMPLED]))
        digest = xxhash.xxh3_128(f"{self.shape}{self.dtype}".encode())
        digest.update(sample.data if sample.size else b"")
        return digest.hexdigest()

    def by_features(self) -> TensorSource:
        """Return a source whose rows are the features of this one."""
        return TensorSource(self.tensor.T, self.description)

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes of a block: its copy."""
        return n_rows * self.row_bytes

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return a copy of the rows."""
        values = rows_of_tensor(self.tensor[start:stop])
        return values, ReadCount(0, values.nbytes, values.nbytes)

    def rows_on(self, device: str, start: int, stop: int) -> Any | None:
        """Return the rows as they are, if they are on a card that `device` names."""
        return self.tensor[start:stop] if device_of(device).has(self.tensor) else None
