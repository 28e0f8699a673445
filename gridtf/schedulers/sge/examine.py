"""Examines Grid Engine for `gridtf doctor`: queues, PEs, resources, walltimes, projects. Judging is pure."""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from gridtf.errors import nearest
from gridtf.files import user_name
from gridtf.findings import FIRST_TIME, Examination, Finding, Items, Level, Setting, collect, missing, with_first_job
from gridtf.jobspec.config import Configured
from gridtf.jobspec.units import format_walltime
from gridtf.schedulers import trial
from gridtf.schedulers.api import Scheduler
from gridtf.schedulers.sge import advice, offers
from gridtf.schedulers.sge.commands import sge
from gridtf.schedulers.sge.directives import Resource, parse_native
from gridtf.schedulers.sge.offers import PE, Cell, Queue, carrying, walltime, with_walltimes
from gridtf.text import counted, some, toml

_EXAMINE_LIMIT = 4.0  # seconds for each question
_PES_LIMIT = 2.5  # seconds for all parallel environments
_COUNTED = {"YES": "per slot", "HOST": "per host"}
_REFUSED = "qconf does not answer on this host, so queues, PEs and resources are not known here"


class Site(Cell):
    """What Grid Engine's commands show of a cell: what it offers, and how it is set up.

    Attributes:
        version: Such as ``SGE 8.1.9``; empty where it is not known.
        hosts: Execution host -> whether it reports its load.
        config: The global configuration, sge_conf(5); empty where qconf is refused, and so is the rest.
        usable: The queues with a host where jobs can start, now or later.
        unasked: How many parallel environments qconf was not asked for, since it took too long.
        default_project: The user's own, or the one that new users get; empty without one.
    """

    version: str = ""
    hosts: Mapping[str, bool] = {}
    config: Mapping[str, str] = {}
    usable: Collection[str] = ()
    unasked: int = 0
    default_project: str = ""


def examine(scheduler: Scheduler, given: Configured) -> Examination:
    """Examine Grid Engine, as far as this host and this user see it.

    Args:
        scheduler: Grid Engine.
        given: What files and variables set.

    Raises:
        SchedulerError: When the qmaster does not answer.
    """
    site = _query(given)
    if not site.config:
        return collect(judge(site, given))
    return with_first_job(judge(site, given), lambda settings: first_job(scheduler, site, given, settings))


# --- asking --------------------------------------------------------------------------------------------------------


def _query(given: Configured) -> Site:
    hosts = parse_hosts(sge.printed(["qhost"], limit=_EXAMINE_LIMIT))
    version = sge.run(["qstat", "-help"], limit=_EXAMINE_LIMIT).out.partition("\n")[0].strip()
    config = dict(offers.pairs(offers.qconf("-sconf")))
    if not config:
        return Site(version=version, hosts=hosts)
    queues = offers.known_queues()
    shown = offers.parse_usable(sge.printed(["qstat", "-g", "c"], limit=_EXAMINE_LIMIT))
    pes, unasked = _pes(str(given.spec.option("pe") or ""), queues)
    own = dict(offers.pairs(offers.qconf("-suser", user_name(os.getuid()))))
    defaults = (own.get("default_project", ""), config.get("auto_user_default_project", ""))
    return Site(
        version=version,
        hosts=hosts,
        config=config,
        pes=pes,
        unasked=unasked,
        queues=queues,
        usable={name for name, usable in shown.items() if usable},
        resources=offers.known_resources(),
        projects=offers.known_names("-sprjl"),
        default_project=next((name for name in defaults if name.upper() not in ("", "NONE")), ""),
    )


def _pes(named: str, queues: Sequence[Queue]) -> tuple[list[PE], int]:
    """The parallel environments, those first that matter most: each takes a qconf, and a cell may have many.

    Returns:
        (those that were asked for in time, how many others there are).
    """
    offered = frozenset().union(*(queue.pes for queue in queues))
    names = offers.known_names("-spl")
    names.sort(key=lambda name: (not fnmatch.fnmatchcase(name, named), name not in offered))
    end = time.monotonic() + _PES_LIMIT
    asked = [offers.known_pe(name) for name in names if time.monotonic() < end]
    return [pe for pe in asked if pe is not None], len(names) - len(asked)


def first_job(scheduler: Scheduler, site: Site, given: Configured, settings: Sequence[Setting]) -> Items:
    """Check a job of the files, of the options and of this examination's settings as its submission does."""
    spec = trial.with_settings(given, settings)
    pe = next((pe for pe in site.pes if pe.name == spec.option("pe")), None)
    sizes = ("nodes", "tasks_per_node", "gpus_per_node", "gpus", "gpus_per_task", "slots")
    if pe is not None and not spec.tasks and all(spec.option(key) is None for key in sizes):
        spec = trial.replaced(spec, {"slots": pe.fixed or 2})  # so that the PE counts
    check = partial(advice.check, limit=_EXAMINE_LIMIT)
    what, hint = "qsub accepts a job with these settings (-w v)", "`qstat -g c` shows queues and their slots"
    yield from trial.judge(scheduler, given, spec, check, accepted=what, hint=hint)


