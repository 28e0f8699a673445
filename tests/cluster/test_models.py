"""GPU models, features, licences, reservations and host lists on real clusters whose hosts differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.cluster import Bed
from tests.support.clusterfaults import admin, started
from tests.support.clusterjobs import ClusterJob, gridtf, refused
from tests.support.jobs import until

SEES = ("bash", "-c", 'echo "$GRIDTF_TASK_TYPE sees $CUDA_VISIBLE_DEVICES with $OMP_NUM_THREADS"')


def completed(bed: Bed, *words: str, command: tuple[str, ...] = ("--", *SEES)) -> ClusterJob:
    job = ClusterJob(bed, *bed.options, "--time", "10", *words, *command)
    verdict = job.verdict()
    assert verdict["state"] == "COMPLETED", (verdict, job.output)
    return job


def hosts_of(job: ClusterJob) -> set[str]:
    return {host for host, _ in job.gpus().values()} or {str(task["host"]) for task in job.tasks().values()}


def head(job: ClusterJob) -> list[str]:
    """The directives about GPUs and hosts."""
    lines = job.run.script.read_text().splitlines()
    wanted = ("#SBATCH --gpus", "#SBATCH --constraint", "#SBATCH hetjob", "#$ -l", "#$ -ar")
    return [line.partition(" ")[2] for line in lines if line.startswith(wanted) and "h_rt" not in line]


# --- Slurm: n1 and n2 have GPUs with types, n3 and n4 such whose model is a feature of the host


def test_models_are_types_on_some_hosts_and_features_of_others(models_slurm: Bed) -> None:
    job = completed(models_slurm, "--nodes", "1", "--gpus-per-node", "A100:4", "--cpus-per-task", "2")
    assert head(job) == ["--gpus-per-node=a100:4"]
    assert hosts_of(job) == {"n1"}
    assert sorted(job.logs().values()) == [f"worker sees {gpu} with 2\n" for gpu in range(4)]

    job = completed(models_slurm, "--gpus", "V100:4", "--nodes", "2")
    assert head(job) == ["--gpus-per-node=2", "--constraint=v100"]
    assert hosts_of(job) == {"n3", "n4"}

    job = completed(models_slurm, "--gres", "gpu:v100:1", "--nodes", "1", "-C", "ib|v100")
    assert head(job) == ["--gpus-per-node=1", "--constraint=(ib|v100)&v100"]

    job = completed(models_slurm, "--gpus-per-node", "1g.10gb:2", "--nodes", "1", "--licenses", "tensor:2")
    assert hosts_of(job) == {"n2"}
    assert sorted(text.split()[2] for text in job.logs().values()) == ["2", "3"]


def test_leader_and_workers_have_different_models(models_slurm: Bed) -> None:
    file = models_slurm.home() / "models.toml"
    file.write_text(
        f"command = ['bash', '-c', '{SEES[2]}']\n"
        'gpus_per_node = "a100:2"\nnodes = 2\ncpus_per_task = 2\nqos = "any"\n[tasks.chief]\ngpus = "v100:3"\n'
        "[tasks.ps]\ncount = 1\n"
    )
    shown = gridtf(models_slurm, "render", models_slurm.seen(file)).stderr
    assert "2 training tasks each, 2 a100 GPUs each" in shown
    assert "in addition: 1 host, 1 chief, 3 v100 GPUs" in shown
    job = completed(models_slurm, models_slurm.seen(file), command=())
    assert head(job) == ["--gpus-per-node=a100:2", "hetjob", "--gpus-per-node=3", "--constraint=v100"]
    gpus = job.gpus()
    assert gpus["chief:0"][0] in ("n3", "n4")
    assert len(gpus["chief:0"][1]) == 3
    workers = {gpus[f"worker:{index}"] for index in range(4)}
    assert {host for host, _ in workers} == {"n1", "n2"}
    assert len(workers) == 4
    assert job.logs()["chief-0"] == f"chief sees {','.join(gpus['chief:0'][1])} with 2\n"


def test_what_slurm_s_hosts_do_not_have_is_refused_with_what_they_have(models_slurm: Bed) -> None:
    one = ("--nodes", "1")
    for words, pieces in (
        ((*one, "--gpus-per-node", "h100:1"), ("no node of partition gpu has h100 GPUs", "2 to 4 a100", "ib, v100")),
        ((*one, "--gpus-per-node", "v100:5"), ("5 GPUs with v100 a node requested", "have 4")),
        (("--nodes", "2", "--gpus-per-node", "a100:4"), ("partition gpu has 1 such node",)),
        ((*one, "-C", "ib&nosuch"), ("-C: Invalid feature specification: nosuch\n", "this site has: ib, v100")),
        ((*one, "-w", "n9"), ("-w: Invalid node name specified: n9\n", "this site has: c1, n1")),
        ((*one, "-w", "n1", "-x", "n9"), ("-x: Invalid node name specified: n9\n",)),
        (
            ("--nodes", "2", "-x", "n[1-3]"),
            ("-x: 2 nodes", "gpu has 1 such nodes apart from those of exclude"),
        ),
        ((*one, "-L", "tensor,tenso"), ("-L: Invalid license specification: tenso\n", "did you mean tensor?")),
        (("-w", "n[3-4]", *one), ("the job must use 2 hosts, but nodes is 1",)),
        ((*one, "-L", "tensor:9"), ("-L: Invalid license specification: tensor:9\n", "tensor:4")),
        ((*one, "--reservation", "nosuch"), ("--reservation: Requested reservation is invalid: nosuch\n",)),
        ((*one, "--native=--gres=gpu:a100:4"), ('write gpus_per_node = "a100:4"',)),
    ):
        error = refused(models_slurm, *words)
        assert all(piece in error for piece in pieces), error
    unknown = gridtf(models_slurm, "when", *one, "--gpus-per-node", "h100:1", check=False)
    assert "gridtf: --gpus-per-node: no node of partition gpu has h100 GPUs" in unknown.stderr
    few = gridtf(models_slurm, "when", "--nodes", "2", "-x", "n[1-3]", check=False)
    assert "never: 2 nodes with 1 CPUs requested, partition gpu has 1 such nodes apart from those" in few.stdout


def test_hosts_and_reservation_of_a_slurm_job(models_slurm: Bed) -> None:
    assert hosts_of(completed(models_slurm, "-w", "n[3-4]", "--tasks-per-node", "1")) == {"n3", "n4"}
    mine = ("starttime=now", "duration=60", "users=alice", "nodes=n2")
    admin(models_slurm, "scontrol", "create", "reservation", "reservationname=course", *mine)
    try:
        assert "course" in refused(models_slurm, "--nodes", "1", "--reservation", "nosuch")
        assert hosts_of(completed(models_slurm, "--nodes", "1", "--reservation", "course")) == {"n2"}
    finally:
        remove = ("ctl", "scontrol", "delete", "reservation=course")  # refused as long as its job is completing
        until(
            lambda: not models_slurm.run(*remove, user="root", check=False).returncode,
            "the end of the reservation",
            said=lambda: admin(models_slurm, "scontrol", "show", "reservation"),
        )


# --- Grid Engine

_COMPLEX = """
gpu_type gpu_type CSTRING == YES NO NONE 0
gpu_v100 gpu_v100 INT <= YES YES 0 0
h100 h100 BOOL == YES NO FALSE 0
tensor tensor INT <= YES JOB 0 0
"""
_HOSTS = {"n1": "gpu_type=A100", "n2": "gpu_type=A100", "n3": "gpu_v100=2,gpu_type=v100", "n4": "h100=TRUE"}


@contextmanager
def models(bed: Bed) -> Iterator[None]:
    """Resources as sites have them to tell GPU models apart, and a licence of the whole cell."""
    change = "qconf -sc > /tmp/before && (cat /tmp/before; echo '{}') > /tmp/after && qconf -Mc /tmp/after"
    admin(bed, "bash", "-c", change.format(_COMPLEX), host="ctl")
    for host, values in {**_HOSTS, "global": "tensor=2"}.items():
        admin(bed, "qconf", "-aattr", "exechost", "complex_values", values, host, host="ctl")
    try:
        yield
    finally:
        for host, values in {**_HOSTS, "global": "tensor=2"}.items():
            names = ",".join(part.partition("=")[0] for part in values.split(","))
            admin(bed, "qconf", "-dattr", "exechost", "complex_values", names, host, host="ctl")
        admin(bed, "qconf", "-Mc", "/tmp/before", host="ctl")


def test_host_with_gpus_of_another_type_takes_no_place_of_a_lost_one(models_slurm: Bed) -> None:
    """Otherwise slurmctld of 24.11 and later would abort: docs/slurm-abort.md."""
    words = ("--restarts", "1", "--spare-nodes", "1", "--gpus-per-node", "1", "--heartbeat-timeout", "10")
    job = started(models_slurm, *words, "--native=--nodelist=n1,n2,n3", nodes=2, command="sleep 300")
    models_slurm.kill("n2")
    verdict = job.verdict()
    assert verdict["state"] == "NODE_FAIL"
    several = "the others have GPUs of several types (a100, no type), which are not used together after a loss"
    assert several in verdict["reason"]


def test_models_on_grid_engine(sge: Bed) -> None:
    two = ("--pe", "rr", "--workers", "2")
    with models(sge):
        job = completed(sge, *two, "--gpus-per-task", "a100:1")
        assert head(job) == ["-l gpu=1", "-l gpu_type=A100"]
        assert hosts_of(job) == {"n1", "n2"}

        job = completed(sge, "--pe", "smp", "--gpus-per-node", "V100:2")  # a consumable of the model
        assert head(job) == ["-l gpu_v100=1"]
        assert hosts_of(job) == {"n3"}
        assert sorted(len(gpus) for _, gpus in job.gpus().values()) == [1, 1]

        fill = "qsub -terse -l gpu_v100=2 -o /dev/null -j y -b y sleep 600"
        held = sge.run("login", "bash", "-c", f"{fill}; until qstat -s r | grep -q .; do sleep 0.2; done").stdout
        shape = ("--pe", "smp", "--workers", "1", "--gpus-per-task", "V100:1", "--time", "5,10")
        asked = gridtf(sge, "when", "--json", *sge.options, *shape, "--partition", "all.q").stdout
        assert [row["start"] for row in json.loads(asked)] == [None, None], (
            f"each asks for the one that is taken: {asked}"
        )
        sge.run("login", "qdel", held.split()[0])

        job = completed(sge, "--pe", "smp", "--workers", "1", "--gpus-per-task", "H100:1", "-L", "tensor:2")
        assert head(job) == ["-l gpu=1", "-l tensor=2", "-l h100=TRUE"]
        assert hosts_of(job) == {"n4"}

        job = completed(sge, *two, "-w", "n2,n3", "-x", "n3", "-C", "gpu_type=A100")
        assert head(job) == ["-l gpu_type=A100", "-l h=(n2|n3)&!(n3)"]
        assert hosts_of(job) == {"n2"}

        for words, pieces in (
            (("--gpus-per-task", "k80:1"), ("no host has GPUs of model k80", "A100 (2 hosts), v100 (1 host)")),
            (("--gpus-per-task", "a100:3"), ("3 GPUs per slot requested, no host has more than 2",)),
            (("-w", "n9"), ("there is no host n9", "n1, n2")),
            (("-C", "nosuch"), ("-C: the cell has no resource `nosuch`",)),
            (("-C", "gpu_type=k80"), ("-C: no host has gpu_type=k80\n", "hosts have A100, v100")),
            (
                ("-C", "gpu_type=A100,h100"),
                ("-C: no host has gpu_type=A100 and h100=TRUE\n", "-F gpu_type,h100`"),
            ),
            (("-w", "n1,n2", "--nodes", "3"), ("-w: the job needs 3 hosts, and nodelist leaves 2\n", "have n1, n2")),
            (("-x", "n1,n2", "--nodes", "3"), ("-x: the job needs 3 hosts, and exclude leaves 2\n", "have n3, n4")),
            (("-L", "matlab"), ("-L: the cell has no resource `matlab`",)),
            (("--reservation", "77"), ("--reservation: ", "qrstat")),
            (("--native=-l gpu=1",), ("write gpus_per_task = 1",)),
        ):
            error = refused(sge, *two, *words)
            assert all(piece in error for piece in pieces), error
        unknown = gridtf(sge, "when", *two, "--gpus-per-task", "k80:1", check=False)
        assert "gridtf: --gpus-per-task: no host has GPUs of model k80" in unknown.stderr
        never = gridtf(sge, "when", *two, "-C", "gpu_type=k80", "--partition", "all.q", check=False)
        assert "never: no host has gpu_type=k80" in never.stdout
        few = gridtf(sge, "when", *two, "--nodes", "3", "-w", "n1,n2", "--partition", "all.q", check=False)
        assert "never: the job needs 3 hosts, and nodelist leaves 2" in few.stdout
    assert "no resource of this site stands for GPUs of model a100" in refused(sge, *two, "--gpus-per-task", "a100:1")
