"""Answers of a scheduler that commands share: who asks, about which jobs, and what counts no longer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from gridtf.errors import SchedulerError
from gridtf.schedulers import answers, get
from gridtf.schedulers.answers import Answers, Store
from gridtf.schedulers.api import JobIdentity, JobStatus
from gridtf.schedulers.commands import NoAnswerError
from tests.support.clocks import Clock
from tests.support.states import PENDING, RUNNING, UNKNOWN

ONE, TWO, THREE = (JobIdentity(number, user="alice") for number in ("1", "2", "3"))
GONE = JobStatus(UNKNOWN, "no longer known", purged=True)


class Server:
    """A scheduler that counts its questions."""

    def __init__(self) -> None:
        self.questions: list[list[str]] = []
        self.states: dict[str, JobStatus] = {}
        self.error: SchedulerError | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    def query(self, jobs: Sequence[JobIdentity]) -> Mapping[str, JobStatus]:
        self.questions.append([job.job_id for job in jobs])
        self.meanwhile()
        if self.error:
            raise self.error
        return {job.job_id: self.states.get(job.job_id, JobStatus(RUNNING)) for job in jobs}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def time_() -> Clock:
    made = Clock()
    made.now = 1000.0
    return made


@pytest.fixture
def store(tmp_path: Path, time_: Clock) -> Store:
    return Store(tmp_path / "slurm", lambda: time_.now, time_.sleep)


def test_answer_serves_other_commands_for_as_long_as_they_accept(store: Store, server: Server, time_: Clock) -> None:
    server.states = {"1": JobStatus(PENDING, "Resources", requeued=True)}
    first = store.ask([ONE], 997.0, server.query)
    time_.now = 1003.0
    assert store.ask([ONE], 1000.0, server.query) == first == Answers(server.states, 1000.0)
    assert server.questions == [["1"]]
    store.ask([ONE], 1000.5, server.query)
    assert server.questions == [["1"], ["1"]]


def test_question_covers_the_jobs_that_others_asked_about_of_late(store: Store, server: Server, time_: Clock) -> None:
    server.states = {"3": GONE}
    store.ask([ONE], 1000.0, server.query)
    store.ask([THREE], 1000.0, server.query)
    store.ask([TWO], 1000.0, server.query)
    assert server.questions == [["1"], ["3", "1"], ["2", "1"]]  # a purged job stays so
    time_.now += 10
    assert store.ask([TWO, ONE], 1010.0, server.query).statuses.keys() == {"1", "2"}
    assert len(server.questions) == 4
    time_.now += 200  # nobody wants to know any more
    store.ask([THREE], time_.now, server.query)
    assert server.questions[4:] == [["3"]]


def test_command_that_lives_on_answers_of_others_stays_among_those_that_are_asked_about(
    store: Store, server: Server, time_: Clock
) -> None:
    store.ask([ONE], 1000.0, server.query)
    for _ in range(40):
        time_.now += 10
        store.ask([TWO], time_.now, server.query)
        store.ask([ONE], time_.now - 5, server.query)
    assert len(server.questions) == 41
    assert all("1" in question for question in server.questions)


def test_job_that_accounting_does_not_have_is_not_asked_about_again(store: Store, time_: Clock) -> None:
    asked: list[str] = []

    def nothing(jobs: Sequence[JobIdentity]) -> Mapping[str, JobStatus]:
        asked.extend(job.job_id for job in jobs)
        return {}

    for _ in range(3):
        assert store.ask([ONE], 1000.0, nothing).statuses == {}
    assert asked == ["1"]


def test_submission_and_cancellation_outdate_answers_and_questions(
    store: Store, server: Server, time_: Clock, tmp_path: Path
) -> None:
    store.ask([ONE], 0.0, server.query)
    time_.now += 1
    store.outdate()
    store.ask([ONE], 0.0, server.query)
    assert len(server.questions) == 2

    def cancelled_meanwhile() -> None:
        time_.now += 1
        Store(tmp_path / "slurm", lambda: time_.now, time_.sleep).outdate()

    server.meanwhile = cancelled_meanwhile
    time_.now += 1
    store.ask([ONE], time_.now, server.query)
    server.meanwhile = lambda: None
    store.ask([ONE], 0.0, server.query)
    assert len(server.questions) == 4


def test_server_that_does_not_answer_is_asked_once_for_all(store: Store, server: Server) -> None:
    store.ask([ONE], 1000.0, server.query)
    server.error = NoAnswerError("Slurm's controller does not answer: timed out")
    down = JobStatus(UNKNOWN, "Slurm's controller does not answer: timed out")
    assert store.ask([TWO], 1000.5, server.query).statuses == {"2": down}
    assert store.ask([ONE], 1000.0, server.query).statuses == {"1": down}
    assert server.questions == [["1"], ["2", "1"]]


def test_job_whose_question_is_refused_spoils_no_other_answer(store: Store, server: Server) -> None:
    def refuses_one(jobs: Sequence[JobIdentity]) -> Mapping[str, JobStatus]:
        if ONE in jobs:
            raise SchedulerError("squeue has failed: Invalid job id: 1")
        return server.query(jobs)

    assert store.ask([ONE], 1000.0, refuses_one).statuses["1"].reason == "squeue has failed: Invalid job id: 1"
    assert store.ask([TWO], 1000.0, refuses_one).statuses == {"2": JobStatus(RUNNING)}


@pytest.mark.parametrize("suffix", ["notes", "void", "lock"])
@pytest.mark.parametrize("content", [b"\xff\x00{", b"[1]", b'{"1": [1]}', b"null\n7\n{}", b"1e9", b"nan"])
def test_damaged_files_cost_no_more_than_a_question(
    suffix: str, content: bytes, store: Store, server: Server, tmp_path: Path
) -> None:
    Path(tmp_path, f"slurm.{suffix}").write_bytes(content)
    assert store.ask([ONE], 1000.0, server.query).statuses == {"1": JobStatus(RUNNING)}
    assert store.ask([ONE], 1000.0, server.query).statuses == {"1": JobStatus(RUNNING)}
    assert server.questions == [["1"]]


def test_answers_of_an_earlier_boot_do_not_count(store: Store, server: Server, time_: Clock) -> None:
    store.ask([ONE], 1000.0, server.query)
    time_.now = 5.0
    store.ask([ONE], 0.0, server.query)
    assert len(server.questions) == 2


def test_folder_that_cannot_be_written_costs_no_more_than_the_sharing(tmp_path: Path, server: Server) -> None:
    gone = Store(tmp_path / "gone" / "slurm")
    gone.outdate()
    for _ in range(2):
        assert gone.ask([ONE], 0.0, server.query).statuses == {"1": JobStatus(RUNNING)}
    assert len(server.questions) == 2


# --- several processes


@contextmanager
def asking(path: Path, during: Callable[[], object]) -> Iterator[int]:
    """A process that asks, and does something while it waits for the answer; yields its id once it does that."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:

        def query(jobs: Sequence[JobIdentity]) -> Mapping[str, JobStatus]:
            os.write(write, b"!")
            during()
            return {job.job_id: JobStatus(PENDING, "by the other") for job in jobs}

        try:
            Store(path).ask([ONE], time.monotonic(), query)
        finally:
            os._exit(0)
    try:
        assert os.read(read, 1) == b"!"
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)


