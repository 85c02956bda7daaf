"""Shape-annotated aliases of types, for all modules."""

from jaxtyping import Array, Float, Int, PRNGKeyArray

Scalar = Float[Array, ""]
ScalarLike = float | int | Scalar
CountLike = int | Int[Array, ""]
Status = Int[Array, "*batch"]
CLike = (
    ScalarLike | Float[Array, " l"]
)  # weight of the data fit, or one weight for each problem of a code
PointTable = Float[Array, "m d"] | None  # None if every row is a point
Key = PRNGKeyArray
KeyLike = int | Key  # an integer `i` stands for `jax.random.key(i)`
