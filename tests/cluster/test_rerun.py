"""Jobs that are run again on real schedulers, with other resources, and with what another job has used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gridtf.run.rundir import RunDir
from tests.support.beds import on_every_scheduler
from tests.support.cluster import CHECKOUT, SHARED, Bed
from tests.support.clusterfaults import no_process_left
from tests.support.clusterjobs import ClusterJob, gridtf
from tests.support.jobs import hosts_of

ONE = {"slurm": ("--nodes", "1", "--tasks-per-node", "1"), "sge": ("--pe", "one", "--slots", "1")}
TWO = {"slurm": ("--nodes", "2"), "sge": ("--slots", "2")}
PROGRAM = (
    "import json, sys, time, gridtf\n"
    "print(json.dumps([sys.argv[1:], gridtf.task().params]), flush=True)\n"
    "time.sleep(float(sys.argv[1].partition('=')[2]))\n"
)


def run_of(bed: Bed, answer: dict[str, Any]) -> RunDir:
    return RunDir(bed.shared / Path(answer["run_dir"]).relative_to(SHARED))


def waited(bed: Bed, job: str) -> None:
    done = gridtf(bed, "wait", job, "--timeout", "200", check=False, timeout=210)
    assert done.returncode == 0, done.stdout + done.stderr + bed.about(job)


@on_every_scheduler
def test_job_runs_again_on_more_hosts_and_one_like_it_takes_what_it_has_used(bed: Bed) -> None:
    env = ("--env", "PATH", "--env", f"PYTHONPATH={CHECKOUT}", "--sample-interval", "1", "--time", "30")
    given = ("--set", "seconds=8.0", "--set", "tag=a 'b' $x")
    command = ("--", "python", "-c", PROGRAM, "{params}")
    first = ClusterJob(bed, *bed.options, *ONE[bed.kind], "--name", "tells", *env, *given, *command)
    waited(bed, first.id)
    answer = json.loads(
        gridtf(bed, "rerun", first.id, *TWO[bed.kind], "--set", "seconds=0.5", "--json", "--time", "20").stdout
    )
    second = run_of(bed, answer)
    waited(bed, answer["job_id"])
    hosts = [hosts_of(run.latest()) for run in (first.run, second)]
    assert [len(found) for found in hosts] == [1, 2], first.output
    params = {"seconds": 0.5, "tag": "a 'b' $x"}
    for number in (0, 1):
        line = second.attempt(1).task_log("worker", number).read_text()
        assert json.loads(line) == [["--seconds=0.5", "--tag=a 'b' $x"], params]
    record = json.loads(second.job.read_text())
    assert (record["origin"], record["spec"]["time"]) == ({"rerun_of": first.seen_as}, 20)
    script = second.script.read_text()
    assert ("0:20:00" in script, "0:30:00" in script) == (True, False)

    like = (*bed.options, *ONE[bed.kind], "--like", first.id, *env[:-2], *given, *command)
    shown = gridtf(bed, "render", *like)
    measured = [line for line in shown.stderr.splitlines() if f"measured in tells ({first.id}): " in line]
    assert [line.split()[0] for line in measured] == ["cpus_per_task", "mem_per_task", "time"], shown.stderr
    assert "512M" in shown.stdout
    third = ClusterJob(bed, *like)
    waited(bed, third.id)
    no_process_left(bed)
