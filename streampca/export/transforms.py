"""Models as ONNX graphs from rows to scores, and as linear transforms of faiss."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from sklearn.decomposition import PCA, FactorAnalysis
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler, normalize

from streampca.errors import NotAvailableError, ParameterError
from streampca.export.formats import (
    Exported,
    inverse_factors,
    measured_error,
    normalization_of,
    projection_of,
    require_expressible,
    require_free,
    require_memory,
    require_range,
    write,
)
from streampca.formatting import as_text
from streampca.models.pca import Model, PCAModel
from streampca.models.stored import StoredComponents
from streampca.sources.normalization import LogarithmOfCounts, Normalization, ScaledCounts, UnitRows
from streampca.system.optional import optional_module
from streampca.typing import DType, FloatArray
from streampca.version import __version__

if TYPE_CHECKING:
    from faiss import LinearTransform
    from onnx import ModelProto, NodeProto, TensorProto


OPSET = 17
"""Version of the operators of the graph; onnxruntime has it from 1.12 on."""
_IR_VERSION = 8
"""Version of the file format that belongs to it."""
INPUT, OUTPUT = "X", "scores"
"""Names of the input, ``(n, n_features)``, and the output, ``(n, k)``, for any number of rows n."""
_DTYPES = ("float32", "float64")
_LARGEST_BYTES = 2**31 - 2**20
"""A file of protobuf holds 2 GiB."""
_SMALLEST = float(np.finfo(np.float64).eps)
"""scikit-learn divides whitened scores by no less."""
_NEGLIGIBLE = 1e-13


def write_onnx(
    model: Model,
    path: Path,
    *,
    dtype: str = "float32",
    names: list[str] | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write `model` as an ONNX file; see `streampca.PCA.to_onnx`."""
    if dtype not in _DTYPES:
        raise ParameterError(f"dtype={dtype!r}: expected one of {', '.join(_DTYPES)}")
    onnx = optional_module("onnx", "an ONNX model", "export")
    model = require_expressible(model, "ONNX")
    require_free(path, "ONNX", overwrite=overwrite)
    kind = np.dtype(dtype)
    if kind == np.float32:
        require_range(model, "ONNX", "export with dtype='float64'")
    k, d = model.components.shape
    named = None if names is None else json.dumps(names)
    if (n_bytes := kind.itemsize * (k + 2) * d + len(named or "")) > _LARGEST_BYTES:
        raise NotAvailableError(
            f"{k:,} x {d:,} components in {dtype} with the names of features take {as_text(n_bytes)}, but an ONNX file holds at most 2 GiB"
        )
    require_memory(model, memory, 6 * kind.itemsize, names)
    built = _model(onnx, model, kind, named)
    onnx.checker.check_model(built, full_check=True)
    data = built.SerializeToString()
    del built
    reference = optional_module("onnx.reference", "an ONNX model", "export")
    session = reference.ReferenceEvaluator(onnx.load_model_from_string(data))
    error = measured_error(model, lambda rows: np.asarray(session.run([OUTPUT], {INPUT: rows})[0]), kind)
    write(path, "ONNX", data, overwrite=overwrite)
    return Exported(path, f"ONNX model, opset {OPSET}, input {INPUT}, output {OUTPUT}", (d, k), dtype, len(data), error)


class _Graph:
    """Nodes and constants of a graph with one value after another."""

    def __init__(self, onnx: ModuleType, dtype: DType):
        self.onnx, self.dtype = onnx, dtype
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.value = INPUT

    def constant(self, name: str, values: ArrayLike, dtype: DTypeLike | None = None) -> str:
        """Add a constant and return its name."""
        array = np.ascontiguousarray(np.asarray(values, dtype=dtype or self.dtype))
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, inputs: list[str], output: str, **attributes: int | list[int]) -> str:
        """Add a node, the output of which is the value from now on."""
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [output], name=output, **attributes))
        self.value = output
        return output


