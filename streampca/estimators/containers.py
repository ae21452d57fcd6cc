"""Data frames are made of arrays in memory only: scores of stores and lazy arrays stay lazy, or are streamed to a store."""

from __future__ import annotations

from typing import Any

from sklearn import get_config

from streampca.errors import ParameterError


def require_lazy_output(estimator: Any) -> None:
    """Raise `ParameterError` if scikit-learn would make a data frame of the output of ``transform``, in memory.

    Called for input that is not in memory, before it is read. The setting is that of ``set_output``, or else of
    ``sklearn.set_config(transform_output=…)``.
    """
    chosen = getattr(estimator, "_sklearn_output_config", {}).get("transform", get_config()["transform_output"])
    if chosen != "default":
        raise ParameterError(
            f"set_output(transform={chosen!r}) makes a data frame of all scores in memory, whatever the ceiling, and this input is "
            'not in memory: use set_output(transform="default"), which gives a lazy Dask array, or transform_to(X, path)'
        )
