"""Processes that join: how they meet, and what the process that stays behind reports."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.plan.rendezvous import PortHolder, plan_of
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.stream import News
from gridtf.errors import GridtfError, PlacementError, RendezvousError
from gridtf.host.gpus import GpuGrant
from gridtf.run.rundir import Attempt, Record, RunDir, read_record, write_record
from gridtf.schedulers.api import Allocation, Host
from gridtf.starters.joined import join
from gridtf.starters.joined.join import JoinedTask, Joining, exports, report_task
from gridtf.starters.joined.ranks import Member, assign_ranks
from tests.support.plans import job, resolved, task_plan
from tests.support.streams import FakeLink, FakeListener
from tests.support.system import FakeSystem

STEP = "run-1"
KNOWN = {"scheduler": "slurm", "job_id": "12"}


def own(rank: int, **more: Any) -> Record:
    """What a rank on a host of its own publishes."""
    host = f"n{rank}"
    record = {"host": host, "hostname": host, "address": host, "boot": f"b{rank}", "pid": 1, "port": 20000 + rank}
    record |= {"granted": [], "step_gpus": 0, "cpus": [0, 1], **({"master_port": 30000} if rank == 0 else {})}
    return {**record, **more}


@pytest.mark.parametrize(
    ("environ", "count"),
    [({"SLURM_GPUS_ON_NODE": "2", "SLURM_STEP_GPUS": "3"}, 2), ({"SLURM_STEP_GPUS": "0,1,3"}, 3), ({}, 0)],
    ids=["newer", "20.11", "none"],
)
def test_gpus_of_the_step_on_this_host_by_version_of_slurm(environ: dict[str, str], count: int) -> None:
    with PortHolder() as holder:
        record = join._own_record(Member(1, 2, STEP), GpuGrant(("0",)), environ, holder)
    assert record["step_gpus"] == count


class AttemptData(FakeListener):
    """The end of rank 0: ranks that have read its last message close their connections, as they do."""

    def receive(self) -> list[tuple[str, str, Record]]:
        for rank, kind, _ in self.sent:
            if kind in (messages.RENDEZVOUS, messages.ERROR):
                self.hosts -= self.hosts if rank == "*" else {rank}
        return super().receive()


class Wire(FakeLink):
    """The end of another rank: what it says, rank 0 hears."""

    def __init__(self, step: Step, number: int, system: FakeSystem) -> None:
        super().__init__(system)
        self.step, self.rank = step, f"rank-{number}"

    def send(self, kind: str, content: Record) -> None:
        super().send(kind, content)
        self.step.listener.say(self.rank, kind, content)


class Step:
    """Ranks of one step in one run directory, connected by the test. Rank 0 has a clock of its own."""

    def __init__(self, folder: Path, size: int = 2, **spec: Any) -> None:
        self.run = RunDir(folder / "run")
        self.size = size
        self.spec = job(**{"start_timeout": 20.0, **spec})
        self.system = FakeSystem()
        self.listener = AttemptData(system=self.system)

    def rank(self, number: int, link: FakeLink | None = None, **more: Any) -> Joining:
        system = self.system if number == 0 else FakeSystem()
        return Joining(
            self.run,
            self.spec,
            resolved(self.spec, "slurm"),
            Member(number, self.size, STEP),
            lambda: own(number, **more),
            system,
            lambda secret, system: self.listener,
            (link or Wire(self, number, system)).of,
        )

    def lead(self, **more: Any) -> Any:
        return self.rank(0, **more).lead(assign_ranks(self.spec, self.size), KNOWN, "12")

    def join(self, number: int, **more: Any) -> Callable[[], None]:
        """Rank `number` finds the attempt and says its record; it does not wait for the answer."""

        def act() -> None:
            with pytest.raises(RendezvousError, match=rf"rank {number} has waited .* for rank 0 in"):
                self.rank(number, **more).follow()

        return act

    def opened(self) -> Attempt:
        """As rank 0 opens the attempt and listens, without any more of it."""
        attempt = self.run.new_attempt()
        attempt.ranks.mkdir()
        (self.run.path / f"join-{STEP}").mkdir()
        write_record(attempt.listener, {"nonce": "n", "addresses": ["h0"], "port": 4711, "secret": "5e" * 32})
        write_record(self.run.path / f"join-{STEP}" / "opened.json", {"attempt": 1, "nonce": "n", **KNOWN})
        return attempt

    def follow(self, number: int, answers: Iterable[News]) -> tuple[Any, FakeLink]:
        """Rank `number` follows and gets these answers."""
        system = FakeSystem()
        link = FakeLink(system)
        for kind, content in answers:
            link.say(kind, content)
        joining = self.rank(number, link)
        joining.system = system
        return joining.follow(), link


@pytest.fixture
def ignored_sigio() -> Iterator[None]:
    """Connections raise SIGIO, which would end a process that neither blocks nor ignores it."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, before)


