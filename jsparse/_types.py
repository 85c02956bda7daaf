"""Shape-annotated aliases shared by every room."""

from jaxtyping import Array, Float, Int, PRNGKeyArray

Scalar = Float[Array, ""]
ScalarLike = float | int | Scalar
CountLike = int | Int[Array, ""]
Status = Int[Array, "*batch"]
Key = PRNGKeyArray
KeyLike = int | Key  # of an integer, `jax.random.key` of it
