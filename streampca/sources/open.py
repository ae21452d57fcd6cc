"""Opening data from a user as the source that reads them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from streampca.block import is_tensor
from streampca.errors import DataError, NotAvailableError, StreamPCAError
from streampca.redaction import redacted
from streampca.sources.arrays import ArraySource, MappedSource, SparseSource, is_bfloat16, is_sparse, widened
from streampca.sources.base import Source, require_unmasked
from streampca.sources.cells import is_anndata, open_anndata, open_several_cells
from streampca.sources.cells.description import is_cells
from streampca.sources.files.fragments import FragmentedRows
from streampca.sources.files.paths import Files, Paths, cells_paths, files_below, files_of, is_files_path, is_paths
from streampca.sources.formats import ICECHUNK, ReadOptions, StorageOptions, format_alone
from streampca.sources.frames import is_frame, is_xarray, open_frame
from streampca.sources.lagged import Lags, with_lags
from streampca.sources.named_arrays import open_named
from streampca.sources.normalization import Normalization, NormalizedRows
from streampca.sources.objects import NumberedArray, is_lazy_array, lazy_blocks, open_xarray, stored_dataset
from streampca.sources.quantization import Quantization
from streampca.sources.table import StoredVariable, quantised, table_of, with_missing_value
from streampca.sources.tensors import tensor_rows
from streampca.sources.where import rows_where
from streampca.suggestions import suggests_keywords
from streampca.system.optional import package_of

if TYPE_CHECKING:
    import dask.array as da
    import zarr
    from zarr.abc.store import Store

    from streampca.storage.zarr_interface import ZarrArray

Opener = Callable[[Any, ReadOptions], Source]


@suggests_keywords
def open_source(
    data: object,
    *,
    array: str | None = None,
    variables: str | Sequence[str] | None = None,
    samples: str | Sequence[str] | None = None,
    features: str | Sequence[str] | None = None,
    columns: str | Sequence[str] | None = None,
    id_column: str | None = None,
    mask: ArrayLike | str | Path | None = None,
    decode: str = "auto",
    orientation: str | None = None,
    missing_chunks: str = "error",
    missing_value: float | None = None,
    quantization: Mapping[str, Any] | None = None,
    verify: str | Path | None = None,
    storage_options: StorageOptions | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    follow_symlinks: bool = False,
    max_reads: float | None = None,
    layer: str | None = None,
    mask_var: str | None = None,
    normalize: Mapping[str, Any] | None = None,
    genes: str = "same",
    lags: Lags | None = None,
    where: ArrayLike | str | Path | None = None,
) -> Source:
    """Open any data as a table of samples and features; reads only metadata and coordinates, unless `mask` needs rows.

    Parameters
    ----------
    data : str, Path, zarr.Array, zarr.Group, zarr store, dask.array.Array, numpy array, np.memmap, scipy sparse matrix or array, xarray.DataArray, xarray.Dataset, xarray.DataTree, data frame, AnnData, lazy array, list of paths, or Source
        A path may be a zarr array or group (also in a ``.zip`` file), an AnnData store or file, an ``.npy`` file, a
        Parquet, Arrow or HDF5 file (including NetCDF 4), a pattern such as ``shards/*.npy``, a directory of such
        files, ``icechunk:PATH`` for an icechunk repository, or ``builtin:NAME``. Zarr stores and Parquet and Arrow
        files may be behind a URL, and directories of such files in an object store. Several files, or several AnnData
        stores or files, are read as one table: those of a pattern or directory in natural order, those of a list in
        the given order. Files must have the same columns and data type. A DataArray opened from zarr and unchanged
        since is read from the store; otherwise its Dask array or its values in memory are used. Arrays of other
        libraries that read a slice when indexed, such as h5py datasets and netCDF4 variables, are read by chunks; a
        dataset of a file open for reading is read like its path.
    array : str, optional
        Name of the array in a zarr group, of the variable in a group of a DataTree, or of the dataset in an HDF5
        file. For AnnData: ``X``, ``layers/NAME``, ``raw/X`` or ``obsm/NAME``. By default, the only array of two or
        more dimensions that is not the bounds, mask or coordinate of another; in OME-Zarr, the image at full
        resolution.
    variables : str or sequence of str, optional
        Names of several arrays of a zarr group with the same samples; their features lie side by side.
    samples, features : str or sequence of str, optional
        Names of the dimensions that form the rows, and of those that form the columns, in C order. If one is left
        out, it is all other dimensions. Names come from zarr format 3, ``_ARRAY_DIMENSIONS`` or OME-Zarr. Dimensions
        without names, such as those of numpy and Dask arrays, are called ``dim_0``, ``dim_1`` and so on. By default
        two-dimensional arrays are (samples, features).
    columns : str or sequence of str, optional
        Columns of Parquet and Arrow files and data frames to read, in this order; by default all. Columns must hold
        numbers, or lists with the same number of numbers in each row. Nulls become NaN.
    id_column : str, optional
        Column with the names of the rows, which label samples and scores.
    mask : array, str or Path, optional
        Features to use: booleans with the shape of the features, an ``.npy`` file, or the name of an array in the
        group, whose dimensions are matched by name. ``"observed"`` leaves out features that are missing in the first
        rows (at most 64 MiB or one chunk, read immediately); the fit raises `PartlyMissingError` if one of them has a
        value later. ``"survey"`` reads all rows once, when the table is opened, to find features that are never
        observed.
    decode : {"auto", "raw"}
        Whether to decode packed values of zarr arrays (CF attributes ``scale_factor``, ``add_offset``,
        ``_FillValue``, ``missing_value``, ``valid_range`` or ``_Unsigned``), or to read them as stored. Decoded
        values are float64 if there is a scale or offset, otherwise a float type that represents all of them; missing
        values become NaN.
    orientation : {"samples_first", "features_first"}, optional
        How a two-dimensional array is stored: (samples, features), the default, or (features, samples).
    missing_chunks : {"error", "fill", "fill_labels"}
        Whether a chunk that does not exist is an error or holds the fill value: ``"fill"`` for all arrays,
        ``"fill_labels"`` only for arrays beside the data (coordinates, columns, masks, weights). zarr and xarray omit
        chunks that contain only the fill value, such as a coordinate of 0.
    missing_value : float, optional
        A number that counts as missing, like NaN, such as -1 for genotypes. Integer types that can hold it are read
        as floats. It is compared with stored numbers, before scale and offset; for a DataArray, with the values that
        it shows. Values that attributes declare missing also count (see `decode`), and so does the fill value of a
        zarr array with named dimensions, unless it is 0.
    quantization : dict, optional
        Meaning of the codes of int8 or uint8 rows, such as quantised embeddings. ``{"table": values}`` gives the 256
        values of the codes in ascending order (-128 to 127 for int8, 0 to 255 for uint8), as an array, an ``.npy``
        file or the name of an array beside the codes. ``{"power": 2, "divisor": 127.5}`` decodes c as sign(c) · abs(c
        / divisor) ** power. ``{"scale": scales}`` multiplies the values of each row, or its codes without table and
        power, by a number above 0, from an array, an ``.npy`` file, or a named array or column. ``"nodata"`` lists
        codes that count as missing; NaN in the table and `missing_value` count as missing too. Values are float32 if
        table and scale are floats of up to 32 bits, otherwise float64.
    verify : str or Path, optional
        Fingerprint file to compare every chunk of a zarr array with, ``"manifest"`` for the default file of
        ``streampca fingerprint``, or a run with a state (``output.state: true``) to compare with the chunks that it
        has read.
    storage_options : dict, optional
        Options of obstore for URLs such as ``s3://``, ``gs://``, ``az://`` and ``https://``, and of fsspec for
        others.
    branch, tag, snapshot : str, optional
        Snapshot of an icechunk repository at ``icechunk:PATH`` to read: the last of a branch (by default ``main``),
        that of a tag, or that of an identifier. The description of the table contains its identifier.
    follow_symlinks : bool
        Ignored with a `FutureWarning`, and removed in the next minor version: symbolic links in a store are followed.
    max_reads : float, optional
        How many times one pass may read or compute the chunks behind a Dask array, on average, if several of its
        blocks need them; above this, planning raises `RepeatedReadsError`. The default is 4. If chunks would be read
        repeatedly, as for ``x.groupby("time.month") - x.groupby("time.month").mean()``, and computing all rows at
        once takes at most a quarter of the memory ceiling, they are computed once and kept.
    layer : str, optional
        Layer of AnnData to read in place of X; ``raw/X`` for the matrix of ``raw``, with its own features;
        ``obsm/NAME`` for a matrix of ``obsm``.
    mask_var : str, optional
        Boolean column in ``var`` of AnnData, such as ``highly_variable``, with the features to use.
    normalize : dict, optional
        Normalisation of each row while it is read. ``{"norm": "l2"}`` gives rows of norm 1 (also ``"l1"``,
        ``"max"``), like ``sklearn.preprocessing.Normalizer``. ``docs/how-to/normalized-rows.md`` describes the keys
        for all tables, ``norm``, ``log1p`` and ``target_sum``, and ``docs/how-to/anndata.md`` those for counts in
        AnnData, such as ``{"target_sum": 1e4, "log1p": True}``. It is applied after `missing_value` and `mask`, and
        before `lags`. Zeros stay zeros, and nothing is written.
    genes : {"same", "intersection"}
        Whether several AnnData must have the same features in the same order, or the features common to all are read,
        by name, in the order of the first.
    lags : int or sequence of int, optional
        Number of consecutive samples in a row, or their lags, such as ``[0, 3, 6]``. Rows then hold lagged copies of
        the features, with a dimension ``lag``, for extended EOFs and singular spectrum analysis. A row has the label
        of its first sample. Windows across a gap are left out: a step of the sample coordinate that is negative or
        more than 1.5 times its median.
    where : str, array or Path, optional
        Samples to use: a condition on coordinates and columns beside the features, such as ``"time.season ==
        'DJF'"``, ``"time >= '1979' and not flagged"`` or ``"kind in ['a', 'b']"``; the name of a boolean coordinate
        or column; or booleans, one per sample or with the shape of the sample dimensions, as an array or an ``.npy``
        file. A fit uses these samples only and does not read chunks without any. Scores cover all samples, with NaN
        at the others. `transform` applies a condition of the fit to paths and objects that it opens, but never
        applies a mask to other data. Put names that are not Python names in backticks. Times are compared at the
        precision of the text. With `lags`, all samples of a window must be used.

    Returns
    -------
    Source
        The table: ``shape``, ``dtype``, ``labels``, ``read(start, stop)`` and ``to_dask()``.

    Raises
    ------
    DataError
        If the data does not exist or is not real numbers, or if an array of more than two dimensions has no
        `samples`. `PackedDataError` if attributes of packed values are invalid.
    ParameterError
        If an option has a value that is not allowed, or a name is not that of a dimension.
    NotAvailableError
        If an option does not apply to this kind of data, or for tables with a log of current files (Delta, Hudi,
        Iceberg), which is not read.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> import zarr
    >>> field = zarr.create_array("field.zarr", shape=(100, 4, 5), chunks=(50, 4, 5), dtype="float32",
    ...                           dimension_names=("time", "lat", "lon"))
    >>> sp.open("field.zarr", samples="time").shape
    (100, 20)
    """
    given = dict(locals())  # all keywords are options
    return open_with(given.pop("data"), ReadOptions(**given))


def open_with(data: object, options: ReadOptions) -> Source:
    """Return `data` opened with the options of `open_source`; a source as it is, but for a missing value, normalisation, `where` and lags."""
    if options.quantization is not None:
        options = replace(options, quantization=Quantization.of(options.quantization))
    if isinstance(data, Source):
        options.require_only("a table that is open", data.description)
        if options.normalize is not None and (data.normalized or is_cells(data) or data.describe().get("lags")):
            raise NotAvailableError(
                f"{data.description}: normalize is for rows as they are stored, and this table is already open: give "
                "normalize where it is opened, sp.open(data, normalize=…), beside lags and what names its features"
            )
        source = data
    elif is_paths(data):
        if options.storage_options and "://" not in str(data) and not str(data).startswith(ICECHUNK):
            raise NotAvailableError(f"storage_options does not apply to {str(data)[:80]}: it is for URLs; leave it out")
        source = _open_path(data, options)
    else:
        # Where there is one type, it has to be bfloat16; a Dataset may have variables of it.
        data = widened(data) if getattr(getattr(data, "dtype", None), "kind", "V") == "V" else data
        opened = next((opened for matches, opened in _KINDS if matches(data)), None)
        if opened is None:
            raise DataError(
                f"cannot read data of type {_kind_of(data)}: expected a path, zarr.Array, dask array, numpy array or memory map{_hint(data)}"
            )
        if options.storage_options:
            raise NotAvailableError(f"storage_options does not apply to {_kind_of(data)}: it is for URLs; leave it out")
        require_unmasked(data, "the masked array")
        source = opened(data, options)
    if options.missing_value is not None:
        if options.normalize is not None and is_cells(source):
            raise NotAvailableError(
                f"{source.description}: missing_value={options.missing_value!r} with normalize does not apply to AnnData, whose values are "
                "normalised first: leave one out, or give NaN in its place"
            )
        source = with_missing_value(source, options.missing_value)
    if options.quantization is not None:
        source = quantised(source, options.quantization)
    normalization = None if options.normalize is None or is_cells(source) else Normalization.of(options.normalize)
    source = source if normalization is None else NormalizedRows(source, normalization)
    if options.where is not None:
        source = rows_where(source, options.where)
    return source if options.lags is None else with_lags(source, options.lags)


def _kind_of(data: object) -> str:
    return f"{type(data).__module__}.{type(data).__qualname__}"


def _hint(data: object) -> str:
    """Return what to do with data of a type that is not read."""
    if _kind_of(data).startswith("dask.dataframe"):
        return "; call .to_dask_array(lengths=True), which reads the data once for its number of rows"
    if package_of(data) == "h5py":
        return "; give one of its datasets, data['name'], or the path of the file"
    if isinstance(data, Iterator) or hasattr(data, "read_next_batch"):
        return "; an iterator cannot be read twice: write them to Parquet or zarr, or give them in parts to partial_fit"
    return "; make a data frame of it" if isinstance(data, Mapping) else ""


def _is_zarr_store(data: object) -> bool:
    return "zarr" in sys.modules and isinstance(data, sys.modules["zarr"].abc.store.Store)


def _open_path(data: Paths, options: ReadOptions) -> Source:
    """Return the table at paths; `DataError` for those that the system does not let through, or that are no text."""
    for path in data if isinstance(data, list | tuple) else (data,):
        try:
            str(path).encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{str(path)!a} is not encoded as UTF-8: give it another name, or open it by a symbolic link that has one"
            ) from error
    if isinstance(data, list | tuple) and len(data) == 1:
        data = data[0]
    try:
        if (several := cells_paths(data)) is not None:
            return open_several_cells(several, options)
        path = str(data)
        files = files_of(path if isinstance(data, str | Path) else data, options.storage_options)
        alone = format_alone(path)
        if files is not None and (
            alone is None or options.mask is not None or files.description != str(files.paths[0])
        ):
            return _open_files(files, options)
        source: Source = (alone.opener() if alone else _open_zarr)(path, options)
    except StreamPCAError:
        raise
    except OSError as error:
        raise DataError(f"{error.filename or data} cannot be opened: {error.strerror or error}") from error
    return source


def _open_files(files: Files, options: ReadOptions) -> Source:
    """Return the rows of files as one table; reads headers and footers only, unless the options need rows.

    Raises
    ------
    DataError
        If a file is missing or damaged, or differs from the first in columns, data type or dimensions.
    NotAvailableError
        For options that such files do not have, and if the package that reads them is not installed.
    """
    options.require_only(files.format.name, files.description)
    if files.format.holds == "arrays":
        from streampca.sources.files.arrays import arrays_of

        return open_named(arrays_of(files), options)
    readers, labels, columns = files.format.opener()(files, options)
    kind: type[FragmentedRows] = FragmentedRows
    if files.paths[0].store is not None:  # whose packages are imported for these only
        from streampca.sources.files.remote_file import FetchedRows

        kind = FetchedRows
    details = {name: getattr(options, name) for name in files.format.remembered}
    if files.format.holds == "columns":
        details["columns"] = [column.name for column in readers[0].columns]
    part = StoredVariable(kind(readers, files.description, details))
    if options.missing_value is not None:
        part = part.with_missing(options.missing_value)
    if options.quantization is not None:
        part = part.quantised(options.quantization, columns)
    table = table_of([part], labels, files.description, options.mask)
    table.sample_columns = columns
    return table


def is_store_path(path: str) -> bool:
    """Return whether a path or URL is opened as a zarr store, which has arrays to choose from; it need not exist."""
    return format_alone(path) is None and not is_files_path(path)


def _open_zarr(path: str, options: ReadOptions) -> Source:
    from streampca.sources.zarr.group import node_at

    of_columns = options.columns is not None or options.id_column is not None
    try:
        if of_columns:  # of no store, so none is looked for
            options.require_only("a zarr group", redacted(path))
        node, label = node_at(path, options)
        return _open_zarr_node(node, options, label)
    except StreamPCAError as error:
        if not of_columns and not isinstance(error.__cause__, FileNotFoundError):
            raise
        reason = error
    files = files_below(path, options.storage_options)  # behind a URL, which is first looked at when there is no store
    if files is None:
        raise reason
    return _open_files(files, options)


def _of_array(opened: Opener, kind: str) -> Opener:
    """Return a function that opens an array, transposed if it is stored as (features, samples); by the numbers of its dimensions if asked."""

    def open_array(data: Any, options: ReadOptions) -> Source:
        options.require_only(kind, _kind_of(data))
        if not is_sparse(data) and (options.by_dimension or data.ndim > 2):
            return open_named(NumberedArray(data), options)
        return opened(data.T if options.orientation == "features_first" else data, options)

    return open_array


def _open_dask(data: da.Array, options: ReadOptions) -> Source:
    from streampca.sources.dask import DaskSource

    return DaskSource(data, options.max_reads)


def _open_zarr_store(data: Store, options: ReadOptions) -> Source:
    from streampca.sources.remote import name_of
    from streampca.sources.zarr.group import node_of

    return _open_zarr_node(node_of(data, name_of(data)), options, name_of(data))


def _open_zarr_node(data: ZarrArray | zarr.Group, options: ReadOptions, description: str | None = None) -> Source:
    """Return an array, the one that `options` name in a group, or the only one that can be the table; AnnData as rows of cells."""
    import zarr

    from streampca.sources.remote import place_of
    from streampca.sources.zarr.group import ZarrArrays
    from streampca.sources.zarr.strictness import strict_group

    if isinstance(data, zarr.Array):
        options.require_only("a zarr array", description or place_of(data))
        return open_named(ZarrArrays(data, options, description), options)
    from streampca.sources.cells.stored import ZarrCells, is_anndata_group, open_cells

    description, group = description or place_of(data), strict_group(data)
    arrays = ZarrArrays(group, options, description)
    unknown = options.array is not None and arrays.find(options.array) is None
    if is_anndata_group(group) and options.variables is None and (options.array is None or unknown):
        return open_cells(ZarrCells(group, options, description), options)
    options.require_only("a zarr group", description)
    return open_named(arrays, options)


def _open_lazy(data: Any, options: ReadOptions) -> Source:
    """Return an array that reads a slice when it is indexed as a table; a dataset of h5py by our own reader, where that can open it."""
    options.require_only("a lazy array", _kind_of(data))
    found = stored_dataset(data)
    if found is not None:
        path, name = found
        return _open_path(path, replace(options, array=name.strip("/")))
    source = _of_array(_open_dask, "a Dask array")(lazy_blocks(data), options)
    source.description, source.portable = f"{_kind_of(data)} of shape {tuple(data.shape)}", False
    return source


def _open_tensor(data: Any, options: ReadOptions) -> Source:
    options.require_only("a tensor", _kind_of(data))
    turned = data.T if options.orientation == "features_first" else data
    return tensor_rows(turned, f"tensor of shape {tuple(data.shape)}")


def _open_anndata(data: Any, options: ReadOptions) -> Source:
    return open_anndata(data, options, lambda values: open_source(values))


_KINDS: tuple[tuple[Callable[[object], bool], Opener], ...] = (
    (lambda data: isinstance(data, np.memmap) and is_bfloat16(data.dtype), _open_lazy),
    (
        lambda data: isinstance(data, np.memmap) and getattr(data, "_mmap", None) is not None,
        _of_array(lambda array, options: MappedSource(array, "memory map"), "an array"),
    ),
    (lambda data: isinstance(data, np.ndarray), _of_array(lambda array, options: ArraySource(array), "an array")),
    (is_tensor, _open_tensor),
    (_is_zarr_store, _open_zarr_store),
    (lambda data: _kind_of(data).startswith("zarr."), _open_zarr_node),
    (lambda data: _kind_of(data).startswith("dask.array."), _of_array(_open_dask, "a Dask array")),
    (is_xarray, open_xarray),
    (is_anndata, _open_anndata),
    (is_sparse, _of_array(lambda rows, options: SparseSource(rows), "a sparse matrix")),
    (is_frame, open_frame),
    (is_lazy_array, _open_lazy),
)
"""Kinds of data that are no paths, with the function that opens them; the first that matches is used. A new kind of object has a line here, of files in `formats`."""

open = open_source
# The name in the top level of the package.
