"""Asks git: a repository may be another user's, so nothing that its configuration names is run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

_LEFT = 0.2  # seconds for the end of one that was killed
# What a repository's configuration could have git run is turned off, but for filters such as that of Git LFS, without
# which other files would differ; git refuses to work in a repository of another user, though not in a submodule. All of
# this holds in submodules as well, but git diff would run more there to show what is changed in them. No lock is taken.
_OFF = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "diff.submodule=short")
_SAFE = ("--no-optional-locks", *(word for each in _OFF for word in ("-c", each)))


def git(folder: Path, *words: str) -> subprocess.Popen[bytes] | None:
    """Start git, with its output in a pipe; None where there is none.

    Args:
        folder: Where it works, whatever the variables of git in this environment say.
        words: Its arguments.
    """
    import subprocess

    environ = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    # An older git does not know GIT_NO_LAZY_FETCH, but fetches nothing either without a protocol.
    environ |= {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "", "LC_ALL": "C"}
    try:
        return subprocess.Popen(
            ["git", *_SAFE, "-C", str(folder), *words],  # noqa: S607
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
        )
    except OSError:
        return None


def answer(process: subprocess.Popen[bytes] | None, seconds: float, most: int | None = None) -> bytes | None:
    """What git prints.

    Args:
        process: As git returns it.
        seconds: How long it may take.
        most: How many bytes are kept of it; the rest is not waited for. None: all.

    Returns:
        The output; None when git fails, or has not ended by then.
    """
    import select

    if process is None or process.stdout is None:
        return None
    end, data = time.monotonic() + seconds, bytearray()
    with process.stdout as pipe:
        while select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
            part = os.read(pipe.fileno(), 1 << 16)
            data += part
            if not part:
                return bytes(data) if process.wait() == 0 else None
            if most is not None and len(data) >= most:
                break
        else:
            data.clear()
    leave(process)
    return bytes(data[:most]) or None


def leave(process: subprocess.Popen[bytes]) -> None:
    """End a process, and wait for it, unless a file system holds it up."""
    import subprocess

    process.kill()
    if process.stdout is not None:
        process.stdout.close()
    try:
        process.wait(_LEFT)
    except subprocess.TimeoutExpired:
        process.returncode = -9
