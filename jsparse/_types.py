"""Shape-annotated aliases of types, for all modules."""

from jaxtyping import Array, Float, Int, PRNGKeyArray

Scalar = Float[Array, ""]
ScalarLike = float | int | Scalar
CountLike = int | Int[Array, ""]
CLike = ScalarLike | Float[Array, " l"]  # weight of the data fit; for a code, one per problem
PointTable = Float[Array, "m d"] | None  # None if every row is a point
Key = PRNGKeyArray
KeyLike = int | Int[Array, ""] | Key  # an integer `i` stands for `jax.random.key(i)`
