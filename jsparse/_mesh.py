"""Sharding of rows over a mesh: JAX's `shard_map` and `psum`, with padding to equal shards.

If the compiler partitions a loop over blocks of rows, every device gathers and computes all blocks.
With `shard_map` each device loops over its shard.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Num, PyTree, Shaped

T = TypeVar("T")
Axis = int | None
_LENGTH_BYTES = 8
_ROOM_BYTES = 4096  # texts are padded to a multiple


class ProcessError(RuntimeError):
    """Another process of the mesh has ended or cannot be reached; the message names it."""


def sum_over_rows(
    mesh: Mesh | None,
    function: Callable[..., T],
    shared: PyTree,
    weights: Float[Array, "..."],
    *arrays: Num[Array, "..."],
    axis: int = 0,
) -> T:
    """Return `function(shared, weights, *arrays)`, a sum over rows, with the rows sharded.

    The arrays may live on one host, or be global arrays of several processes. Rows that are already
    sharded stay in place if their number is a multiple of the number of devices. Otherwise copies
    of the last row, with weight 0, are appended.

    Args:
        mesh: mesh whose devices are all used; None for one device.
        function: returns a pytree of sums over any number of rows. Rows of weight 0 must add
            nothing. It should close over no arrays; pass them as `shared`.
        shared: a replicated pytree, such as a feature map.
        weights: row weights.
        *arrays: arrays with one entry for each row.
        axis: the axis of the rows in every array; 1 for rows laid out by folds.

    Differentiable if the function is differentiable. Call it under `jit`. Raise ValueError if the
    mesh has axes of type Explicit or no device of this process.
    """
    if mesh is None:
        return function(shared, weights, *arrays)

    def total(*parts: PyTree) -> T:
        return jax.lax.psum(function(*parts), mesh.axis_names)

    missing = -weights.shape[axis] % mesh.size
    weights = jnp.pad(weights, [(0, missing if i == axis else 0) for i in range(weights.ndim)])
    rows = (axis,) * (1 + len(arrays))
    return spread(total, mesh, (None, *rows), None)(shared, weights, *arrays)


def spread(
    function: Callable[..., T],
    mesh: Mesh | None,
    in_axes: tuple[Axis, ...],
    out_axes: Axis | tuple[Axis, ...],
) -> Callable[..., T]:
    """Return `function` for a mesh: every device applies it to its shards of the arguments.

    Args:
        function: a function of one device's shards, with collectives over `mesh.axis_names`. It
            should close over no arrays: JAX 0.10 cannot differentiate with respect to closed-over
            arrays that were on the mesh.
        mesh: mesh whose devices are all used. None returns the function unchanged.
        in_axes: the axis along which each argument is sharded; None for replicated arguments. The
            last shard is padded with copies of the last entry.
        out_axes: the axis along which the shards of each result are joined; None for replicated
            results. The result is as long as the first sharded argument.
    """
    if mesh is None:
        return function
    check_mesh(mesh)

    def spec(axis: Axis) -> PartitionSpec:
        return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, mesh.axis_names)

    def specs(axes: Axis | tuple[Axis, ...]) -> PartitionSpec | tuple[PartitionSpec, ...]:
        return tuple(map(spec, axes)) if isinstance(axes, tuple) else spec(axes)

    # With the check, loops would have to declare which carries differ between devices.
    on_each_device = jax.shard_map(
        function, mesh=mesh, in_specs=specs(in_axes), out_specs=specs(out_axes), check_vma=False
    )

    def call(*arguments: PyTree) -> T:
        pairs = list(zip(arguments, in_axes, strict=True))
        sharded, cut_axis = next(pair for pair in pairs if pair[1] is not None)
        length = jax.tree.leaves(sharded)[0].shape[cut_axis]
        results = on_each_device(*(_padded(a, axis, mesh.size) for a, axis in pairs))
        if isinstance(out_axes, tuple):
            return tuple(map(_unpadded, results, out_axes, [length] * len(out_axes)))  # type: ignore[return-value]
        return _unpadded(results, out_axes, length)

    return call


def check_mesh(mesh: Mesh) -> None:
    """Raise ValueError unless all axes are of type Auto and this process has a device."""
    if not isinstance(mesh, Mesh):
        raise ValueError(f"mesh: expected a jax.sharding.Mesh or None, got {mesh!r}")
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise ValueError(
            "mesh: expected axes of type Auto, as `jax.sharding.Mesh(devices, names)` makes them, "
            f"got {mesh.axis_types}"
        )
    if jax.process_index() not in processes_of(mesh):
        raise ValueError(
            f"mesh: expected devices of this process, {jax.process_index()}, among its devices, "
            f"got devices of {processes_of(mesh)} only; call the function only in those processes"
        )


def processes_of(mesh: Any) -> list[int]:
    """Return the indices of the processes that have devices of the mesh; none without a mesh."""
    if not isinstance(mesh, Mesh):
        return []
    return sorted({device.process_index for device in mesh.devices.flat})


def spans_processes(mesh: Any) -> bool:
    """Return whether the mesh has devices of more than one process."""
    return len(processes_of(mesh)) > 1


def gather_messages(mesh: Mesh, message: bytes) -> list[bytes]:
    """Return the messages of all processes of the mesh, in the order of their indices.

    This is a collective operation: every process of the mesh calls it, with messages of equal
    length. It compiles one program for each length. Only the device with the lowest number of each
    process takes part, so the processes may have the devices of the mesh in different orders.
    """
    process_mesh = _process_mesh(mesh)
    one_each = NamedSharding(process_mesh, PartitionSpec("processes"))
    replicated = NamedSharding(process_mesh, PartitionSpec())
    message_bytes = np.frombuffer(message, np.uint8)[None]
    shared = jax.make_array_from_process_local_data(
        one_each, message_bytes, (process_mesh.size, message_bytes.shape[1])
    )
    with _naming_processes(mesh):
        rows = np.asarray(jax.jit(_same, out_shardings=replicated)(shared))
    return [row.tobytes() for row in rows]


def gather_texts(mesh: Mesh, text: bytes) -> list[bytes]:
    """Return the texts of all processes; unlike in `gather_messages` their lengths may differ."""
    messages = gather_messages(mesh, len(text).to_bytes(_LENGTH_BYTES, "big"))
    lengths = [int.from_bytes(length, "big") for length in messages]
    # Pad the texts to a multiple of `_ROOM_BYTES`, so that JAX compiles few programs.
    room = max(1, -(-max(lengths) // _ROOM_BYTES)) * _ROOM_BYTES
    texts = gather_messages(mesh, text.ljust(room, b"\0"))
    return [text[:length] for text, length in zip(texts, lengths, strict=True)]


def sum_over_processes(mesh: Mesh, tree: T) -> T:
    """Return the sums of arrays over all processes of the mesh, on the default device.

    This is a collective operation: every process of the mesh calls it, with arrays of equal shapes
    and dtypes. The result has equal bits in every process.
    """
    process_mesh = _process_mesh(mesh)
    device = next(d for d in process_mesh.devices.flat if d.process_index == jax.process_index())
    one_each = NamedSharding(process_mesh, PartitionSpec("processes"))
    replicated = NamedSharding(process_mesh, PartitionSpec())

    def shared(a: Array) -> Array:
        shape = (process_mesh.size, *a.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, one_each, [a])

    local = jax.device_put(jax.tree.map(_on_one_device, tree), device)
    arrays = jax.tree.map(shared, jax.jit(_with_processes)(local))
    with _naming_processes(mesh):
        sums = jax.jit(_sum_of_processes, out_shardings=replicated)(arrays)
        jax.block_until_ready(sums)
    # By way of the host, so that the results may go to any device.
    return jax.tree.map(lambda a: jax.device_put(np.asarray(a)), sums)


def from_first_process(mesh: Any, tree: T) -> T:
    """Return the arrays of the mesh's first process; for one process, return `tree` itself.

    Processors of different kinds round differently. So every decision that all processes must make
    alike is made from such arrays.
    """
    if not spans_processes(mesh):
        return tree
    if jax.process_index() != processes_of(mesh)[0]:
        tree = jax.tree.map(lambda a: np.zeros(np.shape(a), np.asarray(a).dtype), tree)
    return sum_over_processes(mesh, tree)


def turn_of(mesh: Any) -> tuple[int, int]:
    """Return the rank of this process in the mesh, from 0, and the number of its processes."""
    processes = processes_of(mesh)
    return (processes.index(jax.process_index()), len(processes)) if len(processes) > 1 else (0, 1)


def local_mesh(mesh: Mesh | None) -> Mesh | None:
    """Return a mesh of only this process's devices; return `mesh` itself if it has one process.

    If the devices are only the process's first device, return None, as no mesh is needed.
    """
    if mesh is None or not spans_processes(mesh):
        return mesh
    devices = [d for d in mesh.devices.flat if d.process_index == jax.process_index()]
    return None if devices == jax.local_devices()[:1] else Mesh(np.array(devices), ("rows",))


@contextlib.contextmanager
def _naming_processes(mesh: Mesh) -> Iterator[None]:
    """Turn the error of a collective operation in the block into a `ProcessError`."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # JAX raises either
        others = [str(index) for index in processes_of(mesh) if index != jax.process_index()]
        who = f"process {others[0]}" if len(others) == 1 else f"one of {', '.join(others)}"
        raise ProcessError(
            f"mesh: {who} has ended or cannot be reached: {error}. JAX names the process in its "
            "log after `heartbeat_timeout_seconds` of `jax.distributed.initialize`"
        ) from error


