"""Jobs that are longer than their walltime, on real schedulers: they save before it is over, and go on."""

from __future__ import annotations

import json
import shlex
from typing import Any

from gridtf.run.rundir import RunDir, read_record
from tests.support.beds import on_every_scheduler
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterfaults import admin, no_process_left
from tests.support.clusterjobs import ClusterJob, gridtf
from tests.support.sgefaults import RUN, ScriptJob

# Slurm counts in minutes. A job is asked to save ten seconds after its start, and has more time for that than it needs.
SAVES = ("--time", "3", "--checkpoint-before", "170s")
AT_ONCE = ("--time", "60", "--checkpoint-before", "3599s")
TWO_HOSTS = {"slurm": ("--nodes", "2", "--tasks-per-node", "1"), "sge": ("--pe", "one", "--slots", "2")}
ONE_HOST = {"slurm": ("--nodes", "1"), "sge": ("--slots", "1", "--pe", "one")}
FORBIDS = {"slurm": "--native=--no-requeue", "sge": "--native=-r n"}
COUNTING = f"{CHECKOUT}/tests/support/counting.py"


def counts(bed: Bed, steps: int, most: int, *words: str, workers: int = 1) -> ClusterJob:
    """Submit a job whose tasks count steps, at most so many in one start."""
    where = (TWO_HOSTS if workers == 2 else ONE_HOST)[bed.kind]
    options = (*bed.options, *where, "--workers", str(workers), "--name", "count", "--kill-grace", "1")
    env = ("--env", "PATH", "--env", f"PYTHONPATH={CHECKOUT}")
    return ClusterJob(bed, *options, *env, *words, "--", "python", COUNTING, str(steps), str(most))


def waited(job: ClusterJob, code: int = 0) -> str:
    done = job.gridtf("wait", "--timeout", "400", check=False, timeout=410)
    assert done.returncode == code, f"{done.stdout}{done.stderr}{job.output}{job.bed.about(job.id)}"
    return done.stdout


def made(run: RunDir, index: int) -> list[int]:
    """The steps that a task has made, in all starts of the job."""
    return [int(line) for line in (run.output / f"made-{index}").read_text().split()]


def verdicts(run: RunDir) -> list[dict[str, Any]]:
    return [read_record(attempt.verdict) or {} for attempt in run.attempts()]


@on_every_scheduler
def test_job_of_three_walltimes_finishes_alone(bed: Bed) -> None:
    job = counts(bed, 30, 10, *SAVES, "--continue", "50", workers=2)
    waited(job)
    view = job.status()
    assert (view["state"], view["job_id"]) == ("COMPLETED", job.id)
    assert view["attempt"] >= 3
    assert [made(job.run, index) for index in (0, 1)] == [list(range(30))] * 2
    ends = verdicts(job.run)
    assert [end["state"] for end in ends] == ["SAVED"] * (len(ends) - 1) + ["COMPLETED"]
    assert "starts it again (1 of 50)" in ends[0]["reason"]
    assert job.output.count("a checkpoint was requested") >= 2
    no_process_left(bed)


@on_every_scheduler
def test_elements_of_an_array_go_on_one_by_one(bed: Bed) -> None:
    job = counts(bed, 2, 1, *AT_ONCE, "--continue", "2", f"--native={' '.join(bed.array)}")
    waited(job)
    for element in bed.elements:
        run = RunDir(job.run.elements / element)
        assert made(run, 0) == [0, 1]
        assert [end["state"] for end in verdicts(run)] == ["SAVED", "COMPLETED"]


@on_every_scheduler
def test_job_that_must_not_be_started_again_is_resumed(bed: Bed) -> None:
    job = counts(bed, 2, 1, *AT_ONCE, "--continue", "2", FORBIDS[bed.kind])
    said = waited(job, code=42)
    assert "to be continued; it is not started again: " in said
    assert f"to continue with its checkpoints: gridtf resume {job.id}" in said
    assert len(job.run.attempts()) == 1
    answer = json.loads(gridtf(bed, "resume", job.id, "--json").stdout)
    done = gridtf(bed, "wait", answer["run_dir"], "--timeout", "200", check=False, timeout=210)
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer["job_id"] != job.id
    assert made(job.run, 0) == [0, 1]
    no_process_left(bed)


