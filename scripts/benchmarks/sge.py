"""A job on Grid Engine: the cost of gridtf compared to qrsh -inherit and mpirun, on a separate test bed.

All ways run in one job on four hosts, in turn. The hosts share this machine's cores and its clock: ratios carry over
to other clusters, seconds do not.
"""

from __future__ import annotations

import reports
import sge_job
from cluster import FOLDER, Cluster, test_bed
from marks import EACH, HOSTS, MANY, TASKS
from sge_job import DRMAA, QSUB
from sge_ways import EACH_TASK, FANNED, FLOOR, NOSTDIN, PE
from ways import GRIDTF, MPIRUN, WORLD

OF_FLOOR, OF_QSUB, OF_QRSH = 1.0, 5.0, 1.3
_NAMES = {
    FLOOR: f"{HOSTS} qrsh -inherit true, in all",
    NOSTDIN: f"{HOSTS} qrsh -inherit -nostdin true, in all",
    FANNED: f"{HOSTS} qrsh -inherit, {EACH} bare Pythons each",
    EACH_TASK: f"{TASKS} qrsh -inherit, bare Python",
    MPIRUN: "mpirun",
    GRIDTF: "gridtf",
    WORLD: "gridtf --mpi",
}
_LAUNCH_AIMS = {FLOOR: f"{OF_FLOOR} or less"}
_COMMANDS = {
    "bare": "qsub",
    "python": "python -c pass",
    "jinja2": "python -c 'import jinja2'",
    "verify": "qsub -w v",
    "render": "gridtf render",
    DRMAA: "gridtf submit, by DRMAA",
    QSUB: "gridtf submit, by qsub",
}
_HOSTS = tuple(f"n{number}" for number in range(1, HOSTS + 1))
_MANY_SLOTS = [f"--option={host}.complex_values=slots={MANY}" for host in _HOSTS] + [f"--option=all.q.slots={MANY}"]


def main() -> None:
    with test_bed("sge", {"mpirun": "openmpi-bin"}) as bed:
        submitted = bed.submitted(sge_job.__file__)
        job = _job(bed, "launch")
        launched = bed.launched(job, "launch")
        gone = bed.gone(job, sge_job.TO_KILL)
    with test_bed("sge", {}, *_MANY_SLOTS) as bed:
        many = bed.launched(_job(bed, "many", HOSTS * MANY), "many")
    with test_bed("sge", {}, "--shared=laggy") as bed:
        laggy = bed.launched(_job(bed, "laggy"), "laggy")
    reports.launched(launched, _NAMES, FLOOR, _LAUNCH_AIMS)
    reports.world(launched)
    reports.many(many, _NAMES | {FANNED: "one qrsh -inherit a host"}, OF_QRSH)
    reports.laggy(launched[GRIDTF], laggy[GRIDTF])
    reports.gone(gone, _NAMES)
    aim = f"{OF_QSUB:g} or less"
    reports.submitted(submitted, _COMMANDS, ("bare", "python"), {DRMAA: aim, QSUB: aim})


def _job(bed: Cluster, verb: str, slots: int = TASKS) -> str:
    """Submit a job of sge_job; returns its id."""
    return bed.on_login(
        *("qsub", "-terse", "-pe", PE, str(slots), "-S", "/bin/bash", "-N", "bench"),
        *("-j", "y", "-o", f"{FOLDER}/job.log"),
        text=bed.script(sge_job.__file__, verb),
    ).strip()
