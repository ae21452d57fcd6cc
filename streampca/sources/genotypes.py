"""Genotypes of VCF Zarr: alleles along the dimension ``ploidy`` become their dosage, the number of alternate alleles.

Source: the VCF Zarr specification 0.4 (``call_genotype``, missing and padded alleles, ``variant_id``, ``sample_id``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from streampca.errors import DataError
from streampca.sources.conventions import Packing
from streampca.sources.formats import ReadOptions
from streampca.sources.steps import Step, SteppedSource, slabs
from streampca.sources.table import StoredVariable
from streampca.typing import Array, BoolArray, DType

PLOIDY = "ploidy"
"""The dimension of the alleles of a genotype."""
MISSING = -1
"""A missing allele, and the dosage of a genotype with one."""
_PADDING = -2
IDENTIFIERS = {"variants": "variant_id", "samples": "sample_id"}
"""Arrays with the names of variants and samples."""
_NO_ID = (".", "")


class Dosage(Step):
    """The number of alternate alleles of a genotype, −1 where an allele is missing; small integers.

    Alleles are 0 for that of the reference, above 0 for others, −1 where missing, and −2 where a genotype has less than
    `ploidy` of them, as those of X and Y: these do not count. A genotype of which all are −2 is missing.

    Parameters
    ----------
    ploidy : int
        How many consecutive features are the alleles of one genotype.
    exchanged : array, shape (n_variants,), optional
        Variants of which the allele of the reference is counted instead.
    """

    by_features = True
    notes = (
        "features are dosages, the numbers of alternate alleles of genotypes; alleles themselves are features with "
        "features=[…, 'ploidy']",
    )

    def __init__(self, ploidy: int, exchanged: BoolArray | None = None):
        self.joins, self.exchanged = ploidy, exchanged

    @property
    def digest(self) -> bytes:
        """Return the ploidy, and which variants are exchanged."""
        return f"dosage {self.joins}".encode() + (
            b"" if self.exchanged is None else np.packbits(self.exchanged).tobytes()
        )

    def dtype(self, dtype: DType) -> DType:
        """Return int8, or int16 where dosages are larger."""
        return np.dtype(np.int8 if self.joins <= np.iinfo(np.int8).max else np.int16)

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: DType) -> int:
        """Return the memory of nine comparisons of some rows, or features, that fit in the cache, one at least."""
        return 9 * max(2**18, n_rows, n_features // self.joins)

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the dosages of rows, whose genotypes have consecutive alleles, to `out`."""
        alleles = [values[:, allele :: self.joins] for allele in range(self.joins)]
        self._count(alleles, out, self.exchanged)

    def apply_features(self, values: Array, start: int, out: Array) -> None:
        """Write the dosages of variants to `out`, ``(n_variants, n_samples)``."""
        alleles = [values[allele :: self.joins] for allele in range(self.joins)]
        self._count(alleles, out, None if self.exchanged is None else self.exchanged[start : start + len(out), None])

    def _count(self, alleles: Sequence[Array], out: Array, exchanged: BoolArray | None) -> None:
        places = None if exchanged is None else np.broadcast_to(exchanged, out.shape)
        if out.flags.f_contiguous:
            alleles, out = [values.T for values in alleles], out.T
            places = None if places is None else places.T
        for rows in slabs(out):
            some, counts = [values[rows] for values in alleles], out[rows]
            count_alternate(some, counts)
            if places is not None:  # the alleles of the reference are the others of those that are known
                known = np.sum([values >= 0 for values in some], axis=0, dtype=out.dtype)
                np.copyto(counts, known - counts, where=places[rows] & (counts != MISSING))


def count_alternate(alleles: Sequence[Array], out: Array) -> None:
    """Write how many of the `alleles` of each genotype are above 0 to `out`, −1 where one is missing or none is known."""
    np.greater(alleles[0], 0, out=out, casting="unsafe")
    for values in alleles[1:]:
        np.add(out, (values > 0).view(np.int8), out=out)
    if alleles[0].dtype.kind == "u" or min(values.min() for values in alleles) >= 0:
        return
    missing, padded = np.zeros(out.shape, dtype=bool), np.ones(out.shape, dtype=bool)
    for values in alleles:
        absent = values == _PADDING
        padded &= absent
        missing |= (values < 0) & ~absent
    np.copyto(out, MISSING, where=missing | padded)


def exchange(genotypes: Array, exchanged: BoolArray) -> None:
    """Count the other allele of some variants of stored genotypes ``(n_samples, n_variants)``, 0 to 2; missing ones (negative) stay."""
    for rows in slabs(genotypes):
        some = genotypes[rows]
        np.copyto(some, 2 - some, where=exchanged & (some >= 0))


