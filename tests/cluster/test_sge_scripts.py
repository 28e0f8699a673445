"""Hand-written qsub scripts on a real Grid Engine. What holds for every scheduler: test_scripts.py."""

from __future__ import annotations

import re

import pytest

from gridtf.run.rundir import RunDir
from gridtf.schedulers.sge import injob
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterfaults import EVERYWHERE, no_process_left
from tests.support.clusterscripts import (
    ENTER,
    ENVIRON,
    RUN,
    joined_tasks_ended,
    one_gpu_each,
)
from tests.support.jobs import hosts_of
from tests.support.sgescripts import HOSTFILE, TASK, Folder


def test_failure_of_a_joined_process_ends_the_others(sge: Bed) -> None:
    folder = Folder(sge, "join_fails")
    example = (CHECKOUT / "examples/sge_scripts/join.sh").read_text()
    (folder.path / "join.sh").write_text(example.replace("python train.py", "bash task.sh"))
    (folder.path / "task.sh").write_text("[ $RANK != 5 ] || exit 7; exec sleep 1000\n")
    job = folder.qsub("join.sh", "-v", "PATH,PYTHONPATH,GRIDTF_SITE_CONFIG").over()
    no_process_left(sge, EVERYWHERE)
    (run,) = folder.runs(job.id)
    joined_tasks_ended(folder, run, "exit code 7", "exit code 7", code=1)  # keepers may die with the job


# --- gridtf_run


@pytest.mark.parametrize(
    ("pe", "shape"),
    [
        ("rr 6", [2, 2, 1, 1]),
        ("fill 6", [4, 2]),
        ("two 6", [2, 2, 2]),
        ("one 4", [1, 1, 1, 1]),
        ("smp 3", [3]),
        ("rrj 6", [2, 2, 1, 1]),
        ("fillj 6", [4, 2]),
        ("rr 2-16", [4, 4, 4, 4]),
        ("rr 12 -q left.q,right.q", [3, 3, 3, 3]),
        ("rr 4 -masterq all.q@n3", [1, 1, 1, 1]),
    ],
)
def test_each_slot_runs_a_task_on_its_host(sge: Bed, pe: str, shape: list[int]) -> None:
    """In the order of PE_HOSTFILE, the first host among them, whatever job_is_first_task says."""
    folder = Folder(sge, "slots")
    job = folder.qsub(f"{RUN}{HOSTFILE}gridtf_run -- {TASK}", "-pe", *pe.split())
    job.ended()
    assert list(job.layout().items()) == list(job.slots.items())
    assert sorted(job.slots.values(), reverse=True) == shape
    if "-masterq" in pe:
        assert next(iter(job.slots)) == "n3"


def test_job_without_parallel_environment_has_one_task(sge: Bed) -> None:
    folder = Folder(sge, "alone")
    job = folder.qsub(f"{RUN}gridtf_run -- {TASK}", "-q", "all.q@n2")
    job.ended()
    assert job.layout() == {"n2": 1}
    assert folder.tasks(job.id)["worker:0"].gpus == ()


def test_notes_on_unused_gpus_and_a_run_directory_in_tmpdir(sge: Bed) -> None:
    """Without -l gpu, as on nodes that are allocated as a whole; and in a folder that is removed with the job."""
    folder = Folder(sge, "notes")
    script = f"{RUN}cd $TMPDIR\ngridtf_run -- true\ngridtf_run --gpus-per-node 0 --run-root {folder.seen_as} -- true"
    job = folder.qsub(script, "-q", "all.q@n2")
    job.ended()
    unused = re.findall(r"gridtf: host n2 has 2 GPUs, and no task gets one: .* `--gpus-per-node 2`", job.output)
    assert len(unused) == 1, job.output
    (lost,) = re.findall(r"gridtf: the run directory (\S+) lies in TMPDIR, which is removed when the job", job.output)
    assert lost.endswith(f"/gridtf-runs/job-{job.id}")  # qsub -N job
    assert (folder.path / f"job-{job.id}").is_dir()


def test_gridtf_run_in_a_shell_of_qlogin(sge: Bed) -> None:
    folder = Folder(sge, "qlogin")
    profile = sge.home() / ".bash_profile"  # its shell reads it; typed input would have to wait for the prompt
    profile.write_text(f"{ENTER}\ncd {folder.seen_as}\ngridtf run --name typed --workers 2 -- true\nexit\n")
    try:
        # a pipe that stays open without input: qlogin ends with its input
        printed = folder.run(
            "bash", "-c", "mkfifo quiet && exec 3<>quiet && script -qec 'qlogin -pe rr 4' /dev/null <&3", timeout=180
        )
    finally:
        profile.unlink()
    assert (
        "this shell belongs to a Grid Engine job, but lacks the job's variables: tasks run on this host only" in printed
    )
    (run,) = (folder.path / "gridtf-runs").glob("typed-*")
    assert len(hosts_of(RunDir(run).attempt(1))) == 1


