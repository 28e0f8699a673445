"""Judges what the hosts of `gridtf doctor --probe` have measured: measurements in, findings and settings out. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gridtf.findings import Examination, Finding, Level, Setting, failure
from gridtf.host.gpus import SHOWING, listed
from gridtf.host.network import is_loopback
from gridtf.jobspec.spec import JobSpec, no_container_program
from gridtf.run.recordtypes import Count, Port
from gridtf.text import counted, some, toml
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.run.rundir import Record

_Peer = {
    "host": str,
    "port": Port,
    "seen": bool,
    "unresolved": str,
    "resolving?": float,
    "resolved?": [str],
    "by_name?": str,
    "links?": {str: {"address": str, "error": str}},
    "ahead?": int,
    "doubt?": int,
    "delay?": (float, None),
}
# The measurements of one host, as measure.py writes them.
Measurements = {
    "index": Count,
    "hostname": str,
    "time": float,
    "interfaces": [{"name": str, "up": bool, "address": (str, None)}],
    "variables": {str: str},
    "devices": [str],
    "proxies": [str],
    "limits": {str: int},
    "infiniband": bool,
    "ports": str,
    "cpus": [Count],
    "programs": [str],
    "ptrace": {"error": str, "scope": str},
    "python": {"error?": str, "version?": str, "path?": str, "tensorflow?": (str, None)},
    "peers": {str: _Peer},
}

# How a task was ended, as measure.py writes it: signals before SIGKILL, and when they came, in seconds.
Ending = {"signals": [str], "times": [float], "lived": float}

_SLOW_FILE = 3.0  # seconds for a file to appear on other hosts
_SLOW_NAME = 1.0  # seconds to resolve a name
_FAR_CLOCK = 1.0  # seconds between two clocks
_MIB = 1 << 20
# Limit -> the least that TensorFlow gets on with, its unit, and how the limit is named.
_LEAST = {
    "nofile": (1024, 1, "open files (ulimit -n)"),
    "nproc": (1024, 1, "processes and threads (ulimit -u)"),
    "stack": (1, _MIB, "MiB of stack (ulimit -s)"),
    "as": (32768, _MIB, "MiB of address space (ulimit -v)"),
}
_LOCKED = (64, _MIB, "MiB of locked memory (ulimit -l), which InfiniBand needs")
_GRANTING = re.compile(rf"{'|'.join(SHOWING)}|SGE_GPU|SGE_HGR_.+")  # the variables that gridtf reads
_AMOUNTS = re.compile(r"SLURM_|NUM|COUNT|NGPU|_PER_|ON_NODE|ORDER", re.IGNORECASE)
_DEVICE = re.compile(r"(gpu|cuda|nvidia)?-?\d{1,3}|(GPU|MIG)-[\w/-]+", re.IGNORECASE)


class Probe(Value):
    """The job whose tasks have measured.

    Attributes:
        scheduler: The name of its scheduler.
        nodes: The number of hosts that were requested.
        hosts: The host of each task, as the scheduler calls it.
        gpus: The number of GPUs of each task.
        run_root: The folder with its run directory.
        during: When it was submitted, and when its measurements were there, by the clock of this host.
        gpu_variable: The variable that the site has chosen (JobSpec.gpu_variable).
        contained: The specification of the user's jobs, if these run in a container; the probe's own tasks do not.
    """

    scheduler: str
    nodes: int
    hosts: tuple[str, ...]
    gpus: tuple[int, ...]
    run_root: str
    during: tuple[float, float]
    gpu_variable: str | None = None
    contained: JobSpec | None = None

    def name(self, index: int) -> str:
        """How a task's host is called in findings: by the task as well, where the host has several."""
        host = self.hosts[index]
        return host if self.hosts.count(host) == 1 else f"worker:{index} on {host}"


Pairs = Sequence["tuple[str, str, Record]"]  # the measuring host, the other one, what the first has measured
Each = Mapping[str, "Record"]  # host -> its measurements