def test_one_asks_and_the_others_wait_for_its_answer(tmp_path: Path, server: Server) -> None:
    go_read, go_write = os.pipe()
    with asking(tmp_path / "slurm", lambda: os.read(go_read, 1)):
        slept: list[float] = []

        def sleep(seconds: float) -> None:
            if not slept:
                os.write(go_write, b"!")
            slept.append(seconds)
            time.sleep(seconds)

        # before the question, as the other process has begun it
        found = Store(tmp_path / "slurm", sleep=sleep).ask([ONE], time.monotonic() - 60, server.query)
    os.close(go_read)
    os.close(go_write)
    assert slept
    assert found.statuses == {"1": JobStatus(PENDING, "by the other")}
    assert server.questions == []


def test_killed_process_holds_nobody_up(tmp_path: Path, server: Server) -> None:
    with asking(tmp_path / "slurm", signal.pause) as pid:
        slept: list[float] = []

        def sleep(seconds: float) -> None:
            if not slept:
                os.kill(pid, signal.SIGKILL)
            slept.append(seconds)
            time.sleep(seconds)

        Store(tmp_path / "slurm", sleep=sleep).ask([ONE], time.monotonic(), server.query)
    assert len(server.questions) == 1


def test_stopped_process_is_passed_over_at_once(tmp_path: Path, server: Server) -> None:
    with asking(tmp_path / "slurm", signal.pause) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        clock = Clock()
        clock.now = begin = time.monotonic()
        for _ in range(3):
            Store(tmp_path / "slurm", lambda: clock.now, clock.sleep).ask([ONE], begin, server.query)
    assert clock.now - begin < 1
    assert server.questions == [["1"]]


