"""Methods of kernel PCA: classes whose objects are fits of one table."""

from __future__ import annotations

from streampca.solvers.kernel.base import KernelMethod
from streampca.solvers.kernel.empirical import EmpiricalMapMethod
from streampca.solvers.kernel.exact import ExactMethod
from streampca.solvers.kernel.extension import ExtensionMethod
from streampca.solvers.kernel.nystrom import NystromMethod

METHODS: dict[str, type[KernelMethod]] = {
    method.name: method for method in (ExactMethod, NystromMethod, ExtensionMethod, EmpiricalMapMethod)
}
"""The methods by name. A new one joins by its own module and its place here."""
