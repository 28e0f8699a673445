"""What a submission does about hosts that were bad in the user's last jobs: it tells of them, or leaves them out."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

from gridtf.errors import GridtfError
from gridtf.host.names import same_host
from gridtf.jobspec import config
from gridtf.run import hosthistory
from gridtf.run.hosthistory import Suspect
from gridtf.schedulers.api import Plan
from gridtf.text import counted, plain

_SHARE = 10  # of so many hosts one is left out, and of fewer as well
_MOST_TOLD = 3  # hosts


def considered(plan: Plan) -> Plan:
    """A plan with notes on the bad hosts of its cluster, or without those hosts where ``avoid_bad_hosts`` is set.

    Raises:
        GridtfError: The site's file of settings cannot be read, or has a wrong value.
    """
    site = config.limit_of_site("bad_hosts", os.environ) if plan.history is None else None
    history = plan.history or hosthistory.read(os.environ, time.time(), site)
    bad = history.bad(plan.scheduler.login.cluster(os.environ))
    bad = tuple(each for each in bad if not any(same_host(each.host, host) for host in plan.spec.exclude))
    chosen = _chosen(plan, bad) if bad and plan.spec.avoid_bad_hosts else {}
    left = [each for each in bad if each not in chosen.values()]
    notes = [*history.notes, *(f"avoid_bad_hosts leaves out {host}: {_about(each)}" for host, each in chosen.items())]
    hint = "it stays" if plan.spec.avoid_bad_hosts else "--exclude {} leaves it out, --avoid-bad-hosts any such host"
    notes += [f"{each.host} {_about(each)}: {hint.format(each.host)}" for each in left[:_MOST_TOLD]]
    if len(left) > _MOST_TOLD:
        notes.append(f"`gridtf nodes` shows {counted(len(left) - _MOST_TOLD, 'more bad host')}")
    more = {"exclude": (*plan.request.options.get("exclude", ()), *chosen)} if chosen else {}
    request = plan.request.replace(options={**plan.request.options, **more})
    return plan.replace(request=request, bad_hosts=tuple(map(plain, notes)), history=history)


def _about(suspect: Suspect) -> str:
    """What makes a host bad, such as ``was bad in 2 of your jobs (lost: no heartbeat for 30 s)``."""
    who = "is marked by your site" if suspect.site else f"was bad in {suspect.jobs} of your jobs"
    return f"{who} ({suspect.reason})"


def _chosen(plan: Plan, bad: Sequence[Suspect]) -> dict[str, Suspect]:
    """The hosts to leave out, as the scheduler calls them: a tenth of those that may run the job, rounded up, and no
    more than it can do without. The worst come first."""
    room, need = dict[str, int](), 0
    with contextlib.suppress(GridtfError):  # which says more when it refuses the job
        room, need = plan.scheduler.login.room(plan)
    chosen: dict[str, Suspect] = {}
    for each in bad:
        host = next((host for host in room if same_host(host, each.host)), "")
        left = sum(room[other] for other in room.keys() - {*chosen, host})
        if host and left >= need and len(chosen) * _SHARE < len(room):
            chosen[host] = each
    return chosen
