"""What commands print about jobs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jsonschema
import pytest

import gridtf.login.cancelling
from gridtf import text
from gridtf.cli import main, show, wait
from gridtf.errors import SchedulerError
from gridtf.login.job import Job
from gridtf.observe.overview import row
from gridtf.observe.views import AttemptView, JobView, TaskView
from gridtf.run import registry
from gridtf.schedulers.api import JobIdentity, JobStatus
from tests.support import recordedruns
from tests.support.python import ROOT
from tests.support.scheduler import FakeScheduler
from tests.support.states import CANCELLED, COMPLETED, FAILED, NODE_FAIL, PENDING, RUNNING, UNKNOWN

Captured = pytest.CaptureFixture[str]
RUN = Path("/runs/digits-1")
LOG = RUN / "attempt-1" / "logs" / "worker-1.log"
GOING = JobView(
    name="digits",
    job_id="4711",
    scheduler="slurm",
    state=RUNNING,
    reason="3 tasks on 2 hosts",
    hint="",
    run_dir=RUN,
    output_dir=RUN / "output",
    attempt=1,
    phase="running",
    started=1000.0,
    ended=None,
    exit_code=None,
    tasks=(
        TaskView("worker:0", "n1", RUNNING, log=LOG.with_name("worker-0.log")),
        TaskView("worker:1", "node2", RUNNING, log=LOG),
        TaskView("ps:0", "n1", PENDING),
    ),
    cause=None,
)
FAILURE = GOING.replace(
    state=FAILED,
    reason="worker:1 on node2: exit code 3",
    hint="look at it",
    ended=1200.0,
    exit_code=1,
    tasks=(
        GOING.tasks[0].replace(state="STOPPED", signal="SIGTERM"),
        GOING.tasks[1].replace(state=FAILED, exit=3),
        GOING.tasks[2],
    ),
    cause={"task": "worker:1", "host": "node2", "exit": 3, "signal": None, "log": str(LOG), "tail": ["a", "b"]},
)


def moment(seconds: float) -> str:
    """A time as this machine's time zone has it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def test_show_running_job() -> None:
    assert show.job(GOING, 1075.0) == (
        "name           digits\n"
        "job            4711 (slurm)\n"
        "state          RUNNING for 1 min 15 s\n"
        "detail         3 tasks on 2 hosts\n"
        f"times          started {moment(1000.0)}\n"
        "run directory  /runs/digits-1\n"
        "\n"
        "TASK      HOST   STATE\n"
        "worker:0  n1     RUNNING\n"
        "worker:1  node2  RUNNING\n"
        "ps:0      n1     PENDING"
    )


def test_show_failed_job() -> None:
    attempts = (
        AttemptView(1, NODE_FAIL, "lost n3", 500.0, 900.0),
        AttemptView(2, FAILED, FAILURE.reason, 1000.0, 1200.0),
    )
    assert show.job(FAILURE.replace(attempt=2, attempts=attempts, submitted=400.0), 5000.0) == (
        "name           digits\n"
        "job            4711 (slurm)\n"
        "state          FAILED after 3 min 20 s in attempt 2 (10 min 0 s in all)\n"
        "why            worker:1 on node2: exit code 3\n"
        "               look at it\n"
        f"times          submitted {moment(400.0)}, started {moment(1000.0)}, ended {moment(1200.0)}\n"
        "run directory  /runs/digits-1\n"
        "attempts       attempt 1 NODE_FAIL after 6 min 40 s: lost n3\n"
        "               attempt 2 FAILED after 3 min 20 s: worker:1 on node2: exit code 3\n"
        "\n"
        "TASK      HOST   STATE    EXIT\n"
        "worker:0  n1     STOPPED  SIGTERM\n"
        "worker:1  node2  FAILED   3\n"
        "ps:0      n1     PENDING  -\n"
        "\n"
        "last lines of /runs/digits-1/attempt-1/logs/worker-1.log:\n"
        "  a\n"
        "  b"
    )