def judge(probe: Probe, measured: Sequence[Record]) -> Examination:
    """Judge the measurements of all hosts.

    Args:
        probe: The job.
        measured: The measurements of each task, in the order of the tasks, of the kind Measurements.

    Returns:
        A finding for each check that could be made, and the settings that follow from them.
    """
    names = [probe.name(index) for index in range(len(measured))]
    pairs = [
        (names[index], names[int(other)], peer)
        for index, record in enumerate(measured)
        for other, peer in record["peers"].items()
        if probe.hosts[index] != probe.hosts[int(other)]  # tasks on one host tell nothing of hosts
    ]
    common = _common_links(pairs)
    findings = [_hosts(probe)]
    if pairs:
        findings += [_shared(probe, pairs), _resolved(pairs, common), _connected(pairs, common, measured[0]["ports"])]
    each = dict(zip(names, measured, strict=True))
    findings += [] if probe.scheduler == "local" else [_clocks(probe, pairs, each)]
    findings.append(_container(probe.contained, probe.hosts, measured) if probe.contained else _python(each))
    findings += [_limits(each), _ptrace(each), _proxies(each), _cpus(each)]
    granted, settings = _gpus(probe, each)
    findings += granted
    if common and any(finding.level == Level.FAILURE and finding.check.startswith("network.") for finding in findings):
        settings.append(Setting("interface", common[0], "the hosts of a job reach each other over this one"))
    return Examination(tuple(findings), tuple(settings))


def _hosts(probe: Probe) -> Finding:
    hosts = list(dict.fromkeys(probe.hosts))
    if len(hosts) >= probe.nodes or probe.scheduler == "local":
        return Finding(Level.OK, "probe.hosts", f"the job has run on {counted(len(hosts), 'host')}: {some(hosts)}")
    what = f"the job has run on {counted(len(hosts), 'host')} ({some(hosts)}) instead of {probe.nodes}"
    hint = "choose a parallel environment whose allocation_rule is 1 or $round_robin (--pe), or request more --slots"
    return Finding(Level.WARNING, "probe.hosts", f"{what}, so that connections are not measured", hint)


def judge_end(probe: Probe, endings: Sequence[Record], kill_grace: float) -> Finding:
    """Judge how the scheduler has ended the tasks: whether they were warned, and how long before.

    Args:
        probe: The job, whose tasks heeded no signal.
        endings: The end of each task, in the order of the tasks, of the kind Ending.
        kill_grace: The seconds that gridtf gives tasks between SIGTERM and SIGKILL.
    """
    check = "end.warning"
    names = [probe.name(index) for index in range(len(endings))]
    if unwarned := [name for name, record in zip(names, endings, strict=True) if not record["signals"]]:
        what = f"when the scheduler ends a job, it kills tasks without a warning: {some(unwarned, most=4)}"
        hint = "save checkpoints in time, or ask your site for a longer KillWait (Slurm) or notify of the queue (qsub)"
        return Finding(Level.WARNING, check, what, hint)
    shortest = min(record["lived"] - record["times"][0] for record in endings)
    signals = sorted({name for record in endings for name in record["signals"]})
    what = (
        f"when the scheduler ends a job, tasks receive {' and '.join(signals)}, and are killed {shortest:.0f} s later"
    )
    if shortest + 1 < kill_grace:
        hint = f"write kill_grace = {max(1, int(shortest) - 1)}, so that gridtf ends tasks before the scheduler does"
        return Finding(Level.WARNING, check, f"{what}, but kill_grace is {kill_grace:g} s", hint)
    return Finding(Level.OK, check, f"{what} (kill_grace is {kill_grace:g} s)")


def local_end(kill_grace: float) -> Finding:
    """How a job on this machine is ended, which is not measured."""
    what = f"gridtf itself ends jobs on this machine: tasks receive SIGTERM, and are killed {kill_grace:g} s later"
    return Finding(Level.OK, "end.warning", f"{what} (kill_grace)")


# --- between hosts ---------------------------------------------------------------------------------------------------


