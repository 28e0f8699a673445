"""What the hosts of an attempt agree on: the plan, ports, host records -> the rendezvous file -> TF_CONFIG.

Every host reports its ports; the launcher merges them into one file, for people and programs, and tells every agent.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType

from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.errors import GridtfError, RendezvousError
from gridtf.host import sockets
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import LONGEST_VARIABLE
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, Record, write_record, write_text
from gridtf.values import Value, as_dict, grouped, of_dict

_CLUSTER = ',\n "cluster": '  # no JSON string can hold this: a newline in one is escaped

GPU_SHARE = 0.8  # of start_timeout, for which a host or a process waits for its GPUs before it publishes its record


class Rendezvous(Value):
    """What all tasks agree on.

    Attributes:
        text: The cluster as JSON, which is copied into TF_CONFIG: most agents need not parse it.
        master_addr: MASTER_ADDR for all tasks.
        master_port: MASTER_PORT for all tasks.
        outside: Task type -> host:port in index order, of tasks that are not in the cluster, such as the evaluator.
        doors: Host -> what the fence of another host needs to know of it: ``door``, ``addresses`` and ``ports``.
    """

    text: str
    master_addr: str
    master_port: int
    outside: Mapping[str, Sequence[str]] = {}
    doors: Mapping[str, Record] = {}

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

    def to_record(self) -> Record:
        """The rendezvous as a message, which rendezvous_of reads."""
        return {name: value for name, value in as_dict(self).items() if value or name != "doors"}

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


def rendezvous_of(record: Record) -> Rendezvous:
    """The rendezvous that a message holds, as Rendezvous.to_record returned it."""
    return of_dict(Rendezvous, record)


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
    doors = {
        host: {"door": record["door"], "addresses": record["addresses"], "ports": sorted(record["ports"].values())}
        for host, record in records.items()
        if _wants_fence(record)
    }
    return _meeting(addressed, records[leader.host]).replace(doors=doors)


def merge_ranks(tasks: Sequence[PlacedTask], records: Sequence[Record]) -> Rendezvous:
    """The rendezvous of tasks that each published a record of their own.

    Args:
        tasks: All tasks of the job, in rank order.
        records: The record of each task, in the same order.

    Raises:
        RendezvousError: A port is missing.
    """
    addressed = [(task, record["address"], record["port"]) for task, record in zip(tasks, records, strict=True)]
    doors = {
        f"rank-{rank}": {"door": 0, "addresses": record["addresses"], "ports": [record["port"]]}
        for rank, record in enumerate(records)
        if _wants_fence(record)
    }
    return _meeting(addressed, records[0]).replace(doors=doors)


def _wants_fence(record: Record) -> bool:
    """Whether the job wants a fence round its ports: there may be none where the kernel of a host has no means."""
    return record.get("fence", "off") != "off" or "unfenced" in record


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
        job_id: The job's id.
        nonce: The attempt's nonce.
        rendezvous: What to write.
        more: Further entries.

    Raises:
        RunDirError: It cannot be written.
    """
    write_text(attempt.rendezvous, text_of(attempt, job_id, nonce, rendezvous, **more))


def text_of(attempt: Attempt, job_id: str, nonce: str, rendezvous: Rendezvous, **more: object) -> str:
    """The text of the rendezvous file; see publish."""
    head = {"job": job_id, "attempt": attempt.number, "nonce": nonce, **rendezvous.to_record(), **more}
    text = head.pop("text")
    return f"{json.dumps(head)[:-1]}{_CLUSTER}{text}}}\n"


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
        key: 64 hexadecimal digits that only the job's agents know, by which they know each other.
        whole: Numbers of hosts and of ranks of the job, where hosts and tasks are those of one host alone.
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
    key: str = ""
    whole: tuple[int, int] | None = None

    def on(self, host: str) -> list[PlacedTask]:
        """The tasks of one host."""
        return self._by_host.get(host, [])

    @cached_property
    def _by_host(self) -> dict[str, list[PlacedTask]]:
        return grouped((task.host, task) for task in self.tasks)

    @property
    def secret(self) -> bytes:
        """The key as bytes."""
        return bytes.fromhex(self.key)

    @cached_property
    def world_size(self) -> int:
        """WORLD_SIZE: the number of tasks that have a rank."""
        return self.whole[1] if self.whole else sum(task.rank is not None for task in self.tasks)

    @property
    def host_count(self) -> int:
        """The number of hosts of the job."""
        return self.whole[0] if self.whole else len(self.hosts)

    def of_host(self, host: str) -> AttemptPlan:
        """The part of the plan that concerns one host."""
        own = {host: self.hosts[host]}
        return self.replace(hosts=own, tasks=tuple(self.on(host)), whole=(self.host_count, self.world_size))

    def write(self) -> None:
        """Write plan.json.

        Raises:
            RunDirError: The file cannot be written.
        """
        # readable by its owner alone: the job's variables, which may hold keys, are in it
        indent = 1 if len(self.tasks) <= 256 else None
        write_record(self.attempt.plan, self.to_record(), indent=indent, mode=0o600)

    def to_record(self) -> Record:
        """The plan as a record, which plan_of reads."""
        return {
            "format": FORMAT,
            "job": {"id": self.job_id, "name": self.spec.title, "scheduler": self.request.scheduler},
            "attempt": self.attempt.number,
            "nonce": self.nonce,
            "hosts": self.hosts,
            "tasks": [as_dict(task) for task in self.tasks],
            "python": self.python,
            "cwd": str(self.cwd),
            "key": self.key,
            "spec": self.spec.to_dict(),
            "request": self.request.to_dict(in_job=True),
            **({"whole": list(self.whole)} if self.whole else {}),
        }


def plan_of(record: Record, attempt: Attempt) -> AttemptPlan:
    """The plan that a record holds.

    Args:
        record: As AttemptPlan.to_record returned it, of the kind recordtypes.Plan.
        attempt: Its attempt.

    Raises:
        RendezvousError: Another version of gridtf has made it, or it is damaged.
    """
    if record.get("format") != FORMAT:
        found, here = record.get("format"), os.uname().nodename
        raise RendezvousError(
            f"the launcher's plan has format {found!r}, the agent on {here} reads {FORMAT}",
            hint="all hosts of a job need the same version of gridtf: install it where all of them see it",
        )
    try:
        request = recordtypes.read(Request, record["request"])
        tasks = tuple(recordtypes.read(PlacedTask, task) for task in record["tasks"])
    except ValueError as error:
        raise RendezvousError(f"{attempt.plan} holds a request that cannot be read, or a task: {error}") from None
    return AttemptPlan(
        attempt=attempt,
        nonce=record["nonce"],
        job_id=record["job"]["id"],
        spec=JobSpec.from_dict(record["spec"]),
        request=request,
        hosts=record["hosts"],
        tasks=tasks,
        python=record["python"],
        cwd=Path(record["cwd"]),
        key=record.get("key", ""),
        whole=tuple(record["whole"]) if "whole" in record else None,
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
        try:
            held = sockets.bound()
        except OSError as error:
            raise GridtfError(f"cannot reserve a port on {socket.gethostname()}: {error}") from None
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

    def held(self, ports: Collection[int]) -> list[socket.socket]:
        """The sockets that hold these ports."""
        return [self._held[port] for port in ports]

    def filenos(self) -> list[int]:
        """The descriptors of the sockets, for a forked process that holds the ports instead of this one."""
        return [held.fileno() for held in self._held.values()]

    def __enter__(self) -> PortHolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
