"""Readers of damaged records accept them, ignore them, or raise an error of one line.

What commands say of damaged run directories: test_damaged_runs.py. tests/recorded has a run of version 0.1.0.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridtf import contract
from gridtf.bootstrap.agent.agent import Agent
from gridtf.bootstrap.agent.exits import EXITS
from gridtf.bootstrap.agent.node import AgentSupervisor
from gridtf.bootstrap.judge.outcome import decide
from gridtf.bootstrap.judge.verdict import of_task
from gridtf.bootstrap.launcher.contact import TerminatedBySignal
from gridtf.bootstrap.launcher.hosts import HostMonitor
from gridtf.bootstrap.launcher.launcher import Launcher
from gridtf.bootstrap.plan import addresses, environment, rendezvous, versions
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.plan.placement import place
from gridtf.bootstrap.plan.rendezvous import AttemptPlan
from gridtf.bootstrap.wire import messages, stream
from gridtf.cli import main, show
from gridtf.errors import GridtfError, RendezvousError
from gridtf.features import membership
from gridtf.host import processes, procfs
from gridtf.host.gpus import GpuGrant
from gridtf.jobspec.spec import JobSpec
from gridtf.login.job import Job
from gridtf.observe import jobs, logerrors, logs, overview
from gridtf.run.rundir import Record, RunDir, write_record
from gridtf.schedulers import local
from gridtf.schedulers.agents import NEEDS_ENVIRONMENT, STOP_SIGNAL
from gridtf.schedulers.api import Allocation, Host
from gridtf.starters.joined.join import Joining
from gridtf.starters.joined.ranks import Member, assign_ranks
from tests.support import mutations
from tests.support.plans import resolved
from tests.support.streams import FakeLink, FakeListener, InlineRecorder
from tests.support.system import FakeSystem

RECORDED = Path(__file__).parents[1] / "recorded" / "run-0.1.0"
some = mutations.inputs(40, 60)
NONCE = json.loads((RECORDED / "attempt-1" / "plan.json").read_text())["nonce"]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    shutil.copytree(RECORDED, tmp_path / "digits")
    return RunDir(tmp_path / "digits")


# --- a run of 0.1.0


def test_run_of_version_0_1_0_is_readable(run: RunDir, capsys: Captured) -> None:
    assert main(["status", str(run.path)]) == 0
    out = capsys.readouterr().out
    assert "FAILED after 0 s\nwhy            worker:0 on n1: exit code 3\n" in out
    assert "worker:0  n1    FAILED   3      " in out
    assert "ps:0      n1    STOPPED  SIGTERM  " in out
    assert main(["logs", str(run.path)]) == 0
    assert "worker:0@n1 | ValueError: no data\n" in capsys.readouterr().out
    row = show.job_table([overview.row(*jobs.views([run]))]).splitlines()[1].split()
    assert row[:5] == ["digits", "25373.n1", "local", "FAILED", "3"]


def plan_anew(run: RunDir) -> None:
    """Write plan and rendezvous in this version's format: agents read no other."""
    spec = JobSpec.from_dict({**json.loads(run.job.read_text())["spec"], "fence": "off"})  # whose ports are not real
    request = resolved(spec)
    tasks = place(Allocation((Host("n1", 3, cpus=3),)), request)
    hosts = {"n1": "127.0.0.1"}
    AttemptPlan(run.attempt(1), NONCE, "7.n1", spec, request, hosts, tasks, "/usr/bin/python3", Path("/")).write()
    meeting = rendezvous.merge(tasks, {"n1": json.loads((run.attempt(1).path / "hosts" / "n1.json").read_text())})
    rendezvous.publish(run.attempt(1), "7.n1", NONCE, meeting)


# --- damage

Reader = Callable[[RunDir], object]


def survives(run: RunDir, path: Path, read: Reader, *, seed: int, count: int, record: Any = None) -> None:
    """Give a reader ``count`` damaged copies of a record: it may raise GridtfError only."""
    whole = json.loads(path.read_text()) if record is None else record
    chance, taken = random.Random(seed), 0
    path.write_text(json.dumps(whole))
    for _ in range(count):
        text = mutations.record(whole, chance)
        path.write_text(text)
        try:
            read(run)
            taken += 1
        except GridtfError as error:
            assert "\n" not in error.what
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}\n{text[:2000]}") from error
    path.write_text(json.dumps(whole))
    assert taken, "no copy was accepted"


def plan_of(run: RunDir) -> AttemptPlan:
    """The plan that plan_anew wrote."""
    return rendezvous.plan_of(json.loads(run.attempt(1).plan.read_text()), run.attempt(1))


