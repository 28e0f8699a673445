"""One submission by DRMAA: a program that submit starts, and that imports nothing else of gridtf.

It runs in a process of its own because libdrmaa starts threads, hangs when the qmaster does, and may crash; Debian's
can be loaded only in a process that was started with a setting of glibc.

Input: the job script, a regular file, as standard input, and one JSON object as the only argument: ``native`` (DRMAA's
native specification: drmaa_attributes(3)), ``tasks`` (first element, last element and step of a job array; empty for a
single job), ``libraries`` (paths or names of libdrmaa, in the order to try), ``limit`` (seconds in which one must be
loaded, and as many in which its session must begin), ``path`` (the session's sys.path), ``environ`` (values to restore
before the job is submitted, of variables that are set for the start of the session; null: not set).

Output: JSON objects, one a line, each as soon as it is known: ``unloadable`` (why DRMAA cannot be used) or ``loaded``,
``submitting``, then ``job_id`` or ``failed`` (DRMAA's message). SIGALRM ends the program when loading takes too long,
as from a file server that hangs, or when the qmaster does not answer, as that of another Grid Engine than the library.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# Answers of drmaa_get_DRM_system: SGE 8.1.9, GE 6.2u5, OCS 9.0.5. Other schedulers have a libdrmaa, too.
_OURS = re.compile(r"GE\b|OCS|GCS|Grid|Univa|Altair", re.IGNORECASE)
SCRIPT = b"/proc/self/fd/0"
_MESSAGE_BYTES = 1024  # bytes for a message, as the specification of DRMAA's C binding recommends

Report = Callable[[dict[str, Any]], None]


class UnloadableError(Exception):
    """No libdrmaa of Grid Engine can be loaded."""


def main(argument: str) -> int:
    request = json.loads(argument)
    # a channel of its own, since libdrmaa prints to stdout
    channel = os.dup(1)
    os.dup2(2, 1)

    def report(message: dict[str, Any]) -> None:
        os.write(channel, json.dumps(message).encode() + b"\n")

    sys.path[:] = request["path"]
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(request["limit"])
    try:
        drmaa = load(request["libraries"])
    except UnloadableError as error:
        report({"unloadable": str(error)})
        return 1
    report({"loaded": True})
    signal.alarm(request["limit"])
    restore(request["environ"])
    return submit(drmaa, request, report)


def load(libraries: Iterable[str]) -> Any:
    """Import the module drmaa with a library of Grid Engine.

    Args:
        libraries: Paths or names of libdrmaa, in the order to try.

    Raises:
        UnloadableError: When none of them can be used.
    """
    os.environ["DRMAA_LIBRARY_PATH"] = usable(libraries)
    try:
        import drmaa
    except ImportError as error:
        raise UnloadableError(f"the Python package drmaa cannot be imported: {error}") from None
    return drmaa


def usable(libraries: Iterable[str]) -> str:
    """The first library that can be loaded and is Grid Engine's.

    Raises:
        UnloadableError: When there is none; with the reason why the first one cannot be used.
    """
    faults = []
    for library in libraries:
        try:
            system = _system(ctypes.CDLL(library))
        except (OSError, AttributeError) as error:
            faults.append(" ".join(str(error).split()))
            continue
        if _OURS.search(system):
            return library
        faults.append(f"{library} is for {system or 'another scheduler'}")
    raise UnloadableError(faults[0] if faults else "no libdrmaa was found")


def _system(library: ctypes.CDLL) -> str:
    name, fault = (ctypes.create_string_buffer(_MESSAGE_BYTES) for _ in range(2))
    size = ctypes.c_size_t(_MESSAGE_BYTES)
    library.drmaa_get_DRM_system(name, size, fault, size)
    return name.value.decode(errors="replace")


def restore(environ: Mapping[str, str | None]) -> None:
    """Restore variables of the submitter, for ``-V``; None: unset."""
    for name, text in environ.items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text


def submit(drmaa: Any, request: Mapping[str, Any], report: Report) -> int:
    """Submit a job in a DRMAA session.

    Args:
        drmaa: The module drmaa.
        request: The program's argument, see above.
        report: Called with each message for the parent process.

    Returns:
        The exit code of the program.
    """
    try:
        drmaa.Session.initialize()
        template = drmaa.Session.createJobTemplate()
        # DRMAA takes only a path, which in the run directory another user might have exchanged
        template.remoteCommand = SCRIPT
        # bytes: drmaa would encode them by the locale
        template.nativeSpecification = os.fsencode(request["native"])
        signal.alarm(0)
        report({"submitting": True})
        if request["tasks"]:
            job_id, *_ = drmaa.Session.runBulkJobs(template, *request["tasks"])  # 4711.1, 4711.2, …
        else:
            job_id = drmaa.Session.runJob(template)
        report({"job_id": job_id.partition(".")[0]})
        drmaa.Session.exit()
    except Exception as error:  # drmaa also raises plain MemoryError, StopIteration and Exception
        report({"failed": re.sub(r"^code \d+: *", "", str(error)) or type(error).__name__})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
