"""Rows of ``.npy`` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import DamagedChunkError, DataError
from streampca.labels import Dimension, Labels, Variable
from streampca.sources.arrays import MAPPED_BYTES, MappedSource, copy_mapped, mapped_file
from streampca.sources.base import ReadCount, Source
from streampca.sources.files.fragments import FragmentReader
from streampca.sources.files.paths import Files
from streampca.sources.files.records import Fragment, LocalFile
from streampca.sources.formats import ReadOptions
from streampca.sources.named_arrays import open_named
from streampca.sources.objects import NumberedArray
from streampca.storage.files import open_regular
from streampca.typing import Array


class NpyReader(FragmentReader):
    """Reads rows of an ``.npy`` file: into the block itself if it is in C order, through a memory map if in Fortran order."""

    place: LocalFile

    def __init__(self, path: Path):
        mapped = MappedSource.open(path).array  # numpy checks the header, and that the file is as long as it says
        self.place, self.dtype, self.offset = LocalFile(path.absolute()), mapped.dtype, int(mapped.offset)
        self.shape = (int(mapped.shape[0]), int(mapped.shape[1]))
        self.fortran = not mapped.flags.c_contiguous
        self.label, self.record = str(path), Fragment.of(LocalFile(path), self.shape, self.dtype)

    def read(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out` with rows `start` to `stop`."""
        if self.fortran or not out.flags.c_contiguous:
            mapped = self._map()
            copy_mapped(mapped, mapped[start:stop], out)
        else:
            self._fill(start, out)
        return ReadCount(0, out.nbytes, out.nbytes)

    def read_features(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out`, ``(stop - start, n_rows)``, with features `start` to `stop`, through a memory map."""
        mapped = self._map()
        copy_mapped(mapped, mapped[:, start:stop].T, out)
        return ReadCount(0, out.nbytes, out.nbytes)

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory for mapped pages of a file in Fortran order."""
        return MAPPED_BYTES if self.fortran else 0

    def _map(self) -> np.memmap[tuple[int, ...], np.dtype[Any]]:
        """Return the file as an array that is mapped for as long as it is referred to."""
        try:
            return np.memmap(
                self.place.path, self.dtype, "r", self.offset, self.shape, order="F" if self.fortran else "C"
            )
        except (OSError, ValueError) as error:
            raise self._cut_short() from error

    def _fill(self, start: int, out: Array) -> None:
        """Read rows from `start` on into `out`, which is in C order."""
        left = out.reshape(-1).view(np.uint8).data
        with open_regular(self.place.path, buffering=0) as file:
            file.seek(self.offset + start * self.shape[1] * self.dtype.itemsize)
            while len(left):
                n_bytes = file.readinto(left)  # type: ignore[attr-defined]
                if not n_bytes:
                    raise self._cut_short()
                left = left[n_bytes:]

    def _cut_short(self) -> DataError:
        return DamagedChunkError(f"{self.label} is cut short: fewer bytes than its header says; write it again")


def open_npy_files(files: Files, options: ReadOptions) -> tuple[list[NpyReader], Labels, None]:
    """Return readers of ``.npy`` files, and the numbers of rows and columns; `DataError` for one that is not of numbers in two dimensions."""
    readers = [NpyReader(Path(str(file))) for file in files.paths]
    n, d = sum(reader.shape[0] for reader in readers), readers[0].shape[1]
    return (
        readers,
        Labels((Dimension("dim_0", n),), (Dimension("dim_1", d),), (Variable(None, ("dim_1",), (d,)),)),
        None,
    )


def open_npy(path: str, options: ReadOptions) -> Source:
    """Return the rows of one ``.npy`` file, mapped into memory; `DataError` if there is none, or it is not of numbers."""
    options.require_only("an .npy file", path)
    if not Path(path).exists():
        raise DataError(f"{path}: no such file")
    mapped = mapped_file(Path(path))
    if options.by_dimension or mapped.ndim > 2:
        return open_named(NumberedArray(mapped, path), options)
    source = MappedSource.open(Path(path))
    source.fragments = (Fragment.of(LocalFile(Path(path)), source.shape, source.dtype),)
    return source
