"""Jobs that are one MPI world, on four hosts with two ranks each, under Open MPI and MPICH."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import pytest

from gridtf.schedulers.slurm.injob import parse_rank_types
from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import ended, kill9, no_process_left
from tests.support.clusterjobs import ClusterJob, gridtf
from tests.support.clusterscripts import RUN, logs
from tests.support.mpi import MPICH, OPEN_MPI, variables
from tests.support.sgescripts import folder_on

FOUR_BY_TWO = {
    "slurm": ("--nodes", "4", "--tasks-per-node", "2"),
    "sge": ("--pe", "rr", "--slots", "8", "--workers", "8"),
}
# Grid Engine keeps a job that it starts again off its earlier hosts, but the first, for minutes.
TWO_HOSTS = {"slurm": ("--nodes", "2", "--tasks-per-node", "1"), "sge": ("--pe", "one", "--slots", "2")}
# of a range, Slurm allocates the fewest hosts that have room
THREE_BY_TWO_OR_MORE = {
    "slurm": ("--nodes", "3-4", "--native=--nodes=4", "--tasks-per-node", "2"),
    "sge": ("--pe", "rr", "--nodes", "3-4", "--tasks-per-node", "2"),
}
HOSTS = {f"n{number}" for number in range(1, 5)}
EIGHT = {f"worker-{rank}": f"{rank} 8" for rank in range(8)}

RANKS = "from mpi4py import MPI\nprint(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)"

# The gradient of rank N is (N, 1); the mean over 8 ranks is (3.5, 1). The last one has it from TensorFlow.
GRADIENTS = """
import os, pathlib, time
import numpy as np

rank, place = int(os.environ["RANK"]), pathlib.Path(os.environ["OUTPUT_DIR"])
gradient = np.array([rank, 1.0], np.float32)
if rank == 7:
    import tensorflow as tf
    weights = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weights * tf.constant([float(rank), 1.0]))
    gradient = tape.gradient(loss, weights).numpy()
    (place / "ready").touch()
while not (place / "ready").exists():
    time.sleep(0.1)
from mpi4py import MPI  # last, since ranks that wait for others keep the processors busy

world = MPI.COMM_WORLD
mean = np.empty_like(gradient)
world.Allreduce(gradient, mean)
print(world.rank, world.size, rank, (mean / world.size).tolist(), flush=True)
"""
# Argument: what rank 2, the first on n2, does when all are there. No rank sends anything before all have left MPI_Init:
# under srun --mpi=pmix, on a busy machine, the first message of one has reached another that was still in there, which
# died of SIGSEGV (Open MPI 4.1.4, PMIx 4.2.2, Slurm 24.11: mca_btl_tcp calls a function that is not set yet).
FAULTS = """
import os, sys, time
import mpi4py
mpi4py.rc.threads = False  # else ranks send in MPI_Init
from mpi4py import MPI

world, begun = MPI.COMM_WORLD, os.environ["OUTPUT_DIR"] + "/begun-" + os.environ["GRIDTF_ATTEMPT"] + "-"
open(begun + str(world.rank), "w").close()
while not all(os.path.exists(begun + str(rank)) for rank in range(world.size)):
    time.sleep(0.1)
world.Barrier()
print("ready", world.rank, world.size, flush=True)
if sys.argv[1] == "raise at first" and os.environ["GRIDTF_ATTEMPT"] == "2":
    sys.exit()
if world.rank == 2:
    if sys.argv[1].startswith("raise"):
        raise ValueError("the loss is not a number")
    if sys.argv[1] == "abort":
        world.Abort(3)
    if sys.argv[1] == "exit":
        os._exit(9)
time.sleep(600)
"""
# The ranks of n2 alone save.
SAVES_AT_THE_END = """
import os, signal, time
from mpi4py import MPI

def save(*_):
    time.sleep(2)
    print("saved", flush=True)
    os._exit(0)

