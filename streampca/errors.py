"""Exceptions of streampca: when each is raised, and its exit status."""

from __future__ import annotations

from typing import ClassVar

from streampca.redaction import redacted

__all__ = [
    "AlteredChunkError",
    "BlockFailedError",
    "ChangedInputError",
    "ClusterError",
    "ConfigError",
    "DamagedChunkError",
    "DataError",
    "InterruptedRunError",
    "MergeError",
    "MissingChunkError",
    "MissingInnerChunkError",
    "ModelError",
    "NoSpaceError",
    "NotAvailableError",
    "NotComputedError",
    "NotFiniteError",
    "OutputError",
    "OutsideStoreError",
    "PackedDataError",
    "ParameterError",
    "PartlyMissingError",
    "PlanError",
    "RepeatedReadsError",
    "StoreError",
    "StreamPCAError",
]


def value_in_words(value: object) -> str:
    """Return a value of a parameter for a message: its repr, or type and shape of an array, shortened to one line of 80 characters."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"an array of shape {shape} and type {getattr(value, 'dtype', type(value).__name__)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:60]}…{text[-10:]}"


class StreamPCAError(Exception):
    """Base class of all errors that streampca raises deliberately; URLs in messages omit passwords and queries."""

    exit_status: ClassVar[int] = 1
    """Exit status of a command that ends with this error."""

    def __init__(self, *args: object):
        super().__init__(*(redacted(each) if isinstance(each, str) else each for each in args))


class ConfigError(StreamPCAError, ValueError):
    """A configuration file or a command line has an invalid value; names the key and the allowed values."""

    exit_status = 2


class ParameterError(StreamPCAError, ValueError):
    """A parameter of an estimator or a function has a value outside its domain."""

    exit_status = 2


class RepeatedReadsError(ParameterError):
    """One pass over a Dask array would read or compute its chunks more often than allowed; states how often, and the remedy."""


class NotAvailableError(StreamPCAError, NotImplementedError, ValueError):
    """A feature of the public interface, or a combination of parameters and data, is not supported by this version."""

    exit_status = 2


class NotComputedError(NotAvailableError, AttributeError):
    """The fit did not compute an attribute, or its parameters rule out a method.

    It is an `AttributeError`, so `hasattr` and `dir` treat the attribute as absent.
    """


class NotFittedError(StreamPCAError, ValueError, AttributeError):
    """An estimator was used before `fit`; if scikit-learn is installed, its error of this name is raised."""

    exit_status = 2


class MergeError(StreamPCAError, ValueError):
    """States or models cannot be merged, because their parameters differ or their states were not kept."""

    exit_status = 2


class ClusterError(StreamPCAError, RuntimeError):
    """The cluster lost a task permanently, or cannot be reached."""

    exit_status = 3


class BlockFailedError(ClusterError):
    """Some rows killed every worker that read them alone, in all attempts; names the rows and their chunks."""


class NoSpaceError(StreamPCAError, OSError):
    """The file system has too little space for the output, or will run out of it."""

    exit_status = 4


class DataError(StreamPCAError, ValueError):
    """The input is missing, damaged, or not a table of real numbers."""

    exit_status = 5


class MissingChunkError(DataError):
    """Chunks of the store do not exist; names how many and the first of their keys."""


class MissingInnerChunkError(MissingChunkError):
    """A shard does not hold one of its chunks."""


class DamagedChunkError(DataError):
    """A chunk of the store cannot be decoded, or has the wrong size; names its key and codec."""


class AlteredChunkError(DamagedChunkError):
    """A chunk of the store differs from its fingerprint; names its key and both digests."""


class OutsideStoreError(DataError):
    """A dataset of an HDF5 file is stored in another file, by an external link, a virtual layout or external storage."""


class StoreError(DataError):
    """A store behind a URL refuses a request, or does not answer after all retries; names the key and the answer."""


class PackedDataError(DataError):
    """The attributes of an array declare packed values, but these cannot be decoded; names the attributes."""


class PartlyMissingError(DataError):
    """A feature that appeared to be never observed has a value; names feature and row."""


class ChangedInputError(DataError):
    """Files or objects of the input were replaced, changed or removed while it was read, or since the run that is updated; names them."""


class NotFiniteError(DataError):
    """The data contains NaN or infinity, or overflows when squared; names the first row and column."""


class OutputError(StreamPCAError, OSError):
    """The output exists, is locked by another run, or was not written by streampca."""

    exit_status = 6


class PlanError(StreamPCAError, ValueError):
    """The work does not fit in the allowed memory; names projected and allowed memory, and sufficient settings."""

    exit_status = 7


class ModelError(DataError):
    """A path holds no saved model, or the model is incomplete or fails a check on loading."""


class InterruptedRunError(StreamPCAError):
    """A signal stopped the run before its commit record was written."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal_number = signal_number
