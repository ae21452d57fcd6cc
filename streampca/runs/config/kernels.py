"""The section `model.kernel` of a configuration: one kernel, or the terms of a sum."""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from streampca.parameters.choices import KernelName
from streampca.runs.config.values import Count, Positive, Section, one_list_of_kernels

_KERNEL_KEYS = {
    "linear": (),
    "rbf": ("gamma", "sigma"),
    "poly": ("gamma", "degree", "coef0"),
    "sigmoid": ("gamma", "coef0"),
    "tanh": ("gamma", "coef0"),
    "laplacian": ("gamma",),
    "cosine": (),
}


class KernelConfig(Section):
    """One kernel of a sum; keys that are null are those of the model."""

    name: KernelName = "rbf"
    """Name of the kernel function."""
    gamma: Positive | None = Field(default=None, description="a number above 0, or null")
    """Factor of the inner product or of the distance."""
    sigma: Positive | None = Field(default=None, description="a number above 0, or null")
    """Width of an rbf kernel, in place of gamma."""
    degree: Count | None = Field(default=None, description="a whole number of at least 1, or null")
    """Degree of a polynomial kernel."""
    coef0: float | None = Field(default=None, description="a number, or null")
    """Constant added to the inner product."""
    weight: Positive = 1.0
    """Factor of this kernel in the sum."""

    @model_validator(mode="after")
    def _only_keys_of_its_kind(self) -> KernelConfig:
        accepted = _KERNEL_KEYS[self.name]
        for key in ("gamma", "sigma", "degree", "coef0"):
            if key not in accepted and getattr(self, key) is not None:
                keys = ", ".join(("name", *accepted, "weight"))
                raise PydanticCustomError("rule", f"kernel {self.name} has no {key} (keys: {keys})")
        if self.gamma is not None and self.sigma is not None:
            raise PydanticCustomError("rule", "gamma and sigma say the same: give one of them")
        return self


class AnyFormOfKernels:
    """Lets the JSON Schema of kernels accept a name, a mapping, or a list of these."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, object]:
        """Return the schema, from that of a list of mappings."""
        one = {"anyOf": [{"enum": list(get_args(KernelName))}, handler(schema)["items"]]}
        return {"anyOf": [*one["anyOf"], {"type": "array", "minItems": 1, "items": one}]}


Kernels = Annotated[
    tuple[KernelConfig, ...],
    BeforeValidator(one_list_of_kernels),
    AnyFormOfKernels(),
    Field(description="the name of a kernel, a mapping with name, gamma, …, or a list of these"),
]