def test_show_job_that_ended_without_a_verdict() -> None:
    lost = FAILURE.replace(ended=None, tasks=(), cause=None)
    assert show.job(lost, 5000.0) == (
        "name           digits\n"
        "job            4711 (slurm)\n"
        "state          FAILED\n"
        "why            worker:1 on node2: exit code 3\n"
        "               look at it\n"
        f"times          started {moment(1000.0)}\n"
        "run directory  /runs/digits-1"
    )
    assert show.verdict(lost, 5000.0).startswith("digits (4711): FAILED\n")


def test_show_the_last_attempts_alone() -> None:
    attempts = tuple(AttemptView(number, FAILED, "", 10.0, 70.0) for number in range(1, 15))
    lines = show.job(FAILURE.replace(attempts=attempts), 5000.0).splitlines()
    shown = [line for line in lines if "attempt " in line]
    assert shown[0] == "attempts       attempt 5 FAILED after 1 min 0 s"
    assert len(shown) == 10


def test_show_why_the_end_of_an_earlier_attempt_is_not_known() -> None:
    attempts = (AttemptView(1, UNKNOWN, "it left no verdict"), AttemptView(2, RUNNING, "3 tasks", 10.0))
    shown = show.job(GOING.replace(attempt=2, attempts=attempts), 5000.0)
    assert "attempts       attempt 1 UNKNOWN: it left no verdict\n               attempt 2 RUNNING\n" in shown


def test_time_of_an_attempt_is_told_from_that_of_all() -> None:
    attempts = (AttemptView(1, UNKNOWN, "it left no verdict", 100.0), AttemptView(2, NODE_FAIL, "", 200.0, 260.0))
    last = AttemptView(3, RUNNING, "", 1000.0)
    again = GOING.replace(attempt=3, attempts=(*attempts, last))
    assert "state          RUNNING for 1 min 15 s in attempt 3 (at least 2 min 15 s in all)\n" in show.job(
        again, 1075.0
    )
    assert show.progress(again.replace(attempts=()), 1075.0).startswith("running for 1 min 15 s in attempt 3; ")
    assert "state          RUNNING in attempt 3\n" in show.job(again.replace(started=None), 1075.0)
    assert "state          PENDING\n" in show.job(again.replace(started=None, state=PENDING), 1075.0)
    failed = FAILURE.replace(attempt=3, attempts=(AttemptView(1, FAILED, "", None, 900.0), *attempts[1:], last))
    assert "state          FAILED after 3 min 20 s in attempt 3 (4 min 20 s in all)\n" in show.job(failed, 5000.0)
    never = FAILURE.replace(attempt=2, attempts=(AttemptView(1, FAILED, "h3: slow", None, 900.0), last))
    assert "state          FAILED after 3 min 20 s in attempt 2\n" in show.job(never, 5000.0)
    assert show.verdict(never.replace(attempts=()), 5000.0).startswith("digits (4711): FAILED after 3 min 20 s in atte")


def test_show_job_in_which_nothing_moves() -> None:
    text = "warning        no log has grown and no task has reported a step for 11 min 40 s: see gridtf stacks 4711\n"
    assert text in show.job(GOING.replace(unmoved=700.0), 5000.0)
    one, *others = GOING.tasks
    known = GOING.replace(unmoved=700.0, tasks=(one.replace(sample={"cpu": 0.0, "memory": 1}), *others))
    assert "for 11 min 40 s, and none uses a CPU: see" in show.job(known, 5000.0)


def test_show_damaged_records() -> None:
    text = "warning        attempt-1/state/hosts.json is damaged: what it says is missing here\n"
    assert text in show.job(GOING.replace(damaged=("attempt-1/state/hosts.json",)), 5000.0)


def test_show_expected_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.mktime((2027, 11, 21, 11, 8, 0, 0, 0, -1))
    waiting = GOING.replace(state=PENDING, reason="Resources", started=None, expected=start, tasks=())
    assert "detail         Resources; expected to start 2027-11-21 11:08\n" in show.job(waiting, 0.0)
    assert show.progress(waiting) == "pending; Resources; expected to start 2027-11-21 11:08"


