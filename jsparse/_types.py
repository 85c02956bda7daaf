"""Shape-annotated aliases shared by every room."""

from jaxtyping import Array, Float, Int, PRNGKeyArray

Scalar = Float[Array, ""]
ScalarLike = float | int | Scalar
CountLike = int | Int[Array, ""]
Status = Int[Array, "*batch"]
CLike = ScalarLike | Float[Array, " l"]  # weight of the data fit; of a code, one per problem
PointTable = Float[Array, "m d"] | None  # None where every row is a point
Key = PRNGKeyArray
KeyLike = int | Key  # of an integer, `jax.random.key` of it
