"""Random numbers for the rows of a stream, which depend only on a seed and on each row's place."""

import numpy as np
from jaxtyping import Float, Int, UInt64


def random_bits(places: Int[np.ndarray, " n"], seed: int) -> UInt64[np.ndarray, " n"]:
    """Return 64 random bits for each row (splitmix64; Steele, Lea and Flood 2014).

    The place of a row is its number among the rows of positive weight, see `Located`.
    """
    x = (places.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = x + np.uint64(seed)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def random_numbers(places: Int[np.ndarray, " n"], seed: int) -> Float[np.ndarray, " n"]:
    """Return a random number for each row, given its place; uniform between 0 and 1."""
    return random_bits(places, seed) / 2.0**64