def test_show_the_steps_of_tasks_that_report_their_progress() -> None:
    one, *others = GOING.tasks
    reports = one.replace(progress={"step": 1200, "values": {"loss": 0.5, "accuracy": "nan"}, "time": 4900.0})
    heading, first, second, *_ = show.job(GOING.replace(tasks=(reports, *others)), 5000.0).split("\n\n")[1].splitlines()
    assert heading.split() == ["TASK", "HOST", "STATE", "STEP"]
    assert first.split()[3] == "1200"
    assert second.split()[3] == "-"
    assert "STEP" not in show.job(GOING, 5000.0)
    values = json.loads(show.as_json(GOING.replace(tasks=(reports,))))["tasks"][0]["progress"]
    assert values == {"step": 1200, "values": {"loss": 0.5, "accuracy": "nan"}, "time": 4900.0}


def test_show_verdict() -> None:
    assert show.verdict(FAILURE, 5000.0) == (
        "digits (4711): FAILED after 3 min 20 s\n"
        "  worker:1 on node2: exit code 3\n"
        "  look at it\n"
        "\n"
        "last lines of /runs/digits-1/attempt-1/logs/worker-1.log:\n"
        "  a\n"
        "  b"
    )
    assert show.verdict(GOING.replace(state=COMPLETED, reason="", started=None), 0.0) == "digits (4711): COMPLETED"


def test_show_ended_job_that_its_scheduler_still_lists() -> None:
    queued = FAILURE.replace(in_queue=True, attempt=1)
    why = "the scheduler still has the job: it is cleaning up, or will start it again"
    assert why in show.job(queued, 5000.0)
    assert show.progress(queued) == f"attempt 1 ended FAILED; {why}"
    assert why not in show.job(FAILURE, 5000.0)


def test_show_the_log_path_of_a_task_without_output() -> None:
    silent = FAILURE.replace(cause={"task": "worker:1", "log": "/l/worker-1.log", "tail": []})
    assert show.verdict(silent, 5000.0).endswith("\n\nworker:1 printed nothing: /l/worker-1.log")


def test_show_progress() -> None:
    assert show.progress(GOING) == "running; 3 tasks on 2 hosts; tasks: 2 running, 1 pending"
    assert show.progress(GOING.replace(state=PENDING, reason="Resources")) == "pending; Resources"
    assert show.progress(GOING.replace(state=PENDING, reason="", tasks=())) == "pending"
    one, *others = GOING.tasks
    steps = one.replace(progress={"step": 1200, "values": {}, "time": 1.0}, sample={"rate": 11.84})
    going = GOING.replace(tasks=(steps, *others))
    words = "running for 1 min 15 s; step 1200 (11.8/s); 3 tasks on 2 hosts; tasks: 2 running, 1 pending"
    assert show.progress(going, 1075.0) == words
    assert show.progress(going, 1075.0, "epoch 2/3") == words.replace("step 1200 (11.8/s)", "epoch 2/3")


def test_show_job_table() -> None:
    waiting = GOING.replace(name="n", state=PENDING, started=None, tasks=())
    lines = show.job_table([row(GOING), row(waiting)]).splitlines()
    assert [line.split() for line in lines[::2]] == [
        ["NAME", "JOB", "SCHEDULER", "STATE", "TASKS", "STARTED", "RUN", "DIRECTORY"],
        ["n", "4711", "slurm", "PENDING", "-", "-", "/runs/digits-1"],
    ]
    assert lines[1].split()[:5] == ["digits", "4711", "slurm", "RUNNING", "3"]
    assert len({line.index("/runs") for line in lines[1:]}) == 1


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (200, "NAME JOB SCHEDULER STATE TASKS STARTED RUN DIRECTORY"),
        (80, "NAME JOB SCHEDULER STATE TASKS STARTED"),
        (60, "NAME JOB STATE STARTED"),
        (40, "NAME JOB STATE"),
        (30, "NAME STATE"),
        (20, "NA… STATE"),
    ],
)
def test_job_table_has_a_line_for_each_job_and_the_columns_for_which_there_is_room(width: int, columns: str) -> None:
    job = row(GOING).replace(name="a-name-of-30-characters-or-more", run_dir=f"/home/ann/runs/{'x' * 60}")
    lines = show.job_table([job, job.replace(name="\u540d\u524d", job_id="4712.host")], width).splitlines()
    assert len(lines) == 3
    assert all(text.columns(line) <= width for line in lines)
    if width > 20:
        assert lines[0].split() == columns.split()
    states = {text.columns(line[: line.index("RUN")]) for line in lines[1:]} if width > 20 else {0}
    assert len(states) == 1  # East Asian names are aligned as well


