"""Every exception of streampca, each with the sentence that says when it is raised and the exit status of a run it ends."""

from __future__ import annotations

from typing import ClassVar

from streampca.redaction import redacted


class StreamPCAError(Exception):
    """Base of every error that streampca raises on purpose; URLs in messages have neither passwords nor queries."""

    exit_status: ClassVar[int] = 1
    """Exit status of a command that ends with this error."""

    def __init__(self, *args: object):
        super().__init__(*(redacted(each) if isinstance(each, str) else each for each in args))


class ConfigError(StreamPCAError, ValueError):
    """A configuration file or a command line says something that cannot be done; names the key and what is allowed."""

    exit_status = 2


class ParameterError(StreamPCAError, ValueError):
    """A parameter of an estimator or a function has a value outside its domain."""

    exit_status = 2


class RepeatedReadsError(ParameterError):
    """One pass over a Dask array would read or make its chunks more often than is allowed; names how often and the cure."""


class NotAvailableError(StreamPCAError, NotImplementedError):
    """A name of the public contract that this version does not carry out yet."""

    exit_status = 2


class MergeError(StreamPCAError, ValueError):
    """States or models that were made with different parameters, or whose states were not kept, cannot be merged."""

    exit_status = 2


class ClusterError(StreamPCAError, RuntimeError):
    """The cluster lost a task for good, or cannot be reached."""

    exit_status = 3


class BlockFailedError(ClusterError):
    """Rows that ended every worker that read them, alone on it, as often as is tried; names them and their chunks."""


class NoSpaceError(StreamPCAError, OSError):
    """The file system that the output goes to has, or will have, no room for it."""

    exit_status = 4


class DataError(StreamPCAError, ValueError):
    """The input is missing, damaged, or not something that principal components can be taken of."""

    exit_status = 5


class MissingChunkError(DataError):
    """Chunks of the store do not exist; names how many and the first of their keys."""


class MissingInnerChunkError(MissingChunkError):
    """A shard does not hold one of its chunks."""


class DamagedChunkError(DataError):
    """A chunk of the store cannot be decoded, or has the wrong size; names its key and codec."""


class AlteredChunkError(DamagedChunkError):
    """A chunk of the store is not the one that was fingerprinted; names its key and both digests."""


class OutsideStoreError(DataError):
    """A file of a local store lies outside of it, by a symbolic link that was not to be followed."""


class StoreError(DataError):
    """A store behind a URL refuses a request, or does not answer however often it is asked; names the key and the answer."""


class PackedDataError(DataError):
    """The attributes of an array say that its stored numbers are not the values that are meant; names them."""


class ChangedInputError(DataError):
    """Files or objects of the input were replaced, changed or removed while it was read; names the latest change."""


class NotFiniteError(DataError):
    """The data holds NaN or infinity, or overflows when squared; names the first row and column."""


class OutputError(StreamPCAError, OSError):
    """The output exists, is locked by another run, or is not ours to replace."""

    exit_status = 6


class PlanError(StreamPCAError, ValueError):
    """The work does not fit in the allowed memory; names what is projected, what is allowed, and what would do."""

    exit_status = 7


class ModelError(DataError):
    """A saved model is not one, is incomplete, or fails a check on loading."""


class InterruptedRunError(StreamPCAError):
    """A signal stopped the run before its commit record was written."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal_number = signal_number
