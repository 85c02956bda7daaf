"""Kernels as statements of C, which evaluate a kernel at one row and prototype number `i`."""

import dataclasses

import numpy as np

from ..predictor import kernels
from ..predictor.kernels import Kernel
from .c_numbers import Numbers, int_array

# Each kernel as an expression of the squared scaled distance `t`, with `r` as a scratch variable.
_PROFILES = {
    "RBF": "{exp}(-0.5 * t)",
    "Laplacian": "{exp}(-{sqrt}(t))",
    "Matern32": "(r = {sqrt}(3.0 * t), (1.0 + r) * {exp}(-r))",
    "Matern52": "(r = {sqrt}(5.0 * t), (1.0 + r + r * r / 3.0) * {exp}(-r))",
    "RationalQuadratic": "{exp}(-{alpha} * {log1p}(t / (2.0 * {alpha})))",
}


@dataclasses.dataclass
class KernelWriter:
    """Collects the arrays and the statements that a kernel needs.

    The kernel is evaluated in spaces: space 0 has the scaled inputs `u0` and the prototypes `z0`; a
    projection makes a space with the mapped inputs `u1` and the mapped prototypes `z1`, and so on.

    Attributes:
        numbers: writes numbers in the precision of the model.
        prefix: begins the names of arrays.
        arrays: declarations of constant arrays.
        maps: statements that map the inputs to the spaces, once for each row.
    """

    numbers: Numbers
    prefix: str
    arrays: list[str] = dataclasses.field(default_factory=list)
    maps: list[str] = dataclasses.field(default_factory=list)
    _points: list[np.ndarray] = dataclasses.field(default_factory=list)
    _used_spaces: set[int] = dataclasses.field(default_factory=set)
    _n_names: int = 0

    def value(self, kernel: Kernel, Z: np.ndarray) -> tuple[list[str], str]:
        """Return C statements that evaluate a kernel at prototype `i`, and the result's variable.

        `Z` are the prototypes, shape `m d`. The call also fills `arrays` and `maps`.
        """
        self._points.append(Z)
        lines, name = self._node(kernel, 0)
        for space in sorted(self._used_spaces):
            self.arrays.append(self._array(f"z{space}", self._points[space]))
        return lines, name

    def _node(self, kernel: Kernel, space: int) -> tuple[list[str], str]:
        """Return statements and result variable of a node of the kernel, evaluated in a space."""
        match kernel:
            case kernels.Sum() | kernels.Product():
                left, a = self._node(kernel.left, space)
                right, b = self._node(kernel.right, space)
                sign = "+" if isinstance(kernel, kernels.Sum) else "*"
                return self._result([*left, *right], f"{a} {sign} {b}")
            case kernels.Scaled():
                lines, a = self._node(kernel.kernel, space)
                return self._result(lines, f"{self.numbers.literal(kernel.variance)} * {a}")
            case kernels.Projected():
                return self._node(kernel.kernel, self._projected(kernel, space))
            case kernels.Mixture():
                return self._mixture(kernel, space)
            case kernels.Mixed():
                assert isinstance(kernel.kernel, kernels.Stationary)
                return self._stationary(kernel.kernel, space, kernel.columns)
            case kernels.Stationary():
                return self._stationary(kernel, space, ())
            case kernels.Linear() | kernels.Polynomial():
                return self._inner_product(kernel, space)
        raise ValueError(f"kernel: expected a kernel that C knows, got {type(kernel).__name__}")

    def _result(self, lines: list[str], expression: str) -> tuple[list[str], str]:
        """Return `lines` and a constant's declaration with value `expression`, and its name."""
        self._n_names += 1
        name = f"k{self._n_names}"
        return [*lines, f"const {self.numbers.type} {name} = {expression};"], name

    def _loop(self, space: int, body: str, columns: str = "", count: int | None = None) -> str:
        """Return a loop whose statement `body` sees each column of a space as `j`.

        If `columns` is stated, it names an array of `count` column numbers to loop over.
        """
        self._used_spaces.add(space)
        d = self._points[space].shape[1]
        if columns:
            return f"for (q = 0; q < {count}; q++) {{ j = {self.prefix}_{columns}[q]; {body} }}"
        return f"for (j = 0; j < {d}; j++) {{ {body} }}"

    def _stationary(
        self, kernel: kernels.Stationary, space: int, codes: tuple[int, ...]
    ) -> tuple[list[str], str]:
        """Return statements and result variable of a stationary kernel.

        `codes` are the columns that hold numbers of categories.
        """
        d = self._points[space].shape[1]
        rates = np.broadcast_to(1 / np.square(np.asarray(kernel.lengthscale, float)), d)
        self._n_names += 1
        number, common = self._n_names, kernel.lengthscale.ndim == 0
        difference = f"e = u{space}[j] - {self.prefix}_z{space}[i][j];"
        rate = "" if common else f"{self.prefix}_w{number}[j] * "
        if not common:
            self.arrays.append(self._array(f"w{number}", rates))
        numbers = [j for j in range(d) if j not in codes]
        lines = ["t = 0.0;"]
        if not codes:
            lines.append(self._loop(space, f"{difference} t += {rate}e * e;"))
        else:
            parts = {"n": (numbers, "e * e"), "c": (list(codes), "(e != 0.0 ? 2.0 : 0.0)")}
            for letter, (columns, term) in parts.items():
                if columns:
                    name = f"{letter}{number}"
                    self.arrays.append(int_array(f"{self.prefix}_{name}", columns))
                    body = f"{difference} t += {rate}{term};"
                    lines.append(self._loop(space, body, name, len(columns)))
        if common:
            lines.append(f"t *= {self.numbers.literal(rates[0])};")
        alpha = ""
        if isinstance(kernel, kernels.RationalQuadratic):
            alpha = self.numbers.literal(kernel.alpha)
        profile = _PROFILES[type(kernel).__name__]
        return self._result(lines, profile.format(alpha=alpha, **self.numbers.functions))

    def _inner_product(
        self, kernel: kernels.Linear | kernels.Polynomial, space: int
    ) -> tuple[list[str], str]:
        """Return statements and result variable of a kernel of the inner product."""
        body = f"t += u{space}[j] * {self.prefix}_z{space}[i][j];"
        lines, offset = ["t = 0.0;", self._loop(space, body)], self.numbers.literal(kernel.offset)
        if isinstance(kernel, kernels.Linear):
            return self._result(lines, f"t + {offset}")
        lines.append(f"e = {self.numbers.literal(kernel.scale)} * t + {offset};")
        lines.append(f"for (t = e, j = 1; j < {kernel.degree}; j++) {{ t *= e; }}")
        return self._result(lines, "t")

    def _mixture(self, kernel: kernels.Mixture, space: int) -> tuple[list[str], str]:
        """Return statements, a branch for each kernel of a mixture, and the result variable."""
        self.arrays.append(int_array(f"{self.prefix}_which", kernel.which.tolist()))
        self._n_names += 1
        name = f"k{self._n_names}"
        lines = [f"{self.numbers.type} {name} = 0.0;"]
        for number, part in enumerate(kernel.kernels):
            inner, value = self._node(part, space)
            lines.append(f"if ({self.prefix}_which[i] == {number}) {{")
            lines += [f"  {line}" for line in [*inner, f"{name} = {value};"]]
            lines.append("}")
        return lines, name

    def _projected(self, kernel: kernels.Projected, space: int) -> int:
        """Add a space with the projected prototypes and inputs; return its number."""
        Z, P = np.asarray(self._points[space], float), np.asarray(kernel.matrix, float)
        centre = np.zeros(Z.shape[1])
        # A shift changes no distance, and centred points lose fewer digits.
        if isinstance(kernel.kernel, kernels.Stationary):
            centre = Z.mean(axis=0)
        new = len(self._points)
        self._points.append((Z - centre) @ P.T)
        self.arrays += [self._array(f"p{new}", P), self._array(f"m{new}", centre)]
        r, d = P.shape
        self.maps += [
            f"{self.numbers.type} u{new}[{r}];",
            f"for (i = 0; i < {r}; i++) {{",
            f"  u{new}[i] = 0.0;",
            f"  for (j = 0; j < {d}; j++) {{ u{new}[i] += {self.prefix}_p{new}[i][j] * "
            f"(u{space}[j] - {self.prefix}_m{new}[j]); }}",
            "}",
        ]
        return new

    def _array(self, name: str, values: np.ndarray) -> str:
        """Return the declaration of a constant array, whose name gets the prefix."""
        return self.numbers.array(f"{self.prefix}_{name}", values)
