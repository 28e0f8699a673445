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
    chosen, kept = _chosen(plan, bad) if bad and plan.spec.avoid_bad_hosts else ({}, {})
    left = [each for each in bad if each not in chosen.values()]
    notes = [*history.notes, *(f"avoid_bad_hosts leaves out {host}: {_about(each)}" for host, each in chosen.items())]
    hint = "--exclude {} leaves it out, --avoid-bad-hosts any such host"
    notes += [f"{one.host} {_about(one)}: {kept.get(one.host, hint).format(one.host)}" for one in left[:_MOST_TOLD]]
    if len(left) > _MOST_TOLD:
        notes.append(f"`gridtf nodes` shows {counted(len(left) - _MOST_TOLD, 'more bad host')}")
    more = {"exclude": (*plan.request.options.get("exclude", ()), *chosen)} if chosen else {}
    request = plan.request.replace(options={**plan.request.options, **more})
    return plan.replace(request=request, bad_hosts=tuple(map(plain, notes)), history=history)


def _about(suspect: Suspect) -> str:
    """What makes a host bad, such as ``was bad in 2 of your jobs (lost: no heartbeat for 30 s)``."""
    who = "is marked by your site" if suspect.site else f"was bad in {suspect.jobs} of your jobs"
    return f"{who} ({suspect.reason})"


def _chosen(plan: Plan, bad: Sequence[Suspect]) -> tuple[dict[str, Suspect], dict[str, str]]:
    """The hosts to leave out, as the scheduler calls them, and of the others why they stay: left out is a tenth of
    those that may run the job, rounded up, and no more than it can do without. The worst come first."""
    room, need = dict[str, int](), 0
    with contextlib.suppress(GridtfError):  # which says more when it refuses the job
        room, need = plan.scheduler.login.room(plan)
    chosen, kept = dict[str, Suspect](), dict[str, str]()
    for each in bad:
        host = next((host for host in room if same_host(host, each.host)), "")
        left = sum(room[other] for other in room.keys() - {*chosen, host})
        reasons = (
            (plan.request.options.get("nodelist"), "nodelist chooses the job's hosts"),
            (not host, "it is not known whether the job may run there"),
            (left < need, "the job needs it"),
            (len(chosen) * _SHARE >= len(room), f"at most a tenth of {len(room)} hosts is left out"),
        )
        kept[each.host] = next((f"it stays, since {why}" for holds, why in reasons if holds), "")
        if not kept[each.host]:
            chosen[host] = each
    return chosen, kept