# --- parsing; pure -------------------------------------------------------------------------------------------------


def parse_hosts(text: str) -> dict[str, bool]:
    """Parse the output of qhost: host -> whether it reports its load.

    ``n1   lx-amd64   2    1    2    2  2.22   23.5G  819.9M     0.0     0.0``; of a host that is down, LOAD is ``-``.
    """
    rows = (line.split() for line in text.splitlines())
    return {row[0]: row[-5] != "-" for row in rows if len(row) >= 8 and row[0] not in ("HOSTNAME", "global")}


# --- judging; pure -------------------------------------------------------------------------------------------------


def judge(site: Site, given: Configured) -> Items:
    """Judge a cell by what Grid Engine's commands show. Pure.

    Args:
        site: What they show.
        given: What files and variables set.

    Returns:
        Findings, and the settings that jobs need.
    """
    yield from _hosts(site)
    if not site.config:
        hint = "ask the administrators for your PE and GPU resource, and write pe = … and gpu_resource = …"
        yield Finding(Level.WARNING, "scheduler.qconf", _REFUSED, hint)
        return
    named = str(given.spec.option("partition") or "")
    chosen = offers.matching_queues(site.queues, [name for name in named.split(",") if name])
    yield from _queues(site, given, chosen)
    yield from trial.unknown_tables(given, [queue.name for queue in site.queues], "queue")
    if usable := [queue for queue in chosen if queue.name in site.usable]:
        site = site.replace(queues=usable)  # a PE that only other queues offer is of no use
    pe = choose(site, given)
    yield from _pe(pe, site, given, chosen)
    if site.unasked:
        what = f"qconf has not answered within {_PES_LIMIT:g} s for all PEs: {site.unasked} are left out"
        yield Finding(Level.OK, "pe.others", what)
    yield from _gpus(site.resources, given.spec.gpu_resource)
    yield from _time(site, pe, given)
    yield from _forced(site.resources, given)
    yield from _project(site, given)
    yield _reschedule(site.config.get("reschedule_unknown", ""))


def _hosts(site: Site) -> Iterator[Finding]:
    name, silent = site.version or "Grid Engine", [host for host, reports in site.hosts.items() if not reports]
    if not site.hosts or len(silent) == len(site.hosts):
        what = f"{name} answers, but none of its {len(site.hosts)} execution hosts reports a load: no job starts"
        yield Finding(Level.FAILURE, "scheduler.hosts", what, "`qhost` shows them; ask the administrators")
        return
    down = f", of which {some(silent)} report no load" if silent else ""
    yield Finding(Level.OK, "scheduler", f"{name} answers: {counted(len(site.hosts), 'execution host')}{down}")


def _queues(site: Site, given: Configured, chosen: Sequence[Queue]) -> Iterator[Finding]:
    named = str(given.spec.option("partition") or "")
    working = [queue.name for queue in site.queues if queue.name in site.usable]
    if named and not chosen:
        hint = nearest(named, [queue.name for queue in site.queues]) or f"there are: {some(working)}"
        yield Finding(Level.FAILURE, "queues", f"there is no queue {named!r} ({given.source('partition')})", hint)
    elif not any(queue.name in site.usable for queue in chosen):
        what = f"all slots of {named or 'all queues'} are disabled, in error or on hosts that do not answer"
        hint = f"write partition = …; these work: {some(working)}" if working else "`qstat -f -explain E` shows why"
        yield Finding(Level.FAILURE, "queues", what, hint)
    else:
        shown = with_walltimes(queue for queue in chosen if queue.name in site.usable)
        yield Finding(Level.OK, "queues", f"queues that can start jobs, with their longest h_rt: {some(shown)}")


# --- parallel environments


def choose(site: Site, given: Configured) -> PE | None:
    """Choose the parallel environment to judge: the one that is set, else the one to propose.

    Args:
        site: What Grid Engine's commands show.
        given: What files and variables set.

    Returns:
        The parallel environment; of those to propose, the one that suits most jobs. None where there is none.
    """
    named = given.spec.option("pe")
    if named is not None:
        return next((pe for pe in site.pes if fnmatch.fnmatchcase(pe.name, str(named))), None)
    return min(_offered(site), key=lambda pe: pe.rank, default=None)