@pytest.fixture
def step(tmp_path: Path) -> Step:
    path = tmp_path / "run"
    path.mkdir()
    return Step(tmp_path)


def test_rank_0_gathers_all_ranks_and_writes_plan_and_rendezvous(step: Step) -> None:
    step.system.at(5, step.join(1))
    plan, shares, meeting = step.lead()
    assert [(task.name, task.host, task.rank) for task in plan.tasks] == [("worker:0", "n0", 0), ("worker:1", "n1", 1)]
    assert meeting.cluster == {"worker": ("n0:20000", "n1:20001")}
    assert (meeting.master_addr, meeting.master_port) == ("n0", 30000)
    assert shares == {"worker:0": (), "worker:1": ()}
    assert (plan.job_id, plan.request.scheduler) == ("12", "slurm")
    written = plan_of(read_record(plan.attempt.plan) or {}, plan.attempt)
    assert (written.tasks, written.spec) == (plan.tasks, plan.spec)
    published = read_record(plan.attempt.rendezvous, nonce=plan.nonce) or {}
    assert (published["cluster"], published["gpus"]) == (
        {"worker": ["n0:20000", "n1:20001"]},
        {"worker:0": [], "worker:1": []},
    )
    opened = read_record(step.run.path / f"join-{STEP}" / "opened.json") or {}
    assert (opened["attempt"], opened["nonce"], opened["job_id"]) == (1, plan.nonce, "12")
    assert 5 <= step.system.clock - 1000 < 6
    assert step.listener.closed
    assert not plan.attempt.listener.exists()  # the secret is of no use any more


def test_every_other_rank_is_told_its_part_of_the_plan_and_the_rendezvous(tmp_path: Path) -> None:
    step = Step(tmp_path, 3, gpus_per_task=1)
    step.system.at(1, step.join(2, granted=["4", "5"]))
    step.system.at(5, step.join(1, granted=["2"]))
    plan, shares, meeting = step.lead(granted=["0"])
    told = [(kind, content) for rank, kind, content in step.listener.sent if rank == "rank-2"]
    assert [kind for kind, _ in told] == [messages.PLAN, messages.RENDEZVOUS]
    other = Step(tmp_path / "other", 3, gpus_per_task=1)
    other.run.path.mkdir(parents=True)
    other.opened()
    (its_plan, its_shares, its_meeting), link = other.follow(2, told)
    assert its_plan.tasks == plan.tasks[2:]
    assert (its_plan.world_size, its_plan.host_count, its_plan.nonce) == (3, 3, plan.nonce)
    assert its_shares == {"worker:2": ["4"]}
    assert shares["worker:2"] == ("4",)
    assert its_meeting.config("worker", 2) == meeting.config("worker", 2)
    assert (link.last(messages.RANK)["port"], link.closed) == (20002, True)


def test_rank_0_and_another_rank_meet_over_their_streams(step: Step, ignored_sigio: None) -> None:
    class Clocked(FakeSystem):
        """The real clock; nobody raises signals here."""

        def monotonic(self) -> float:
            return time.monotonic()

        def wait(self, seconds: float) -> int | None:
            time.sleep(min(seconds, 0.01))
            return None

    def real(number: int) -> Joining:
        member, request = Member(number, 2, STEP), resolved(step.spec, "slurm")
        return Joining(step.run, step.spec, request, member, lambda: own(number), Clocked(host="localhost"))

    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(real(1).follow)
        plan, _, meeting = real(0).lead(assign_ranks(step.spec, 2), KNOWN, "12")
        its_plan, its_shares, its_meeting = other.result(timeout=180)
    assert its_plan.tasks == plan.tasks[1:]
    assert its_meeting == meeting
    assert its_shares == {"worker:1": []}


