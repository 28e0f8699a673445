"""Submitting jobs to Grid Engine and cancelling them, with programs that answer as a real cell does."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gridtf.errors import GridtfError, MaybeSubmittedError, SchedulerError, UsageError
from gridtf.files import user_name
from gridtf.schedulers.api import JobIdentity, Plan, SubmitResult
from gridtf.schedulers.commands import NoAnswerError
from gridtf.schedulers.sge import drmaa_session, scheduler, submit
from gridtf.schedulers.sge.commands import GridEngineCommands
from tests.support.rendering import plan
from tests.support.topics import fast

RUN_DIR = "/runs/a b"
Cell = Callable[..., Path]


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cell:
    """Adds commands to a cell, which run a script and record how they were called; returns the folder of the cell."""
    for name in (submit.WAY, "DRMAA_LIBRARY_PATH", "GLIBC_TUNABLES", "SGE_BINARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SGE_ROOT", str(tmp_path))
    (tmp_path / "bin/lx-amd64").mkdir(parents=True)

    def add(name: str, script: str) -> Path:
        program = tmp_path / "bin/lx-amd64" / name
        program.write_text(f'#!/bin/bash\nprintf "%s\\n" "$*" >>"$SGE_ROOT/called"\n{script}\n')
        program.chmod(0o755)
        return tmp_path

    return add


@pytest.fixture
def drmaa(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Plan]:
    """As if the package drmaa were installed; makes plans whose Python is a shell script instead of a session."""
    monkeypatch.setattr(submit, "find_spec", lambda name: name)

    def made(script: str) -> Plan:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/bash\n{script}\n")
        python.chmod(0o755)
        return plan("sge").replace(python=str(python))

    return made


def refusal(made: Plan, kind: type[GridtfError] = SchedulerError) -> GridtfError:
    """The error of a submission, of exactly this kind."""
    with pytest.raises(kind) as caught:
        scheduler.login.submit(made)
    assert type(caught.value) is kind
    return caught.value


# --- by qsub


@pytest.mark.parametrize(
    "out",
    [
        "4711",
        "4711.1-9:2",
        """'warning: "-N" option has already been set, overriding previous setting'; echo 4711""",
        "'*** 3 days until maintenance ***'; echo; echo 4711; echo 'Thank you for using the grid'",
        """'Your job 4711 ("x") has been submitted'""",
        """'Your job-array 4711.1-9:2 ("x 12") has been submitted'""",
    ],
    ids=["job", "array", "warning", "banners", "words", "words-array"],
)
def test_qsub_submits_without_the_drmaa_package(cell: Cell, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    monkeypatch.setattr(submit, "find_spec", lambda name: None)
    root = cell("qsub", f"echo {out}")
    assert scheduler.login.submit(plan("sge", run_dir=RUN_DIR)) == SubmitResult(JobIdentity("4711", {"by": "qsub"}))
    assert (root / "called").read_text() == "-terse -w n -o /runs/a b/job.log\n"


def test_qsub_keeps_the_language_of_the_user(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(submit.WAY, "qsub")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    cell("qsub", '[ "$LC_ALL" = C.UTF-8 ] && echo 1')
    assert scheduler.login.submit(plan("sge", run_dir=RUN_DIR)).job.job_id == "1"


@pytest.mark.parametrize(
    ("script", "kind", "piece"),
    [
        (
            'printf "Unable to run job: job rejected: no pe \\"x\\".\\nExiting.\\n" >&2; exit 1',
            SchedulerError,
            'Grid Engine has refused the job: job rejected: no pe "x".',
        ),
        (
            'echo "unable to contact qmaster using port 6444 on host \\"ctl\\"" >&2; exit 1',
            NoAnswerError,
            "qmaster does not answer: unable to contact qmaster",
        ),
        (
            "echo 'failed receiving gdi request response for mid=1 (got syncron message receive timeout)'; exit 1",
            MaybeSubmittedError,
            "may have taken the job",
        ),
        (
            "echo 'Job accepted, thank you'",
            MaybeSubmittedError,
            "may have taken the job, or may not: qsub ended with 0 and printed no job id, but: Job accepted",
        ),
        ("echo 4711; exit 3", MaybeSubmittedError, "may have taken the job"),  # -sync y
        ("kill -PIPE $$", MaybeSubmittedError, "may have taken the job, or may not: qsub was killed by SIGPIPE"),
        pytest.param("sleep 30", MaybeSubmittedError, "qsub has not answered within 3 s", marks=pytest.mark.thorough),
    ],
    ids=["refused", "down", "lost", "no-id", "sync", "killed", "hangs"],
)
def test_failures_of_qsub(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, script: str, kind: type[GridtfError], piece: str
) -> None:
    monkeypatch.setenv(submit.WAY, "qsub")
    monkeypatch.setattr(GridEngineCommands, "submit_limit", 3.0 if "sleep" in script else 20.0)
    cell("qsub", script)
    error = refusal(plan("sge", run_dir="/runs/a b"), kind)
    assert piece in error.what
    assert all("\n" not in line for line in (error.what, error.why, error.hint))
    assert ("/runs/a b" in error.why) == (kind is MaybeSubmittedError)


NO_ID = "echo 'Job accepted, thank you'"
LIST = "<job_info>{}</job_info>"
JOBS = "<detailed_job_info><djob_info>{}</djob_info></detailed_job_info>"


@pytest.mark.parametrize("qsub", fast(2, NO_ID, "echo 4711; exit 3", "sleep 30"), ids=["no-id", "sync", "hangs"])
def test_job_is_found_by_its_log_after_an_unclear_submission(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, qsub: str
) -> None:
    monkeypatch.setenv(submit.WAY, "qsub")
    monkeypatch.setattr(GridEngineCommands, "submit_limit", 3.0 if "sleep" in qsub else 20.0)
    logs = {"4710": "/runs/other/job.log", "4711": "/runs/a b/array/$TASK_ID/job.log", "4712": "job.log"}
    one = "<job_list><JB_job_number>{}</JB_job_number></job_list>"
    listed = LIST.format("".join(map(one.format, logs)))
    path = "<JB_stdout_path_list><path_list><PN_path>{}</PN_path></path_list></JB_stdout_path_list>"
    element = f"<element><JB_job_number>{{}}</JB_job_number>{path}</element>"
    details = JOBS.format("".join(element.format(*pair) for pair in logs.items()))
    cell("qsub", qsub)
    root = cell("qstat", f"""case "$*" in *-j*) echo '{details}';; *) echo '{listed}';; esac""")
    assert scheduler.login.submit(plan("sge", run_dir=RUN_DIR)).job.job_id == "4711"
    assert (root / "called").read_text().splitlines()[1:] == [
        f"-xml -u {user_name(os.getuid())} -s a",
        "-xml -j 4710,4711,4712",
    ]


def test_invalid_way_of_submission_is_refused(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(submit.WAY, "mail")
    assert "auto, drmaa or qsub" in refusal(plan("sge"), UsageError).hint


# --- by DRMAA, with fake sessions


def test_drmaa_submits(cell: Cell, drmaa: Callable[[str], Plan]) -> None:
    made = drmaa("""echo libdrmaa prints; echo '{"submitting": true}'; echo '{"job_id": "7"}'; kill -SEGV $$""")
    assert scheduler.login.submit(made) == SubmitResult(JobIdentity("7", {"by": "drmaa"}))


UNLOADABLE = """echo '{"unloadable": "no such file"}'; exit 1"""
CRASHES = "kill -SEGV $$"
NO_SCRIPT = """echo '{"submitting": true}'; echo '{"failed": "error opening /proc/self/fd/0: No such file"}'; exit 1"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("script", "why"),
    [(UNLOADABLE, "no such file"), (CRASHES, "ended by SIGSEGV"), (NO_SCRIPT, "error opening /proc/self/fd/0")],
)
def test_qsub_submits_when_drmaa_cannot_be_used(
    cell: Cell, drmaa: Callable[[str], Plan], monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    cell("qsub", "echo 4711")
    made = drmaa(script)
    assert scheduler.login.submit(made) == SubmitResult(JobIdentity("4711", {"by": "qsub"}))
    monkeypatch.setenv("DRMAA_LIBRARY_PATH", "/opt/libdrmaa.so")  # a user who names a library is told why
    (note,) = scheduler.login.submit(made).notes
    assert "submitted by qsub" in note
    assert why in note
    monkeypatch.setenv(submit.WAY, "drmaa")
    error = refusal(made)
    assert why in error.what
    assert "GRIDTF_SGE_SUBMIT=qsub" in error.hint


@pytest.mark.parametrize(
    ("script", "kind", "piece"),
    [
        (
            """echo '{"submitting": true}'; echo '{"failed": "no project \\"x\\""}'; exit 1""",
            SchedulerError,
            'Grid Engine has refused the job: no project "x"',
        ),
        pytest.param(
            """echo '{"submitting": true}'; sleep 30""",
            MaybeSubmittedError,
            "may have taken the job, or may not: DRMAA has not answered within 3 s",
            marks=pytest.mark.thorough,
        ),
        ("""echo '{"submitting": true}'; kill -SEGV $$""", MaybeSubmittedError, "has ended by SIGSEGV"),
    ],
    ids=["refused", "hangs", "crashes"],
)
def test_failed_drmaa_submission_is_not_repeated_by_qsub(
    cell: Cell,
    drmaa: Callable[[str], Plan],
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    kind: type[GridtfError],
    piece: str,
) -> None:
    monkeypatch.setattr(GridEngineCommands, "submit_limit", 3.0 if "sleep" in script else 20.0)
    root = cell("qsub", "echo 4711")
    assert piece in refusal(drmaa(script), kind).what
    assert not (root / "called").exists()


DOWN = "unable to contact qmaster using port 6444 on host"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (f"""echo '{{"failed": "{DOWN} ctl"}}'; exit 1""", DOWN),
        pytest.param("sleep 30", "DRMAA has not answered within 3 s", marks=pytest.mark.thorough),
    ],
    ids=["down", "hangs"],
)
def test_drmaa_that_the_qmaster_does_not_answer_gives_way_to_qsub(
    cell: Cell, drmaa: Callable[[str], Plan], monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    """Once qsub is answered, that is remembered, until there is another library."""
    monkeypatch.setattr(GridEngineCommands, "submit_limit", 3.0 if "sleep" in script else 20.0)
    root = cell("qsub", f'[ -e "$SGE_ROOT/up" ] && echo 4711 || {{ echo {DOWN} ctl >&2; exit 1; }}')
    made = drmaa(f'touch "$SGE_ROOT/asked"; {script}')
    asked = root / "asked"
    for _ in range(2):  # the qmaster is down
        assert "qmaster does not answer" in refusal(made, NoAnswerError).what
        assert asked.exists()
        asked.unlink()
    (root / "up").touch()
    result = scheduler.login.submit(made)
    assert result.job.details == {"by": "qsub"}
    assert why in result.notes[0]
    asked.unlink()
    assert scheduler.login.submit(made).notes == ()
    assert not asked.exists()
    monkeypatch.setenv(submit.WAY, "drmaa")
    assert why in refusal(made, NoAnswerError).what
    monkeypatch.delenv(submit.WAY)
    asked.unlink()
    (root / "lib/lx-amd64").mkdir(parents=True)
    (root / "lib/lx-amd64/libdrmaa.so").touch()
    assert scheduler.login.submit(made).notes
    assert asked.exists()


@pytest.mark.parametrize("variable", ["DRMAA_LIBRARY_PATH", "XDG_STATE_HOME"])
def test_qsub_submits_where_the_library_or_what_is_remembered_of_it_cannot_be_looked_at(
    cell: Cell, drmaa: Callable[[str], Plan], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """As below a folder that the user may not read."""
    cell("qsub", "echo 4711")
    made = drmaa("exit 1")
    monkeypatch.setenv(variable, "/x" * 3000)
    assert scheduler.login.submit(made).job.details == {"by": "qsub"}


def test_qsub_submits_what_drmaa_cannot_quote(cell: Cell, drmaa: Callable[[str], Plan]) -> None:
    cell("qsub", "echo 4711")
    both = drmaa("exit 1").replace(run_dir=Path("""/runs/'" """))
    assert scheduler.login.submit(both).job.details == {"by": "qsub"}


# --- requests to a session


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("/runs/1/job.log", "/runs/1/job.log"),
        ("/a b", "'/a b'"),
        ("/it's", '"/it\'s"'),
        ('/"x" y', "'/\"x\" y'"),
        ("/a\\", "'/a\\'"),
        ("/ü", "'/ü'"),
        ("", "''"),
    ],
)
def test_native_specification(word: str, quoted: str) -> None:
    assert submit.native_specification(("qsub", "-terse", "-o", word)) == f"-b n -shell y -o {quoted}"


