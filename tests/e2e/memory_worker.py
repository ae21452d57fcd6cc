"""Carries out one job in a process of its own and prints what was projected and what was measured; see test_memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Return projected, allowed and measured bytes of `job`."""
    import numpy as np

    import streampca as sp
    from streampca.planning.scores import plan_scores
    from streampca.sources import open_source
    from streampca.system.process import peak_bytes

    if job["do"] == "run":
        manifest = json.loads((sp.run(job["config"]).directory / "manifest.json").read_text())
        return dict(manifest["memory"])
    if job["do"] == "kernel":
        if job["memory"] == "least":
            job["memory"] = least_memory(
                lambda memory: sp.KernelPCA(job["k"], memory=memory, **job["parameters"]).plan(job["path"])
            )
        kernel = sp.KernelPCA(job["k"], memory=job["memory"], **job["parameters"]).fit(job["path"])
        if "out" not in job:
            return figures(kernel.plan_, peak_bytes())
        kernel.set_params(memory="1GiB")  # the least for the fit is not planned with scores
        plan = plan_scores(open_source(job["path"]), kernel._model, "1GiB")
        kernel.transform_to(job["path"], Path(job["out"]))
        return figures(max(plan, kernel.plan_, key=lambda p: p.projected_bytes), peak_bytes()) | {
            "on_disk": kernel.plan_.model_on_disk
        }
    data: Any = job.get("path")
    if job.get("open"):
        data = open_source(data, **job["open"])
    if job["do"] == "dask":
        rows = dask_rows(job["path"], job["graph"])
        pca = sp.PCA(job["k"], memory=job["memory"], solver="covariance").fit(open_source(rows, max_reads=1000))
        return figures(pca.plan_, peak_bytes())
    if data is None:
        data = np.random.default_rng(0).standard_normal(job["shape"], dtype=np.dtype(job["dtype"]).type)
    parameters = {"solver": "covariance", **job.get("parameters", {})}
    if job["memory"] == "least":
        job["memory"] = least_memory(lambda memory: sp.PCA(job.get("k"), memory=memory, **parameters).plan(data))
    pca = sp.PCA(job.get("k"), memory=job["memory"], **parameters).fit(data)
    fitted = figures(pca.plan_, peak_bytes()) | {
        "rows_per_block": pca.plan_.rows_per_block,
        "read_again_bytes": pca.bytes_read_ - pca.plan_.bytes_to_read,
    }
    if job["do"] == "fit":
        return fitted
    plan = plan_scores(open_source(data), pca._model, job["memory"])
    pca.transform_to(data, Path(job["out"]))
    # The peak of a process does not go down again, so the second projection stands beside the first.
    return {"fit": fitted, "scores": figures(max(plan, pca.plan_, key=lambda p: p.projected_bytes), peak_bytes())}


def least_memory(plan: Any) -> int:
    """Return the least memory in bytes for which `plan` returns a plan, and up to 2 MiB more."""
    from streampca.errors import PlanError

    low, high = 0, 2**34
    while high - low > 2**20:
        middle = (low + high) // 2
        try:
            plan(middle)
            high = middle
        except PlanError:
            low = middle
    return high + 2**20  # planning itself takes some memory


def dask_rows(path: str, graph: str) -> Any:
    """Return the rows of a zarr array by a Dask graph of some kind."""
    import dask.array as da
    import numpy as np

    rows = da.from_zarr(path)
    if graph == "anomalies":
        return rows - rows.mean(0)
    if graph == "rechunked":
        return rows.rechunk((rows.chunks[0][0] * 2 // 3, -1))
    if graph == "cube":
        return rows.reshape(3, -1, rows.shape[1]).transpose(1, 0, 2).reshape(rows.shape[0] // 3, -1)
    return rows.map_blocks(lambda block: np.log1p(np.abs(block)))


def figures(plan: Any, peak: int) -> dict[str, int]:
    """Return the three numbers that are compared, and how often the data are read."""
    numbers = {"projected_bytes": plan.projected_bytes, "allowed_bytes": plan.allowed_bytes, "peak_bytes": peak}
    return numbers | {"passes": getattr(plan, "passes", 1)}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