def test_rank_that_has_joined_before_is_told_so(step: Step) -> None:
    step.system.at(5, step.join(1))
    step.lead()
    with pytest.raises(RendezvousError, match="rank 1 of run-1 has already joined"):
        step.rank(1).follow()


def test_missing_ranks_are_reported(step: Step) -> None:
    step.size = 3
    step.system.at(5, step.join(2))
    with pytest.raises(RendezvousError) as caught:
        step.lead()
    assert caught.value.what == "1 of 3 processes did not join within 20 s"
    assert caught.value.why == "missing: rank-1 (worker:1)"
    assert 20 <= step.system.clock - 1000 < 21
    error = step.listener.told("rank-2", messages.ERROR)
    assert error == {"what": caught.value.what, "why": caught.value.why, "hint": caught.value.hint}


def test_error_of_rank_0_is_raised_by_ranks_that_are_connected(step: Step) -> None:
    step.opened()
    error = {"what": "1 of 3 processes did not join within 20 s", "why": "missing: rank-1", "hint": "look"}
    with pytest.raises(RendezvousError) as caught:
        step.follow(2, [(messages.ERROR, error)])
    assert {"what": caught.value.what, "why": caught.value.why, "hint": caught.value.hint} == error


@pytest.mark.parametrize("listens", [True, False])
def test_error_of_rank_0_is_found_by_ranks_that_come_after_it(listens: bool, step: Step) -> None:
    with pytest.raises(RendezvousError):
        step.lead()
    attempt = step.run.attempt(1)
    assert not attempt.listener.exists()
    if listens:  # as if the other rank had read it just before
        nonce = (read_record(attempt.rank_error) or {})["nonce"]
        write_record(attempt.listener, {"nonce": nonce, "addresses": ["h0"], "port": 4711, "secret": "5e" * 32})
    refused = FakeLink(FakeSystem())
    refused.cut("nobody listens there")
    other = step.rank(1, refused)
    with pytest.raises(RendezvousError) as caught:
        other.follow()
    assert (caught.value.what, caught.value.why) == (
        "1 of 2 processes did not join within 20 s",
        "missing: rank-1 (worker:1)",
    )
    assert other.system.monotonic() - 1000 < 3


def test_error_of_another_rank_is_raised_by_all_ranks(step: Step) -> None:
    def no_gpu() -> Record:
        raise PlacementError("no free GPU", hint="wait for one")

    other = step.rank(1)
    other.own = no_gpu

    def fail() -> None:
        with pytest.raises(PlacementError, match="no free GPU"):
            other.follow()

    step.size = 3
    step.system.at(2, step.join(2))
    step.system.at(5, fail)
    with pytest.raises(RendezvousError) as caught:
        step.lead()
    assert (caught.value.what, caught.value.hint) == ("rank 1 on host h0: no free GPU", "wait for one")
    assert 5 <= step.system.clock - 1000 < 6
    assert (step.listener.told("rank-2", messages.ERROR) or {})["what"] == "rank 1 on host h0: no free GPU"
    with pytest.raises(RendezvousError, match="rank 1 on host h0: no free GPU"):
        step.rank(1).follow()


def test_placement_error_is_raised_by_all_ranks(tmp_path: Path) -> None:
    step = Step(tmp_path, gpus_per_task=1)
    step.system.at(5, step.join(1))
    with pytest.raises(PlacementError, match="worker:0 on n0 needs 1 GPU, but sees 0"):
        step.lead()
    assert (step.listener.told("rank-1", messages.ERROR) or {})["what"] == "worker:0 on n0 needs 1 GPU, but sees 0"
    with pytest.raises(RendezvousError, match="worker:0 on n0 needs 1 GPU, but sees 0"):
        step.rank(1).follow()


def test_two_processes_as_the_same_rank_are_refused_with_both_names(step: Step) -> None:
    step.size = 3
    step.system.at(2, step.join(1))
    step.system.at(3, step.join(1))  # the same process again, over a new connection
    step.system.at(5, step.join(1, hostname="n7", pid=8))
    with pytest.raises(RendezvousError) as caught:
        step.lead()
    assert caught.value.what == "two processes have joined as rank 1: process 1 on n1 and process 8 on n7"
    assert "RANK of its own" in caught.value.hint
    assert 5 <= step.system.clock - 1000 < 6
    assert (step.listener.told("rank-1", messages.ERROR) or {})["what"] == caught.value.what


