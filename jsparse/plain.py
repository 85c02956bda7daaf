"""Convert the parts of a model to the arrays of `jsparse.predictor`, and back to JAX."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from . import kernels
from .expansion import KernelExpansion
from .kernels import Kernel
from .predictor import kernels as plain_kernels
from .predictor import machine as plain_machine
from .scaling import NormalScores, Scaling, Standardization

Cast = Callable[[str, np.ndarray], jax.Array]  # from the name and the values of an array


def is_plain(kernel: Kernel) -> bool:
    """Return whether all parts of a kernel are jsparse's own, so `plain_kernel` can convert it."""
    name = type(kernel).__name__
    if name not in plain_kernels.KERNELS or type(kernel) is not getattr(kernels, name):
        return False
    fields = (getattr(kernel, field.name) for field in dataclasses.fields(kernel))
    parts = (part for value in fields for part in (value if isinstance(value, tuple) else (value,)))
    return all(is_plain(part) for part in parts if isinstance(part, Kernel))


def plain_kernel(kernel: Kernel, place: str = "kernel") -> plain_kernels.Kernel:
    """Return a kernel as a tree of the NumPy kernels of `predictor`; `place` names it in messages.

    Raise ValueError for a kernel that is not one of this package's, such as a `Custom` kernel.
    Raise it also for a mixture whose `which` is None.
    """
    name = type(kernel).__name__
    node = plain_kernels.KERNELS.get(name)
    if node is None or type(kernel) is not getattr(kernels, name):
        why = ", which holds a Python function" if name == "Custom" else ""
        raise ValueError(
            f"{place}: expected one of jsparse's own kernels ({', '.join(plain_kernels.KERNELS)}), "
            f"as only these can be saved and exported; got {name}{why}"
        )
    values: dict[str, Any] = {}
    for field in dataclasses.fields(node):
        value, field_place = getattr(kernel, field.name), f"{place}.{field.name}"
        if isinstance(value, Kernel):
            value = plain_kernel(value, field_place)
        elif field.name == "kernels":
            value = tuple(plain_kernel(k, f"{field_place}.{i}") for i, k in enumerate(value))
        elif field.type is np.ndarray:
            if value is None:
                raise ValueError(f"{field_place}: expected the number of each prototype's kernel")
            value = np.asarray(value)
        values[field.name] = value
    return node(**values)


def plain_scaling(scaling: Scaling | None) -> plain_machine.Scaling | None:
    """Return the map of raw inputs to scaled units with NumPy's arrays; None stays None."""
    if scaling is None:
        return None
    first, second = map(np.asarray, scaling)
    if isinstance(scaling, Standardization):
        return plain_machine.Standardization(first, second)
    return plain_machine.NormalScores(first, second)


def plain_expansion(expansion: KernelExpansion) -> plain_machine.Machine:
    """Return an expansion as a machine of NumPy's arrays; raises as `plain_kernel`."""
    return plain_machine.Machine(
        plain_kernel(expansion.kernel),
        np.asarray(expansion.prototypes),
        np.asarray(expansion.coefficients),
        np.asarray(expansion.intercept),
        plain_scaling(expansion.scaling),
    )


def jax_kernel(node: plain_kernels.Kernel, cast: Cast, place: str = "kernel") -> Kernel:
    """Return the kernel of a tree from `plain_kernel`; its constructor checks the numbers.

    `cast` converts each array, given its name and values. `place` is the kernel's name in messages.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(node):
        value, field_place = getattr(node, field.name), f"{place}.{field.name}"
        if isinstance(value, plain_kernels.Kernel):
            value = jax_kernel(value, cast, field_place)
        elif field.name == "kernels":
            value = tuple(jax_kernel(k, cast, f"{field_place}.{i}") for i, k in enumerate(value))
        elif isinstance(value, np.ndarray):
            value = cast(field_place, value)
        values[field.name] = value
    return getattr(kernels, type(node).__name__)(**values)


def jax_expansion(machine: plain_machine.Machine, cast: Cast) -> KernelExpansion:
    """Convert a machine of NumPy arrays to a `KernelExpansion`; `cast` is as for `jax_kernel`."""
    scaling = None
    if machine.scaling is not None:
        kind = type(machine.scaling).__name__
        maps = {"Standardization": Standardization, "NormalScores": NormalScores}
        fields = dataclasses.asdict(machine.scaling)
        scaling = maps[kind](**{name: cast(f"scaling.{name}", a) for name, a in fields.items()})
    names = ("prototypes", "coefficients", "intercept")
    arrays = {name: cast(name, getattr(machine, name)) for name in names}
    return KernelExpansion(jax_kernel(machine.kernel, cast), scaling=scaling, **arrays)