def _model(onnx: ModuleType, model: PCAModel, dtype: DType, names: str | None) -> ModelProto:
    """Return the ONNX model from rows to scores; `names` of features are JSON."""
    graph, normalization = _Graph(onnx, dtype), normalization_of(model)
    if normalization is not None:
        _normalize(graph, normalization, missing=model.fill is not None)
    if model.fill is not None:
        absent, before = "is_missing", graph.value
        graph.add("IsNaN", [before], absent)
        graph.add("Where", [absent, graph.constant("fill", model.fill), before], "filled")
    axes, centre, offset = projection_of(model, dtype, centred=True)
    graph.add("Sub", [graph.value, graph.constant("mean", centre)], "centred")
    constants = [graph.constant("axes", axes), graph.constant("offset", offset)]
    graph.add("Gemm", [graph.value, *constants], OUTPUT, transB=1)
    helper, (k, d) = onnx.helper, model.components.shape
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    built = helper.make_graph(
        graph.nodes,
        "scores",
        [helper.make_tensor_value_info(INPUT, kind, ["n", d])],
        [helper.make_tensor_value_info(OUTPUT, kind, ["n", k])],
        graph.constants,
    )
    made: ModelProto = helper.make_model(
        built,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
        producer_name="streampca",
        producer_version=__version__,
        doc_string=f"{k} scores of rows of {d} features.",
    )
    described = {"explained_variance": model.explained_variance.tolist()}
    helper.set_model_props(made, {name: json.dumps(value) for name, value in described.items()})
    if names is not None:
        made.metadata_props.add(key="feature_names", value=names)
    return made


def _normalize(graph: _Graph, normalization: Normalization, *, missing: bool) -> None:
    """Add the normalisation of rows: scaled to a sum, unless that of a row is 0, the logarithm of one more, and a norm of 1.

    With `missing` values the norm is that of the others. Rows are divided by their largest modulus first, so that no square leaves the
    range of the type; then it is at least 1, but of rows of zeros.
    """
    for step in normalization.asked:
        if isinstance(step, ScaledCounts):
            rows, target = graph.value, graph.constant("target_sum", step.total)
            axis, zero = graph.constant("axis", [1], np.int64), graph.constant("zero", 0)
            graph.add("ReduceSum", [rows, axis], "sums", keepdims=1)
            graph.add("Equal", ["sums", zero], "is_empty")
            graph.add("Where", ["is_empty", target, "sums"], "divisors")
            graph.add("Div", [target, "divisors"], "factors")
            graph.add("Mul", [rows, "factors"], "scaled")
        elif isinstance(step, LogarithmOfCounts):
            graph.add("Add", [graph.value, graph.constant("one", 1)], "one_more")
            graph.add("Log", ["one_more"], "logarithm")
        elif isinstance(step, UnitRows):
            rows, nothing = graph.value, graph.constant("nothing", 0)
            if missing:
                graph.add("IsNaN", [rows], "is_absent")
                graph.add("Where", ["is_absent", nothing, rows], "present")
            graph.add("Abs", [graph.value], "moduli")
            graph.add("ReduceMax", ["moduli"], "largest", axes=[1], keepdims=1)
            graph.add("Equal", ["largest", nothing], "is_zero")
            graph.add("Where", ["is_zero", graph.constant("unit", 1), "largest"], "sizes")
            graph.add("Div", [rows, "sizes"], "sized")
            if step.norm != "max":
                graph.add("Div", ["moduli", "sizes"], "sized_moduli")
                graph.add(f"Reduce{step.norm.upper()}", ["sized_moduli"], "norms", axes=[1], keepdims=1)
                graph.add("Max", ["norms", "unit"], "divisors_of_rows")
                graph.add("Div", ["sized", "divisors_of_rows"], "of_norm_1")


def write_faiss(model: Model, path: Path, *, memory: int | str | None = None, overwrite: bool = False) -> Exported:
    """Write `model` as a ``LinearTransform``; see `streampca.PCA.to_faiss`."""
    faiss = optional_module("faiss", "a transform of faiss", "export")
    model = require_expressible(model, "faiss")
    require_free(path, "faiss", overwrite=overwrite)
    require_range(model, "faiss", "fit data in other units, or export to .onnx with dtype='float64'")
    require_memory(model, memory, 6 * 4)
    k, d = model.components.shape
    axes, _, offset = projection_of(model, np.dtype(np.float32), centred=False)
    transform: LinearTransform = faiss.LinearTransform(d, k, True)  # y = A x + b
    faiss.copy_array_to_vector(axes.ravel(), transform.A)
    faiss.copy_array_to_vector(offset, transform.b)
    transform.is_trained = True
    del axes, offset
    writer = faiss.VectorIOWriter()
    faiss.write_VectorTransform(transform, writer)
    data = faiss.vector_to_array(writer.data).tobytes()
    del writer
    error = measured_error(model, transform.apply, np.dtype(np.float32))
    write(path, "faiss", data, overwrite=overwrite)
    return Exported(path, "faiss LinearTransform", (d, k), "float32", len(data), error)


