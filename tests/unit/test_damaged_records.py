"""Readers of damaged records accept them, ignore them, or raise an error of one line.

tests/recorded has a run of version 0.1.0. GRIDTF_TEST_MUTATIONS is the number of damaged records for each reader.
"""

from __future__ import annotations

import contextlib
import copy
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
from gridtf.bootstrap import environment, rendezvous
from gridtf.bootstrap.join import Joining, Member, check_addresses, place_ranks, split_gpus
from gridtf.bootstrap.launcher import HostMonitor, Launcher
from gridtf.bootstrap.node import AgentSupervisor
from gridtf.bootstrap.placement import place
from gridtf.bootstrap.rendezvous import AttemptPlan, read_plan
from gridtf.bootstrap.verdict import decide, of_task
from gridtf.cli import main, show
from gridtf.errors import GridtfError
from gridtf.host import processes, procfs
from gridtf.jobspec.spec import JobSpec
from gridtf.login.job import Job
from gridtf.observe import jobs, logs
from gridtf.run import registry
from gridtf.run.recordtypes import RankRecord
from gridtf.run.rundir import RunDir
from gridtf.schedulers import local
from gridtf.schedulers.api import Allocation, Host
from tests.support.plans import resolved
from tests.support.system import FakeSystem

RECORDED = Path(__file__).parents[1] / "recorded" / "run-0.1.0"
COUNT = int(os.environ.get("GRIDTF_TEST_MUTATIONS", "60"))
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
    assert "worker:0  n1    FAILED   3        attempt-1/logs/worker-0.log\n" in out
    assert "ps:0      n1    STOPPED  SIGTERM  attempt-1/logs/ps-0.log\n" in out
    assert main(["logs", str(run.path)]) == 0
    assert "worker:0 | ValueError: no data\n" in capsys.readouterr().out
    row = show.job_table(jobs.views([run])).splitlines()[1].split()
    assert row[:5] == ["digits", "25373.n1", "local", "FAILED", "3"]


def plan_anew(run: RunDir) -> None:
    """Write plan and rendezvous in this version's format: agents read no other."""
    spec = JobSpec.from_dict(json.loads(run.job.read_text())["spec"])
    request = resolved(spec)
    tasks = place(Allocation((Host("n1", 3, cpus=3),)), request)
    hosts = {"n1": "127.0.0.1"}
    AttemptPlan(run.attempt(1), NONCE, "7.n1", spec, request, hosts, tasks, "/usr/bin/python3", Path("/")).write()
    meeting = rendezvous.merge(tasks, {"n1": json.loads(run.attempt(1).host_record("n1").read_text())})
    rendezvous.publish(run.attempt(1), "7.n1", NONCE, meeting)


# --- damage

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**70,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "a\0b",
    "\ud800",
)
ODD += (
    "9" * 5000,
    "../../x",
    "/x",
    "--user=alice",
    "*",
    "a\nb",
    "\x1b[31m",
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"a": {}},
)


def mutated(record: Any, chance: random.Random) -> str:
    """The text of a record with random changes."""
    record = copy.deepcopy(record)
    for _ in range(chance.choice((1, 1, 2, 5))):
        found = [(record, key) for key in _keys(record)]
        for parent, key in found:
            found += [(parent[key], inner) for inner in _keys(parent[key])]
        if not found:
            break
        parent, key = chance.choice(found)
        match chance.randrange(4):
            case 0:
                del parent[key]
            case 1:
                other, name = chance.choice(found)
                with contextlib.suppress(LookupError):
                    parent[key] = copy.deepcopy(other[name])
            case _:
                parent[key] = copy.deepcopy(chance.choice(ODD))
    if chance.random() < 0.02:
        record = copy.deepcopy(chance.choice(ODD))
    text = json.dumps(record)
    if chance.random() < 0.1:
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(("", "[" * 2000, '"', "\\ud800", "9" * 5000, "é")) + text[at + 1 :]
    return text


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []


Reader = Callable[[RunDir], object]


