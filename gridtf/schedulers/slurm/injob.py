"""Slurm inside a job: its allocation, read from its environment, and the srun step that starts one agent per node."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from gridtf.errors import CleanedUpError, GridtfError, OutOfMemoryError, PlacementError, SchedulerError, TerminatedError
from gridtf.host.processes import signal_name
from gridtf.jobspec.request import Request
from gridtf.schedulers.api import (
    AgentCall,
    AgentEnd,
    AgentHandle,
    Allocation,
    Host,
    JobIdentity,
    Parent,
    RankVariables,
    Wait,
)
from gridtf.schedulers.injob import InJob
from gridtf.schedulers.slurm import ending
from gridtf.schedulers.slurm.commands import slurm
from gridtf.schedulers.slurm.hostlist import counts, expand
from gridtf.schedulers.slurm.query import parse_moment, parse_node_gpus
from gridtf.text import counted, some, whole

_STEPD = "slurmstepd"

# --- the allocation: sbatch(1), OUTPUT ENVIRONMENT VARIABLES -----------------------------------------------------

GpusOfNodes = Callable[[str], Mapping[str, int]]


def allocation(environ: Mapping[str, str], request: Request, gpus_of_nodes: GpusOfNodes) -> Allocation:
    """Read the hosts of this job from its environment, component by component where the job is heterogeneous.

    Args:
        environ: The job's environment (sbatch(1), OUTPUT ENVIRONMENT VARIABLES).
        request: What the job requests.
        gpus_of_nodes: Queries the controller: job id -> GPUs by node. Called only where the environment does not have
            the number of GPUs.

    Returns:
        The hosts with their slots, CPUs and GPUs, in Slurm's order; first those of the training tasks.

    Raises:
        PlacementError: When the job has less than the request.
        SchedulerError: When a variable is missing or cannot be parsed.
    """
    requested, present = len(request.components), _components(environ)
    if requested > present:
        raise PlacementError(
            f"tasks with partitions or GPUs of their own need a heterogeneous job of {requested} components, this job "
            f"has {present}",
            hint="leave partition and gpu_model out of the [tasks.…] tables, or submit the job with gridtf submit",
        )
    suffixes = [f"_HET_GROUP_{number}" if present > 1 else "" for number in range(requested)]
    hosts = _training_hosts(environ, suffixes[0], request, gpus_of_nodes)
    for number, suffix in enumerate(suffixes[1:], 1):  # components share no nodes
        names = _names(environ, suffix)
        gpus = _gpus(environ, suffix, names, gpus_of_nodes) if request.components[number].gpus else {}
        hosts += _hosts(environ, suffix, names, gpus, component=number)
    return Allocation(tuple(hosts))


def _components(environ: Mapping[str, str]) -> int:
    text = environ.get("SLURM_HET_SIZE") or "1"
    size = whole(text)
    if size is None:
        what = f"SLURM_HET_SIZE={text!r} is not a number"
        raise SchedulerError(what, hint="Slurm sets this variable; do not change it")
    return size


def _names(environ: Mapping[str, str], suffix: str) -> list[str]:
    names = expand(environ.get(f"SLURM_JOB_NODELIST{suffix}") or environ.get(f"SLURM_NODELIST{suffix}") or "")
    if not names:
        what = f"SLURM_JOB_NODELIST{suffix} is not set on {environ.get('SLURMD_NODENAME', 'this host')}"
        raise SchedulerError(what, hint="does this run inside a job script or an salloc session?")
    return names


def _training_hosts(
    environ: Mapping[str, str], suffix: str, request: Request, gpus_of_nodes: GpusOfNodes
) -> list[Host]:
    """The hosts of the first component, which has all training tasks."""
    names = _names(environ, suffix)
    fewest = (request.chosen("nodes") or (1, 1))[0]
    if fewest > len(names):
        what = f"{counted(fewest, 'node')} are requested, but this job has {len(names)}: {some(names)}"
        raise PlacementError(what, hint="leave --nodes out, or request as many nodes from sbatch or salloc")
    gpus = _gpus(environ, suffix, names, gpus_of_nodes)
    least = min(names, key=lambda name: gpus.get(name, 0))
    requested = request.chosen("gpus_per_node") or 0
    short = [name for name in names if gpus.get(name, 0) < requested]
    if short:
        raise PlacementError(
            f"{requested} GPUs a node are requested, but this job has {gpus.get(short[0], 0)} on {short[0]}",
            hint="leave --gpus-per-node out, or request as many GPUs from sbatch",
        )
    tasks = request.chosen("tasks_per_node")
    one = int(any(gpus.values()))
    per_task = request.gpu_share or request.most_gpus(one)
    whole = request.gpus_in_all(one)  # of all tasks; a leader may have none
    needed = (tasks or 0) * per_task if whole is None else min((tasks or 0) * per_task, whole)
    if needed > gpus.get(least, 0):  # request.resolve checks the same before a submission
        raise PlacementError(
            f"tasks_per_node: {tasks} tasks x {per_task} GPUs need more than this job has on {least}, "
            f"{gpus.get(least, 0)}",
            hint="leave --tasks-per-node out, or request tasks without GPUs: --gpus-per-task 0",
        )
    return _hosts(environ, suffix, names, gpus, slots=tasks)


def _hosts(
    environ: Mapping[str, str],
    suffix: str,
    names: list[str],
    gpus: Mapping[str, int],
    *,
    slots: int | None = None,
    component: int = 0,
) -> list[Host]:
    """Hosts of one component. slots: slots of each host; None: the number of tasks that Slurm would start there."""
    cpus = _of_each(environ.get(f"SLURM_JOB_CPUS_PER_NODE{suffix}"), names)
    tasks = _of_each(environ.get(f"SLURM_TASKS_PER_NODE{suffix}"), names)
    return [
        Host(name, slots or host_tasks or 1, gpus.get(name, 0), host_cpus, name, component)
        for name, host_tasks, host_cpus in zip(names, tasks, cpus, strict=True)
    ]


def _of_each(text: str | None, names: list[str]) -> list[int | None]:
    values: list[int | None] = [*counts(text)] if text else []
    return values if len(values) == len(names) else [None] * len(names)


def _gpus(environ: Mapping[str, str], suffix: str, names: list[str], gpus_of_nodes: GpusOfNodes) -> Mapping[str, int]:
    """GPUs by host. Each agent reads on its host what is granted there; a host that grants fewer ends the attempt."""
    per_node = environ.get(f"SLURM_GPUS_PER_NODE{suffix}")
    if per_node and per_node != "0":  # which may be of the step around the launcher: srun --gpus-per-node=0 --pty bash
        return dict.fromkeys(names, _sum(per_node))
    # with --gpus, --gpus-per-task and --gres the number may differ by host, and only the controller knows it
    on_host = "SLURMD_NODENAME" in environ  # else the shell of an salloc on another host, which has fewer variables
    if on_host and not any(re.match(r"SLURM_(JOB_|STEP_)?(GPUS|GRES)", name) for name in environ):
        return {}
    job = environ.get(f"SLURM_JOB_ID{suffix}") or environ.get("SLURM_JOB_ID", "")
    try:
        return gpus_of_nodes(job)
    except SchedulerError:  # no scontrol in a container, or a controller that does not answer
        here = whole(environ.get("SLURM_GPUS_ON_NODE", ""))
        return {} if here is None else dict.fromkeys(names, here)


def _sum(text: str) -> int:
    """Number of GPUs in ``4``, ``a100:4`` or ``a100:2,v100:1``, the GPUs of a node by type."""
    return sum(int(number) for number in re.findall(r"(?:^|[:,])([0-9]{1,9})(?=,|$)", text))


# Where steps cannot share GPUs. Slurm requeues a job that was not submitted with --no-kill.
NO_SPARES = "leave out restarts and spare_nodes: then Slurm itself starts such a job again, if the site requeues jobs"

# --- the step: srun(1) -------------------------------------------------------------------------------------------

# Options of the job that Slurm leaves in its environment, where srun would take them as its own (srun(1), INPUT
# ENVIRONMENT VARIABLES). They describe the training tasks: --gpus-per-task=1 would leave an agent one GPU of its host's
# four.
_MEANT_FOR_TASKS = re.compile(
    r"SLURM_(CLUSTERS$|CPUS?_|CPUS_PER_|CPU_BIND|DISTRIBUTION$|EXACT$|EXCLUSIVE$|EXPORT_ENV$|GPUS|GPU_BIND|GRES|HINT$|"
    r"KILL_BAD_EXIT$|LABELIO$|MEM_PER_|MEM_BIND|MPI_TYPE$|MULTI_PROG$|NCORES_PER_SOCKET$|NPROCS$|"
    r"NTASKS|OPEN_MODE$|OVERCOMMIT$|OVERLAP$|RESV_PORTS$|SPREAD_JOB$|STD(ERR|IN|OUT)MODE$|STEP_GRES|"
    r"TASK_(EPILOG|PROLOG)$|THREADS|TRES_|UNBUFFEREDIO$|WAIT$|WHOLE$|WORKING_DIR$)"
)
# These say how much the job has, not how a step is laid out.
_KEPT = frozenset({"SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE"})
# Of all components of a heterogeneous job, which srun of Slurm 20.11 takes for the size of each.
_OF_ALL_COMPONENTS = "SLURM_JOB_NUM_NODES"

# srun: error: n3: task 2: Killed      srun: error: n[2-3]: tasks 1-2: Exited with exit code 70
_TASK_ENDED = re.compile(r"srun: error: (\S+): tasks? [\d,-]+: (.+)")
_OUT_OF_MEMORY = re.compile(r"srun: error: (\S+): tasks? [\d,-]+: Out Of Memory")
_EXITED = re.compile(r"Exited with exit code (\d+)")
# srun: error: Task launch for StepId=10.0 failed on node n4: Protocol authentication error
_NOT_LAUNCHED = re.compile(r"srun: error: Task launch for StepId=\S+ failed on node (\S+): (.+)")
_REVOKED = re.compile("credential revoked|Invalid job credential")  # seen with 22.05, and with 24.11
# Printed before any task has exited: the step was cancelled. Slurm's daemons print when, and sometimes why:
# slurmstepd-n1: error: *** STEP 6.0 ON n1 CANCELLED AT 2026-11-21T23:35:24 DUE TO NODE FAILURE, SEE … ***
_ABORTED = "srun: Job step aborted"
_CANCELLED = re.compile(r"\*\*\* (?:STEP|JOB) (\S+) ON \S+ CANCELLED AT \S+(?: DUE TO ([^,*]+))?")


def srun_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the agents' srun: the job's, without options that are meant for the training tasks."""
    passed = {name: text for name, text in environ.items() if name in _KEPT or not _MEANT_FOR_TASKS.match(name)}
    if "SLURM_HET_SIZE" in environ:
        passed.pop(_OF_ALL_COMPONENTS, None)
    return passed