def _shared(probe: Probe, pairs: Pairs) -> Finding:
    check = "run_root.shared"
    hint = "choose a folder on a file system that all hosts share: run_root = …"
    if unseen := [f"{here} does not see files of {there}" for here, there, peer in pairs if not peer["seen"]]:
        return Finding(Level.FAILURE, check, f"{some(unseen, most=3)} in {probe.run_root}", hint)
    delays = [(peer["delay"], here, there) for here, there, peer in pairs if "delay" in peer]
    if late := [f"a new file of {there} does not appear on {here}" for delay, here, there in delays if delay is None]:
        return Finding(Level.FAILURE, check, f"{some(late, most=3)} in {probe.run_root}", hint)
    if not delays:
        return Finding(Level.OK, check, f"all hosts see each other's files in {probe.run_root}")
    longest, here, there = max(delays)
    if longest > _SLOW_FILE:
        what = f"a new file of {there} appears on {here} after {longest:.1f} s in {probe.run_root}"
        return Finding(Level.WARNING, check, what, "every start takes that much longer: choose another run_root")
    what = f"new files of a host appear on the others within {_least_tenth(longest)} s in {probe.run_root}"
    return Finding(Level.OK, check, what)


def _least_tenth(seconds: float) -> str:
    return f"{max(0.1, seconds):.1f}"


def _common_links(pairs: Pairs) -> list[str]:
    """The interfaces by whose addresses every host reaches every other one."""
    names = [_open_links(peer) for *_, peer in pairs]
    return sorted(set.intersection(*names)) if names else []


def _open_links(peer: Record) -> set[str]:
    """The interfaces of the other host by whose addresses it answers."""
    return {name for name, link in peer.get("links", {}).items() if not link["error"]}


def _another_network(common: Sequence[str]) -> str:
    return f"write interface = {toml(common[0])}, over which all hosts reach each other" if common else ""


def _resolved(pairs: Pairs, common: Sequence[str]) -> Finding:
    check = "network.names"
    if wrong := [
        f"{here} cannot resolve {peer['host']}: {peer['unresolved']}" for here, _, peer in pairs if peer["unresolved"]
    ]:
        where = some(sorted({here for here, _, peer in pairs if peer["unresolved"]}), most=3)
        hint = f"add the name to the DNS or to /etc/hosts of {where}"
        other = _another_network(common) or 'write address = "{host}…", by which all hosts know each other'
        return Finding(Level.FAILURE, check, some(wrong, most=3), f"{hint}; or {other}")
    slowest, here, name = max((peer.get("resolving", 0.0), here, peer["host"]) for here, _, peer in pairs)
    if slowest > _SLOW_NAME:
        hint = f"ask your site why, or list the hosts of the cluster in /etc/hosts of {here}"
        return Finding(Level.WARNING, check, f"{here} takes {slowest:.1f} s to resolve {name}", hint)
    return Finding(Level.OK, check, "every host resolves the names of the others")


def _connected(pairs: Pairs, common: list[str], ports: str) -> Finding:
    check = "network.tcp"
    works = {(here, there): _works(peer) for here, there, peer in pairs}
    bad = [(here, there, peer) for here, there, peer in pairs if not works[here, there]]
    if bad:
        words = []
        for here, there, peer in bad:
            back = works.get((there, here))
            error = peer.get("by_name", "no answer")
            other = " (the other direction works)" if back else ""
            words.append(f"{here} cannot connect to {peer['host']}, {_addresses(peer)}: {error}{other}")
        hint = "; or ".join(filter(None, (_why_unconnected(*bad[0], ports), _another_network(common))))
        return Finding(Level.FAILURE, check, some(words, most=2), hint)
    links = sorted({name for *_, peer in pairs for name in peer.get("links", {})})
    others = [name for name in links if name not in common]
    over = f"; over the {'interface' if len(common) == 1 else 'interfaces'} {some(common)}" if common else ""
    over += f"; not over {some(others)}" if others else ""
    return Finding(Level.OK, check, f"all hosts connect to each other in both directions{over}")


def _works(peer: Record) -> bool:
    """Whether tasks on two hosts connect: by name, or where the name is the problem, by any address."""
    if peer["unresolved"]:
        return bool(_open_links(peer))
    return peer.get("by_name") == ""


