"""Genotypes of PLINK (``.bed`` with ``.fam`` and ``.bim`` beside it): copies of the first allele, people as rows.

bed-reader reads the tables beside the genotypes; these are decoded here, since it takes twice to four times as long for a part of the people.

Source: the PLINK 1 binary format, https://www.cog-genomics.org/plink/1.9/formats#bed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import DataError
from streampca.formatting import one_line
from streampca.labels import Dimension
from streampca.sources.files.arrays import ArrayFile, array_of_file
from streampca.sources.formats import ReadOptions
from streampca.sources.named_arrays import NamedArray, required
from streampca.storage.files import require_regular
from streampca.system.optional import optional_module
from streampca.typing import Array

_TABLE, _MISSING = "genotype", -127
_BESIDE = {
    "samples": {
        "samples": "iid",
        "family": "fid",
        "father": "father",
        "mother": "mother",
        "sex": "sex",
        "pheno": "pheno",
    },
    "variants": {
        **{"variants": "sid", "chromosome": "chromosome", "position": "bp_position", "centimorgan": "cm_position"},
        **{"allele_1": "allele_1", "allele_2": "allele_2"},
    },
}
"""Columns of ``.fam`` and ``.bim`` by their names here, with their names in bed-reader."""
_CHUNK = (256, 1024)
"""People and variants that are decoded at once, so that memory for a few of both is enough; any others take as long for each genotype."""
_READ_BYTES = 2**20
_GENOTYPES = np.array([2, _MISSING, 1, 0], dtype=np.int8)
_QUARTERS = _GENOTYPES[np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3].view(np.uint32)[:, 0]
"""Genotypes of four people, a byte each, for every byte of the file: two bits for each, the first person in the lowest."""


class BedFile(ArrayFile):
    """The genotypes in a ``.bed`` file: ``genotype (samples, variants)``, 0 to 2, missing −127; and what ``.fam`` and ``.bim`` tell of both."""

    kind = "array"

    def __init__(self, path: Path):
        super().__init__(path)
        self._counts: tuple[int, int] | None = None
        for end in (".bed", ".fam", ".bim"):
            if not path.with_suffix(end).exists():
                raise DataError(f"{path.with_suffix(end)}: no such file: expected .bed, .fam and .bim of one name")
            require_regular(path.with_suffix(end))
        with path.with_suffix(".bim").open("rb") as lines:
            if (first := lines.readline(2**16)).strip() and b"\t" not in first:
                raise DataError(
                    f"{path.with_suffix('.bim')}: found no tab in the first line, expected six columns with tabs between them; write it "
                    "again with plink2 --make-just-bim"
                )
        with self.opened_file() as file:
            self._counts = (int(file.iid_count), int(file.sid_count))
        n_bytes, (n, d) = path.stat().st_size, self._counts
        if n_bytes != 3 + d * -(-n // 4):
            raise DataError(
                f"{path} has {n_bytes:,} bytes: expected {3 + d * -(-n // 4):,} for {n:,} people of the .fam and {d:,} variants of the .bim"
            )

    @contextmanager
    def open(self) -> Iterator[Any]:
        """Open the file; `DataError` if it is none of genotypes, variant by variant."""
        bed_reader = optional_module("bed_reader", "a .bed file of PLINK", "genotypes")
        with self.path.open("rb") as file:
            if file.read(3) != b"\x6c\x1b\x01":
                raise DataError(
                    f"{self.label} does not begin as genotypes of PLINK, variant by variant: expected a file that plink --make-bed wrote"
                )
        n, d = self._counts or (None, None)
        try:
            opened = bed_reader.open_bed(self.path, iid_count=n, sid_count=d, num_threads=1)
        except Exception as error:
            raise DataError(f"{self.label} cannot be opened as genotypes of PLINK: {one_line(error)}") from error
        with opened:
            yield opened

    def listed(self) -> Mapping[str, NamedArray]:
        """Return the genotypes, and the columns of ``.fam`` and ``.bim``."""
        sizes = dict(zip(_BESIDE, self._counts or (0, 0), strict=True))
        chunks = [min(n, most) for n, most in zip(sizes.values(), _CHUNK, strict=True)]
        attributes, dtype = {"_FillValue": _MISSING}, np.dtype(np.int8)
        arrays = {_TABLE: array_of_file(_TABLE, list(sizes), list(sizes.values()), dtype, attributes, chunks)}
        for axis, names in _BESIDE.items():
            for name in names:
                kind = np.int32 if name in ("sex", "position") else np.float32 if name == "centimorgan" else "U1"
                arrays[name] = array_of_file(name, [axis], [sizes[axis]], np.dtype(kind), {})
        return arrays

    def default(self, options: ReadOptions) -> list[NamedArray]:
        """Return the genotypes."""
        return [self.listed()[_TABLE]]

    def dimension(self, array: NamedArray, axis: int) -> Dimension:
        """Return a dimension with its names; that of the variants with their alleles, of which the first is counted."""
        dimension = super().dimension(array, axis)
        if array.name != _TABLE or dimension.name != "variants":
            return dimension
        each = (required(self, name) for name in ("allele_1", "allele_2"))
        first, second = (self.read(one, self.title(one)).tolist() for one in each)
        return replace(dimension, alleles=np.array([f"{a}/{b}" for a, b in zip(first, second, strict=True)]))

    def stored(self, file: Any, name: str) -> Array:
        """Return a column of ``.fam`` or ``.bim``."""
        key = next(names[name] for names in _BESIDE.values() if name in names)
        return np.asarray(getattr(file, key))

    def fill(self, name: str, place: tuple[slice, ...], out: Array) -> None:
        """Fill `out`, ``(n_people, n_variants)`` int8, with genotypes."""
        people, variants = place
        width = -(-(self._counts or (0, 0))[0] // 4)  # bytes of a variant
        step = max(1, _READ_BYTES // width)
        with self.path.open("rb") as file:
            for first in range(variants.start, variants.stop, step):
                last = min(first + step, variants.stop)
                file.seek(3 + first * width)
                read = np.frombuffer(file.read((last - first) * width), dtype=np.uint8)
                if len(read) < (last - first) * width:
                    raise DataError(
                        f"{self.label} was cut short while it was read: variants {first} to {last - 1} are missing"
                    )
                some = np.ascontiguousarray(
                    read.reshape(last - first, width)[:, people.start // 4 : -(-people.stop // 4)]
                )
                genotypes = _QUARTERS.take(some).view(np.int8)[:, people.start % 4 :][:, : people.stop - people.start]
                out[:, first - variants.start : last - variants.start] = genotypes.T