def srun_command(hosts: Sequence[Host], call: AgentCall, environ: Mapping[str, str]) -> list[str]:
    """Build the srun command that starts one agent on each host.

    Args:
        hosts: Hosts of the allocation.
        call: How an agent is started.
        environ: The job's environment.

    Returns:
        The command; with one part per component where the job is heterogeneous.
    """
    words = ["srun"]
    for component in sorted({host.component for host in hosts}):
        if component:
            words.append(":")
        members = [host for host in hosts if host.component == component]
        words += _options(members, call, environ)
        if any(host.component for host in hosts):
            words.append(f"--het-group={component}")
        words += [*call.command, "@SLURMD_NODENAME", *call.arguments]
    return words


def _options(hosts: Sequence[Host], call: AgentCall, environ: Mapping[str, str]) -> list[str]:
    count = len(hosts)
    words = [
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        "--job-name=gridtf",
        # all memory that the job has on the node; all of its CPUs: see below
        "--mem=0",
        "--export=ALL",  # sbatch --export=NONE is meant for the job, not for what the job starts
        "--wait=0",  # a site may have set WaitTime, after which srun kills the others when the first has ended
        "--kill-on-bad-exit=1",  # an agent that fails ends the step: the other agents get TERM, and tear down
        "--cpu-bind=none",  # an agent stands for all tasks of its host
        "--mpi=none",  # agents speak no MPI: a site's default may start PMIx servers
        "--input=all",  # the end of the input tells the agents to stop
    ]
    if call.outlives:
        # the hosts of an attempt may be some of the job's; and one that is lost must not end the step of the others,
        # which tear their tasks down and say so
        words += [f"--nodelist={','.join(host.name for host in hosts)}", "--no-kill"]
    cpus = {host.cpus for host in hosts}
    if len(cpus) == 1 and None not in cpus:
        # without the option, the step has all CPUs of every node, whatever their number
        words.append(f"--cpus-per-task={cpus.pop()}")
    # without this, a step of an --exclusive job gets no GPUs
    gpus = {host.gpus or 0 for host in hosts}
    if len(gpus) > 1:
        words.append(f"--gpus={sum(host.gpus or 0 for host in hosts)}")
    elif gpus != {0}:
        words.append(f"--gpus-per-node={gpus.pop()}")
    if ("SLURM_STEP_NUM_TASKS" in environ or call.restarted) and len(gpus) < 2:
        # The step that the launcher runs in, such as srun --pty bash, holds all resources; so does the step of an
        # earlier attempt on a host that is lost. Only such a step has SLURM_STEP_NUM_TASKS; a batch script of Slurm
        # 26.05 has a SLURM_STEP_ID. (Where the number of GPUs differs by host, Slurm would grant an overlapping step
        # too few.)
        words.append("--overlap")
    return words