def test_status_is_broken_with_an_indent_on_narrow_terminals() -> None:
    lines = show.job(FAILURE.replace(reason="worker:1 on node2: exit code 3, of which much can be said"), 5000.0, 40)
    assert lines.splitlines()[3:6] == [
        "why            worker:1 on node2: exit",
        "               code 3, of which much can",
        "               be said",
    ]
    verdict = show.verdict(FAILURE.replace(hint="look at it, and then look at it again"), 5000.0, 30)
    assert verdict.splitlines()[3:5] == ["  look at it, and then look at", "    it again"]


# --- following a job


class Watched(Job):
    """A job with given views."""

    id = "4711"

    def __init__(self, *views: JobView) -> None:
        super().__init__(RUN)
        self.views = views

    def watch(self, timeout: float | None = None, poll: float | None = 2.0) -> Iterator[JobView]:
        yield from self.views


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (GOING.replace(state=COMPLETED, exit_code=0), 0),
        (GOING.replace(state=CANCELLED, exit_code=None), 1),
        (GOING.replace(state=CANCELLED, exit_code=0), 1),
        (FAILURE.replace(exit_code=7), 7),
    ],
)
def test_wait_returns_the_job_s_exit_code(last: JobView, code: int, capsys: Captured) -> None:
    assert wait.follow(Watched(GOING, GOING, last)) == code
    captured = capsys.readouterr()
    assert captured.out.startswith(f"digits (4711): {last.state}")
    assert [line.split("  ", 1)[1] for line in captured.err.splitlines()] == [show.progress(GOING)]