def test_gridtf_run_in_an_environment_that_is_made_anew(sge: Bed) -> None:
    """As by Sisyphus. The note names what has to be kept; with that, all hosts of the job are used."""
    folder = Folder(sge, "anew")
    kept = (*injob._NEEDED, "SGE_QMASTER_PORT", "SGE_EXECD_PORT")  # the bed's services have no names
    clean, more = (" ".join(f'${{{name}+"{name}=${name}"}}' for name in names) for names in (ENVIRON, kept))
    script = f'set -- env -i {clean}\n"$@" gridtf run --name cleared -- true\n'
    script += f'"$@" {more} gridtf run --name kept -- true\n'
    job = folder.qsub(script, "-pe", "one", "2")
    job.ended()
    (note,) = re.findall(r"gridtf: this shell belongs to a Grid Engine job, but lacks .*", job.output)
    assert note.endswith(f"has to keep {', '.join(injob._NEEDED)}")
    runs = [next((folder.path / "gridtf-runs").glob(f"{name}-*")) for name in ("cleared", "kept")]
    assert [len(hosts_of(RunDir(run).attempt(1))) for run in runs] == [1, 2]


def test_one_task_per_gpu(sge: Bed) -> None:
    folder = Folder(sge, "gpus")
    job = folder.qsub(f"{RUN}gridtf_run -- {TASK}", "-pe", "fill", "6", "-l", "gpu=1")
    job.ended()
    one_gpu_each(folder.tasks(job.id), 6)
    assert sorted(job.layout().values()) == [2, 2, 2]


# --- shells


def test_bash_script_in_a_queue_with_csh(sge: Bed) -> None:
    folder = Folder(sge, "csh")
    job = folder.qsub(f"{ENTER}\n{RUN}gridtf_run -- {TASK}", "-q", "csh.q", "-pe", "rr", "3")
    job.ended()
    assert len(folder.tasks(job.id)) == 3


@pytest.mark.parametrize(
    ("head", "script"),
    [
        ("#$ -q csh.q -cwd -j y -V\n", 'source "`gridtf bootstrap-path`"\n'),
        ("#$ -q csh.q -S /bin/sh -cwd -j y\n", f'{ENTER}\nset -eu\n. "$(gridtf bootstrap-path)"\necho goes on\n'),
    ],
    ids=["csh", "sh"],
)
def test_bootstrap_in_another_shell_names_the_option_for_bash(sge: Bed, head: str, script: str) -> None:
    job = Folder(sge, "shells").qsub(script, head=head)
    job.over()
    assert "gridtf: gridtf-bootstrap.sh needs bash; Grid Engine scripts need: #$ -S /bin/bash\n" in job.output
    assert "goes on" not in job.output


# --- errors


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (
            "export PE_HOSTFILE=/nonexistent",
            r"cannot read PE_HOSTFILE, /nonexistent, on n\d: No such file",
        ),
        ("echo n1 two >$TMPDIR/hosts; export PE_HOSTFILE=$TMPDIR/hosts", r"/hosts:1: 'two' is not a number of slots\n"),
        ("unset PE_HOSTFILE", r"PE_HOSTFILE is not set on n\d, although the job has the parallel environment rr\n"),
    ],
    ids=["missing", "garbled", "unset"],
)
def test_invalid_hostfile_is_reported(sge: Bed, before: str, message: str) -> None:
    folder = Folder(sge, "hostfile")
    job = folder.qsub(f"{RUN}{before}\ngridtf_run -- {TASK}", "-pe", "rr", "2")
    job.over()
    assert job.codes == ["1"]
    assert re.search(message, job.output)


def test_gridtf_run_below_qrsh_is_refused(sge: Bed) -> None:
    folder = Folder(sge, "inherited")
    (folder.path / "inner.sh").write_text(f"{RUN}gridtf_run -- true\n")
    other = "$(awk -v here=$HOSTNAME '$1 != here {print $1; exit}' $PE_HOSTFILE)"
    script = f"$SGE_BINARY_PATH/qrsh -inherit -noshell -v PATH,PYTHONPATH {other} /bin/bash inner.sh"
    job = folder.qsub(f"echo\n{script}", "-pe", "one", "2")
    job.over()
    assert job.codes == ["1"]
    assert "call gridtf_run in the job script itself, gridtf_join in processes that qrsh -inherit starts" in job.output