def to_sklearn(
    model: Model, names: list[str] | None, memory: int | str | None = None
) -> PCA | FactorAnalysis | Pipeline:
    """Return `model` as a fitted estimator of scikit-learn; see `streampca.PCA.to_sklearn`.

    Parameters
    ----------
    model : PCAModel
        The model.
    names : list of str or None
        Names of the features.
    memory : int, str or None
        Ceiling of the process, for components that are on disk.
    """
    model = require_expressible(model, "scikit-learn")
    if isinstance(model.components, StoredComponents):
        require_memory(model, memory, 16)
    factors = model.weights
    mean = np.zeros_like(model.mean) if factors is not None else model.mean.copy()
    fitted: PCA | FactorAnalysis
    if model.uniquenesses is not None:
        name, fitted = "factor_analysis", _factors(model, mean)
    else:
        name, fitted = "pca", _pca(model, mean)
    steps: list[tuple[str, FunctionTransformer | StandardScaler | PCA | FactorAnalysis]] = [(name, fitted)]
    if factors is not None:
        steps.insert(0, ("scale", _scaler(model, factors)))
    if model.fill is not None:
        replace = partial(
            np.nan_to_num, nan=model.fill.copy(), posinf=np.inf, neginf=-np.inf
        )  # its inverse does nothing
        steps.insert(0, ("fill", FunctionTransformer(replace).fit(np.zeros((1, len(model.fill))))))
    for step in () if (normalization := normalization_of(model)) is None else normalization.asked:
        if isinstance(step, UnitRows):  # scikit-learn's Normalizer, whose pipeline has an inverse: rows of norm 1
            of_rows = FunctionTransformer(normalize, kw_args={"norm": step.norm})
            steps.insert(0, ("normalize", of_rows.fit(np.zeros((1, len(model.mean))))))
    if names is not None:
        steps[0][1].feature_names_in_ = np.array(names, dtype=object)
    return fitted if len(steps) == 1 else Pipeline(steps)


def _pca(model: PCAModel, mean: FloatArray) -> PCA:
    """Return the fitted `PCA` of features that are scaled already."""
    components = model.components
    vectors = components.in_memory() if isinstance(components, StoredComponents) else components.copy()
    if model.weights is not None:
        unused = model.weights == 0
        if (np.abs(vectors[:, model.constant_features]) > _NEGLIGIBLE).any():
            raise _beyond_rank(model, "lie along features that never vary")
        vectors[:, unused] = 0.0
    if model.whiten and model.numerical_rank < len(vectors):
        raise _beyond_rank(model, "have no variance above rounding, as their whitened scores would not be 0")
    if model.whiten and np.sqrt(model.explained_variance).min() < _SMALLEST:
        raise NotAvailableError(
            f"scikit-learn cannot express whitened components with standard deviations below {_SMALLEST:.1e}: fit data in other units"
        )
    pca = PCA(n_components=len(vectors), whiten=model.whiten)
    pca.components_ = vectors
    pca.explained_variance_ = model.explained_variance.copy()
    pca.explained_variance_ratio_ = model.explained_variance_ratio
    pca.singular_values_ = model.singular_values
    pca.mean_ = mean
    pca.n_components_ = len(vectors)
    pca.n_samples_ = model.n_samples
    pca.noise_variance_ = model.noise_variance
    pca.n_features_in_ = vectors.shape[1]
    return pca


def _factors(model: PCAModel, mean: FloatArray) -> FactorAnalysis:
    """Return the fitted `FactorAnalysis` of features that are scaled already; all of its attributes are set."""
    k, figures = model.n_components, model.summary()
    factors = FactorAnalysis(n_components=k, rotation=figures.get("rotation"))
    factors.components_ = model.loadings()
    factors.noise_variance_ = model.noise_of_features.copy()
    factors.mean_ = mean
    factors.n_features_in_ = len(mean)
    factors.n_iter_ = figures["n_iterations"]
    factors.loglike_ = [model.weight * figures["log_likelihood"]]
    return factors


def _beyond_rank(model: PCAModel, reason: str) -> NotAvailableError:
    return NotAvailableError(
        f"scikit-learn cannot express components that {reason}: fit with n_components={model.numerical_rank} or fewer"
    )


def _scaler(model: PCAModel, factors: FloatArray) -> StandardScaler:
    """Return the fitted scaler that centres and multiplies features by `factors`; features of factor 0 are left as they are."""
    scaler = StandardScaler(with_mean=model.center)
    scaler.mean_ = model.mean.copy()
    scaler.scale_ = np.where(factors > 0, inverse_factors(model), 1.0)
    scaler.var_ = scaler.scale_**2
    scaler.n_features_in_ = len(factors)
    scaler.n_samples_seen_ = model.n_samples
    return scaler
