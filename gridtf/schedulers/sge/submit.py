"""Submits jobs to Grid Engine, and cancels them: qsub(1), drmaa_attributes(3), qdel(1).

Jobs are submitted by DRMAA where its library can be loaded, and by qsub otherwise. Both get the same options and the
same script. What stays different: DRMAA refuses at once what can never run (``-w e``), and never puts a job into the
state Eqw: one that cannot be started has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gridtf.errors import SchedulerError, UsageError
from gridtf.host import processes
from gridtf.schedulers.api import JobIdentity, Plan, SubmitResult
from gridtf.schedulers.batch import Answer, NoAnswerError, run_command, whole
from gridtf.schedulers.sge import scheduler

WAY = "GRIDTF_SGE_SUBMIT"  # auto (what is meant when it is not set), drmaa, qsub

_LOADING = 20  # seconds: libdrmaa, from a file server that is slow
_FORCE = 90.0  # qdel -f tries it without force first, for 60 s
_DEBIAN = "/usr/lib/gridengine-drmaa/lib"
_LIBRARIES = ("libdrmaa.so.1.0", "libdrmaa.so.1", "libdrmaa.so")
# Debian's libdrmaa needs jemalloc, which keeps more in static thread-local storage than glibc has to spare by default.
_TUNABLE, _BYTES = "glibc.rtld.optional_static_tls", 2048

# 4711, of an array 4711.1-10:1; there may be warnings and a site's own words around it
_TERSE = re.compile(r"^\s*(\d{1,18})(?:\.[\d:-]+)?\s*$", re.MULTILINE | re.ASCII)
# Your job 4711 ("name") has been submitted · Your job-array 4711.1-10:1 ("name") has been submitted: without -terse
_PLAIN = re.compile(r"Your job(?:-array)? (\d{1,18})\b.* has been submitted", re.ASCII)
_MAY_FORCE = re.compile(r"\bENABLE_FORCED_QDEL(_IF_UNKNOWN)?\b(?!=(0|false))", re.IGNORECASE)


class _NoDrmaaError(Exception):
    """DRMAA cannot take this job, and has not seen it."""


class _HangsError(_NoDrmaaError):
    """Its library does not let itself be loaded."""


@dataclass(frozen=True)
class SessionRequest:
    """What session is to do. native: DRMAA's native specification. tasks: of an array, first, last and step.
    libraries: where libdrmaa may be, in the order to try; loading: seconds that this may take. path: our sys.path.
    environ: what the submitter has in the variables that only the start of a session needs otherwise; None: not set."""

    script: str
    native: str
    tasks: tuple[int, ...]
    libraries: tuple[str, ...]
    loading: int
    path: tuple[str, ...]
    environ: Mapping[str, str | None]


def submit(plan: Plan, by_qsub: Callable[[Plan], SubmitResult]) -> SubmitResult:
    """Hand plan.run_dir/job.sh over; the job's details say how (``by``).

    Raises:
        SchedulerError: When Grid Engine refuses, or does not answer.
        MaybeSubmittedError: When it is not known whether there is a job now.
    """
    way = os.environ.get(WAY) or "auto"
    if way not in ("auto", "drmaa", "qsub"):
        raise UsageError(f"{WAY} is {way!r}", hint="auto, drmaa or qsub")
    notes: tuple[str, ...] = ()
    if way != "qsub":
        try:
            return _marked(_by_drmaa(plan), "drmaa")
        except _NoDrmaaError as error:
            if way == "drmaa":
                raise SchedulerError(
                    f"DRMAA cannot be used: {error}",
                    hint=f"DRMAA_LIBRARY_PATH names libdrmaa.so; {WAY}=qsub does without",
                ) from None
            if isinstance(error, _HangsError) or os.environ.get("DRMAA_LIBRARY_PATH"):
                notes = (f"handed over by qsub, because DRMAA cannot be used: {error}",)
    return _marked(by_qsub(plan), "qsub", notes)


def _marked(result: SubmitResult, way: str, notes: tuple[str, ...] = ()) -> SubmitResult:
    return SubmitResult(replace(result.job, details={**result.job.details, "by": way}), notes)


def parse_job_id(output: str) -> str:
    """The number of the job that qsub has printed; empty without one."""
    found = _TERSE.findall(output) or _PLAIN.findall(output)
    return str(found[-1]) if found else ""


# --- by DRMAA ----------------------------------------------------------------------------------------------------


def _by_drmaa(plan: Plan) -> SubmitResult:
    if find_spec("drmaa") is None:
        raise _NoDrmaaError("the Python package drmaa is not installed (pip install drmaa)")
    command, patience = scheduler.submit_command(plan), scheduler.submit_patience
    request = SessionRequest(
        script=command[-1],
        native=native_specification(command),
        tasks=task_range(plan.request.elements),
        libraries=tuple(libraries(os.environ)),
        loading=_LOADING,
        path=tuple(sys.path),
        environ={name: os.environ.get(name) for name in ("DRMAA_LIBRARY_PATH", "GLIBC_TUNABLES", "LC_ALL")},
    )
    session = [plan.python, "-I", "-S", str(Path(__file__).with_name("drmaa_session.py")), json.dumps(vars(request))]
    try:
        answer = run_command(session, limit=patience, environ={**os.environ, **session_environment(os.environ)})
    except NoAnswerError as error:
        if "submitting" in messages(error.out):
            return scheduler.look_for(plan, f"DRMAA has not answered within {patience:g} s")
        raise scheduler.no_answer(f"DRMAA has waited for {patience:g} s") from None
    found = messages(answer.out)
    if "job_id" in found:  # whatever happened to the session after that
        return SubmitResult(JobIdentity(str(found["job_id"])))
    if answer.code == -signal.SIGALRM and "loaded" not in found:
        raise _HangsError(f"libdrmaa has not been loaded within {_LOADING} s; {WAY}=qsub spares the wait")
    if "unloadable" in found:
        raise _NoDrmaaError(found["unloadable"])
    if "failed" in found:
        return scheduler.not_submitted(plan, Answer(1, "", " ".join(str(found["failed"]).split())))
    if "submitting" in found:
        return scheduler.look_for(plan, f"DRMAA's session has {_ended(answer.code)}")
    raise _NoDrmaaError(f"its session has {_ended(answer.code)}: {answer.last_line}")


def messages(out: str) -> dict[str, Any]:
    """What a session has printed so far, in one; a line that it could not finish is left out."""
    found: dict[str, Any] = {}
    for line in out.splitlines():
        with contextlib.suppress(ValueError):
            found.update(json.loads(line))
    return found


def _ended(code: int) -> str:
    return f"ended by {processes.signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def native_specification(command: Sequence[str]) -> str:
    """qsub's options as DRMAA's native specification: drmaa_attributes(3).

    ``-b n`` has the script's own options read, ``-shell y`` is what qsub says by default. Raises _NoDrmaaError for a
    word that cannot be quoted: there is no backslash, and only one kind of quotes a word.
    """
    options = [option for option in command[1:-1] if option != "-terse"]
    return " ".join(("-b n -shell y", *map(_quoted, options)))


def _quoted(text: str) -> str:
    if re.fullmatch(r"[\w./=+-]+", text, re.ASCII):
        return text
    mark = next((mark for mark in ("'", '"') if mark not in text), "")
    if not mark:
        raise _NoDrmaaError(f"its options cannot carry {text}")
    return f"{mark}{text}{mark}"


def task_range(elements: Sequence[str]) -> tuple[int, ...]:
    """The elements of an array as (first, last, step); empty for a job that is none.

    DRMAA ignores -t wherever it stands. Raises _NoDrmaaError for elements that are no such range.
    """
    if not elements:
        return ()
    numbers = [int(element) for element in elements]
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    if numbers != list(range(numbers[0], numbers[-1] + 1, step)):
        raise _NoDrmaaError("it knows no arrays with gaps")
    return numbers[0], numbers[-1], step


def libraries(environ: Mapping[str, str]) -> Iterator[str]:
    """Where libdrmaa may be, the likeliest first: the one that the user names, or else all that are there.

    Sites, and the commercial Grid Engines, have it below SGE_ROOT, Debian in a folder of its own, and Fedora where the
    loader finds it by its name.
    """
    if environ.get("DRMAA_LIBRARY_PATH"):
        yield environ["DRMAA_LIBRARY_PATH"]
        return
    folders = sorted(Path(environ["SGE_ROOT"], "lib").glob("*")) if environ.get("SGE_ROOT") else []
    for folder in (*folders, Path(_DEBIAN)):
        yield from (str(folder / name) for name in _LIBRARIES if (folder / name).exists())
    yield from _LIBRARIES


def session_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a session needs in its environment: room for Debian's libdrmaa, words in English, and the working folder
    that ``-cwd`` asks for, which DRMAA would ignore."""
    theirs = [entry for entry in environ.get("GLIBC_TUNABLES", "").split(":") if entry]
    wanted = [entry.partition("=")[2] for entry in theirs if entry.startswith(f"{_TUNABLE}=")]
    most = max([_BYTES, *(whole(text) or 0 for text in wanted)])
    kept = [entry for entry in theirs if not entry.startswith(f"{_TUNABLE}=")]
    return {
        "GLIBC_TUNABLES": ":".join((*kept, f"{_TUNABLE}={most}")),
        "LC_ALL": "C",
        "SGE_DRMAA_ENABLE_CWD": "1",
    }


