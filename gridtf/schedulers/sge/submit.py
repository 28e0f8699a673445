"""Submits jobs to Grid Engine, and cancels them: qsub(1), drmaa_attributes(3), qdel(1).

Jobs are submitted by DRMAA where its library can be loaded, and by qsub otherwise, with the same options and the same
script. A difference remains: DRMAA never puts a job into the state Eqw; a job that cannot be started has ended.
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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gridtf import files
from gridtf.errors import RunDirError, SchedulerError, UsageError
from gridtf.host import processes
from gridtf.host.interpreter import isolated
from gridtf.run import registry
from gridtf.run.rundir import make_folder
from gridtf.schedulers.api import JobIdentity, Plan, SubmitResult
from gridtf.schedulers.commands import Answer, NoAnswerError, run_command
from gridtf.schedulers.login import CommandLogin
from gridtf.schedulers.sge.commands import sge
from gridtf.text import whole

WAY = "GRIDTF_SGE_SUBMIT"  # auto (the default), drmaa, qsub

_DRMAA_LIMIT = 20  # seconds to load libdrmaa, which may lie on a slow file server, and as many for its session
_FORCED_QDEL_LIMIT = 90.0  # seconds; qdel -f first tries 60 s without force
_DEBIAN = "/usr/lib/gridengine-drmaa/lib"
_LIBRARIES = ("libdrmaa.so.1.0", "libdrmaa.so.1", "libdrmaa.so")
# Debian's libdrmaa needs jemalloc, which takes more static thread-local storage than glibc reserves by default.
_TUNABLE, _BYTES = "glibc.rtld.optional_static_tls", 2048

# 4711, or 4711.1-10:1 of an array, among warnings and banners of the site
_TERSE = re.compile(r"^\s*(\d{1,18})(?:\.[\d:-]+)?\s*$", re.MULTILINE | re.ASCII)
# Your job 4711 ("name") has been submitted · Your job-array 4711.1-10:1 ("name") has been submitted: without -terse
_PLAIN = re.compile(r"Your job(?:-array)? (\d{1,18})\b.* has been submitted", re.ASCII)
_MAY_FORCE = re.compile(r"\bENABLE_FORCED_QDEL(_IF_UNKNOWN)?\b(?!=(0|false))", re.IGNORECASE)


class _NoDrmaaError(Exception):
    """DRMAA cannot be used for this job, and has not received it."""


class _HangsError(_NoDrmaaError):
    """Loading libdrmaa takes too long."""


class _SilentError(_NoDrmaaError):
    """The qmaster does not answer libdrmaa: it may be down, or of another Grid Engine than the library."""


def submit(login: CommandLogin, plan: Plan, by_qsub: Callable[[Plan], SubmitResult]) -> SubmitResult:
    """Submit a plan's script by DRMAA or by qsub.

    Args:
        login: Grid Engine on the login node.
        by_qsub: Submits it by qsub.

    Returns:
        The job, with ``drmaa`` or ``qsub`` as ``by`` in its details.

    Raises:
        SchedulerError: When Grid Engine refuses, or does not answer.
        MaybeSubmittedError: When it is not known whether there is a job now.
    """
    way = os.environ.get(WAY) or "auto"
    if way not in ("auto", "drmaa", "qsub"):
        raise UsageError(f"{WAY} is {way!r}", hint="set it to auto, drmaa or qsub")
    notes: tuple[str, ...] = ()
    noted = _noted_as_silent(login) if way == "auto" else None
    silent = False
    if way != "qsub" and not (noted and files.exists(noted)):
        try:
            return _marked(_by_drmaa(login, plan), "drmaa")
        except _NoDrmaaError as error:
            silent = isinstance(error, _SilentError)
            if way == "drmaa" and silent:
                raise sge.no_answer(str(error)) from None
            if way == "drmaa":
                what = f"DRMAA cannot be used: {error}"
                hint = f"set DRMAA_LIBRARY_PATH to the path of libdrmaa.so, or {WAY}=qsub to submit without DRMAA"
                raise SchedulerError(what, hint=hint) from None
            if isinstance(error, (_HangsError, _SilentError)) or os.environ.get("DRMAA_LIBRARY_PATH"):
                notes = (f"submitted by qsub, because DRMAA cannot be used: {error}",)
    result = _marked(by_qsub(plan), "qsub", notes)
    if noted and silent:  # but the qmaster has answered qsub
        with contextlib.suppress(OSError, RunDirError):
            make_folder(noted.parent, parents=True)
            noted.touch()
    return result


def _noted_as_silent(login: CommandLogin) -> Path | None:
    """The file that tells that this cell answers qsub, and not these libraries; None without a home folder."""
    import binascii

    words = [login.server(JobIdentity(""), os.environ)]
    with contextlib.suppress(RunDirError):
        for library in libraries(os.environ):
            with contextlib.suppress(OSError):
                words.append(f"{library} {Path(library).stat().st_mtime_ns}")
        name = f"drmaa-silent-{binascii.crc32(os.fsencode(' '.join(words))):08x}"
        return registry.folder(os.environ).with_name(name)
    return None


def _marked(result: SubmitResult, way: str, notes: tuple[str, ...] = ()) -> SubmitResult:
    return SubmitResult(result.job.replace(details={**result.job.details, "by": way}), notes)


def parse_job_id(output: str) -> str:
    """The number of the job in the output of qsub; empty without one."""
    numbers = _TERSE.findall(output) or _PLAIN.findall(output)
    return str(numbers[-1]) if numbers else ""


# --- by DRMAA ----------------------------------------------------------------------------------------------------


def _by_drmaa(login: CommandLogin, plan: Plan) -> SubmitResult:
    if find_spec("drmaa") is None:
        raise _NoDrmaaError("the Python package drmaa is not installed (pip install drmaa)")
    command, patience = login.submit_command(plan), sge.submit_limit
    request = {
        "native": native_specification(command),
        "tasks": task_range(plan.request.elements[:: plan.request.pack]),
        "libraries": [*libraries(os.environ)],
        "limit": _DRMAA_LIMIT,
        "path": sys.path,
        "environ": {name: os.environ.get(name) for name in ("DRMAA_LIBRARY_PATH", "GLIBC_TUNABLES", "LC_ALL")},
    }
    session = isolated(plan.python, str(Path(__file__).with_name("drmaa_session.py")), json.dumps(request))
    environ = {**os.environ, **session_environment(os.environ)}
    try:
        answer = run_command(session, limit=patience, environ=environ, text=plan.script)
    except NoAnswerError as error:
        silence = f"DRMAA has not answered within {patience:g} s"
        if "submitting" in messages(error.out):
            return login.look_for(plan, silence)
        raise _SilentError(silence) from None
    reported = messages(answer.out)
    if "job_id" in reported:  # whatever happened to the session after that
        return SubmitResult(JobIdentity(str(reported["job_id"])))
    if answer.code == -signal.SIGALRM and "loaded" not in reported:
        raise _HangsError(f"libdrmaa has not been loaded within {_DRMAA_LIMIT} s; {WAY}=qsub avoids the wait")
    if answer.code == -signal.SIGALRM:
        raise _SilentError(f"the qmaster has not answered libdrmaa within {_DRMAA_LIMIT} s")
    if "unloadable" in reported:
        raise _NoDrmaaError(reported["unloadable"])
    if "failed" in reported:
        from gridtf.schedulers.sge.drmaa_session import SCRIPT

        failed = " ".join(str(reported["failed"]).split())
        if os.fsdecode(SCRIPT) in failed:  # error opening /proc/self/fd/0: No such file or directory
            raise _NoDrmaaError(failed)
        if "submitting" not in reported and sge.unreachable(Answer(1, "", failed)):
            raise _SilentError(failed)
        return login.not_submitted(plan, Answer(1, "", failed))
    if "submitting" in reported:
        return login.look_for(plan, f"DRMAA's session has {_ended(answer.code)}")
    raise _NoDrmaaError(f"its session has {_ended(answer.code)}: {answer.last_line}")


def messages(out: str) -> dict[str, Any]:
    """Merge the JSON objects that a session has printed; an unfinished line is ignored."""
    merged: dict[str, Any] = {}
    for line in out.splitlines():
        with contextlib.suppress(ValueError):
            merged.update(json.loads(line))
    return merged


def _ended(code: int) -> str:
    return f"ended by {processes.signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def native_specification(command: Sequence[str]) -> str:
    """The options of a qsub command as DRMAA's native specification: drmaa_attributes(3).

    ``-b n`` makes DRMAA read the options in the script; ``-shell y`` is qsub's default.

    Raises:
        _NoDrmaaError: For a value with both kinds of quotes, since DRMAA has no escape character.
    """
    options = [option for option in command[1:] if option != "-terse"]
    return " ".join(("-b n -shell y", *map(_quoted, options)))


def _quoted(text: str) -> str:
    if re.fullmatch(r"[\w./=+-]+", text, re.ASCII):
        return text
    mark = next((mark for mark in ("'", '"') if mark not in text), "")
    if not mark:
        raise _NoDrmaaError(f"it cannot quote {text}")
    return f"{mark}{text}{mark}"


def task_range(elements: Sequence[str]) -> tuple[int, ...]:
    """The elements of a job array as DRMAA takes them, since it ignores -t.

    Returns:
        (first, last, step); empty for a single job.

    Raises:
        _NoDrmaaError: For elements that are not such a range.
    """
    if not elements:
        return ()
    numbers = [int(element) for element in elements]
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    if numbers != list(range(numbers[0], numbers[-1] + 1, step)):
        raise _NoDrmaaError("it supports no job arrays with gaps")
    return numbers[0], numbers[-1], step


def libraries(environ: Mapping[str, str]) -> Iterator[str]:
    """Where libdrmaa may be, the likeliest place first.

    Sites, and the commercial Grid Engines, have it below SGE_ROOT, Debian in a folder of its own, and Fedora where the
    loader finds it by its name.

    Returns:
        DRMAA_LIBRARY_PATH alone where the user sets it, else paths that exist, then names for the loader.
    """
    if environ.get("DRMAA_LIBRARY_PATH"):
        yield environ["DRMAA_LIBRARY_PATH"]
        return
    folders = sorted(Path(environ["SGE_ROOT"], "lib").glob("*")) if environ.get("SGE_ROOT") else []
    for folder in (*folders, Path(_DEBIAN)):
        yield from (str(folder / name) for name in _LIBRARIES if files.exists(folder / name))
    yield from _LIBRARIES


def session_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables to set for a session.

    They reserve memory for Debian's libdrmaa, make messages English, and make DRMAA heed ``-cwd``.

    Args:
        environ: The user's environment, whose GLIBC_TUNABLES stay in effect.
    """
    tunables = dict(entry.partition("=")[::2] for entry in environ.get("GLIBC_TUNABLES", "").split(":") if entry)
    tunables[_TUNABLE] = str(max(_BYTES, whole(tunables.pop(_TUNABLE, "")) or 0))
    return {
        "GLIBC_TUNABLES": ":".join(map("=".join, tunables.items())),
        "LC_ALL": "C",
        "SGE_DRMAA_ENABLE_CWD": "1",
    }


