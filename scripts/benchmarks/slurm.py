"""A job on Slurm: the cost of gridtf compared to srun, mpirun, torchrun and a pasted shell, on a separate test bed.

All ways run in one job on four hosts, in turn. The hosts share this machine's cores and its clock: ratios carry over
to other clusters, seconds do not.
"""

from __future__ import annotations

import reports
import slurm_job
from cluster import FOLDER, Cluster, test_bed
from marks import EACH, HOSTS, TASKS
from slurm_ways import BARE, FLOOR, KILLED, PASTED, TORCHRUN
from ways import GRIDTF, MPIRUN, WORLD

OF_MPIRUN, OF_TORCHRUN, OF_SBATCH, OF_SRUN = 1.2, 8.0, 5.0, 1.5
_NAMES = {
    FLOOR: f"srun -N{HOSTS} -n{TASKS} true, in all",
    BARE: "srun, bare Python",
    PASTED: "srun, pasted shell",
    MPIRUN: "mpirun",
    TORCHRUN: "torchrun, c10d, in every third round",
    GRIDTF: "gridtf",
    WORLD: "gridtf --mpi",
    KILLED: "srun --kill-on-bad-exit=1",
}
_LAUNCH_AIMS = {
    MPIRUN: f"{OF_MPIRUN} or less",
    TORCHRUN: f"1/{OF_TORCHRUN:g} = {1 / OF_TORCHRUN:.3f} or less",
}
_COMMANDS = {
    "sbatch": "sbatch",
    "python": "python -c pass",
    "jinja2": "python -c 'import jinja2'",
    "test": "sbatch --test-only",
    "sinfo": "sinfo",
    "render": "gridtf render",
    GRIDTF: "gridtf submit",
}


def main() -> None:
    with test_bed("slurm", {"mpirun": "openmpi-bin"}) as bed:
        submitted = bed.submitted(slurm_job.__file__)
        job = _job(bed, "launch")
        launched = bed.launched(job, "launch")
        gone = bed.gone(job, slurm_job.TO_KILL)
        many = bed.launched(_job(bed, "many"), "many")
    with test_bed("slurm", {}, "--shared=laggy") as bed:
        laggy = bed.launched(_job(bed, "laggy"), "laggy")
    reports.launched(launched, _NAMES, FLOOR, _LAUNCH_AIMS)
    reports.world(launched)
    reports.many(many, _NAMES, OF_SRUN)
    reports.laggy(launched[GRIDTF], laggy[GRIDTF])
    reports.gone(gone, _NAMES)
    reports.submitted(submitted, _COMMANDS, ("sbatch", "python"), {GRIDTF: f"{OF_SBATCH:g} or less"})


def _job(bed: Cluster, verb: str) -> str:
    """Submit a job of slurm_job; returns its id."""
    return bed.on_login(
        *("sbatch", "--parsable", f"--nodes={HOSTS}", f"--ntasks-per-node={EACH}"),
        *(f"--output={FOLDER}/job.log", "--job-name=bench"),
        text=bed.script(slurm_job.__file__, verb),
    ).strip()
