"""A stand-in for tensors of torch, which is too large for the tests: what is asked of one, on a numpy array."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numpy.typing import NDArray


class Tensor:
    """Rows that are on a card, or of bfloat16, as far as they say."""

    def __init__(self, values: NDArray[Any], dtype: str = "torch.bfloat16", place: str = "cpu"):
        self.values, self.dtype, self.device = values, dtype, SimpleNamespace(type=place, index=None)
        self.shape, self.ndim = values.shape, values.ndim

    def _like(self, values: NDArray[Any], **changes: str) -> Tensor:
        return Tensor(values, **{"dtype": self.dtype, "place": self.device.type} | changes)

    def __getitem__(self, at: Any) -> Tensor:
        return self._like(self.values[at])

    def __len__(self) -> int:
        return len(self.values)

    @property
    def T(self) -> Tensor:  # noqa: N802
        return self._like(self.values.T)

    def detach(self) -> Tensor:
        return self._like(self.values)

    def float(self) -> Tensor:
        return self._like(self.values.astype("f4"), dtype="torch.float32")

    def cpu(self) -> Tensor:
        return self._like(self.values, place="cpu")

    def numpy(self) -> NDArray[Any]:
        assert self.device.type == "cpu", "a tensor on a card has no memory of this process"
        assert "bfloat16" not in self.dtype, "numpy has no bfloat16"
        return self.values


Tensor.__module__ = "torch"