def survives(run: RunDir, path: Path, read: Reader, *, seed: int, record: Any = None, count: int = COUNT) -> None:
    """Give a reader ``count`` damaged copies of a record: it may raise GridtfError only."""
    whole = json.loads(path.read_text()) if record is None else record
    chance, taken = random.Random(seed), 0
    path.write_text(json.dumps(whole))
    for _ in range(count):
        text = mutated(whole, chance)
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


def plan_of(run: RunDir) -> Any:
    plan = read_plan(run, 1, NONCE)
    assert plan is not None
    return plan


def agent_reads(run: RunDir) -> None:
    plan = read_plan(run, 1, NONCE)
    meeting = rendezvous.read(run.attempt(1), NONCE)
    if plan is None or meeting is None:
        return
    for task in plan.on("n1"):
        environment.task_environment({}, plan, task, meeting, ())
        environment.command(plan, task, meeting, Path("/gridtf"), Path("/package"))


def environment_reads(run: RunDir) -> None:
    environment.read_environment(run.attempt(1), NONCE, {"PATH": "/bin"})


def launcher_gathers(run: RunDir) -> None:
    collector = rendezvous.Collector(run.attempt(1), NONCE, ["n1"])
    if collector.poll():
        rendezvous.merge(plan_of(run).tasks, collector.records)


def launcher_watches(run: RunDir) -> None:
    hosts, tasks = HostMonitor(run.attempt(1), NONCE, ["n1"], 30, [], time.sleep, FakeSystem()), plan_of(run).tasks
    hosts.listen()
    hosts.pause = lambda seconds: None
    hosts.read()
    outcome = decide(tasks, hosts.tasks)
    if outcome.cause:
        of_task(outcome.cause, hosts.tasks[outcome.cause.name], run.attempt(1)).record(NONCE, 0, 1)
    hosts.check()


def agent_supervisor_reads(run: RunDir) -> None:
    AgentSupervisor("n1", [str(run.path), "1", NONCE], FakeSystem())._report("it was killed")


def task_reads(run: RunDir) -> None:
    told = {"TASK_TYPE": "worker", "TASK_INDEX": "0", "ATTEMPT": "1", "NONCE": NONCE, "RUN_DIR": str(run.path)}
    env = {f"GRIDTF_{name}": text for name, text in told.items()}
    contract.task({**env, "GRIDTF_RENDEZVOUS": str(run.attempt(1).rendezvous)})


def observer_reads(run: RunDir) -> None:
    """Read what status, wait, list and logs read."""
    for view in jobs.views([run]):
        show.as_json(view).encode()
        text = show.job(view, time.time()) + show.verdict(view, time.time()) + show.progress(view)
        (text + show.job_table([view])).encode(errors="surrogateescape")
    latest = run.latest()
    assert latest is not None
    logs.planned(latest)
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
STEP = Member(1, 2, "run-1")
SPEC = JobSpec(command=("true",), start_timeout=0.001)


def rank_0_gathers(run: RunDir) -> None:
    collector = rendezvous.Collector(run.attempt(1), NONCE, ["rank-0"], RankRecord)
    if collector.poll():
        tasks, records = plan_of(run).tasks[:1], [collector.records["rank-0"]]
        check_addresses(records)
        place_ranks(tasks, records, split_gpus(tasks, records, resolved(SPEC)))
        rendezvous.merge_ranks(tasks, records)


def rank_1_finds(run: RunDir) -> None:
    Joining(run, SPEC, resolved(SPEC), STEP, dict, FakeSystem())._find()


def launcher_is_signalled(run: RunDir) -> None:
    Launcher(run, SPEC, resolved(SPEC), local.scheduler, "7", FakeSystem())._of_signal(15)


def cancel_reads(run: RunDir) -> None:
    Job(run.path).cancel(wait=0)