def test_wait_repeats_unchanged_progress_every_minute(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    clock = iter(range(0, 1000, 25))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    wait.follow(Watched(*[GOING] * 8, FAILURE))
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_wait_reports_the_timeout(capsys: Captured) -> None:
    assert wait.follow(Watched(GOING), 5.0) == 124
    captured = capsys.readouterr()
    assert (captured.out, captured.err.splitlines()[-1]) == ("", "gridtf: job 4711 has not ended after 5 s")


def test_wait_ends_for_a_finished_job_of_unknown_state(capsys: Captured) -> None:
    unknown = GOING.replace(state=UNKNOWN, reason="only srun knows", ended=1200.0)
    assert wait.follow(Watched(GOING, unknown)) == 1
    assert capsys.readouterr().out == "digits (4711): UNKNOWN after 3 min 20 s\n  only srun knows\n"


def test_wait_returns_the_exit_code_when_output_is_not_writable(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    with monkeypatch.context() as patched, contextlib.suppress(OSError), Path("/dev/full").open("w") as full:
        patched.setattr(sys, "stdout", full)
        assert wait.follow(Watched(FAILURE)) == 1
        stderr = capsys.readouterr().err
        assert stderr.startswith("gridtf: cannot write to stdout: No space left on device\ndigits (4711): FAILED")
        patched.setattr(sys, "stderr", full)
        assert wait.follow(Watched(FAILURE, FAILURE.replace(exit_code=7))) == 7


def test_wait_prints_json_alone_to_stdout(capsys: Captured) -> None:
    assert wait.follow(Watched(GOING, FAILURE), as_json=True) == 1
    view = json.loads(capsys.readouterr().out)
    assert (view["state"], view["tasks"][1]["exit"], view["run_dir"]) == (FAILED, 3, str(RUN))


# --- commands on a fake scheduler


@pytest.mark.thorough
def test_submit_and_list(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out == "no jobs yet\n"
    for number in range(22):
        assert main(["submit", "--name", f"n{number}", "--json", "--", "x"]) == 0
        assert json.loads(capsys.readouterr().out).keys() == {"name", "scheduler", "job_id", "run_dir"}
    fake.states = [JobStatus(PENDING, "Resources")]
    fake.queried.clear()
    assert main(["list"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["NAME", *(f"n{number}" for number in range(21, 1, -1))]
    assert [len(ids) for ids in fake.queried] == [20]
    assert main(["list", "--all", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 22


def test_list_filters(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    for name in ("digits-1", "letters", "digits-2"):
        assert main(["submit", "--name", name, "--quiet", "--", "x"]) == 0
    assert capsys.readouterr().out == "101\n102\n103\n"

    def listed(*words: str) -> list[str]:
        assert main(["list", *words]) == 0
        return [row.split()[0] for row in capsys.readouterr().out.splitlines()][1:]

    assert listed("--name", "digits-*", "--since", "2h") == ["digits-2", "digits-1"]
    assert listed("--state", "running,FAILED", "--name", "l*") == ["letters"]
    assert listed("--state", "R", "--name", "l*") == ["letters"]
    assert main(["list", "--state", "FAILED"]) == 0
    assert capsys.readouterr().out == "no such jobs\n"
    assert main(["list", "--all", "--json", "--state", "RUNNING", "--name", "?etters"]) == 0
    assert [view["name"] for view in json.loads(capsys.readouterr().out)] == ["letters"]
    assert main(["list", "--json", "--name", "x"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    links = sorted(registry.folder(os.environ).iterdir())
    links[0].rename(links[0].with_name("20200101" + links[0].name[8:]))
    assert listed("--since", "2d") == ["digits-2", "letters"]


@pytest.mark.parametrize("state", [COMPLETED, FAILED, RUNNING, PENDING])
def test_json_of_status_is_as_its_schema_says(
    state: str, fake: FakeScheduler, rough_path: Path, capsys: Captured
) -> None:
    schema = json.loads((ROOT / "docs" / "status.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    if state == PENDING:
        fake.states = [JobStatus(PENDING, "Resources", expected=time.time() + 60)]
        assert main(["submit", "--name", "run", "--quiet", "--", "x"]) == 0
        capsys.readouterr()
    else:
        recordedruns.make(rough_path / "run", workers=2, ps=1, gpus=1, minutes=0.5, state=state)
    assert main(["status", "--json", "run" if state == PENDING else str(rough_path / "run")]) == 0
    view = json.loads(capsys.readouterr().out)
    validator.validate(view)
    assert view["state"] == state
    wrong = {**view, "tasks": [{"name": 1}]}
    assert not validator.is_valid(wrong)


def test_cancel_reports_a_job_that_does_not_end(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    assert main(["submit", "--name", "stubborn", "--kill-grace", "0", "--", "x"]) == 0
    monkeypatch.setattr(fake, "cancel", lambda submitted, force=False: None)
    monkeypatch.setattr(gridtf.login.cancelling, "_MARGIN", 0.0)
    capsys.readouterr()
    assert main(["cancel", "stubborn"]) == 1
    waits, *lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"gridtf: what had not ended was killed; waiting until \S+ for 1 job to end: 101", waits)
    assert lines == ["gridtf: job 101 was cancelled, but is still RUNNING", "  to check again: gridtf status 101"]


def test_cancel_takes_several_jobs_and_a_refusal_of_one_does_not_spare_the_others(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    for name in ("a", "b", "c"):
        assert main(["submit", "--name", name, "--", "x"]) == 0
    real = fake.cancel

    def cancel(job: JobIdentity, *, force: bool = False) -> None:
        if job.job_id == "101":
            raise SchedulerError("it runs elsewhere")
        real(job, force=force)

    def query(jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        states = {job.job_id: CANCELLED if job.job_id in fake.cancelled else RUNNING for job in jobs}
        return {name: JobStatus(state, purged=state == CANCELLED) for name, state in states.items()}

    monkeypatch.setattr(fake, "cancel", cancel)
    monkeypatch.setattr(fake, "query", query)
    capsys.readouterr()
    assert main(["cancel", "a", "b", "nothing"]) == 2
    assert "gridtf: no job is called nothing\n  no job was cancelled\n" in capsys.readouterr().err
    assert fake.cancelled == []
    assert main(["cancel", "a", "b,103"]) == 1
    assert fake.cancelled == ["102", "103"]
    shown = capsys.readouterr()
    assert shown.err == "gridtf: job 101: it runs elsewhere\n"
    assert [line for line in shown.out.splitlines() if "CANCELLED" in line] == [
        "b (102): CANCELLED",
        "c (103): CANCELLED",
    ]
    assert main(["cancel", "b", "c", "--json"]) == 0
    assert [job["job_id"] for job in json.loads(capsys.readouterr().out)] == ["102", "103"]


def test_cancel_by_name_and_state_asks_first(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    for name in ("run-a", "run-b", "other", "run-c"):
        assert main(["submit", "--name", name, "--", "x"]) == 0

    def query(jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        ended = {name: JobStatus(CANCELLED, purged=True) for name in fake.cancelled}
        return {
            job.job_id: ended.get(job.job_id, JobStatus(RUNNING if job.job_id == "102" else PENDING)) for job in jobs
        }

    monkeypatch.setattr(fake, "query", query)
    capsys.readouterr()
    words = ["cancel", "--name", "run-*", "--state", "PENDING"]
    assert main(words) == 2
    assert "gridtf: nothing was cancelled: the question before it needs a terminal\n" in capsys.readouterr().err
    for answer, code in (("\n", 1), ("y\n", 0)):
        assert fake.cancelled == []
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        assert main(words) == code
        shown = capsys.readouterr()
        assert "Cancel 2 jobs? [y/N]\n" in shown.err
        assert [line.split()[:2] for line in shown.err.splitlines()[1:3]] == [["run-c", "104"], ["run-a", "101"]]
    assert sorted(fake.cancelled) == ["101", "104"]
    assert main([*words, "--yes"]) == 2
    assert capsys.readouterr().err.startswith("gridtf: no waiting or running job has such a name and state\n")
    assert main(["cancel", "--state", "R", "--yes", "--json"]) == 0
    assert [job["job_id"] for job in json.loads(capsys.readouterr().out)] == ["102"]
    for wrong in (["cancel"], ["cancel", "other", "--name", "o*"]):
        assert main(wrong) == 2
        assert "takes either JOB, or --name and --state" in capsys.readouterr().err
    assert main(["cancel", "--name", "o*", "--yes"]) == 0


def test_jobs_that_wait_are_cancelled_before_one_whose_hosts_they_would_get(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        assert main(["submit", "--name", name, "--", "x"]) == 0

    def query(jobs: Sequence[JobIdentity]) -> dict[str, JobStatus]:
        ended = {name: JobStatus(CANCELLED, purged=True) for name in fake.cancelled}
        return {
            job.job_id: ended.get(job.job_id, JobStatus(RUNNING if job.job_id == "101" else PENDING)) for job in jobs
        }

    monkeypatch.setattr(fake, "query", query)
    assert main(["cancel", "a", "b"]) == 0
    assert fake.cancelled == ["102", "101"]


def test_failed_cancel_leaves_no_cancelled_json(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    assert main(["submit", "--name", "far", "--", "x"]) == 0
    run = Job(capsys.readouterr().out.splitlines()[3].removeprefix("run directory  ")).run
    fake.refuses = "it runs elsewhere"
    assert main(["cancel", "far"]) == 1
    assert "it runs elsewhere" in capsys.readouterr().err
    assert not run.cancelled.exists()
