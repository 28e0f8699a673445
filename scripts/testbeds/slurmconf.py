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
    """File name in /etc/slurm -> text. options: KEY=VALUE lines that override those here and in extra, or are added."""
    single, lines = _sort(options)
    settings = {**_SETTINGS, **(_CGROUP_SETTINGS if cgroups else {}), **extra}
    for key in list(settings):
        if key.lower() in single:
            del settings[key]
    text = [f"{key}={value}" for key, value in settings.items()]
    text += [f"{key}={value}" for key, value in single.values()]
    text += [_node(host) for host in NODES]
    text += [f"PartitionName={name} Nodes={','.join(hosts)} State=UP {more}" for name, hosts, more in _PARTITIONS]
    text += lines
    return {
        "slurm.conf": "\n".join(text) + "\n",
        "gres.conf": f"AutoDetect=off\nNodeName={','.join(GPU_HOSTS)} Name=gpu File={DEVICE}[0-{GPUS - 1}]\n",
        # 20.11 knows no other version of control groups, and refuses the key
        "cgroup.conf": f"{'' if version == '20.11' else 'CgroupPlugin=cgroup/v1'}\nCgroupMountpoint=/sys/fs/cgroup\n"
        f"ConstrainDevices={'yes' if cgroups else 'no'}\nConstrainCores=no\n"
        f"ConstrainRAMSpace={'yes' if cgroups else 'no'}\n",
    }


def _node(host: str) -> str:
    gpus = f" Gres=gpu:{GPUS}" if host in GPU_HOSTS else ""
    return (
        f"NodeName={host} NodeAddr={ADDRESSES[host]} CPUs={CPUS} Boards=1 SocketsPerBoard=1 CoresPerSocket={CPUS} "
        f"ThreadsPerCore=1 RealMemory=16000{gpus} State=UNKNOWN"
    )


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
