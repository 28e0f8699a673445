"""Submits jobs to Grid Engine, and cancels them: qsub(1), drmaa_attributes(3), qdel(1).

Jobs are submitted by DRMAA where its library can be loaded, and by qsub otherwise. Both get the same options and the
same script. What stays different: DRMAA refuses at once what can never run (``-w e``), and never puts a job into the
state Eqw: one that cannot be started has ended.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gridtf.errors import SchedulerError, UsageError
from gridtf.host import processes
from gridtf.run.rundir import Record, RunDir
from gridtf.schedulers.base import Plan
from gridtf.schedulers.client import NoAnswerError, ask
from gridtf.schedulers.common import looked_for, whole
from gridtf.schedulers.sge import client
from gridtf.schedulers.sge.directives import array_elements

WAY = "GRIDTF_SGE_SUBMIT"  # auto (what is meant when it is not set), drmaa, qsub

_PATIENCE = 60.0  # for a qmaster that is busy; qsub itself gives up after 20 s when there is none
_LOADING = 20  # libdrmaa, from a file server that is slow
_FORCE = 90.0  # qdel -f tries it without force first, for 60 s
_DEBIAN = "/usr/lib/gridengine-drmaa/lib"
_LIBRARIES = ("libdrmaa.so.1.0", "libdrmaa.so.1", "libdrmaa.so")
# Debian's libdrmaa needs jemalloc, which keeps more in static thread-local storage than glibc has to spare by default.
_TUNABLE, _BYTES = "glibc.rtld.optional_static_tls", 2048

# 4711, of an array 4711.1-10:1; there may be warnings and a site's own words around it
_TERSE = re.compile(r"^\s*(\d{1,18})(?:\.[\d:-]+)?\s*$", re.MULTILINE | re.ASCII)
# Your job 4711 ("name") has been submitted · Your job-array 4711.1-10:1 ("name") has been submitted: without -terse
_PLAIN = re.compile(r"Your job(?:-array)? (\d{1,18})\b.* has been submitted", re.ASCII)
# failed receiving gdi request response for mid=1 (got syncron message receive timeout error).
_ANSWER_LOST = re.compile(r"(fail|error)\w* receiving|receive timeout", re.IGNORECASE)
# denied: job "4711" does not exist · job "4711" task "7" does not exist
_GONE = re.compile(r"does not exist", re.IGNORECASE)
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


def submit(plan: Plan, command: Sequence[str]) -> Record:
    """Hand plan.run_dir/job.sh over; gives ``job_id``, ``by``, and ``notes`` for the submitter.

    command: qsub's. Raises SchedulerError, and MaybeSubmittedError when nobody knows whether there is a job now.
    """
    way = os.environ.get(WAY) or "auto"
    if way not in ("auto", "drmaa", "qsub"):
        raise UsageError(f"{WAY} is {way!r}", hint="auto, drmaa or qsub")
    notes: tuple[str, ...] = ()
    if way != "qsub":
        try:
            return {"job_id": _by_drmaa(plan, command), "by": "drmaa"}
        except _NoDrmaaError as error:
            if way == "drmaa":
                raise SchedulerError(
                    f"DRMAA cannot be used: {error}",
                    hint=f"DRMAA_LIBRARY_PATH names libdrmaa.so; {WAY}=qsub does without",
                ) from None
            if isinstance(error, _HangsError) or os.environ.get("DRMAA_LIBRARY_PATH"):
                notes = (f"handed over by qsub, because DRMAA cannot be used: {error}",)
    return {"job_id": _by_qsub(plan, command), "by": "qsub", "notes": notes}


# --- by qsub -----------------------------------------------------------------------------------------------------


def _by_qsub(plan: Plan, command: Sequence[str]) -> str:
    name, *arguments = command
    try:
        # its own environment: with -V it is the job's
        answer = ask([client.program(name, os.environ), *arguments], limit=_PATIENCE, environ=os.environ)
    except NoAnswerError:
        return _looked_for(plan, f"qsub has not answered within {_PATIENCE:g} s")
    number = printed(answer.out)
    if answer.code == 0:
        return number or _looked_for(plan, f"qsub ended with 0 and printed no job id, but: {answer.last_word}")
    if number:  # as with -sync y, which ends as the job does
        return _looked_for(plan, client.complaint(answer))
    return _refused(plan, f"{answer.err}\n{answer.out}", client.complaint(answer))


def printed(out: str) -> str:
    """The number of the job that qsub has printed; empty without one."""
    found = _TERSE.findall(out) or _PLAIN.findall(out)
    return str(found[-1]) if found else ""


def _refused(plan: Plan, text: str, words: str) -> str:
    """The job of a submission that seems to have failed, if there is one all the same; else raises SchedulerError.

    text: all that was said; words: what to show of it.
    """
    if _ANSWER_LOST.search(text):
        return _looked_for(plan, words)
    client.problem(text, os.environ)
    raise SchedulerError(f"Grid Engine has refused the job: {words}")


def _looked_for(plan: Plan, words: str) -> str:
    """The job of ours that runs this script. Raises MaybeSubmittedError when it is not in the queue."""
    script = str(RunDir(plan.run_dir).script)

    def look() -> Record | None:
        from gridtf.schedulers.sge import query

        number = query.running_script(script)
        return {"job_id": number} if number else None

    return str(looked_for(plan, "Grid Engine", words, "qstat -u $USER", look)["job_id"])


# --- by DRMAA ----------------------------------------------------------------------------------------------------


def _by_drmaa(plan: Plan, command: Sequence[str]) -> str:
    if find_spec("drmaa") is None:
        raise _NoDrmaaError("the Python package drmaa is not installed (pip install 'gridtf[drmaa]')")
    environ = session_environment(os.environ)
    request = SessionRequest(
        script=command[-1],
        native=native_specification(command),
        tasks=task_range(array_elements(plan.spec.native)),
        libraries=tuple(libraries(os.environ)),
        loading=_LOADING,
        path=tuple(sys.path),
        environ={name: os.environ.get(name) for name in ("DRMAA_LIBRARY_PATH", "GLIBC_TUNABLES", "LC_ALL")},
    )
    session = [plan.python, "-I", "-S", str(Path(__file__).with_name("drmaa_session.py")), json.dumps(vars(request))]
    try:
        answer = ask(session, limit=_PATIENCE, environ={**os.environ, **environ})
    except NoAnswerError as error:
        if "submitting" in told(error.out):
            return _looked_for(plan, f"DRMAA has not answered within {_PATIENCE:g} s")
        raise client.silent(f"DRMAA has waited for {_PATIENCE:g} s", os.environ) from None
    heard = told(answer.out)
    if "job_id" in heard:  # whatever happened to the session after that
        return str(heard["job_id"])
    if answer.code == -signal.SIGALRM and "loaded" not in heard:
        raise _HangsError(f"libdrmaa has not been loaded within {_LOADING} s; {WAY}=qsub spares the wait")
    if "unloadable" in heard:
        raise _NoDrmaaError(heard["unloadable"])
    if "failed" in heard:
        words = " ".join(str(heard["failed"]).split())
        return _refused(plan, words, words)
    if "submitting" in heard:
        return _looked_for(plan, f"DRMAA's session has {_ended(answer.code)}")
    raise _NoDrmaaError(f"its session has {_ended(answer.code)}: {answer.last_word}")


def told(out: str) -> dict[str, Any]:
    """What a session has said so far; a line that it could not finish is left out."""
    heard: dict[str, Any] = {}
    for line in out.splitlines():
        try:
            heard.update(json.loads(line))
        except ValueError:
            continue
    return heard


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


def cancel(submitted: Record, *, force: bool = False) -> None:
    """qdel, which needs nothing of the submitter's; a job that has ended is no error.

    force: for a job on hosts that do not answer, which only some users may remove. Raises SchedulerError.
    """
    job_id = str(submitted["job_id"])
    number, _, element = job_id.partition(".")
    if not number.isdecimal():  # qdel takes names and patterns, and has no -- before them
        raise SchedulerError(f"{job_id} is not a job id of Grid Engine's")
    which = [number, *(["-t", element] if element else [])]
    if force and not may_force():
        raise _stays(job_id)
    answer = client.query(["qdel", *(["-f"] if force else []), *which], limit=_FORCE if force else _PATIENCE)
    if answer.code and not _GONE.search(f"{answer.err}{answer.out}"):
        raise (
            _stays(job_id)
            if force
            else SchedulerError(f"Grid Engine does not cancel job {job_id}: {client.complaint(answer)}")
        )


def _stays(job_id: str) -> SchedulerError:
    return SchedulerError(
        f"job {job_id} is marked as deleted, but its hosts do not say that it has ended",
        why="to remove it by force takes a manager of Grid Engine, or ENABLE_FORCED_QDEL in its qmaster_params",
        hint=f"it goes when its hosts are back; an administrator removes it at once with `qdel -f {job_id}`",
    )


def may_force() -> bool:
    """Whether this user may remove a job by force. qdel -f itself says nothing, and takes a minute for that.

    Where nobody knows, as on a host that may not ask, it has to be tried.
    """
    answer = client.query(["qconf", "-sconf"], limit=_PATIENCE)
    if answer.code or _MAY_FORCE.search(answer.out):
        return True
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return True
    return any(user in client.query(["qconf", option], limit=_PATIENCE).out.split() for option in ("-sm", "-so"))