def agent_supervisor_reads(run: RunDir) -> None:
    system = FakeSystem()

    def link_of(listener: Record, host: str, system: FakeSystem) -> FakeLink:
        stream.link_of(listener, host, system).close()
        return FakeLink(system)

    AgentSupervisor("n1", [str(run.path), "1", NONCE], system, link_of)._link()


def agent_finds_its_launcher(run: RunDir) -> None:
    system = FakeSystem()
    Agent("n1", run.attempt(1), NONCE, 0.001, system)._wait_for_link().close()


def task_reads(run: RunDir) -> None:
    told = {"TASK_TYPE": "worker", "TASK_INDEX": "0", "ATTEMPT": "1", "NONCE": NONCE, "RUN_DIR": str(run.path)}
    env = {f"GRIDTF_{name}": text for name, text in told.items()}
    contract.task({**env, "GRIDTF_RENDEZVOUS": str(run.attempt(1).rendezvous)})


def observer_reads(run: RunDir) -> None:
    """Read what status, wait, list and logs read."""
    for view in jobs.views([run]):
        show.as_json(view).encode()
        text = show.job(view, time.time()) + show.verdict(view, time.time()) + show.progress(view)
        (text + show.job_table([overview.row(view)])).encode(errors="surrogateescape")
    latest = run.latest()
    assert latest is not None
    list(logs.pieces(run, logs.Choice(script=True)))
    logerrors.errors(run, logs.Choice(script=True))
    assert Job(run.path).id is not None
    jobs.view(run)


RANK = {
    "nonce": NONCE,
    "host": "n1",
    "hostname": "n1",
    "address": "n1",
    "boot": "b",
    "pid": 7,
    "port": 4711,
    "granted": ["0", "1"],
    "step_gpus": 2,
    "cpus": [0, 1],
    "master_port": 4712,
}
ENDING = {"nonce": NONCE, "host": "n1", "what": "it went wrong", "why": "", "hint": "look"}
CANCELLED = {"user": "alice", "host": "n1", "time": 1.7e9}
RUNS = {"tasks": {"worker:0": {"state": "RUNNING", "started": 1.7e9}, "chief:0": {"state": "FAILED", "exit": 3}}}
STATE = {"nonce": NONCE, "host": "n1", "pid": 7, **RUNS, "over": False, "waits": "for GPUs", "beat": 4, "time": 1.7e9}
LISTENER = {"nonce": NONCE, "addresses": ["127.0.0.1", "::1"], "port": 4711, "secret": "5e" * 32}
STEP = Member(1, 2, "run-1")
SPEC = JobSpec(command=("true",), start_timeout=0.001)


def rank_1_finds(run: RunDir) -> None:
    listener, opened = run.attempt(1).listener, run.path / "join-run-1" / "opened.json"
    for path, record in ((listener, LISTENER), (opened, {"attempt": 1, "nonce": NONCE})):
        if not path.exists():
            write_record(path, record)
    _, _, reach = Joining(run, SPEC, resolved(SPEC), STEP, dict, FakeSystem())._find()
    stream.link_of(reach, "rank-1", FakeSystem()).close()


def rank_1_is_refused(run: RunDir) -> None:
    write_record(run.path / "join-run-1" / "opened.json", {"attempt": 1, "nonce": NONCE})
    with contextlib.suppress(RendezvousError):
        Joining(run, SPEC, resolved(SPEC), STEP, dict, FakeSystem())._find()


def joined_observer_reads(run: RunDir) -> None:
    """Read what status reads of tasks that joined."""
    run.attempt(1).verdict.unlink(missing_ok=True)
    observer_reads(run)


def launcher_is_signalled(run: RunDir) -> None:
    of = (FakeListener, InlineRecorder)
    launched = LaunchedJob(run, SPEC, resolved(SPEC), local.scheduler, "7", FakeSystem())
    Launcher(launched, *of).ending.interrupted(TerminatedBySignal(15))


def cancel_reads(run: RunDir) -> None:
    Job(run.path).cancel(wait=0)


