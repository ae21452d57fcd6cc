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
        "Number of components: a count, a share of the trace to reach, a threshold relative to the first eigenvalue, or None for all that the method finds.",
        "model",
    ),
    Parameter(
        "kernel",
        "rbf",
        special("str, Kernel or callable"),
        "Kernel function: a name, an object of `streampca.kernels` (in a file a mapping, or a list of mappings: their weighted sum), or a function of two blocks of rows.",
        "model",
        field=None,
        details='"tanh" is a synonym of "sigmoid". Objects of `streampca.kernels` can be added.',
    ),
    Parameter(
        "gamma",
        None,
        number(above=0, optional=True),
        "Factor of the inner product or distance, for kernels given by name; None: 1 / n_features.",
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
        "Keyword arguments of a callable kernel; not available in a configuration file.",
        "model",
        field=None,
    ),
    Parameter(
        "method",
        "auto",
        choice(get_args(Method)),
        "exact: the kernel matrix of all rows; nystrom: PCA of the features of landmarks; nystrom_extension: eigenpairs of the landmarks, extended to all rows; empirical_map: the empirical kernel map through a sketch.",
        "model",
        details=(
            '"auto" is "exact" if the kernel matrix of all rows fits in memory (and takes at most 1e13 flops) and '
            "`sampling` does not ask for landmarks, and always for kernels that are not positive semi-definite. Otherwise it is "
            '"nystrom". Landmarks take two passes.'
        ),
    ),
    Parameter("n_landmarks", 1000, whole(1), "Number of landmarks to draw.", "model"),
    Parameter(
        "sampling",
        "auto",
        special(choice(get_args(Sampling)).type + " or array"),
        "How to draw landmarks, or their row indices, or (in Python) the landmarks themselves; auto: uniform if κ(x, x) is constant or the kernel is not positive semi-definite, and for nystrom_extension, which does not support rpcholesky; otherwise rpcholesky.",
        "model",
        field=None,
        details=(
            'Indices have shape ``(m,)``, landmarks ``(m, n_features)``. In "nystrom_extension" each given landmark '
            "stands for n/m rows."
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
            "Means and standard deviations (divisor n − 1) are those of all rows. They come from the pass that draws uniform "
            "landmarks, or from one more pass before other draws; methods that keep all rows need no extra pass. Features that "
            "never vary do not count, not even in new rows."
        ),
    ),
    replace(MISSING_VALUE, details="Kernel PCA refuses missing values: the error names the first row that has it."),
    Parameter(
        "fit_inverse_transform",
        False,
        flag(),
        "Learn a map from scores back to features, by kernel ridge regression on the scores of the landmarks.",
        "model",
        field="inverse",
    ),
    Parameter("alpha", 1.0, number(least=0), "Ridge penalty of the map from scores back to features.", "model"),
    SAMPLING_ERRORS,
    replace(MEMORY, details="A plan that does not fit raises `PlanError` before data are read."),
    DEVICE,
    RANDOM_STATE,
    replace(
        CHECKPOINT,
        details=f"{CHECKPOINT.details} Not available for a callable kernel, which a file cannot identify.",
    ),
    PROGRESS,
)
"""In the order of the signature."""
