"""Examines Slurm for `gridtf doctor`: partitions, walltimes, GPUs, accounts, requeueing. Judging is pure."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gridtf.errors import SchedulerError, nearest
from gridtf.files import user_name
from gridtf.findings import FIRST_TIME, Examination, Finding, Items, Level, Setting, collect, missing, with_first_job
from gridtf.jobspec.config import Configured
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import format_walltime
from gridtf.schedulers import commands, trial
from gridtf.schedulers.slurm import advice, offers
from gridtf.schedulers.slurm.commands import slurm
from gridtf.schedulers.slurm.offers import Partition, list_partitions, show_gpus, show_walltime
from gridtf.schedulers.slurm.query import parse_fields
from gridtf.text import counted, some
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.schedulers.api import Scheduler

_EXAMINE_LIMIT = 3.0  # seconds for each question
_MOST_EXAMPLES = 4  # partitions with lines of their own in the file
# a site's plugin that wants a walltime: "Requested time limit is invalid (missing or exceeds some limit)"
_WANTS_TIME = re.compile(r"time limit|walltime|--time\b", re.IGNORECASE)


class Site(Value):
    """What Slurm's commands show of a site.

    Attributes:
        config: slurm.conf(5), as ``scontrol show config`` prints it.
        partitions: The partitions, from sinfo.
        rules: Partition -> its fields in ``scontrol show partition``, such as ``DefaultTime``.
        accounts: The user's accounts, the default one first; None where they are not known.
        has_default: Whether the first of them is the default account.
        groups: The user's groups.
    """

    config: Mapping[str, str]
    partitions: Sequence[Partition]
    rules: Mapping[str, Mapping[str, str]]
    accounts: Sequence[str] | None = None
    has_default: bool = False
    groups: Collection[str] = ()


def examine(scheduler: Scheduler, given: Configured) -> Examination:
    """Examine Slurm, as far as this host and this user see it.

    Args:
        scheduler: Slurm.
        given: What files and variables set.

    Raises:
        SchedulerError: When the controller does not answer.
    """
    site = _query()
    return with_first_job(judge(site, given), lambda settings: first_job(scheduler, given, settings))


# --- asking --------------------------------------------------------------------------------------------------------


def _query() -> Site:
    try:
        answer = commands.run_command(["scontrol", "ping"], limit=_EXAMINE_LIMIT)  # the other commands try for long
    except commands.NoAnswerError as error:
        slurm.need_set_up("scontrol", commands.Answer(1, error.out, error.err))
        raise SchedulerError(f"Slurm's controller does not answer: {error.what}", hint=commands.TRY_LATER) from None
    slurm.need_set_up("scontrol", answer)
    ping = answer.out
    if "is DOWN" in ping and "is UP" not in ping:
        raise slurm.no_answer("`scontrol ping` reports it as DOWN")
    config = parse_config(slurm.printed(["scontrol", "show", "config"], limit=_EXAMINE_LIMIT))
    rules = parse_rules(slurm.printed(["scontrol", "-o", "show", "partition", "--all"], limit=_EXAMINE_LIMIT))
    partitions = offers.query_partitions(limit=_EXAMINE_LIMIT)
    accounts: Sequence[str] | None = None
    default = ""
    if config.get("AccountingStorageType", "").endswith("slurmdbd"):
        own = advice.associations("account", limit=_EXAMINE_LIMIT)
        show = ("sacctmgr", "--noheader", "--parsable2", "show", "user", f"user={user_name(os.getuid())}")
        default = (slurm.try_run([*show, "format=defaultaccount"], limit=_EXAMINE_LIMIT) or "").strip()
        accounts = None if own is None else sorted(own, key=lambda name: name != default)  # the default one first
    return Site(config, partitions, rules, accounts, bool(accounts) and default in (accounts or ()), _groups())


def _groups() -> set[str]:
    import grp

    names = set()
    for number in {os.getgid(), *os.getgroups()}:
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:
            names.add(str(number))
    return names


def first_job(scheduler: Scheduler, given: Configured, settings: Sequence[Setting]) -> Items:
    """Check a job of the files, of the options and of this examination's settings as its submission does."""
    spec = trial.with_settings(given, settings)

    def judged(spec: JobSpec) -> Examination:
        check = partial(advice.check, limit=_EXAMINE_LIMIT)
        what, hint = "sbatch accepts a job with these settings (--test-only)", "`sinfo` shows partitions and nodes"
        return collect(trial.judge(scheduler, given, spec, check, accepted=what, hint=hint))

    found = judged(spec)
    why = next((finding.message for finding in found.failures), "")
    if spec.time is None and _WANTS_TIME.search(why):
        time = Setting("time", format_walltime(FIRST_TIME), "the site takes no job without a walltime")
        second = judged(spec.replace(time=time.value))
        if not second.failures:
            yield from missing("time.compulsory", f"the site takes no job without a walltime: {why}", time)
        found = second
    yield from found.findings


