"""What a command prints: results on stdout, all about them on stderr. Part of every command, so it imports nothing."""

from __future__ import annotations

import codecs
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


def prepare() -> None:
    """Make stdout and stderr fit to be written to, whatever the caller has closed and whatever a path holds."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed; what is opened next would take its place
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))
    codecs.register_error("gridtf", _encoded)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="gridtf")


def write(text: str | bytes, *, flush: bool = True) -> None:
    """Print on stdout, as it is. Raises OutputError, and BrokenPipeError when nobody reads any more."""
    error = _try_to_write(text, flush)
    if isinstance(error, BrokenPipeError):
        raise error
    if error is not None:
        from gridtf.errors import OutputError

        raise OutputError(_what(error))


def on_terminal() -> bool:
    """Whether stdout is a terminal, which acts upon what is written to it."""
    return bool(sys.stdout.isatty())


def raw(text: str) -> bytes:
    """The bytes that text was read from, as UTF-8 with surrogate escapes, whatever the locale."""
    return text.encode("utf-8", "gridtf")


def insist(text: str) -> None:
    """Print a line on stdout that tells what has been done, on stderr where stdout takes nothing.

    Raises nothing: who took that for a failure would do it again.
    """
    error = _try_to_write(f"{text}\n", True)
    if error is not None:
        tell(f"gridtf: {_what(error)}\n{text}")


def tell(text: str) -> None:
    """Print a line on stderr. That nobody takes it is no reason to fail."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)


def _try_to_write(text: str | bytes, flush: bool) -> OSError | None:
    try:
        if isinstance(text, str):
            sys.stdout.write(text)
        else:
            sys.stdout.buffer.write(text)
        if flush:
            sys.stdout.flush()
    except OSError as error:
        _drop(sys.stdout)
        return error
    return None


def _drop(stream: TextIO) -> None:
    """What is left in its buffer would fail again when Python ends, and that gives an exit code of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _what(error: OSError) -> str:
    return f"cannot write to stdout: {error.strerror}"


def _encoded(error: UnicodeError) -> tuple[str | bytes, int]:
    """For what a stream's encoding does not know: the bytes of a path as they are, ``?`` for anything else."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letter = error.object[error.start]
    return os.fsencode(letter) if "\udc80" <= letter <= "\udcff" else "?", error.start + 1
