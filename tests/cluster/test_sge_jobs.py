"""Jobs on a real Grid Engine, as a plain user sees them. What holds for every scheduler: test_jobs.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterjobs import ClusterJob, gridtf

TELL = 'echo "$GRIDTF_TASK_TYPE $GRIDTF_TASK_INDEX rank $RANK of $WORLD_SIZE on $HOSTNAME" "gpu $CUDA_VISIBLE_DEVICES"'
# Arguments that shells and Grid Engine's parsers treat specially.
NASTY = [
    "a b",
    "$HOME",
    "`id`",
    "q'uo\"te",
    "",
    "*",
    "back\\slash",
    "ümlaut",
    "two\nlines",
    "a,b=c",
    "#$ -l x",
    "%s;&|",
]
DAEMONS = (("ctl", "sge_qmaster"), ("n1", "sge_execd"))
REPEAT = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['NASTY'], os.environ['HOSTNAME']]))"


def submitted(bed: Bed, *words: str, name: str = "tell", command: str = TELL, **more: Any) -> ClusterJob:
    return ClusterJob(bed, "--env", "PYTHONPATH", "--name", name, *words, "--", "bash", "-c", command, **more)


@pytest.mark.parametrize("way", ["drmaa", "qsub"])
def test_cancel_from_another_process(sge: Bed, way: str) -> None:
    more = {"env": {"GRIDTF_SGE_SUBMIT": way}}
    job = submitted(sge, "--pe", "rr", "--workers", "4", name="long", command="sleep 300", **more)
    job.running(4)
    assert job.status()["state"] == "RUNNING"
    elsewhere = gridtf(sge, "status", "--json", job.id, user="root", cwd="/")  # a user without this job in its index
    assert json.loads(elsewhere.stdout)["run_dir"] == job.seen_as
    assert "CANCELLED" in gridtf(sge, "cancel", job.id).stdout
    assert job.verdict()["reason"] == "cancelled by alice on login"
    assert "has ended" in gridtf(sge, "cancel", job.id).stdout or job.status()["state"] == "CANCELLED"


@pytest.mark.parametrize("bed", ["sge", "other_sge"], indirect=True)
def test_arguments_and_environment_reach_every_host_unchanged(bed: Bed) -> None:
    """Also by a qrsh that makes two characters of a newline, of a Grid Engine that is installed elsewhere."""
    nasty = "".join(NASTY)
    words = ["--env", "PATH", "--env", f"NASTY={nasty}", "--pe", "one", "--workers", "4", "--name", "nasty"]
    job = ClusterJob(bed, "--env", "PYTHONPATH", *words, "--", "python", "-c", REPEAT, *NASTY)
    assert job.verdict()["state"] == "COMPLETED"
    printed = [json.loads(text) for text in job.logs().values()]
    assert printed == [[NASTY, nasty, host] for host in ("n1", "n2", "n3", "n4")]


def test_programs_of_an_installation_elsewhere_run(other_sge: Bed) -> None:
    daemon = "pid=$(pgrep -o -x $0); readlink /proc/$pid/exe"
    programs = [other_sge.run(host, "bash", "-c", daemon, name, user="root").stdout.strip() for host, name in DAEMONS]
    assert [program.split("/root/")[-1] for program in programs] == [f"bin/lx-amd64/{name}" for _, name in DAEMONS]
    assert other_sge.run("login", "bash", "-c", "readlink -f $(type -p qconf)").stdout.startswith("/tmp/sge-")


def test_task_on_one_core_has_one_thread(sge: Bed) -> None:
    """Open Cluster Scheduler binds jobs to cores without a word of it in PE_HOSTFILE."""
    bind = "taskset -pc $(taskset -pc $$ | grep -o '[0-9]*$') $$"
    words = ("--pe", "smp", "--workers", "1", "--cpus-per-task", "2", "--setup", bind)
    job = submitted(
        sge, *words, name="bound", command='echo "threads $OMP_NUM_THREADS of $(env -u OMP_NUM_THREADS nproc)"'
    )
    assert job.verdict()["state"] == "COMPLETED"
    assert list(job.logs().values()) == ["threads 1 of 1\n"]


def test_slot_range_is_used_in_full(sge: Bed) -> None:
    job = submitted(sge, "--pe", "rr", "--slots", "2-64", name="range")
    assert job.verdict()["state"] == "COMPLETED"
    assert len(job.logs()) == 16


@pytest.mark.parametrize("pe", ["fill", "rr"])
def test_tasks_that_tasks_per_node_does_not_divide(sge: Bed, pe: str) -> None:
    """The parallel environment decides how many hosts the slots are spread over: four on one, or one on each."""
    requests = ((3, ()), (5, ()), (5, ("--nodes", "4")), (2, ()))
    jobs = [
        submitted(sge, "--pe", pe, "--tasks-per-node", "2", "--workers", str(count), *more) for count, more in requests
    ]
    example = (f"{CHECKOUT}/examples/multiworker/gridtf.toml", "--pe", pe, "--workers", "5")
    jobs.append(submitted(sge, *example, "--run-root", "runs"))
    for (count, _), job in zip((*requests, (5, ())), jobs, strict=True):
        verdict = job.verdict()
        assert verdict["state"] == "COMPLETED", (verdict, job.output)
        assert len(job.logs()) == count
