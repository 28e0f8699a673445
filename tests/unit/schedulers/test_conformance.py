"""The conformance suite on gridtf's own schedulers, with outputs recorded on Slurm 22.05 and Son of Grid Engine 8.1.9.
tests/cluster/test_conformance.py runs it on real clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gridtf.schedulers.api import JobIdentity
from gridtf.schedulers.local import scheduler as local
from gridtf.schedulers.sge import scheduler as sge
from gridtf.schedulers.slurm import scheduler as slurm
from gridtf.states import JobState
from gridtf.testing import (
    BatchConformance,
    CommandConformance,
    LiveConformance,
    Output,
    Recorded,
    RecordedJob,
    SchedulerConformance,
)


class TestLocal(SchedulerConformance):
    scheduler = local
    most_hosts = 1


class TestLiveLocal(LiveConformance):
    scheduler = local
    most_hosts = 1

    def unknown_job(self) -> JobIdentity:
        # without the process's start time, as in a record of an earlier version
        return JobIdentity("999999.here", {"pid": 999999, "boot": "another"}, host=local.injob.identity({}).host)


# --- Slurm

_NO_CONTROLLER = "Unable to contact slurm controller (connect failure)"
_SQUEUE = """\
60|60|PENDING|N/A|Resources
61|61|CONFIGURING|2026-11-21T11:08:18|None
62|62|RUNNING|2026-11-21T11:08:18|None
63|63|SUSPENDED|2026-11-21T11:08:18|None
64|64|COMPLETING|2026-11-21T11:08:18|None
65|65|COMPLETED|2026-11-21T11:08:18|None
66|66|FAILED|2026-11-21T11:08:18|NonZeroExitCode
67|67|CANCELLED|2026-11-21T11:08:18|None
68|68|TIMEOUT|2026-11-21T11:08:18|TimeLimit
69|69|NODE_FAIL|2026-11-21T11:08:18|None
70|70|PREEMPTED|2026-11-21T11:08:18|None
71|71|OUT_OF_MEMORY|2026-11-21T11:08:18|OutOfMemory
72|72|BOOT_FAIL|2026-11-21T11:08:18|None
73|73|DEADLINE|2026-11-21T11:08:18|DeadLine
53_[3-5%2]|53|PENDING|N/A|JobArrayTaskLimit
53_1|54|RUNNING|2026-11-21T11:08:18|None
"""


class TestSlurm(CommandConformance):
    scheduler = slurm
    native = ("--qos=high", '--comment="two words"')
    array = ("--array=0-6:2,9%4", ("0", "2", "4", "6", "9"))
    recorded = Recorded(
        accepted=(Output("sbatch", "4711\n"),),
        job_id="4711",
        refused=(
            Output(
                "sbatch", err="sbatch: error: Batch job submission failed: Invalid partition name specified\n", code=1
            ),
        ),
        garbled=(Output("sbatch", "Thank you for using our cluster.\n"), Output("squeue")),
        unreachable=(
            Output("sbatch", err=f"sbatch: error: Batch job submission failed: {_NO_CONTROLLER}\n", code=1),
            Output("squeue", err=f"slurm_load_jobs error: {_NO_CONTROLLER}\n", code=1),
            Output("scancel", err=f"scancel: error: slurm_kill_job2 error: {_NO_CONTROLLER}\n", code=1),
            Output("scontrol", "Slurmctld(primary) at ctl1 is DOWN\n", code=1),
        ),
        listed=(Output("squeue", _SQUEUE),),
        states={
            "60": JobState.PENDING,
            "61": JobState.PENDING,
            "62": JobState.RUNNING,
            "63": JobState.RUNNING,
            "64": JobState.RUNNING,
            "65": JobState.COMPLETED,
            "66": JobState.FAILED,
            "67": JobState.CANCELLED,
            "68": JobState.TIMEOUT,
            "69": JobState.NODE_FAIL,
            "70": JobState.PREEMPTED,
            "71": JobState.OUT_OF_MEMORY,
            "72": JobState.NODE_FAIL,
            "73": JobState.TIMEOUT,
            "53": JobState.RUNNING,
            "53_4": JobState.PENDING,
        },
        unknown=(Output("squeue", err="slurm_load_jobs error: Invalid job id specified\n", code=1),),
        cancelled=(Output("scancel"),),
        ended=(
            Output(
                "scancel",
                err="scancel: error: Kill job error on job id 4711: Invalid job id specified\n",
                code=1,
            ),
        ),
        denied=(
            Output(
                "scancel",
                err="scancel: error: Kill job error on job id 4711: Access/permission denied\n",
                code=1,
            ),
        ),
    )
    job = RecordedJob(
        {
            "SLURM_JOB_ID": "4713",
            "SLURM_ARRAY_JOB_ID": "4711",
            "SLURM_ARRAY_TASK_ID": "2",
            "SLURMD_NODENAME": "n1",
            "SLURM_JOB_NODELIST": "n[1-3,10]",
            "SLURM_JOB_CPUS_PER_NODE": "4(x2),2,8",
            "SLURM_TASKS_PER_NODE": "2(x2),1,2",
        },
        job_id="4711_2",
        element="2",
        hosts={"n1": 2, "n2": 2, "n3": 1, "n10": 2},
    )


# --- Grid Engine

_HEAD = "<?xml version='1.0'?>\n<job_info  xmlns:xsd=\"http://arc.liv.ac.uk/…/qstat.xsd\">\n  <queue_info>\n"
_NONE = f"{_HEAD}  </queue_info>\n  <job_info>\n  </job_info>\n</job_info>\n"
_UNKNOWN = "<?xml version='1.0'?>\n<unknown_jobs >\n    <ST_name>999999</ST_name>\n</unknown_jobs>\n"
_NO_QMASTER = 'error: unable to send message to qmaster using port 6444 on host "sge0": got send error\n'


def _listed(*jobs: tuple[int, str]) -> str:
    """Output of qstat -xml: running jobs are below queue_info, pending ones below job_info."""
    sections = {"running": "", "pending": ""}
    for number, state in jobs:
        where = "pending" if "q" in state else "running"
        sections[where] += (
            f'    <job_list state="{where}">\n      <JB_job_number>{number}</JB_job_number>\n'
            f"      <JB_owner>alice</JB_owner>\n      <state>{state}</state>\n      <slots>1</slots>\n    </job_list>\n"
        )
    running, pending = sections.values()
    return f"{_HEAD}{running}  </queue_info>\n  <job_info>\n{pending}  </job_info>\n</job_info>\n"


_MAY_FORCE = Output("qconf", "qmaster_params               ENABLE_FORCED_QDEL=1\n")


class TestGridEngine(BatchConformance):
    scheduler = sge
    values: ClassVar[Mapping[str, Any]] = {"pe": "mpi"}
    native = ("-p -100", "-l exclusive")
    array = ("-t 1-7:2", ("1", "3", "5", "7"))
    recorded = Recorded(
        environ={"SGE_ROOT": "/nowhere/sge", "GRIDTF_SGE_SUBMIT": "qsub"},
        accepted=(Output("qsub", "4711\n"),),
        job_id="4711",
        refused=(
            Output(
                "qsub",
                err='Unable to run job: job rejected: the requested project "mi" does not exist.\nExiting.\n',
                code=1,
            ),
        ),
        garbled=(Output("qsub", "Thank you for using our cluster.\n"), Output("qstat", _NONE)),
        unreachable=tuple(Output(program, err=_NO_QMASTER, code=1) for program in ("qsub", "qstat", "qdel")),
        listed=(
            Output("qstat", _listed((1, "r"), (2, "t"), (3, "Rr"), (4, "s"), (5, "dr"), (6, "qw"), (7, "hqw"))),
            Output("qstat", _UNKNOWN),
        ),
        states={
            "1": JobState.RUNNING,
            "2": JobState.RUNNING,
            "3": JobState.RUNNING,
            "4": JobState.RUNNING,
            "5": JobState.RUNNING,
            "6": JobState.PENDING,
            "7": JobState.PENDING,
        },
        unknown=(Output("qstat", _NONE), Output("qstat", _UNKNOWN)),
        cancelled=(Output("qdel", "alice has registered the job 4711 for deletion\n"), _MAY_FORCE),
        ended=(Output("qdel", 'denied: job "4711" does not exist\n', code=1), _MAY_FORCE),
        denied=(Output("qdel", 'alice - you do not have the necessary privileges to delete the job "4711"\n', code=1),),
    )
    job = RecordedJob(
        {"JOB_ID": "4711", "SGE_TASK_ID": "3", "JOB_NAME": "digits", "PE": "mpi", "NSLOTS": "6", "QUEUE": "all.q"},
        job_id="4711.3",
        element="3",
        files={"PE_HOSTFILE": "n1 4 all.q@n1 UNDEFINED\nn2 2 all.q@n2 UNDEFINED\n"},
        hosts={"n1": 4, "n2": 2},
        outputs=(Output("qstat", _UNKNOWN),),
    )