@pytest.mark.parametrize(
    ("name", "read", "record"),
    [
        ("attempt-1/listener.json", agent_finds_its_launcher, LISTENER),
        ("attempt-1/listener.json", agent_supervisor_reads, LISTENER),
        ("cancelled.json", launcher_is_signalled, CANCELLED),
        ("join-run-1/opened.json", rank_1_finds, {"attempt": 1, "nonce": NONCE}),
        ("attempt-1/listener.json", rank_1_finds, LISTENER),
        ("attempt-1/ranks/error.json", rank_1_is_refused, ENDING),
        ("attempt-1/ranks/rank-0.json", joined_observer_reads, STATE),
        ("attempt-1/rendezvous.json", task_reads, None),
        ("submitted.json", cancel_reads, None),
        ("cancelled.json", observer_reads, CANCELLED),
        ("ended.json", observer_reads, None),
        ("attempt-1/stop.json", observer_reads, None),
    ],
)
@mutations.inputs(20, 60)  # each takes long
def test_damaged_records_raise_gridtf_errors_only(
    name: str, read: Reader, record: Any, run: RunDir, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = json.loads(run.submitted.read_text())["boot"]
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("", "n1", "", "", "")))
    monkeypatch.setattr(procfs, "boot_id", lambda: boot)
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(processes, "tell", lambda text: None)
    monkeypatch.setattr("gridtf.login.cancelling._MARGIN", 0.0)
    if read in (rank_1_finds, rank_1_is_refused, joined_observer_reads):
        (run.path / "join-run-1").mkdir()
        run.attempt(1).ranks.mkdir()
    if read is not observer_reads:
        plan_anew(run)
    if name in ("cancelled.json", "ended.json", "attempt-1/stop.json"):
        run.attempt(1).verdict.unlink()  # these records are read only without a verdict
    survives(run, run.path / name, read, seed=len(name), count=count, record=record)


# --- messages


def damaged(kind: str, content: Record, count: int, hear: Callable[[bytes], object]) -> None:
    """Send ``count`` damaged copies of a message: whoever hears them may raise GridtfError only."""
    chance, taken = random.Random(len(kind)), 0
    hear(json.dumps([kind, content]).encode())
    for _ in range(count):
        text = mutations.record([kind, content], chance)
        try:
            hear(text.encode())
            taken += 1
        except GridtfError as error:
            assert "\n" not in error.what
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}\n{text[:2000]}") from error
    assert taken, "no copy was accepted"


PUBLISHED = {
    "host": "n1",
    "hostname": "n1",
    "address": "127.0.0.1",
    "resolved": ["127.0.0.1"],
    "pid": 7,
    "ports": {"worker:0": 20001, "ps:0": 20002, "worker:1": 20003},
    "master_port": 20004,
    "gpus": {"worker:0": ["0"]},
    "tensorflow": {"worker:0": "2.21.0"},
}
GONE = {"what": "it was killed", "why": "", "hint": "by hand?", "signal": 15}
IDENTITY = {"host": "n1", "pid": 1234, "start": 1, "boot": "b", "began": 1.0, "checkpoint": True}


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (messages.HOST, PUBLISHED),
        (messages.STATE, {**STATE, "checkpoint": True}),
        (messages.STATE, {**STATE, "over": True, "gone": GONE}),
        (messages.GONE, GONE),
        (messages.ALIVE, {}),
    ],
)
@some
def test_damaged_messages_of_an_agent_raise_gridtf_errors_only(
    kind: str, content: Record, run: RunDir, count: int
) -> None:
    plan_anew(run)
    attempt, tasks = run.attempt(1), plan_of(run).tasks
    if kind == messages.HOST:
        content = {**content, "ports": {task.name: 20001 for task in tasks}}

    def hear(message: bytes) -> None:
        listener = FakeListener()
        system = FakeSystem()
        hosts = HostMonitor(attempt, listener, 30, system.sleep, system, ["n1"])
        hosts.listen()
        listener.say_raw("n1", message)
        hosts.read()
        json.dumps({"hosts": hosts.reports.records(hosts.hosts)})
        if hosts.reports.published:
            addresses.check(sorted(hosts.reports.published.items()))
            versions.differing(tasks, hosts.reports.published)
            rendezvous.merge(tasks, hosts.reports.published)
        outcome = decide(tasks, hosts.reports.tasks)
        if outcome.cause:
            of_task(outcome.cause, hosts.reports.tasks[outcome.cause.name], attempt).record(NONCE, 0, 1)
        membership.separate(tasks, hosts.reports.tasks)
        with contextlib.suppress(GridtfError):  # such as the reason in gone
            hosts.check()

    damaged(kind, content, count, hear)


