"""gridtf_join: a process that srun or mpirun has started becomes one task, and gets the contract.

All processes find rank 0 in the folder of one attempt, which it makes under a name derived from the scheduler's id of
this step. Every rank tells it its port and GPUs, rank 0 merges them. For each task a second process holds its ports.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gridtf import features, schedulers
from gridtf.bootstrap.plan import addresses, environment, rendezvous
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.bootstrap.plan.rendezvous import AttemptPlan, PortHolder, port_of
from gridtf.bootstrap.plan.versions import releases_port
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.heartbeat import backoff
from gridtf.bootstrap.wire.messages import MessageError
from gridtf.bootstrap.wire.stream import RECONNECT_LIMIT, Link, Listener, link_of
from gridtf.errors import GridtfError, RendezvousError, RunDirError, SchedulerError, UsageError
from gridtf.features.fence import Fence
from gridtf.features.fence.guard import HOSTS, OFF
from gridtf.host import processes, procfs
from gridtf.host.gpus import GpuGrant, listed
from gridtf.host.processes import die_with_parent, keep_only, signal_name
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.run import recordtypes
from gridtf.run.rundir import (
    JOINED,
    OPENED,
    RUN_ROOT,
    Attempt,
    Record,
    RunDir,
    is_listed,
    listdir,
    make_folder,
    need_ours,
    need_safe,
    new_folder,
    read_record,
    write_record,
)
from gridtf.schedulers.api import GpuNeed, JobIdentity, Scheduler
from gridtf.starters.joined.ranks import Member, assign_ranks, check_addresses, member_of, place_ranks, split_gpus
from gridtf.states import TaskState, of_exit
from gridtf.text import plain, some
from gridtf.values import Fields

_LEADER = "rank-0"
_SEE_OFF = 10.0  # seconds within which the others have read the last message of rank 0
_LEADER_MARGIN = 30  # seconds that other ranks wait longer than rank 0, which can report the missing ranks


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Join, fork the process that holds the ports, and print the contract as shell code.

    Args:
        argv: ``--parent PID``, the shell that joins, then options of gridtf submit.
        environ: The environment of that shell.

    Returns:
        The exit code, 0.

    Raises:
        GridtfError: This process cannot join.
    """
    from gridtf.bootstrap.unsubmitted import add_to_index, named
    from gridtf.jobspec import config

    if len(argv) < 2 or argv[0] != "--parent":
        raise UsageError("join is called by gridtf_join", hint='source "$(gridtf bootstrap-path)" first')
    die_with_parent(os.getppid(), signal.SIGTERM)  # only the parent reads the contract
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])  # which the connections raise
    parent = int(argv[1])
    # a job needs a command: here, the process that joins
    words = [*argv[2:], "--", "gridtf_join"]
    spec = schedulers.with_options(
        lambda table, complete: config.from_arguments(
            words, environ, Path.cwd(), table, complete=complete, use=config.Use.HERE
        )
    ).spec
    scheduler = schedulers.get(spec.scheduler or schedulers.around_this_process(environ))
    member = member_of(environ, scheduler)
    tasks = assign_ranks(spec, member.size)
    run = RunDir(Path(spec.run_dir or Path(spec.run_root or RUN_ROOT) / f"{spec.title}-{member.step}").absolute())
    spec = named(spec, environ)  # not for the path: tasks that qrsh starts do not all have the name
    # only srun or mpirun knows the number of hosts, and of processes per host
    request = scheduler.login.resolve(spec.replace(nodes=None, tasks_per_node=None), in_job=True)
    system = System(dict(environ))
    identity = _identity(scheduler, environ)
    job_id = environ.get("GRIDTF_JOB_ID") or (identity.job_id if identity else member.step)
    if member.rank == 0 and (spec.on or features.take_time(spec) or spec.check != "off"):
        system.log("on, check, host_setup and stage are for jobs with a launcher: gridtf_join runs none of them")
    grant, holder = GpuGrant(()), PortHolder()
    # a guard would need an agent
    fence = Fence(HOSTS if spec.fence == HOSTS and not releases_port(spec.ports, None) else OFF, b"", system)

    def own() -> Record:
        nonlocal grant
        if member.rank == 0:  # the attempt is there now
            element = f"_{identity.element}" if identity and identity.element else ""
            listed = {"scheduler": scheduler.name, "name": f"{spec.title}{element}"}
            listed["job_id"] = identity.job_id if identity else job_id
            add_to_index(run, {**listed, "time": time.time()}, environ)
        grant = _own_gpus(
            scheduler, request, tasks[member.rank], job_id, system, rendezvous.GPU_SHARE * spec.start_timeout
        )
        record = _own_record(member, grant, grant.environment(environ), holder)
        fence.close(holder.held([record["port"]]))
        return (
            record | fence.record() | addresses.published(spec, scheduler.injob.this_host(environ), record["address"])
        )

    joining = Joining(run, spec, request, member, own, system)
    if member.rank == 0:
        known = {"scheduler": scheduler.name, **(identity.to_record() if identity else {})}
        plan, shares, meeting = joining.lead(tasks, known, job_id)
        holder.release(meeting.master_port)  # programs that are not TensorFlow do not share ports
    else:
        plan, shares, meeting = joining.follow()
    environment.need_room(plan, meeting)
    task = next(task for task in plan.tasks if task.name == tasks[member.rank].name)
    if releases_port(spec.ports, None):  # which program follows is not known yet
        holder.release(port_of(meeting, task))
    fence.admit(meeting.doors, f"rank-{member.rank}")
    fork_port_holder(plan, task, f"rank-{member.rank}", parent, holder, grant.descriptors)
    env = environment.task_environment(grant.environment(environ), plan, task, meeting, shares[task.name])
    print(exports(environ, env))
    return 0


