"""Processes that join: how they meet, and what the process that stays behind reports."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.join import JoinedTask, Joining, Member, assign_ranks, exports, report_task
from gridtf.bootstrap.rendezvous import read_plan
from gridtf.errors import GridtfError, PlacementError, RendezvousError
from gridtf.run.rundir import Record, RunDir, read_record
from gridtf.schedulers.api import Allocation, Host
from tests.support.plans import job, resolved, task_plan
from tests.support.system import FakeSystem

STEP = "run-1"
KNOWN = {"scheduler": "slurm", "job_id": "12"}


def own(rank: int, **more: Any) -> Record:
    """What a rank on a host of its own publishes."""
    host = f"n{rank}"
    record = {"host": host, "hostname": host, "address": host, "boot": f"b{rank}", "pid": 1, "port": 20000 + rank}
    record |= {"granted": [], "step_gpus": 0, "cpus": [0, 1], **({"master_port": 30000} if rank == 0 else {})}
    return {**record, **more}


class Step:
    """Ranks of one step in one run directory; what each of them does is done on the one clock of rank 0 and ours."""

    def __init__(self, folder: Path, size: int = 2, **spec: Any) -> None:
        self.run = RunDir(folder / "run")
        self.size = size
        self.spec = job(**{"start_timeout": 20.0, **spec})
        self.system = FakeSystem()

    def rank(self, number: int, **more: Any) -> Joining:
        member = Member(number, self.size, STEP)
        return Joining(
            self.run, self.spec, resolved(self.spec, "slurm"), member, lambda: own(number, **more), self.system
        )

    def lead(self, **more: Any) -> Any:
        return self.rank(0, **more).lead(assign_ranks(self.spec, self.size), KNOWN, "12")

    def publish(self, number: int, **more: Any) -> Callable[[], None]:
        """Rank `number` finds the attempt and publishes its record; it gives up at once, but the record stays."""

        def act() -> None:
            member = Member(number, self.size, STEP)
            request, system = resolved(self.spec, "slurm"), FakeSystem()
            other = Joining(self.run, self.spec, request, member, lambda: own(number, **more), system)
            with pytest.raises(RendezvousError):
                other.follow()

        return act


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step(tmp_path)


def test_rank_0_gathers_all_ranks_and_writes_plan_and_rendezvous(step: Step) -> None:
    step.system.at(5, step.publish(1))
    plan, shares, meeting = step.lead()
    assert [(task.name, task.host, task.rank) for task in plan.tasks] == [("worker:0", "n0", 0), ("worker:1", "n1", 1)]
    assert meeting.cluster == {"worker": ("n0:20000", "n1:20001")}
    assert (meeting.master_addr, meeting.master_port) == ("n0", 30000)
    assert shares == {"worker:0": (), "worker:1": ()}
    assert (plan.job_id, plan.request.scheduler) == ("12", "slurm")
    written = read_plan(step.run, 1, plan.nonce)
    assert written is not None
    assert (written.tasks, written.spec) == (plan.tasks, plan.spec)
    opened = read_record(step.run.path / f"join-{STEP}" / "opened.json") or {}
    assert (opened["attempt"], opened["nonce"], opened["job_id"]) == (1, plan.nonce, "12")
    assert 5 <= step.system.clock - 1000 < 6


def test_other_ranks_read_plan_and_rendezvous_of_rank_0(step: Step) -> None:
    step.system.at(5, step.publish(1))
    plan, shares, meeting = step.lead()
    with pytest.raises(RendezvousError, match="rank 1 of run-1 has already joined"):
        step.rank(1).follow()
    plan.attempt.host_record("rank-1").unlink()
    its_plan, its_shares, its_meeting = step.rank(1).follow()
    assert its_plan.tasks == plan.tasks
    assert {name: tuple(share) for name, share in its_shares.items()} == shares
    assert its_meeting.config("worker", 1) == meeting.config("worker", 1)


def test_missing_ranks_are_reported(step: Step) -> None:
    step.size = 3
    step.system.at(5, step.publish(2))
    with pytest.raises(RendezvousError) as caught:
        step.lead()
    assert caught.value.what == "1 of 3 processes did not join within 20 s"
    assert caught.value.why == "missing: rank-1 (worker:1)"
    assert 20 <= step.system.clock - 1000 < 21


def test_error_of_rank_0_is_raised_by_all_ranks(step: Step) -> None:
    with pytest.raises(RendezvousError):
        step.lead()
    begin = step.system.clock
    with pytest.raises(RendezvousError) as caught:
        step.rank(1).follow()
    assert (caught.value.what, caught.value.why) == (
        "1 of 2 processes did not join within 20 s",
        "missing: rank-1 (worker:1)",
    )
    assert step.system.clock - begin < 1


def test_error_of_another_rank_is_raised_by_all_ranks(step: Step) -> None:
    def no_gpu() -> Record:
        raise PlacementError("no free GPU", hint="wait for one")

    other = step.rank(1)
    other.own = no_gpu

    def fail() -> None:
        with pytest.raises(PlacementError, match="no free GPU"):
            other.follow()

    step.system.at(5, fail)
    with pytest.raises(RendezvousError) as caught:
        step.lead()
    assert (caught.value.what, caught.value.hint) == ("rank 1 on host h0: no free GPU", "wait for one")
    assert 5 <= step.system.clock - 1000 < 6
    with pytest.raises(RendezvousError, match="rank 1 on host h0: no free GPU"):
        step.rank(1).follow()


def test_placement_error_is_raised_by_all_ranks(tmp_path: Path) -> None:
    step = Step(tmp_path, gpus_per_task=1)
    step.system.at(5, step.publish(1))
    with pytest.raises(PlacementError, match="worker:0 on n0 needs 1 GPU, but sees 0"):
        step.lead()
    step.run.attempt(1).host_record("rank-1").unlink()
    with pytest.raises(RendezvousError, match="worker:0 on n0 needs 1 GPU, but sees 0"):
        step.rank(1).follow()


def test_two_machines_with_one_host_name_are_refused(step: Step) -> None:
    step.system.at(5, step.publish(1, address="n0"))
    with pytest.raises(GridtfError, match="different machines with the same host name n0"):
        step.lead()


def test_two_machines_with_one_address_on_the_chosen_network_are_refused(step: Step) -> None:
    chosen = {"address": "172.17.0.1", "resolved": ["172.17.0.1"]}
    step.system.at(5, step.publish(1, **{**chosen, "address": "n1i"}))
    with pytest.raises(RendezvousError, match=r"host n0 and host n1 have the same address 172\.17\.0\.1"):
        step.lead(**chosen)


def test_rank_that_rank_0_does_not_join_fails_after_start_timeout(step: Step) -> None:
    with pytest.raises(RendezvousError) as caught:
        step.rank(1).follow()
    assert caught.value.what == f"rank 1 has waited 20 s for rank 0, which has not opened {step.run.path}"
    assert 20 <= step.system.clock - 1000 < 21


def test_other_ranks_wait_longer_than_rank_0(step: Step) -> None:
    step.size = 3
    step.system.at(5, step.publish(2))
    with pytest.raises(RendezvousError):
        step.lead()
    attempt = step.run.attempt(1)
    attempt.host_error("rank-0").unlink()  # as if rank 0 was killed before it wrote its error
    begin = step.system.clock
    with pytest.raises(RendezvousError, match="rank 1 has waited 66 s for rank 0 in "):
        step.rank(1).follow()
    assert 66 <= step.system.clock - begin < 67


def test_other_ranks_wait_for_a_rank_0_that_waits_for_gpus(tmp_path: Path) -> None:
    step = Step(tmp_path, 3, start_timeout=60.0)

    def slow_own() -> Record:
        step.system.sleep(48)  # the most: 0.8 of start_timeout
        return own(0)

    waited: list[float] = []

    def follow() -> None:
        other = Joining(
            step.run, step.spec, resolved(step.spec, "slurm"), Member(1, 3, STEP), lambda: own(1), FakeSystem()
        )
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
    step.system.at(5, step.publish(1))
    step.lead()
    with pytest.raises(RendezvousError, match="rank 0 of run-1 has already joined"):
        step.lead()


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
    path = plan.attempt.host_state("rank-0")
    seen: list[Record] = []
    system.at(10, lambda: seen.append(read_record(path) or {}))
    report_task(plan, plan.tasks[0], "rank-0", Watched(system, 30, code), system)
    assert seen[0]["tasks"]["worker:0"]["state"] == "RUNNING"
    assert (seen[0]["host"], seen[0]["beat"] > 5) == ("n0", True)
    task = (read_record(path) or {})["tasks"]["worker:0"]
    assert (task["state"], task["exit"], task["signal"], task["pid"]) == (*end, 77)
    assert task["ended"] >= task["started"] + 30


def test_report_task_without_pidfd_reports_the_end_at_once(tmp_path: Path) -> None:
    plan = task_plan(tmp_path / "run", Allocation((Host("n0", 1, 0),)))
    system = FakeSystem()
    report_task(plan, plan.tasks[0], "rank-0", Watched(system, 30, 0, watched=False), system)
    task = (read_record(plan.attempt.host_state("rank-0")) or {})["tasks"]["worker:0"]
    assert (task["state"], task["ended"] - task["started"]) == ("ENDED", 30)


def test_report_task_survives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = task_plan(tmp_path / "run", Allocation((Host("n0", 1, 0),)))
    system = FakeSystem()
    state = plan.attempt.host_state("rank-0").parent
    state.rename(tmp_path / "away")
    system.at(100, lambda: (tmp_path / "away").rename(state))
    report_task(plan, plan.tasks[0], "rank-0", Watched(system, 120, 0), system)
    task = (read_record(plan.attempt.host_state("rank-0")) or {})["tasks"]["worker:0"]
    assert task["state"] == "COMPLETED"


def test_exports_are_shell_code_from_one_environment_to_the_other() -> None:
    before = {"KEPT": "1", "OTHER": "1", "GONE": "1"}
    lines = exports(before, {"KEPT": "1", "OTHER": "it's", "NEW": "a b"}).splitlines()
    assert lines == ["unset GONE", "export OTHER='it'\"'\"'s'", "export NEW='a b'"]