# --- parsing; pure -------------------------------------------------------------------------------------------------


def parse_config(text: str) -> dict[str, str]:
    """Parse the output of ``scontrol show config``: lines such as ``JobRequeue              = 1``."""
    return dict(re.findall(r"^(\S+) += *(.*?) *$", text, re.MULTILINE))


def parse_rules(text: str) -> dict[str, dict[str, str]]:
    """Parse the output of ``scontrol -o show partition``: name of a partition -> its fields."""
    rows = (parse_fields(line) for line in text.splitlines())
    return {row["PartitionName"]: row for row in rows if "PartitionName" in row}


# --- judging; pure -------------------------------------------------------------------------------------------------


def judge(site: Site, given: Configured) -> Items:
    """Judge a site by what its commands show. Pure.

    Args:
        site: What they show.
        given: What files and variables set.

    Returns:
        Findings, and the settings that jobs need.
    """
    version, cluster = site.config.get("SLURM_VERSION", ""), site.config.get("ClusterName", "")
    names = some([partition.name for partition in site.partitions])
    yield Finding(Level.OK, "scheduler", f"Slurm {version} answers; cluster {cluster}, partitions {names or 'none'}")
    chosen = choose(site, given)
    yield from _partition(chosen, site, given)
    yield from trial.unknown_tables(given, [partition.name for partition in site.partitions], "partition")
    for other in _further(chosen, site, given):
        yield _further_partition(other)
    if chosen is not None:
        yield from _time(site, chosen, site.rules.get(chosen.name, {}).get("DefaultTime", "NONE"), given)
    yield from _gpus(site)
    yield from _account(site, given)
    yield _requeue(site.config.get("JobRequeue", ""))


def choose(site: Site, given: Configured) -> Partition | None:
    """Choose the partition to judge: the one that is set, else the default one, else one to propose.

    Args:
        site: What Slurm's commands show.
        given: What files and variables set.

    Returns:
        The partition; of several that are set, the first that works;
        of those to propose, one with GPUs and many nodes. None where the user has none.
    """
    named = str(given.spec.option("partition") or "").split(",")
    by_name = [partition for partition in site.partitions if partition.name in named]
    default = [partition for partition in site.partitions if partition.default]
    usable = [partition for partition in site.partitions if _works(partition) and _admits(partition, site)]
    usable.sort(key=lambda partition: (not show_gpus(partition), -partition.fitting(lambda nodes: nodes.works)))
    if given.spec.option("partition") is not None:
        return min(by_name, key=lambda partition: not _works(partition), default=None)
    return next(iter((*default, *usable)), None)


def _works(partition: Partition) -> bool:
    return partition.up == "up" and any(nodes.works for nodes in partition.nodes)


def _admits(partition: Partition, site: Site) -> bool:
    """Whether a partition admits the user, as far as groups and accounts decide it: slurm.conf(5)."""
    rules = site.rules.get(partition.name, {})
    own = {"AllowGroups": site.groups, "AllowAccounts": site.accounts}
    return rules.get("RootOnly", "NO") == "NO" and all(
        names is None or rules.get(key, "ALL") == "ALL" or not {*rules[key].split(",")}.isdisjoint(names)
        for key, names in own.items()
    )


def _partition(chosen: Partition | None, site: Site, given: Configured) -> Items:
    named, names = given.spec.option("partition"), [partition.name for partition in site.partitions]
    working = [partition for partition in site.partitions if _works(partition) and _admits(partition, site)]
    if chosen is None:
        none = f"there is no partition {named!r} ({given.source('partition')})"
        what = none if named else "no partition is up and open to you"
        hint = nearest(str(named), names) or f"this site has: {list_partitions(site.partitions)}"
        yield Finding(Level.FAILURE, "partition", what, hint if names else "ask the administrators: `sinfo --all`")
        return
    how = f"set in {given.source('partition')}" if named else "the default one"
    if not named and not chosen.default:
        what = f"there is no default partition; there are {list_partitions(working)}"
        yield from missing("partition", what, Setting("partition", chosen.name, _about(chosen)))
        how = "for jobs"
    others = f"write partition = …; these work: {list_partitions(working)}" if working else "`sinfo -R` lists reasons"
    unusable = offers.unusable_nodes([chosen])
    if chosen.up != "up":
        what = f"partition {chosen.name}, {how}, is {chosen.up}: no job starts there"
        yield Finding(Level.FAILURE, "partition.state", what, others)
    elif not _works(chosen):
        what = f"no node of partition {chosen.name}, {how}, can be used: {unusable or 'it has none'}"
        yield Finding(Level.FAILURE, "partition.state", what, others)
    else:
        rest = f" of {chosen.size} (not: {unusable})" if unusable else ""
        count = chosen.fitting(lambda nodes: nodes.works)
        what = f"partition {chosen.name}, {how}, is up; usable nodes: {count}{rest}"
        yield Finding(Level.OK, "partition.state", what)