@pytest.mark.parametrize(
    ("elements", "expected"),
    [((), ()), (("5",), (5, 5, 1)), (("1", "2", "3"), (1, 3, 1)), (("2", "5", "8"), (2, 8, 3))],
)
def test_task_range_of_an_array(elements: Sequence[str], expected: tuple[int, ...]) -> None:
    assert submit.task_range(elements) == expected


def test_task_range_refuses_an_array_with_gaps() -> None:
    with pytest.raises(submit._NoDrmaaError):
        submit.task_range(("1", "2", "9"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "glibc.rtld.optional_static_tls=2048"),
        ("glibc.malloc.check=3", "glibc.malloc.check=3:glibc.rtld.optional_static_tls=2048"),
        ("glibc.rtld.optional_static_tls=512", "glibc.rtld.optional_static_tls=2048"),
        ("glibc.rtld.optional_static_tls=9999:a=b", "a=b:glibc.rtld.optional_static_tls=9999"),
        ("glibc.rtld.optional_static_tls=lots", "glibc.rtld.optional_static_tls=2048"),
    ],
)
def test_session_environment_reserves_thread_local_storage(before: str, after: str) -> None:
    assert submit.session_environment({"GLIBC_TUNABLES": before})["GLIBC_TUNABLES"] == after


def test_libraries_lists_places_of_libdrmaa(tmp_path: Path) -> None:
    folder = tmp_path / "lib/lx-amd64"
    folder.mkdir(parents=True)
    for name in ("libdrmaa.so", "libdrmaa.so.0.95", "libdrmaa2.so"):
        (folder / name).touch()
    found = list(submit.libraries({"SGE_ROOT": str(tmp_path)}))
    assert found[0] == str(folder / "libdrmaa.so")
    assert "libdrmaa.so.1.0" in found  # for the loader
    assert not [name for name in found if name.endswith(("0.95", "drmaa2.so"))]
    assert list(submit.libraries({"SGE_ROOT": str(tmp_path), "DRMAA_LIBRARY_PATH": "/mine.so"})) == ["/mine.so"]


