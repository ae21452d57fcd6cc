"""Whether the package does what it did at another commit: plans, answers, states and saved files of random fits, digest by digest.

A restructuring changes none of them, or says which key it changes and why. `scripts/test same-as COMMIT` compares the working tree with a commit: the same random
cases, drawn by `tests/fuzzing` from the table of what solvers take, are fitted by both in processes of their own. Memory and cores of the machine are
numbers of the case, so that plans are equal where the code is. Some cases are fitted by the workers of a cluster; some are fits of groups of rows, of
counts whose steps take figures of all rows first, or runs that write T² and Q.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]
_CONTAINERS = {"fortran": "numpy", "strided": "numpy", "csc": "csr", "dask_csr": "csr"}
_OF_ONE_WRITING = ("run_id", "content", "written_by", "sha256", "seal", "digest", "digests")
"""Keys of JSON files that differ each time, or say the digest of what is compared itself."""


SECTIONS: dict[str, tuple[str, ...]] = {
    "preprocess": ("center", "scale", "missing", "missing_scores"),
    "model": ("n_components", "solver", "sketch", "max_passes", "tolerance", "whiten", "ddof"),
}
"""Sections of a configuration and the parameters in them."""


def drawn(count: int) -> list[dict[str, Any]]:
    """Return random cases as plain data, of PCA, kernel PCA and the analyses of two tables and of factors."""
    sys.path[:0] = [str(REPOSITORY / "tests" / "fuzzing"), str(REPOSITORY / "tests")]
    import analyses
    import cases
    import kernel_fits

    made: list[dict[str, Any]] = []
    for seed in range(count):
        kind = "analysis" if seed % 10 == 0 else "kernel" if seed % 10 == 5 else "pca"
        given: Any = {"analysis": analyses, "kernel": kernel_fits, "pca": cases}[kind].draw(seed)
        rng = np.random.default_rng(seed)
        case: dict[str, Any] = {
            "kind": given.kind if kind == "analysis" else kind,
            "rows": given.rows,
            "container": "numpy" if kind == "analysis" else _CONTAINERS.get(given.container, given.container),
            "chunks": getattr(given, "chunks", (len(given.rows), given.rows.shape[1])),
            "parameters": dict(given.parameters),
            "weight": getattr(given, "sample_weight", None),
            "threads": int(rng.choice([1, 2, 3, 8])),
            "process": int(rng.choice([100, 200])) << 20,
            "line": given.line(),
        }
        if kind == "analysis":
            case["parameters"] |= {"n_components": given.n_components} | (
                {"first": given.n_first} if given.kind in ("mca", "cca") else {}
            )
        case["parameters"]["memory"] = case["process"] + (int(rng.choice([2, 20, 2000])) << 20)
        of_pca, arrays = kind == "pca", any(isinstance(each, np.ndarray) for each in case["parameters"].values())
        case["workers"] = bool(rng.random() < 0.25) and case["container"] in ("numpy", "csr")
        case["groups"] = of_pca and bool(rng.random() < 0.3)
        case["counts"] = kind != "analysis" and case["container"] in ("numpy", "csr") and bool(rng.random() < 0.1)
        case["run"] = of_pca and case["container"] == "numpy" and not arrays and bool(rng.random() < 0.3)
        made.append(case)
    return made


def _stored(case: dict[str, Any], place: Path) -> Any:
    """Return the rows of a case in their container."""
    rows, container = case["rows"], case["container"]
    if container == "dask":
        import dask.array as da

        return da.from_array(rows, chunks=case["chunks"])
    if container == "csr":
        import scipy.sparse as sparse

        rows = sparse.csr_array(rows)
    if container == "zarr":
        import zarr

        array = zarr.create_array(
            place / "x.zarr",
            shape=rows.shape,
            dtype=rows.dtype,
            chunks=case["chunks"],
            config={"write_empty_chunks": True},
        )
        array[...] = rows
        for path in (place / "x.zarr").rglob("*"):
            os.utime(path, (0, 0))
        return "x.zarr"
    if case["counts"]:
        import anndata

        import streampca as sp

        return sp.open(anndata.AnnData(abs(rows)), normalize={"target_sum": "median", "log1p": True})
    return rows


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Return parsed JSON without what differs with each writing."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if key not in _OF_ONE_WRITING}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _files(place: Path) -> Iterator[tuple[str, str]]:
    """Yield the files of a directory with their digests, keys of JSON with their values."""
    for path in sorted(each for each in place.rglob("*") if each.is_file()):
        name = str(path.relative_to(place))
        if path.suffix == ".json":
            for key, value in sorted(_plain(json.loads(path.read_text())).items()):
                yield f"{name}:{key}", _digest(json.dumps(value, sort_keys=True).encode())
        else:
            yield name, _digest(path.read_bytes())


_FITTED = (
    *(
        "bytes_read_",
        "components_",
        "constant_features_",
        "correlation_",
        "correlations_",
        "eigenvalues_",
        "explained_variance_",
    ),
    *(
        "explained_variance_ratio_",
        "feature_names_in_",
        "landmark_indices_",
        "landmarks_",
        "log_likelihood_",
        "mean_",
        "method_",
    ),
    *(
        "n_components_",
        "n_features_in_",
        "n_iter_",
        "n_passes_",
        "n_samples_seen_",
        "noise_variance_",
        "numerical_rank_",
    ),
    *(
        "sampling_",
        "scale_",
        "singular_values_",
        "solver_",
        "squared_covariance_fraction_",
        "total_variance_",
        "x_components_",
    ),
    *("x_explained_variance_", "x_patterns_", "y_components_", "y_explained_variance_", "y_patterns_"),
)
"""Fitted attributes, of whatever estimator."""


def _digests(fit: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield the digests of the fitted attributes."""
    for key in _FITTED:
        value = getattr(fit, key, None)
        if isinstance(value, np.ndarray | np.generic | float | int | str):
            array = np.asarray(value)
            yield f"{name}.{key}", _digest(array.tobytes() if array.dtype.kind != "O" else repr(value).encode())