def _offered(site: Site) -> list[PE]:
    """The parallel environments that a queue offers to all users."""
    return [pe for pe in site.pes if pe.slots > 1 and not pe.users and carrying(site.queues, pe.name)]


def _pe(pe: PE | None, site: Site, given: Configured, chosen: Sequence[Queue]) -> Items:
    named, known = given.spec.option("pe"), [one.name for one in site.pes]
    offered = _offered(site)
    best = min((one.rank for one in offered), default=None)
    suitable = [one.name for one in offered if one.control_slaves and one.rank == best]
    write = f"write pe = …; suitable: {some(suitable)}" if suitable else ""
    if pe is None and named is not None:
        hint = nearest(str(named), known) or write or "`qconf -spl` lists them"
        yield Finding(Level.FAILURE, "pe", f"there is no PE {named!r} ({given.source('pe')})", hint)
    elif pe is None and site.pes:
        what = f"no queue offers a PE (pe_list): jobs have one slot; there are {some(known)}"
        hint = f"ask the administrators: qconf -aattr queue pe_list {known[0]} {_first_queue(site)}"
        yield Finding(Level.FAILURE, "pe.queues", what, hint)
    elif pe is None:
        hint = "ask the administrators for one: qconf -ap NAME, with control_slaves TRUE and allocation_rule $fill_up"
        yield Finding(Level.FAILURE, "pe", "there is no PE: jobs have one slot", hint)
    elif not (queues := carrying(site.queues, pe.name)) and (closed := carrying(chosen, pe.name)):
        what = f"all queues that offer PE {pe.name} are disabled or in error: {some([queue.name for queue in closed])}"
        yield Finding(Level.FAILURE, "pe.queues", what, write or "`qstat -f -explain E` shows why")
    elif not queues:
        hint = write or f"ask the administrators: qconf -aattr queue pe_list {pe.name} {_first_queue(site)}"
        what = f"no queue offers PE {pe.name} of {given.source('pe')} (pe_list)"
        yield Finding(Level.FAILURE, "pe.queues", what, hint)
    elif not pe.control_slaves and pe.rule != "$pe_slots":
        what = f"PE {pe.name} does not let gridtf start tasks on other hosts of a job (control_slaves FALSE)"
        hint = write or f"ask the administrators: qconf -mattr pe control_slaves TRUE {pe.name}"
        yield Finding(Level.FAILURE, "pe.control_slaves", what, hint)
    else:
        offering = f"offered by {some([queue.name for queue in queues])}"
        flags = f"control_slaves {str(pe.control_slaves).upper()}, accounting_summary {str(pe.summary).upper()}"
        what = f"PE {pe.name} (allocation_rule {pe.rule}, {flags}), {offering}"
        if named is not None:
            yield Finding(Level.OK, "pe", f"{what}, is set in {given.source('pe')}")
        else:
            comment = f"jobs of several tasks need a PE; this one has allocation_rule {pe.rule}"
            yield from missing(
                "pe", f"jobs of several tasks need a PE; suitable: {what}", Setting("pe", pe.name, comment)
            )
        yield from _rule(pe, suitable)


def _rule(pe: PE, suitable: Sequence[str]) -> Iterator[Finding]:
    if pe.rule == "$pe_slots":
        others = [name for name in suitable if name != pe.name]
        hint = f"write pe = …; for several hosts: {some(others)}" if others else ""
        ask = "for jobs of several hosts, ask the administrators for a PE with allocation_rule $fill_up"
        what = f"PE {pe.name} has allocation_rule $pe_slots: a job has one host"
        yield Finding(Level.WARNING, "pe.allocation_rule", what, hint or ask)
    elif pe.fixed and pe.fixed > 1:
        what = f"PE {pe.name} has {pe.fixed} slots on each host: a job must ask for a multiple of that (slots = …)"
        hint = f"write slots = {pe.fixed}, or a multiple, in a job file"
        yield Finding(Level.WARNING, "pe.allocation_rule", what, hint)


def _first_queue(site: Site) -> str:
    return next((queue.name for queue in site.queues), "all.q")


# --- resources


