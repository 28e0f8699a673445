"""What commands that wait ask of real controllers, all together, and what they find out all the same."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gridtf.run.rundir import read_record
from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import GRIDTF_ENVIRON, UNTIL_GO, finished, kill9, started
from tests.support.clusterjobs import GRIDTF, ClusterJob, gridtf
from tests.support.jobs import until
from tests.support.sgebed import BINARIES

COMMANDS = {"slurm": ("squeue", "sacct"), "sge": ("qstat", "qacct")}
FOLDERS = {"slurm": "/usr/bin", "sge": BINARIES}
CALLS_OF_A_QUESTION = {"slurm": 1, "sge": 2}  # qstat says which jobs wait, and qstat -j why
HELD = {"slurm": "--native=--hold", "sge": "--native=-h"}
WINDOW = 20.0  # seconds for which calls are counted
UNTIL_WAITED = UNTIL_GO.replace("go", "waited")


class Counter:
    """Counts the calls of a scheduler's commands by alice, through programs of the same names that run the real ones.

    Attributes:
        environ: The variables with which her commands find these programs.
    """

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        folder = bed.home() / "counting"
        folder.mkdir()
        self._calls = folder / "calls"
        seen = bed.seen(folder)
        for name in COMMANDS[bed.kind]:
            program = folder / name
            program.write_text(f'#!/bin/sh\necho "{name} $*" >>{seen}/calls\nexec {FOLDERS[bed.kind]}/{name} "$@"\n')
            program.chmod(0o755)
        bed.run("login", "chown", "-R", "alice:", seen, user="root")
        found_by = {"slurm": {"PATH": f"{seen}:{bed.path}"}, "sge": {"SGE_BINARY_PATH": seen}}[bed.kind]
        self.environ = {**GRIDTF_ENVIRON, **found_by}

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def questions(self) -> float:
        return len(self.calls) / CALLS_OF_A_QUESTION[self.bed.kind]


@contextmanager
def counted(bed: Bed) -> Iterator[Counter]:
    try:
        yield Counter(bed)
    finally:
        bed.run("login", "rm", "-rf", bed.seen(bed.home() / "counting"), user="root")


@on_every_scheduler
def test_fifty_waiters_share_the_answers_of_the_controller(bed: Bed) -> None:
    completes = started(bed, nodes=2, name="completes", command=UNTIL_WAITED)
    killed = started(bed, nodes=2, name="killed")
    pending = started(bed, HELD[bed.kind], nodes=1, name="pending", running=False)
    waiters = [completes] * 20 + [killed] * 15 + [pending] * 15
    script = (
        f'n=0; for run; do n=$((n+1)); ({shlex.join(GRIDTF)} wait "$run" >counting/out.$n 2>&1;'
        " echo $? >counting/code.$n) & done; wait"
    )
    with counted(bed) as counter:
        folder = bed.home() / "counting"
        outputs = [folder / f"out.{number}" for number, _ in enumerate(waiters, 1)]
        runs = [job.seen_as for job in waiters]
        with bed.popen("login", "bash", "-c", script, "sh", *runs, env=counter.environ) as shell:
            first = begin = time.monotonic()
            until(lambda: all(out.exists() and out.read_text() for out in outputs), "all of them to wait")
            # a first look takes an answer of the last 3 s, if there is one about its job
            assert counter.questions() <= 5 + (time.monotonic() - begin) / 3
            begin, before = time.monotonic(), counter.questions()
            time.sleep(WINDOW)
            while_waiting = counter.questions() - before
            assert while_waiting <= 2 + (time.monotonic() - begin) / 10
            end(bed, completes, killed, pending)
            finished(shell, 0, seconds=600)
        codes = [(folder / f"code.{number}").read_text().strip() for number, _ in enumerate(waiters, 1)]
        texts = [out.read_text() for out in outputs]
        assert codes == ["0"] * 20 + ["1"] * 30, texts
        for job, text in zip(waiters, texts, strict=True):
            state = {completes: "COMPLETED", killed: "FAILED", pending: "CANCELLED"}[job]
            assert f"({job.id}): {state}" in text, text
            assert ("SIGKILL" in text) == (job is killed), text
        assert counter.questions() <= 20 + (time.monotonic() - first) / 3, counter.calls


def end(bed: Bed, completes: ClusterJob, killed: ClusterJob, pending: ClusterJob) -> None:
    """One job completes, the launcher of another is killed, a pending one is cancelled."""
    bed.run("login", bed.delete, pending.id)  # which the queue alone shows
    launcher = read_record(killed.attempt.launcher) or {}
    kill9(bed, launcher["host"], launcher["pid"])
    (bed.home() / "waited").touch()


@on_every_scheduler
def test_ten_terminals_with_status_share_the_answers_of_the_controller(bed: Bed) -> None:
    jobs = [started(bed, HELD[bed.kind], nodes=1, name="pending", running=False) for _ in range(2)]
    status = f'{shlex.join(GRIDTF)} status "$run" >/dev/null || echo failed'
    script = f"for run; do for _ in 1 2 3 4 5; do (for _ in 1 2 3 4 5; do {status}; done) & done; done; wait"
    with counted(bed) as counter:
        begin = time.monotonic()
        runs = [job.seen_as for job in jobs]
        done = bed.run("login", "bash", "-c", script, "sh", *runs, env=counter.environ, timeout=900)
        assert done.stdout == ""
        assert 1 <= counter.questions() <= 2 + (time.monotonic() - begin) / 3


@on_every_scheduler
def test_own_commands_are_seen_at_once(bed: Bed) -> None:
    for _ in range(2):
        job = started(bed, HELD[bed.kind], nodes=1, name="own", running=False)
        assert job.status()["state"] == "PENDING"
        assert f" {job.id} " in gridtf(bed, "list").stdout
        job.gridtf("cancel")
        assert job.status()["state"] == "CANCELLED"


@on_every_scheduler
def test_killed_command_that_asks_holds_nobody_up(bed: Bed) -> None:
    """One that is killed in the middle of its question; one that is stopped is in unit tests."""
    job = started(bed, HELD[bed.kind], nodes=1, name="held-up", running=False)
    with counted(bed) as counter:
        name = COMMANDS[bed.kind][0]
        real = bed.home() / "counting" / name
        text = real.read_text()
        real.write_text(
            text.replace("exec ", "until ls counting | grep -qx go || [ ! -e counting ]; do sleep 0.1; done\nexec ")
        )
        words = [*GRIDTF, "status", job.seen_as]
        with bed.popen("login", *words, env=counter.environ) as first:
            until(lambda: counter.calls, "its question")
            with bed.popen("login", *words, env=counter.environ) as second:
                first.kill()
                until(lambda: len(counter.calls) == 2, "the question of the other one")
                (bed.home() / "counting" / "go").touch()
                assert "PENDING" in finished(second, 0)