def _process_mesh(mesh: Mesh) -> Mesh:
    """Return a mesh of one device of each process of `mesh`, the device with the lowest id."""
    devices = jax.devices(mesh.devices.flat[0].platform)
    first = [
        min((d for d in devices if d.process_index == index), key=lambda d: d.id)
        for index in processes_of(mesh)
    ]
    return Mesh(np.array(first), ("processes",))


def _on_one_device(a: Array | np.ndarray) -> Array | np.ndarray:
    """Return one device's copy of a replicated array; return a NumPy array unchanged."""
    return a.addressable_data(0) if isinstance(a, Array) else a


def _with_processes(tree: T) -> T:
    return jax.tree.map(lambda a: a[None], tree)


def _sum_of_processes(tree: T) -> T:
    return jax.tree.map(lambda a: jnp.sum(a, axis=0, dtype=a.dtype), tree)


def _same(tree: T) -> T:
    return tree


def on_default_device(mesh: Mesh | None, results: T) -> T:
    """Copy small results of a mesh to the default device, by way of the host."""
    if mesh is None:
        return results
    replicated = NamedSharding(mesh, PartitionSpec())
    gathered = jax.jit(_same, out_shardings=replicated)(results)
    return jax.tree.map(lambda a: jax.device_put(np.asarray(a)), gathered)


def _padded(tree: T, axis: Axis, devices: int) -> T:
    """Repeat the last entry along `axis` up to a multiple of `devices`; None changes nothing."""
    if axis is None:
        return tree

    def fill(a: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        padded_length = -(-a.shape[axis] // devices) * devices
        # For a gather the compiler moves less between devices than for `jnp.pad`.
        places = jnp.arange(padded_length, dtype=jnp.int32)
        return a if padded_length == a.shape[axis] else jnp.take(a, places, axis=axis, mode="clip")

    return jax.tree.map(fill, tree)


def _unpadded(tree: T, axis: Axis, length: int) -> T:
    if axis is None:
        return tree
    return jax.tree.map(lambda a: jax.lax.slice_in_dim(a, 0, length, axis=axis), tree)