def _gpus(resources: Sequence[Resource], name: str) -> Items:
    found = next((one for one in resources if name in (one.name, one.shortcut)), None)
    like = [other for other in offers.like_gpus(resources) if other != name]
    if found is None and like:
        comment = f"the complex has no resource `{name}`; `qhost -F {like[0]}` shows whether hosts have this one"
        setting = Setting("gpu_resource", like[0], comment)
        what = f"the complex has no resource {name}; GPUs are probably {some(like)}"
        yield from missing("gpus", what, setting)
    elif found is None:
        yield Finding(Level.OK, "gpus", f"the complex has no resource {name}, and none that looks like GPUs")
    elif found.consumable == "NO":
        what = f"resource {name} is not counted (consumable NO): two jobs may get the same GPUs"
        hint = f"ask the administrators: consumable YES for {name} in `qconf -mc`"
        yield Finding(Level.WARNING, "gpus", what, hint)
    elif found.consumable == "JOB":
        better = [one.name for one in resources if one.name in like and one.consumable in ("YES", "HOST")]
        hint = f"ask the administrators: YES for {name} in `qconf -mc`"
        hint = f"write gpu_resource = {toml(better[0])}" if better else hint
        what = f"GPUs are resource {name}, counted per job (consumable JOB): a job with GPUs has one host"
        yield Finding(Level.WARNING, "gpus", what, hint)
    else:
        how, others = _COUNTED.get(found.consumable, found.consumable), f"; also: {some(like)}" if like else ""
        yield Finding(Level.OK, "gpus", f"GPUs are resource {name} ({found.kind}), counted {how}{others}")


def _time(site: Site, pe: PE | None, given: Configured) -> Items:
    queues = carrying(site.queues, pe.name) if pe is not None else list(site.queues)
    limited = [queue for queue in queues if queue.limit is not None]
    longest = max((queue.limit or 0 for queue in limited), default=0) if len(limited) == len(queues) else None
    time = format_walltime(min(FIRST_TIME, longest or FIRST_TIME))
    asked = given.spec.walltime
    if asked is not None and longest is not None and asked > longest:
        return  # a failure of the submission
    if asked is not None:
        yield Finding(Level.OK, "time", f"time = {given.spec.time} is set in {given.source('time')}")
    elif any(resource.forced and resource.name == "h_rt" for resource in site.resources):
        comment = "every job must ask for a walltime (h_rt is FORCED)"
        yield from missing("time", comment, Setting("time", time, comment))
    elif short := [queue for queue in limited if longest is None or (queue.limit or 0) < longest]:
        names = some(with_walltimes(short))
        what = f"a job without `time` may start in {names}, and is ended there after that time"
        comment = f"a job without a walltime may start in a queue with a short limit: {names}"
        yield from missing("time", what, Setting("time", time, comment))
        for queue in short:
            if queue.limit is not None and queue.limit < min(FIRST_TIME, longest or FIRST_TIME):
                why = f"the longest walltime in queue {queue.name}"
                yield Setting("time", walltime(queue), why, f"partitions.{queue.name}")
    else:
        shown = walltime(queues[0]) if queues else "no limit"
        yield Finding(Level.OK, "time", f"a job without `time` runs as long as its queue allows: {shown}")


def _forced(resources: Sequence[Resource], given: Configured) -> Items:
    requested = parse_native(given.spec.native)
    forced = [one for one in resources if one.forced and one.name != "h_rt" and f"l {one.name}" not in requested]
    forced = [one for one in forced if f"l {one.shortcut}" not in requested]
    if forced:
        names = some([one.name for one in forced])
        lines = [offers.forced_line(one.name, one.kind) for one in forced]
        comment = f"every job must request {names} (requestable FORCED); write what your program needs"
        setting = Setting("native", [*given.spec.native, *lines], comment)
        yield from missing("resources", f"every job must request {names} (requestable FORCED in the complex)", setting)


# --- projects, hosts that are lost


def _project(site: Site, given: Configured) -> Items:
    named, known = given.spec.option("account"), some([*site.projects])
    if named is not None:
        if named in site.projects:
            yield Finding(Level.OK, "account", f"project {named} is set in {given.source('account')}")
        else:
            hint = nearest(str(named), [*site.projects]) or f"there are: {known or 'none'}"
            yield Finding(Level.FAILURE, "account", f"there is no project {named!r} ({given.source('account')})", hint)
    elif site.config.get("enforce_project", "").lower() != "true":
        yield Finding(Level.OK, "account", f"jobs need no project{f'; there are: {known}' if known else ''}")
    elif site.default_project:
        yield Finding(Level.OK, "account", f"jobs without `account` run in your default project {site.default_project}")
    elif len(site.projects) == 1:
        what = "every job needs a project (enforce_project), and there is only"
        setting = Setting("account", site.projects[0], f"{what} this one")
        yield from missing("account", f"{what} {site.projects[0]}", setting)
    else:
        what = f"every job needs a project (enforce_project), and you have no default one; there are: {known or 'none'}"
        yield Finding(Level.WARNING, "account", what, "ask which is yours, and write account = …")


def _reschedule(after: str) -> Finding:
    if re.fullmatch(r"[0:]+|none|", after):
        what = "a job whose host is lost is not started again (reschedule_unknown is 0)"
    else:
        what = f"a job whose host is lost is started again after {after} (reschedule_unknown)"
    return Finding(Level.OK, "requeue", what)
