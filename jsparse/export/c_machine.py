"""The values of a machine at one row, as a function of C."""

from ..predictor.machine import Machine, Standardization
from .c_kernel import KernelWriter
from .c_numbers import Numbers, c_function


def values(machine: Machine, prefix: str, numbers: Numbers) -> str:
    """Return C source: a machine's arrays, and a function that writes its values at `x` to `f`."""
    m = len(machine.prototypes)
    kernel = KernelWriter(numbers, prefix)
    at_prototype, value = kernel.value(machine.kernel, machine.prototypes)
    coefficients = machine.coefficients.reshape(m, -1)
    c = coefficients.shape[1]
    arrays, helpers, scaled = _scaling(machine, prefix, numbers)
    arrays += [
        *kernel.arrays,
        numbers.array(f"{prefix}_coefficients", coefficients),
        numbers.array(f"{prefix}_intercept", machine.intercept.reshape(-1)),
    ]
    body = [
        *scaled,
        *kernel.maps,
        f"for (i = 0; i < {c}; i++) {{ f[i] = {prefix}_intercept[i]; }}",
        f"for (i = 0; i < {m}; i++) {{",
        *[f"  {line}" for line in at_prototype],
        f"  for (j = 0; j < {c}; j++) {{ f[j] += {prefix}_coefficients[i][j] * {value}; }}",
        "}",
    ]
    head = f"void {prefix}_values(const {numbers.type} *x, {numbers.type} *f)"
    return "\n\n".join([*arrays, *helpers, c_function(head, body, numbers)])


def _scaling(
    machine: Machine, prefix: str, numbers: Numbers
) -> tuple[list[str], list[str], list[str]]:
    """Return C arrays, functions and statements that scale raw inputs `x` to inputs `u0`."""
    d, scaling, real = machine.prototypes.shape[1], machine.scaling, numbers.type
    if scaling is None:
        return [], [], [f"const {real} *const u0 = x;"]
    if isinstance(scaling, Standardization):
        tables, helpers = {"shift": scaling.shift, "scale": scaling.scale}, []
        value = f"(x[j] - {prefix}_shift[j]) / {prefix}_scale[j]"
    else:
        tables = {"knots": scaling.knots.T, "scores_at": scaling.scores.T}
        helpers, k = [_interpolation(prefix, numbers)], len(scaling.knots)
        value = f"{prefix}_between(x[j], {prefix}_knots[j], {prefix}_scores_at[j], {k})"
    arrays = [numbers.array(f"{prefix}_{name}", table) for name, table in tables.items()]
    scaled = [f"{real} u0[{d}];", f"for (j = 0; j < {d}; j++) {{ u0[j] = {value}; }}"]
    return arrays, helpers, scaled


def _interpolation(prefix: str, numbers: Numbers) -> str:
    """Return the C function that interpolates at `a` between `n` knots, constant beyond them."""
    real = numbers.type
    head = f"{real} {prefix}_between({real} a, const {real} *x, const {real} *y, int n)"
    body = [
        "int low = 0, high = n - 1;",
        "if (a <= x[0]) { return y[0]; }",
        "if (a >= x[n - 1]) { return y[n - 1]; }",
        "while (high - low > 1) {",
        "  const int middle = (low + high) / 2;",
        "  if (x[middle] <= a) { low = middle; } else { high = middle; }",
        "}",
        "return y[low] + (y[high] - y[low]) * ((a - x[low]) / (x[high] - x[low]));",
    ]
    return c_function(head, body, numbers)
