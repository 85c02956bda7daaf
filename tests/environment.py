"""Variables for processes that compile hundreds of small programs and run each once or twice.

The suite sets them when it starts. As a script this file prints them for a shell.
"""

from importlib.metadata import version
from pathlib import Path

# Compiling is most of the time.
_FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
if version("jaxlib").startswith("0.10."):
    # Later versions do not know these flags: no start. The first halves the time of 0.10.1.
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
    # Else XLA prints a false warning for each AVX-512 program that it reads from the disk.
    _FLAGS.append("--xla_cpu_max_isa=AVX2")

VARIABLES = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
    "XLA_FLAGS": " ".join(_FLAGS),
    # All processes share compiled programs, also with later runs.
    "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parents[1] / ".cache" / "programs"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    # Several processes share the cores; BLAS threads that wait actively would slow all of them.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",  # JAX 0.10 prints pages of what it reads
}

if __name__ == "__main__":
    for name, value in VARIABLES.items():
        print(f"export {name}='{value}'")