@pytest.mark.parametrize(
    ("name", "read", "record"),
    [
        ("attempt-1/plan.json", agent_reads, None),
        ("attempt-1/environment.json", environment_reads, {"nonce": NONCE, "environ": {"PATH": "/bin", "A": "b"}}),
        ("attempt-1/hosts/n1.json", launcher_gathers, None),
        ("attempt-1/state/@n1.json", launcher_watches, STATE),
        ("attempt-1/state/@n1.json", agent_supervisor_reads, STATE),
        ("cancelled.json", launcher_is_signalled, CANCELLED),
        ("attempt-1/hosts/rank-0.json", rank_0_gathers, RANK),
        ("join-run-1/opened.json", rank_1_finds, {"attempt": 1, "nonce": NONCE}),
        ("attempt-1/rendezvous.json", task_reads, None),
        ("submitted.json", cancel_reads, None),
        ("job.json", observer_reads, None),
        ("submitted.json", observer_reads, None),
        ("cancelled.json", observer_reads, CANCELLED),
        ("ended.json", observer_reads, None),
        ("attempt-1/plan.json", observer_reads, None),
        ("attempt-1/stop.json", observer_reads, None),
        ("attempt-1/verdict.json", observer_reads, None),
        ("attempt-1/state/launcher.json", observer_reads, None),
        ("attempt-1/state/@n1.json", observer_reads, STATE),
    ],
)
def test_damaged_records_raise_gridtf_errors_only(
    name: str, read: Reader, record: Any, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = json.loads(run.submitted.read_text())["boot"]
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("", "n1", "", "", "")))
    monkeypatch.setattr(procfs, "boot_id", lambda: boot)
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(processes, "tell", lambda text: None)
    monkeypatch.setattr("gridtf.login.job._CANCEL_MARGIN", 0.0)
    (run.path / "join-run-1").mkdir()
    if read is not observer_reads:
        plan_anew(run)
    if name in ("cancelled.json", "ended.json", "attempt-1/stop.json", "attempt-1/state/launcher.json"):
        run.attempt(1).verdict.unlink()  # these records are read only without a verdict
    survives(run, run.path / name, read, seed=len(name), record=record)


def test_damaged_rendezvous_text_raises_gridtf_errors_only(run: RunDir) -> None:
    """rendezvous.json is read in two parts, the second of which most tasks never parse."""
    plan_anew(run)
    path, chance = run.attempt(1).rendezvous, random.Random(7)
    whole, taken = path.read_text(), 0
    for _ in range(COUNT):
        at, odd = chance.randrange(len(whole)), chance.choice(("", "[", "}", '"', "\n", "1", "é", "null", "\\ud800"))
        path.write_text(whole[:at] + odd + whole[at + chance.choice((0, 1, 20)) :])
        with contextlib.suppress(GridtfError):
            agent_reads(run)
            taken += 1
    assert 0 < taken < COUNT


def test_fifos_and_devices_as_records_do_not_block_commands(
    run: RunDir, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record in turn is replaced by a FIFO, a device and an endless file; other jobs are still listed."""
    good = RunDir(shutil.copytree(run.path, run.path.parent / "good"))
    job_id = json.loads(run.submitted.read_text())["job_id"]
    for where, name in ((run, "bad"), (good, "good")):
        registry.add(where.path, {"scheduler": "local", "job_id": job_id, "name": name, "time": 1.0}, os.environ)
    names = [run.job, run.submitted, run.log, *run.attempt(1).path.rglob("*.json"), *run.attempt(1).logs.iterdir()]
    assert len(names) > 9
    for path in names:
        original = path.read_bytes()
        plants: list[Callable[[Path], object]] = [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir]
        for plant in plants + ([_endless] if path.suffix == ".json" else []):  # a log may have any length
            path.unlink()
            plant(path)
            for words in (["status", str(run.path)], ["logs", str(run.path)], ["list", "--json"]):
                code = main(words)
                captured = capsys.readouterr()
                assert code in (0, 1)
                assert "this is a bug" not in captured.err
            states = {Path(view["run_dir"]).name: view["state"] for view in json.loads(captured.out)}
            assert states["good"] == "FAILED"
            assert states["digits"] in ("UNKNOWN", "FAILED")
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            path.write_bytes(original)


def _endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 36)
