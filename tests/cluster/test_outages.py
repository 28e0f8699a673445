"""Outages of hosts and of the scheduler's server while jobs run; for every scheduler."""

from __future__ import annotations

import json
import re
import time
from subprocess import PIPE, Popen

import pytest

from gridtf.run.rundir import read_record
from tests.support.beds import on_every_laggy_scheduler, on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import (
    GRIDTF_ENVIRON,
    PROMPT,
    STUBBORN,
    UNTIL_GO,
    UNTIL_RELEASED,
    admin,
    begun,
    ended,
    finished,
    no_process_left,
    parent,
    release,
    started,
)
from tests.support.clusterjobs import GRIDTF


@on_every_scheduler
def test_power_cut_of_a_host_is_a_node_failure(bed: Bed) -> None:
    job = started(bed, "--heartbeat-timeout", "4", command=STUBBORN)
    cut = time.time()
    bed.kill("n3")
    verdict = ended(job, "NODE_FAIL", "host n3")
    assert verdict["ended"] - cut < PROMPT
    no_process_left(bed, ("n1", "n2", "n4"))
    view = job.status()
    assert (view["state"], view["exit_code"]) == ("NODE_FAIL", 1)
    lost = next(task for task in view["tasks"] if task["host"] == "n3")
    assert lost["state"] in ("STOPPED", "UNKNOWN")
    bed.mend("n3")
    no_process_left(bed)


@on_every_scheduler
def test_outage_of_the_scheduler_s_server(bed: Bed) -> None:
    """One job goes on during the outage, another one ends."""
    job = started(bed, nodes=2, command=UNTIL_GO.replace("go", "outage"))
    ends = started(bed, nodes=2, name="ends", command=UNTIL_GO.replace("go", "end"))
    runs = set((bed.home() / "gridtf-runs").iterdir())
    submit = [*GRIDTF, "submit", *bed.options, "--nodes", "1", "--tasks-per-node", "1", "--", "true"]
    with begun(job, "wait") as waits:
        bed.stop_server()
        with (
            begun(job, "status", "--json") as status,
            begun(job, "cancel") as cancel,
            bed.popen("login", *submit, env=GRIDTF_ENVIRON) as submits,
        ):
            not_submitted, shown, not_cancelled = finished(submits, 1), finished(status, 0), finished(cancel, 1)
        view = json.loads(shown)
        assert view["state"] == "RUNNING"
        assert [task["state"] for task in view["tasks"]] == ["RUNNING", "RUNNING"]
        for output in (not_submitted, not_cancelled):
            assert f"{bed.server} does not answer" in output
            assert "try again later" in output
        assert set((bed.home() / "gridtf-runs").iterdir()) == runs
        assert not job.run.cancelled.exists()
        (bed.home() / "end").touch()
        ended(ends, "COMPLETED")
        bed.mend("ctl")
        assert waits.poll() is None
        (bed.home() / "outage").touch()
        assert f"fault ({job.id}): COMPLETED" in finished(waits, 0)
    assert "COMPLETED" in ends.gridtf("wait").stdout


@on_every_scheduler
def test_wait_ends_although_the_process_above_a_failed_job_hangs(bed: Bed) -> None:
    """slurmstepd, or sge_shepherd."""
    job = started(bed, nodes=1, command=f"{UNTIL_RELEASED}; exit 7")
    above = parent(bed, "n1", (read_record(job.attempt.launcher) or {})["pid"])
    admin(bed, "kill", "-STOP", str(above), host="n1")
    try:
        release(job)
        ended(job, "FAILED", "exit code 7")
        wait = "import sys; from gridtf.cli import main; from gridtf.observe import watch; watch._LEAVES = 6.0"
        words = ("python", "-c", f"{wait}; sys.exit(main())", "wait", job.seen_as)
        done = bed.run("login", *words, env=GRIDTF_ENVIRON, check=False)
        assert (done.returncode, "exit code 7" in done.stdout) == (1, True), done
        assert f"{bed.kind} still lists it" in done.stdout
    finally:
        admin(bed, "kill", "-CONT", str(above), host="n1")
    no_process_left(bed)


@on_every_laggy_scheduler
def test_cancelled_and_failed_job_with_a_laggy_shared_folder(bed: Bed) -> None:
    job = started(bed, command=STUBBORN)
    bed.run("login", bed.delete, job.id)
    ended(job, "CANCELLED", bed.deleted)
    no_process_left(bed)
    fails = started(bed, command="echo up; [ $RANK != 2 ] || { sleep 3; exit 7; }; sleep 300", running=False)
    with begun(fails, "wait") as waits, begun(fails, "logs", "-f") as following:
        assert "worker:2 on n3: exit code 7" in finished(waits, 1)
        printed = finished(following, 0)
    ended(fails, "FAILED", "worker:2 on n3: exit code 7")
    # the folder may show a log before it shows the hosts of the tasks
    assert sorted(re.findall(r"(worker:\d)(?:@n\d)? \| up\n", printed)) == [f"worker:{n}" for n in range(4)], printed
    assert "FAILED: worker:2" in fails.gridtf("monitor", "--once").stdout
    no_process_left(bed)


# For each line that it is sent, prints the last line of a log, in turns as the kernel has it and as for a verdict, and
# when it began to read, by the monotonic clock.
READER = """
import itertools, sys, time
from pathlib import Path
from gridtf.bootstrap.judge.verdict import final_lines
from gridtf.run.tail import last_lines
log = Path(sys.argv[1])
for read, _ in zip(itertools.cycle((last_lines, final_lines)), sys.stdin):
    begin = time.monotonic()
    line = read(log)[-1]
    log.stat()  # the kernel keeps the answer for a second; before the log grows, which the line printed allows
    print(line, begin, flush=True)
"""


@pytest.mark.parametrize("bed", ["remote_slurm"], indirect=True)
def test_verdict_has_the_last_lines_of_a_log_whose_length_is_cached(bed: Bed) -> None:
    log = bed.home() / "cached.log"
    command = bed.command("n1", "python", "-c", READER, bed.seen(log), env=GRIDTF_ENVIRON)
    written, shown, begun_at = list(range(40)), [], []
    with Popen(command, env=bed.environ(), stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in written:
            with log.open("a") as file:  # as another host would
                file.write(f"{number}\n")
            process.stdin.write("\n")
            process.stdin.flush()
            line, begin = process.stdout.readline().split()
            shown.append(int(line))
            begun_at.append(float(begin))
        process.stdin.close()
    assert shown[1::2] == written[1::2]
    # Of two readings within a second one is stale at least: the kernel looks the path up anew once a second. A machine
    # that is very busy gets no two of them done.
    quick = [turn for turn in written[2:-3:2] if begun_at[turn + 3] - begun_at[turn - 1] < 0.9]
    stale = [turn for turn in written[::2] if shown[turn] != turn]
    assert all({turn, turn + 2} & {*stale} for turn in quick), f"the kernel has kept nothing: {stale} of {begun_at}"