def _addresses(peer: Record) -> str:
    return " and ".join(peer.get("resolved", [])) or "whose address is unknown"


def _why_unconnected(here: str, there: str, peer: Record, ports: str) -> str:
    if "answers" in peer.get("by_name", "") or any(is_loopback(text) for text in peer.get("resolved", [])):
        return f"give {peer['host']} an address of {there} in the DNS or in /etc/hosts of {here}"
    return f"let the firewall of {there} accept TCP from compute hosts on ports {ports} (net.ipv4.ip_local_port_range)"


def _clocks(probe: Probe, pairs: Pairs, each: Each) -> Finding:
    check = "clock.offset"
    hint = "ask your site to run chronyd or ntpd there: times in logs and of files are wrong by that much"
    known = [(abs(peer["ahead"]), peer, here, there) for here, there, peer in pairs if "ahead" in peer]
    most, peer, here, there = max(known, key=lambda row: row[0], default=(0, {"ahead": 0, "doubt": 0}, "", ""))
    if (most - peer["doubt"]) / 1e6 >= _FAR_CLOCK:
        first, second = (there, here) if peer["ahead"] > 0 else (here, there)
        what = f"the clock of {first} is {_seconds(most / 1e6)} ahead of that of {second}"
        return Finding(Level.WARNING, check, what, hint)
    begin, end = probe.during
    for name, record in each.items():
        ahead, behind = record["time"] - end, begin - record["time"]
        if max(ahead, behind) >= _FAR_CLOCK:
            how = "ahead of" if ahead > 0 else "behind"
            what = f"the clock of {name} is {_seconds(max(ahead, behind))} or more {how} that of this host"
            return Finding(Level.WARNING, check, what, hint)
    if not known:
        within = f"{max(1.0, end - begin):.0f} s, the time that the job took"
        hosts = some([*dict.fromkeys(probe.hosts)], most=4)
        return Finding(Level.OK, check, f"the clocks of this host and of {hosts} agree to within {within}")
    return Finding(Level.OK, check, f"the clocks of the hosts agree to within {_seconds((most + peer['doubt']) / 1e6)}")


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(0.1, seconds * 1000):.1f} ms"


# --- on each host ----------------------------------------------------------------------------------------------------


def _python(each: Each) -> Finding:
    check = "python.tensorflow"
    hint = "activate its environment in a set-up line: --setup 'source ENV/bin/activate', or setup = […] in a file"
    versions: dict[tuple[str, str], list[str]] = {}
    for name, record in each.items():
        found = record["python"]
        if "error" in found:
            return Finding(Level.WARNING, check, f"{name}: {found['error']}", hint)
        if not found.get("tensorflow"):
            what = f"{name}: {found.get('path')}, Python {found.get('version')}, has no TensorFlow"
            return Finding(Level.WARNING, check, what, hint)
        versions.setdefault((str(found["tensorflow"]), str(found.get("version"))), []).append(name)
    texts = [f"TensorFlow {one} with Python {two} on {some(names)}" for (one, two), names in versions.items()]
    if len(versions) > 1:
        what = f"hosts differ: {'; '.join(texts)}"
        return Finding(Level.WARNING, check, what, "use one environment, on a file system that all hosts share")
    return Finding(Level.OK, check, texts[0])


def _container(spec: JobSpec, hosts: Sequence[str], measured: Sequence[Record]) -> Finding:
    for host, record in zip(hosts, measured, strict=True):
        if not record["programs"]:
            return failure("container", no_container_program(spec, host))
    names = dict.fromkeys(record["programs"][0] for record in measured)
    return Finding(Level.OK, "container", f"each host has {' or '.join(names)}, which makes the containers of tasks")


