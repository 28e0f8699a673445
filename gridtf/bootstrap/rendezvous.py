"""What the hosts of an attempt agree on: the plan, ports, host records -> the rendezvous file -> TF_CONFIG.

Every host writes one record with its ports; the launcher merges the records into one file, which every host reads. All
files carry the attempt's nonce, so files of an earlier attempt count as absent.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
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
from gridtf.values import Value, as_dict

_CLUSTER = ',\n "cluster": '  # no JSON string can hold this: a newline in one is escaped

GPU_SHARE = 0.8  # of start_timeout, for which a host or a process waits for its GPUs before it publishes its record


class Rendezvous(Value):
    """What all tasks agree on.

    Attributes:
        text: The cluster as JSON, which is copied into TF_CONFIG: most agents need not parse it.
        master_addr: MASTER_ADDR for all tasks.
        master_port: MASTER_PORT for all tasks.
        outside: Task type -> host:port in index order, of tasks that are not in the cluster, such as the evaluator.
    """

    text: str
    master_addr: str
    master_port: int
    outside: Mapping[str, Sequence[str]] = {}

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

    def config(self, task_type: str, index: int, *, alone: bool = False) -> str | None:
        """TF_CONFIG of one task; None when it is too long for an environment variable.

        The TF_CONFIG of a task outside the cluster has its own type as well, since TensorFlow looks each task up in the
        cluster of its TF_CONFIG.

        Args:
            task_type: The type of the task.
            index: Its index.
            alone: Whether the TF_CONFIG of a task outside the cluster has the cluster only.
        """
        if len(self.text) > LONGEST_VARIABLE:
            return None
        text = self.text
        if task_type in self.outside and not alone:
            text = json.dumps({**self.cluster, task_type: self.outside[task_type]})
        config = f'{{"cluster": {text}, "task": {{"type": "{task_type}", "index": {index}}}}}'
        return config if len(f"TF_CONFIG={config}".encode()) <= LONGEST_VARIABLE else None


class Collector:
    """Gathers the records of the expected hosts, each read once.

    Args:
        attempt: The attempt.
        nonce: Its nonce.
        hosts: The names of the hosts, or of the ranks that join.
        kind: The type of their records, one of recordtypes.

    Attributes:
        records: Host -> its record.
        missing: File name -> host, for the records that are still missing.
    """

    def __init__(self, attempt: Attempt, nonce: str, hosts: Iterable[str], kind: Any = recordtypes.HostRecord) -> None:
        self._kind = kind
        self._attempt = attempt
        self._nonce = nonce
        self.records: dict[str, Record] = {}
        self.missing = {attempt.host_record(host).name: host for host in hosts}

    def poll(self) -> bool:
        """Read the records that have been written since the last call.

        Returns:
            Whether no record is missing any more.

        Raises:
            RunDirError: A record cannot be read, or is damaged.
        """
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
    """The rendezvous of tasks that each published a record of their own.

    Args:
        tasks: All tasks of the job, in rank order.
        records: The record of each task, in the same order.

    Raises:
        RendezvousError: A port is missing.
    """
    addressed = [(task, record["address"], record["port"]) for task, record in zip(tasks, records, strict=True)]
    return _meeting(addressed, records[0])


def _meeting(addressed: Sequence[tuple[PlacedTask, str, object]], leader: Record) -> Rendezvous:
    cluster: dict[str, list[str]] = {}
    outside: dict[str, list[str]] = {}
    for task, address, port in addressed:
        if not isinstance(port, int) or not 0 < port < 65536:
            raise RendezvousError(f"host {task.host} published no port for {task.name}: {port!r}")
        (cluster if task.in_cluster else outside).setdefault(task.type, []).append(host_port(address, port))
    return Rendezvous(json.dumps(cluster), leader["address"], leader.get("master_port") or 0, outside)


def port_of(meeting: Rendezvous, task: PlacedTask) -> int:
    """The port of a task."""
    members = (meeting.cluster if task.in_cluster else meeting.outside)[task.type]
    return int(members[task.index].rpartition(":")[2])


def host_port(address: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
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
    """Read the rendezvous file. The cluster, which can be large, is not parsed yet.

    Args:
        attempt: The attempt.
        nonce: Its nonce.

    Returns:
        None while the file does not exist, or is another attempt's.

    Raises:
        RunDirError: The file cannot be read, or is damaged.
    """
    head, mark, rest = (read_text(attempt.rendezvous, own=True) or "").partition(_CLUSTER)
    if not mark or not rest.endswith("}\n"):
        return None
    record = parsed(head + "}", recordtypes.Meeting, attempt.rendezvous, nonce)
    if record is None:
        return None
    return Rendezvous(rest[: -len("}\n")], record["master_addr"], record["master_port"], record["outside"])


# --- the plan of an attempt

FORMAT = 2


class AttemptPlan(Value):
    """What the launcher decided and every agent reads.

    Attributes:
        attempt: The attempt.
        nonce: Its nonce, which distinguishes its records from those of other attempts.
        job_id: The scheduler's id of the job.
        spec: The specification of the job.
        request: What the job requests of its scheduler, resolved from the specification.
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
        tasks: dict[str, list[PlacedTask]] = {}
        for task in self.tasks:
            tasks.setdefault(task.host, []).append(task)
        return tasks

    @cached_property
    def world_size(self) -> int:
        """WORLD_SIZE: the number of tasks that have a rank."""
        return sum(task.rank is not None for task in self.tasks)

    def write(self) -> None:
        """Write plan.json.

        Raises:
            RunDirError: The file cannot be written.
        """
        record: Record = {
            "format": FORMAT,
            "job": {"id": self.job_id, "name": self.spec.title, "scheduler": self.request.scheduler},
            "attempt": self.attempt.number,
            "nonce": self.nonce,
            "hosts": self.hosts,
            "tasks": [as_dict(task) for task in self.tasks],
            "python": self.python,
            "cwd": str(self.cwd),
            "spec": self.spec.to_dict(),
            "request": self.request.to_dict(in_job=True),
        }
        # readable by its owner alone: the job's variables, which may hold keys, are in it
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
        tasks=tuple(PlacedTask(**task) for task in record["tasks"]),
        python=record["python"],
        cwd=Path(record["cwd"]),
    )


