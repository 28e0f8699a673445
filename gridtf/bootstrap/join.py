"""gridtf_join: a process that srun or mpirun has started becomes one task, and gets the contract.

All processes meet in one attempt's folder: rank 0 opens it under a name made from what the scheduler gave this step,
every rank publishes its port and GPUs, rank 0 merges. A keeper, one a task, stays behind.
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

from gridtf import schedulers
from gridtf.bootstrap import environment, keeper, rendezvous
from gridtf.bootstrap.members import Member, at_home, check_addresses, member_of, roster, split_gpus
from gridtf.bootstrap.placement import PlacedTask
from gridtf.bootstrap.plan import TaskPlan, read_plan
from gridtf.bootstrap.ports import PortHolder
from gridtf.errors import GridtfError, RendezvousError, SchedulerError, UsageError
from gridtf.host import gpus, procfs
from gridtf.host.processes import die_with_parent, tell
from gridtf.jobspec import layout
from gridtf.jobspec.spec import JobSpec
from gridtf.run import recordtypes
from gridtf.run.rundir import (
    JOINED,
    OPENED,
    RUN_ROOT,
    Attempt,
    Record,
    RunDir,
    make_folder,
    names,
    need_ours,
    need_safe,
    new_folder,
    read_record,
    shown,
    write_record,
)
from gridtf.text import some

_LEADER = "rank-0"


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Join, leave a keeper behind, and print the contract as shell code."""
    from gridtf.jobspec import config

    gc.enable()  # see gridtf-bootstrap.sh
    if len(argv) < 2 or argv[0] != "--parent":
        raise UsageError("join is called by gridtf_join", hint='source "$(gridtf bootstrap-path)" first')
    die_with_parent(os.getppid(), signal.SIGTERM)  # nobody would read the contract
    parent = int(argv[1])
    # the "command" is the process that joins; a job needs one
    spec = config.from_arguments([*argv[2:], "--", "gridtf_join"], environ, Path.cwd()).spec
    member = member_of(environ)
    tasks = roster(spec, member.size)
    run = RunDir(Path(spec.run_dir or Path(spec.run_root or RUN_ROOT) / f"{spec.title}-{member.step}").absolute())
    scheduler = spec.scheduler or schedulers.around_this_process(environ)
    holder = PortHolder()
    known = _identity(scheduler, environ)
    job_id = environ.get("GRIDTF_JOB_ID") or known.get("job_id", member.step)
    seen = dict(environ)
    claim = _own_gpus(scheduler, spec, tasks[member.rank], job_id, seen)
    mine = _own_record(member, claim, seen, holder)
    if member.rank == 0:
        plan, shares, agreed = _lead(run, spec, member, tasks, {"scheduler": scheduler, **known}, job_id, mine)
        holder.release(mine["master_port"])  # programs that are not TensorFlow do not share ports
    else:
        plan, shares, agreed = _follow(run, spec, member, mine)
    task = next(task for task in plan.tasks if task.name == tasks[member.rank].name)
    keeper.leave(plan, task, f"rank-{member.rank}", parent, holder, claim.descriptors)
    env = environment.task_environment(seen, plan, task, agreed, shares[task.name])
    print(exports(environ, env))
    return 0


def _identity(scheduler: str, environ: Mapping[str, str]) -> Record:
    """The job that this start is a part of, as its scheduler knows it; empty where nobody can be asked about it."""
    if scheduler == "local":
        return {}
    try:
        return schedulers.get(scheduler).identity(environ)
    except SchedulerError:  # one that gridtf cannot talk to: what names the start is as good
        return {}


