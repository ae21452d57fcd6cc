"""The check of stored chunks by `streampca verify`: with a fingerprint beside the store, or with the record of the run."""

from __future__ import annotations

from pathlib import Path

from streampca.models.persistence.state import load_record
from streampca.runs.verify.checks import Check
from streampca.sources.base import Source
from streampca.sources.store_record import arrays_of, keys_where, note_digests
from streampca.sources.zarr.digests import StoreRecord
from streampca.sources.zarr.reader import ZarrSource

_MOST_NAMED = 3


def stored_as_zarr(source: Source) -> list[ZarrSource]:
    """Return the zarr arrays that a source reads; none if it reads anything else."""
    arrays = [each for each in source.stored_arrays if isinstance(each, ZarrSource)]
    return arrays if len(arrays) == len(source.stored_arrays) else []


def recorded_chunks(directory: Path, source: Source) -> StoreRecord | None:
    """Return the record of chunks that the run in `directory` has, None without one; has the digests of chunks that are read noted."""
    record = load_record(directory / "model.zarr")
    if record is not None:
        note_digests(source)
    return record


def check_of_chunks(source: Source, record: StoreRecord | None = None) -> Check:
    """Return the check of the stored chunks after all were read; a difference from a fingerprint would have ended the reading."""
    digests = [array.digests for array in stored_as_zarr(source)]
    known = [each for each in digests if each is not None]
    if known and len(known) == len(digests):
        whole, beside = ", ".join(each.whole for each in known), ", ".join(str(each.place) for each in known)
        return Check("chunks", whole, whole, holds=True, note=f"every chunk is as in {beside}")
    arrays = arrays_of(source)
    if record is None or len(arrays) != len(record.arrays):
        return Check("chunks", note="there is no fingerprint of them: streampca fingerprint makes one")
    forms = [(array.layout.shape, array.deciding_metadata()) for array in arrays]
    if forms != [(each.shape, each.metadata) for each in record.arrays]:
        return Check("chunks", note="the store was written with other metadata than those that the run has read")
    n_chunks = n_read = 0
    changed = list[str]()
    for array, each in zip(arrays, record.arrays, strict=True):
        read = array.note_digests()
        noted = read.any(axis=-1)
        n_chunks, n_read = n_chunks + noted.size, n_read + int(noted.sum())
        changed += keys_where(array, noted & (read != each.digests).any(axis=-1))
    if changed:
        more = f" and {len(changed) - _MOST_NAMED:,} more" if len(changed) > _MOST_NAMED else ""
        note = (
            f"{len(changed):,} of {n_read:,} are others than the run has read: {', '.join(changed[:_MOST_NAMED])}{more}"
        )
        return Check("chunks", holds=False, note=note)
    if not n_read:
        return Check(
            "chunks", note="none was read whole here: streampca fingerprint makes digests that are compared in any case"
        )
    return Check("chunks", holds=True, note=f"{n_read:,} of {n_chunks:,} have the bytes that the run has read")
