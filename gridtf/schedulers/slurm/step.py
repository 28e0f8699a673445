"""The srun step that starts the agents, one a node: srun(1)."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence

from gridtf.errors import GridtfError, SchedulerError, ToldToEndError
from gridtf.host.processes import signal_name
from gridtf.schedulers.base import AgentCall, AgentEnd, Host

# What a job's own options have left in its environment, where srun takes them for its own (srun(1), INPUT ENVIRONMENT
# VARIABLES). They describe the training tasks: --gpus-per-task=1 would leave an agent one GPU of its host's four.
_MEANT_FOR_TASKS = re.compile(
    r"SLURM_(CPUS?_|CPUS_PER_|CPU_BIND|DISTRIBUTION$|EXACT$|EXCLUSIVE$|EXPORT_ENV$|GPUS|GPU_BIND|GRES|HINT$|"
    r"KILL_BAD_EXIT$|LABELIO$|MEM_PER_|MEM_BIND|MPI_TYPE$|MULTI_PROG$|NCORES_PER_SOCKET$|NPROCS$|NTASKS|OPEN_MODE$|"
    r"OVERCOMMIT$|OVERLAP$|RESV_PORTS$|SPREAD_JOB$|STD(ERR|IN|OUT)MODE$|STEP_GRES|TASK_(EPILOG|PROLOG)$|THREADS|"
    r"TRES_|UNBUFFEREDIO$|WAIT$|WHOLE$|WORKING_DIR$)"
)
# What tells how much this job has, rather than how a step is to be laid out.
_KEPT = frozenset({"SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE"})

# srun: error: n3: task 2: Killed      srun: error: n[2-3]: tasks 1-2: Exited with exit code 70
_TASK_ENDED = re.compile(r"srun: error: (\S+): tasks? [\d,-]+: (.+)")
_EXITED = re.compile(r"Exited with exit code (\d+)")
# srun: error: Task launch for StepId=10.0 failed on node n4: Protocol authentication error
_NOT_LAUNCHED = re.compile(r"srun: error: Task launch for StepId=\S+ failed on node (\S+): (.+)")
# Before any task has ended: somebody else has ended the step. Slurm's daemons say of both when, and may say why:
# slurmstepd-n1: error: *** STEP 6.0 ON n1 CANCELLED AT 2026-11-21T23:35:24 DUE TO NODE FAILURE, SEE … ***
_ABORTED = "srun: Job step aborted"
_CANCELLED = re.compile(r"\*\*\* (?:STEP|JOB) (\S+) ON \S+ CANCELLED AT \S+(?: DUE TO ([^,*]+))?")


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What srun finds in its environment: what the job has, without options that are meant for other steps."""
    return {name: text for name, text in environ.items() if name in _KEPT or not _MEANT_FOR_TASKS.match(name)}


def command(hosts: Sequence[Host], call: AgentCall, environ: Mapping[str, str]) -> list[str]:
    """srun for one agent on each of these hosts, component by component where the job is heterogeneous.

    environ: the job's environment.
    """
    words = ["srun"]
    for component in sorted({host.component for host in hosts}):
        if component:
            words.append(":")
        members = [host for host in hosts if host.component == component]
        words += _options(members, environ)
        if any(host.component for host in hosts):
            words.append(f"--het-group={component}")
        words += [*call.command, "@SLURMD_NODENAME", *call.arguments]
    return words


def _options(hosts: Sequence[Host], environ: Mapping[str, str]) -> list[str]:
    count = len(hosts)
    words = [
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        "--job-name=gridtf",
        # all that the job has on the node: memory, and below the CPUs
        "--mem=0",
        "--export=ALL",  # sbatch --export=NONE means the job, not what the job starts
        "--wait=0",  # a site may have set a time after which the others are killed when the first has ended
        "--kill-on-bad-exit=1",  # an agent that fails ends the step: the other agents get TERM, and tear down
        "--cpu-bind=none",  # an agent is not one task but all of its host's
        "--mpi=none",  # agents speak no MPI: a site's default may start PMIx servers
        "--input=all",  # its end is our word to the agents
    ]
    cpus = {host.cpus for host in hosts}
    if len(cpus) == 1 and None not in cpus:
        # else it is left out, and the step has all CPUs on every node, however many that are
        words.append(f"--cpus-per-task={cpus.pop()}")
    # not asked for, a step of an --exclusive job gets no GPUs
    gpus = {host.gpus or 0 for host in hosts}
    if len(gpus) > 1:
        words.append(f"--gpus={sum(host.gpus or 0 for host in hosts)}")
    elif gpus != {0}:
        words.append(f"--gpus-per-node={gpus.pop()}")
    if "SLURM_STEP_ID" in environ and len(gpus) < 2:
        # The step that we run in, such as srun --pty bash, has all there is. (With GPUs that are not the same number
        # everywhere, Slurm would give too few.)
        words.append("--overlap")
    return words


def blame(code: int, printed: Sequence[str], restarts: int = 0) -> AgentEnd:
    """Which agent ended first, and how: srun says it of every task, in the order in which it hears of them. Or what
    became of srun or of its step, when none did. restarts: how often the job had been started before."""
    if code < 0:
        killed = f"srun, which had started the agents, was killed by {signal_name(-code)}"
        return AgentEnd(code, None, (), GridtfError(killed, hint="by hand, or by the kernel because memory ran out?"))
    for line in printed:
        if line.startswith(_ABORTED):
            return AgentEnd(-signal.SIGTERM, None, (), _cancelled(printed))
        if failed := _NOT_LAUNCHED.match(line):
            what = f"Slurm has not started the agent on host {failed[1]}"
            return AgentEnd(code, failed[1], (), SchedulerError(what, why=failed[2].strip()))
        match = _TASK_ENDED.match(line)
        if match is None:
            continue
        host, how = match.groups()
        exited = _EXITED.match(how)
        if exited is None and how not in ("Killed", "Out Of Memory"):
            continue
        if exited is None and restarts:  # seen after a cut link, seconds into the second start
            late = ("Slurm may have cleaned up there only now, after an earlier start of this job",)
            return AgentEnd(-signal.SIGKILL, host, late)
        return AgentEnd(int(exited[1]) if exited else -signal.SIGKILL, host)
    return AgentEnd(code, None, tuple(line for line in printed if line.startswith("srun: error:"))[:3])


def _cancelled(printed: Sequence[str]) -> ToldToEndError:
    said = next((match for line in printed if (match := _CANCELLED.search(line))), None)
    what = f"the step of the agents{f', {said[1]},' if said else ''} was cancelled"
    if said and said[2]:
        return ToldToEndError(what, why=f"Slurm says: due to {said[2].strip().lower()}")
    return ToldToEndError(what, hint="by scancel of the step, or by Slurm, which does so when it ends a job")
