"""Checkpoints in folders that each host has for itself: what the agent sees, and what the launcher makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.agent import local_dir
from gridtf.bootstrap.judge.evidence import STOP, Evidence
from gridtf.bootstrap.judge.verdict import Verdict, conclude
from gridtf.bootstrap.system import System
from gridtf.contract import checkpoints_name
from gridtf.features.ownfolders import HINT, InAgent, notes, told
from gridtf.run.rundir import write_record
from gridtf.states import JobState, TaskState
from tests.support.features import agent_view
from tests.support.plans import hosts, task, task_plan
from tests.support.system import FakeSystem


class Host:
    """One task, worker:0; the folders below ``own`` are this host's alone."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        self.system = FakeSystem()
        self.own, self.shared = folder / "own", folder / "shared"
        self.own.mkdir()
        self.system.own = [self.own]
        view = agent_view(task_plan(folder / "run", hosts(*spec.pop("gpus", (0, 0)), slots=1), **spec), self.system)
        view.state.local_dir = self.notes = folder / "notes"
        local_dir.make([self.notes])
        self.supervisor = view.state.supervisor
        self.task = self.supervisor.tasks["worker:0"]
        self.task.pid, self.task.state = 10, TaskState.RUNNING
        self.folders = InAgent(view)

    def look(self, seconds: float = 1.0) -> str:
        self.system.sleep(seconds)
        before = self.task.notes
        changed = self.supervisor.note(self.folders.look())
        assert changed == (self.task.notes != before)
        return str(self.task.notes.get("own_folder", ""))


def test_folder_of_summaries_beside_checkpoints_is_found(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.system.names[10] = ["/dev/null", "socket:[1]", f"{host.own}/events.out.tfevents.1.n1"]
    assert host.look() == ""  # summaries alone
    (host.own / "checkpoint").touch()
    assert host.look() == str(host.own)


def test_folder_that_gridtf_training_has_noted_is_found(tmp_path: Path) -> None:
    host = Host(tmp_path)
    note = host.notes / checkpoints_name("worker", 0)
    write_record(note, {"folder": str(host.shared)}, indent=None)
    assert host.look() == ""
    write_record(note, {"folder": str(host.own / "a")}, indent=None)
    assert host.look() == str(host.own / "a")


def test_host_that_has_waited_long_for_others_looks_as_often(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.look(600) == ""
    write_record(host.notes / checkpoints_name("worker", 0), {"folder": str(host.own)}, indent=None)
    assert host.look(1.0) == str(host.own)


def test_nobody_is_told_where_no_other_host_and_no_further_start_wants_them(tmp_path: Path) -> None:
    host = Host(tmp_path, gpus=[0], tasks={"worker": {"count": 1}})
    write_record(host.notes / checkpoints_name("worker", 0), {"folder": str(host.own)}, indent=None)
    assert host.look(100) == ""


@pytest.mark.parametrize(
    ("folder", "shared", "own"),
    [
        ("/tmp/train_logs", "/nfs/run", True),
        ("/tmp/train_logs", "/tmp/site/run", False),  # which all hosts are known to see
        ("/var/tmp/x", "/tmp/site/run", True),
        ("/nfs/x", "/nfs/run", False),
        ("/mem/x", "/nfs/run", True),
    ],
)
def test_folder_of_one_host_lies_elsewhere_than_the_run_directory(
    folder: str, shared: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = "a / ext4 rw 0 0\nb:/x /nfs nfs4 rw 0 0\ntmpfs /mem tmpfs rw 0 0\n"
    monkeypatch.setattr("gridtf.host.mounts.own_mounts", lambda: mounts)
    assert System({}).own_folder(Path(folder), Path(shared)) is own


WORKERS = [task("worker:0"), task("worker:1", "h1", rank=1), task("ps:0")]


def test_warning_names_the_tasks_the_folder_and_its_host() -> None:
    records: dict[str, Any] = {name: {"own_folder": "/tmp/logs"} for name in ("worker:0", "ps:0")}
    warning = "checkpoints of worker:0, ps:0 are in /tmp/logs on h0, which no other host sees"
    assert told(WORKERS, records) == warning
    assert told(WORKERS, {"worker:0": {}}) == ""
    both = told(WORKERS, {name: {"own_folder": "/tmp/logs"} for name in ("worker:0", "worker:1")})
    one = "checkpoints of worker:0 are in /tmp/logs on h0, which no other host sees"
    assert both == f"{one}, and those of worker:1 in another such folder"
    done = conclude(Evidence(STOP, "done", hint="x", state=JobState.COMPLETED), [*notes(WORKERS, records)])
    assert (done.reason, done.hint) == (f"done; {warning}", f"x; {HINT}")
    failed = conclude(Evidence(STOP, "worker:0 on h0: exit code 1"), [*notes(WORKERS, records)])
    assert failed == Verdict(JobState.FAILED, "worker:0 on h0: exit code 1")
