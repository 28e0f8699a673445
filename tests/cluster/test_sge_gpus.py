"""GPUs on a real Grid Engine, which counts GPUs but assigns none: granted by the site, or claimed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gridtf.run.rundir import read_record
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterfaults import EVERYWHERE, UNTIL_RELEASED, admin, kill9, no_process_left, release
from tests.support.clusterjobs import ClusterJob, refused
from tests.support.clusterscripts import ENVIRON, HOME, RUN, Batch, logs, one_gpu_each, parse_tasks
from tests.support.jobs import hosts_of
from tests.support.sgescripts import TASK, TELL, Folder, Job

HOSTS = ("-q", "all.q@n1,all.q@n2")
# prints what a task sees, and runs until the test lets it end
STAYS = f"bash -c '{TELL}; until [ -e enough.$JOB_ID ]; do sleep 0.1; done'"


def gpus(job: Batch) -> dict[str, str]:
    """Host -> the GPU of its one task."""
    return {task.host: ",".join(task.gpus) for task in job.folder.tasks(job.id).values()}


def others(taken: dict[str, str]) -> dict[str, str]:
    """The other one of two GPUs on each host."""
    return {host: "10"[int(gpu)] for host, gpu in taken.items()}


@contextmanager
def queue(bed: Bed, attribute: str, script: str) -> Iterator[None]:
    """Set a script of all.q, such as its starter_method."""
    path = bed.home() / f"{attribute}.sh"
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    owner = "root@" if attribute == "prolog" else ""  # only root can add to what a job will find in its environment
    admin(bed, "qconf", "-mattr", "queue", attribute, f"{owner}{bed.seen(path)}", "all.q")
    try:
        yield
    finally:
        admin(bed, "qconf", "-mattr", "queue", attribute, "NONE", "all.q")


# --- CPUs together with GPUs


def with_cpus(bed: Bed, pe: str, resource: str, *words: str, site: str = "") -> tuple[ClusterJob, str]:
    """Two tasks with a GPU and two CPUs each; returns the job and the qsub options of its script."""
    config = bed.home() / "site.toml"
    config.write_text(site)
    options = ("--pe", pe, "--gpu-resource", resource, "--gpus-per-task", "1", "--cpus-per-task", "2", *words)
    command = ("bash", "-c", f'echo "gpu=$CUDA_VISIBLE_DEVICES threads=$OMP_NUM_THREADS"; {UNTIL_RELEASED}')
    env = {"GRIDTF_SITE_CONFIG": bed.seen(config)} if site else {}
    job = ClusterJob(bed, "--env", "PYTHONPATH", "--workers", "2", *options, "--", *command, env=env)
    head = [line[3:] for line in job.run.script.read_text().splitlines() if line.startswith(("#$ -pe", "#$ -l"))]
    return job, " ".join(head)


@pytest.mark.parametrize(
    ("pe", "resource", "requested"),
    [
        ("two", "gpushare", "-pe two 4 -l gpushare=0.5"),
        ("smp", "gpushare", "-pe smp 4 -l gpushare=0.5"),
        ("two", "gpu", "-pe two 4 -l gpu=0.5"),  # complex(5) allows no part of an INT, but it is counted
        ("smp", "gpujob", "-pe smp 4 -l gpujob=2"),
    ],
)
def test_cpus_are_requested_together_with_gpus(sge: Bed, pe: str, resource: str, requested: str) -> None:
    job, head = with_cpus(sge, pe, resource)
    assert head == requested
    job.running(2)
    free = sge.run("login", "qhost", "-F", resource).stdout
    shares = job.gpus()
    release(job)
    assert job.verdict()["state"] == "COMPLETED"
    assert all("threads=2" in text for text in job.logs().values())
    assert [len(gpus) for _, gpus in shares.values()] == [1, 1]
    assert len({host for host, _ in shares.values()}) == (2 if pe == "two" else 1)
    assert len(set(shares.values())) == 2
    left = re.findall(rf"hc:{resource}=(\d)", free)
    assert sorted(left) == (["1", "1", "2", "2"] if pe == "two" else ["0", "2", "2", "2"])
    assert ("although its type is INT" in job.submitted.stderr) == (resource == "gpu")


def test_gpus_counted_per_job_need_one_host(sge: Bed) -> None:
    words = ("--workers", "2", "--gpus-per-task", "1", "--gpu-resource", "gpujob")
    message = refused(sge, "--pe", "two", *words, "--cpus-per-task", "2")
    assert "may use several hosts, but gpujob counts per job (consumable JOB)" in message
    assert re.search(r"suitable PEs: .*\bsmp\b", message)
    assert "gpujob counts per job" in refused(sge, "--pe", "two", "--nodes", "2", *words)


def test_gpus_of_a_job_all_have_a_task(sge: Bed) -> None:
    """A slot requests the GPUs of its task; a resource that counts per job requests those of the host."""
    asked = ("--workers", "1", "--gpus-per-node", "2")
    message = refused(sge, "--pe", "smp", "--gpu-resource", "gpujob", *asked, "--gpus-per-task", "1")
    assert "1 training task with 1 GPU would leave 1 of 2 GPUs without a task" in message
    assert "write --gpus-per-task 2 or --gpus-per-node 1" in message
    tell = ("--", "bash", "-c", "echo on $CUDA_VISIBLE_DEVICES")
    job = ClusterJob(sge, "--scheduler", "sge", "--env", "PYTHONPATH", *asked, *tell)
    of_three = ("--workers", "3", "--gpus-per-node", "2", "--pe", "rr")
    other = ClusterJob(sge, "--scheduler", "sge", "--env", "PYTHONPATH", *of_three, *tell)
    assert job.verdict()["state"] == other.verdict()["state"] == "COMPLETED"
    assert list(job.logs().values()) == ["on 0,1\n"]
    assert [len(text.split(",")) for text in other.logs().values()] == [1, 1, 1]
    assert "no task uses" not in job.output + other.output


def test_gpus_that_only_the_allocation_tells_are_noted(sge: Bed) -> None:
    folder = Folder(sge, "more-than-needed")
    runs = "".join(f"gridtf_run {words} -- {TASK}\n" for words in ("--gpus-per-node 1", "--workers 1"))
    job = folder.qsub(RUN + runs, "-l", "gpu=2", "-q", "all.q@n1").ended()
    found = [parse_tasks("".join(logs(run))) for run in folder.runs(job.id)]
    assert sorted(len(task.gpus) for tasks in found for task in tasks.values()) == [1, 2]


def test_slots_for_a_fixed_rule_are_named(sge: Bed) -> None:
    words = ("--pe", "two", "--workers", "3", "--gpus-per-task", "1", "--gpu-resource", "gpushare")
    assert "3 is not a multiple of that" in (message := refused(sge, *words))
    assert "write slots = 4; suitable PEs: " in message
    assert "a task needs 4" in refused(sge, *words, "--cpus-per-task", "4")


def test_excluded_hosts_are_not_used(sge: Bed) -> None:
    job, head = with_cpus(sge, "two", "gpushare", "--exclude", "n1,n3")
    assert head == "-pe two 4 -l gpushare=0.5 -l h=!(n1|n3)"
    job.running(2)
    assert {host for host, _ in job.gpus().values()} == {"n2", "n4"}
    release(job)
    assert job.verdict()["state"] == "COMPLETED"
    message = refused(sge, "--workers", "1", "--exclude", "n?")
    assert "no host is left that could run the job" in message
    assert "there is no host n9" in refused(sge, "--workers", "1", "--exclude", "n1,n9")


def test_site_names_the_variable_of_its_grants(sge: Bed) -> None:
    """Each host has its own value, which comes before CUDA_VISIBLE_DEVICES."""
    script = 'gpu=0; [ "$(uname -n)" = n1 ] || gpu=1; export CUDA_VISIBLE_DEVICES=0,1 MY_GPUS="gpu$gpu"\nexec "$@"'
    with queue(sge, "starter_method", script):
        job, _ = with_cpus(sge, "two", "gpushare", "--exclude", "n3,n4", site='gpu_variable = "MY_GPUS"\n')
        job.running(2)
        assert set(job.gpus().values()) == {("n1", ("0",)), ("n2", ("1",))}
        release(job)
        assert job.verdict()["state"] == "COMPLETED"


# --- claims


def test_claims_of_two_jobs_differ_and_end_with_their_job(sge: Bed) -> None:
    """No GPUs were requested of Grid Engine, so only gridtf keeps the jobs apart."""
    folder = Folder(sge, "claims")
    script = f"{RUN}gridtf_run --gpus-per-task 1 --kill-grace 1 -- {STAYS}"
    first, other = (folder.qsub(script, "-pe", "one", "2", *HOSTS) for _ in range(2))
    for job in (first, other):
        job.until_printed("task=", 2)
    assert gpus(other) == others(gpus(first))
    assert set(gpus(first)) == {"n1", "n2"}

    third = folder.qsub(script, "-pe", "one", "2", *HOSTS)
    third.until(lambda: "waiting for 1 GPU, 0 free" in third.output, "it waits")
    assert f"job {first.id}" in third.output
    record = hosts_of(folder.runs(first.id)[0].attempt(1))["n2"]
    kill9(sge, "n2", record["pid"], *(task["pid"] for task in record["tasks"].values()))
    third.until_printed("task=", 2)
    assert gpus(third) == gpus(first)
    first.over()
    assert folder.verdicts(first.id) == ["FAILED"]

    folder.run("qdel", third.id)  # KILL, at once and for all
    fourth = folder.qsub(script, "-pe", "one", "2", *HOSTS)
    fourth.until_printed("task=", 2)
    assert gpus(fourth) == gpus(first)
    for job in (other, fourth):
        (folder.path / f"enough.{job.id}").touch()
        job.ended()
    no_process_left(sge, EVERYWHERE)


def test_joined_processes_claim_a_gpu_each(sge: Bed) -> None:
    """Next to another job on one of their hosts, as many as their job requested of Grid Engine."""
    folder = Folder(sge, "joins")
    before = folder.qsub(f"{RUN}gridtf_run -- {STAYS}", "-q", "all.q@n2", "-l", "gpu=1")
    before.until_printed("task=", 1)
    job = joined(folder, "-pe", "fillj", "3")  # the first host takes a qrsh less than it has slots
    tasks = parse_tasks(job.output)
    one_gpu_each(tasks, 3)
    assert [task.host for task in tasks.values()].count("n1") == 2
    here = [task.gpus[0] for task in tasks.values() if task.host == "n2"]
    assert here == [others(gpus(before))["n2"]]
    (folder.path / f"enough.{before.id}").touch()


def joined(folder: Folder, *options: str) -> Job:
    """The example for gridtf_join, with tasks that print what they see."""
    (folder.path / "tell.sh").write_text(f"{TELL}\n")
    text = (CHECKOUT / "examples/sge_scripts/join.sh").read_text().replace("python train.py", "bash tell.sh")
    (folder.path / "join.sh").write_text(text)
    job = folder.qsub("join.sh", "-v", "PATH,PYTHONPATH,GRIDTF_SITE_CONFIG", *options)
    job.over()
    return job


def test_too_few_gpus_on_a_host_are_reported(sge: Bed) -> None:
    folder = Folder(sge, "too_few")
    job = folder.qsub(f"{RUN}gridtf_run --gpus-per-task 3 -- true", "-pe", "one", "2")
    job.over()
    assert job.codes == ["1"]
    assert "3 GPUs are needed on host n" in job.output
    assert "which shows 2" in job.output


def test_job_without_a_gpu_request_gets_none(sge: Bed) -> None:
    with queue(sge, "starter_method", 'export CUDA_VISIBLE_DEVICES=0,1\nexec "$@"'):
        folder = Folder(sge, "none")
        job = folder.qsub(f"{RUN}gridtf_run -- {TASK}", "-pe", "one", "2")
        job.ended()
        assert gpus(job) == dict.fromkeys(job.layout(), "")


# --- grants of the site


@pytest.mark.parametrize(
    "grant",
    ["export CUDA_VISIBLE_DEVICES=$gpu", "export SGE_HGR_gpu=gpu$gpu"],
    ids=["CUDA_VISIBLE_DEVICES", "SGE_HGR_gpu"],
)
def test_starter_method_grants_gpus_on_each_host(sge: Bed, grant: str) -> None:
    """SGE_HGR_gpu stands for Grid Engines with resource maps; this one has none."""
    with queue(sge, "starter_method", f'gpu=0; [ "$(uname -n)" = n1 ] || gpu=1; {grant}\nexec "$@"'):
        folder = Folder(sge, "starter")
        job = folder.qsub(f"{RUN}gridtf_run -- {TASK}", "-pe", "one", "2", "-l", "gpu=1", *HOSTS)
        job.ended()
        assert gpus(job) == {"n1": "0", "n2": "1"}


def test_joined_processes_share_gpus_of_a_starter_method(sge: Bed) -> None:
    with queue(sge, "starter_method", 'export CUDA_VISIBLE_DEVICES=0,1\nexec "$@"'):
        tasks = parse_tasks(joined(Folder(sge, "shares"), "-pe", "rr", "4", *HOSTS).output)
    one_gpu_each(tasks, 4)
    assert sorted(task.host for task in tasks.values()) == ["n1", "n1", "n2", "n2"]


def test_prolog_grants_gpus_on_the_first_host_others_are_claimed(sge: Bed) -> None:
    folder = Folder(sge, "prolog")
    with queue(sge, "prolog", "echo CUDA_VISIBLE_DEVICES=1 >>$SGE_JOB_SPOOL_DIR/environment"):
        job = folder.qsub(f"{RUN}gridtf_run -- {STAYS}", "-pe", "one", "2", "-l", "gpu=1", *HOSTS)
        job.until_printed("task=", 2)
    assert gpus(job) == {"n1": "1", "n2": "0"}
    # GPUs that the prolog granted are locked as well, so jobs that claim avoid them
    claims = folder.qsub(f"{RUN}gridtf_run -- {TASK}", "-pe", "one", "2", "-l", "gpu=1", *HOSTS)
    claims.ended()
    assert gpus(claims) == {"n1": "0", "n2": "1"}
    (folder.path / f"enough.{job.id}").touch()
    job.ended()


# --- variables copied by -V


def with_all_of_the_shell(folder: Folder, script: str, *options: str, **shell: str) -> Job:
    """A script that alice submits with -V; shell: variables of her shell in addition to PATH and PYTHONPATH."""
    env = {**ENVIRON, "PATH": f"{HOME}/bin:{folder.bed.path}", **shell}
    text = f"#!/bin/bash\n#$ -S /bin/bash -cwd -j y -V\n{RUN}{script}\n"
    return Job(folder, folder.run("qsub", "-terse", "-N", "job", *options, stdin=text, env=env).strip())


def test_gpu_variables_copied_by_qsub_are_no_grant(sge: Bed) -> None:
    """Each host claims its own, also where that shell was in a Slurm job, or hides its GPUs."""
    folder = Folder(sge, "stale")
    options = ("-pe", "rr", "4", "-l", "gpu=1")
    stays = with_all_of_the_shell(
        folder, f"gridtf_run -- {STAYS}", *options, CUDA_VISIBLE_DEVICES="3", SLURM_JOB_ID="7", SGE_GPU="1"
    )
    stays.until_printed("task=", 4)
    hides = with_all_of_the_shell(folder, f"gridtf_run -- {TASK}", *options, CUDA_VISIBLE_DEVICES="").over()
    assert set(gpus(stays)) == {"n1", "n2", "n3", "n4"}
    assert gpus(hides) == others(gpus(stays)), hides.output
    assert read_record(folder.runs(stays.id)[0].submitted)["scheduler"] == "sge"  # type: ignore[index]
    (folder.path / f"enough.{stays.id}").touch()
    stays.over()
    assert folder.verdicts(stays.id) == folder.verdicts(hides.id) == ["COMPLETED"]


def test_grant_of_the_site_counts_among_copied_variables(sge: Bed) -> None:
    """Also where both are equal, as on n2."""
    with queue(
        sge, "starter_method", 'gpu=0; [ "$(uname -n)" = n1 ] || gpu=1; export CUDA_VISIBLE_DEVICES=$gpu\nexec "$@"'
    ):
        folder = Folder(sge, "same")
        job = with_all_of_the_shell(
            folder, f"gridtf_run -- {TASK}", "-pe", "one", "2", "-l", "gpu=1", *HOSTS, CUDA_VISIBLE_DEVICES="1"
        ).over()
        assert gpus(job) == {"n1": "0", "n2": "1"}, job.output


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (
            "export CUDA_VISIBLE_DEVICES=0,5",
            "has no GPU 5, which CUDA_VISIBLE_DEVICES there grants\ngridtf: granted: 0,5; its GPUs: 0,1",
        ),
        ("export CUDA_VISIBLE_DEVICES='1 0'", "gpu=1,0"),
        ("export SGE_GPU=1,0", "gpu=1,0"),
    ],
    ids=["missing", "blanks", "SGE_GPU"],
)
def test_gpu_variables_set_by_the_script(sge: Bed, before: str, expected: str) -> None:
    folder = Folder(sge, "words")
    job = folder.qsub(f"{RUN}{before}\ngridtf_run --gpus-per-task 2 -- {TASK}", "-q", "all.q@n1").over()
    printed = job.output + "".join("".join(logs(run)) for run in folder.runs(job.id))
    assert expected in printed