def exports(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Shell code that makes one environment into the other."""
    lines = [f"unset {name}" for name in before if name not in after]
    lines += [f"export {name}={shlex.quote(text)}" for name, text in after.items() if before.get(name) != text]
    return "\n".join(lines)


_Meeting = tuple[TaskPlan, Mapping[str, Sequence[str]], rendezvous.Rendezvous]


def _own_gpus(
    scheduler: str, spec: JobSpec, task: PlacedTask, job_id: str, environ: MutableMapping[str, str]
) -> gpus.Claim:
    """What this process has of its host's GPUs, alone or together with the others there."""
    told = layout.gpus_per_task(spec)  # 0 where the user has said nothing
    count = layout.gpus_of(task.type, spec, told) if told or spec.gpus_per_task == 0 else None

    said = ""

    def wait(why: str, seconds: float) -> None:
        nonlocal said
        if why != said:
            tell(why)
        said = why
        time.sleep(seconds)

    return schedulers.get(scheduler).grant(environ, spec, count, f"{spec.title}, job {job_id}", wait)


def _own_record(member: Member, claim: gpus.Claim, environ: Mapping[str, str], holder: PortHolder) -> Record:
    host = socket.gethostname()
    record: Record = {
        "host": host,
        "hostname": host,
        "address": host,
        "boot": procfs.boot_id(),
        "pid": os.getpid(),
        "port": holder.reserve(),
        "granted": claim.gpus,
        "step_gpus": int(environ.get("SLURM_GPUS_ON_NODE") or 0),
        "cpus": sorted(os.sched_getaffinity(0)),
    }
    if member.rank == 0:
        record["master_port"] = holder.reserve()
    return record


def _lead(
    run: RunDir,
    spec: JobSpec,
    member: Member,
    tasks: tuple[PlacedTask, ...],
    known: Record,
    job_id: str,
    mine: Record,
) -> _Meeting:
    """What rank 0 does: open the attempt, gather what all ranks publish, and write plan and rendezvous file."""
    need_safe(run.path.parent)
    make_folder(run.path, parents=True)
    need_ours(run.path)
    opened = _opened(run, member)
    if not new_folder(opened.parent):
        raise _used_before(member)
    attempt, nonce = run.new_attempt(), secrets.token_hex(8)
    write_record(opened, {"attempt": attempt.number, "nonce": nonce, **known})
    try:
        return _gather(attempt, nonce, spec, member, tasks, known["scheduler"], job_id, mine)
    except GridtfError as error:  # the others need not wait any longer
        told = {"nonce": nonce, "host": mine["host"], "what": error.what, "why": error.why, "hint": error.hint}
        with contextlib.suppress(GridtfError):
            write_record(attempt.host_error(_LEADER), told)
        raise


def _gather(
    attempt: Attempt,
    nonce: str,
    spec: JobSpec,
    member: Member,
    tasks: tuple[PlacedTask, ...],
    scheduler: str,
    job_id: str,
    mine: Record,
) -> _Meeting:
    write_record(attempt.host_record(_LEADER), {"nonce": nonce, **mine})
    ranks = [f"rank-{rank}" for rank in range(member.size)]
    collector = rendezvous.Collector(attempt, nonce, ranks, recordtypes.RankRecord)
    for _ in _waiting(spec.start_timeout):
        if collector.poll():
            break
    else:
        missing = list(collector.missing.values())
        raise RendezvousError(
            f"after {spec.start_timeout:g} s {len(missing)} of {member.size} processes have not joined",
            why=f"missing: {some([f'{rank} ({tasks[int(rank[5:])].name})' for rank in missing])}",
            hint="did they all call gridtf_join, and do they see the same run directory?",
        )
    records = [collector.records[rank] for rank in ranks]
    check_addresses(records)
    shares = split_gpus(tasks, records, spec)
    placed = at_home(tasks, records, shares)
    hosts = {task.host: task.host for task in placed}
    plan = TaskPlan(attempt, nonce, job_id, scheduler, spec, hosts, placed, sys.executable, Path.cwd())
    plan.write()
    make_folder(attempt.run.output)
    agreed = rendezvous.merge_ranks(placed, records)
    rendezvous.publish(attempt, job_id, nonce, agreed, gpus=shares)
    return plan, shares, agreed


def _follow(run: RunDir, spec: JobSpec, member: Member, mine: Record) -> _Meeting:
    """What every other rank does: find the attempt that rank 0 has opened, publish, wait for the rendezvous file."""
    attempt, nonce = _find(run, spec, member)
    own = attempt.host_record(f"rank-{member.rank}")
    if own.name in names(attempt.hosts):
        raise _used_before(member)
    write_record(own, {"nonce": nonce, **mine})
    for _ in _waiting(spec.start_timeout + 30):  # longer than rank 0 waits: it can say who is missing
        told = read_record(attempt.host_error(_LEADER), recordtypes.HostError, nonce=nonce, own=True)
        if told is not None:
            raise RendezvousError(told["what"], why=told["why"], hint=told["hint"])
        agreed = rendezvous.read(attempt, nonce)
        plan = read_plan(run, attempt.number, nonce) if agreed is not None else None
        if agreed is None or plan is None:
            continue
        record = read_record(attempt.rendezvous, recordtypes.JoinedMeeting, nonce=nonce, own=True)
        if record is not None:
            return plan, record["gpus"], agreed
    raise RendezvousError(
        f"rank {member.rank} has waited {spec.start_timeout + 30:g} s for rank 0 in {attempt.path}",
        hint="has rank 0 been ended?",
    )


def _find(run: RunDir, spec: JobSpec, member: Member) -> tuple[Attempt, str]:
    opened = _opened(run, member)
    here = Path.cwd()
    root = here if run.path.is_relative_to(here) else run.path.parent
    for _ in _waiting(spec.start_timeout):
        there = shown(opened, root)
        record = read_record(opened, recordtypes.Opened, listed=True, own=True) if there else None
        if record is not None:
            return run.attempt(record["attempt"]), record["nonce"]
    raise RendezvousError(
        f"rank {member.rank} has waited {spec.start_timeout:g} s for rank 0, which has not opened {run.path}",
        hint="did rank 0 call gridtf_join, and does it see the same run directory?",
    )


def _opened(run: RunDir, member: Member) -> Path:
    """The record with which rank 0 opens the attempt. Its folder is made once: no two runs meet in it."""
    return run.path / f"{JOINED}{member.step}" / OPENED


def _used_before(member: Member) -> RendezvousError:
    return RendezvousError(
        f"rank {member.rank} of {member.step} has joined before",
        hint="give GRIDTF_JOB_ID a new word for every run, or choose another --run-dir",
    )


def _waiting(limit: float) -> Iterator[None]:
    begin, pause = time.monotonic(), 0.005
    while time.monotonic() - begin < limit:
        yield
        time.sleep(pause)
        pause = min(pause * 1.3, 0.25)
