"""Host records -> the rendezvous file of host:port pairs -> TF_CONFIG.

Every host writes one record with its ports; the launcher merges them into one file; every host reads that. All of it
is fenced by the attempt's nonce, so whatever an earlier attempt left behind is as good as absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gridtf.bootstrap.placement import PlacedTask
from gridtf.errors import RendezvousError
from gridtf.jobspec.units import LONGEST_VARIABLE
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, Record, names, parsed, read_record, read_text, write_text

_CLUSTER = ',\n "cluster": '  # no JSON string can hold this: a newline in one is escaped


@dataclass(frozen=True)
class Rendezvous:
    """What all tasks agree on. text: the cluster as JSON; most tasks pass it on in TF_CONFIG and need not parse it.
    outside: task type -> host:port in index order, of those that are not in it, such as the evaluator."""

    text: str
    master_addr: str
    master_port: int
    outside: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        cluster: Mapping[str, Sequence[str]],
        master_addr: str,
        master_port: int,
        outside: Mapping[str, Sequence[str]] | None = None,
    ) -> Rendezvous:
        return cls(json.dumps(cluster), master_addr, master_port, outside or {})

    @cached_property
    def cluster(self) -> Mapping[str, tuple[str, ...]]:
        """Task type -> host:port in index order; members only."""
        try:
            cluster = json.loads(self.text)
        except (ValueError, RecursionError):
            cluster = None
        if recordtypes.check(recordtypes.Cluster)(cluster):
            raise RendezvousError("the cluster in the rendezvous file is damaged", hint="is the file system in order?")
        return {task_type: tuple(members) for task_type, members in cluster.items()}

    def config(self, task_type: str, index: int) -> str | None:
        """TF_CONFIG of one task, as TensorFlow's documentation spells it; None when no environment could hold it.

        Who is outside finds its own type beside the members: TensorFlow looks a task up in the cluster that it is told.
        """
        if len(self.text) > LONGEST_VARIABLE:  # nor need it be tried
            return None
        text = self.text
        if task_type in self.outside:
            text = json.dumps({**self.cluster, task_type: self.outside[task_type]})
        config = f'{{"cluster": {text}, "task": {{"type": "{task_type}", "index": {index}}}}}'
        return config if len(f"TF_CONFIG={config}".encode()) <= LONGEST_VARIABLE else None


class Collector:
    """Gathers the records of the expected hosts, each read once. kind: their type."""

    def __init__(self, attempt: Attempt, nonce: str, hosts: Iterable[str], kind: Any = recordtypes.HostRecord) -> None:
        self._kind = kind
        self._attempt = attempt
        self._nonce = nonce
        self.records: dict[str, Record] = {}
        self.missing = {attempt.host_record(host).name: host for host in hosts}

    def poll(self) -> bool:
        """Read what has come; True when nobody is missing any more."""
        for name in names(self._attempt.hosts):
            host = self.missing.get(name)
            if host is None:
                continue
            record = read_record(self._attempt.hosts / name, self._kind, nonce=self._nonce, listed=True, own=True)
            if record is not None:
                self.records[host] = record
                del self.missing[name]
        return not self.missing


def merge(tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> Rendezvous:
    """The rendezvous of these tasks from their hosts' records. Raises RendezvousError when a port is missing."""
    addressed = [(task, records[task.host]["address"], records[task.host]["ports"].get(task.name)) for task in tasks]
    leader = next((task for task in tasks if task.rank == 0), tasks[0])
    return _meeting(addressed, records[leader.host])


def merge_ranks(tasks: Sequence[PlacedTask], records: Sequence[Record]) -> Rendezvous:
    """As merge, where every task published a record of its own, in the same order as the tasks."""
    addressed = [(task, record["address"], record["port"]) for task, record in zip(tasks, records, strict=True)]
    return _meeting(addressed, records[0])


def _meeting(addressed: Sequence[tuple[PlacedTask, str, object]], leader: Record) -> Rendezvous:
    cluster: dict[str, list[str]] = {}
    outside: dict[str, list[str]] = {}
    for task, address, port in addressed:
        if not isinstance(port, int) or not 0 < port < 65536:
            raise RendezvousError(f"host {task.host} published no port for {task.name}: {port!r}")
        (cluster if task.in_cluster else outside).setdefault(task.type, []).append(host_port(address, port))
    return Rendezvous.of(cluster, leader["address"], leader.get("master_port") or 0, outside)


def host_port(address: str, port: int) -> str:
    """host:port, with the brackets that an IPv6 address needs."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def publish(attempt: Attempt, job_id: str, nonce: str, rendezvous: Rendezvous, **more: object) -> None:
    """Write the rendezvous file: one JSON object, the cluster in a line of its own. more: further entries."""
    head = {
        "job": job_id,
        "attempt": attempt.number,
        "nonce": nonce,
        "master_addr": rendezvous.master_addr,
        "master_port": rendezvous.master_port,
        "outside": rendezvous.outside,
        **more,
    }
    write_text(attempt.rendezvous, f"{json.dumps(head)[:-1]}{_CLUSTER}{rendezvous.text}}}\n")


def read(attempt: Attempt, nonce: str) -> Rendezvous | None:
    """The rendezvous of this attempt; None while it is not there. The cluster, which can be large, is not parsed."""
    head, mark, rest = (read_text(attempt.rendezvous, own=True) or "").partition(_CLUSTER)
    if not mark or not rest.endswith("}\n"):
        return None
    record = parsed(head + "}", recordtypes.Meeting, attempt.rendezvous, nonce)
    if record is None:
        return None
    return Rendezvous(rest[: -len("}\n")], record["master_addr"], record["master_port"], record["outside"])
