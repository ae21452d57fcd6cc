"""Clusters for a run: workers on this machine, a running scheduler, or SLURM jobs."""

from __future__ import annotations

import logging
import math
import re
import shlex
import shutil
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import psutil

from streampca.errors import ClusterError, ConfigError, StreamPCAError
from streampca.execution.distributed.active_client import forget, using_client
from streampca.logs import Notice
from streampca.planning.work import workers_of
from streampca.runs.config.values import (
    AddressCluster,
    AnyCluster,
    LocalCluster,
    SlurmCluster,
    ThreadsCluster,
    TLSConfig,
    plain_options,
    seconds_of,
)
from streampca.storage.files import open_regular
from streampca.system.optional import not_installed, optional_module
from streampca.typing import DaskClient, Json

if TYPE_CHECKING:
    from distributed import Client, Nanny
    from distributed.security import Security

    from streampca.runs.config import RunConfig


Startable = LocalCluster | SlurmCluster

_NOISE = re.compile(r"in <[^>]*>: |\[Errno -?[0-9]+\] ")
_CONNECT_SECONDS = 20.0  # to a scheduler that was just started, if `wait` is less
_CLOSE_SECONDS, _KILL_SECONDS = 5.0, 2.0  # a run that a signal stops is to end within ten
_CLOSE_JOBS_SECONDS = 30.0
_NEXT_SECONDS = 15.0  # how long work waits for the next worker when there are some
_START_SECONDS = 15.0  # between two looks whether workers of this machine still work on their start


class _Background(logging.Handler):
    """Receive failed calls in the loop of a cluster, which are not reported elsewhere."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first error, except errors of pages."""
        if record.exc_info and self.error is None and record.getMessage().startswith("Exception in callback"):
            self.error = record.exc_info[1]


@contextmanager
def cluster_of(config: RunConfig, notice: Notice | None = None) -> Iterator[None]:
    """Start or join the cluster in `config` for the duration of the block; its client is the active one.

    `notice` receives the address of the dashboard, and the number of workers if fewer came than requested. Closing takes a
    bounded time, whatever state the workers are in.

    Raises
    ------
    ClusterError
        If no scheduler answers, no worker comes in time, or the system refuses to start workers.
    ConfigError
        If the files of `tls` cannot be used, or `options` are refused.
    NotAvailableError
        If the package that a kind needs is not installed.
    """
    cluster, notify = config.cluster, notice or (lambda _: None)
    if isinstance(cluster, ThreadsCluster):
        yield
        return
    import dask

    settings = settings_of(cluster)
    with dask.config.set(settings), _quiet() as background, ExitStack() as stack:
        if isinstance(cluster, AddressCluster):
            with _in_use(_scheduler_at(cluster)) as client:
                _wait_for(client, 1, cluster.wait, "the scheduler has no workers: start some", background)
                yield
            return
        start, advice, seconds = _starting(config, cluster, settings, stack)
        with (
            _closing(_started(start, cluster), seconds, notify) as started,
            _in_use(_client_of(started, cluster)) as client,
        ):
            if cluster.dashboard:
                notify(f"dashboard: {_pages(started)}")
            wanted, workers = cluster.n_workers, None
            if isinstance(cluster, LocalCluster):
                wanted, _ = n_workers_and_threads(cluster)
                workers = LocalStart(started, wanted)
            came = _wait_for(client, int(wanted), cluster.wait, advice, background, workers)
            if came < int(wanted):
                notify(f"{came} of {wanted} workers have started: continuing with them; others may join")
            yield


@contextmanager
def planning_for(config: RunConfig) -> Iterator[None]:
    """Make plans in this block account for the cluster in `config`, as in a run, without starting it.

    The workers of a cluster on this machine are known beforehand; for other kinds no worker is known, as before the first comes.
    """
    cluster = config.cluster
    if isinstance(cluster, ThreadsCluster):
        yield
        return
    import dask

    # With this the modules of `distributed` are in memory, as in a run.
    with dask.config.set(settings_of(cluster)), using_client(cast(DaskClient, _WorkersToCome(cluster))):
        yield