# --- cancelling --------------------------------------------------------------------------------------------------


def cancel_by_force(job: JobIdentity, command: Sequence[str]) -> None:
    """Remove a job whose hosts do not answer, which only some users may do.

    Args:
        command: The qdel command.

    Raises:
        SchedulerError: When this user may not, or the qmaster does not answer.
    """
    if may_force():
        answer = sge.run(command, limit=_FORCED_QDEL_LIMIT)
        if not answer.code or sge.unknown_job(answer):
            return
    what = f"job {job.job_id} is marked as deleted, but its hosts do not report that it has ended"
    hint = f"it ends when its hosts are back; an administrator can remove it now with `qdel -f {job.job_id}`"
    why = "only managers of Grid Engine may remove it by force, unless qmaster_params has ENABLE_FORCED_QDEL"
    raise SchedulerError(what, why=why, hint=hint)


def may_force() -> bool:
    """Whether this user may remove a job by force, by qconf: qdel -f itself does not report it, and takes a minute.

    Returns:
        True also where qconf is refused: then qdel has to be tried.
    """
    answer = sge.run(["qconf", "-sconf"], limit=sge.submit_limit)
    if answer.code or _MAY_FORCE.search(answer.out):
        return True
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return True
    lists = (sge.run(["qconf", option], limit=sge.submit_limit) for option in ("-sm", "-so"))
    return any(user in answer.out.split() for answer in lists)