class Exchanged(Step):
    """Stored genotypes of which some variants count their other allele.

    Parameters
    ----------
    exchanged : array, shape (n_variants,)
        True for these variants.
    """

    by_features = True

    def __init__(self, exchanged: BoolArray):
        self.exchanged = exchanged

    @property
    def digest(self) -> bytes:
        """Return which variants are exchanged, a bit each."""
        return np.packbits(self.exchanged).tobytes()

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: DType) -> int:
        """Return the memory of some rows, or features, three times."""
        return 3 * max(2**18, n_rows * dtype.itemsize, n_features * dtype.itemsize)

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write rows to `out`."""
        out[...] = values
        exchange(out, self.exchanged)

    def apply_features(self, values: Array, start: int, out: Array) -> None:
        """Write variants to `out`, ``(n_variants, n_samples)``."""
        out[...] = values
        exchange(out.T, self.exchanged[start : start + len(out)])


def counting_others(genotypes: StoredVariable, exchanged: BoolArray) -> StoredVariable:
    """Return genotypes of which the variants `exchanged` count their other allele."""
    source = genotypes.source
    steps = source.steps if isinstance(source, SteppedSource) else ()
    if steps and isinstance(steps[-1], Dosage):
        assert isinstance(source, SteppedSource)  # noqa: S101 for the type checker
        turned = SteppedSource(source.source, [*steps[:-1], Dosage(steps[-1].joins, exchanged)])
        turned.details = source.details
    else:
        turned = SteppedSource(source, [Exchanged(exchanged)])
        turned.details = {"exchanged_alleles": int(exchanged.sum())}
    return replace(genotypes, source=turned)


def alleles_of(size: int, alleles: Array | None) -> Array | None:
    """Return the alleles of variants, see `Dimension.alleles`, of ``variant_allele (variants, alleles)``; None where there are none."""
    if alleles is None or alleles.ndim != 2 or alleles.shape[0] != size or alleles.dtype.kind not in "UTO":
        return None
    rows = (map(str, row) for row in alleles.tolist())
    return np.array([f"{','.join(filter(None, others))}/{reference}" for reference, *others in rows])


def ploidy_of(
    dims: Sequence[str], dtype: DType, columns: Sequence[int], options: ReadOptions, label: str
) -> int | None:
    """Return the axis of the alleles of genotypes, of which features are the dosage; None where features are the alleles.

    It is the dimension ``ploidy`` of integers among `columns`, unless `features` names it or values are read as they are stored.

    Raises
    ------
    DataError
        If alleles are floating point numbers, as of a program that took one of them for missing.
    """
    axis = dims.index(PLOIDY)
    asked = options.decode == "raw" or PLOIDY in (options.features or ())
    if asked or axis not in columns or dtype.kind not in "iuf":
        return None
    if dtype.kind == "f":
        raise DataError(
            f"{label} has dtype {dtype} along the dimension {PLOIDY}: expected alleles as integers, -1 where missing; open the store "
            "by its path, or with xarray and mask_and_scale=False; for these numbers as features: features=[…, 'ploidy']"
        )
    return axis


def dosages(alleles: StoredVariable, ploidy: int) -> StoredVariable:
    """Return the dosages of genotypes of which every `ploidy` consecutive features are the alleles."""
    step = Dosage(ploidy)
    source = SteppedSource(alleles.source, [step])
    source.details = {"array": alleles.source.describe()["array"], "genotypes": "dosage"}
    return StoredVariable(source, Packing.none(source.dtype).with_missing(MISSING))


def identifiers(dim: str, size: int, values: Callable[[str], Array | None]) -> Array | None:
    """Return the names of the variants or samples of VCF Zarr along a dimension, ``(size,)``; None where there are none.

    Variants without an identifier are named by contig and position. `values` returns the array of a name, None if there is none.
    """
    names = values(IDENTIFIERS[dim])
    if names is None or names.shape != (size,) or names.dtype.kind != "U":
        return None
    nameless = np.isin(names, _NO_ID)
    if not nameless.any():
        return names
    number, contigs, position = (values(name) for name in ("variant_contig", "contig_id", "variant_position"))
    if number is None or contigs is None or position is None or not number.shape == position.shape == (size,):
        return names
    if number.dtype.kind not in "iu" or not np.isin(number, np.arange(len(contigs))).all():
        return names
    places = [f"{contigs[i]}:{place}" for i, place in zip(number.tolist(), position.tolist(), strict=True)]
    return np.where(nameless, places, names)