# --- in a session, with a fake module drmaa


class FakeSession:
    """Records the calls of drmaa.Session."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.template = SimpleNamespace()
        self.fault = fault
        self.calls: list[Any] = []

    def initialize(self) -> None:
        self.calls.append("initialize")

    def createJobTemplate(self) -> SimpleNamespace:
        return self.template

    def runJob(self, template: object) -> str:
        if self.fault:
            raise self.fault
        return "4711"

    def runBulkJobs(self, template: object, first: int, last: int, step: int) -> Sequence[str]:
        return [f"4711.{number}" for number in range(first, last + 1, step)]

    def exit(self) -> None:
        self.calls.append("exit")


def reports_of(session: FakeSession, **values: Any) -> list[dict[str, Any]]:
    reports: list[dict[str, Any]] = []
    request = {"native": "-b n", "tasks": [], **values}
    drmaa_session.submit(SimpleNamespace(Session=session), request, reports.append)
    return reports


@pytest.mark.parametrize("tasks", [[], [1, 5, 2]], ids=["job", "array"])
def test_session_submits_jobs_and_arrays(tasks: list[int]) -> None:
    session = FakeSession()
    assert reports_of(session, tasks=tasks) == [{"submitting": True}, {"job_id": "4711"}]
    assert session.template.remoteCommand == b"/proc/self/fd/0"
    assert session.calls == ["initialize", "exit"]


@pytest.mark.parametrize(
    ("fault", "words"), [(RuntimeError("code 17: job rejected"), "job rejected"), (MemoryError(), "MemoryError")]
)
def test_session_reports_failures(fault: Exception, words: str) -> None:
    assert reports_of(FakeSession(fault)) == [{"submitting": True}, {"failed": words}]


def test_usable_refuses_invalid_libraries(tmp_path: Path) -> None:
    (tmp_path / "libdrmaa.so").write_text("no library")
    with pytest.raises(drmaa_session.UnloadableError, match=r"libdrmaa\.so"):
        drmaa_session.usable([str(tmp_path / "libdrmaa.so"), "libc.so.6"])


@pytest.mark.parametrize(("system", "ours"), [("SGE 8.1.9", True), ("GE 6.2u5", True), ("SLURM 22.05", False)])
def test_usable_refuses_libraries_of_other_schedulers(monkeypatch: pytest.MonkeyPatch, system: str, ours: bool) -> None:
    monkeypatch.setattr(drmaa_session, "_system", lambda library: system)
    if ours:
        assert drmaa_session.usable(["libc.so.6"]) == "libc.so.6"
    else:
        with pytest.raises(drmaa_session.UnloadableError, match="is for SLURM"):
            drmaa_session.usable(["libc.so.6"])


def test_session_reports_an_unloadable_library(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real session in a real process, without a library."""
    monkeypatch.setattr(submit, "find_spec", lambda name: name)
    monkeypatch.setenv("DRMAA_LIBRARY_PATH", "/nowhere/libdrmaa.so")
    monkeypatch.setenv(submit.WAY, "drmaa")
    made = plan("sge").replace(python=sys.executable)
    assert "/nowhere/libdrmaa.so: cannot open shared object file" in refusal(made).what


