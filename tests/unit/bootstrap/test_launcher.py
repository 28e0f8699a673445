"""The life of an attempt as the launcher decides it: with a clock that the test moves and agents that only pretend."""

from __future__ import annotations

import copy
import errno
import itertools
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.bootstrap.launcher.launcher import Launcher, supervise
from gridtf.bootstrap.launcher.reporter import progress_interval
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.plan.rendezvous import plan_of
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.errors import CleanedUpError, GridtfError, PlacementError, SchedulerError, TerminatedError
from gridtf.features.exec import InLauncher
from gridtf.features.stalls import DUMP, STACKS
from gridtf.jobspec.request import Request
from gridtf.run import jsonlines, recordtypes, rundir
from gridtf.run.rundir import Record, RunDir, cannot, read_record, write_record, write_text
from gridtf.schedulers.agents import StartedAgents
from gridtf.schedulers.api import (
    AgentCall,
    AgentEnd,
    AgentHandle,
    Allocation,
    Host,
    JobIdentity,
    JobStatus,
    Parent,
    Wait,
)
from gridtf.schedulers.local import LocalScheduler
from gridtf.schedulers.local.injob import LocalInJob
from gridtf.states import JobState
from tests.support.plans import job, resolved
from tests.support.states import PREEMPTED, RUNNING, TIMEOUT
from tests.support.streams import FakeListener, InlineRecorder
from tests.support.system import FakeSystem

LOOPBACK = "127.0.0.1"


class FakeAgent:
    """An AgentHandle whose agent ends with exit code 0 when it is terminated, unless `obeys` is False."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.end: AgentEnd | None = None
        self.terminated = self.killed = 0
        self.obeys = True

    def poll(self) -> AgentEnd | None:
        return self.end

    def terminate(self) -> None:
        self.terminated += 1
        if self.obeys:
            self.end = self.end or AgentEnd(0, self.host)

    def kill(self) -> None:
        self.killed += 1
        self.end = self.end or AgentEnd(-9, self.host)


class FakeCluster(LocalInJob):
    """Hosts of these names on the loopback device; the test sets what it reports about the end of the job."""

    last_warnings = frozenset({int(signal.SIGUSR2)})

    def __init__(self, hosts: Sequence[str]) -> None:
        super().__init__(LocalScheduler())
        vars(self.scheduler)["injob"] = self  # the half that it shows
        self.scheduler.login.cancel = self.cancel  # type: ignore[method-assign]
        self.agents = {host: FakeAgent(host) for host in hosts}
        self.waits: list[tuple[str, float]] = []
        self.refusal: GridtfError | None = None
        self.status: JobStatus | None = None
        self.lost_parent = ""
        self.cancelled: list[str] = []
        self.ends: float | None = None  # when the walltime is over, in seconds since the epoch
        self.forbidden = ""  # why a job is not started again
        self.refuses = ""  # what it says when it is asked to
        self.restarted = 0

    def end_of_job(self, environ: Mapping[str, str], request: Request, started: float) -> float | None:
        return self.ends

    def why_not_again(self, environ: Mapping[str, str]) -> str:
        return self.forbidden

    def start_again(self, environ: Mapping[str, str]) -> int | None:
        if self.refuses:
            raise SchedulerError(self.refuses)
        self.restarted += 1
        return 99

    def allocation(self, environ: Mapping[str, str], request: Request, wait: Wait) -> Allocation:
        for why, seconds in self.waits:
            wait(why, seconds)
        if self.refusal:
            raise self.refusal
        return Allocation(tuple(Host(name, 4, 0, 4, LOOPBACK) for name in self.agents))

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        return list(self.agents.values())

    def termination_reason(self, environ: Mapping[str, str], parent: Parent) -> JobStatus | None:
        return self.status

    def parent_lost(self, parent: Parent) -> str:
        return self.lost_parent

    def cancel(self, job: JobIdentity, *, force: bool = False) -> None:
        self.cancelled.append(job.job_id)


class Attempt:
    """A launcher with its hosts, which by default publish a second after the plan, and run their tasks from then on.

    states: host -> task -> record. quiet: hosts of which nothing more comes. skew: host -> seconds that its clock
    is ahead.
    """

    def __init__(self, folder: Path, hosts: Sequence[str] = ("h0", "h1"), **spec: Any) -> None:
        self.run = RunDir(folder / "run")
        self.run.path.mkdir()
        self.system = FakeSystem()
        self.cluster = FakeCluster(hosts)
        self.spec = job(**{"tasks": {"worker": {"count": len(hosts)}}, "kill_grace": 1.0, **spec})
        request = resolved(self.spec).replace(mpi=self.spec.mpi or "")
        of = (self._listener_of, self._recorder_of)
        launched = LaunchedJob(self.run, self.spec, request, self.cluster.scheduler, "4711", self.system)
        self.launcher = Launcher(launched, *of)
        self.attempt, self.nonce = self.launcher.attempt, self.launcher.nonce
        self.states: dict[str, dict[str, Record]] = {host: {} for host in hosts}
        self.more: dict[str, Record] = {host: {} for host in hosts}
        self.published: Record = {}
        self.late: set[str] = set()
        self.quiet: set[str] = set()
        self.skew: dict[str, float] = dict.fromkeys(hosts, 0.0)  # what the clock of a host is ahead
        self._held = 0.0  # until when news do not come
        self._said: dict[str, Record] = {}
        self.system.at(1.0, self._publish)
        self.system.every(0.5, self._report)

    def _listener_of(self, secret: bytes, system: System) -> FakeListener:
        self.listener = FakeListener(secret, system)
        return self.listener

    def _recorder_of(self, system: System) -> InlineRecorder:
        self.recorder = InlineRecorder(system)
        return self.recorder

    def _publish(self) -> None:
        plans = {host: self.listener.told(host, messages.PLAN) for host in self.states}
        if not all(plans.values()):
            self.system.at(0.1, self._publish)
            return
        for host in sorted(set(plans) - self.late):
            mine = plan_of(plans[host] or {}, self.attempt).tasks
            ports = {task.name: 20000 + number for number, task in enumerate(mine)}
            record = {"host": host, "hostname": host, "address": host, "pid": 1, "ports": ports, "master_port": 30000}
            self.listener.say(host, messages.HOST, {**record, "gpus": {}, **self.published})
            for task in mine:
                self.states[host].setdefault(task.name, state("RUNNING"))

    def _report(self) -> None:
        started = self.listener.told("*", messages.LAUNCHER) is not None
        for host in sorted(set(self.states) - self.quiet) if started and self.system.clock >= self._held else ():
            for task in self.states[host].values() if self.cluster.agents[host].terminated else ():
                task["state"] = "STOPPED" if task["state"] == "RUNNING" else task["state"]
            record = {"host": host, "pid": 1, "tasks": self.states[host], "over": False, **self.more[host]}
            if record == self._said.get(host):
                self.listener.say(host, messages.ALIVE)
            else:
                self._said[host] = copy.deepcopy(record)
                self.listener.say(host, messages.STATE, {**record, "time": self.system.wall + self.skew[host]})

    @property
    def told_to_save(self) -> bool:
        """Whether the agents have been asked for a checkpoint."""
        return bool((self.listener.told("*", messages.LAUNCHER) or {}).get("checkpoint"))

    @property
    def phases(self) -> list[str]:
        """What the launcher's record has said so far."""
        details = (json.loads(text)["detail"] for path, text in self.recorder.written if path == self.attempt.launcher)
        return [detail for detail, _ in itertools.groupby(details)]

    def task(self, host: str, name: str, value: str, seconds: float = 5.0, **more: Any) -> None:
        """The host reports this state of the task after some seconds."""

        def change() -> None:
            self.states[host][name] = state(value, ended=self.system.wall + self.skew[host], **more)

        self.system.at(seconds, change)

    def late_news(self, seconds: float) -> None:
        """Let what the hosts report come so much later."""
        self._held = self.system.clock + seconds

    def noted(self, host: str, name: str, **exception: Any) -> None:
        """The hook of a task that runs on has noted an exception."""
        self.states[host][name].update(pid=7, exception={"time": self.system.wall, **exception})

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        self.system.at(seconds, action)

    def launch(self) -> tuple[int, Record]:
        code = supervise(self.launcher)
        verdict = read_record(self.attempt.verdict)
        assert verdict is not None
        return code, verdict