def test_preempted_job_goes_on_from_what_it_has_saved(slurm: Bed) -> None:
    """Slurm starts it again itself; that is no start that `continue` counts."""
    admin(slurm, "scontrol", "update", "PartitionName=scavenge", "PreemptMode=REQUEUE")
    try:
        late = ("--time", "60", "--checkpoint-before", "30m", "--continue", "1")  # long after the test
        job = counts(slurm, 2, 1, "--partition", "scavenge", "--native=--exclusive", *late)
        saved = job.run.output / "saved-0"
        job.until(lambda: saved.exists() and saved.read_text() == "1", "the first step")
        everywhere = ("--nodes", "4", "--tasks-per-node", "1", "--native=--exclusive", "--workers", "4")
        other = ClusterJob(slurm, *slurm.options, *everywhere, "--name", "important", "--", "sleep", "1")
        waited(job)
        waited(other)
    finally:
        admin(slurm, "scontrol", "update", "PartitionName=scavenge", "PreemptMode=CANCEL")
    first, last = verdicts(job.run)
    assert (first["state"], first["again"], last["state"]) == ("CANCELLED", True, "COMPLETED")
    assert "Slurm has requeued it" in first["reason"]
    assert made(job.run, 0) == [0, 1]


def test_limit_that_an_administrator_extends_defers_the_request(slurm: Bed) -> None:
    job = counts(slurm, 2, 1, "--time", "2", "--checkpoint-before", "80s")  # 40 s after the start
    job.running(1)
    admin(slurm, "scontrol", "update", f"JobId={job.id}", "TimeLimit=3")
    assert "to be continued" in waited(job, code=42)
    (end,) = verdicts(job.run)
    assert end["ended"] - end["started"] > 60  # Slurm's own request may come half a minute earlier


def test_limit_that_an_administrator_makes_shorter_is_no_surprise(slurm: Bed) -> None:
    """The launcher would look again after four minutes; Slurm looks at its jobs every half minute."""
    job = counts(slurm, 2, 1, "--time", "10", "--checkpoint-before", "90s", "--continue", "1")
    job.running(1)
    admin(slurm, "scontrol", "update", f"JobId={job.id}", "TimeLimit=2")
    waited(job)
    assert [end["state"] for end in verdicts(job.run)] == ["SAVED", "COMPLETED"]
    assert made(job.run, 0) == [0, 1]
    own = gridtf(
        slurm, "render", "--checkpoint-before", "90s", "--time", "10", "--native=--signal=USR2@7", "--", "true"
    )
    assert [line for line in own.stdout.splitlines() if "signal=" in line] == ["#SBATCH --signal=USR2@7"]


def test_limit_that_qalter_shows_is_not_that_of_a_running_job(sge: Bed) -> None:
    job = counts(sge, 2, 1, "--time", "90s", "--checkpoint-before", "60s", "--continue", "1")
    job.running(1)
    admin(sge, "qalter", "-l", "h_rt=3600", job.id)
    waited(job)
    assert [end["state"] for end in verdicts(job.run)] == ["SAVED", "COMPLETED"]


def test_script_of_one_s_own_goes_on_at_the_end_of_h_rt(sge: Bed) -> None:
    """The launcher learns the limit from Grid Engine, since gridtf_run has no --time."""
    options = "--checkpoint-before 110s --continue 9"
    folder, program = shlex.quote(f"PYTHONPATH={CHECKOUT}"), shlex.quote(COUNTING)
    run = f"{RUN} {options} --env {folder} -- python {program} 2 1\n"
    job = ScriptJob(sge, run, "-pe", "one", "1", "-l", "h_rt=120", "-r", "y")
    job.until(lambda: len(verdicts(job.run)) == 2 and verdicts(job.run)[1], "the end of its second start", 240)
    assert [end["state"] for end in verdicts(job.run)] == ["SAVED", "COMPLETED"]
    assert made(job.run, 0) == [0, 1]
    assert job.status()["state"] == "COMPLETED"
