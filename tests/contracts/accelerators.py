"""Programs traced for another platform, and lowered for it, in a process that has only a CPU."""

import contextlib
import re
import sys
from pathlib import Path
from unittest import mock

import jax
from jax import export

import jsparse
from jsparse import _runtime

PACKAGE = Path(jsparse.__file__).parent
# Custom calls that a program of the platform may contain: routines of cuSOLVER, and routines that
# XLA's compiler for TPUs replaces. No accelerator runs a `lapack_*` call.
CUSTOM_CALLS = {
    "cuda": {
        "cusolver_geqrf_ffi",
        "cusolver_orgqr_ffi",
        "cusolver_gesvdj_ffi",
        "cusolver_potrf_ffi",
        "cusolver_syevd_ffi",
        "cusolver_sytrd_ffi",
    },
    "tpu": {"Eigh", "ProductOfElementaryHouseholderReflectors", "Qr"},
}
PLATFORMS = tuple(CUSTOM_CALLS)


@contextlib.contextmanager
def traced_for(platform):
    """Let the package trace its programs as if its devices were of another platform.

    Yields a set, to which every file and line of the package that asks for the platform is added.
    """
    places = set()

    def platform_of(device=None):
        places.add(caller_outside(_runtime.__file__))
        return platform

    jax.clear_caches()  # JAX keeps what it traced for the CPU
    with mock.patch.object(_runtime, "platform_of", platform_of):
        yield places
    jax.clear_caches()


def caller_outside(file):
    """Return file and line of the innermost call from the package outside of one file."""
    frame = sys._getframe(1)
    while (name := frame.f_code.co_filename) == file or not Path(name).is_relative_to(PACKAGE):
        frame = frame.f_back
    return name, frame.f_lineno


def check_lowers(platform, jitted, *arguments, **named):
    """Assert that a float32 program lowers for a platform without float64 and foreign calls."""
    jitted = getattr(jitted, "jitted", jitted)  # of a program in `_programs.PROGRAMS`
    module = export.export(jitted, platforms=[platform])(*arguments, **named).mlir_module()
    assert "f64" not in module
    assert "callback" not in module
    assert set(re.findall(r"custom_call @([\w.]+)", module)) <= CUSTOM_CALLS[platform]