world = MPI.COMM_WORLD
if world.rank in (2, 3):
    signal.signal(signal.SIGTERM, save)
world.Barrier()
if world.rank == 4:
    raise ValueError("the loss is not a number")
time.sleep(600)
"""
# All ranks end after the same step.
SAVES = """
import os, time
from mpi4py import MPI
import gridtf

world = MPI.COMM_WORLD
saved = os.environ["OUTPUT_DIR"] + "/saved"
if os.path.exists(saved):
    raise SystemExit(print("goes on, of", world.size))
while not world.allreduce(gridtf.checkpoint_requested(), MPI.MAX):
    time.sleep(0.1)
if world.rank == 0:
    open(saved, "w").close()
raise SystemExit(42)
"""


def submit(
    bed: Bed,
    kind: str,
    program: str,
    *arguments: str,
    options: tuple[str, ...] = (),
    where: Mapping[str, tuple[str, ...]] = FOUR_BY_TWO,
) -> ClusterJob:
    found = variables(kind, bed.path)
    (bed.home() / "program.py").write_text(program)
    modules = found.pop("PYTHONPATH")
    words = [f"--env=PYTHONPATH={modules}", *(f"--env={name}={text}" for name, text in found.items() if name != "PATH")]
    line = f"--setup=export PATH={shlex.quote(found['PATH'])}"
    how = (*where[bed.kind], "--mpi", "--gpus-per-task", "0", line, *words, *options)
    return ClusterJob(bed, "--scheduler", bed.kind, *how, "--", "python", "program.py", *arguments)


def ready(job: ClusterJob, count: int = 8) -> dict[str, dict[str, Any]]:
    """The tasks, once all have entered the world."""
    tasks = job.running(count)
    job.until(lambda: all("ready" in text for text in job.logs().values()), "all ranks")
    return tasks


@pytest.mark.tensorflow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("bed", "kind"), [("slurm", MPICH), ("sge", OPEN_MPI)], indirect=["bed"])
def test_all_reduce_of_a_gradient_over_eight_ranks(bed: Bed, kind: str) -> None:
    job = submit(bed, kind, GRADIENTS, options=("--env=TF_CPP_MIN_LOG_LEVEL=2",))
    assert job.verdict(800)["state"] == "COMPLETED", job.output
    said = {name: text.splitlines()[-1] for name, text in job.logs().items()}
    assert said == {f"worker-{rank}": f"{rank} 8 {rank} [3.5, 1.0]" for rank in range(8)}
    assert {task["host"] for task in job.tasks().values()} == HOSTS
    no_process_left(bed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("bed", "kind"), [("slurm", OPEN_MPI), ("sge", MPICH)], indirect=["bed"])
@pytest.mark.parametrize("how", ["raise", "abort", "exit", "kill", "agent", "mpirun", "cancel"])
def test_end_of_a_world_has_its_first_cause(bed: Bed, kind: str, how: str) -> None:
    job = submit(bed, kind, FAULTS, how)
    state, reason = "FAILED", ""
    if how == "raise":
        reason = "worker:2 on n2: ValueError: the loss is not a number (program.py:17)"
    elif how == "abort":
        reason = "worker:2 on"
    elif how == "exit":
        reason = "worker:2 on n2: exit code 9"
    else:
        tasks = ready(job)
        if how == "kill":
            kill9(bed, "n2", tasks["worker:2"]["pid"])
            reason = "worker:2 on n2: killed by SIGKILL"
        elif how == "agent":
            kill9(bed, "n2", tasks["worker:2"]["agent"])
            reason = "the agent on host n2 was killed by SIGKILL"
        elif how == "mpirun":
            (pid,) = bed.run("n1", "pgrep", "-x", "mpirun|mpiexec|mpiexec.hydra").stdout.split()
            kill9(bed, "n1", int(pid))
            reason = "mpirun, which the ranks need, was killed by SIGKILL"
        else:
            gridtf(bed, "cancel", job.seen_as)
            state = "CANCELLED"
    verdict = job.verdict()
    assert verdict["state"] == state, job.output
    assert verdict["reason"].startswith(reason), verdict
    assert json.loads(gridtf(bed, "nodes", "--json").stdout) == [], "no host is at fault"
    no_process_left(bed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("bed", "kind"), [("slurm", OPEN_MPI), ("sge", MPICH)], indirect=["bed"])
def test_world_starts_again_without_a_lost_host(bed: Bed, kind: str) -> None:
    job = submit(bed, kind, FAULTS, "wait", where=THREE_BY_TWO_OR_MORE, options=("--restarts", "1"))
    lost = ready(job)["worker:7"]["host"]
    bed.kill(lost)
    ended(job, "NODE_FAIL", f"host {lost}", "attempt 2 follows")
    job.until(lambda: job.attempt.number == 2, "the second attempt")
    assert {task["host"] for task in ready(job, 6).values()} == HOSTS - {lost}
    bed.mend(lost)  # Grid Engine deletes no job on a host that does not answer
    gridtf(bed, "cancel", job.seen_as)
    ended(job, "CANCELLED", attempt=2)
    no_process_left(bed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [OPEN_MPI, MPICH])
def test_lost_daemon_of_mpirun_is_named(slurm: Bed, kind: str) -> None:
    job = submit(slurm, kind, FAULTS, "wait")
    ready(job)
    (pid,) = slurm.run("n3", "pgrep", "-x", "orted|hydra_pmi_proxy").stdout.split()
    kill9(slurm, "n3", int(pid))
    ended(job, "FAILED", "a daemon of mpirun on host n3 was killed by SIGKILL")
    no_process_left(slurm)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [OPEN_MPI, MPICH])
def test_ranks_save_after_sigterm_although_those_of_other_hosts_are_gone(slurm: Bed, kind: str) -> None:
    job = submit(slurm, kind, SAVES_AT_THE_END, options=("--kill-grace", "20"))
    ended(job, "FAILED", "worker:4 on n3: ValueError")
    assert [name for name, text in job.logs().items() if "saved" in text] == ["worker-2", "worker-3"]


@pytest.mark.timeout(600)
@on_every_scheduler
def test_world_saves_before_the_walltime_and_goes_on(bed: Bed) -> None:
    options = ("--time", "60", "--checkpoint-before", "3590s", "--continue", "1")
    job = submit(bed, OPEN_MPI, SAVES, where=TWO_HOSTS, options=options)
    ended(job, "SAVED", "starts it again (1 of 1)")
    job.until(lambda: job.attempt.number == 2, "the second start")
    ended(job, "COMPLETED", attempt=2)
    assert {text.strip() for text in job.logs().values()} == {"goes on, of 2"}
    no_process_left(bed)


@pytest.fixture
def rank_type(request: pytest.FixtureRequest, slurm: Bed) -> str:
    """What starts the ranks; skips the test where this Slurm's packages lack it, as Debian's of 26.05 lack PMIx."""
    how: str = request.param
    said = slurm.run("login", "srun", "--mpi=list")  # 20.11 writes it to stderr
    if how not in (known := parse_rank_types(said.stdout + said.stderr)):
        pytest.skip(f"this Slurm was built without --mpi={how}: it has {', '.join(known)}")
    return how


by_srun = pytest.mark.parametrize(("kind", "rank_type"), [(MPICH, "pmi2"), (OPEN_MPI, "pmix")], indirect=["rank_type"])


@pytest.mark.timeout(300)
@by_srun
def test_srun_starts_the_ranks_and_the_one_that_raises_is_named(slurm: Bed, kind: str, rank_type: str) -> None:
    job = submit(slurm, kind, FAULTS, "raise at first", options=(f"--mpi={rank_type}", "--restarts", "1"))
    ended(job, "FAILED", "worker:2 on n2: ValueError: the loss is not a number", "attempt 2 follows")
    ended(job, "COMPLETED", attempt=2)
    assert {name: text.strip() for name, text in job.logs().items()} == {
        name: f"ready {place}" for name, place in EIGHT.items()
    }
    no_process_left(slurm)
    folders = ("sh", "-c", f"ls -d /tmp/gridtf-{job.verdict()['nonce']}-*")  # slurmstepd has made some for a TMPDIR
    job.until(lambda: not any(slurm.run(host, *folders, check=False).stdout for host in HOSTS), "no folder on a host")


@pytest.mark.timeout(300)
@by_srun
def test_lost_srun_of_the_ranks_is_named(slurm: Bed, kind: str, rank_type: str) -> None:
    job = submit(slurm, kind, FAULTS, "wait", options=(f"--mpi={rank_type}",))
    ready(job)
    (pid,) = slurm.run("n1", "pgrep", "-o", "-f", f"^srun --mpi={rank_type} ").stdout.split()
    kill9(slurm, "n1", int(pid))
    ended(job, "FAILED", f"srun --mpi={rank_type}, which the ranks need, was killed by SIGKILL")
    no_process_left(slurm)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("exit 3", "srun --mpi=pmi2, which the ranks need, ended with exit code 3"),
        ("exec sleep 600", "srun --mpi=pmi2 has not started worker:"),
    ],
)
def test_srun_that_starts_no_rank_and_says_nothing_ends_the_job(slurm: Bed, does: str, reason: str) -> None:
    srun = slurm.home() / "broken" / "srun"
    srun.parent.mkdir(exist_ok=True)
    srun.write_text(f'#!/bin/sh\ncase "$*" in *--mpi=pmi2*) {does} ;; esac\nexec /usr/bin/srun "$@"\n')
    srun.chmod(0o755)
    options = ("--nodes", "2", "--gpus-per-task", "0", "--mpi=pmi2", "--start-timeout", "20")
    line = f"--setup=export PATH={slurm.seen(srun.parent)}:$PATH"
    job = ClusterJob(slurm, "--scheduler", "slurm", *options, line, "--", "true")
    ended(job, "FAILED", reason, "it has printed nothing")
    no_process_left(slurm)


@pytest.mark.timeout(300)
@on_every_scheduler
def test_world_of_a_hand_written_script(bed: Bed) -> None:
    folder = folder_on(bed, "worlds")
    (folder.path / "program.py").write_text(RANKS)
    enter = "".join(f"export {name}={shlex.quote(text)}\n" for name, text in variables(MPICH, bed.path).items())
    options = {"slurm": ("--nodes=4", "--ntasks-per-node=2"), "sge": ("-pe", "rr", "8")}[bed.kind]
    script = f"{RUN}{enter}gridtf_run --workers 8 --gpus-per-task 0 --mpi -- python program.py\n"
    job = folder.submit(script, *options).ended()
    assert folder.verdicts(job.id) == ["COMPLETED"], job.output
    (run,) = folder.runs(job.id)
    assert sorted(text.strip() for text in logs(run)) == sorted(EIGHT.values())


@pytest.mark.timeout(300)
def test_another_mpi_than_the_program_s_ends_the_job_with_that_reason(slurm: Bed) -> None:
    found = variables(MPICH, slurm.path)
    need = variables(OPEN_MPI, slurm.path)
    line = f"--setup=export PATH={shlex.quote(need['PATH'])} LD_LIBRARY_PATH={shlex.quote(found['LD_LIBRARY_PATH'])}"
    (slurm.home() / "program.py").write_text(FAULTS.replace("world.Barrier()", ""))
    words = ("--nodes", "2", "--gpus-per-task", "0", "--mpi", line, f"--env=PYTHONPATH={found['PYTHONPATH']}")
    job = ClusterJob(slurm, "--scheduler", "slurm", *words, "--", "python", "program.py", "wait")
    ended(job, "FAILED", "the mpirun of the program's MPI has to come first on PATH")