def _further(chosen: Partition | None, site: Site, given: Configured) -> list[Partition]:
    """The other partitions that jobs may start in, of a list such as ``gpu,short``."""
    named = str(given.spec.option("partition") or "").split(",")
    return [partition for partition in site.partitions if partition.name in named and partition is not chosen]


def _further_partition(partition: Partition) -> Finding:
    if partition.up == "up" and _works(partition):
        count = partition.fitting(lambda nodes: nodes.works)
        return Finding(Level.OK, "partition.state", f"partition {partition.name} is up; usable nodes: {count}")
    why = f"it is {partition.up}" if partition.up != "up" else offers.unusable_nodes([partition]) or "it has no nodes"
    what = f"no job starts in partition {partition.name}, one of several that are set: {why}"
    return Finding(Level.WARNING, "partition.state", what, f"leave {partition.name} out of partition")


def _about(partition: Partition) -> str:
    has = ", ".join(filter(None, (counted(partition.size, "node"), offers.gpus_per_node(partition))))
    return f"no partition is the default; {partition.name} has {has}"


def _time(site: Site, chosen: Partition, default: str, given: Configured) -> Items:
    longest = f"the longest in {chosen.name}: {show_walltime(chosen)}"
    asked = given.spec.walltime
    if asked is not None and chosen.limit is not None and asked > chosen.limit:
        return  # a failure of the submission
    if asked is not None:
        yield Finding(Level.OK, "time", f"time = {given.spec.time} is set in {given.source('time')}; {longest}")
    elif default != "NONE":
        yield Finding(Level.OK, "time", f"a job without `time` gets {default} in partition {chosen.name}; {longest}")
    elif chosen.limit is None:
        yield Finding(Level.OK, "time", f"a job without `time` has no time limit in partition {chosen.name}")
    else:
        what = f"partition {chosen.name} has no default time: a job without `time` asks for {show_walltime(chosen)}"
        first = min(FIRST_TIME, chosen.limit)
        why = f"without it, a job in partition {chosen.name} asks for {show_walltime(chosen)}, and waits longer"
        yield from missing("time", what, Setting("time", format_walltime(first), why))
        for short in site.partitions:
            if short.limit is not None and short.limit < first and _admits(short, site):
                why = f"the longest walltime in partition {short.name}"
                yield Setting("time", format_walltime(short.limit), why, f"partitions.{short.name}")


def _gpus(site: Site) -> Items:
    having = [partition for partition in site.partitions if show_gpus(partition)]
    if not having:
        what = "no partition has GPUs as a generic resource (GresTypes and Gres in slurm.conf)"
        yield Finding(Level.OK, "gpus", what)
        return
    yield Finding(Level.OK, "gpus", f"GPUs (GRES) of each node: {list_partitions(having, show_gpus)}")
    for partition in [one for one in having if _admits(one, site)][:_MOST_EXAMPLES]:
        number = partition.most(lambda nodes: nodes.gpus())
        comment = f"for jobs in partition {partition.name}: {offers.describe(partition)}"
        yield Setting("gpus_per_node", number, comment, f"partitions.{partition.name}", example=True)


def _account(site: Site, given: Configured) -> Items:
    enforced = re.search(r"associations|limits|qos|safe|all", site.config.get("AccountingStorageEnforce", "none"))
    named, known = given.spec.option("account"), site.accounts
    listed = ", ".join(known or ())
    if named is not None:
        if known and named not in known:
            hint = nearest(str(named), [*known]) or f"available to you: {listed}"
            yield Finding(Level.FAILURE, "account", f"you have no account {named!r} ({given.source('account')})", hint)
        else:
            yield Finding(Level.OK, "account", f"account {named} is set in {given.source('account')}")
    elif not enforced:
        yield Finding(Level.OK, "account", "jobs need no account (AccountingStorageEnforce)")
    elif known is None:
        hint = "if a submission is refused, write account = …"
        yield Finding(Level.WARNING, "account", "jobs need an account, but sacctmgr does not list yours", hint)
    elif not known:
        yield Finding(Level.FAILURE, "account", "jobs need an account, and you have none", "ask the administrators")
    elif site.has_default:
        others = f"; also yours: {', '.join(known[1:])}" if known[1:] else ""
        yield Finding(Level.OK, "account", f"jobs without `account` run on {known[0]}{others}")
    else:
        comment = f"every job needs an account; yours: {listed}"
        setting = Setting("account", known[0], comment)
        yield from missing("account", f"jobs need an account, and you have no default; yours: {listed}", setting)


def _requeue(setting: str) -> Finding:
    if setting == "1":
        what = "Slurm starts a job again when one of its nodes fails (JobRequeue=1; not with --native=--no-requeue)"
    else:
        what = "a job ends when one of its nodes fails (JobRequeue=0); --native=--requeue asks for a new start"
    return Finding(Level.OK, "requeue", what)
