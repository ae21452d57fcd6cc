"""Devices of array libraries: a graphics card by torch, written against the array API so that other libraries can be added.

A name is ``"cpu"`` (numpy in this process), ``"cuda"`` or ``"cuda:1"`` (torch), or the name of a library of the array API and of one of
its devices, such as ``"torch:cpu"`` or ``"array_api_strict:device1"``, with which the same code is tested without a card.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

import numpy as np

from streampca.errors import NotAvailableError
from streampca.system.optional import optional_module
from streampca.typing import Array, DType

HOST = "cpu"
"""The device of numpy: this process."""
_FULL_RATE = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
"""Compute capabilities of cards whose float64 products take twice as long as float32 ones, and not 32 or 64 times (CUDA C++ Programming Guide,
arithmetic instructions)."""
STAGED = 2
"""Page-locked buffers of a thread: one is copied while the next is filled."""
_LARGE = 2**20
SHARE = 0.9
"""Share of the free memory of a device that a plan may use; the rest is for its library."""


@lru_cache(maxsize=8)
def device_of(name: str) -> Device:
    """Return the device of that name, which is started if it was not before.

    Raises
    ------
    NotAvailableError
        If its library is not installed, or there is no such device.
    """
    return Device(name)


class Device:
    """A device and the library that computes on it; arrays on it are those of the library.

    Parameters
    ----------
    name : str
        As the module says; not ``"cpu"``.
    """

    def __init__(self, name: str):
        library, _, place = name.partition(":")
        if library == "cuda":
            library, place = "torch", name
        self.name = name
        purpose = f"device={name!r}"
        package = optional_module(library, purpose, "torch")
        if library == "torch":
            optional_module("array_api_compat", purpose, "torch")
            self.xp: Any = optional_module("array_api_compat.torch", purpose, "torch")
            self.place: Any = package.device(place)
            if self.place.type == "cuda" and not package.cuda.is_available():
                raise NotAvailableError(
                    f"{purpose}: torch finds no graphics card ({package.__version__}): expected one with its driver; device='cpu' computes here"
                )
        else:
            self.xp = package
            known = {str(each): each for each in package.__array_namespace_info__().devices()}
            found = next((each for text, each in known.items() if place.lower() in text.lower()), None)
            if found is None:
                raise NotAvailableError(f"{purpose}: {library} has the devices {', '.join(known)}")
            self.place = found
        self._names = {str(self.place)}
        self.on_card = library == "torch" and self.place.type == "cuda"
        self.wide = not self.on_card or package.cuda.get_device_capability(self.place) in _FULL_RATE
        """Whether products are in float64; else in float32, with sums in float64."""
        self._torch = package if library == "torch" else None
        self._local, self._kept = threading.local(), dict[int, tuple[Any, Any]]()
        self._lock, self._users, self._precision = threading.Lock(), 0, ""
        if self.on_card and self.place.index is None:
            self._names.add(f"cuda:{package.cuda.current_device()}")  # as tensors name it
        self._copying = package.cuda.Stream(self.place) if self.on_card else None

    @property
    def description(self) -> str:
        """Return the name of the card, or of the library and its device."""
        return str(self._torch.cuda.get_device_name(self.place)) if self.on_card else self.name  # type: ignore[union-attr]

    def free_bytes(self) -> int | None:
        """Return the memory that is free on it; None where the library does not know."""
        if not self.on_card:
            return None
        torch: Any = self._torch
        with torch.cuda.device(self.place):
            held = torch.cuda.memory_reserved(self.place) - torch.cuda.memory_allocated(self.place)
            return int(torch.cuda.mem_get_info(self.place)[0]) + int(held)

    def has(self, values: Any) -> bool:
        """Return whether `values` are an array of the library that is on the device."""
        return not isinstance(values, np.ndarray) and str(getattr(values, "device", "")) in self._names

    def dtype(self, dtype: DType) -> Any:
        """Return the library's type for a type of numpy that it has."""
        return getattr(self.xp, dtype.name)

    def zeros(self, shape: tuple[int, ...]) -> Any:
        """Return an array of float64 zeros."""
        return self.xp.zeros(shape, dtype=self.xp.float64, device=self.place)

    def send(self, rows: Array, dtype: DType | None = None) -> Any:
        """Return a copy of `rows`, float32 or float64, on the device, converted there to `dtype`.

        To a card it goes through a page-locked buffer of this thread, beside the products that are under way.
        """
        there = self._staged(rows) if self.on_card else self._copied(rows)
        return there if dtype is None or dtype == rows.dtype else self.xp.astype(there, self.dtype(dtype))

    def _copied(self, rows: Array) -> Any:
        if self._torch is not None:
            return self._torch.from_numpy(np.array(rows, order="C")).to(self.place)
        return self.xp.asarray(np.array(rows, order="C"), device=self.place)

    def _staged(self, rows: Array) -> Any:
        """Return a copy of `rows` on the card, through page-locked memory: of large ones one of two buffers of this thread, once it is copied."""
        torch, turn, held = cast(Any, self._torch), 0, None
        ring: dict[Any, Any] = self._local.__dict__
        large = rows.nbytes >= _LARGE
        if large:
            turn = ring["turn"] = (ring.get("turn", -1) + 1) % STAGED
            held, copied = ring.get(turn, (None, None))
            if copied is not None:
                copied.synchronize()
        if held is None or held.numel() < rows.nbytes:
            # Torch reuses page-locked memory that is given up once its copies are done.
            held = torch.empty(rows.nbytes, dtype=torch.uint8, pin_memory=True)
        buffer = held[: rows.nbytes].view(self.dtype(rows.dtype)).view(rows.shape)
        np.copyto(buffer.numpy(), rows)
        computing = torch.cuda.current_stream(self.place)
        with torch.cuda.stream(self._copying):  # whose memory no product that is under way has
            there = torch.empty(rows.shape, dtype=buffer.dtype, device=self.place)
            there.copy_(buffer, non_blocking=True)
            copied = self._copying.record_event()  # type: ignore[union-attr]
        computing.wait_event(copied)
        there.record_stream(computing)
        if large:
            ring[turn] = held, copied
        return there

    def keep(self, array: Array, dtype: DType) -> Any:
        """Return `array` on the device in `dtype`, sent once as long as it lives."""
        found = self._kept.get(id(array))
        if found is not None and found[0]() is array and found[1].dtype == self.dtype(dtype):
            return found[1]
        there = self.send(array, dtype)
        key = id(array)

        def forget(_: object) -> None:
            self._kept.pop(key, None)

        self._kept[key] = weakref.ref(array, forget), there
        return there

    def fetch(self, there: Any) -> Array:
        """Return a copy of an array of the device in the memory of this process."""
        if self._torch is not None:
            there = there.detach().float() if there.dtype == self._torch.bfloat16 else there.detach()
            return np.asarray(there.cpu().numpy())
        return np.array(self.xp.asarray(there, device=self.xp.Device("CPU_DEVICE")))

    def add_product(self, total: Any, left: Any, right: Any) -> None:
        """Add leftᵀ right to `total`, float64, in its memory."""
        if self._torch is not None and left.dtype == total.dtype:
            total.addmm_(left.T, right)
            return
        total += self.xp.astype(left.T @ right, total.dtype)

    @contextmanager
    def exact_products(self) -> Iterator[None]:
        """Keep torch from shortening float32 products (TF32) as long as a thread is in this context, and restore its setting after the last."""
        if self._torch is None:
            yield
            return
        with self._lock:
            if not self._users:
                self._precision = self._torch.get_float32_matmul_precision()
                self._torch.set_float32_matmul_precision("highest")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._torch.set_float32_matmul_precision(self._precision)


def multiply_on(name: str, rows: Array, axes: Array, out: Array) -> None:
    """Write ``rows @ axes``, float32 or float64, to `out`, by numpy or on the device of that name."""
    if name == HOST:
        np.matmul(rows, axes, out=out)
        return
    device = device_of(name)
    dtype = np.dtype(np.float64) if device.wide else rows.dtype
    with device.exact_products():
        out[...] = device.fetch(device.send(rows, dtype) @ device.send(axes, dtype))