def _planned(plan: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield the values of a plan."""
    for key, value in plan.items():
        yield f"{name}.{key}", json.dumps(value, sort_keys=True)


def _other_ways(sp: Any, case: dict[str, Any], rows: Any, place: Path) -> Iterator[tuple[str, str]]:
    """Yield what is compared of fits of groups of rows, and of a run that writes T² and Q."""
    parameters = case["parameters"]
    if case["groups"]:
        labels = np.arange(len(case["rows"])) % 3
        try:
            fits = sp.PCA(**parameters).fit_groups(rows, labels, sample_weight=case["weight"])
            yield from _planned(fits.plan_.to_dict(), "groups.plan")
            for label, fit in fits.items():
                yield from _digests(fit, f"groups.{label}")
        except (sp.StreamPCAError, ValueError) as error:
            yield "groups.error", f"{type(error).__name__}: {error}"
    if case["run"]:
        np.save(place / "x.npy", case["rows"])
        given: dict[str, dict[str, Any]] = {}
        for section, names in SECTIONS.items():
            given[section] = {name: parameters[name] for name in names if name in parameters}
        given["resources"] = {"memory": parameters["memory"]}
        output = {"directory": str(place / "run"), "report": False, "diagnostics": True}
        try:
            sp.run({"name": "a", "source": {"path": str(place / "x.npy")}, "output": output, **given})
            yield from _planned(json.loads((place / "run" / "plan.json").read_text()), "run.plan")
            found = _files(place / "run" / "scores.zarr")
            yield from ((f"run/{key}", value) for key, value in found if ".json" not in key)
        except (sp.StreamPCAError, ValueError) as error:
            yield "run.error", f"{type(error).__name__}: {error}".replace(str(place), "")


def _seen(sp: Any, case: dict[str, Any], place: Path) -> dict[str, str]:
    """Return what is compared of a case by key: values of the plan, digests of fitted attributes, scores and files."""
    kinds: dict[str, Any] = {
        "pca": sp.PCA,
        "kernel": sp.KernelPCA,
        "mca": sp.MCA,
        "cca": sp.CCA,
        "factor_analysis": sp.FactorAnalysis,
    }
    kinds["rotated"] = lambda rotation, **given: sp.RotatedPCA(sp.PCA(**given), method=rotation)
    estimator = kinds[case["kind"]](**case["parameters"])
    seen: dict[str, str] = {}
    given = {} if case["weight"] is None else {"sample_weight": case["weight"]}
    try:
        rows = _stored(case, place)
        seen |= _planned(estimator.plan(rows).to_dict(), "plan")
        seen |= _other_ways(sp, case, rows, place)
        estimator.fit(rows, **given)
        seen |= _digests(estimator, "fit")
        if "error_" in dir(estimator):
            seen["fit.error_"] = json.dumps(dict(estimator.error_), sort_keys=True, default=repr)
        if case["container"] in ("numpy", "csr"):
            scores = estimator.transform(rows)
            for number, each in enumerate(scores if isinstance(scores, tuple) else (scores,)):
                seen[f"scores.{number}"] = _digest(np.ascontiguousarray(each).tobytes())
        for name, options in (("saved", {}), ("state", {"state": True})):
            try:
                estimator.save(place / name, **options)
            except (sp.StreamPCAError, TypeError) as error:
                seen[name] = type(error).__name__
            else:
                seen |= {f"{name}/{key}": value for key, value in _files(place / name)}
    except (sp.StreamPCAError, ValueError) as error:
        seen["error"] = f"{type(error).__name__}: {error}".replace(str(place), "")
    return seen


def collect(cases: Path, out: Path) -> None:
    """Fit the cases of a file by the package that is on the path, and write what is compared."""
    import streampca.system.process as process

    numbers = {"threads": 1, "process": 0}
    process.n_cores = lambda: numbers["threads"]
    process.process_bytes = lambda: numbers["process"]
    process.available_bytes = lambda: 8 << 30
    from dask.distributed import Client

    import streampca as sp

    found = []
    limit = {"n_workers": 2, "threads_per_worker": 2, "memory_limit": 1 << 30}
    with Client(processes=False, dashboard_address=":0", set_as_default=False, silence_logs=50, **limit) as client:
        for case in pickle.loads(cases.read_bytes()):
            numbers |= {"threads": case["threads"], "process": case["process"]}
            with contextlib.ExitStack() as stack:
                place = stack.enter_context(tempfile.TemporaryDirectory())
                stack.enter_context(contextlib.chdir(place))
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                if case["workers"]:
                    stack.enter_context(client.as_current())
                found.append(_seen(sp, case, Path(place)))
    out.write_text(json.dumps(found))


def differences(commit: str, count: int) -> tuple[dict[str, list[str]], int]:
    """Return by key the cases in which the working tree and `commit` differ, and the number of values compared."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        git = ["git", "-C", str(REPOSITORY)]
        cases = drawn(count)
        (place / "cases.pickle").write_bytes(pickle.dumps(cases))
        archive = subprocess.run([*git, "archive", commit, "streampca"], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(place)], input=archive, check=True)
        running = []
        for name, package in (("before", place), ("after", REPOSITORY)):
            command = [sys.executable, "-P", __file__, "--collect", str(place / "cases.pickle"), str(place / name)]
            running.append(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(package)}))
        if any(each.wait() for each in running):
            raise SystemExit("the fits could not be collected: see above")
        before, after = (json.loads((place / name).read_text()) for name in ("before", "after"))
    found: dict[str, list[str]] = {}
    for case, one, two in zip(cases, before, after, strict=True):
        for key in sorted(one.keys() | two.keys()):
            if one.get(key) != two.get(key):
                found.setdefault(key, []).append(f"{case['line']}\n    {one.get(key)}\n    {two.get(key)}")
    return found, sum(map(len, before))


def main() -> None:
    """Compare, and print the keys that differ with the first case of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", nargs="?", default="HEAD", help="what the working tree is compared with")
    parser.add_argument("--count", type=int, default=500, help="number of random fits")
    parser.add_argument("--collect", nargs=2, type=Path, metavar=("CASES", "OUT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.collect:
        collect(*given.collect)
        return
    found, n_values = differences(given.commit, given.count)
    for key, cases in found.items():
        print(f"{key}: {len(cases)} of {given.count} fits differ, the first:\n  {cases[0]}")
    print(f"{n_values:,} values of {given.count} fits compared with {given.commit}: {len(found)} keys differ")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