class _WorkersToCome:
    """The part of the client of a cluster that planning uses."""

    status, scheduler = "running", None

    def __init__(self, cluster: AnyCluster):
        self.workers: Json = {}
        if isinstance(cluster, LocalCluster):
            n_workers, n_threads = n_workers_and_threads(cluster)
            one = {"nthreads": n_threads, "memory_limit": 0, "host": "127.0.0.1"}
            self.workers = {f"tcp://127.0.0.1:{i}": one for i in range(n_workers)}

    def scheduler_info(self, n_workers: int) -> Json:
        """Return the workers in the form of `distributed.Client.scheduler_info`."""
        return {"workers": self.workers}


def _starting(
    config: RunConfig, cluster: Startable, settings: dict[str, object], stack: ExitStack
) -> tuple[Callable[[], StartedCluster], str, float]:
    """Return the object that starts workers, the action if none comes, and the seconds that closing may take."""
    if isinstance(cluster, LocalCluster):
        import distributed

        options = _local_options(cluster)
        advice = "they exited or hung during startup; check the memory and the load of this machine"
        return lambda: distributed.LocalCluster(**options), advice, _CLOSE_SECONDS  # type: ignore[no-untyped-call]
    slurm = class_of("dask_jobqueue", "SLURMCluster", "slurm")
    if shutil.which("sbatch") is None:
        raise ClusterError("cluster.kind: slurm: there is no sbatch on this machine: run this where jobs are submitted")
    advice = "squeue shows why the jobs wait, and options.log_directory makes them write logs"
    security = stack.enter_context(certificates_of(config, cluster))
    options = slurm_options(config, cluster, settings, security)
    if hasattr(slurm, "job_cls"):
        options["job_cls"] = closing_jobs(slurm.job_cls)
    return lambda: slurm(**options), advice, _CLOSE_JOBS_SECONDS


def _local_options(cluster: LocalCluster) -> dict[str, Any]:
    import dask

    return {
        "n_workers": 0,  # started one step later, by `LocalStart`
        "threads_per_worker": n_workers_and_threads(cluster)[1],
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": cluster.dashboard},
        "memory_limit": 0,  # the ceiling is kept by the plan, not by killing workers
        # A worker would log a task that fails, with its arguments, and the traceback: the error itself comes back to us.
        "silence_logs": logging.CRITICAL,
        "preload": [*dask.config.get("distributed.worker.preload"), "streampca.runs.deploy.preload"],
    }


def _started(start: Callable[[], StartedCluster], cluster: Startable) -> StartedCluster:
    """Start workers; report errors of other systems in one line, without values of options, which may be secrets."""
    options = getattr(cluster, "options", {})
    try:
        return start()
    except StreamPCAError:
        raise
    except (TypeError, ValueError) as error:
        if isinstance(cluster, LocalCluster):
            raise ClusterError(f"the workers on this machine did not start: {_one_line(error)}") from error
        raise ConfigError(f"cluster.options: kind {cluster.kind} refuses them: {_one_line(error, options)}") from error
    except Exception as error:  # every system that starts workers has errors of its own
        raise ClusterError(f"kind {cluster.kind} starts no workers: {_one_line(error, options)}") from error


def _client_of(started: StartedCluster, cluster: Startable) -> Client:
    import distributed

    # Results come straight from workers of this machine, not through the scheduler, which takes half the processor time. A
    # connection to a frozen worker ends because its nanny, which is here too, kills it.
    options = {"direct_to_workers": True} if isinstance(cluster, LocalCluster) else {}
    try:
        return distributed.Client(started, timeout=max(_CONNECT_SECONDS, seconds_of(cluster.wait)), **options)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise ClusterError(f"the scheduler that was started does not answer: {_one_line(error)}") from error


