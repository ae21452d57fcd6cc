"""Quantised rows: 8-bit codes that stand for values of a table, or for themselves, times a scale of their row where there is one.

Embeddings of the Earth and of texts are published so. A code is decoded where other packed values are, while rows are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import xxhash

from streampca.errors import DataError, PackedDataError, ParameterError
from streampca.labels import SampleColumns
from streampca.sources.arrays import read_array, widened
from streampca.sources.conventions import Packing, number_of
from streampca.sources.steps import Step, slabs
from streampca.suggestions import did_you_mean
from streampca.typing import Array, DType, FloatArray, Json

KEYS = ("table", "power", "divisor", "scale", "nodata")
"""Keys of the option ``quantization``."""
_CODES = 256
_AT_ONCE = 2**16  # codes that are looked up at once: numpy makes an index of eight bytes of each
_PAIRS_BYTES = 2**20  # a table of pairs of float64
_EXPECTED = (
    'expected a mapping such as {"table": the 256 values or the name of their array, "nodata": -128}, {"power": 2, "divisor": 127.5} or '
    '{"scale": a scale for each row or the name of their array}'
)


@dataclass(frozen=True)
class Codes(Packing):
    """How codes are decoded: each stands for a value of a table, NaN where it means that nothing was observed."""

    table: tuple[float, ...] = ()
    """Values of all codes in ascending order: of -128 to 127, or of 0 to 255; NaN for codes that mean missing."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a plan says of the codes, and of attributes of missing values."""
        codes = range(-127, 128, 127) if self.stored.kind == "i" else range(0, 256, 255)
        meant = ", ".join(f"{code} means {self.table[code - np.iinfo(self.stored).min]:.6g}" for code in codes)
        return (f"codes of {self.stored} are decoded to {self.dtype}: {meant}", *super().notes)

    def decode(self, stored: Array, out: Array) -> None:
        """Write the values of codes ``(n, m)`` to `out`, of float type."""
        given = self.stored, self.table, self.fills, self.valid, out.dtype
        table, bits = _by_bits(*given), stored.view(np.uint8)
        if stored.size >= _AT_ONCE and stored.size % 2 == 0 and stored.flags.c_contiguous and out.flags.c_contiguous:
            # Two neighbours at a time are looked up in two thirds of the time.
            table, bits = _by_pairs(*given), bits.reshape(-1).view(np.uint16)
            out = out.reshape(-1).view(table.dtype)
        step = max(1, _AT_ONCE // max(1, bits[:1].size))
        for start in range(0, len(bits), step):
            rows = slice(start, start + step)
            np.take(table, bits[rows], out=out[rows], mode="wrap")  # the mode that needs no copy of `out`


@lru_cache(maxsize=32)
def _by_bits(
    stored: DType, table: tuple[float, ...], fills: tuple[float, ...], valid: tuple[float, float], dtype: DType
) -> Array:
    """Return the values of codes by their bits, read as a number from 0 to 255."""
    codes = np.arange(_CODES, dtype=np.uint8).view(stored).astype(np.int64)
    values = np.array(table, dtype=dtype)[codes - np.iinfo(stored).min]
    values[np.isin(codes, fills) | (codes < valid[0]) | (codes > valid[1])] = np.nan
    return values


@lru_cache(maxsize=1)
def _by_pairs(*given: Any) -> Array:
    """Return the values of two codes, as one number that has the bits of both, by the bits of the two; `given` is that of `_by_bits`."""
    table = _by_bits(*given)
    bits = np.arange(_CODES**2).astype(np.uint16).view(np.uint8)
    return table[bits].view(np.complex128 if table.dtype == np.float64 else np.complex64)


class ScaledRows(Step):
    """Codes as they are meant, times the scale of their row.

    Parameters
    ----------
    packing : Packing
        How a code is decoded.
    scale : array, shape (n_rows,)
        Scales of the rows from row `first` on.
    """

    by_place = True
    by_features = True

    def __init__(self, packing: Packing, scale: FloatArray, first: int = 0):
        self.packing, self.scale, self.first = packing, scale, first

    @property
    def digest(self) -> bytes:
        """Return how codes are decoded, and the scales."""
        return f"{self.packing}{self.first}{digest_of(self.scale)}".encode()

    def dtype(self, dtype: DType) -> DType:
        """Return the data type of decoded values."""
        return self.packing.dtype

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: DType) -> int:
        """Return the memory of the indices of codes that are looked up at once, and of the values of pairs."""
        return 8 * max(_AT_ONCE, n_features) + _PAIRS_BYTES

    def slice(self, start: int, stop: int) -> ScaledRows:
        """Return the step with the scales of rows `start` to `stop` alone."""
        return ScaledRows(self.packing, self.scale[start - self.first : stop - self.first], start)

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the decoded rows to `out`."""
        scale = self.scale[start - self.first : start - self.first + len(values)]
        if values.strides[0] < values.strides[1]:
            self._decode(values.T, scale[None], out.T)
        else:
            self._decode(values, scale[:, None], out)

    def apply_features(self, values: Array, start: int, out: Array) -> None:
        """Write decoded features, ``(n_features, n_samples)``, to `out`."""
        self._decode(values, self.scale[None], out)

    def _decode(self, values: Array, scale: FloatArray, out: Array) -> None:
        """Write decoded values times `scale`, of one row or one column, to `out`."""
        for part in slabs(values):
            self.packing.decode(values[part], out[part])
            with np.errstate(over="ignore"):  # infinity is refused where rows are used
                out[part] *= scale if len(scale) == 1 else scale[part]


def digest_of(values: Array) -> str:
    """Return a digest of numbers."""
    return xxhash.xxh3_128(np.ascontiguousarray(values).view(np.uint8).data).hexdigest()


@dataclass(frozen=True, eq=False)
class Quantization:
    """The option ``quantization`` of `open_source`, checked but for what depends on the data.

    Raises
    ------
    ParameterError
        If it is not such a mapping; says which.
    """

    table: FloatArray | str | None = None
    """Values of the 256 codes, in ascending order, or the name of their array."""
    power: float | None = None
    """A code c stands for sign(c) · abs(c / divisor) ** power; None where there is a table, and for codes that mean themselves."""
    divisor: float | None = None
    """See `power`; None = 1."""
    scale: FloatArray | str | None = None
    """A factor for each row, or the name of the array or column of these; None = 1."""
    nodata: tuple[int, ...] = ()
    """Codes that mean that nothing was observed."""

    @classmethod
    def of(cls, given: object) -> Quantization:
        """Return what `given`, a mapping with some of `KEYS` or one of these objects, says."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise ParameterError(f"quantization={repr(given)[:60]}: {_EXPECTED}")
        said = {name: value for name, value in given.items() if value is not None}
        if unknown := [str(name)[:60] for name in said if name not in KEYS]:
            raise ParameterError(
                f"quantization has the key {unknown[0]!r}: expected some of {', '.join(KEYS)}{did_you_mean(unknown[0], KEYS)}"
            )
        if not {"table", "power", "scale"} & set(said):
            raise ParameterError(f"quantization={repr(given)[:60]} does not say what codes mean: {_EXPECTED}")
        if "power" in said and "table" in said:
            raise ParameterError("quantization has both table and power, which both say what codes mean: leave one out")
        if "divisor" in said and "power" not in said:
            raise ParameterError("quantization has divisor without power: give both, such as power: 1, divisor: 127")
        numbers: dict[str, Any] = {name: number_of(said[name]) for name in ("power", "divisor") if name in said}
        for name, number in numbers.items():
            if not (np.isfinite(number) and number > 0):
                raise ParameterError(f"quantization: {name}={repr(said[name])[:60]}: expected a finite number above 0")
        nodata = said.get("nodata", ())
        codes = [number_of(each) for each in (nodata if np.ndim(nodata) else [nodata])]
        if not all(code == np.rint(code) for code in codes):
            raise ParameterError(f"quantization: nodata={repr(nodata)[:60]}: expected a code, or a list of codes")
        arrays: dict[str, Any] = {
            name: said[name] if isinstance(said[name], str) else _floats(name, said[name])
            for name in ("table", "scale")
            if name in said
        }
        return cls(**numbers, **arrays, nodata=tuple(int(code) for code in codes))

    def packing(self, declared: Packing | None, dtype: DType, columns: SampleColumns | None, label: str) -> Packing:
        """Return how codes of an array of `dtype` are decoded; missing are those that `declared` names, too.

        Raises
        ------
        DataError
            If they are no codes of 8 bits, or the table cannot be read or has another length; `PackedDataError` if the array
            declares a scale or an offset of its own.
        ParameterError
            If there is no table of a name, or a code is outside of what 8 bits hold.
        """
        if dtype.kind not in "iu" or dtype.itemsize != 1:
            raise DataError(
                f"{label} has dtype {dtype}: quantization is for codes of int8 or uint8; leave it out, or name the array of the codes. Of "
                "xarray open them with mask_and_scale=False; values that are meant as they are have no encoding, .drop_encoding()"
            )
        known = declared or Packing.none(dtype)
        if (known.scale, known.offset) != (1.0, 0.0):
            raise PackedDataError(
                f"{label} declares scale_factor={known.scale:g} and add_offset={known.offset:g} (CF conventions), and quantization says "
                'what codes mean, too: leave quantization out, or set decode: raw (from Python: decode="raw") so that it alone counts'
            )
        limits = np.iinfo(known.stored)
        if outside := [code for code in self.nodata if not limits.min <= code <= limits.max]:
            raise ParameterError(
                f"{label}: quantization: nodata={outside[0]}: expected codes of {known.stored}, {limits.min} to {limits.max}"
            )
        fills = tuple(dict.fromkeys((*known.fills, *map(float, self.nodata))))
        codes = np.arange(limits.min, limits.max + 1, dtype=np.float64)
        table: Array = codes.astype(np.float32)
        if self.power is not None:
            table = np.sign(codes) * np.abs(codes / (self.divisor or 1.0)) ** self.power
        elif self.table is not None:
            table = self._array("table", columns, label)
            if table.shape != (_CODES,) or np.isinf(table).any():
                found = "holds infinity" if table.shape == (_CODES,) else f"has shape {table.shape}"
                raise DataError(
                    f"{label}: the table of quantization {found}: expected ({_CODES},) finite numbers, the values of the codes "
                    f"{limits.min} to {limits.max} in this order, and NaN for codes that mean missing"
                )
            fills = tuple(dict.fromkeys((*fills, *codes[np.isnan(table)].tolist())))
        return Codes(
            known.stored, 1.0, 0.0, fills, known.attributes, table.dtype, known.valid, table=tuple(table.tolist())
        )

    def scales(self, n_rows: int, columns: SampleColumns | None, label: str) -> FloatArray | None:
        """Return the scale of each of `n_rows` rows, None where there are none.

        Raises
        ------
        DataError
            If they cannot be read, are not as many, or one is not a finite number above 0; names the row.
        ParameterError
            If there are none of a name.
        """
        if self.scale is None:
            return None
        scale = self._array("scale", columns, label)
        if scale.shape != (n_rows,):
            raise DataError(
                f"{label}: the scale of quantization has shape {scale.shape}: expected ({n_rows},), a number for each row"
            )
        bad = np.flatnonzero(~(np.isfinite(scale) & (scale > 0)))
        if len(bad):
            raise DataError(
                f"{label}: the scale of quantization is {scale[bad[0]]} in row {int(bad[0])} and {len(bad) - 1:,} others that are not "
                "finite numbers above 0: correct them; a row whose codes are all 0 may have any scale, such as 1"
            )
        return scale

    def _array(self, key: str, columns: SampleColumns | None, label: str) -> FloatArray:
        """Return the table or the scales, found by name where they have one."""
        given: Any = getattr(self, key)
        if not isinstance(given, str):
            return np.asarray(given)
        what = f"quantization.{key}"
        if given.endswith(".npy"):
            return _floats(key, read_array(what, given))
        values = None
        if columns is not None:
            values = columns.values(given) if key == "scale" else columns.beside(given)
        if values is None:
            names = () if columns is None else columns.names
            raise ParameterError(
                f"{label}: {what}={given[:60]!r} is neither an .npy file nor an array beside the codes (found: "
                f"{', '.join(names[:12]) or 'none'}): expected one of these, or an array"
            )
        return _floats(key, values)

    def described(self, packing: Packing | None) -> Json:
        """Return what was given, for the description of a table with codes that `packing` decodes.

        A scale that is an array is None, since its rows are those of this table. Codes without data are those that the array declares, too.
        """
        said: dict[str, Any] = {name: getattr(self, name) for name in KEYS if getattr(self, name) is not None}
        if isinstance(self.table, np.ndarray):
            said["table"] = [None if np.isnan(value) else value for value in self.table.tolist()]
        if isinstance(self.scale, np.ndarray):
            said["scale"] = None
        if isinstance(packing, Codes):
            first = np.iinfo(packing.stored).min
            said["nodata"] = [int(code) for code in packing.fills if not np.isnan(packing.table[int(code) - first])]
        return said


def _floats(key: str, given: object) -> FloatArray:
    """Return numbers as an array of float32 where they are floats of up to 32 bits, else of float64; None as NaN."""
    values = widened(np.asarray(given))
    values = values.astype(np.float64) if values.dtype == object else values
    if values.dtype.kind not in "iuf":
        raise ParameterError(f"quantization: {key} holds {values.dtype}: {_EXPECTED}")
    narrow = values.dtype.kind == "f" and values.dtype.itemsize <= 4
    floats: FloatArray = values.astype(np.float32 if narrow else np.float64, copy=False)
    return floats
