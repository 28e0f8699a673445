"""The configuration of the Grid Engine test bed, as a qmaster with classic spooling keeps it, pure.

Its files hold what `qconf -s…` shows of an object: bootstrap(5), hostgroup(5), project(5), and the manual pages that
sgedefaults.py names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from .errors import TestbedError
from .sgedefaults import CLUSTER, ENVIRONMENT, HOST, QUEUE, SCHEDULER
from .view import DISK

NODES = ("n1", "n2", "n3", "n4")
MASTER = "ctl"
ADDRESSES = {
    MASTER: "10.82.0.1",
    "login": "10.82.0.2",
    **{host: f"10.82.0.{number}" for number, host in enumerate(NODES, start=11)},
}
SLOTS = 4
GPUS = 2
ROOT = "/mnt/sge"
CELL = "default"
ARCH = "lx-amd64"
COMMON = f"{ROOT}/{CELL}/common"
MASTER_PORT = 6444
MASTER_SPOOL = f"{DISK}/qmaster"
EXECD_SPOOL = f"{DISK}/execd"

_Attributes = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Engine:
    """What differs from one Grid Engine to another.

    Attributes:
        admin: The user whose files a cell's are.
        cluster: Attributes of the cluster that not all have, with values.
        environment: All attributes of a parallel environment, with values.
    """

    admin: str = "sgeadmin"
    cluster: Mapping[str, str] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=lambda: ENVIRONMENT)


_BOOTSTRAP = {
    "default_domain": "none",
    "ignore_fqdn": "false",
    "spooling_method": "classic",
    "spooling_lib": "libspoolc",
    "spooling_params": f"{COMMON};{MASTER_SPOOL}",
    "binary_path": f"{ROOT}/bin",
    "qmaster_spool_dir": MASTER_SPOOL,
    "security_mode": "none",
    "listener_threads": "2",
    "worker_threads": "2",
    "reader_threads": "2",  # Open Cluster Scheduler's; others ignore it
    "scheduler_threads": "1",
}

_CLUSTER = {
    "execd_spool_dir": EXECD_SPOOL,
    "mailer": "/bin/true",
    # short, so that a power cut is noticed after 20 seconds
    "load_report_time": "00:00:05",
    "max_unheard": "00:00:20",
    "loglevel": "log_info",  # the level at which the qmaster logs that an execd has registered
    "execd_params": "ENABLE_ADDGRP_KILL=TRUE,NOTIFY_KILL=default",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 joblog=false sharelog=00:00:00",
}

_SCHEDULER = {
    "schedule_interval": "0:0:1",
    "queue_sort_method": "1",  # by seq_no; spooled as a number
    "job_load_adjustments": "NONE",
    "flush_submit_sec": "1",
    "flush_finish_sec": "1",
}

# name -> allocation_rule, control_slaves, job_is_first_task, accounting_summary
_ENVIRONMENTS: dict[str, tuple[str, bool, bool, bool]] = {
    "rr": ("$round_robin", True, False, False),
    "fill": ("$fill_up", True, False, False),
    "two": ("2", True, False, False),
    "one": ("1", True, False, False),
    "rrj": ("$round_robin", True, True, False),
    "fillj": ("$fill_up", True, True, False),
    "rrs": ("$round_robin", True, False, True),
    "loose": ("$round_robin", False, False, False),
    "smp": ("$pe_slots", True, True, False),
    "idle": ("$round_robin", True, False, False),  # no queue carries it
}
_CARRIED = " ".join(name for name in _ENVIRONMENTS if name != "idle")

_QUEUE = {
    "hostlist": "@allhosts",
    "load_thresholds": "NONE",  # no host is ever too busy: they all share this machine
    "pe_list": "rr",
    "slots": str(SLOTS),
    "shell": "/bin/bash",
    "shell_start_mode": "unix_behavior",
    "notify": "00:00:15",
    "s_core": "0",
}
# filled in this order, on n1 first; a host has SLOTS slots in all of them together, so that a job that names no queue
# comes to all.q
_QUEUES = {
    "all.q": {"pe_list": _CARRIED},
    "short.q": {"hostlist": "n1 n2", "h_rt": "0:10:0"},
    "csh.q": {"shell": "/bin/tcsh", "shell_start_mode": "posix_compliant"},
    # requested together (-q left.q,right.q), they give a job two queues on a host
    "left.q": {"slots": str(SLOTS // 2), "pe_list": "rr fill rrj"},
    "right.q": {"slots": str(SLOTS // 2), "pe_list": "rr fill rrj"},
}

# GPUs, as sites count them: name -> type, consumable
_RESOURCES = {"gpu": ("INT", "YES"), "gpushare": ("DOUBLE", "YES"), "gpujob": ("INT", "JOB")}
_UNKNOWN = "1024"  # state of a queue on a host that has not registered yet
_NOTHING_SENT = {"pending_signal": "0", "pending_signal_del": "0"}
_PROJECT = {"name": "ml", "oticket": "0", "fshare": "0", "acl": "NONE", "xacl": "NONE"}


# what --option can change: name -> the file it is kept in
_PLACES = {
    "global": "common/configuration",
    "scheduler": "common/sched_configuration",
    **{name: f"spool/pe/{name}" for name in _ENVIRONMENTS},
    **{name: f"spool/cqueues/{name}" for name in _QUEUES},
    **{name: f"spool/exec_hosts/{name}" for name in NODES},
}


def files(options: Sequence[str], engine: Engine | None = None) -> Mapping[str, str]:
    """common/FILE (below COMMON) and spool/FILE (below MASTER_SPOOL) -> text.

    options: NAME.ATTRIBUTE=VALUE for a queue, parallel environment or host, ATTRIBUTE=VALUE for the configuration of
    the cluster or of the scheduler. TestbedError for one that there is not.
    """
    engine = engine or Engine()
    objects = _objects(engine)
    for option in options:
        place, _, value = option.partition("=")
        name, key = _find(place, objects)
        objects[name][key] = value
    return {
        "common/bootstrap": _text({"admin_user": engine.admin, **_BOOTSTRAP}),
        "common/act_qmaster": f"{MASTER}\n",
        "common/cluster_name": "testbed\n",
        "spool/managers": "".join(f"{name}\n" for name in dict.fromkeys(("root", engine.admin))),
        "spool/jobseqnum": "0\n",
        "spool/arseqnum": "0\n",
        **{f"spool/centry/{name}": _text(_resource(name)) for name in _RESOURCES},
        "spool/projects/ml": _text(_PROJECT),
        "spool/hostgroups/@allhosts": _text({"group_name": "@allhosts", "hostlist": " ".join(NODES)}),
        **{f"spool/exec_hosts/{name}": _text(_host(name, "NONE")) for name in ("global", "template")},
        **{f"spool/submit_hosts/{host}": _text({"hostname": host}) for host in ADDRESSES},
        **{f"spool/admin_hosts/{host}": _text({"hostname": host}) for host in ADDRESSES},
        **_instances(objects),
        **{_PLACES[name]: _text(attributes) for name, attributes in objects.items()},
    }


def _objects(engine: Engine) -> dict[str, _Attributes]:
    """All that options can change."""
    return {
        "global": {**CLUSTER, **engine.cluster, **_CLUSTER},
        "scheduler": {**SCHEDULER, **_SCHEDULER},
        **{name: _environment(name, engine.environment) for name in _ENVIRONMENTS},
        **{name: _queue(name, 10 * place) for place, name in enumerate(_QUEUES)},
        **{name: _host(name, ",".join([f"slots={SLOTS}", *(f"{gpu}={GPUS}" for gpu in _RESOURCES)])) for name in NODES},
    }


def _instances(objects: Mapping[str, _Attributes]) -> dict[str, str]:
    """A queue is on a host only where the qmaster knows how it stands there."""
    return {
        f"spool/qinstances/{name}/{host}": _text(
            {"qname": name, "hostname": host, "state": _UNKNOWN, **_NOTHING_SENT, "version": "1"}
        )
        for name in _QUEUES
        for host in _hosts(objects[name])
    }


def _find(place: str, objects: Mapping[str, _Attributes]) -> tuple[str, str]:
    """rr.slots -> (rr, slots), max_unheard -> (global, max_unheard)."""
    name, _, key = place.rpartition(".")
    candidates = [name] if name else ["global", "scheduler"]
    for candidate in candidates:
        if key in objects.get(candidate, {}):
            return candidate, key
    if name not in objects and name:
        hint = f"there are: {', '.join(objects)}"
    else:
        hint = f"there are: {', '.join(key for one in candidates for key in objects[one])}"
    raise TestbedError(f"--option {place}: Grid Engine has no such attribute", hint=hint, code=2)


def _queue(name: str, first: int) -> _Attributes:
    """first: the smallest seq_no of the queue."""
    own = {"qname": name, **QUEUE, **_QUEUE, **_QUEUES[name]}
    order = ",".join(f"[{host}={first + number}]" for number, host in enumerate(_hosts(own)))
    return {**own, "seq_no": f"{first},{order}"}


def _hosts(queue: _Attributes) -> Sequence[str]:
    return NODES if queue["hostlist"] == "@allhosts" else queue["hostlist"].split()


def _environment(name: str, attributes: Mapping[str, str]) -> _Attributes:
    rule, *flags = _ENVIRONMENTS[name]
    keys = ("control_slaves", "job_is_first_task", "accounting_summary")
    own = {key: str(flag).upper() for key, flag in zip(keys, flags, strict=True)}
    return {"pe_name": name, **attributes, "slots": "999", "allocation_rule": rule, **own}


def _resource(name: str) -> _Attributes:
    kind, consumable = _RESOURCES[name]
    counted = {"relop": "<=", "requestable": "YES", "consumable": consumable, "default": "0", "urgency": "0"}
    return {"name": name, "shortcut": name, "type": kind, **counted}


def _host(name: str, complex_values: str) -> _Attributes:
    return {"hostname": name, **HOST, "complex_values": complex_values}


def _text(attributes: Mapping[str, str]) -> str:
    return "".join(f"{key:24} {value}\n" for key, value in attributes.items())
