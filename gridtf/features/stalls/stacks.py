"""The stacks of all processes of a host's tasks: an agent asks those processes that show them, and no others."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gridtf.bootstrap.system import System
from gridtf.contract import stacks_name
from gridtf.host import procfs
from gridtf.run import stacks
from gridtf.run.rundir import Record

_MOST_SECONDS = 4.0  # for all processes of a host; the launcher waits a little longer
_WRITE_PAUSE = 0.01  # seconds between two looks at a process that writes
_BEGINS = 1.0  # seconds within which a process that runs handles a signal
_MOST_PROCESSES = 16  # of a task
_MOST_TEXT, _MOST_IN_ALL = 16 << 10, 256 << 10  # characters of a process and of a host
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")


def take(tasks: Mapping[str, int], folder: Path | None, system: System) -> Record:
    """Take the stacks of all processes of the tasks of this host.

    Args:
        tasks: Task -> its first process.
        folder: The folder that the agent and its tasks share; None: there is none.
        system: This host.

    Returns:
        Task -> its record.
    """
    end, left = system.monotonic() + _MOST_SECONDS, _MOST_IN_ALL
    found = {}
    for name, first in tasks.items():
        processes = []
        for pid in [first, *procfs.descendants(first)][:_MOST_PROCESSES]:
            if not (state := procfs.state(pid)):
                continue
            process: Record = {"pid": pid, "name": procfs.name(pid), "state": _calm(state)}
            if state not in stacks.STATES:
                text, why = _of_process(pid, folder and folder / stacks_name(*name.split(":")), end, system)
                text = _cut(text, min(_MOST_TEXT, left))
                left -= len(text)
                process.update({"text": text} if text else {"why": why})
            processes.append(process)
        found[name] = {"processes": processes}
    return found


def _calm(state: str) -> str:
    """A state of a process; whether it just runs or sleeps is no news."""
    return "S" if state in "RIS" else state


def _of_process(pid: int, file: Path | None, end: float, system: System) -> tuple[str, str]:
    """(the stacks of a process, why there are none)."""
    if system.monotonic() >= end:
        return "", "there was no time left for it"
    if file and procfs.catches(pid, stacks.NUMBER) and procfs.has_open(pid, file):
        if text := _asked(pid, file, end, system):
            return text, ""
        return "", "it did not write them in time"
    if not _PYTHON.match(procfs.name(pid)) and not _runs_python(pid):
        return "", "it is not a Python program"
    return _spied(pid, end, system)


def _asked(pid: int, file: Path, end: float, system: System) -> str:
    """Have faulthandler in a process write its stacks; returns them."""
    with contextlib.suppress(OSError):
        os.truncate(file, 0)
        idle = procfs.unhandled(pid, stacks.NUMBER)
        system.signal([pid], stacks.NUMBER)
        begun = system.monotonic() + _BEGINS
        while (now := system.monotonic()) < end and procfs.state(pid):
            if file.stat().st_size:
                if procfs.unhandled(pid, stacks.NUMBER) <= idle:
                    return file.read_text(errors="replace")
            elif now > begun and procfs.unhandled(pid, stacks.NUMBER) <= idle:
                return ""  # the program has a handler of its own
            system.sleep(_WRITE_PAUSE)
    return ""


def _runs_python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return bool(_PYTHON.fullmatch(Path(f"/proc/{pid}/exe").readlink().name))
    return False


def _spied(pid: int, end: float, system: System) -> tuple[str, str]:
    """The stacks by py-spy, where that is installed and may read other processes."""
    program = shutil.which("py-spy", path=_places(pid, system.environ))
    if program is None:
        return "", "it does not have gridtf's hook, and py-spy is not installed"
    try:
        argv = [program, "dump", "--pid", str(pid)]
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=max(0.1, end - system.monotonic())
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"py-spy failed: {type(error).__name__}"
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        return "", f"py-spy failed: {said[:200]}"
    return done.stdout, ""


def _places(pid: int, environ: Mapping[str, str]) -> str:
    """Where py-spy may be: beside the Python of the process, or on PATH."""
    places = [environ.get("PATH", os.defpath)]
    with contextlib.suppress(OSError):
        places.insert(0, str(Path(f"/proc/{pid}/exe").readlink().parent))
    return os.pathsep.join(places)


def _cut(text: str, most: int) -> str:
    """The end of the text, where the main thread is, in whole lines."""
    text = stacks.normal(text)
    if len(text) <= most:
        return text
    return text[len(text) - most :].partition("\n")[2] if most > 0 else ""
