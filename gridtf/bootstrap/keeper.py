"""What stays behind of gridtf_join: it holds the task's ports and tells that the task lives, until the task is gone."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from gridtf.bootstrap.heartbeat import Heartbeat
from gridtf.bootstrap.placement import PlacedTask
from gridtf.bootstrap.plan import TaskPlan
from gridtf.bootstrap.ports import PortHolder
from gridtf.errors import GridtfError
from gridtf.host import procfs
from gridtf.host.processes import signal_name
from gridtf.run.recordtypes import COMPLETED, FAILED
from gridtf.run.rundir import Record

_LONGEST_LOOK = 1.0
_REAPED_WITHIN = 5.0  # seconds that the parent of a task may take to notice its end; until then nobody else knows it


def leave(plan: TaskPlan, task: PlacedTask, member: str, parent: int, holder: PortHolder, locks: Sequence[int]) -> None:
    """Fork the keeper of this task. parent: the process that joined: the shell, then what it execs. locks: descriptors
    of the locks on its GPUs.

    It keeps nothing else open but the ports: whoever waits for the end of a pipe or for a lock of the shell's must not
    wait for the keeper.
    """
    sys.stdout.flush()
    if os.fork() != 0:
        holder.close()
        for lock in locks:
            os.close(lock)
        return
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        kept = {0, 1, 2, *holder.filenos(), *locks}
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in kept:
                with contextlib.suppress(OSError):  # the listing's own, gone by now
                    os.close(int(name))
        _keep(plan, task, member, parent)
    finally:
        os._exit(1)


def _keep(plan: TaskPlan, task: PlacedTask, member: str, parent: int) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the task; the keeper goes when the task has gone
    started = procfs.start_time(parent)
    state = {"state": "RUNNING", "pid": parent, "started": time.time(), "ended": None, "exit": None, "signal": None}

    def record() -> Record:
        return {"nonce": plan.nonce, "host": task.host, "pid": os.getpid(), "tasks": {task.name: state}}

    path = plan.attempt.host_state(member)
    heartbeat = Heartbeat(path, record, len(plan.tasks), plan.spec.heartbeat_timeout)
    try:
        watched = os.pidfd_open(parent)
    except (AttributeError, OSError):  # a kernel before 5.3
        watched = -1
    while procfs.alive(parent, started):
        with contextlib.suppress(GridtfError):  # a full disk is the task's business, not ours
            heartbeat.beat()
        if watched >= 0:
            select.select([watched], [], [], _LONGEST_LOOK)
        else:
            time.sleep(_LONGEST_LOOK)
    state.update(_end(watched), ended=time.time())
    with contextlib.suppress(GridtfError):
        heartbeat.beat(now=True)
    os._exit(0)


def _end(watched: int) -> Record:
    """How the task has ended, as far as the kernel tells others than its parent."""
    until = time.monotonic() + _REAPED_WITHIN
    while watched >= 0 and time.monotonic() < until:
        code = procfs.ended_how(watched)
        if code is not None:
            how = {"exit": code} if code >= 0 else {"signal": signal_name(-code)}
            return {"state": COMPLETED if code == 0 else FAILED, **how}
        time.sleep(0.02)
    return {"state": "ENDED"}
