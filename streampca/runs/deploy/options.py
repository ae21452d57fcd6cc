"""What Dask's own classes are given to start workers: settings, certificates, and the options of SLURM."""

from __future__ import annotations

import logging
import shlex
import signal
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from streampca.errors import ConfigError
from streampca.runs.config.clusters import (
    AddressCluster,
    AnyCluster,
    LocalCluster,
    SlurmCluster,
    TLSConfig,
)
from streampca.runs.config.values import plain_options
from streampca.storage.regular_files import open_regular
from streampca.system.optional import not_installed, optional_module
from streampca.typing import Json

if TYPE_CHECKING:
    from distributed.security import Security

    from streampca.runs.config import RunConfig

_WORKER_SETTINGS: dict[str, object] = {
    "distributed.comm.retry.count": 2,
    "distributed.comm.retry.delay.min": "200ms",
    "distributed.comm.retry.delay.max": "2s",
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}
"""The plan keeps the memory, so Dask need not write to disk, wait or kill for it."""
_SCHEDULER_SETTINGS: dict[str, object] = {
    "distributed.scheduler.worker-ttl": "60s",
    "distributed.scheduler.no-workers-timeout": "2 minutes",
    "distributed.deploy.lost-worker-timeout": "10 minutes",
}
"""A worker that is frozen is given up after a minute, not after five; a run without any worker ends after two, not never; and a
worker that comes back after its second death is not sent away."""
_LOCAL_SETTINGS: dict[str, object] = {"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None}
"""Left to itself glibc keeps the memory of one chunk for the next; Dask has it given back each time, for a page fault every 4 KiB."""
_WORKER_PAGES, _PAGES = "distributed.worker.http.routes", "distributed.scheduler.http.routes"
"""Every process of Dask serves HTTP; without pages it has nothing to show."""

_LOOPBACK = "127.0.0.1:0"


def settings_of(cluster: AnyCluster) -> dict[str, object]:
    """Return our settings of Dask but for those that the user has made, in a file, in the environment or in the program."""
    import dask
    import distributed  # noqa: F401 registers its defaults

    wanted = dict(_WORKER_SETTINGS)
    if not isinstance(cluster, AddressCluster):
        wanted |= _SCHEDULER_SETTINGS
    if isinstance(cluster, LocalCluster):
        wanted |= _LOCAL_SETTINGS
    defaults = dask.config.merge(*dask.config.defaults)
    settings = {
        key: value
        for key, value in wanted.items()
        if dask.config.get(key, None) == dask.config.get(key, None, config=defaults)
    }
    if isinstance(cluster, LocalCluster | SlurmCluster):
        hidden = (_WORKER_PAGES,) if cluster.dashboard else (_WORKER_PAGES, _PAGES)
        settings |= {key: [] for key in hidden}  # lists of their own: Dask appends to them
    return settings


def as_environment(settings: dict[str, object]) -> dict[str, str]:
    """Return settings of Dask as environment variables, which processes that we do not start ourselves can be given."""
    return {f"DASK_{key.upper().replace('.', '__').replace('-', '_')}": str(value) for key, value in settings.items()}


def class_of(module: str, name: str, kind: str) -> Any:
    """Return a class of a package that only `kind` needs; whoever handles SIGINT and SIGTERM goes on doing so.

    Raises
    ------
    NotAvailableError
        If the package is not installed.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return getattr(optional_module(module, f"cluster.kind: {kind}", kind), name)
    finally:  # dask_jobqueue takes SIGINT for itself when it is imported, and a run would not say how to go on
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def security_of(tls: TLSConfig | None) -> Security:
    """Return Dask's description of an encrypted connection by the files of `tls`, or those of Dask's own configuration.

    Raises
    ------
    ConfigError
        If a file cannot be read, or is no certificate or key.
    """
    from distributed.security import Security

    paths = {}
    if tls is not None:
        paths = {key: str(Path(getattr(tls, key)).expanduser().absolute()) for key in ("ca_file", "cert", "key")}
        for key, path in paths.items():
            _require_readable(f"cluster.tls.{key}", getattr(tls, key), path)
    roles = ("client", "scheduler", "worker")
    files = {f"tls_{role}_{key}": paths[key] for role in roles for key in ("cert", "key") if paths}
    if paths:
        files["tls_ca_file"] = paths["ca_file"]
    security = Security(require_encryption=True, **files)  # type: ignore[no-untyped-call]
    try:
        context = security.get_connection_args("client")["ssl_context"]  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:  # of which ssl.SSLError is one
        reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else type(error).__name__
        raise ConfigError(
            f"cluster.tls: the files cannot be used ({reason}): expected PEM files of an authority, a certificate that it "
            "signed, and the key of that certificate without a password"
        ) from error
    if context is None:
        raise ConfigError(
            "cluster.address begins with tls://, but there are no certificates: add tls: {ca_file, cert, key}, or set "
            "distributed.comm.tls in Dask's configuration"
        )
    return security


def _require_readable(key: str, written: str, path: str) -> None:
    try:
        with open_regular(path):
            pass
    except OSError as error:
        raise ConfigError(f"{key}: {written} cannot be read: {error.strerror}: give the path of a PEM file") from error


@contextmanager
def certificates_of(config: RunConfig, cluster: SlurmCluster) -> Iterator[Security]:
    """Yield the description of encrypted connections by the files of `tls`, or by ones that are there for as long as the block lasts.

    These are known to nobody else: they stand in a directory of mode 0700 beside the output, which all machines see anyway.
    """
    if cluster.tls is not None:
        yield security_of(cluster.tls)
        return
    from distributed.security import Security

    try:
        made = Security.temporary()  # type: ignore[no-untyped-call]
    except ImportError as error:
        purpose = "cluster.kind: slurm without files in cluster.tls"
        raise not_installed("cryptography", purpose, "slurm") from error
    place = cluster.options.get("shared_temp_directory") or config.output.directory.absolute().parent
    with TemporaryDirectory(prefix=".streampca-tls-", dir=Path(str(place)).expanduser()) as directory:
        certificate, key = Path(directory) / "cert.pem", Path(directory) / "key.pem"
        certificate.write_text(made.tls_client_cert)
        key.write_text(made.tls_client_key)
        yield security_of(TLSConfig(ca_file=str(certificate), cert=str(certificate), key=str(key)))


def slurm_options(config: RunConfig, cluster: SlurmCluster, settings: dict[str, object], security: Security) -> Json:
    """Return what `dask_jobqueue.SLURMCluster` is called with.

    One worker to a job, unless `options` say otherwise; cores and memory from `threads_per_worker` and `resources.memory`.
    Every connection is encrypted; what serves HTTP listens on the loopback of its machine.
    """
    import dask

    given: Json = plain_options(cluster.options)
    processes = given.setdefault("processes", 1)
    if cluster.threads_per_worker != "auto" and isinstance(processes, int):
        given.setdefault("cores", cluster.threads_per_worker * processes)
    if config.resources.memory_bytes is not None and isinstance(processes, int):
        given.setdefault("memory", f"{config.resources.memory_bytes * processes}B")
    variables = as_environment(settings)
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    exports.append("export DASK_LOGGING__DISTRIBUTED=${DASK_LOGGING__DISTRIBUTED:-warning}")
    more = {
        "job_script_prologue": exports,
        "worker_extra_args": ["--no-dashboard", "--dashboard-address", _LOOPBACK],
    }
    for key, ours in more.items():
        theirs = given.get(key, dask.config.get(f"jobqueue.slurm.{key.replace('_', '-')}", None)) or []
        given[key] = [*theirs, *ours]
    pages = {"dashboard": cluster.dashboard, "dashboard_address": _LOOPBACK}
    given["scheduler_options"] = dict(given.get("scheduler_options") or {}) | pages
    return given | {"n_workers": cluster.n_workers, "security": security, "silence_logs": logging.CRITICAL}


def closing_jobs(job: Any) -> Any:
    """Return the class `job` of dask_jobqueue so that a job that was cancelled says so; Dask's cluster looks at it when it closes."""
    from distributed import Status

    class ClosingJob(job):  # type: ignore[misc]
        async def close(self) -> None:
            await super().close()
            self.status = Status.closed

    return ClosingJob