def _scheduler_at(cluster: AddressCluster) -> Client:
    """Return a client of the scheduler at an address."""
    import distributed

    security = {"security": security_of(cluster.tls)} if cluster.address.startswith("tls://") else {}
    try:
        return distributed.Client(cluster.address, timeout=seconds_of(cluster.wait), **security)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        address = str(cluster.as_written("address"))
        reason = _one_line(error).replace(cluster.address, address)
        raise ClusterError(f"no scheduler answers at {address} within {cluster.wait}: {reason}") from error


@contextmanager
def _in_use(client: Client) -> Iterator[Client]:
    """Make `client` the active one, and close it at the end, whether or not the scheduler still answers."""
    try:
        with client.as_current():
            yield client
    finally:
        with suppress(OSError):  # of which TimeoutError is one
            client.close(timeout=_CLOSE_SECONDS)  # type: ignore[no-untyped-call]
        forget(client)


@contextmanager
def _closing(started: StartedCluster, seconds: float, notify: Notice) -> Iterator[StartedCluster]:
    """Close a cluster at the end; kill our processes that do not end in time, such as frozen ones."""
    try:
        yield started
    except BaseException:
        _close(started, seconds, lambda _: None)  # what it has to say comes after what went wrong
        raise
    _close(started, seconds, notify)


def _close(started: StartedCluster, seconds: float, notify: Notice) -> None:
    import distributed
    import psutil

    processes = list(filter(None, map(process_of, nannies_of(started))))
    try:
        started.close(timeout=seconds)
    except TimeoutError:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(TimeoutError):
            started.close(timeout=_KILL_SECONDS)
    except Exception as error:  # noqa: BLE001 what the work came to does not depend on it
        started.status = distributed.Status.closed  # as far as it goes: Dask gives up at a job that was never begun
        notify(f"the cluster was not shut down cleanly: {_one_line(error)}")


def _wait_for(
    client: Client, wanted: int, within: str, advice: str, background: _Background, local: LocalStart | None = None
) -> int:
    """Wait until `wanted` workers have come, or until no more come for a while; return their number.

    Workers of this machine, which `local` starts, are started again if they end or do not come.

    Raises
    ------
    ClusterError
        If no worker came in time, or if one could not be started.
    """
    now = time.monotonic()
    limit, n_before = now + seconds_of(within), 0
    until = limit if local is None else min(limit, now + _START_SECONDS)
    while (n_present := len(names := _names_of_workers(client))) < wanted:
        now = time.monotonic()
        if local is not None and local.replace_ended():
            until = min(limit, now + _START_SECONDS)
        if local is not None and local.is_over:
            break
        if local is None and background.error is not None:
            raise ClusterError(f"a worker could not be started: {_one_line(background.error)}") from background.error
        if n_present > n_before:
            n_before, until = n_present, min(limit, now + _NEXT_SECONDS)
        if now >= until:
            again = local is not None and local.end_frozen(names)
            if local is None or now >= limit or (n_present and not again):
                break
            until = min(limit, now + _START_SECONDS)
        with suppress(TimeoutError):
            client.wait_for_workers(n_present + 1, timeout=max(0.05, min(1.0, until - now)))
    if not n_present:
        reason = "" if background.error is None else f" ({_one_line(background.error)})"
        raise ClusterError(f"0 of {wanted} workers started within {within}: {advice}{reason}")
    return n_present


def _names_of_workers(client: Client) -> set[object]:
    """Return the names of the workers that have come."""
    return {worker["name"] for worker in workers_of(client).values()}


def _pages(started: StartedCluster) -> str:
    """Return the address of Dask's pages: charts if bokeh is installed, otherwise tables of workers and tasks."""
    page = "status" if find_spec("bokeh") else "info/main/workers.html"
    return f"http://127.0.0.1:{started.scheduler_info['services']['dashboard']}/{page}"