def test_process_that_hangs_is_passed_over_once(tmp_path: Path, server: Server) -> None:
    with asking(tmp_path / "slurm", signal.pause):
        clock = Clock()
        clock.now = begin = time.monotonic()
        for _ in range(3):
            Store(tmp_path / "slurm", lambda: clock.now, clock.sleep).ask([ONE], clock.now - 3, server.query)
    assert 30 < clock.now - begin < 32  # the next command has a lock of its own
    assert server.questions == [["1"]]


def test_question_to_accounting_covers_jobs_of_commands_that_run_now(
    tmp_path: Path, server: Server, time_: Clock
) -> None:
    store = Store(tmp_path / "slurm", lambda: time_.now, time_.sleep, covers=5.0)
    for job in (ONE, TWO, THREE):
        store.ask([job], time_.now, server.query)
        time_.now += 4
    assert server.questions == [["1"], ["2", "1"], ["3", "2"]]


@pytest.mark.thorough
def test_fifty_processes_ask_a_few_times(tmp_path: Path) -> None:
    questions, started = tmp_path / "questions", time.monotonic()

    def query(jobs: Sequence[JobIdentity]) -> Mapping[str, JobStatus]:
        with questions.open("a") as file:
            file.write(f"{len(jobs)}\n")
        time.sleep(0.5)  # the others come meanwhile
        return {job.job_id: JobStatus(RUNNING, job.job_id) for job in jobs}

    children = []
    gate, opened = os.pipe()
    for number in range(50):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(opened)
                os.read(gate, 1)  # returns when the parent closes the gate: all have been forked
                found = Store(tmp_path / "slurm").ask([JobIdentity(str(number))], started, query)
                code = 0 if found.statuses == {str(number): JobStatus(RUNNING, str(number))} else 1
            finally:
                os._exit(code)
        children.append(pid)
    os.close(opened)
    os.close(gate)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 50
    asked = [int(line) for line in questions.read_text().splitlines()]
    assert max(asked) > 10
    assert len(asked) < 15


def test_what_gridtf_notes_of_a_submission_is_no_detail_of_the_job() -> None:
    record = {"scheduler": "slurm", "name": "x", "user": "alice", "host": "n1", "time": 1.0, "command": ["gridtf"]}
    job = JobIdentity.from_record({**record, "job_id": "7", "cluster": "a", "elements": ["1"]})
    assert job == JobIdentity("7", {"name": "x", "cluster": "a"}, "alice", "n1")


# --- where answers lie


def test_folder_is_the_user_s_own_and_private(tmp_path: Path) -> None:
    runtime, temporary = tmp_path / "run", tmp_path / "tmp"
    for place in (runtime, temporary):
        place.mkdir(0o777)
    environ = {"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(temporary)}
    own, common = runtime / "gridtf", temporary / f"gridtf-{os.geteuid()}"
    assert answers.folder(environ) == own
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o750)  # others may read it
    assert answers.folder(environ) == common
    common.rmdir()
    common.symlink_to(own)
    own.chmod(0o700)
    assert answers.folder({"TMPDIR": str(temporary)}) is None
    assert answers.folder({"XDG_RUNTIME_DIR": "relative", "TMPDIR": str(tmp_path / "nowhere")}) is None


@pytest.mark.root
def test_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    theirs = tmp_path / f"gridtf-{os.geteuid()}"
    theirs.mkdir(0o700)
    os.chown(theirs, 12345, 12345)
    assert answers.folder({"TMPDIR": str(tmp_path)}) is None


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        ("slurm", "SLURM_CONF", "/etc/other.conf"),
        ("slurm", "SLURM_CLUSTERS", "b"),
        ("sge", "SGE_ROOT", "/opt/other"),
        ("sge", "SGE_CELL", "other"),
        ("sge", "SGE_QMASTER_PORT", "1"),
    ],
)
def test_servers_are_told_apart(name: str, variable: str, value: str) -> None:
    scheduler = get(name)
    assert scheduler.login.server(ONE, {}) == scheduler.login.server(TWO, {"TERM": "x"}) != ""
    assert scheduler.login.server(ONE, {}) != scheduler.login.server(ONE, {variable: value})


def test_clusters_and_programs_are_told_apart(tmp_path: Path) -> None:
    slurm = get("slurm")
    assert slurm.login.server(ONE, {}) != slurm.login.server(ONE.replace(details={"cluster": "b"}), {})
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\n")
    squeue.chmod(0o755)
    assert slurm.login.server(ONE, {}) != slurm.login.server(ONE, {"PATH": str(tmp_path)})


def test_local_scheduler_has_no_server() -> None:
    assert get("local").login.server(ONE, dict(os.environ)) == ""
