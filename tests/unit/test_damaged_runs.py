"""Commands that read run directories, given damaged ones: a finished run, a running one, and a sweep.

Each record in turn is damaged in each way: no command ends in a traceback, none takes a job that has completed for one
that has failed or the reverse, a whole verdict is believed, and what is damaged is named. ``MUTATIONS=5000:7`` tries
5000 cases of each run, with the seed 7.
"""

from __future__ import annotations

import functools
import html
import json
import os
import random
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from gridtf.cli import main
from gridtf.errors import DamagedError, GridtfError
from gridtf.login import sweeps
from gridtf.observe import jobs
from gridtf.report import page
from gridtf.run import reduced, registry
from gridtf.run.rundir import RunDir, read_record, write_record
from gridtf.schedulers.api import JobStatus
from gridtf.states import JobState
from tests.support import mutations, recordedruns
from tests.support.plans import NONCE
from tests.support.scheduler import FakeScheduler
from tests.support.topics import fast

Captured = pytest.CaptureFixture[bytes]
GONE = JobStatus(JobState.UNKNOWN, "it is not in the queue", purged=True)


# --- the runs


def finished(top: Path) -> RunDir:
    """A run that has completed, with each record that such a run can have."""
    return _complete(recordedruns.make(top / "digits", workers=2, ps=1, gpus=1, minutes=0.25), JobState.COMPLETED)


def running(top: Path) -> RunDir:
    """A run that goes on."""
    begin = time.time() - 45.0
    run = recordedruns.make(top / "digits", workers=2, ps=1, gpus=1, minutes=0.25, state="RUNNING", begin=begin)
    return _complete(run, JobState.RUNNING)


def swept(top: Path) -> RunDir:
    """A sweep whose first element has completed and is packed, the second one has completed, the third one failed; and
    the third one again, which has completed."""
    run = recordedruns.make(top / "digits", minutes=0.1)
    shutil.rmtree(run.attempt(1).path)
    spec = json.loads(run.job.read_text())["spec"]
    rows = [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}]
    again = RunDir(run.path / "rerun-1")
    for each, numbers, states in ((run, [], ("COMPLETED", "COMPLETED", "FAILED")), (again, [3], ("COMPLETED",))):
        each.elements.mkdir(parents=True)
        write_record(each.sweep, {"rows": rows[: len(states)], "at_once": 2, "pack": 1, "numbers": numbers})
        write_record(each.job, {"spec": {**spec, "params": {"lr": 1.0}}, "sources": {}}, mode=0o600)
        write_record(
            each.submitted,
            {"scheduler": "slurm", "job_id": "7" if each is run else "8", "name": "digits", "time": recordedruns.BEGIN}
            | {"elements": [str(number + 1) for number in range(len(states))]},
        )
        for number, state in enumerate(states, 1):
            element = recordedruns.make(each.elements / str(number), workers=1, minutes=0.1, state=state)
            if number == 1:
                verdict = json.loads(element.attempt(1).verdict.read_text())
                write_record(element.attempt(1).verdict, {**verdict, "again": False})
                reduced.reduce(element, rows[number - 1])
    return run


def _complete(run: RunDir, state: JobState) -> RunDir:
    """Add the records that only some runs have."""
    latest = run.latest()
    assert latest is not None
    submitted = {**json.loads(run.submitted.read_text()), "scheduler": "slurm", "command": ["sbatch", "job.sh"]}
    write_record(run.submitted, submitted)
    job = json.loads(run.job.read_text())
    origin = {"step": "train", "waits_for": {str(run.path.parent / "other"): "other (6)"}}
    write_record(run.job, {**job, "origin": origin}, mode=0o600)
    write_record(run.steps, {"steps": {"train": str(run.path)}})
    write_record(run.code, {"commit": "0" * 40, "branch": "main", "dirty": False})
    pythons = {"worker": {"python": "/usr/bin/python3", "version": "3.11", "packages": {"keras": "3.0"}}}
    write_record(latest.packages, {"nonce": NONCE, "pythons": pythons})
    cluster = {"worker": ["h0:1", "h1:1"], "ps": ["h0:2"]}
    write_record(latest.rendezvous, {"nonce": NONCE, "cluster": cluster, "outside": {}, "master_port": 3})
    (latest.logs / "worker-0.log.parts").write_text(json.dumps({str(latest.task_log("worker", 0).stat().st_ino): 0}))
    write_record(latest.host_state("h0"), {"nonce": NONCE, "host": "h0", "tasks": {}, "over": True})
    if state == JobState.RUNNING:
        launcher = json.loads(latest.launcher.read_text())
        write_record(latest.launcher, {**launcher, "time": time.time()})
    else:
        write_record(run.ended, {"exit": 0, "signal": None, "told": None, "error": None})
        write_record(latest.stop, {"nonce": NONCE, "state": state, "reason": "all training tasks have exited with 0"})
    return run


# --- the damage

Damage = Callable[[Path, random.Random], object]


def _text(text: str) -> Damage:
    return lambda path, chance: path.write_text(f"{text}\n")