@contextmanager
def _quiet() -> Iterator[_Background]:
    """Keep the log of Dask off the terminal, because problems are raised or harmless; yield the receiver of errors in the loop."""
    import distributed  # noqa: F401 sets up its loggers

    loop = logging.getLogger("tornado.application")
    handlers = {
        handler: handler.level for name in ("distributed", loop.name) for handler in logging.getLogger(name).handlers
    }
    for handler in handlers:
        handler.setLevel(logging.CRITICAL + 1)
    heard = _Background()
    loop.addHandler(heard)
    try:
        yield heard
    finally:
        loop.removeHandler(heard)
        for handler, level in handlers.items():
            handler.setLevel(level)


def _one_line(error: BaseException, options: object = None) -> str:
    """Return the message of an error on one line, with the texts of `options` hidden."""
    text = _NOISE.sub("", " ".join(str(error).split())) or type(error).__name__
    for value in sorted(_texts(options), key=len, reverse=True):
        text = text.replace(value, "***")
    return text if len(text) <= 300 else text[:300] + "…"


def _texts(options: object) -> set[str]:
    if isinstance(options, dict):
        return set().union(*map(_texts, options.values()))
    if isinstance(options, list | tuple):
        return set().union(*map(_texts, options))
    return {options} if isinstance(options, str) and len(options) >= 4 else set()


