"""Records of files of rows on disk: arrays beside those of a state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from streampca.errors import ModelError
from streampca.models.persistence.groups import StoredGroup
from streampca.models.persistence.texts import text_arrays, texts_of
from streampca.sources.files.records import Fragment
from streampca.typing import Array

_TEXTS = ("name", "fingerprint")
_NUMBERS = ("n_rows", "n_bytes", "modified")
_FIELDS = tuple(field.name for field in fields(Fragment))


def arrays_of_fragments(fragments: Sequence[Fragment]) -> dict[str, Array]:
    """Return the records as arrays of numbers with an entry for each file; none without files."""
    if not fragments:
        return {}
    arrays: dict[str, Array] = {
        f"fragment_{field}": np.array([getattr(each, field) for each in fragments], dtype=np.int64)
        for field in _NUMBERS
    }
    for field in _TEXTS:
        texts, ends = text_arrays(getattr(each, field) for each in fragments)
        arrays |= {f"fragment_{field}": texts, f"fragment_{field}_ends": ends}
    return arrays


def fragments_from(group: StoredGroup) -> tuple[Fragment, ...]:
    """Return the records that `arrays_of_fragments` made; none where the group has none, `ModelError` if they are damaged."""
    if "fragment_n_rows" not in group:
        group.require("fragment_n_rows" not in group.digests, "the records of its files are missing")
        return ()
    try:
        values = {field: group.array(f"fragment_{field}", "i").tolist() for field in _NUMBERS}
        for field in _TEXTS:
            name = f"fragment_{field}"
            values[field] = texts_of(group.array(name, "u"), group.array(f"{name}_ends", "i"))
        return tuple(Fragment(*entry) for entry in zip(*(values[f] for f in _FIELDS), strict=True))
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{group.path}: the records of its files are damaged: {error}") from error
