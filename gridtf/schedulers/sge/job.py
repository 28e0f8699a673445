"""Inside a Grid Engine job: which one it is, where we are, and its agents."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from gridtf.run.rundir import Record
from gridtf.schedulers.agents import StartedAgents, fork_agent
from gridtf.schedulers.base import AgentCall, AgentHandle, Allocation
from gridtf.schedulers.common import whole
from gridtf.schedulers.sge import cell, inherit
from gridtf.schedulers.sge.hostfile import same
from gridtf.schedulers.sge.shepherd import Shepherd


def identity(environ: Mapping[str, str]) -> Record:
    """job_id, Grid Engine's name for it, and what names this start: RESTARTED is 1 from the second one on, so the spool
    folder helps."""
    element = environ.get("SGE_TASK_ID", "undefined")
    name = {"job_name": environ["JOB_NAME"]} if "JOB_NAME" in environ else {}
    restarts = f"{environ.get('RESTARTED', '0')}-{_began(environ)}"
    found: Record = {"job_id": environ["JOB_ID"], "restarts": restarts, **name}
    if whole(element):
        found |= {"job_id": f"{environ['JOB_ID']}.{element}", "element": element}
    return found


def _began(environ: Mapping[str, str]) -> int:
    """A number that is another one for every start: when its spool folder got its files."""
    folder = environ.get("SGE_JOB_SPOOL_DIR")
    try:
        return Path(folder, "config").stat().st_mtime_ns if folder else 0
    except OSError:
        return 0


def host(environ: Mapping[str, str]) -> str:
    """What Grid Engine calls this host. HOSTNAME may come from elsewhere, as with qsub -V."""
    name = os.uname().nodename
    told = environ.get("HOSTNAME", name)
    return told if same(told, name) else name


def start_agents(
    allocation: Allocation, call: AgentCall, environ: Mapping[str, str], warnings: Iterable[int]
) -> Sequence[AgentHandle]:
    """All at once: qrsh takes a second. On this host it may not be allowed at all (job_is_first_task): fork there.

    warnings: signals that come to all processes of the job, qrsh included.
    """
    here = host(environ)
    others = [one.name for one in allocation.hosts if not same(one.name, here)]
    if others:
        call.leave(environ)
    qrsh, pe = cell.program("qrsh", environ), environ.get("PE", "")
    # forked first, so that it does not hold on to the pipes whose end tells the others to stop
    handles: list[AgentHandle] = [
        fork_agent(one.name, call.arguments, call.main) for one in allocation.hosts if same(one.name, here)
    ]
    handles += [
        StartedAgents(inherit.command(qrsh, name, call), environ, call.log, partial(inherit.blame, name, pe), warnings)
        for name in others
    ]
    return [*handles, Shepherd(here)]
