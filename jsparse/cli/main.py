"""The program: exit codes, error messages, and Ctrl-C from the first moment.

Exit codes: 0 the command succeeded; 1 a computation or an output failed; 2 bad input or arguments;
3 there is a result, but it is not trusted (precision was lost, or an iteration limit was reached);
130 interrupted before there was a result; 141 the reader of the output closed the pipe.

This module imports little. The commands, and JAX with them, are imported once Ctrl-C is handled.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from .interrupts import INTERRUPTED, MESSAGE, Interrupts

FAILED, BAD_INPUT, BROKEN_PIPE = 1, 2, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code.

    Without arguments, use the arguments of the process and treat the process as only for this
    command: Ctrl-C during imports ends the process immediately, and Ctrl-C after the result has no
    effect.
    """
    from_process = arguments is None
    with Interrupts(from_process) as interrupts:
        try:
            from . import commands

            interrupts.begin()
            code = commands.run(arguments, interrupts)
            if sys.stdout is not None:  # None if standard output is closed
                sys.stdout.flush()
            return code
        except BaseException as error:
            interrupts.end()
            code = _exit_code(error, interrupts)
            if code is None:
                raise
            if from_process:
                _discard_unwritable_output()
            return code


def _exit_code(error: BaseException, interrupts: Interrupts) -> int | None:
    """Print an error and return its exit code; return None for an error of the program itself."""
    if isinstance(error, SystemExit):  # raised by the parser, which has printed the reason
        return error.code if isinstance(error.code, int) else BAD_INPUT
    # An interrupt may become another error within the compiler.
    if isinstance(error, KeyboardInterrupt) or interrupts.pressed:
        if interrupts.result is not None:
            _print_error(f"jsparse: interrupted; {interrupts.result.where}")
            return interrupts.result.code
        _print_error(MESSAGE)
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    if isinstance(error, ValueError | ImportError):
        _print_error(f"jsparse: error: {error}")
        return BAD_INPUT
    from jax.errors import JaxRuntimeError

    from .. import _runtime, _status

    if isinstance(error, _status.NumericalError | _runtime.UnusableJaxError | OSError):
        _print_error(f"jsparse: error: {error}")
        return FAILED
    if isinstance(error, MemoryError | JaxRuntimeError):
        reason = str(error).splitlines()[0] if str(error) else "out of memory"
        _print_error(f"jsparse: error: {reason}; try fewer prototypes or rows")
        return FAILED
    return None


def _print_error(text: str) -> None:
    with suppress(OSError):  # if standard error is closed, the exit code is enough
        print(text, file=sys.stderr)


def _discard_unwritable_output() -> None:
    """Discard output that cannot be written, which Python would otherwise retry at exit."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