@pytest.mark.parametrize(
    "kind", [messages.PLAN, messages.RENDEZVOUS, messages.LAUNCHER, messages.ENVIRONMENT, messages.STOP, messages.ALIVE]
)
@some
def test_damaged_messages_of_the_launcher_raise_gridtf_errors_only(kind: str, run: RunDir, count: int) -> None:
    """The agent lives from its start to its stop, with one damaged message among those that it gets."""
    plan_anew(run)
    attempt, plan = run.attempt(1), plan_of(run)
    write_record(attempt.listener, LISTENER)
    meeting = rendezvous.merge(plan.tasks, {"n1": {**PUBLISHED, "ports": {task.name: 20001 for task in plan.tasks}}})
    told: dict[str, tuple[float, Record]] = {
        messages.ENVIRONMENT: (0.0, {"environ": {"PATH": "/bin", "A": "b"}}),
        messages.LAUNCHER: (0.1, IDENTITY),
        messages.PLAN: (1.0, plan.of_host("n1").to_record()),
        messages.RENDEZVOUS: (5.0, meeting.to_record()),
        messages.ALIVE: (6.0, {}),
        messages.STOP: (8.0, {"state": "FAILED", "reason": "x", "task": "worker:0"}),
    }

    def hear(message: bytes) -> None:
        system = FakeSystem({"TMPDIR": str(run.path), NEEDS_ENVIRONMENT: "1"})
        link = FakeLink(system)
        link.say_raw(message)
        link.receive()
        for name, (when, content) in told.items():
            if name == kind:
                system.at(when, lambda: link.say_raw(message))
            else:
                system.at(when, lambda name=name, content=content: link.say(name, content))  # type: ignore[misc]
        system.at(20.0, lambda: system.receive(STOP_SIGNAL))
        agent = Agent("n1", attempt, NONCE, 10.0, system, lambda name: local.scheduler, link_of=link.of)
        assert agent.main(GpuGrant((), ())) in (0, *EXITS)

    damaged(kind, told[kind][1], count, hear)


@pytest.mark.parametrize(("kind", "content"), [(messages.RANK, RANK), (messages.ERROR, ENDING)])
@some
def test_damaged_messages_of_a_rank_raise_gridtf_errors_only(
    kind: str, content: Record, run: RunDir, count: int
) -> None:
    tasks = assign_ranks(SPEC, 2)

    def hear(message: bytes) -> None:
        listener = FakeListener()
        joining = Joining(run, SPEC, resolved(SPEC), Member(0, 2, "run-1"), lambda: dict(RANK), FakeSystem())
        listener.say("rank-1", messages.RANK, {**RANK, "port": 4713})
        listener.say_raw("rank-1", message)
        with contextlib.suppress(RendezvousError) if kind == messages.ERROR else contextlib.nullcontext():
            joining._gather(run.attempt(1), NONCE, tasks, "7", listener)

    damaged(kind, content, count, hear)


@pytest.mark.parametrize("kind", [messages.PLAN, messages.RENDEZVOUS, messages.ERROR])
@some
def test_damaged_messages_of_rank_0_raise_gridtf_errors_only(kind: str, run: RunDir, count: int) -> None:
    plan_anew(run)
    attempt, plan = run.attempt(1), plan_of(run)
    meeting = rendezvous.merge(plan.tasks, {"n1": {**PUBLISHED, "ports": {task.name: 20001 for task in plan.tasks}}})
    told: dict[str, Record] = {
        messages.PLAN: plan.of_host("n1").to_record(),
        messages.RENDEZVOUS: {**meeting.to_record(), "gpus": {task.name: ["0"] for task in plan.tasks}},
    }

    def hear(message: bytes) -> None:
        system = FakeSystem()
        link = FakeLink(system)
        link.cut("nobody listens there")
        if kind == messages.ERROR:
            link.say_raw(message)
        for name, content in told.items():
            link.say_raw(message) if name == kind else link.say(name, content)
        joining = Joining(run, SPEC, resolved(SPEC), STEP, dict, system)
        with contextlib.suppress(RendezvousError) if kind == messages.ERROR else contextlib.nullcontext():
            its_plan, shares, its_meeting = joining._answer(attempt, NONCE, link)
            for task in its_plan.tasks:
                environment.task_environment({}, its_plan, task, its_meeting, shares.get(task.name, ()))
                environment.command(its_plan, task, its_meeting, Path("/gridtf"), Path("/package"))

    damaged(kind, told.get(kind, {**ENDING, "host": "n1"}), count, hear)


@some
def test_damaged_rendezvous_text_raises_gridtf_errors_only(run: RunDir, count: int) -> None:
    """Tasks read it where it does not fit into TF_CONFIG."""
    plan_anew(run)
    path, chance = run.attempt(1).rendezvous, random.Random(7)
    whole, taken = path.read_text(), 0
    for _ in range(count):
        at, odd = chance.randrange(len(whole)), chance.choice(("", "[", "}", '"', "\n", "1", "é", "null", "\\ud800"))
        path.write_text(whole[:at] + odd + whole[at + chance.choice((0, 1, 20)) :])
        with contextlib.suppress(GridtfError):
            task_reads(run)
            taken += 1
    assert 0 < taken < count
