"""Headers of C99 as the machine's compiler builds them."""

import ctypes
import shutil
import subprocess

import pytest

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
STRICT = ("-std=c99", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror")


def compiled(folder, header, functions, dtype):
    """Return a library of functions that call those of a header, for floats or doubles."""
    names = sorted(path.name for path in folder.iterdir())
    source, library = folder / "source.c", folder / f"{len(names)}.so"  # no name is loaded twice
    source.write_text(f'#include "{header}.h"\n{functions}\n')
    real = {"float32": "float", "float64": "double"}[str(dtype)]
    compile_source(source, library, *STRICT, f"-DREAL={real}", "-shared", "-fPIC")
    return ctypes.CDLL(str(library))


def compile_source(source, target, *flags):
    command = [COMPILER, *flags, source.name, "-o", str(target), "-lm"]
    subprocess.run(command, cwd=source.parent, check=True, timeout=120)


def pointers(*arrays):
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]
