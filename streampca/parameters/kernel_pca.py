"""The parameters of `KernelPCA`."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from streampca.parameters.pca import (
    CENTER,
    CHECKPOINT,
    DEVICE,
    MEMORY,
    MISSING_VALUE,
    N_COMPONENTS,
    N_HASHES,
    PROGRESS,
    RANDOM_STATE,
    RECOVERY,
    SAMPLING_ERRORS,
    SCALE,
    SKETCH_SIZE,
)
from streampca.parameters.statement import Method, Parameter, Sampling, Sketch, choice, flag, number, special, whole

KERNEL_PCA_PARAMETERS = (
    Parameter(
        "n_components",
        None,
        N_COMPONENTS,
        "How many components: a count, the smallest number that carries this share of the trace, a threshold relative to the first eigenvalue, or all that the method finds.",
        "model",
    ),
    Parameter(
        "kernel",
        "rbf",
        special("str, Kernel or callable"),
        "Kernel function: a name, an object of `streampca.kernels` (in a file a mapping, or a list of mappings: their weighted sum), or a function of two blocks of rows.",
        "model",
        field=None,
        details='"tanh" is a synonym of "sigmoid"; objects are those of `streampca.kernels`, also a sum of them.',
    ),
    Parameter(
        "gamma",
        None,
        number(above=0, optional=True),
        "Factor of the inner product or of the distance, for kernels given by name; None: 1 / n_features.",
        "model",
        field=None,
        checked=False,
    ),
    Parameter(
        "degree",
        3,
        whole(1),
        "Degree of a polynomial kernel given by name.",
        "model",
        field=None,
        checked=False,
    ),
    Parameter(
        "coef0",
        1.0,
        number(),
        "Constant added to the inner product, for kernels given by name.",
        "model",
        field=None,
        checked=False,
    ),
    Parameter(
        "kernel_params",
        None,
        special("mapping or None"),
        "Keywords of a kernel that is a callable, which a file cannot hold.",
        "model",
        field=None,
    ),
    Parameter(
        "method",
        "auto",
        choice(get_args(Method)),
        "The kernel matrix of all rows (exact), landmarks and the PCA of their features (nystrom), the eigenpairs of the landmarks extended to all rows, or the empirical kernel map through a sketch.",
        "model",
        details=(
            '"auto" is "exact" where the kernel matrix of all rows fits in memory (and takes at most 1e13 flops), '
            "unless `sampling` asks for landmarks, and always for kernels that are not positive semi-definite; else "
            '"nystrom". Landmarks take two readings.'
        ),
    ),
    Parameter("n_landmarks", 1000, whole(1), "Number of landmarks that are drawn.", "model"),
    Parameter(
        "sampling",
        "auto",
        special(choice(get_args(Sampling)).type + " or array"),
        "How landmarks are drawn, or their row indices, or (in Python) the landmarks themselves; auto: uniform where κ(x, x) is constant or the kernel is not positive semi-definite, and for nystrom_extension, which does not take rpcholesky; else rpcholesky.",
        "model",
        field=None,
        details=(
            "Indices have shape ``(m,)``, landmarks ``(m, n_features)``; those that are given stand for n/m rows each "
            'in "nystrom_extension".'
        ),
    ),
    Parameter(
        "sketch",
        "gaussian",
        choice(get_args(Sketch)),
        "Transform of the empirical kernel map.",
        "model",
    ),
    Parameter("sketch_size", "auto", SKETCH_SIZE, "Columns of the empirical kernel map.", "model"),
    N_HASHES,
    RECOVERY,
    CENTER,
    replace(
        SCALE,
        field=None,
        details=(
            "Means and deviations (divisor n − 1) are those of all rows, found in the reading that draws uniform landmarks, in one "
            "more before other draws, and at no cost by methods that keep all rows. Features that never vary do not count, in new rows either."
        ),
    ),
    replace(MISSING_VALUE, details="Kernel PCA refuses missing values: the error names the first row that has it."),
    Parameter(
        "fit_inverse_transform",
        False,
        flag(),
        "Learn the map from scores back to features, by kernel ridge regression from the scores of the landmarks.",
        "model",
        field="inverse",
    ),
    Parameter("alpha", 1.0, number(least=0), "Ridge penalty of the map from scores back to features.", "model"),
    SAMPLING_ERRORS,
    replace(MEMORY, details="A plan that does not fit is refused with `PlanError` before the data is read."),
    DEVICE,
    RANDOM_STATE,
    replace(
        CHECKPOINT,
        details=f"{CHECKPOINT.details} Not for a kernel that is a callable, which no file can tell from another.",
    ),
    PROGRESS,
)
"""In the order of the signature."""