@pytest.mark.thorough
def test_qsub_submits_when_the_library_hangs(cell: Cell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A real session, whose library is a pipe without a writer; it has submitted nothing."""
    library = tmp_path / "libdrmaa.so"
    os.mkfifo(library)
    monkeypatch.setattr(submit, "find_spec", lambda name: name)
    monkeypatch.setattr(submit, "libraries", lambda environ: [str(library)])
    monkeypatch.setattr(submit, "_DRMAA_LIMIT", 1)
    cell("qsub", "echo 4711")
    made = plan("sge").replace(python=sys.executable)
    result = scheduler.login.submit(made)
    assert result.job == JobIdentity("4711", {"by": "qsub"})
    assert "libdrmaa has not been loaded within 1 s" in result.notes[0]
    monkeypatch.setenv(submit.WAY, "drmaa")
    assert "libdrmaa has not been loaded within 1 s" in refusal(made).what


def test_session_restores_the_variables_of_the_submitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("GLIBC_TUNABLES", "x=1")
    drmaa_session.restore({"LC_ALL": "de_DE.UTF-8", "GLIBC_TUNABLES": None})
    assert os.environ["LC_ALL"] == "de_DE.UTF-8"
    assert "GLIBC_TUNABLES" not in os.environ


# --- cancelling


@pytest.mark.parametrize(("job_id", "called"), [("4711", "4711"), ("4711.3", "4711 -t 3")])
def test_cancel_runs_qdel(cell: Cell, job_id: str, called: str) -> None:
    root = cell("qdel", "")
    scheduler.login.cancel(JobIdentity(job_id))
    assert (root / "called").read_text() == f"{called}\n"


@pytest.mark.parametrize("job_id", ["*", "-u", "digits", "7x", "", ".3"])
def test_cancel_refuses_patterns_and_names(cell: Cell, job_id: str) -> None:
    root = cell("qdel", "")
    with pytest.raises(SchedulerError, match="is not a Grid Engine job id"):
        scheduler.login.cancel(JobIdentity(job_id))
    assert not (root / "called").exists()


def test_cancel_of_an_ended_job_succeeds(cell: Cell) -> None:
    cell("qdel", "echo 'denied: job \"4711\" does not exist'; exit 1")
    scheduler.login.cancel(JobIdentity("4711"))


def test_cancel_of_another_users_job_is_refused(cell: Cell) -> None:
    cell("qdel", "echo 'bob - you do not have the necessary privileges to delete the job \"7\"'; exit 1")
    with pytest.raises(SchedulerError, match="does not cancel job 7: bob - you do not have the necessary privileges"):
        scheduler.login.cancel(JobIdentity("7"))


def test_many_jobs_are_cancelled_by_one_qdel_and_those_that_it_refuses_by_one_each(cell: Cell) -> None:
    """As a real qdel answers; it ends with 1 for a job that is gone as well."""
    denied = 'alice - you do not have the necessary privileges to delete the job "8"'
    lines = f"""\
alice has deleted job 5
alice has registered the job 6 for deletion
job 7 is already in deletion
{denied}
denied: job "9" does not exist
alice has deleted job-array task 10.2"""
    root = cell("qdel", f"if [ \"$*\" = 8 ]; then echo '{denied}'; else cat <<'E'\n{lines}\nE\nfi; exit 1")
    ids = ("5", "6", "7", "8", "9", "10.2")
    told = list(scheduler.login.cancel_all([JobIdentity(job_id) for job_id in ids]))
    assert [error is None for error in told] == [True, True, True, False, True, True]
    assert (root / "called").read_text().splitlines() == ["5 6 7 8 9 10.2", "8"]


@pytest.mark.parametrize("text", ["something else", ""])
def test_qdel_that_fails_without_naming_a_job_is_called_for_each(cell: Cell, text: str) -> None:
    root = cell("qdel", f'case "$*" in *\\ *) echo "{text}"; exit 1;; esac')
    told = list(scheduler.login.cancel_all([JobIdentity("5"), JobIdentity("6")]))
    assert told == [None, None]
    assert (root / "called").read_text().splitlines() == ["5 6", "5", "6"]


@pytest.mark.parametrize(
    ("conf", "managers", "forced"),
    [
        ("qmaster_params none", "nobody", False),
        ("qmaster_params ENABLE_FORCED_QDEL=1", "nobody", True),
        ("qmaster_params ENABLE_FORCED_QDEL=0", "nobody", False),
        ("qmaster_params ENABLE_FORCED_QDEL_IF_UNKNOWN", "nobody", True),
        ("qmaster_params none", "alice", True),
    ],
)
def test_cancel_by_force_needs_permission(
    cell: Cell, conf: str, managers: str, forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="alice"))
    root = cell("qconf", f'case "$1" in -sconf) echo "{conf}";; *) echo "{managers}";; esac')
    cell("qdel", "")
    if forced:
        scheduler.login.cancel(JobIdentity("7"), force=True)
    else:
        with pytest.raises(SchedulerError) as caught:
            scheduler.login.cancel(JobIdentity("7"), force=True)
        assert "`qdel -f 7`" in caught.value.hint
    assert ("-f 7" in (root / "called").read_text()) == forced


def test_cancel_by_force_is_tried_when_qconf_is_refused(cell: Cell) -> None:
    cell("qconf", "echo 'denied: host \"login\" is not an admin host' >&2; exit 1")
    cell("qdel", "echo ............; exit 1")
    with pytest.raises(SchedulerError, match="its hosts do not report that it has ended"):
        scheduler.login.cancel(JobIdentity("7"), force=True)
