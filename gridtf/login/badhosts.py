"""What a submission does about hosts that were bad in the user's last jobs: it tells of them, or leaves them out."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

from gridtf.errors import SchedulerError
from gridtf.host.names import same_host
from gridtf.jobspec import config
from gridtf.run import hosthistory
from gridtf.run.hosthistory import Suspect
from gridtf.schedulers.api import Plan
from gridtf.text import counted, plain

_SHARE = 10  # of so many hosts one is left out, and of fewer as well
_MOST_TOLD = 3  # hosts


def known(now: float) -> hosthistory.History:
    """What is known about hosts: by this user's jobs, and by the site's file.

    Args:
        now: In seconds since the epoch.

    Raises:
        GridtfError: The site's file of settings cannot be read, or has a wrong value.
    """
    return hosthistory.read(os.environ, now, config.of_site("bad_hosts", os.environ))


def considered(plan: Plan) -> Plan:
    """A plan with notes on the bad hosts of its cluster, or without those hosts where ``avoid_bad_hosts`` is set.

    Raises:
        SpecError: For values that the scheduler cannot accept.
        GridtfError: As known does.
    """
    history = known(time.time())
    bad = [each for each in history.bad(plan.scheduler.login.cluster(os.environ)) if each.host not in plan.spec.exclude]
    chosen = _chosen(plan, bad) if bad and plan.spec.avoid_bad_hosts else {}
    if chosen:
        excluded = (*plan.request.options.get("exclude", ()), *chosen)
        plan = plan.replace(request=plan.request.replace(options={**plan.request.options, "exclude": excluded}))
    left = [each for each in bad if not any(same_host(each.host, host) for host in chosen)]
    notes = [*history.notes]
    notes += [f"avoid_bad_hosts leaves out {host}: {about(each)}" for host, each in chosen.items()]
    for each in left[:_MOST_TOLD]:
        hint = "it is not left out, see `gridtf nodes`" if plan.spec.avoid_bad_hosts else _hint(each.host)
        notes.append(f"{each.host} {about(each)}: {hint}")
    if more := left[_MOST_TOLD:]:
        notes.append(f"{counted(len(more), 'more host')} may be bad: `gridtf nodes` shows them")
    return plan.replace(bad_hosts=tuple(map(plain, notes)))


def about(suspect: Suspect) -> str:
    """What makes a host bad, such as ``was bad in 2 of your jobs (lost: no heartbeat for 30 s)``."""
    if suspect.site is not None:
        return f"is marked by your site ({suspect.site})" if suspect.site else "is marked by your site"
    return f"was bad in {suspect.jobs} of your jobs ({suspect.reason})"


def _hint(host: str) -> str:
    return f"--exclude {host} leaves it out, --avoid-bad-hosts any such host"


def _chosen(plan: Plan, bad: Sequence[Suspect]) -> dict[str, Suspect]:
    """The hosts to leave out, as the scheduler calls them: a tenth of those that may run the job, rounded up, and no
    more than it can do without. The worst come first."""
    room, need = dict[str, int](), 0
    with contextlib.suppress(SchedulerError):  # which says more when it refuses the job
        room, need = plan.scheduler.login.room(plan)
    chosen: dict[str, Suspect] = {}
    for each in bad:
        host = next((host for host in room if same_host(host, each.host)), None)
        if host is None or len(chosen) >= -(-len(room) // _SHARE):
            continue
        if sum(room[other] for other in room.keys() - {*chosen, host}) >= need:
            chosen[host] = each
    return chosen