@pytest.mark.parametrize("back", [True, False])
def test_rank_that_closes_its_connection_and_does_not_come_back_ends_the_others(back: bool, step: Step) -> None:
    step.size = 3
    step.spec = step.spec.replace(start_timeout=60.0)

    def leave() -> None:
        step.listener.hosts.remove("rank-1")
        step.listener.lost["rank-1"] = step.system.clock

    step.system.at(2, step.join(1))
    step.system.at(3, leave)
    if back:
        step.system.at(12, step.join(1))
    step.system.at(30, step.join(2))
    if back:
        step.lead()
        assert 30 <= step.system.clock - 1000 < 31
        return
    with pytest.raises(RendezvousError) as caught:
        step.lead()
    assert caught.value.what == "rank 1 on host n1 has closed its connection to rank 0"
    assert caught.value.hint == "was it killed?"
    assert 13 <= step.system.clock - 1000 < 14


def test_two_machines_with_one_host_name_are_refused(step: Step) -> None:
    step.system.at(5, step.join(1, address="n0"))
    with pytest.raises(GridtfError, match="different machines with the same host name n0"):
        step.lead()


def test_two_machines_with_one_address_on_the_chosen_network_are_refused(step: Step) -> None:
    chosen = {"address": "172.17.0.1", "resolved": ["172.17.0.1"]}
    step.system.at(5, step.join(1, **{**chosen, "address": "n1i"}))
    with pytest.raises(RendezvousError, match=r"host n0 and host n1 have the same address 172\.17\.0\.1"):
        step.lead(**chosen)


def test_rank_that_rank_0_does_not_join_fails_after_start_timeout(step: Step) -> None:
    other = step.rank(1)
    with pytest.raises(RendezvousError) as caught:
        other.follow()
    assert caught.value.what == f"rank 1 has waited 20 s for rank 0, which has not opened {step.run.path}"
    assert 20 <= other.system.monotonic() - 1000 < 21


def test_other_ranks_wait_longer_than_rank_0(step: Step) -> None:
    step.opened()
    other = step.rank(1)
    with pytest.raises(RendezvousError, match="rank 1 has waited 66 s for rank 0 in ") as caught:
        other.follow()
    assert 66 <= other.system.monotonic() - 1000 < 67
    assert caught.value.hint == "was rank 0 killed?"


def test_why_rank_0_cannot_be_reached_is_told(step: Step) -> None:
    step.opened()
    link = FakeLink(FakeSystem())
    link.cut("n0 port 4711 does not answer")
    with pytest.raises(RendezvousError) as caught:
        step.rank(1, link).follow()
    assert caught.value.why == "n0 port 4711 does not answer"


def test_other_ranks_wait_for_a_rank_0_that_waits_for_gpus(tmp_path: Path) -> None:
    step = Step(tmp_path, 3, start_timeout=60.0)

    def slow_own() -> Record:
        step.system.sleep(48)  # the most: 0.8 of start_timeout
        return own(0)

    waited: list[float] = []

    def follow() -> None:
        other = step.rank(1)
        with pytest.raises(RendezvousError):
            other.follow()
        waited.append(other.system.monotonic() - 1000)

    step.system.at(1, follow)
    leader = step.rank(0)
    leader.own = slow_own
    with pytest.raises(RendezvousError, match="1 of 3 processes did not join within 60 s"):
        leader.lead(assign_ranks(step.spec, 3), KNOWN, "12")
    assert waited[0] > step.system.clock - 1000


def test_step_cannot_be_joined_twice(step: Step) -> None:
    step.system.at(5, step.join(1))
    step.lead()
    with pytest.raises(RendezvousError, match="rank 0 of run-1 has already joined"):
        step.lead()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_that_ends_processes_ends_the_wait(number: int, step: Step) -> None:
    step.size = 3
    step.system.at(2, step.join(1))
    step.system.at(5, lambda: step.system.receive(number))
    with pytest.raises(SystemExit) as ended:
        step.lead()
    assert ended.value.code == 128 + number
    assert 5 <= step.system.clock - 1000 < 6
    assert step.listener.closed


