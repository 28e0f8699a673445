"""The configuration of the Slurm test bed (slurm.conf(5), gres.conf(5), cgroup.conf(5)), pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .view import DISK, LOG

GPU_HOSTS = ("n1", "n2", "n3", "n4")
CPU_HOSTS = ("c1",)
NODES = (*GPU_HOSTS, *CPU_HOSTS)
CONTROLLER = "ctl"
ADDRESSES = {
    CONTROLLER: "10.81.0.1",
    "login": "10.81.0.2",
    **{host: f"10.81.0.{number}" for number, host in enumerate(GPU_HOSTS, start=11)},
    **{host: f"10.81.0.{number}" for number, host in enumerate(CPU_HOSTS, start=21)},
}
CPUS = 8
CONTROLLER_PORT = 6817
GPUS = 4
DEVICE = "/run/testbed/gpu"  # and the GPU's number
CONF = "/etc/slurm/slurm.conf"
_LINES = ("nodename", "partitionname", "downnodes", "nodeset")  # keys that stand once a line, not once a file

_SETTINGS = {
    "ClusterName": "testbed",
    "SlurmctldHost": f"{CONTROLLER}({ADDRESSES[CONTROLLER]})",
    "SlurmUser": "root",
    "SlurmdUser": "root",
    "AuthType": "auth/munge",
    "CredType": "cred/munge",
    # a requeued job may start again only when its old credential has expired; by default that is after 2 minutes
    "AuthInfo": "cred_expire=10",
    "SlurmctldPort": str(CONTROLLER_PORT),
    "StateSaveLocation": f"{DISK}/state",
    "SlurmdSpoolDir": f"{DISK}/spool",
    "SlurmctldPidFile": "/run/slurmctld.pid",
    "SlurmdPidFile": "/run/slurmd.pid",
    "SlurmctldLogFile": f"{LOG}/slurmctld.log",
    "SlurmdLogFile": f"{LOG}/slurmd.%n.log",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core_Memory",
    "DefMemPerCPU": "500",
    "GresTypes": "gpu",
    "SlurmdParameters": "config_overrides",  # 8 CPUs a host, however many there are
    "PropagateResourceLimits": "NONE",
    "MpiDefault": "none",
    "ReturnToService": "2",
    "SlurmctldTimeout": "30",
    # short, so that a power cut is noticed soon. Seen with 8 s on a busy machine: together with a host without power,
    # another one of its job was taken for lost
    "SlurmdTimeout": "20",
    "MessageTimeout": "5",
    "TCPTimeout": "2",
    "KillWait": "15",
    "MinJobAge": "300",
    "InactiveLimit": "0",
    # long: a host that is slow to end processes would be drained, perhaps when the next job waits for it
    "UnkillableStepTimeout": "600",
    "JobRequeue": "1",
    "TreeWidth": "64",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "batch_sched_delay=0,sched_interval=2,bf_interval=2,sched_min_interval=0",
}

_PARTITIONS = (
    ("gpu", GPU_HOSTS, "Default=YES MaxTime=7-00:00:00 PriorityTier=10 PreemptMode=OFF"),
    ("cpu", CPU_HOSTS, "MaxTime=7-00:00:00 PriorityTier=10 PreemptMode=OFF"),
    ("short", GPU_HOSTS, "MaxTime=30 PriorityTier=10 PreemptMode=OFF"),
    ("scavenge", GPU_HOSTS, "MaxTime=7-00:00:00 PriorityTier=1 PreemptMode=CANCEL"),
)

_CGROUP_SETTINGS = {"ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/cgroup,task/affinity"}


def files(*, cgroups: bool, extra: Mapping[str, str], options: Sequence[str], version: str = "") -> Mapping[str, str]:
    """File name in /etc/slurm -> text. options: KEY=VALUE lines that override those here and in extra, or are added;
    HOST.KEY=VALUE of a node."""
    hosts = _nodes(options)
    single, lines = _sort([option for option in options if option.partition(".")[0] not in hosts])
    settings = {**_SETTINGS, **(_CGROUP_SETTINGS if cgroups else {}), **extra}
    for key in list(settings):
        if key.lower() in single:
            del settings[key]
    text = [f"{key}={value}" for key, value in settings.items()]
    text += [f"{key}={value}" for key, value in single.values()]
    text += [" ".join(f"{key}={value}" for key, value in values.items()) for values in hosts.values()]
    text += [f"PartitionName={name} Nodes={','.join(hosts)} State=UP {more}" for name, hosts, more in _PARTITIONS]
    text += lines
    return {
        "slurm.conf": "\n".join(text) + "\n",
        "gres.conf": "\n".join(["AutoDetect=off", *(line for values in hosts.values() for line in _gres(values))])
        + "\n",
        # 20.11 knows no other version of control groups, and refuses the key
        "cgroup.conf": f"{'' if version == '20.11' else 'CgroupPlugin=cgroup/v1'}\nCgroupMountpoint=/sys/fs/cgroup\n"
        f"ConstrainDevices={'yes' if cgroups else 'no'}\nConstrainCores=no\n"
        f"ConstrainRAMSpace={'yes' if cgroups else 'no'}\n",
    }


def _nodes(options: Sequence[str]) -> dict[str, dict[str, str]]:
    """The line of slurm.conf for each host, as its keys and values: ``n1.Feature=ib`` adds to that of n1."""
    made = {}
    for host in NODES:
        size = {"CPUs": str(CPUS), "Boards": "1", "SocketsPerBoard": "1", "CoresPerSocket": str(CPUS)}
        made[host] = {
            "NodeName": host,
            "NodeAddr": ADDRESSES[host],
            **size,
            "ThreadsPerCore": "1",
            "RealMemory": "16000",
        }
        if host in GPU_HOSTS:
            made[host]["Gres"] = f"gpu:{GPUS}"
        made[host]["State"] = "UNKNOWN"
    for option in options:
        host, dot, rest = option.partition(".")
        if dot and host in made:
            key, _, value = rest.partition("=")
            made[host][key] = value
    return made


def _gres(values: Mapping[str, str]) -> list[str]:
    """The lines of gres.conf for a node: its Gres may be ``gpu:4``, or ``gpu:a100:2,gpu:1g.10gb:2`` with types."""
    lines = []
    first = 0
    for part in filter(None, values.get("Gres", "").split(",")):
        *kind, count = part.split(":")[1:]
        last = first + int(count) - 1
        kinds = f" Type={kind[0]}" if kind else ""
        lines.append(f"NodeName={values['NodeName']} Name=gpu{kinds} File={DEVICE}[{first}-{last}]\n")
        first = last + 1
    return lines


def _sort(options: Sequence[str]) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Those that stand once a file, by lower-case key (the last one counts), and those that stand once a line."""
    single: dict[str, tuple[str, str]] = {}
    lines = []
    for option in options:
        key, _, value = option.partition("=")
        if key.lower() in _LINES:
            lines.append(option)
        else:
            single[key.lower()] = (key, value)
    return single, lines
