"""Arrays beside the data in a zarr group that have a value for each row, such as further coordinates of xarray."""

from __future__ import annotations

import numpy as np
import zarr

from streampca.errors import StreamPCAError
from streampca.labels import Dimension, SampleColumns
from streampca.sources.options import ReadOptions
from streampca.sources.zarr.dimensions import names_of, values_of_vector
from streampca.sources.zarr.strictness import as_stored, quietly
from streampca.storage.zarr_interface import ZarrArray
from streampca.typing import Array


class GroupColumns(SampleColumns):
    """Arrays of one axis along a dimension of the samples, or, without names of dimensions, with a value for each row.

    Parameters
    ----------
    group : zarr.Group
        The group.
    parent : str
        Path of the data in it, without the name of the array.
    samples : tuple of Dimension
        Dimensions of the samples.
    options : ReadOptions
        How the data are opened.
    label : str
        Name of the group in messages.
    """

    of_group = True

    def __init__(
        self, group: zarr.Group, parent: str, samples: tuple[Dimension, ...], options: ReadOptions, label: str
    ):
        self._group, self._parent, self._samples = group, parent, samples
        self._options, self._label = options, label

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of such arrays, none where the store cannot be listed."""
        if not self._group.store.supports_listing:
            return ()
        try:
            with quietly():
                parent = self._group[self._parent] if self._parent else self._group
                arrays = list(parent.arrays()) if isinstance(parent, zarr.Group) else []
        except Exception:  # noqa: BLE001 the names are only for a message
            return ()
        known = {dimension.name for dimension in self._samples}
        return tuple(name for name, array in arrays if name not in known and self._axis(array) is not None)

    def values(self, name: str) -> Array | None:
        """Return the values of an array at each row, None if there is no such array; `DataError` if it cannot be read."""
        array = self._array(name)
        axis = None if array is None else self._axis(array)
        if array is None or axis is None:
            return None
        label, links = f"{self._label}/{array.path}", self._options.follow_symlinks
        values = values_of_vector(as_stored(array, label, links), label, fill=self._options.fills_labels)
        if values is None or axis < 0:
            return values
        sizes = [dimension.size for dimension in self._samples]
        shape = [size if index == axis else 1 for index, size in enumerate(sizes)]
        return np.broadcast_to(values.reshape(shape), sizes).ravel()

    def _array(self, name: str) -> ZarrArray | None:
        if not name or name != "/".join(filter(None, name.split("/"))):
            return None
        for place in dict.fromkeys((f"{self._parent}/{name}".strip("/"), name)):
            try:
                with quietly():
                    node = self._group.get(place)
            except StreamPCAError:
                raise
            except (KeyError, ValueError, OSError):  # also names that no file can have
                continue
            if isinstance(node, zarr.Array):
                return node
        return None

    def _axis(self, array: ZarrArray) -> int | None:
        """Return the sample dimension that an array is along, −1 if it has a value for each row, None if it has neither."""
        if array.ndim != 1:
            return None
        (name,) = names_of(array, None)
        for axis, dimension in enumerate(self._samples):
            if dimension.name == name and dimension.size == array.shape[0]:
                return axis
        n_rows = int(np.prod([dimension.size for dimension in self._samples]))
        return -1 if name == "dim_0" and array.shape[0] == n_rows else None
