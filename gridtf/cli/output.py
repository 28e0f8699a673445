"""Output of commands: results on stdout, everything else on stderr. Loaded by every command, so it imports little."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

_AUTO = "auto"
_colours = _AUTO


def prepare() -> None:
    """Replace closed standard streams by /dev/null, and let stdout and stderr encode any character and any path."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: the next file opened would get its descriptor
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))
    codecs.register_error("gridtf", _encoded)
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # Python writes UTF-8 to terminals of the locale C, too (PEP 540)
            ascii_alone = locale in ("C", "POSIX") and stream.isatty()
            stream.reconfigure(encoding="ascii" if ascii_alone else None, errors="gridtf")


def write(text: str | bytes, *, flush: bool = True) -> None:
    """Write to stdout.

    Args:
        text: The text; bytes are written unchanged.
        flush: Whether to flush, so that errors are raised here.

    Raises:
        OutputError: When stdout is not writable.
        BrokenPipeError: When its reader has exited, or its terminal was closed.
    """
    error = _try_to_write(text, flush)
    if isinstance(error, BrokenPipeError):
        raise error
    if error is not None:
        from gridtf.errors import OutputError

        raise OutputError(_what(error))


def on_terminal() -> bool:
    """Whether stdout is a terminal, which would act on control characters."""
    return bool(sys.stdout.isatty())


def redraws() -> bool:
    """Whether stdout is a terminal on which the cursor can be moved."""
    return on_terminal() and os.environ.get("TERM", "") not in ("", "dumb")


def choose_colours(when: str) -> None:
    """Set when colours are printed.

    Args:
        when: auto, always or never.

    Raises:
        UsageError: For another word.
    """
    global _colours
    if when not in (_AUTO, "always", "never"):
        from gridtf.errors import UsageError

        raise UsageError(f"--color: {when!r} is not one of auto, always, never")
    _colours = when


def has_colours() -> bool:
    """Whether to print colours to stdout: as --color says; else not with NO_COLOR (no-color.org), everywhere with
    CLICOLOR_FORCE (bixense.com/clicolors) or FORCE_COLOR (force-color.org), and else if a terminal shows them."""
    if _colours != _AUTO:
        return _colours == "always"
    forced = any(os.environ.get(name, "0") not in ("", "0") for name in ("CLICOLOR_FORCE", "FORCE_COLOR"))
    return not os.environ.get("NO_COLOR") and (forced or redraws())


def encoded(text: str) -> bytes:
    """Encode text as stdout does."""
    return text.encode(sys.stdout.encoding, "gridtf")


def width() -> int | None:
    """Columns of the terminal that stdout is; None when it is none."""
    return (screen() or (None,))[0]


def screen() -> tuple[int, int] | None:
    """Columns and lines of the terminal that stdout is; None when it is none."""
    if not on_terminal():
        return None
    try:
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        columns = lines = 0
    return columns or 80, lines or 24  # one that does not know its size says 0


def rest(seconds: float) -> None:
    """Pause, until the reader of stdout exits at the latest: a command that follows a job may have nothing to write.

    Raises:
        BrokenPipeError: When it has.
    """
    if _reader_is_gone(seconds):
        raise BrokenPipeError


def _reader_is_gone(seconds: float) -> bool:
    """Whether the reader of stdout exits, or its terminal is closed, within this time."""
    import select

    poller = select.poll()
    with contextlib.suppress(OSError):  # it may be no file, as in a notebook
        poller.register(sys.stdout.fileno(), 0)
    return bool(poller.poll(seconds * 1000))


def raw(text: str) -> bytes:
    """Encode text that was decoded as UTF-8 with surrogate escapes back to its bytes, in any locale."""
    return text.encode("utf-8", "gridtf")


def result(text: str) -> None:
    """Print a result to stdout, or to stderr if that fails. Never raises: the user would repeat the command."""
    error = _try_to_write(f"{text}\n", True)
    if error is not None:
        message(f"gridtf: {_what(error)}\n{text}")


def message(text: str) -> None:
    """Print a line to stderr. Never raises, even if stderr is not writable."""
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
        gone = _reader_is_gone(0.0)
        _drop(sys.stdout)
        return BrokenPipeError() if gone else error
    return None


def _drop(stream: TextIO) -> None:
    """Discard the buffer of a stream, which would fail again at exit and change the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _what(error: OSError) -> str:
    return f"cannot write to stdout: {error.strerror}"


def _encoded(error: UnicodeError) -> tuple[str | bytes, int]:
    """Codec error handler: bytes of a path stay unchanged, other characters that cannot be encoded become ``?``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letter = error.object[error.start]
    return os.fsencode(letter) if "\udc80" <= letter <= "\udcff" else "?", error.start + 1
