"""What the hosts of an attempt agree on: the plan, ports, host records -> the rendezvous file -> TF_CONFIG.

Every host writes one record with its ports; the launcher merges them into one file; every host reads that. All of it
is fenced by the attempt's nonce, so whatever an earlier attempt left behind is as good as absent.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from gridtf.bootstrap.placement import PlacedTask
from gridtf.errors import GridtfError, RendezvousError
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import LONGEST_VARIABLE
from gridtf.run import recordtypes
from gridtf.run.rundir import (
    Attempt,
    Record,
    RunDir,
    is_listed,
    listdir,
    need_kind,
    parsed,
    read_record,
    read_text,
    write_record,
    write_text,
)

_CLUSTER = ',\n "cluster": '  # no JSON string can hold this: a newline in one is escaped


@dataclass(frozen=True)
class Rendezvous:
    """What all tasks agree on.

    Attributes:
        text: The cluster as JSON. It goes into TF_CONFIG as it is, so most agents need not parse it.
        master_addr: MASTER_ADDR for all tasks.
        master_port: MASTER_PORT for all tasks.
        outside: Task type -> host:port in index order, of tasks that are not in the cluster, such as the evaluator.
    """

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
        """Task type -> host:port in index order, of the tasks in the cluster."""
        try:
            cluster = json.loads(self.text)
        except (ValueError, RecursionError):
            cluster = None
        if recordtypes.check(recordtypes.Cluster)(cluster):
            raise RendezvousError("the cluster in the rendezvous file is damaged", hint="is the file system in order?")
        return {task_type: tuple(members) for task_type, members in cluster.items()}

    def config(self, task_type: str, index: int) -> str | None:
        """TF_CONFIG of one task; None when it is too long for an environment variable.

        A task outside the cluster finds its own type in it: TensorFlow looks a task up in the cluster of its TF_CONFIG.
        """
        if len(self.text) > LONGEST_VARIABLE:
            return None
        text = self.text
        if task_type in self.outside:
            text = json.dumps({**self.cluster, task_type: self.outside[task_type]})
        config = f'{{"cluster": {text}, "task": {{"type": "{task_type}", "index": {index}}}}}'
        return config if len(f"TF_CONFIG={config}".encode()) <= LONGEST_VARIABLE else None


class Collector:
    """Gathers the records of the expected hosts, each read once.

    Args:
        attempt: The attempt.
        nonce: Its nonce.
        hosts: The names of the records.
        kind: Their type, one of recordtypes.

    Attributes:
        records: Host -> its record.
        missing: File name -> host, of those that have not come yet.
    """

    def __init__(self, attempt: Attempt, nonce: str, hosts: Iterable[str], kind: Any = recordtypes.HostRecord) -> None:
        self._kind = kind
        self._attempt = attempt
        self._nonce = nonce
        self.records: dict[str, Record] = {}
        self.missing = {attempt.host_record(host).name: host for host in hosts}

    def poll(self) -> bool:
        """Read the records that have come. Returns whether none is missing any more."""
        for name in listdir(self._attempt.hosts):
            host = self.missing.get(name)
            if host is None:
                continue
            record = read_record(self._attempt.hosts / name, self._kind, nonce=self._nonce, listed=True, own=True)
            if record is not None:
                self.records[host] = record
                del self.missing[name]
        return not self.missing


def merge(tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> Rendezvous:
    """The rendezvous of these tasks.

    Args:
        tasks: All tasks of the job.
        records: Host -> its record.

    Raises:
        RendezvousError: A port is missing.
    """
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
    """Write the rendezvous file: one JSON object, with the cluster in a line of its own.

    Args:
        attempt: The attempt.
        job_id: The job's id.
        nonce: The attempt's nonce.
        rendezvous: What to write.
        more: Further entries.

    Raises:
        RunDirError: It cannot be written.
    """
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
    """The rendezvous of this attempt; None while there is none. The cluster, which can be large, is not parsed."""
    head, mark, rest = (read_text(attempt.rendezvous, own=True) or "").partition(_CLUSTER)
    if not mark or not rest.endswith("}\n"):
        return None
    record = parsed(head + "}", recordtypes.Meeting, attempt.rendezvous, nonce)
    if record is None:
        return None
    return Rendezvous(rest[: -len("}\n")], record["master_addr"], record["master_port"], record["outside"])


# --- the plan of an attempt: what the launcher decided and every agent reads

FORMAT = 2


@dataclass(frozen=True)
class AttemptPlan:
    """What the launcher decided and every agent reads.

    Attributes:
        attempt: The attempt.
        nonce: Its nonce, which fences its records off from those of other attempts.
        job_id: The job's id at its scheduler.
        spec: What the user asked for.
        hosts: Name of a host -> the address by which the other hosts reach it.
        tasks: In rank order.
        python: The interpreter of entry functions and served tasks.
        cwd: The working folder of the tasks.
    """

    attempt: Attempt
    nonce: str
    job_id: str
    spec: JobSpec
    request: Request
    hosts: dict[str, str]
    tasks: tuple[PlacedTask, ...]
    python: str
    cwd: Path

    def on(self, host: str) -> list[PlacedTask]:
        """The tasks of one host."""
        return self._by_host.get(host, [])

    @cached_property
    def _by_host(self) -> dict[str, list[PlacedTask]]:
        found: dict[str, list[PlacedTask]] = {}
        for task in self.tasks:
            found.setdefault(task.host, []).append(task)
        return found

    @cached_property
    def world_size(self) -> int:
        """How many tasks have a rank."""
        return sum(task.rank is not None for task in self.tasks)

    def write(self) -> None:
        """Write plan.json. Raises RunDirError."""
        record: Record = {
            "format": FORMAT,
            "job": {"id": self.job_id, "name": self.spec.title, "scheduler": self.request.scheduler},
            "attempt": self.attempt.number,
            "nonce": self.nonce,
            "hosts": self.hosts,
            "tasks": [task.to_dict() for task in self.tasks],
            "python": self.python,
            "cwd": str(self.cwd),
            "spec": self.spec.to_dict(),
            "request": self.request.to_dict(in_job=True),
        }
        # readable by its owner alone: the job's variables are in it, and people keep keys in those
        write_record(self.attempt.plan, record, indent=1 if len(self.tasks) <= 256 else None, mode=0o600)


def read_plan(run: RunDir, number: int, nonce: str) -> AttemptPlan | None:
    """Read plan.json.

    Args:
        run: The run directory.
        number: The number of the attempt.
        nonce: Its nonce.

    Returns:
        None while a listing does not show the file, or it is another attempt's.

    Raises:
        RendezvousError: Another version of gridtf has written it.
        RunDirError: It cannot be read, or is damaged.
    """
    attempt = run.attempt(number)
    if not is_listed(attempt.plan, run.path):
        return None
    record = read_record(attempt.plan, nonce=nonce, listed=True, own=True)
    if record is None:
        return None
    if record.get("format") != FORMAT:
        found, here = record.get("format"), os.uname().nodename
        raise RendezvousError(
            f"the launcher's plan has format {found!r}, the agent on {here} reads {FORMAT}",
            hint="all hosts of a job need the same version of gridtf: install it where all of them see it",
        )
    need_kind(record, recordtypes.Plan, attempt.plan)
    try:
        request = Request.from_dict(record["request"])
    except (ValueError, TypeError, LookupError) as error:
        raise RendezvousError(f"{attempt.plan} holds a request that cannot be read: {error}") from None
    return AttemptPlan(
        attempt=attempt,
        nonce=nonce,
        job_id=record["job"]["id"],
        spec=JobSpec.from_dict(record["spec"]),
        request=request,
        hosts=record["hosts"],
        tasks=tuple(PlacedTask.from_dict(task) for task in record["tasks"]),
        python=record["python"],
        cwd=Path(record["cwd"]),
    )


# --- reserved ports: bound, with SO_REUSEPORT and never listening, until and while TensorFlow serves on them.
# TensorFlow binds with SO_REUSEPORT when TF_GRPC_REUSE_PORT=1, so it can bind beside the holder, while other programs
# cannot. A holder that does not listen takes no connections.


class PortHolder:
    """Holds ports until it is closed. One holder a host, so that no port is handed out twice."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def reserve(self) -> int:
        """Reserve a port: from now on only this user can bind it, and only with SO_REUSEPORT. Raises GridtfError."""
        held = _bound()
        port = int(held.getsockname()[1])
        self._held[port] = held
        return port

    def release(self, port: int) -> None:
        """Release a port, for a program that does not share ports (MASTER_PORT)."""
        held = self._held.pop(port, None)
        if held is not None:
            held.close()

    def close(self) -> None:
        for port in list(self._held):
            self.release(port)

    def filenos(self) -> list[int]:
        """The descriptors, for a process that is to hold the ports instead of this one."""
        return [held.fileno() for held in self._held.values()]

    def __enter__(self) -> PortHolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bound() -> socket.socket:
    """A socket on the wildcard address of IPv6 and IPv4 at once, or of IPv4 alone where there is no IPv6."""
    problem: OSError | None = None
    for family in (socket.AF_INET6, socket.AF_INET):
        try:
            held = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            problem = error
            continue
        try:
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("", 0))  # port 0 with SO_REUSEPORT is still never a port in use
        except OSError as error:
            problem = error
            held.close()
            continue
        return held
    raise GridtfError(f"cannot reserve a port on {socket.gethostname()}: {problem}")