# --- the process that stays behind


class Watched(JoinedTask):
    """A process that ends after some seconds; its exit code is known a little later, or never."""

    def __init__(self, system: FakeSystem, seconds: float, code: int | None, *, watched: bool = True) -> None:
        self.pid, self.watched = 77, watched
        self.system, self.finished, self.code = system, system.clock + seconds, code

    def lives(self) -> bool:
        return self.system.clock < self.finished

    def wait(self, seconds: float) -> None:
        self.system.sleep(min(seconds, max(0.0, self.finished - self.system.clock)))

    def end(self) -> int | None:
        return self.code if self.system.clock >= self.finished + 1.0 else None


@pytest.mark.parametrize(
    ("code", "end"),
    [
        (0, ("COMPLETED", 0, None)),
        (3, ("FAILED", 3, None)),
        (42, ("SAVED", 42, None)),
        (-signal.SIGKILL, ("FAILED", None, "SIGKILL")),
        (None, ("ENDED", None, None)),
    ],
)
def test_report_task_reports_how_the_task_ended(
    tmp_path: Path, code: int | None, end: tuple[str, int | None, str | None]
) -> None:
    plan = task_plan(tmp_path / "run", Allocation((Host("n0", 1, 0),)))
    system = FakeSystem()
    plan.attempt.ranks.mkdir()
    path = plan.attempt.rank_state("rank-0")
    seen: list[Record] = []
    system.at(10, lambda: seen.append(read_record(path) or {}))
    report_task(plan, plan.tasks[0], "rank-0", Watched(system, 30, code), system)
    assert seen[0]["tasks"]["worker:0"]["state"] == "RUNNING"
    assert (seen[0]["host"], seen[0]["nonce"], seen[0]["time"]) == ("n0", plan.nonce, 5000.0)
    task = (read_record(path) or {})["tasks"]["worker:0"]
    assert (task["state"], task["exit"], task["signal"], task["pid"]) == (*end, 77)
    assert task["ended"] >= task["started"] + 30


def test_report_task_without_pidfd_reports_the_end_at_once(tmp_path: Path) -> None:
    plan = task_plan(tmp_path / "run", Allocation((Host("n0", 1, 0),)))
    plan.attempt.ranks.mkdir()
    system = FakeSystem()
    report_task(plan, plan.tasks[0], "rank-0", Watched(system, 30, 0, watched=False), system)
    task = (read_record(plan.attempt.rank_state("rank-0")) or {})["tasks"]["worker:0"]
    assert (task["state"], task["ended"] - task["started"]) == ("ENDED", 30)


def test_report_task_writes_at_the_start_every_30_s_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = task_plan(tmp_path / "run", Allocation((Host("n0", 1, 0),)), heartbeat_timeout=100.0)
    system, written = FakeSystem(), list[tuple[float, str]]()

    def write(path: Path, record: Record, **how: Any) -> None:
        assert path == plan.attempt.rank_state("rank-0")
        written.append((round(system.clock - 1000), record["tasks"]["worker:0"]["state"]))

    monkeypatch.setattr(join, "write_record", write)
    report_task(plan, plan.tasks[0], "rank-0", Watched(system, 100, 0), system)
    assert written == [*((when, "RUNNING") for when in (0, 30, 60, 90)), (101, "COMPLETED")]


def test_report_task_survives_a_full_disk(tmp_path: Path) -> None:
    plan = task_plan(tmp_path / "run", Allocation((Host("n0", 1, 0),)))
    system = FakeSystem()
    system.at(100, plan.attempt.ranks.mkdir)  # nothing can be written before
    report_task(plan, plan.tasks[0], "rank-0", Watched(system, 120, 0), system)
    task = (read_record(plan.attempt.rank_state("rank-0")) or {})["tasks"]["worker:0"]
    assert task["state"] == "COMPLETED"


def test_exports_are_shell_code_from_one_environment_to_the_other() -> None:
    before = {"KEPT": "1", "OTHER": "1", "GONE": "1"}
    lines = exports(before, {"KEPT": "1", "OTHER": "it's", "NEW": "a b"}).splitlines()
    assert lines == ["unset GONE", "export OTHER='it'\"'\"'s'", "export NEW='a b'"]