def _identity(scheduler: Scheduler, environ: Mapping[str, str]) -> JobIdentity | None:
    """The job of this process, as its scheduler knows it; None where that is unknown."""
    if scheduler.name == "local":
        return None
    try:
        return scheduler.injob.identity(environ)
    except SchedulerError:  # gridtf cannot identify the job: the name of the step will do
        return None


def exports(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Shell code that changes one environment into the other: ``unset`` and ``export`` lines.

    Args:
        before: The environment of the shell.
        after: The environment that the shell is to have.
    """
    lines = [f"unset {name}" for name in before if name not in after]
    lines += [f"export {name}={shlex.quote(text)}" for name, text in after.items() if before.get(name) != text]
    return "\n".join(lines)


def _own_gpus(
    scheduler: Scheduler, request: Request, task: PlacedTask, job_id: str, system: System, patience: float
) -> GpuGrant:
    """The GPUs of this process on its host, its own or shared with other processes there."""
    need = GpuNeed(request.role(task.type).gpus, f"{request.name}, job {job_id}", patience)
    logged = ""

    def wait(why: str, seconds: float) -> None:
        nonlocal logged
        if why != logged:
            system.log(why)
        logged = why
        system.sleep(seconds)

    return scheduler.injob.gpu_grant(system.environ, request, need, wait)


def _own_record(member: Member, grant: GpuGrant, environ: Mapping[str, str], holder: PortHolder) -> Record:
    host = socket.gethostname()
    record: Record = {
        "host": host,
        "hostname": host,
        "address": host,
        "boot": procfs.boot_id(),
        "pid": os.getpid(),
        "port": holder.reserve(),
        "granted": grant.gpus,
        # Slurm 20.11 sets only the second one
        "step_gpus": int(environ.get("SLURM_GPUS_ON_NODE") or len(listed(environ.get("SLURM_STEP_GPUS", "")))),
        "cpus": sorted(os.sched_getaffinity(0)),
    }
    if member.rank == 0:
        record["master_port"] = holder.reserve()
    return record


# The plan, the GPUs of each task, and the rendezvous.
_Met = tuple[AttemptPlan, Mapping[str, Sequence[str]], rendezvous.Rendezvous]


class Joining(Fields):
    """How the processes of one step meet.

    Attributes:
        run: The run directory.
        spec: The specification of the job.
        request: What the job requests of its scheduler, resolved from the specification.
        member: Which process of the step this is.
        own: Makes the record that rank 0 gathers: claims its GPUs and reserves its ports. It is called when the
            attempt is open, so that the other processes learn of its errors.
        system: This host.
        listener_of: Makes the end of rank 0 of the streams to the other ranks.
        link_of: Makes the end of another rank, from what listener.json holds.
    """

    run: RunDir
    spec: JobSpec
    request: Request
    member: Member
    own: Callable[[], Record]
    system: System
    listener_of: Callable[[bytes, System], Listener] = Listener
    link_of: Callable[..., Link] = link_of

    def __post_init__(self) -> None:
        # The record with which rank 0 opens the attempt. Its folder is made only once: two runs cannot meet in it.
        self._opened = self.run.path / f"{JOINED}{self.member.step}" / OPENED

    def lead(self, tasks: Sequence[PlacedTask], known: Record, job_id: str) -> _Met:
        """Join as rank 0: open the attempt, gather the records of all ranks, and write plan and rendezvous file.

        Args:
            tasks: All tasks, in rank order.
            known: ``scheduler``, and the entries of JobIdentity.to_record where the job is known.
            job_id: The job's id.

        Returns:
            The plan, task name -> GPU ids, and the rendezvous.

        Raises:
            GridtfError: Some ranks did not join, or their GPUs or host names do not fit.
        """
        need_safe(self.run.path.parent)
        make_folder(self.run.path, parents=True)
        need_ours(self.run.path)
        if not new_folder(self._opened.parent):
            raise self._used_before()
        attempt, nonce = self.run.new_attempt(), secrets.token_hex(8)
        make_folder(attempt.ranks)
        secret = os.urandom(32)
        listener = self.listener_of(secret, self.system)
        with contextlib.closing(listener):
            reach = {
                "addresses": addresses.of_this_host(self.system.host),
                "port": listener.port,
                "secret": secret.hex(),
            }
            write_record(attempt.listener, {"nonce": nonce, **reach}, mode=0o600)
            write_record(self._opened, {"attempt": attempt.number, "nonce": nonce, **known})
            try:
                meeting = self._gather(attempt, nonce, tasks, job_id, listener)
            except GridtfError as error:
                problem = {"what": error.what, "why": error.why, "hint": error.hint}
                listener.send_all(messages.ERROR, problem)
                with contextlib.suppress(GridtfError):  # for those that are not connected
                    write_record(attempt.rank_error, {"nonce": nonce, **problem})
                self._see_off(attempt, listener)
                raise
            self._see_off(attempt, listener)
        return meeting

    def _see_off(self, attempt: Attempt, listener: Listener) -> None:
        """Wait until the other processes have read what they were told, and have closed their connections."""
        with contextlib.suppress(OSError):  # for those that come later, there is the rendezvous file or the error
            attempt.listener.unlink()
        for _ in self._waiting(_SEE_OFF):
            with contextlib.suppress(MessageError):
                listener.receive()
            if not listener.connected:
                return

    def _gather(
        self, attempt: Attempt, nonce: str, tasks: Sequence[PlacedTask], job_id: str, listener: Listener
    ) -> _Met:
        found = {_LEADER: self.own()}
        size, limit = self.member.size, self.spec.start_timeout
        ranks = [f"rank-{rank}" for rank in range(size)]
        for _ in self._waiting(limit):
            for rank, kind, content in listener.receive():
                self._hear(rank, kind, content, found)
            if len(found) == size:
                break
            self._check_lost(listener, found)
        else:
            missing = [rank for rank in ranks if rank not in found]
            raise RendezvousError(
                f"{len(missing)} of {size} processes did not join within {limit:g} s",
                why=f"missing: {some([f'{rank} ({tasks[int(rank[5:])].name})' for rank in missing])}",
                hint="did they all call gridtf_join, and do they see the same run directory?",
            )
        records = [found[rank] for rank in ranks]
        check_addresses(records)
        addresses.check((record["boot"], record) for record in records)
        shares = split_gpus(tasks, records, self.request)
        placed = place_ranks(tasks, records, shares)
        hosts = {task.host: task.host for task in placed}
        python, cwd = sys.executable, Path.cwd()
        plan = AttemptPlan(attempt, nonce, job_id, self.spec, self.request, hosts, placed, python, cwd)
        plan.write()
        make_folder(attempt.run.output)
        meeting = rendezvous.merge_ranks(placed, records)
        rendezvous.publish(attempt, job_id, nonce, meeting, gpus=shares)
        for rank, task in zip(ranks[1:], placed[1:], strict=True):
            listener.send(rank, messages.PLAN, plan.of_host(task.host).to_record())
            own = {"gpus": {task.name: list(shares[task.name])}}
            listener.send(rank, messages.RENDEZVOUS, {**meeting.to_record(), **own})
        return plan, shares, meeting

    def _hear(self, rank: str, kind: str, content: Record, found: dict[str, Record]) -> None:
        """Take note of what another process has said: its record, or why it cannot join."""
        if kind == messages.ERROR:
            what = f"{rank.replace('-', ' ')} on host {content.get('host', '?')}: {content['what']}"
            raise RendezvousError(what, why=content["why"], hint=content["hint"])
        if kind != messages.RANK:
            return
        before = found.setdefault(rank, content)
        if (before["hostname"], before.get("pid")) != (content["hostname"], content.get("pid")):
            both = " and ".join(f"process {one.get('pid')} on {one['hostname']}" for one in (before, content))
            hint = "give every process a RANK of its own; a process joins once"
            raise RendezvousError(plain(f"two processes have joined as {rank.replace('-', ' ')}: {both}"), hint=hint)

    def _check_lost(self, listener: Listener, found: Mapping[str, Record]) -> None:
        now = self.system.monotonic()
        for rank, since in listener.lost.items():
            if now - since > RECONNECT_LIMIT:
                where = f" on host {found[rank]['hostname']}" if rank in found else ""
                what = f"{rank.replace('-', ' ')}{where} has closed its connection to rank 0"
                raise RendezvousError(what, hint="was it killed?")

    def follow(self) -> _Met:
        """Join as any other rank: find the attempt that rank 0 has opened, tell it the own record, wait for its answer.

        Returns:
            As lead, with what concerns this host.

        Raises:
            RendezvousError: Rank 0 has given up, or did not join.
        """
        attempt, nonce, reach = self._find()
        link = self.link_of(reach, f"rank-{self.member.rank}", self.system)
        with contextlib.closing(link):
            try:
                link.send(messages.RANK, self.own())
            except GridtfError as error:  # rank 0 ends the others, which need not wait any longer
                problem = {"what": error.what, "why": error.why, "hint": error.hint, "host": self.system.host}
                link.send(messages.ERROR, problem)
                link.drain(_SEE_OFF)
                raise
            return self._answer(attempt, nonce, link)

    def _answer(self, attempt: Attempt, nonce: str, link: Link) -> _Met:
        plan: AttemptPlan | None = None
        # rank 0 gathers the records of the others only once it has its own GPUs
        limit = (1 + rendezvous.GPU_SHARE) * self.spec.start_timeout + _LEADER_MARGIN
        looked = 0.0
        for waited in self._waiting(limit):
            for kind, content in link.receive():
                if kind == messages.PLAN:
                    plan = rendezvous.plan_of(content, attempt)
                elif kind == messages.ERROR:
                    raise RendezvousError(content["what"], why=content["why"], hint=content["hint"])
                elif kind == messages.RENDEZVOUS and plan is not None:
                    return plan, content.get("gpus", {}), rendezvous.rendezvous_of(content)
            if not link.connected and waited - looked > 1.0:  # rank 0 may have given up and ended
                looked = waited
                problem = read_record(attempt.rank_error, recordtypes.HostError, nonce=nonce, own=True)
                if problem is not None:
                    raise RendezvousError(problem["what"], why=problem["why"], hint=problem["hint"])
        raise RendezvousError(
            f"rank {self.member.rank} has waited {limit:g} s for rank 0 in {attempt.path}",
            why=link.refused,
            hint="was rank 0 killed?",
        )

    def _find(self) -> tuple[Attempt, str, Record]:
        """The attempt that rank 0 has opened, its nonce, and where rank 0 listens."""
        here = Path.cwd()
        root = here if self.run.path.is_relative_to(here) else self.run.path.parent
        for _ in self._waiting(self.spec.start_timeout):
            listed = is_listed(self._opened, root)
            record = read_record(self._opened, recordtypes.Opened, listed=True, own=True) if listed else None
            if record is None:
                continue
            attempt, nonce = self.run.attempt(record["attempt"]), record["nonce"]
            reach = read_record(attempt.listener, recordtypes.Listener, nonce=nonce, own=True)
            if reach is not None:
                return attempt, nonce, reach
            problem = read_record(attempt.rank_error, recordtypes.HostError, nonce=nonce, own=True)
            if problem is not None:
                raise RendezvousError(problem["what"], why=problem["why"], hint=problem["hint"])
            if attempt.rendezvous.name in listdir(attempt.path):  # the others have met, and rank 0 listens no more
                raise self._used_before()
        limit = f"{self.spec.start_timeout:g} s"
        raise RendezvousError(
            f"rank {self.member.rank} has waited {limit} for rank 0, which has not opened {self.run.path}",
            hint="did rank 0 call gridtf_join, and does it see the same run directory?",
        )

    def _used_before(self) -> RendezvousError:
        return RendezvousError(
            f"rank {self.member.rank} of {self.member.step} has already joined",
            hint="set GRIDTF_JOB_ID to a new value for every run, or choose another --run-dir",
        )

    def _waiting(self, limit: float) -> Iterator[float]:
        """Wait in steps that grow, or end when a message comes; yields the seconds waited so far."""
        begin = self.system.monotonic()
        while (waited := self.system.monotonic() - begin) < limit:
            yield waited
            number = self.system.wait(backoff(waited))
            if processes.is_end(number):
                raise SystemExit(128 + (number or 0))


# --- the port holder: a process that holds a task's ports and reports the task's state until the task has ended

_LONGEST_LOOK = 1.0
_RECORDED = 30.0  # seconds after which the record is written again although nothing has changed
_REAPED_WITHIN = 5.0  # seconds within which the parent of a task reaps it; only then is its exit code known


def fork_port_holder(
    plan: AttemptPlan, task: PlacedTask, member: str, parent: int, holder: PortHolder, locks: Sequence[int]
) -> None:
    """Fork the process that holds the ports of this task.

    That process keeps only the ports and locks open: whatever reads a pipe of the shell must not wait for it.

    Args:
        plan: The plan that rank 0 made.
        task: The task that the calling process becomes.
        member: The name of the rank's record, ``rank-N``.
        parent: The process that joined: the shell, then the program that it execs.
        holder: The ports of the task, which the calling process releases.
        locks: Descriptors of the locks on the task's GPUs, which the calling process closes.
    """
    sys.stdout.flush()
    if os.fork() != 0:
        holder.close()
        for lock in locks:
            os.close(lock)
        return
    try:
        keep_only([*holder.filenos(), *locks])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # for the task; this process ends with the task
        system = System()
        system.collect_garbage()
        report_task(plan, task, member, JoinedTask(parent), system)
        os._exit(0)
    finally:
        os._exit(1)


class JoinedTask:
    """A process that joined, as seen by a process that is not its parent.

    Args:
        pid: The id of the process that joined.

    Attributes:
        watched: Whether the kernel can report how the process ends (pidfd_open(2)).
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._started = procfs.start_time(pid)
        try:
            self._pidfd = os.pidfd_open(pid)
        except (AttributeError, OSError):  # a kernel before 5.3
            self._pidfd = -1
        self.watched = self._pidfd >= 0

    def lives(self) -> bool:
        """Whether the process still runs."""
        return procfs.alive(self.pid, self._started)

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended, at most this many seconds."""
        if self.watched:
            select.select([self._pidfd], [], [], seconds)
        else:
            time.sleep(seconds)

    def end(self) -> int | None:
        """Its exit code, or minus the number of the signal; None where the kernel does not report it (yet)."""
        return procfs.ended_how(self._pidfd) if self.watched else None


def report_task(plan: AttemptPlan, task: PlacedTask, member: str, process: JoinedTask, system: System) -> None:
    """Report the state of a task until it has ended.

    Args:
        plan: The plan that rank 0 made.
        member: The name of the rank's record, ``rank-N``.
        process: The process that has become the task.
        system: This host.
    """
    state: Record = {"state": TaskState.RUNNING, "pid": process.pid, "started": system.time()}
    state.update(ended=None, exit=None, signal=None)

    def record() -> Record:
        return {"nonce": plan.nonce, "host": task.host, "pid": system.pid, "tasks": {task.name: state}}

    path, often = plan.attempt.rank_state(member), min(_RECORDED, plan.spec.heartbeat_timeout)
    written = float("-inf")

    def write() -> None:
        with contextlib.suppress(RunDirError):  # a full disk must not end the holder of the ports
            write_record(path, {**record(), "time": system.time()}, indent=None)

    while process.lives():
        if system.monotonic() - written >= often:
            written = system.monotonic()
            write()
        process.wait(_LONGEST_LOOK)
    state.update(_end(process, system), ended=system.time())
    write()


def _end(process: JoinedTask, system: System) -> Record:
    """How the task has ended, as far as the kernel reports it to a process that is not the parent."""
    for _ in system.within(_REAPED_WITHIN if process.watched else 0.0):
        code = process.end()
        if code is not None:
            how = {"exit": code} if code >= 0 else {"signal": signal_name(-code)}
            return {"state": of_exit(code), **how}
        system.sleep(0.02)
    return {"state": "ENDED"}
