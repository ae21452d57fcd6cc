"""Versions of all packages and libraries that determine the bits of a result."""

from __future__ import annotations

import platform

from streampca.version import __version__


def versions() -> dict[str, str]:
    """Return the versions of all packages and libraries that determine the bits of a result."""
    from importlib.metadata import version

    import scipy.linalg  # noqa: F401  brings its BLAS, which a worker may not have in memory yet

    from streampca.system.blas_threads import libraries  # here, because it imports numpy

    blas = sorted(
        {
            f"{library.internal_api} {library.version} ({getattr(library, 'architecture', '?')})"
            for library in libraries()
            if library.user_api == "blas"
        }
    )
    packages = ("numpy", "scipy", "zarr", "numcodecs", "dask")
    return {
        "python": platform.python_version(),
        "streampca": __version__,
        **{name: version(name) for name in packages},
        "blas": ", ".join(blas),
        "platform": f"{platform.system()} {platform.machine()}",
    }
