"""Variables of files in the classic formats of NetCDF (versions 1 and 2), by scipy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import DataError
from streampca.formatting import one_line
from streampca.sources.files.arrays import ArrayFile, array_of_file
from streampca.sources.named_arrays import NamedArray
from streampca.storage.regular_files import require_regular

_BEGINS = (b"CDF\x01", b"CDF\x02")
_ATTEMPTS = 5
"""Types of records are parsed by Python's parser, which in 3.11 now and then fails with a SystemError where several threads use it."""


def is_netcdf3(path: Path) -> bool:
    """Return whether a file begins as those of the classic formats of NetCDF."""
    try:
        with path.open("rb") as file:
            return file.read(4) in (*_BEGINS, b"CDF\x05")
    except OSError:
        return False


class Netcdf3File(ArrayFile):
    """The variables of a file in a classic format of NetCDF."""

    kind = "variable"

    @contextmanager
    def open(self) -> Iterator[Any]:
        """Open the file, which is mapped into memory."""
        from scipy.io import netcdf_file

        require_regular(self.path)
        with self.path.open("rb") as stored:
            if stored.read(4) not in _BEGINS:
                raise DataError(
                    f"{self.label} is of the 64-bit data format of NetCDF (CDF-5), which is not read: convert it to NetCDF 4, for example "
                    f"by nccopy -k nc4 {self.path.name} FILE"
                )
            stored.seek(0)
            reason, file = "", None
            with warnings.catch_warnings():  # of arrays of a file that could not be opened
                warnings.simplefilter("ignore")
                for _ in range(_ATTEMPTS):
                    try:
                        file = netcdf_file(stored, "r", mmap=True)
                        break
                    except MemoryError:
                        raise
                    except Exception as error:  # noqa: BLE001 a damaged header leads to errors of many kinds
                        reason = one_line(error)
                        if not isinstance(error, SystemError):
                            break
                        stored.seek(0)
            if file is None:
                raise DataError(f"{self.label} cannot be opened as NetCDF 3: it is damaged or cut short: {reason}")
            with file:
                yield file

    def find(self, name: str) -> NamedArray | None:
        """Return a variable."""
        with self.opened_file() as file, self.damage(f"{self.label}: {name}"):
            return _named(name, file.variables[name]) if name in file.variables else None

    def listed(self) -> Mapping[str, NamedArray]:
        """Return all variables."""
        with self.opened_file() as file, self.damage(self.label):
            return {name: _named(name, variable) for name, variable in file.variables.items()}

    def stored(self, file: Any, name: str) -> Any:
        """Return the values of a variable of the open file."""
        return file.variables[name].data


def _named(name: str, variable: Any) -> NamedArray:
    dtype = np.dtype(variable.data.dtype)
    return array_of_file(name, variable.dimensions, variable.shape, dtype, variable._attributes)