def _planted(plant: Callable[[Path], object]) -> Damage:
    def planted(path: Path, chance: random.Random) -> None:
        path.unlink()
        plant(path)

    return planted


@functools.cache
def _bomb() -> Path:
    """A file of three million keys, which would take 870 MB of memory."""
    descriptor, path = tempfile.mkstemp()
    with os.fdopen(descriptor, "w") as file:
        file.write("{" + ",".join(f'"{number}":0' for number in range(3_000_000)) + "}")
    return Path(path)


@pytest.fixture(autouse=True, scope="module")
def _no_bomb() -> Iterator[None]:
    yield
    if _bomb.cache_info().currsize:
        _bomb().unlink()
        _bomb.cache_clear()


def _cut(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(1, len(data) - 2)])


def _odd(path: Path, chance: random.Random) -> None:
    """Wrong types in a record, or in one of the lines of a file."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    at = chance.randrange(len(lines))
    lines[at] = mutations.record(json.loads(lines[at]), chance)
    path.write_bytes("\n".join([*lines, ""]).encode(errors="surrogatepass"))


WHOLE: dict[str, Damage] = {
    "null": _text("null"),
    "list": _text("[]"),
    "number": _text("7"),
    "folder": _planted(Path.mkdir),
    "FIFO": _planted(os.mkfifo),
    "device": _planted(lambda path: path.symlink_to("/dev/zero")),
    "bomb": _planted(lambda path: path.hardlink_to(_bomb())),
}
PLANTED = ("folder", "FIFO", "device")
OF_RECORDS: dict[str, Damage] = {"empty": _text(""), "cut": _cut}  # a file of lines may be, while it grows
ODD: dict[str, Damage] = {"table": _text("{}"), **{f"odd-{number}": _odd for number in range(6)}}
KINDS = {**WHOLE, **OF_RECORDS, **ODD}


# --- the commands

JOB, OTHER = "./digits", "./other"
STATUS, ROWS, REPORT = ["status", JOB, "--json"], ["list", JOB, "--json"], ["report", JOB, "-o", "-"]
COMMANDS = (
    *(REPORT, ["status", JOB], ["list", JOB], ["list", "--json"], ["address", JOB, "worker:0"], ["logs", JOB]),
    *(["logs", JOB, "--errors"], ["logs", JOB, "--timestamps"], ["wait", JOB, "--timeout", "0"]),
    *(["report", JOB, OTHER, "-o", "-"], ["report", JOB, OTHER, "--json"], ["report", JOB, "--csv"]),
    *(["report", JOB, "--bundle", "-o", "-"], ["diff", JOB, OTHER], ["advise", JOB], ["metrics"]),
    *(["monitor", JOB, "--once"], ["clean", JOB, "--dry-run"], ["rerun", JOB, "--dry-run"], ["resume", JOB]),
    *(["rerun", JOB, "--failed", "--dry-run"], ["render", "--like", JOB, "--", "true"], ["cancel", JOB]),
)
# Records that `gridtf status` does not name where they are damaged: who does. The first of BY_NONE is read while a job
# runs, the last of local jobs.
BY_LIST, BY_REPORT, BY_NONE = (
    ("sweep.json", "result.json"),
    ("samples.jsonl",),
    ("rendezvous.json", "logtimes.jsonl", "ended.json"),
)


class Case:
    """A run whose records are damaged one after the other.

    Args:
        make: One of the functions above.
        folder: Where it is.
        fake: Its scheduler.
        output: What commands print.

    Attributes:
        records: Its records: their paths below the run directory.
    """

    def __init__(self, make: Callable[[Path], RunDir], folder: Path, fake: FakeScheduler, output: Captured) -> None:
        self._fake, self._output = fake, output
        self.run = make(folder)
        self._queue = JobStatus(JobState.RUNNING) if make is running else GONE
        self._state = {"finished": "COMPLETED", "running": "RUNNING", "swept": "FAILED"}[make.__name__]
        self._elements = ["COMPLETED"] * 3 if make is swept else []
        recordedruns.make(folder / "other", workers=1, minutes=0.1)
        registry.add(self.run.path, {**json.loads(self.run.submitted.read_text()), "time": time.time()}, os.environ)
        self._there = set(folder.iterdir())
        found = (path.relative_to(self.run.path) for path in sorted(self.run.path.rglob("*")) if path.is_file())
        self.records = [path for path in found if path.suffix in (".json", ".jsonl", ".parts", ".log")]

    def try_all(self, record: Path, kind: str, commands: Iterable[list[str]]) -> None:
        """Damage a record, run commands, and check what they say."""
        path = self.run.path / record
        whole, mode = path.read_bytes(), path.stat().st_mode
        case = f"{mutations.SEED} {record} {kind}"
        KINDS[kind](path, random.Random(case))
        try:
            said = {" ".join(words): self._does(words, case) for words in commands}
        finally:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            path.write_bytes(whole)
            path.chmod(mode)
        needed = record.name in ("verdict.json", "result.json")  # to know how a run has ended
        lies = kind in ODD and record.name in ("submitted.json", "sweep.json")  # about which elements there are
        if not lies and (text := said.get(" ".join(STATUS), "")).startswith("{"):
            self._fits([json.loads(text)["state"]], [self._state], needed, case)
        if not lies and (text := said.get(" ".join(ROWS), "")).startswith("["):
            self._fits([row["state"] for row in json.loads(text)], self._elements, needed, case)
        if self._state == "COMPLETED":
            assert not [command for command, text in said.items() if "FAILED" in text], case
        named = kind in WHOLE or (kind in OF_RECORDS and record.suffix != ".jsonl")
        named = named and record.name not in BY_NONE and record.suffix != ".log"
        if record.parts[0] in ("array", "rerun-1"):  # commands for a sweep read little else of its elements
            named = named and record.name in BY_LIST
        teller = ROWS if record.name in BY_LIST else REPORT if record.name in BY_REPORT else STATUS
        if named and " ".join(teller) in said:
            text = said[" ".join(teller)]
            assert record.name in text, (case, text)
            assert "damaged" in text, (case, text)

    def _does(self, words: list[str], case: str) -> str:
        """Run a command. Returns what it has printed."""
        self._fake.states = [self._queue]
        try:
            main(["--debug", *words])
        except GridtfError as error:
            assert "\n" not in error.what, case
            print(error, file=sys.stderr)
        except Exception as error:
            raise AssertionError(f"gridtf {' '.join(words)}: {type(error).__name__}: {error} ({case})") from error
        for made in set(self.run.path.parent.iterdir()) - self._there:
            shutil.rmtree(made)
        self.run.cancelled.unlink(missing_ok=True)
        captured = self._output.readouterr()
        return (captured.out + captured.err).decode(errors="replace")

    def _fits(self, states: list[str], true: list[str], needed: bool, case: str) -> None:
        """Check the states that a command has told, which may be unknown where the verdict is damaged."""
        allowed = [(one, "UNKNOWN") if needed or one == "RUNNING" else (one,) for one in true]
        assert all(one in known for one, known in zip(states, allowed, strict=True)), (case, states)


@mutations.inputs(2, 90)
@pytest.mark.parametrize("make", [finished, running, swept])
def test_damaged_records_are_named_and_change_no_state(
    make: Callable[[Path], RunDir],
    count: int,
    fake: FakeScheduler,
    rough_path: Path,
    capsysbinary: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each case has one record, one kind of damage and a few commands; each record and each kind comes in its turn."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr("gridtf.login.cancelling._MARGIN", 0.0)
    case = Case(make, rough_path, fake, capsysbinary)
    chance = random.Random(f"{make.__name__} {mutations.SEED}")
    records, kinds = chance.sample(case.records, len(case.records)), chance.sample([*KINDS], len(KINDS))
    for number in range(count):
        record, kind = records[number % len(records)], kinds[(number + number // len(records)) % len(kinds)]
        if record.suffix == ".log":
            kind = chance.choice(PLANTED)
        case.try_all(record, kind, [STATUS, ROWS, *chance.sample(COMMANDS, 4)])


@pytest.mark.thorough
@pytest.mark.parametrize("name", fast(1, "verdict.json", "plan.json", "hosts.json", "@h0.json"))
def test_record_of_three_million_keys_is_not_parsed(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(_bomb().read_bytes())
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError, match=rf"{name} is damaged: it is larger than any such file of gridtf"):
            read_record(tmp_path / name)
        assert tracemalloc.get_traced_memory()[1] < 150e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["[]", "null", "7", '{"rows": [], "at_once": 1, "pack": 1, "numbers": []}', "{}"])
def test_damaged_sweep_is_named(text: str, fake: FakeScheduler, rough_path: Path) -> None:
    fake.states = [GONE]
    run = swept(rough_path)
    run.sweep.write_text(text)
    for words in (["list", JOB], ["rerun", JOB, "--failed", "--dry-run"]):
        with pytest.raises(DamagedError, match=r"digits/sweep\.json is damaged: "):
            main(["--debug", *words])


def test_element_whose_result_is_damaged_is_unknown_and_is_run_again(fake: FakeScheduler, rough_path: Path) -> None:
    fake.states = [GONE]
    run = swept(rough_path)
    result = RunDir(run.elements / "1").result
    result.write_text("[]")
    rows = sweeps.rows(run)
    assert [(row.state, row.reason) for row in rows[:1]] == [
        ("UNKNOWN", f"{result} is damaged: it is not a JSON object")
    ]
    assert sweeps.to_run_again(run)[0].numbers == (1,)
    seen = jobs.view(RunDir(run.elements / "1"))
    assert (seen.state, seen.reason, seen.damaged) == ("UNKNOWN", "result.json is damaged", ("result.json",))


def test_report_of_a_command_that_is_no_text_names_the_record(fake: FakeScheduler, rough_path: Path) -> None:
    run = recordedruns.describe(finished(rough_path), command=["python", 7])
    assert f"{run.job} is damaged: spec.command.1 is 7" in html.unescape(page.of_job(run, time.time()))