_WORKER_SETTINGS: dict[str, object] = {
    "distributed.comm.retry.count": 2,
    "distributed.comm.retry.delay.min": "200ms",
    "distributed.comm.retry.delay.max": "2s",
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}
"""The plan limits memory, so Dask need not spill, pause or kill workers."""
_SCHEDULER_SETTINGS: dict[str, object] = {
    "distributed.scheduler.worker-ttl": "60s",
    "distributed.scheduler.no-workers-timeout": "2 minutes",
    "distributed.deploy.lost-worker-timeout": "10 minutes",
}
"""A frozen worker is given up after one minute instead of five, a run without workers ends after two minutes instead of never,
and a worker that returns after its second death is accepted."""
_LOCAL_SETTINGS: dict[str, object] = {"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None}
"""By default glibc keeps the memory of one chunk for the next; Dask's setting returns it each time, at a page fault per 4 KiB."""
_WORKER_PAGES, _PAGES = "distributed.worker.http.routes", "distributed.scheduler.http.routes"
"""Every Dask process serves HTTP; without these routes it serves no pages."""

_LOOPBACK = "127.0.0.1:0"


def settings_of(cluster: AnyCluster) -> dict[str, object]:
    """Return our settings of Dask except those that the user has set in a file, in the environment or in the program."""
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
    """Return settings of Dask as environment variables, for processes that we do not start ourselves."""
    return {f"DASK_{key.upper().replace('.', '__').replace('-', '_')}": str(value) for key, value in settings.items()}


def class_of(module: str, name: str, kind: str) -> Any:
    """Return a class of a package that only `kind` needs, and keep the handlers of SIGINT and SIGTERM.

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
    """Return Dask's description of an encrypted connection from the files of `tls`, or from Dask's own configuration.

    Raises
    ------
    ConfigError
        If a file cannot be read, or is not a certificate or key.
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
    """Yield the description of encrypted connections from the files of `tls`, or from temporary ones that last for the block.

    Temporary files are private: they are in a directory of mode 0700 beside the output, which all machines see anyway.
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
    """Return the arguments of `dask_jobqueue.SLURMCluster`.

    Each job has one worker, unless `options` say otherwise; cores and memory come from `threads_per_worker` and
    `resources.memory`. Every connection is encrypted, and HTTP servers listen on the loopback of their machine.
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
    """Return the class `job` of dask_jobqueue with the status closed after closing, which the cluster of Dask checks when it closes."""
    from distributed import Status

    class ClosingJob(job):  # type: ignore[misc]
        async def close(self) -> None:
            await super().close()
            self.status = Status.closed

    return ClosingJob


_ATTEMPTS = 3
_ONE_THREAD_EACH = 4  # processors up to which Dask starts a worker for each; of more, at least the square root
_SYNC_SECONDS = 10.0
StartedCluster: TypeAlias = Any
"""A cluster of Dask that started workers, such as a `distributed.LocalCluster`."""


def n_workers_and_threads(cluster: LocalCluster) -> tuple[int, int]:
    """Return the number of workers and of threads per worker; ``auto`` is resolved as in Dask."""
    from dask.system import CPU_COUNT

    workers, threads = cluster.n_workers, cluster.threads_per_worker
    if workers == "auto" and threads == "auto":
        divisor = next(n for n in range(1, CPU_COUNT + 1) if CPU_COUNT % n == 0 and n * n >= CPU_COUNT)
        n_workers = CPU_COUNT if CPU_COUNT <= _ONE_THREAD_EACH else divisor
        return n_workers, CPU_COUNT // n_workers
    if workers == "auto":
        return max(1, CPU_COUNT // int(threads)), int(threads)
    return int(workers), math.ceil(CPU_COUNT / int(workers)) if threads == "auto" else int(threads)


class LocalStart:
    """Start the workers of a `distributed.LocalCluster` that has none, and restart them if they do not come.

    The constructor of `LocalCluster` waits for its workers indefinitely, and gives up all of them if one ends.
    """

    def __init__(self, cluster: StartedCluster, n_workers: int):
        self._cluster, self._n_workers = cluster, n_workers
        self._attempts_left = _ATTEMPTS - 1
        self._seconds_used: dict[int, float] = {}
        cluster.scale(n_workers)

    def replace_ended(self) -> bool:
        """Replace workers that ended during startup; return False if none did, or after enough attempts."""
        with suppress(TimeoutError):
            return bool(self._cluster.sync(self._replace_ended, callback_timeout=_SYNC_SECONDS))
        return False

    async def _replace_ended(self) -> bool:
        ended = [name for name, nanny in self._cluster.workers.items() if _has_ended(nanny)]
        if not ended or not self._attempts_left:
            return False
        self._attempts_left -= 1
        for name in ended:
            del self._cluster.workers[name]  # so that it is missed
        self._cluster.scale(self._n_workers)
        return True

    @property
    def is_over(self) -> bool:
        """Return whether all workers have ended and none is restarted."""
        nannies = list(self._cluster.workers.values())
        return not self._attempts_left and bool(nannies) and all(map(_has_ended, nannies))

    def end_frozen(self, there: set[object]) -> bool:
        """Kill processes that should start a worker but have used no CPU time since the last call.

        `there` are the names of workers that have come. Others may be slow because this machine is busy. Return whether a
        process was killed that will be restarted.
        """
        before, self._seconds_used, killed = self._seconds_used, {}, False
        for nanny in nannies_of(self._cluster):
            process = process_of(nanny)
            if process is None or nanny.name in there:
                continue
            with suppress(psutil.NoSuchProcess):
                self._seconds_used[process.pid] = sum(process.cpu_times()[:2])
                if self._seconds_used[process.pid] == before.get(process.pid):
                    process.kill()
                    killed = True
        return killed and self._attempts_left > 0


def nannies_of(cluster: StartedCluster) -> list[Nanny]:
    """Return the nannies of the workers of a cluster, including workers that have not come yet."""
    made = set(getattr(cluster, "workers", {}).values())
    for _ in range(10):
        try:
            return list(made.union(getattr(cluster, "_created", ())))  # not documented, but nothing else has them
        except RuntimeError:  # the loop of the cluster has just added one
            continue
    return list(made)


def _has_ended(nanny: Nanny) -> bool:
    """Return whether a nanny has ended or failed."""
    from distributed import Status

    return nanny.status in (Status.closed, Status.failed)


def process_of(nanny: object) -> psutil.Process | None:
    """Return the process of a worker, or None if it is not on this machine."""
    pid = getattr(nanny, "pid", None)
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid) if isinstance(pid, int) else None
    return None