def held_gpus(hosts: Sequence[Host], call: AgentCall, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Find another step of the job that holds GPUs of these hosts, for a Slurm whose steps cannot share them.

    Args:
        hosts: Hosts of the allocation.
        call: How an agent is started.
        environ: The job's environment.

    Returns:
        (which step that is, what to do about it); None where there is none.
    """
    if any(host.gpus for host in hosts):
        if "SLURM_STEP_NUM_TASKS" in environ and environ.get("SLURM_STEP_GPUS"):
            return "the one that gridtf runs in", "start that step without GPUs: srun --gpus-per-node=0 --pty bash"
        if call.restarted and len(hosts) < (whole(environ.get("SLURM_JOB_NUM_NODES", "")) or 0):
            return "the one that has lost a host", NO_SPARES
    return None


def parse_failure(code: int, printed: Sequence[str], restarts: int = 0) -> AgentEnd:
    """Find out from srun's output which agent ended first, or what ended srun or its step if no agent had ended.

    Args:
        code: Exit code of srun, or minus the signal that ended it.
        printed: Output lines of srun and Slurm's daemons; srun prints one for every agent, in the order of their ends.
        restarts: Number of earlier starts of the job (SLURM_RESTART_COUNT).

    Returns:
        The end of the first agent. Its host is None where srun, its step or all agents together have ended.
    """
    if code < 0:
        killed = f"srun, which had started the agents, was killed by {signal_name(-code)}"
        return AgentEnd(code, None, (), GridtfError(killed, hint="by a user, or by the kernel because memory ran out?"))
    aborted = any(line.startswith(_ABORTED) for line in printed)
    full = next((match[1] for line in printed if (match := _OUT_OF_MEMORY.match(line))), None)
    for line in printed:
        if line.startswith(_ABORTED):
            break
        if failed := _NOT_LAUNCHED.match(line):
            host, why = failed[1], failed[2].strip()
            if restarts and _REVOKED.search(why):
                what = f"host {host} takes nothing of the job ({why}), as when Slurm cleans up after an earlier start"
                return AgentEnd(code, host, (), CleanedUpError(what, host=host))
            what = f"Slurm could not start the agent on host {host}"
            return AgentEnd(code, host, (), SchedulerError(what, why=why))
        match = _TASK_ENDED.match(line)
        if match is None:
            continue
        host, how = match.groups()
        exited = _EXITED.match(how)
        if exited is None and how not in ("Killed", "Out Of Memory"):
            continue
        if exited is None and (aborted or full):
            break  # a host was faster to end its part of a cancelled step than srun was told of it, or of OOMKillStep
        if how == "Killed" and restarts:  # seen after a cut link, seconds into the second start
            what = f"all of the job on host {host} was killed, as by Slurm when it cleans up after an earlier start"
            return AgentEnd(code, host, (), CleanedUpError(what, host=host))
        return AgentEnd(int(exited[1]) if exited else -signal.SIGKILL, host)
    if full:
        what = f"the job ran out of memory on host {full}, and the kernel killed the agent there"
        hint = "request more memory (--mem), or use less"
        return AgentEnd(-signal.SIGKILL, full, (), OutOfMemoryError(what, hint=hint))
    if aborted:
        return AgentEnd(-signal.SIGTERM, None, (), _cancelled(printed))
    return AgentEnd(code, None, tuple(line for line in printed if line.startswith("srun: error:"))[:3])


def _cancelled(printed: Sequence[str]) -> TerminatedError:
    cancelled = next((match for line in printed if (match := _CANCELLED.search(line))), None)
    what = f"the agents' job step{f' {cancelled[1]}' if cancelled else ''} was cancelled"
    if cancelled and cancelled[2]:
        return TerminatedError(what, why=f"Slurm's reason: {cancelled[2].strip().lower()}")
    return TerminatedError(what, hint="by scancel of the step, or by Slurm itself when it ends the job")


def _gpus_of_nodes(job_id: str) -> Mapping[str, int]:
    return {node: number for node, (number, _) in _typed_gpus(job_id).items()}


def _typed_gpus(job_id: str) -> Mapping[str, tuple[int, str]]:
    """Query scontrol for the GPUs of a job by node. Raises SchedulerError when it does not show the job."""
    answer = slurm.run(["scontrol", "-d", "-o", "show", "job", job_id], limit=slurm.query_limit)
    if answer.code:
        raise SchedulerError(f"scontrol does not show job {job_id}: {slurm.message(answer)}")
    return parse_node_gpus(answer.out, job_id)


def parse_rank_types(text: str) -> list[str]:
    """The types of MPI that ``srun --mpi=list`` prints, each on a line of its own after a heading, but for none."""
    return re.findall(r"(?m)^(?:srun:)?\s+(?!none\b)(\w+)\s*$", text)


class SlurmInJob(InJob):
    """Reads the allocation of a job of Slurm's, and starts its agents."""

    # A batch script has SLURM_PROCID, too, but only a step has SLURM_STEP_NUM_TASKS.
    rank_variables = RankVariables(
        "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID"), reused=True
    )
    restart_variable = "SLURM_RESTART_COUNT"
    name_variable = "SLURM_JOB_NAME"
    termination_reason = staticmethod(ending.termination_reason)
    give_back = staticmethod(ending.give_back)
    host_fault = staticmethod(ending.host_fault)
    why_not_again = staticmethod(ending.why_not_again)

    def identity(self, environ: Mapping[str, str]) -> JobIdentity:
        restarts = environ.get("SLURM_RESTART_COUNT", "0")  # not set in a job that was never requeued
        details = {"local_cluster": environ["SLURM_CLUSTER_NAME"].lower()} if "SLURM_CLUSTER_NAME" in environ else {}
        array, element = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
        if array and element:
            return JobIdentity(f"{array}_{element}", details, element=element, restarts=restarts)
        return JobIdentity(environ["SLURM_JOB_ID"], details, restarts=restarts)

    def allocation(self, environ: Mapping[str, str], request: Request, wait: Wait) -> Allocation:
        made = allocation(environ, request, _gpus_of_nodes)
        may_change = request.spare_nodes or request.nodes[0] < request.nodes[1]
        if not (may_change and any(host.gpus for host in made.hosts)):
            return made
        # slurmctld aborts (24.11 to 26.05) when a node with GPUs is lost and a second step has GPUs of several types
        try:
            types = {node: kind for node, (_, kind) in _typed_gpus(environ["SLURM_JOB_ID"]).items()}
        except SchedulerError:
            return made
        return made.replace(hosts=tuple(host.replace(gpu_type=types.get(host.name, "")) for host in made.hosts))

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        """One srun starts all agents."""
        from gridtf.schedulers.agents import StartedAgents

        held = held_gpus(allocation.hosts, call, environ)
        if held and (old := slurm.without_shared_gpus()):
            what = f"{old} does not share GPUs between steps, and {held[0]} has those of this job"
            raise PlacementError(what, hint=held[1])
        argv = srun_command(allocation.hosts, call, environ)
        parse_end = partial(parse_failure, restarts=whole(environ.get("SLURM_RESTART_COUNT", "")) or 0)
        return [StartedAgents(argv, srun_environment(environ), call.log, parse_end)]

    def rank_types(self) -> Sequence[str]:
        answer = slurm.run(["srun", "--mpi=list"], limit=slurm.query_limit)
        return parse_rank_types(answer.text)

    def rank_starter(
        self, kind: str, hosts: Sequence[str], file: Path, environ: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        sizes = f"--ntasks={len(hosts)} --distribution=arbitrary"  # as SLURM_HOSTFILE says; with --nodes, 23.11 refuses
        # the agents' step has all resources, and the tasks stay in it
        shared = "--overlap --overcommit --gres=none --mem=0 --cpu-bind=none"
        whole = "--export=ALL --wait=0 --kill-on-bad-exit=0 --no-kill --job-name=gridtf-mpi"
        argv = ["srun", f"--mpi={kind}", *f"{sizes} {shared} {whole}".split()]
        return argv, {**srun_environment(environ), "SLURM_HOSTFILE": str(file)}

    def is_exclusive(self, request: Request) -> bool:
        return request.native.get("exclusive") in ("", "user", "topo")  # =mcs shares them with a group of users

    def this_host(self, environ: Mapping[str, str]) -> str:
        return environ.get("SLURMD_NODENAME") or super().this_host(environ)

    def start_again(self, environ: Mapping[str, str]) -> int | None:
        answer = slurm.run(["scontrol", "requeue", self.identity(environ).job_id], limit=slurm.query_limit)
        if answer.code:
            raise SchedulerError(f"Slurm does not requeue it: {slurm.message(answer)}")
        return None

    def start_after(self, environ: Mapping[str, str], jobs: Sequence[str]) -> int | None:
        again = self.start_again(environ)
        # this script has the time for it until Slurm kills it, and the job is not eligible before that
        depends = f"Dependency=afterany:{':'.join(jobs)}"
        answer = slurm.run(
            ["scontrol", "update", f"JobId={self.identity(environ).job_id}", depends], limit=slurm.query_limit
        )
        if answer.code:
            raise SchedulerError(f"Slurm does not let it wait: {slurm.message(answer)}")
        return again

    def parent_lost(self, parent: Parent) -> str:
        if parent.name != _STEPD:
            return ""
        return f"{_STEPD}, which had started the job script on {os.uname().nodename}, was killed"

    def planned_end(self, environ: Mapping[str, str], request: Request, started: float) -> float | None:
        end = parse_moment(environ.get("SLURM_JOB_END_TIME", ""))
        return super().planned_end(environ, request, started) if end is None else end

    def end_is_given(self, environ: Mapping[str, str]) -> bool:
        return "SLURM_JOB_END_TIME" in environ  # newer versions set it

    def end_of_job(self, environ: Mapping[str, str], request: Request, started: float) -> float | None:
        end = ending.end_time(environ)
        return self.planned_end(environ, request, started) if end is None else end
