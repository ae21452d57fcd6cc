"""A copy of rows in a temporary file, of which any features are read without decoding chunks again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streampca.execution.leaf import read_ahead
from streampca.execution.progress import Meter, ProgressCallback
from streampca.planning.shape import Leaf
from streampca.sources.arrays import MappedSource
from streampca.sources.base import ReadCount, Source
from streampca.sources.schedule import Schedule
from streampca.storage.directories import require_space
from streampca.system.workspace import release
from streampca.typing import Array

if TYPE_CHECKING:
    from streampca.typing import DaskClient


class RowsOnDisk(MappedSource):
    """Rows that were copied from another source, to an ``.npy`` file; reading them again counts as reading nothing."""

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return a copy of the rows, in `out` if given."""
        return super().read(start, stop, out)[0], ReadCount()

    def by_features(self) -> RowsOnDisk:
        """Return a source whose rows are the features of this one."""
        return RowsOnDisk(self.array.T, self.description)


def copy_rows(
    source: Source,
    path: Path,
    rows_per_block: int,
    read_ahead_bytes: int,
    client: DaskClient | None,
    progress: ProgressCallback | None,
) -> tuple[RowsOnDisk, ReadCount]:
    """Read all rows of a source once, in blocks of `rows_per_block` rows, and write them to the file `path`.

    Raises
    ------
    NoSpaceError
        If there is not enough room for n_samples · n_features values.
    """
    (n, d), count = source.shape, ReadCount()
    require_space(path, n * d * source.dtype.itemsize)
    meter, leaf = Meter("copy", n, progress), Leaf(0, (*range(0, n, rows_per_block), n))
    header = {"descr": np.lib.format.dtype_to_descr(source.dtype), "fortran_order": False, "shape": (n, d)}
    with source.reading(), source.ahead(Schedule.in_order(leaf.spans, read_ahead_bytes)), path.open("xb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for read in read_ahead(source, leaf):
            file.write(np.ascontiguousarray(read.block.values).data)
            count += read.count
            meter.add_block(read.block, read.count)
    release()
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return RowsOnDisk(array, source.description), count