# --- cancelling --------------------------------------------------------------------------------------------------


def cancel_by_force(job: JobIdentity, command: Sequence[str]) -> None:
    """Remove a job whose hosts do not answer, which only some users may do. command: qdel's.

    Raises:
        SchedulerError: When this user may not, or the qmaster does not answer.
    """
    if may_force():
        answer = scheduler.run(command, limit=_FORCE)
        if not answer.code or scheduler.unknown_job(answer):
            return
    raise SchedulerError(
        f"job {job.job_id} is marked as deleted, but its hosts do not say that it has ended",
        why="to remove it by force takes a manager of Grid Engine, or ENABLE_FORCED_QDEL in its qmaster_params",
        hint=f"it goes when its hosts are back; an administrator removes it at once with `qdel -f {job.job_id}`",
    )


def may_force() -> bool:
    """Whether this user may remove a job by force. qdel -f itself does not say so, and takes a minute for that.

    Where that is not known, as on a host that may not ask, it has to be tried.
    """
    answer = scheduler.run(["qconf", "-sconf"], limit=scheduler.submit_patience)
    if answer.code or _MAY_FORCE.search(answer.out):
        return True
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return True
    lists = (scheduler.run(["qconf", option], limit=scheduler.submit_patience) for option in ("-sm", "-so"))
    return any(user in one.out.split() for one in lists)