def state(value: str, **more: Any) -> Record:
    return {"state": value, "pid": 7, "started": 1.0, "ended": None, "exit": None, "signal": None, **more}


def seconds(attempt: Attempt, begin: float = 1000.0) -> float:
    return attempt.system.clock - begin


def test_job_completes_when_all_tasks_exit_with_0(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.task("h0", "worker:0", "COMPLETED", 5, exit=0)
    attempt.task("h1", "worker:1", "COMPLETED", 8, exit=0)
    code, verdict = attempt.launch()
    assert (code, verdict["state"], verdict["cause"], verdict["exit_code"]) == (0, "COMPLETED", None, 0)
    assert 8 <= seconds(attempt) < 10
    meeting = read_record(attempt.attempt.rendezvous, nonce=attempt.nonce) or {}
    assert meeting["cluster"] == {"worker": ["h0:20000", "h1:20000"]}
    assert [agent.terminated for agent in attempt.cluster.agents.values()] == [1, 1]
    waiting = ["waiting for 2 hosts", "rendezvous: 0 of 2 hosts, waiting for h0, h1"]
    assert attempt.phases[:4] == ["learning the allocation", *waiting, "2 tasks on 2 hosts"]
    assert (attempt.listener.told("h0", messages.STOP) or {})["state"] == "COMPLETED"
    assert (read_record(attempt.attempt.stop) or {})["state"] == "COMPLETED"
    assert (read_record(attempt.attempt.launcher) or {})["phase"] == "ended"


def test_pythons_of_the_tasks_are_noted_each_once(tmp_path: Path) -> None:
    tasks = {"ps": {"count": 1}, "worker": {"count": 1}, "evaluator": {"count": 1, "command": ["other"]}}
    attempt = Attempt(tmp_path, command=("python", "train.py"), tasks=tasks)
    one = {"python": "/opt/bin/python", "version": "3.11", "packages": {"numpy": "2.0"}}
    attempt.system.installed = {"python": one, "other": {**one, "python": "/opt/bin/other"}}
    attempt.at(5, attempt.cluster.agents["h0"].kill)
    attempt.launch()
    known = read_record(attempt.attempt.packages, recordtypes.Packages, nonce=attempt.nonce) or {}
    found = {kind: python["python"] for kind, python in known["pythons"].items()}
    assert sorted(found.values()) == ["/opt/bin/other", "/opt/bin/python"]
    assert found["evaluator"] == "/opt/bin/other"


def test_verdict_is_told_and_the_next_attempt_gives_a_sign_of_life_as_soon_as_that_has_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(tmp_path, restarts=1)
    attempt.task("h0", "worker:0", "STOPPED")
    attempt.task("h1", "worker:1", "FAILED", exit=3)
    attempt.at(5, lambda: attempt.more.update(h0={"over": True}, h1={"over": True}))
    end = attempt.launcher.execute()
    told: list[Record] = []
    make = RunDir.new_attempt

    def new_attempt(run: RunDir) -> Any:
        told.extend(map(json.loads, attempt.attempt.events.read_text().splitlines()))
        return make(run)

    monkeypatch.setattr(RunDir, "new_attempt", new_attempt)
    end, following = attempt.launcher.follow(end)
    assert (told[-1]["event"], told[-1]["next"]) == ("verdict", 2)
    assert "FAILED: worker:1 on h1: exit code 3" in attempt.system.logged[-1]
    assert following is not None
    record = read_record(following.attempt.launcher) or {}
    assert (record["phase"], record["detail"]) == ("allocating", f"restart 1 of at most 1, after: {end.reason}")


def test_first_failure_is_the_cause_although_another_follows(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.task("h1", "worker:1", "FAILED", 5.0, exit=3)
    attempt.task("h0", "worker:0", "FAILED", 5.1, exit=1)
    code, verdict = attempt.launch()
    assert (code, verdict["state"], verdict["cause"]["task"], verdict["cause"]["exit"]) == (1, "FAILED", "worker:1", 3)
    assert "worker:1 on h1" in verdict["reason"]


@pytest.mark.parametrize("stage", [(), ("/data/x.tar",)])
def test_host_that_tells_how_far_it_stages_may_take_longer_than_the_start(
    tmp_path: Path, stage: tuple[str, ...]
) -> None:
    attempt = Attempt(tmp_path, start_timeout=20, stage=stage)
    attempt.late = {"h1"}
    for number in range(8, 40, 8):
        attempt.at(number, partial(attempt.more["h1"].update, waits=f"staging x: {number} of 40 MiB"))

    def publish() -> None:
        attempt.late.clear()
        attempt._publish()
        for host in ("h0", "h1"):
            attempt.task(host, f"worker:{host[1]}", "COMPLETED")

    attempt.at(40, publish)
    _, verdict = attempt.launch()
    if stage:
        assert verdict["state"] == "COMPLETED", verdict
        assert any("h1 (staging x: 16 of 40 MiB)" in phase for phase in attempt.phases), attempt.phases
    else:
        assert "no report from 1 host after 20 s" in verdict["reason"]


def test_missing_hosts_are_reported_with_what_they_wait_for(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0", "h1", "h2"), start_timeout=20)
    attempt.late = {"h1", "h2"}
    attempt.more["h1"] = {"waits": "waiting for 1 GPU"}
    code, verdict = attempt.launch()
    assert (code, verdict["state"]) == (1, "FAILED")
    assert verdict["reason"].startswith("no report from 2 hosts after 20 s: h1, h2 (their tasks: worker:1, worker:2)")
    assert "rendezvous: 1 of 3 hosts, waiting for h1 (waiting for 1 GPU), h2" in attempt.phases
    assert 20 <= seconds(attempt) < 25
    assert not attempt.attempt.rendezvous.exists()


def test_killed_agent_fails_the_job(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)

    def kill() -> None:
        attempt.cluster.agents["h1"].end = AgentEnd(-9, "h1")

    attempt.at(5, kill)
    _, verdict = attempt.launch()
    assert (verdict["state"], verdict["reason"]) == ("FAILED", "the agent on host h1 was killed by SIGKILL")
    assert (verdict["cause"]["host"], verdict["cause"]["signal"]) == ("h1", "SIGKILL")
    assert attempt.cluster.agents["h0"].terminated == 1
    assert seconds(attempt) < 8


def test_agent_that_cannot_start_is_explained_from_agents_log(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.attempt.agents_log.write_text("gridtf: agent on h0: cannot write x\ngridtf: agent on h1: not mine\n")
    attempt.cluster.agents["h0"].end = AgentEnd(74, "h0")
    _, verdict = attempt.launch()
    assert verdict["reason"] == "the agent on host h0 could not continue (cannot write x)"
    assert verdict["cause"]["tail"] == ["gridtf: agent on h0: cannot write x"]


def test_reason_in_the_host_record_is_the_verdict_s(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)

    def give_up() -> None:
        attempt.more["h1"] = {"gone": {"what": "too few GPUs", "why": "1 of 2", "hint": "ask for more"}}

    attempt.at(5, give_up)
    _, verdict = attempt.launch()
    assert (verdict["state"], verdict["reason"], verdict["hint"]) == ("FAILED", "too few GPUs (1 of 2)", "ask for more")


def test_hosts_with_the_same_address_on_the_chosen_network_end_the_job(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, interface="docker0")
    attempt.published = {"address": "172.17.0.1", "resolved": ["172.17.0.1"]}
    code, verdict = attempt.launch()
    assert (code, verdict["state"]) == (1, "FAILED")
    assert verdict["reason"] == "host h0 and host h1 have the same address 172.17.0.1"
    assert not attempt.attempt.rendezvous.exists()


def test_silent_host_is_node_fail(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, heartbeat_timeout=10)
    attempt.at(5, lambda: attempt.quiet.add("h1"))
    attempt.cluster.agents["h1"].obeys = False
    _, verdict = attempt.launch()
    assert (verdict["state"], verdict["reason"]) == ("NODE_FAIL", "no heartbeat from host h1 for 10 s")
    assert attempt.cluster.agents["h1"].killed == 1
    assert 15 <= seconds(attempt) < 40


def test_all_hosts_that_were_lost_are_named(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0", "h1", "h2", "h3"), heartbeat_timeout=10)
    for host in ("h1", "h3"):
        attempt.at(5, lambda host=host: attempt.quiet.add(host))  # type: ignore[misc]
        attempt.cluster.agents[host].obeys = False
    _, verdict = attempt.launch()
    assert verdict["state"] == "NODE_FAIL"
    assert verdict["reason"] == "no heartbeat from host h1 for 10 s (lost contact with 2 hosts: h1, h3)"


def test_all_hosts_that_were_lost_are_named_beside_the_one_that_another_task_missed(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0", "h1", "h2"), heartbeat_timeout=10)
    attempt.at(4, lambda: attempt.quiet.update(("h1", "h2")))
    victim = {**NOTED, "message": CLOSED, "time": attempt.system.wall + 6}
    attempt.task("h0", "worker:0", "FAILED", 6, exit=1, pid=7, exception=victim)
    _, verdict = attempt.launch()
    said = "lost contact with host h1, where worker:1 ran (lost contact with 2 hosts: h1, h2; worker:0 on h0: "
    assert verdict["reason"].startswith(said)


def test_crashed_host_is_reported_with_the_task_that_failed(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, heartbeat_timeout=10)
    attempt.at(4, lambda: attempt.quiet.add("h1"))
    attempt.task("h0", "worker:0", "FAILED", 6, exit=1)
    _, verdict = attempt.launch()
    assert verdict["cause"]["task"] == "worker:0"
    assert "lost contact with 1 host: h1" in verdict["reason"]


NOTED = {"type": "ValueError", "message": "bad label 11", "place": "train.py:41", "pid": 7}
CLOSED = "Collective ops is aborted by: Socket closed\nfrom remote target /job:worker/replica:0/task:1"


@pytest.mark.parametrize("skew", [0.0, 60.0, -60.0])
def test_first_cause_is_found_although_a_clock_is_wrong(skew: float, tmp_path: Path) -> None:
    """Without a correction, one of the two would be named whatever came first."""
    for first, second in (("h0", "h1"), ("h1", "h0")):
        (tmp_path / first).mkdir()
        attempt = Attempt(tmp_path / first)
        attempt.skew["h1"] = skew
        attempt.task(first, f"worker:{first[1]}", "FAILED", 5.0, exit=3)
        attempt.task(second, f"worker:{second[1]}", "FAILED", 5.4, exit=4)
        attempt.at(5.0, lambda attempt=attempt: attempt.late_news(0.5))  # type: ignore[misc]
        _, verdict = attempt.launch()
        assert verdict["reason"].startswith(f"worker:{first[1]} on {first}: exit code 3")


def test_program_that_raised_is_the_cause_although_it_was_stopped_before_it_ended(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.at(4, lambda: attempt.noted("h1", "worker:1", **NOTED))
    victim = {**NOTED, "message": CLOSED, "time": attempt.system.wall + 4.5}
    attempt.task("h0", "worker:0", "FAILED", 5, exit=1, pid=7, exception=victim)
    attempt.at(5, lambda: attempt.states["h1"]["worker:1"].update(state="STOPPED", signal="SIGTERM"))
    _, verdict = attempt.launch()
    assert verdict["state"] == "FAILED"
    assert verdict["reason"] == "worker:1 on h1: ValueError: bad label 11 (train.py:41)"


def test_member_that_exited_early_is_the_cause(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.task("h1", "worker:1", "COMPLETED", 4, exit=0)
    victim = {**NOTED, "type": "UnavailableError", "message": CLOSED, "time": attempt.system.wall + 4.5}
    attempt.task("h0", "worker:0", "FAILED", 5, exit=1, pid=7, exception=victim)
    _, verdict = attempt.launch()
    assert verdict["reason"] == (
        "worker:1 on h1 exited with 0 while others trained "
        "(worker:0 on h0: UnavailableError: Collective ops is aborted by: Socket closed (train.py:41))"
    )
    assert verdict["cause"]["task"] == "worker:1"


def test_member_on_a_host_that_is_silent_is_the_cause(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, heartbeat_timeout=10)
    attempt.at(4, lambda: attempt.quiet.add("h1"))
    victim = {**NOTED, "message": CLOSED, "time": attempt.system.wall + 6}
    attempt.task("h0", "worker:0", "FAILED", 6, exit=1, pid=7, exception=victim)
    _, verdict = attempt.launch()
    assert verdict["state"] == "NODE_FAIL"
    assert verdict["reason"].startswith("lost contact with host h1, where worker:1 ran (worker:0 on h0: ValueError: ")


MPIRUN_GONE = {"what": "mpirun, which the ranks need, ended with exit code 255", "why": "", "hint": ""}


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("abandoned", [False, True])
@pytest.mark.parametrize("told", [False, True])
def test_what_mpirun_has_lost_is_the_cause_and_not_what_it_has_ended(
    tmp_path: Path, lost: bool, abandoned: bool, told: bool
) -> None:
    """mpirun ends when it has lost a host, and the ranks end with it."""
    attempt = Attempt(tmp_path, ("h0", "h1", "h2"), heartbeat_timeout=10, mpi="mpirun")
    if lost:
        attempt.at(4, lambda: attempt.quiet.add("h2"))
    if told:
        attempt.at(5, lambda: attempt.more.update(h0={"gone": MPIRUN_GONE}))
    if abandoned or not told:
        more = {"abandoned": True} if abandoned else {}
        attempt.task("h1", "worker:1", "FAILED", 5, exit=195, **more)
    else:
        attempt.task("h1", "worker:1", "STOPPED", 5)
    for number in (0, 2):
        attempt.task(f"h{number}", f"worker:{number}", "STOPPED", 5)
    _, verdict = attempt.launch()
    state, reason = "FAILED", "worker:1 on h1: exit code 195"
    if lost and (abandoned or told):
        state, reason = "NODE_FAIL", "lost contact with host h2, where worker:2 ran"
    elif told:
        reason = MPIRUN_GONE["what"]
    assert (verdict["state"], verdict["reason"][: len(reason)]) == (state, reason)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_end_signal_cancels_the_job(number: signal.Signals, tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.at(5, lambda: attempt.system.receive(number))
    code, verdict = attempt.launch()
    assert (code, verdict["state"], verdict["reason"]) == (1, "CANCELLED", f"the launcher received {number.name}")
    assert [agent.terminated for agent in attempt.cluster.agents.values()] == [1, 1]


def test_request_for_a_checkpoint_is_passed_on_and_does_not_end_the_job(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",))
    seen: list[object] = []
    attempt.at(2, lambda: seen.append((read_record(attempt.attempt.launcher) or {}).get("checkpoint")))
    attempt.at(3, lambda: attempt.system.receive(signal.SIGUSR1))
    attempt.at(5, lambda: seen.append((read_record(attempt.attempt.launcher) or {}).get("checkpoint")))
    attempt.task("h0", "worker:0", "COMPLETED", 6, exit=0)
    assert attempt.launch()[1]["state"] == "COMPLETED"
    assert seen == [None, True]
    assert attempt.system.logged.count("a checkpoint was requested") == 1


CONTINUED = {"time": "1h", "checkpoint_before": "5m", "continuations": 2}


@pytest.mark.thorough
def test_checkpoint_is_requested_before_the_end_of_the_walltime(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",), **CONTINUED)
    attempt.cluster.ends = 5000.0 + 3600  # an hour after the beginning
    asked: list[float] = []
    attempt.system.every(1.0, lambda: None if not attempt.told_to_save else asked.append(seconds(attempt)))
    attempt.task("h0", "worker:0", "COMPLETED", 3500, exit=0)
    assert attempt.launch()[1]["state"] == "COMPLETED"
    assert 3300 <= asked[0] < 3304


def test_job_without_checkpoint_before_is_not_asked_to_save(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",))
    attempt.cluster.ends = 5010.0
    attempt.task("h0", "worker:0", "COMPLETED", 30, exit=0)
    assert attempt.launch()[1]["state"] == "COMPLETED"
    assert not attempt.told_to_save


def saves(attempt: Attempt, step: int | None = None) -> tuple[int, Record]:
    reported = {} if step is None else {"progress": {"step": step, "values": {}, "time": 1.0}}
    attempt.task("h0", "worker:0", "SAVED", 5, exit=42, **reported)
    return attempt.launch()


def test_job_that_has_saved_is_started_again(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",), **CONTINUED)
    code, verdict = saves(attempt, step=10)
    assert (code, attempt.cluster.restarted) == (99, 1)
    assert (verdict["state"], verdict["exit_code"], verdict["again"], verdict["hint"]) == ("SAVED", 42, True, "")
    assert verdict["reason"].endswith("to be continued; the local scheduler starts it again (1 of 2)")
    assert verdict["chain"] == {"links": 1, "idle": 0, "progress": {"step": 10}}


def test_job_that_may_not_be_started_again_can_be_resumed(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",), **CONTINUED)
    write_text(attempt.run.script, "gridtf_run\n")  # and no submitted.json: a short job can end before that is written
    attempt.cluster.forbidden = "Slurm must not requeue it"
    code, verdict = saves(attempt)
    assert (code, attempt.cluster.restarted, verdict["again"]) == (42, 0, False)
    assert verdict["reason"].endswith("to be continued; it is not started again: Slurm must not requeue it")
    assert verdict["hint"] == "to continue with its checkpoints: gridtf resume 4711"


def test_job_that_the_scheduler_refuses_to_start_again_has_a_verdict_that_says_so(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",), **CONTINUED)
    attempt.cluster.refuses = "Requested operation is presently disabled"
    code, verdict = saves(attempt)
    assert (code, verdict["state"], verdict["again"]) == (42, "SAVED", False)
    assert verdict["reason"].endswith("; it is not started again: Requested operation is presently disabled")
    assert verdict["hint"].endswith("gridtf resume 4711")


def test_verdict_is_written_although_nobody_knows_whether_the_job_can_go_on(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0", "h1"), **CONTINUED, leader_wait=10)
    attempt.cluster.why_not_again = {}.__getitem__  # type: ignore[method-assign, assignment]
    code, verdict = saves(attempt)
    assert (code, verdict["state"], verdict["again"]) == (42, "SAVED", False)
    late = "to be continued; worker:1 was still running 10 s later and was stopped"
    assert f"{late}; it is not started again: TypeError: unhashable" in verdict["reason"]


def test_job_that_failed_is_not_started_again(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",), **CONTINUED)
    attempt.task("h0", "worker:0", "FAILED", 5, exit=3)
    code, verdict = attempt.launch()
    assert (code, verdict["again"], attempt.cluster.restarted) == (1, False, 0)


def test_sigalrm_is_a_timeout(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.task("h0", "worker:0", "COMPLETED", 3, exit=0)
    attempt.at(5, lambda: attempt.system.receive(signal.SIGALRM))
    _, verdict = attempt.launch()
    assert verdict["state"] == "TIMEOUT"
    assert verdict["reason"] == "the walltime is over (worker:0 had exited with 0, worker:1 had not)"


def test_signal_while_waiting_for_the_allocation_cancels_the_job(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.cluster.waits = [("waiting for 2 GPUs", 30.0), ("waiting for 2 GPUs", 30.0)]
    attempt.at(40, lambda: attempt.system.receive(signal.SIGTERM))
    _, verdict = attempt.launch()
    assert verdict["state"] == "CANCELLED"
    assert attempt.system.logged.count("waiting for 2 GPUs") == 1
    assert attempt.phases[:2] == ["learning the allocation", "waiting for 2 GPUs"]


def test_cancelling_user_is_read_from_cancelled_json(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    cancelled = {"user": "alice", "host": "login1", "time": 1.0}
    attempt.at(5, lambda: write_record(attempt.run.cancelled, cancelled))
    attempt.at(5, lambda: attempt.system.receive(signal.SIGTERM))
    _, verdict = attempt.launch()
    assert (verdict["state"], verdict["reason"]) == ("CANCELLED", "cancelled by alice on login1")


def test_srun_that_a_cancellation_ends_before_the_launcher_is_no_failure(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.late = attempt.quiet = {"h1"}
    attempt.at(5, lambda: write_record(attempt.run.cancelled, {"user": "alice", "host": "login1", "time": 1.0}))
    error = GridtfError("srun, which had started the agents, was killed by SIGTERM")
    attempt.at(5.5, lambda: setattr(attempt.cluster.agents["h1"], "end", AgentEnd(-15, None, (), error)))
    _, verdict = attempt.launch()
    assert (verdict["state"], verdict["reason"]) == ("CANCELLED", "cancelled by alice on login1")


@pytest.mark.parametrize(
    ("status", "state_", "reason", "again"),
    [
        (JobStatus(PREEMPTED, "by job 12", requeued=True), "PREEMPTED", "by job 12", True),
        (JobStatus(TIMEOUT), "TIMEOUT", "the scheduler reports TIMEOUT", False),
        (JobStatus(RUNNING), "CANCELLED", "the launcher received SIGTERM", False),
        (None, "CANCELLED", "the launcher received SIGTERM", False),
    ],
)
def test_termination_reason_of_the_scheduler_is_the_verdict(
    status: JobStatus | None, state_: str, reason: str, again: bool, tmp_path: Path
) -> None:
    attempt = Attempt(tmp_path)
    attempt.cluster.status = status
    attempt.at(5, lambda: attempt.system.receive(signal.SIGTERM))
    _, verdict = attempt.launch()
    assert (verdict["state"], verdict["again"]) == (state_, again)
    assert verdict["reason"].startswith(reason)


def test_job_that_the_scheduler_deletes_since_an_agent_was_killed_has_failed(tmp_path: Path) -> None:
    """Grid Engine's warning may be here before the end of qrsh."""
    attempt = Attempt(tmp_path)
    attempt.cluster.status = JobStatus(JobState.CANCELLED, "deleted with qdel")
    attempt.late = attempt.quiet = {"h1"}
    attempt.at(5, lambda: attempt.system.receive(signal.SIGUSR2))
    error = GridtfError("the process that started the agent on host h1 was killed")
    attempt.at(5.5, lambda: setattr(attempt.cluster.agents["h1"], "end", AgentEnd(129, "h1", (), error)))
    _, verdict = attempt.launch()
    assert (verdict["state"], verdict["reason"]) == ("FAILED", error.what)


def test_job_that_is_cleaned_up_after_its_earlier_start_starts_once_more_by_itself(tmp_path: Path) -> None:
    """Slurm requeues a job that has lost a host, starts it as soon as that is back, and only then ends the first start
    there. The job has no --restarts."""
    attempt = Attempt(tmp_path)
    attempt.cluster.status = JobStatus(JobState.NODE_FAIL, "h1 has failed", requeued=True)
    attempt.at(5, lambda: attempt.system.receive(signal.SIGTERM))
    attempt.launch()
    attempt.cluster.agents["h1"].end = AgentEnd(
        137, "h1", (), CleanedUpError("all of the job there was killed", host="h1")
    )
    made = attempt.launcher
    supervise(Launcher(made.job, made.listener_of, made.recorder_of))
    second, third = (read_record(attempt.run.attempt(number).verdict) or {} for number in (2, 3))
    assert (second["next"], second["reason"]) == (
        3,
        "all of the job there was killed (attempt 1 was NODE_FAIL: h1 has failed (lost contact with 2 hosts: h0, h1); "
        "attempt 3 follows)",
    )
    assert third["state"] == "FAILED"  # for it comes to nothing here
    assert len(attempt.run.attempts()) == 3


def test_limit_that_the_scheduler_announces_is_no_reason_without_its_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grid Engine's answer is the same whether a time limit is reached or a user has sent a signal."""
    monkeypatch.setattr(FakeCluster, "announces_limits", True)
    found = {}
    for number in (signal.SIGUSR2, signal.SIGTERM):
        (tmp_path / number.name).mkdir()
        attempt = Attempt(tmp_path / number.name)
        attempt.cluster.status = JobStatus(TIMEOUT, "the walltime is over (h_rt)")
        attempt.at(5, partial(attempt.system.receive, number))
        found[number] = attempt.launch()[1]["reason"]
    (tmp_path / "agent").mkdir()
    attempt = Attempt(tmp_path / "agent")
    attempt.cluster.status = JobStatus(TIMEOUT, "the walltime is over (h_rt)")
    attempt.at(5, lambda: attempt.more.update(h0=gone_by(signal.SIGTERM)))
    agent = attempt.launch()[1]["reason"]
    assert found == {
        signal.SIGUSR2: "the walltime is over (h_rt)",
        signal.SIGTERM: "the launcher received SIGTERM",
    }
    assert agent.startswith("the agent on host h0 received SIGTERM")


def gone_by(number: int) -> Record:
    return {"gone": {"what": "received a signal", "why": "", "hint": "", "signal": int(number)}}


def test_verdict_is_open_when_agents_were_signalled_and_the_scheduler_gives_no_reason(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.at(5, lambda: attempt.more.update(h0=gone_by(signal.SIGTERM), h1=gone_by(signal.SIGTERM)))
    _, verdict = attempt.launch()
    assert verdict["state"] == "FAILED"
    assert verdict["again"] is None  # only the scheduler knows
    assert verdict["reason"].startswith("the agents on hosts h0, h1 received SIGTERM")


def test_step_that_was_cancelled_is_the_reason_although_agents_report_its_signal_first(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    error = TerminatedError("the agents' job step 7.0 was cancelled")
    attempt.at(5, lambda: attempt.more.update(h0=gone_by(signal.SIGTERM)))
    attempt.at(6, lambda: setattr(attempt.cluster.agents["h0"], "end", AgentEnd(-signal.SIGTERM, None, (), error)))
    assert attempt.launch()[1]["reason"].startswith("the agents' job step 7.0 was cancelled")


def test_signal_to_the_launcher_after_signals_to_agents_cancels_the_job(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.at(5, lambda: attempt.more.update(h0=gone_by(signal.SIGTERM)))
    attempt.at(6, lambda: attempt.system.receive(signal.SIGTERM))
    assert attempt.launch()[1]["reason"] == "the launcher received SIGTERM"


LED = {"chief": {}, "worker": {"count": 1}, "ps": {"count": 1}}


def test_tasks_have_leader_wait_after_the_leader(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",), tasks=LED, leader_wait=30)
    attempt.task("h0", "chief:0", "COMPLETED", 5, exit=0)
    _, verdict = attempt.launch()
    assert verdict["state"] == "COMPLETED"
    assert 35 <= seconds(attempt) < 40
    assert any("chief:0 ended, waiting for worker:0 for at most 30 s, until " in detail for detail in attempt.phases)


def test_task_failure_within_leader_wait_fails_the_job(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",), tasks=LED, leader_wait=30)
    attempt.task("h0", "chief:0", "COMPLETED", 5, exit=0)
    attempt.task("h0", "worker:0", "FAILED", 20, exit=4)
    _, verdict = attempt.launch()
    assert (verdict["state"], verdict["cause"]["task"]) == ("FAILED", "worker:0")


def test_job_that_was_saved_ends_with_42_when_the_last_task_has_saved(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, leader_wait=30)
    attempt.task("h1", "worker:1", "SAVED", 5, exit=42)
    attempt.task("h0", "worker:0", "SAVED", 20, exit=42)
    code, verdict = attempt.launch()
    assert (code, verdict["state"], verdict["exit_code"], verdict["cause"]) == (42, "SAVED", 42, None)
    assert 20 <= seconds(attempt) < 23
    assert any("worker:1 saved a checkpoint, waiting for worker:0 for at most 30 s" in text for text in attempt.phases)
    assert (read_record(attempt.attempt.stop) or {})["state"] == "SAVED"


def test_task_that_does_not_save_in_time_is_stopped(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, leader_wait=30)
    attempt.task("h0", "worker:0", "SAVED", 5, exit=42)
    code, verdict = attempt.launch()
    assert (code, verdict["state"]) == (42, "SAVED")
    assert verdict["reason"].endswith("worker:1 was still running 30 s later and was stopped")
    assert 35 <= seconds(attempt) < 40


def test_leader_that_does_not_save_in_time_fails_the_job(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, leader_wait=30)
    attempt.task("h1", "worker:1", "SAVED", 5, exit=42)
    code, verdict = attempt.launch()
    assert (code, verdict["state"]) == (1, "FAILED")
    assert "but worker:0 was still running 30 s later" in verdict["reason"]


def test_failure_after_another_task_has_saved_tells_of_both(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.task("h0", "worker:0", "SAVED", 5, exit=42)
    attempt.task("h1", "worker:1", "FAILED", 6, exit=3)
    code, verdict = attempt.launch()
    assert (code, verdict["state"], verdict["cause"]["task"]) == (1, "FAILED", "worker:1")
    assert verdict["reason"] == "worker:1 on h1: exit code 3 (worker:0 had saved a checkpoint (exit code 42))"


def test_evaluator_is_stopped_after_evaluator_wait(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",), tasks={"worker": {"count": 1}, "evaluator": {}}, evaluator_wait=20)
    attempt.task("h0", "worker:0", "COMPLETED", 5, exit=0)
    _, verdict = attempt.launch()
    assert verdict["state"] == "COMPLETED"
    assert 25 <= seconds(attempt) < 30
    assert any("training has ended; waiting for evaluator:0" in detail for detail in attempt.phases)


def test_evaluator_that_finishes_ends_evaluator_wait(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",), tasks={"worker": {"count": 1}, "evaluator": {}}, evaluator_wait=3600)
    attempt.task("h0", "worker:0", "COMPLETED", 5, exit=0)
    attempt.task("h0", "evaluator:0", "COMPLETED", 9, exit=0)
    assert attempt.launch()[1]["state"] == "COMPLETED"
    assert seconds(attempt) < 11


def test_tasks_that_train_separately_are_reported_after_a_minute_and_in_the_verdict(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    begin = {name: state("RUNNING", tensorflow="loaded") for name in ("worker:0", "worker:1")}
    attempt.at(2, lambda: attempt.states.update(h0={"worker:0": begin["worker:0"]}, h1={"worker:1": begin["worker:1"]}))
    seen: list[int] = []
    attempt.at(58, lambda: seen.append(sum("has joined" in detail for detail in attempt.phases)))
    attempt.task("h0", "worker:0", "COMPLETED", 100, exit=0, tensorflow="loaded")
    attempt.task("h1", "worker:1", "COMPLETED", 101, exit=0, tensorflow="loaded")
    code, verdict = attempt.launch()
    running = "2 workers have loaded TensorFlow or JAX, and none has joined the cluster so far"
    assert seen == [0]
    assert f"{running}; 2 tasks on 2 hosts" in attempt.phases
    assert [line.split("\n")[0] for line in attempt.system.logged].count(running) == 1
    separately = "2 workers trained separately: none joined the cluster"
    assert (code, verdict["state"]) == (0, "COMPLETED")
    assert verdict["reason"] == f"all training tasks have exited with 0; {separately}"
    assert "MultiWorkerMirroredStrategy for a loop" in verdict["hint"]
    assert separately in attempt.system.logged[-1]


def test_different_versions_of_tensorflow_are_in_status_log_and_the_verdict_on_a_failure(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.published = {"tensorflow": {"worker:0": "2.21.0", "worker:1": ""}}
    attempt.task("h0", "worker:0", "STOPPED", 5, signal="SIGTERM")
    attempt.task("h1", "worker:1", "FAILED", 5, exit=1)
    _, verdict = attempt.launch()
    differ = "hosts have different versions of TensorFlow: 2.21.0 on h0; none on h1"
    assert attempt.system.logged[0].splitlines()[0] == differ
    assert f"2 tasks on 2 hosts; {differ}" in attempt.phases
    assert verdict["reason"] == f"worker:1 on h1: exit code 1 ({differ})"


def test_memory_of_gpus_in_use_before_the_start_is_in_the_log_and_the_verdict_on_a_failure(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.published = {"gpus_in_use": {"0": 62802}}
    attempt.task("h0", "worker:0", "STOPPED", 5, signal="SIGTERM")
    attempt.task("h1", "worker:1", "FAILED", 5, exit=1)
    _, verdict = attempt.launch()
    in_use = "memory in use before the tasks started: 62802 MiB of GPU 0 on h0, 62802 MiB of GPU 0 on h1"
    assert attempt.system.logged[0].splitlines()[0] == in_use
    assert verdict["reason"] == f"worker:1 on h1: exit code 1 ({in_use})"


def test_a_cluster_that_does_not_fit_into_tf_config_ends_the_job_before_its_tasks_start(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.published = {"address": "x" * 66000}
    code, verdict = attempt.launch()
    assert (code, verdict["state"]) == (1, "FAILED")
    assert verdict["reason"].startswith("TF_CONFIG of worker:1 would have 132")
    assert "--env TF_CONFIG=" in verdict["hint"]
    assert not attempt.attempt.rendezvous.exists()


def test_placement_error_ends_the_job_at_once(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.cluster.refusal = PlacementError("too few hosts", why="1 of 2", hint="ask for more")
    code, verdict = attempt.launch()
    assert (code, verdict["state"], verdict["reason"]) == (1, "FAILED", "too few hosts (1 of 2)")
    assert [agent.terminated for agent in attempt.cluster.agents.values()] == [0, 0]
    assert seconds(attempt) == 0


def test_unexpected_exception_has_a_verdict_and_a_traceback_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(tmp_path)
    monkeypatch.setattr(attempt.cluster, "start_agents", lambda *_: 1 / 0)
    code, verdict = attempt.launch()
    assert (code, verdict["state"]) == (1, "FAILED")
    assert verdict["reason"] == "the launcher could not continue: division by zero"
    assert any("ZeroDivisionError" in text for text in attempt.system.logged)


def test_verdict_that_cannot_be_written_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path, ("h0",))
    attempt.task("h0", "worker:0", "COMPLETED", 5, exit=0)
    full = cannot("write", attempt.attempt.verdict, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def refuse(self: object, record: Record) -> None:
        raise full

    monkeypatch.setattr(rundir.Attempt, "write_verdict", refuse)
    assert supervise(attempt.launcher) == 1  # although the tasks have succeeded
    assert any(text.startswith("COMPLETED: ") for text in attempt.system.logged)
    assert str(full) in attempt.system.logged
    assert (read_record(attempt.attempt.launcher) or {})["phase"] != "ended"


def test_verdict_is_written_once_the_run_directory_is_writable_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(tmp_path, ("h0",))
    attempt.task("h0", "worker:0", "FAILED", 5, exit=3)
    write, begin = rundir.Attempt.write_verdict, attempt.system.monotonic()
    denied = cannot("write", attempt.attempt.verdict, OSError(errno.EACCES, os.strerror(errno.EACCES)))

    def write_later(self: rundir.Attempt, record: Record) -> None:
        if attempt.system.monotonic() < begin + 20:
            raise denied
        write(self, record)

    monkeypatch.setattr(rundir.Attempt, "write_verdict", write_later)
    _, verdict = attempt.launch()
    assert (verdict["state"], verdict["cause"]["task"]) == ("FAILED", "worker:0")
    assert str(denied) not in attempt.system.logged


def test_orphans_of_a_killed_agent_are_ended(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",))
    system = attempt.system
    polite, stubborn, immortal = (system.start(["orphan"], {}) for _ in range(3))
    system.stubborn, system.immortal = {stubborn, immortal}, {immortal}
    attempt.task("h0", "worker:0", "COMPLETED", 5, exit=0)
    _, verdict = attempt.launch()
    assert verdict["state"] == "COMPLETED"
    assert system.alive == {immortal}
    assert (polite, signal.SIGKILL) not in system.sent
    assert (stubborn, signal.SIGKILL) in system.sent
    assert f"processes survived SIGKILL: [{immortal}]" in system.logged


@pytest.mark.parametrize("how", [{"unheard": True}, {"signal": 15}])
def test_launcher_reports_that_it_was_stalled(how: Record, tmp_path: Path) -> None:
    """An agent ends by itself; and another one, which Slurm has ended for that, may be the only one that is heard."""
    attempt = Attempt(tmp_path, heartbeat_timeout=20)

    def stall() -> None:
        attempt.system.clock += 2 + 300  # in a pause
        attempt.more["h0"] = {"gone": {"what": "the agent on host h0 ended", "why": "", "hint": "", **how}}
        attempt._report()

    attempt.at(5, stall)
    _, verdict = attempt.launch()
    assert verdict["reason"].startswith("the launcher on host h0 was stalled for 300 s")


def test_stall_long_ago_is_not_why_agents_are_terminated(tmp_path: Path) -> None:
    """As of a job that was suspended."""
    attempt = Attempt(tmp_path, heartbeat_timeout=20)
    attempt.at(5, lambda: setattr(attempt.system, "clock", attempt.system.clock + 302))
    attempt.at(400, lambda: attempt.more["h0"].update(gone={"what": "x", "why": "", "hint": "", "signal": 15}))
    _, verdict = attempt.launch()
    assert verdict["reason"] == "the agent on host h0 received SIGTERM (the scheduler gives no reason)"


def test_job_with_a_lost_parent_is_cancelled_at_its_end(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",))
    attempt.cluster.lost_parent = "the shepherd is gone"
    attempt.system.ppid = 1
    attempt.task("h0", "worker:0", "COMPLETED", 5, exit=0)
    _, verdict = attempt.launch()
    assert attempt.cluster.cancelled == ["4711"]
    assert "the shepherd is gone, so gridtf cancels the job" in verdict["reason"]


class Refusing:
    """Files that cannot be written between these seconds, for this reason."""

    def __init__(self, attempt: Attempt, number: int, begin: float, end: float) -> None:
        self.attempt, self.number = attempt, number
        self.begin, self.end = begin, end
        self._put = attempt.recorder.put
        attempt.recorder.put = self.put  # type: ignore[method-assign]

    def put(self, path: Path, text: str, mode: int) -> None:
        if self.begin <= seconds(self.attempt) < self.end:
            raise cannot("write", path, OSError(self.number, os.strerror(self.number)))
        self._put(path, text, mode)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_records_that_cannot_be_written_cost_the_running_job_nothing_else(number: int, tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",), heartbeat_timeout=10)
    attempt.task("h0", "worker:0", "COMPLETED", 60, exit=0)
    Refusing(attempt, number, 5, 45)
    code, verdict = attempt.launch()
    assert (code, verdict["state"]) == (0, "COMPLETED")
    assert sum(os.strerror(number) in text for text in attempt.system.logged) == 1
    assert sum("records can be written again, after" in text for text in attempt.system.logged) == 1
    assert any("records could not be written for some time from" in detail for detail in attempt.phases)
    summary = read_record(attempt.attempt.summary) or {}
    assert summary["hosts"]["h0"]["tasks"]["worker:0"]["state"] == "COMPLETED"


@pytest.mark.parametrize(("number", "ends"), [(errno.ENOSPC, False), (errno.EACCES, True)])
def test_rendezvous_file_that_cannot_be_written_is_tried_again_while_the_error_may_be_temporary(
    number: int, ends: bool, tmp_path: Path
) -> None:
    """Tasks read it, so the job cannot start without."""
    attempt = Attempt(tmp_path, ("h0",))
    attempt.task("h0", "worker:0", "COMPLETED", 20, exit=0)
    Refusing(attempt, number, 0.5, 8)
    _, verdict = attempt.launch()
    assert verdict["state"] == ("FAILED" if ends else "COMPLETED")
    assert attempt.attempt.rendezvous.exists() != ends
    assert (attempt.listener.told("h0", messages.RENDEZVOUS) is None) == ends
    if ends:
        assert verdict["reason"].startswith(f"cannot write {attempt.attempt.rendezvous}")


def test_agent_that_closed_its_connection_and_does_not_return_is_node_fail(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, heartbeat_timeout=60)

    def cut() -> None:
        attempt.quiet.add("h1")
        attempt.listener.lost["h1"] = attempt.system.clock

    attempt.at(5, cut)
    attempt.cluster.agents["h1"].obeys = False
    _, verdict = attempt.launch()
    assert verdict["state"] == "NODE_FAIL"
    assert verdict["reason"].startswith("the agent on host h1 has closed its connection and has not come back within ")
    assert 15 <= seconds(attempt) < 60


def test_agent_that_connects_again_in_time_goes_on(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",))

    def cut() -> None:
        attempt.quiet.add("h0")
        attempt.listener.lost["h0"] = attempt.system.clock

    attempt.at(5, cut)
    attempt.at(9, attempt.quiet.clear)
    attempt.task("h0", "worker:0", "COMPLETED", 30, exit=0)
    assert attempt.launch()[1]["state"] == "COMPLETED"
    assert seconds(attempt) >= 30


def test_secret_is_in_a_private_file_until_the_job_ends(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",))
    attempt.task("h0", "worker:0", "COMPLETED", 5, exit=0)
    path, seen = attempt.attempt.listener, list[tuple[int, object, object]]()

    def look() -> None:
        known = read_record(path) or {}
        seen.append((path.stat().st_mode & 0o777, known["secret"], (known["addresses"], known["port"])))

    attempt.at(3, look)
    attempt.launch()
    assert seen == [(0o600, attempt.listener.secret.hex(), ([LOOPBACK], 4711))]
    assert not path.exists()


def test_agents_get_signs_of_life_all_the_time(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, ("h0",), heartbeat_timeout=20)
    attempt.task("h0", "worker:0", "COMPLETED", 60, exit=0)
    beats: list[int] = []
    attempt.system.every(5.0, lambda: beats.append(attempt.listener.beats))
    attempt.launch()
    assert all(later > earlier for earlier, later in itertools.pairwise(beats[1:]))


def test_news_that_come_just_after_others_were_recorded_are_recorded_soon(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    for host, name in (("h0", "worker:0"), ("h1", "worker:1")):
        attempt.task(host, name, "COMPLETED", 30.0, exit=0)

    def say(host: str, name: str) -> None:  # between the reports of the fake hosts, which all come at the same time
        tasks = {name: state("RUNNING", tensorflow="joined")}
        attempt.listener.say(host, messages.STATE, {"host": host, "pid": 1, "tasks": tasks, "over": False})

    def look() -> None:
        record = read_record(attempt.attempt.summary) or {}
        seen.update((host, known["tasks"]) for host, known in record["hosts"].items())

    seen: dict[str, dict[str, Record]] = {}
    attempt.at(5.60, lambda: say("h0", "worker:0"))
    attempt.at(5.65, lambda: say("h1", "worker:1"))
    attempt.at(5.95, look)
    attempt.launch()
    assert [task["tensorflow"] for tasks in seen.values() for task in tasks.values()] == ["joined", "joined"]


def test_records_of_an_idle_job_are_written_seldom(tmp_path: Path) -> None:
    """The file server sees a running job about twice a minute."""
    attempt = Attempt(tmp_path, heartbeat_timeout=60)
    attempt.task("h0", "worker:0", "COMPLETED", 700, exit=0)
    attempt.task("h1", "worker:1", "COMPLETED", 700, exit=0)
    written: list[Path] = []
    put = attempt.recorder.put

    def count(path: Path, text: str, mode: int) -> None:
        if 80 <= seconds(attempt) < 680:
            written.append(path)
        put(path, text, mode)

    attempt.recorder.put = count  # type: ignore[method-assign]
    attempt.launch()
    assert set(written) == {attempt.attempt.launcher}
    assert 15 <= len(written) <= 25


def test_verdict_names_what_is_left_behind(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    for index, host in enumerate(("h0", "h1")):
        attempt.task(host, f"worker:{index}", "COMPLETED", exit=0)
        attempt.at(5, partial(attempt.more[host].update, left=["/dev/shm/x (3 MiB of memory)"]))
    _, verdict = attempt.launch()
    left = "left on h0: /dev/shm/x (3 MiB of memory); left on h1: /dev/shm/x (3 MiB of memory)"
    assert verdict["reason"] == f"all training tasks have exited with 0 ({left})"


# --- what is kept of an attempt


def test_events_tell_the_life_of_an_attempt_by_the_clock_of_the_launcher(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.skew["h1"] = 3600.0
    begin = attempt.system.wall
    write_record(attempt.run.submitted, {"scheduler": "local", "job_id": "4711", "time": begin - 60})
    for host, name in (("h0", "worker:0"), ("h1", "worker:1")):
        attempt.task(host, name, "RUNNING", 2.0)
        attempt.states[host][name] = state("PENDING", started=None)
        attempt.system.at(2.0, partial(_start, attempt, host, name))
    attempt.task("h0", "worker:0", "COMPLETED", 10.0, exit=0, started=begin + 2)
    attempt.task("h1", "worker:1", "FAILED", 20.0, exit=3, started=begin + 3602)
    attempt.launcher.conclude(attempt.launcher.execute())
    found = list(jsonlines.read(attempt.attempt.events, recordtypes.Event, attempt.nonce))
    names = [(event["event"], event.get("host"), event.get("task")) for event in found]
    names[2:4] = sorted(names[2:4], key=str)  # both hosts report at the same time
    assert names == [
        ("queued", None, None),
        ("allocated", None, None),
        ("ready", "h0", None),
        ("ready", "h1", None),
        ("rendezvous", None, None),
        ("started", "h0", "worker:0"),
        ("started", "h1", "worker:1"),
        ("ended", "h0", "worker:0"),
        ("ended", "h1", "worker:1"),
        ("stopping", None, None),
        ("verdict", None, "worker:1"),
    ]
    assert found[0]["time"] == begin - 60
    assert found[1]["hosts"] == ["h0", "h1"]
    assert found[6]["time"] - begin == pytest.approx(2.0, abs=1.0)
    assert found[8]["time"] - begin == pytest.approx(20.0, abs=1.0)
    assert (found[8]["state"], found[8]["exit"]) == ("FAILED", 3)
    assert found[10]["state"] == "FAILED"
    assert "worker:1" in found[10]["text"]


def test_events_are_written_before_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path)
    done: list[str] = []

    def noting(thing: Any, name: str) -> None:
        call = getattr(thing, name)

        def noted(*arguments: Any) -> Any:
            done.append(name)
            return call(*arguments)

        monkeypatch.setattr(thing, name, noted)

    noting(attempt.launcher.reporter.journal, "end")
    noting(attempt.recorder, "settle")
    noting(attempt.launcher.attempt, "write_verdict")
    attempt.launcher.conclude(Verdict("COMPLETED", "all have ended"))
    assert done[:3] == ["end", "settle", "write_verdict"]


def test_events_are_written_within_a_second_although_nothing_else_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(tmp_path)
    recorder = attempt.launcher.recorder
    written: dict[int, float] = {}  # number of ended tasks -> when they were written first
    append = recorder.append

    def appended(path: Path, text: str) -> None:
        written.setdefault(text.count('"ended"'), seconds(attempt))
        append(path, text)

    monkeypatch.setattr(recorder, "append", appended)
    attempt.task("h0", "worker:0", "COMPLETED", 10.0, exit=0)
    attempt.task("h1", "worker:1", "COMPLETED", 40.0, exit=0)
    attempt.at(10.1, lambda: attempt.late_news(8.0))
    attempt.launch()
    assert written[1] == pytest.approx(11.0, abs=0.2)


def _start(attempt: Attempt, host: str, name: str) -> None:
    attempt.states[host][name] = state("RUNNING", started=attempt.system.wall + attempt.skew[host])


def test_newest_sample_of_a_host_is_in_the_summary_by_the_clock_of_the_launcher(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.skew["h1"] = 3600.0
    whole = {"cpus": 8, "cpu": 1.5, "memory": 1, "memory_total": 2, "received": 0.0, "sent": 0.0, "gpus": {}}
    used = {"cpu": 1.5, "memory": 1, "read": 0.0, "written": 0.0, "processes": 1, "threads": {}, "step": 7}

    def sample() -> None:
        now = attempt.system.wall + 3600.0
        told = {"sample": {"time": now, "host": "h1", **whole, "tasks": {"worker:1": used}}}
        attempt.listener.say("h1", messages.SAMPLE, {**told, "logs": {"worker:1": [[now, 120]]}})

    attempt.system.at(10.0, sample)
    for host, name in (("h0", "worker:0"), ("h1", "worker:1")):
        attempt.task(host, name, "COMPLETED", 40.0, exit=0)
    begin = attempt.system.wall
    assert attempt.launcher.conclude(attempt.launcher.execute()) == 0
    hosts = (read_record(attempt.attempt.summary) or {})["hosts"]
    assert "sample" not in hosts["h0"]
    assert hosts["h1"]["sample"]["time"] == pytest.approx(begin + 10.0, abs=1.0)
    (kept,) = jsonlines.read(attempt.attempt.samples, recordtypes.Sample, attempt.nonce)
    assert kept == hosts["h1"]["sample"]
    (log,) = jsonlines.read(attempt.attempt.log_times, recordtypes.LogTimes, attempt.nonce)
    assert (log["task"], log["offset"]) == ("worker:1", 120)
    assert log["time"] == kept["time"]


@pytest.mark.parametrize(
    ("hosts", "age", "seconds"), [(4, 6.0, 1.0), (4, 60.0, 10.0), (4, 9999.0, 10.0), (1024, 6.0, 20.48)]
)
def test_progress_is_recorded_more_often_at_the_beginning(hosts: int, age: float, seconds: float) -> None:
    assert progress_interval(hosts, age) == seconds


class GoesOn(FakeAgent, StartedAgents):
    """Like srun, which goes on although it has reported that an agent has failed."""

    def failed(self) -> AgentEnd:
        return AgentEnd(3, self.host)


def test_agent_that_has_failed_is_reported_although_the_program_that_starts_all_goes_on(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, start_timeout=60)
    attempt.late = attempt.quiet = {"h1"}
    attempt.cluster.start_agents = lambda *_: [GoesOn("h1")]  # type: ignore[method-assign]
    _, verdict = attempt.launch()
    assert (verdict["state"], verdict["reason"]) == ("FAILED", "the agent on host h1 ended with exit code 3")
    assert 10 <= seconds(attempt) < 30  # what it has printed is waited for


def test_agent_that_has_failed_is_the_cause_of_others_that_have_gone(tmp_path: Path) -> None:
    """srun ends the others then, and waits for one that begins later; they close their connections."""
    attempt = Attempt(tmp_path, ("h0", "h1", "h2"), start_timeout=60)
    attempt.late = attempt.quiet = {"h1", "h2"}
    attempt.cluster.start_agents = lambda *_: [GoesOn("h1")]  # type: ignore[method-assign]
    attempt.listener.lost["h2"] = attempt.system.clock - 1.0
    _, verdict = attempt.launch()
    assert (verdict["state"], verdict["reason"]) == ("FAILED", "the agent on host h1 ended with exit code 3")


def test_what_users_should_know_is_an_event(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.system.at(5.0, lambda: attempt.system.receive(signal.SIGUSR1))
    attempt.system.at(9.0, lambda: attempt.system.receive(signal.SIGTERM))
    attempt.launcher.conclude(attempt.launcher.execute())
    found = jsonlines.read(attempt.attempt.events, recordtypes.Event, attempt.nonce)
    texts = [event["text"] for event in found if event["event"] == "notice"]
    assert texts == ["a checkpoint was requested"]


def test_record_of_every_attempt_tells_when_the_walltime_ends(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, time="1h")
    ends = attempt.system.wall - attempt.system.age() + 3600
    attempt.launcher.reporter.record()
    attempt.system.sleep(100.0)
    first = attempt.launcher
    of = (attempt._listener_of, attempt._recorder_of)
    second = Launcher(first.job, *of)
    assert second.reporter.ends == pytest.approx(ends)
    assert (read_record(first.attempt.launcher) or {})["ends"] == pytest.approx(ends)


def test_job_that_saves_while_its_stacks_are_taken_has_saved_and_is_not_stalled(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, stall_after="20s", on_stall="end")
    attempt.cluster.suspended = lambda environ: False  # type: ignore[method-assign]
    answered: set[str] = set()

    def answer() -> None:
        for host, tasks in attempt.states.items():
            for task in tasks.values():
                task.setdefault("quiet", attempt.system.wall)
            asked = (attempt.listener.told(host, DUMP) or {}).get("id", "")
            if asked and f"{host} {asked}" not in answered:
                answered.add(f"{host} {asked}")
                process = {"pid": 7, "name": "python", "state": "S", "text": "x"}
                shown = {name: {"processes": [process]} for name in tasks}
                attempt.listener.say(host, STACKS, {"id": asked, "tasks": shown})
        if len(answered) == 4:  # both dumps show the same
            for host, tasks in attempt.states.items():
                attempt.states[host] = {name: state("SAVED", ended=attempt.system.wall, exit=42) for name in tasks}
            attempt._report()

    attempt.system.every(0.5, answer)
    code, verdict = attempt.launch()
    assert (code, verdict["state"], len(answered)) == (42, "SAVED", 4)


def test_status_does_not_wait_for_nobody_after_mpirun_has_ended_ranks(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, mpi="mpirun")
    for host in ("h0", "h1"):
        attempt.task(host, f"worker:{host[1]}", "COMPLETED", 5, exit=0, abandoned=True)
    attempt.launch()
    assert not [phase for phase in attempt.phases if "training has ended" in phase]


def test_job_goes_on_without_a_feature_that_has_a_bug_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(feature: InLauncher) -> None:
        looked.append(feature)
        raise ValueError("boom")

    looked: list[InLauncher] = []
    monkeypatch.setattr(InLauncher, "look", look)
    attempt = Attempt(tmp_path)
    for host, name in (("h0", "worker:0"), ("h1", "worker:1")):
        attempt.task(host, name, "COMPLETED", 5, exit=0)
    code, verdict = attempt.launch()
    off = "gridtf's exec failed, and was switched off"
    assert (code, verdict["state"], len(looked)) == (0, "COMPLETED", 1)
    assert verdict["reason"].endswith(f"({off})")
    assert f"{off}; 2 tasks on 2 hosts" in attempt.phases
    (told,) = (line for line in attempt.system.logged if "exec has failed" in line)
    assert told.endswith("ValueError: boom")
