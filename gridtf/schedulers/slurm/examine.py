"""Examines Slurm for `gridtf doctor`: partitions, walltimes, GPUs, accounts, requeueing. Judging is pure."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gridtf.errors import GridtfError, SchedulerError, nearest
from gridtf.files import user_name
from gridtf.findings import FIRST_TIME, Examination, Finding, Items, Level, Setting, missing, with_first_job
from gridtf.jobspec.config import Configured
from gridtf.jobspec.units import format_walltime
from gridtf.schedulers import batch
from gridtf.schedulers.slurm import advice
from gridtf.schedulers.slurm.advice import ComponentRequest, Partition, list_partitions, show_gpus, show_walltime
from gridtf.schedulers.slurm.query import parse_fields
from gridtf.schedulers.slurm.submit import native_words
from gridtf.text import some
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.schedulers.slurm import Slurm

_PATIENCE = 3.0  # seconds for each question
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


def examine(slurm: Slurm, given: Configured) -> Examination:
    """Examine Slurm, as far as this host and this user see it.

    Args:
        slurm: The scheduler, which runs the commands.
        given: What files and variables set.

    Raises:
        SchedulerError: When the controller does not answer.
    """
    site = _query(slurm)
    return with_first_job(judge(site, given), lambda settings: first_job(slurm, site, given, settings))


# --- asking --------------------------------------------------------------------------------------------------------


def _query(slurm: Slurm) -> Site:
    try:
        ping = batch.run_command(["scontrol", "ping"], limit=_PATIENCE).out  # the other commands try for long
    except batch.NoAnswerError as error:
        raise SchedulerError(f"Slurm's controller does not answer: {error.what}", hint=batch.TRY_LATER) from None
    if "is DOWN" in ping and "is UP" not in ping:
        raise slurm.no_answer("`scontrol ping` reports it as DOWN")
    config = parse_config(slurm.printed(["scontrol", "show", "config"], limit=_PATIENCE))
    rules = parse_rules(slurm.printed(["scontrol", "-o", "show", "partition", "--all"], limit=_PATIENCE))
    partitions = advice.query_partitions(slurm, limit=_PATIENCE)
    accounts: Sequence[str] | None = None
    default = ""
    if config.get("AccountingStorageType", "").endswith("slurmdbd"):
        own = advice.associations(slurm, "account", limit=_PATIENCE)
        show = ("sacctmgr", "--noheader", "--parsable2", "show", "user", f"user={user_name(os.getuid())}")
        default = (slurm.try_run([*show, "format=defaultaccount"], limit=_PATIENCE) or "").strip()
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


def first_job(slurm: Slurm, site: Site, given: Configured, settings: Iterable[Setting]) -> Items:
    """Let sbatch judge a job of one task with the settings of the files and of this examination."""
    values = {key: value for key in ("partition", "account") if (value := given.spec.option(key)) is not None}
    values |= {} if given.spec.walltime is None else {"time": format_walltime(given.spec.walltime)}
    values |= {setting.key: setting.value for setting in settings if not setting.example}
    code, output = _test(slurm, values, given.spec.native)
    if code and "time" not in values and _WANTS_TIME.search(output):
        time = Setting("time", format_walltime(FIRST_TIME), "the site takes no job without a walltime")
        code, second = _test(slurm, {**values, time.key: time.value}, given.spec.native)
        if not code:
            yield from missing("time.compulsory", f"the site takes no job without a walltime: {_last(output)}", time)
        output = second
    partition = str(values.get("partition", ""))
    yield judge_first_job(code, output, tuple(partition.split(",")) if partition else (), site)


def _test(slurm: Slurm, values: Mapping[str, object], native: Sequence[str]) -> tuple[int, str]:
    options = [f"--{key}={value}" for key, value in values.items()]
    argv = ["sbatch", "--test-only", *options, *native_words(native), "--wrap=true"]
    answer = slurm.run(argv, limit=_PATIENCE)
    return answer.code, answer.err or answer.out


def _last(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return advice.plain_message(lines[-1]) if lines else "no message"


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
    if chosen is not None:
        yield from _time(chosen, site.rules.get(chosen.name, {}).get("DefaultTime", "NONE"), given)
    yield from _gpus(site)
    yield from _account(site, given)
    yield _requeue(site.config.get("JobRequeue", ""))


def choose(site: Site, given: Configured) -> Partition | None:
    """Choose the partition to judge: the one that is set, else the default one, else one to propose.

    Args:
        site: What Slurm's commands show.
        given: What files and variables set.

    Returns:
        The partition; of those to propose, one with GPUs and many nodes. None where the user has none.
    """
    named = str(given.spec.option("partition") or "").split(",")
    by_name = [partition for partition in site.partitions if partition.name in named]
    default = [partition for partition in site.partitions if partition.default]
    usable = [partition for partition in site.partitions if _works(partition) and _admits(partition, site)]
    usable.sort(key=lambda partition: (not show_gpus(partition), -partition.fitting(lambda nodes: nodes.works)))
    if given.spec.option("partition") is not None:
        return by_name[0] if by_name else None
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
        what = (
            f"there is no partition {named!r} ({given.source('partition')})"
            if named
            else "no partition is up and open to you"
        )
        hint = nearest(str(named), names) or f"this site has: {list_partitions(site.partitions)}"
        yield Finding(Level.FAILURE, "partition", what, hint if names else "ask the administrators: `sinfo --all`")
        return
    how = f"set in {given.source('partition')}" if named else "the default one"
    if not named and not chosen.default:
        what = f"there is no default partition; there are {list_partitions(working)}"
        yield from missing("partition", what, Setting("partition", chosen.name, _about(chosen)))
        how = "for jobs"
    others = f"write partition = …; these work: {list_partitions(working)}" if working else "`sinfo -R` lists reasons"
    unusable = advice.unusable_nodes([chosen])
    if chosen.up != "up":
        what = f"partition {chosen.name}, {how}, is {chosen.up}: no job starts there"
        yield Finding(Level.FAILURE, "partition.state", what, others)
    elif not _works(chosen):
        what = f"no node of partition {chosen.name}, {how}, can be used: {unusable or 'it has none'}"
        yield Finding(Level.FAILURE, "partition.state", what, others)
    else:
        rest = f" of {chosen.size} (not: {unusable})" if unusable else ""
        count = chosen.fitting(lambda nodes: nodes.works)
        yield Finding(
            Level.OK, "partition.state", f"partition {chosen.name}, {how}, is up; usable nodes: {count}{rest}"
        )


def _about(partition: Partition) -> str:
    gpus = show_gpus(partition)
    nodes = f"{partition.size} nodes" if partition.size != 1 else "1 node"
    return f"no partition is the default; {partition.name} has {nodes}{f', GPUs {gpus}' if gpus else ''}"


def _time(chosen: Partition, default: str, given: Configured) -> Items:
    longest = f"the longest in {chosen.name}: {show_walltime(chosen)}"
    if given.spec.time is not None:
        yield Finding(Level.OK, "time", f"time = {given.spec.time} is set in {given.source('time')}; {longest}")
    elif default != "NONE":
        yield Finding(Level.OK, "time", f"a job without `time` gets {default} in partition {chosen.name}; {longest}")
    elif chosen.limit is None:
        yield Finding(Level.OK, "time", f"a job without `time` has no time limit in partition {chosen.name}")
    else:
        what = f"partition {chosen.name} has no default time: a job without `time` asks for {show_walltime(chosen)}"
        time = format_walltime(min(FIRST_TIME, chosen.limit))
        why = f"without it, a job in partition {chosen.name} asks for {show_walltime(chosen)}, and waits longer"
        yield from missing("time", what, Setting("time", time, why))


def _gpus(site: Site) -> Items:
    having = [partition for partition in site.partitions if show_gpus(partition)]
    if not having:
        yield Finding(
            Level.OK, "gpus", "no partition has GPUs as a generic resource (GresTypes and Gres in slurm.conf)"
        )
        return
    yield Finding(Level.OK, "gpus", f"GPUs (GRES) of each node: {list_partitions(having, show_gpus)}")
    for partition in [one for one in having if _admits(one, site)][:_MOST_EXAMPLES]:
        number, limit = partition.most(lambda nodes: nodes.gpus()), show_walltime(partition)
        comment = f"for jobs in partition {partition.name}: GPUs {show_gpus(partition)}, walltime {limit}"
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


def judge_first_job(code: int, output: str, partitions: tuple[str, ...], site: Site) -> Finding:
    """Judge by the output of sbatch --test-only whether a first job would be accepted. Pure.

    Args:
        code: Exit code of sbatch --test-only.
        output: Its output.
        partitions: The partitions that the job named.
        site: What Slurm's commands show.
    """
    check = "submission"
    request = ComponentRequest(partitions=partitions, cpus=1, mem=0, time=None, keys={})
    try:
        notes = advice.judge((request,), code, output, site.partitions, available=advice.list_available(site.accounts))
    except GridtfError as error:
        return Finding(Level.FAILURE, check, f"sbatch refuses a job of one task: {_last(output)}", error.hint)
    if notes:
        return Finding(Level.WARNING, check, notes[0], "`sinfo` shows partitions and nodes")
    return Finding(Level.OK, check, "sbatch accepts a job of one task (--test-only)")
