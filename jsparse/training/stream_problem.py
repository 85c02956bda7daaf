"""A tuning problem whose rows are read, not held (De Brabanter 2010, Algorithm 4)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._mesh import on_default_device, sum_over_rows
from .._status import PRECISION_LOST
from ..features import FeatureMap
from ..kernels import Kernel
from ..machines.fixed_size import FixedSizeFit, solve
from ..multiclass import Code
from ..normal_equations import NormalEquations, accumulate_groups, zeros
from ..scaling import Standardization
from ..search.problem import Scoring, feature_map, kernel_at, split_kernel
from ..search.tune import Tuning
from ..validation.cross_validation import score, standard_error
from ..validation.out_of_fold import Rows, from_sums
from .reader import Reader
from .trained import Sums


class StreamProblem:
    """A tuning problem whose rows are read anew for every batch of kernels.

    One read sums every part of the rows for all kernels of a batch, and serves every `C`. Scores
    are over a sample of the rows that stays in memory, each row predicted by the machine that has
    not seen its part.

    Args:
        template: its positive leaves are tuned.
        prototypes: shape `m d`, standardised.
        reader: the rows.
        sample: rows to score, laid out by the parts that are validated.
        kernels_at_once: kernels summed in one read.
        tune_kernel: False to tune `C` only.
        mesh: its devices share the rows of every batch.
    """

    def __init__(
        self,
        template: Kernel,
        prototypes: Float[Array, "m d"],
        reader: Reader,
        sample: Rows,
        *,
        kernels_at_once: int,
        tune_kernel: bool = True,
        mesh: Mesh | None = None,
    ) -> None:
        self.dtype = prototypes.dtype
        self.tuned, self.fixed = split_kernel(template, self.dtype, tune_kernel=tune_kernel)
        self.prototypes, self.reader, self.sample = prototypes, reader, sample
        self.kernels_at_once, self.mesh = kernels_at_once, mesh
        self.rows_scored = int(jnp.sum(sample.w > 0))
        # Score, theta, map and sums over all rows of the best kernel so far.
        self._best: tuple[float, bytes, FeatureMap, NormalEquations] | None = None

    def scores(
        self, thetas: Float[Array, "q p"], C: Float[Array, "q s"], scoring: Scoring
    ) -> tuple[Float[Array, "q s"], Float[Array, "q s"], Int[Array, "q s"]]:
        """As of every `Tunable`, by one read of the rows."""
        kernels = jax.vmap(functools.partial(kernel_at, self))(thetas)
        maps = jax.vmap(lambda kernel: feature_map(kernel, self.prototypes))(kernels)
        sums = self._sums(maps)
        found = []
        for i in range(len(thetas)):
            phi, own = jax.tree.map(lambda a, i=i: a[i], (maps, sums))
            scores, errors, status, total = _score(
                phi,
                C[i],
                own,
                self.sample,
                self.reader.code,
                scoring,
                self.reader.split.validated,
                self.mesh,
            )
            trusted = (status < PRECISION_LOST) & jnp.isfinite(scores)
            best = float(jnp.min(jnp.where(trusted, scores, jnp.inf)))
            if self._best is None or best < self._best[0]:
                self._best = best, np.asarray(thetas[i]).tobytes(), phi, total
            found.append((scores, errors, status))
        scores, errors, status = (jnp.stack(column) for column in zip(*found, strict=True))
        return scores, errors, status

    def fit(self, tuned: Tuning) -> tuple[FixedSizeFit, Sums]:
        """The machine of the tuned kernel and `C` on all rows, and their sums.

        The sums of the best kernel are there; only if it is known from a history of another run
        are the rows read once more.
        """
        theta = np.asarray(tuned.theta, self.dtype).tobytes()
        if self._best is not None and self._best[1] == theta:
            phi, total = self._best[2:]
        else:
            phi = feature_map(tuned.kernel, self.prototypes)
            total = jax.tree.map(lambda a: a[0], self._sums(_stacked([phi]))).joined
        C = jnp.asarray(tuned.C, self.dtype)
        fitted = solve(phi, total, C, self.reader.code)
        return on_default_device(self.mesh, (fitted, Sums(phi, total)))

    def _sums(self, maps: FeatureMap) -> NormalEquations:
        """Sums of every part (and class) under every map, leading axes `q parts`."""
        reader = self.reader
        q = jax.tree.leaves(maps)[0].shape[0]
        n_features = jax.tree.map(lambda a: a[0], maps).n_features
        zero = zeros(n_features, reader.targets, self.dtype)
        total = jax.tree.map(lambda a: jnp.zeros((q, reader.groups, *a.shape), a.dtype), zero)
        done = None
        for batch in reader.batches():
            # One batch is summed while the next is read, and no more wait in memory.
            if done is not None:
                jax.block_until_ready(done)
            total, done = _add(
                total, maps, reader.scaling, *batch, n_groups=reader.groups, mesh=self.mesh
            )
        if not reader.by_class:
            return total
        parts = reader.split.parts
        return jax.tree.map(
            lambda a: a.reshape(q, parts, reader.groups // parts, *a.shape[2:]), total
        )


@functools.partial(jax.jit, static_argnames=("n_groups", "mesh"), donate_argnums=0)
def _add(
    total: NormalEquations,
    maps: FeatureMap,
    scaling: Standardization,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    w: Float[Array, " n"],
    group: Int[Array, " n"],
    *,
    n_groups: int,
    mesh: Mesh | None,
) -> tuple[NormalEquations, Float[Array, ""]]:
    def local(
        shared: tuple[FeatureMap, Standardization], w: Array, X: Array, y: Array, group: Array
    ) -> NormalEquations:
        maps, scaling = shared
        Z = scaling.apply(X)
        return jax.lax.map(
            lambda phi: accumulate_groups(phi, Z, y, w, group, n_groups=n_groups), maps
        )

    more = sum_over_rows(mesh, local, (maps, scaling), w, X, y, group)
    return jax.tree.map(jnp.add, total, more), jnp.sum(more.weight_sum)


@functools.partial(jax.jit, static_argnames=("scoring", "validated", "mesh"))
def _score(
    phi: FeatureMap,
    C: Float[Array, " s"],
    sums: NormalEquations,
    sample: Rows,
    code: Code | None,
    scoring: Scoring,
    validated: int,
    mesh: Mesh | None,
) -> tuple[Float[Array, " s"], Float[Array, " s"], Int[Array, " s"], NormalEquations]:
    total = sums.joined
    each = sums
    if code is None:  # one target, of which the solutions make a column
        cross, squares, targets = sums.cross, sums.target_square, sums.target_sum
        each = sums._replace(
            cross=cross[..., None], target_square=squares[..., None], target_sum=targets[..., None]
        )
    per_fold = jax.tree.map(lambda a: a[:validated], each)
    none = jnp.zeros((), C.dtype)
    strategy = from_sums(phi, C, each.joined, per_fold, code, none, mesh, None)
    scores, by_fold, _, status = score(
        strategy, phi, C, sample, code, scoring.metric, scoring.decoding, mesh
    )
    return scores, standard_error(by_fold), status, total


def _stacked(maps: list[FeatureMap]) -> FeatureMap:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *maps)
