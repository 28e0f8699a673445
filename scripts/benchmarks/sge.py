"""A job on Grid Engine: the cost of gridtf compared to qrsh -inherit and mpirun, on a separate test bed.

All ways run in one job on four hosts, in turn. The hosts share this machine's cores and its clock: ratios carry over
to other clusters, seconds do not.
"""

from __future__ import annotations

import reports
import sge_job
from cluster import FOLDER, test_bed
from marks import EACH, HOSTS, TASKS
from sge_job import DRMAA, QSUB
from sge_ways import EACH_TASK, FANNED, FLOOR, NOSTDIN, PE
from ways import GRIDTF, MPIRUN

OF_FLOOR, OF_QSUB = 1.5, 5.0
_NAMES = {
    FLOOR: f"{HOSTS} qrsh -inherit true, in all",
    NOSTDIN: f"{HOSTS} qrsh -inherit -nostdin true, in all",
    FANNED: f"{HOSTS} qrsh -inherit, {EACH} bare Pythons each",
    EACH_TASK: f"{TASKS} qrsh -inherit, bare Python",
    MPIRUN: "mpirun",
    GRIDTF: "gridtf",
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


def main() -> None:
    with test_bed("sge", {"mpirun": "openmpi-bin"}) as bed:
        submitted = bed.submitted(sge_job.__file__)
        job = bed.on_login(
            *("qsub", "-terse", "-pe", PE, str(TASKS), "-S", "/bin/bash", "-N", "bench"),
            *("-j", "y", "-o", f"{FOLDER}/job.log"),
            text=bed.script(sge_job.__file__),
        ).strip()
        launched = bed.launched(job)
        gone = bed.gone(job, sge_job.TO_KILL)
    reports.launched(launched, _NAMES, FLOOR, _LAUNCH_AIMS)
    reports.gone(gone, _NAMES)
    aim = f"{OF_QSUB:g} or less"
    reports.submitted(submitted, _COMMANDS, ("bare", "python"), {DRMAA: aim, QSUB: aim})