def _limits(each: Each) -> Finding:
    check = "limits"
    for name, record in each.items():
        least = {**_LEAST, "memlock": _LOCKED} if record["infiniband"] else _LEAST
        for key, (enough, unit, words) in least.items():
            limit = record["limits"].get(key, -1)
            if 0 <= limit < enough * unit:
                hint = f"raise it to {enough} in a set-up line, which Slurm passes on to all hosts, or ask your site"
                if key == "as":
                    hint = "TensorFlow reserves more than it uses: on Grid Engine h_vmem sets this limit, request more"
                return Finding(Level.WARNING, check, f"{name} allows a task {limit // unit} {words}", hint)
    fewest = min((record["limits"].get("nofile", -1) for record in each.values()), default=-1)
    files = "open files are not limited" if fewest < 0 else f"{fewest} open files"
    return Finding(Level.OK, check, f"the limits of the hosts suffice ({files})")


def _ptrace(each: Each) -> Finding:
    for name, record in each.items():
        error, scope = record["ptrace"]["error"], record["ptrace"]["scope"]
        if error:
            why = f"kernel.yama.ptrace_scope is {scope}" if scope else "a container or seccomp forbids it"
            what = f"{name} does not allow ptrace ({error}; {why})"
            hint = "gdb and py-spy cannot show where a task hangs; a site allows it by kernel.yama.ptrace_scope = 1"
            return Finding(Level.WARNING, "ptrace", what, hint)
    return Finding(Level.OK, "ptrace", "processes may trace their children (gdb, py-spy)")


def _proxies(each: Each) -> Finding:
    found = {name: record["proxies"] for name, record in each.items() if record["proxies"]}
    if not found:
        return Finding(Level.OK, "proxies", "no proxy variables are set")
    name, variables = next(iter(found.items()))
    what = f"{some(variables)} {'is' if len(variables) == 1 else 'are'} set on {name}"
    return Finding(Level.OK, "proxies", f"{what}; gridtf keeps gRPC between tasks away from proxies")


def _cpus(each: Each) -> Finding:
    shares: dict[str, list[str]] = {}
    for name, record in each.items():
        shares.setdefault(f"{record['cpus'][0]} of {counted(record['cpus'][1], 'CPU')}", []).append(name)
    texts = [f"{share} ({some(names, most=4)})" for share, names in shares.items()]
    return Finding(Level.OK, "cpus", f"a task may use {some(texts, most=4)}")


def _gpus(probe: Probe, each: Each) -> tuple[list[Finding], list[Setting]]:
    """Nothing where no GPU was requested."""
    check = "gpus.variable"
    wanted = [(name, record, gpus) for (name, record), gpus in zip(each.items(), probe.gpus, strict=True) if gpus]
    if not wanted:
        return [], []
    texts, claimed = [], []
    for name, record, gpus in wanted:
        variables = record["variables"]
        read = [key for key in variables if key == probe.gpu_variable or _GRANTING.fullmatch(key)]
        if granting := [key for key in read if len(listed(variables[key])) >= gpus]:
            text = f"{granting[0]}={variables[granting[0]]} on {name}"
            devices = len(record["devices"])
            more = f" (where the job may use all {devices})" if devices > len(listed(variables[granting[0]])) else ""
            texts.append(text + more)
            continue
        if unknown := next((key for key, text in variables.items() if _may_grant(key, text, gpus)), None):
            what = f"{unknown}={variables[unknown]} on {name} looks like the grant of {counted(gpus, 'GPU')}"
            hint = f"write gpu_variable = {toml(unknown)}; until then gridtf claims GPUs under locks"
            return [Finding(Level.WARNING, check, what, hint)], [Setting("gpu_variable", unknown, "lists granted GPUs")]
        claimed.append(name)
    granted = f"GPUs are granted by {some(texts, most=4)}" if texts else ""
    locks = f"no variable grants GPUs on {some(claimed, most=4)}: gridtf claims them under locks" if claimed else ""
    return [Finding(Level.OK, check, "; ".join(filter(None, (granted, locks))))], []


def _may_grant(key: str, text: str, gpus: int) -> bool:
    devices = listed(text)
    same = len(devices) == gpus and all(_DEVICE.fullmatch(device) for device in devices)
    return same and not _AMOUNTS.search(key) and not _GRANTING.fullmatch(key)