# --- reserved ports: bound with SO_REUSEPORT, without listening, before and while TensorFlow serves on them.
# With TF_GRPC_REUSE_PORT=1 TensorFlow binds with SO_REUSEPORT as well, so it can share the port with the holder; other
# programs cannot. A holder that does not listen receives no connections.


class PortHolder:
    """Holds reserved ports until it is closed. Each host has one holder, so that no port is reserved twice."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def reserve(self) -> int:
        """Reserve a port: from now on only this user can bind it, and only with SO_REUSEPORT.

        Returns:
            The number of the port.

        Raises:
            GridtfError: No port can be reserved.
        """
        held = _bound()
        port = int(held.getsockname()[1])
        self._held[port] = held
        return port

    def release(self, port: int) -> None:
        """Release a port, if it is held, for a program that does not share ports (MASTER_PORT)."""
        held = self._held.pop(port, None)
        if held is not None:
            held.close()

    def close(self) -> None:
        """Release all ports."""
        for port in list(self._held):
            self.release(port)

    def filenos(self) -> list[int]:
        """The descriptors of the sockets, for a forked process that holds the ports instead of this one."""
        return [held.fileno() for held in self._held.values()]

    def __enter__(self) -> PortHolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bound() -> socket.socket:
    """A socket bound to the wildcard address of both IPv6 and IPv4, or of IPv4 alone where IPv6 is not available."""
    problem: OSError | None = None
    for family in (socket.AF_INET6, socket.AF_INET):
        held = None
        try:
            held = socket.socket(family, socket.SOCK_STREAM)
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("", 0))  # port 0, also with SO_REUSEPORT, is never a port in use
            return held
        except OSError as error:
            problem = error
            if held is not None:
                held.close()
    raise GridtfError(f"cannot reserve a port on {socket.gethostname()}: {problem}")
