"""Which task runs on which host, with how many GPUs and CPUs. Pure: allocation and request in, tasks out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

from gridtf.errors import PlacementError
from gridtf.jobspec.request import Request
from gridtf.jobspec.tasktypes import LEADERS, TASK_TYPES
from gridtf.jobspec.units import MOST
from gridtf.schedulers.api import Allocation, Host
from gridtf.text import counted


@dataclass(frozen=True)
class PlacedTask:
    """One task and its place.

    Attributes:
        type: Its type, such as ``worker``.
        index: Its index among the tasks of its type.
        host: The host, as the allocation calls it.
        gpus: How many GPUs it gets.
        cpus: How many CPUs it should use; None where that is not known.
        local_rank: Its number among the training tasks of its host; None for a task that does not train.
        rank: Its number among the training tasks of the job; None for a task that does not train.
        served: Whether gridtf runs a plain TensorFlow server in it.
        in_cluster: Whether it is in TensorFlow's cluster.
    """

    type: str
    index: int
    host: str
    gpus: int
    cpus: int | None
    local_rank: int | None
    rank: int | None
    served: bool
    in_cluster: bool

    @property
    def name(self) -> str:
        return f"{self.type}:{self.index}"

    @property
    def trains(self) -> bool:
        """Whether the end of the training depends on this task."""
        return TASK_TYPES[self.type].trains and not self.served

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PlacedTask:
        return cls(**data)


def place(allocation: Allocation, request: Request) -> tuple[PlacedTask, ...]:
    """Place all tasks of the job.

    Training tasks are spread as evenly as the hosts' room allows and numbered host by host. A ps or an evaluator takes
    no GPU: these are dealt out in turn, beginning with the hosts that have the fewest tasks. Those with a partition of
    their own go to its hosts, others to those of the training tasks.

    Returns:
        The tasks, in rank order.

    Raises:
        PlacementError: They do not fit; the message has the numbers.
    """
    everywhere = sorted(allocation.hosts, key=lambda host: host.component)
    hosts = [host for host in everywhere if not host.component]
    gpus = int(any(host.gpus for host in hosts))  # of a task, where the user does not choose
    leader = next((name for name in LEADERS if request.role(name).count), None)
    start, room = _seats(hosts, leader, gpus, request)
    workers = request.role("worker").count
    if workers is None:
        workers = sum(room) or (0 if leader else 1)  # no room at all: the error that follows names what is wanted
    if leader is not None and start is None:
        raise _too_few(hosts, leader, workers, 0, gpus, request)
    if workers > sum(room):
        raise _too_few(hosts, leader, workers, sum(room) + (leader is not None), gpus, request)
    _refuse_many(workers, request)
    load = [int(number == start) for number in range(len(everywhere))]
    members = [] if leader is None else [(leader, 0)]
    homes = [] if start is None else [start]
    for number, share in enumerate(_even_shares(workers, room, load)):
        load[number] += share
        homes += [number] * share
    members += [("worker", index) for index in range(workers)]
    others = [
        (row.name, index)
        for row in TASK_TYPES.values()
        if not row.takes_gpu
        for index in range(request.role(row.name).count or 0)
    ]
    turn = sorted(range(len(hosts)), key=lambda number: load[number])
    places: dict[str, Iterator[int]] = dict.fromkeys((name for name, _ in others), cycle(turn))
    # this machine, or an allocation made by hand, has no partitions to choose from
    if len(hosts) < len(everywhere):
        places.update(_own_places(everywhere, request))
    for name, _ in others:
        home = next(places[name])
        load[home] += 1
        homes.append(home)
    return tuple(_placed([*members, *others], homes, everywhere, gpus, request))


def _refuse_many(workers: int, request: Request) -> None:
    """A typing error, or an absurd variable such as 10^8 tasks a host, must not take hours."""
    total = workers + sum(request.role(name).count or 0 for name in TASK_TYPES if name != "worker")
    if total > MOST:
        raise PlacementError(
            f"{counted(total, 'task')} are more than {MOST}, the most that there can be",
            hint="is it meant? see --workers and --tasks-per-node, or what the scheduler says of tasks a host",
        )


def _own_places(hosts: Sequence[Host], request: Request) -> dict[str, Iterator[int]]:
    """Task type -> its places, as indices of hosts, for the types that have a partition of their own; types with the
    same partition share them. Raises PlacementError, with the numbers, when there are too few."""
    found: dict[str, Iterator[int]] = {}
    for component, part in enumerate(request.components[1:], 1):
        slots = {number: host.slots for number, host in enumerate(hosts) if host.component == component}
        wanted = {name: request.role(name).count or 0 for name in part.types}
        total, room = sum(wanted.values()), sum(slots.values())
        if total > room:
            there = sorted(set(slots.values()) or {0})
            size = str(there[0]) if len(there) == 1 else f"{there[0]} to {there[-1]}"
            raise PlacementError(
                f"{counted(total, 'task')} on partition {part.partition} {'does' if total == 1 else 'do'} not fit into "
                f"{counted(len(slots), 'host')} with {size} slot{'' if size == '1' else 's'}"
                f"{' each' if len(slots) > 1 else ''} (room for {room})",
                why=f"asked for: {' + '.join(f'{number} {name}' for name, number in wanted.items())}",
                hint=f"ask for as many tasks in its component of the job, or leave out tasks.{part.types[0]}.partition",
            )
        found.update(dict.fromkeys(part.types, _level_by_level(slots)))
    return found


def _level_by_level(slots: Mapping[int, int]) -> Iterator[int]:
    """Every host with a slot, then every host with a second one, and so on."""
    for level in range(max(slots.values(), default=0)):
        yield from (number for number, free in slots.items() if free > level)


def _placed(
    members: Sequence[tuple[str, int]],
    homes: Sequence[int],
    hosts: Sequence[Host],
    gpus: int,
    request: Request,
) -> list[PlacedTask]:
    # Some tasks have a fixed number of CPUs, the others share what is left of their host's.
    fixed = [request.role(task_type).cpus for task_type, _ in members]
    given, sharers = [0] * len(hosts), [0] * len(hosts)
    for count, home in zip(fixed, homes, strict=True):
        given[home] += count or 0
        sharers[home] += count is None
    placed = []
    rank = 0
    local = [0] * len(hosts)
    for (task_type, index), home, cpus in zip(members, homes, fixed, strict=True):
        served = request.role(task_type).served
        ranked = TASK_TYPES[task_type].trains and not served
        present = hosts[home].cpus
        if cpus is None and present is not None:
            cpus = max(1, (present - given[home]) // sharers[home])
        placed.append(
            PlacedTask(
                type=task_type,
                index=index,
                host=hosts[home].name,
                gpus=request.gpus_of(task_type, gpus),
                cpus=cpus,
                local_rank=local[home] if ranked else None,
                rank=rank if ranked else None,
                served=served,
                in_cluster=request.role(task_type).in_cluster,
            )
        )
        if ranked:
            rank += 1
            local[home] += 1
    return placed


def _seats(hosts: Sequence[Host], leader: str | None, gpus: int, request: Request) -> tuple[int | None, list[int]]:
    """The leader's host, None where it fits on none; and how many workers fit on each host beside it."""
    room = [_room(host, 0, 0, gpus, request) for host in hosts]
    if leader is None:
        return None, room
    needs = request.gpus_of(leader, gpus)
    # without a GPU of its own, beside workers that take GPUs, it takes no worker's place
    place = int(bool(needs) or not request.gpus_of("worker", gpus))
    fits = [number for number, host in enumerate(hosts) if needs <= (host.gpus or 0) and (needs or host.slots >= place)]
    if not fits:
        return None, room
    beside = {number: _room(hosts[number], needs, place, gpus, request) for number in fits}
    home = min(fits, key=lambda number: room[number] - beside[number])
    return home, [beside[home] if number == home else free for number, free in enumerate(room)]


def _room(host: Host, taken: int, places: int, gpus: int, request: Request) -> int:
    """How many workers fit on this host beside `taken` GPUs and `places` places that are in use."""
    needs = request.gpus_of("worker", gpus)
    if not needs:
        return max(0, host.slots - places)
    room = ((host.gpus or 0) - taken) // needs
    return max(0, min(room, host.slots - places) if request.chosen("tasks_per_node") else room)


def _even_shares(wanted: int, room: Sequence[int], load: Sequence[int]) -> list[int]:
    """Fill the hosts level by level, as the room allows. load: how many tasks each host has already."""
    shares = [0] * len(room)
    level = 0
    free = [number for number, most in enumerate(room) if most]
    while wanted:
        for number in free:
            if wanted and load[number] + shares[number] <= level:
                shares[number] += 1
                wanted -= 1
        free = [number for number in free if shares[number] < room[number]]
        level += 1
    return shares


def _too_few(
    hosts: Sequence[Host], leader: str | None, workers: int, room: int, gpus: int, request: Request
) -> PlacementError:
    """The error, with all the numbers that a user needs to see why."""
    wanted = {**({leader: 1} if leader else {}), **({"worker": workers} if workers else {})}
    total = sum(wanted.values())
    needs = {name: request.gpus_of(name, gpus) for name in wanted}
    some_gpus = any(needs.values())
    there = sorted({(host.gpus or 0) if some_gpus else host.slots for host in hosts} or {0})
    count = str(there[0]) if len(there) == 1 else f"{there[0]} to {there[-1]}"
    each = " each" if len(hosts) > 1 else ""
    unit = ("GPU" if some_gpus else "CPU slot") + ("" if count == "1" else "s")
    limit = request.chosen("tasks_per_node")
    most = f", at most {counted(limit, 'task')} a host" if some_gpus and limit else ""
    if not some_gpus:
        words = [counted(number, name) for name, number in wanted.items()]
        hint = "ask for more hosts or fewer workers, or let tasks share cores with --tasks-per-node"
    else:
        words = [
            f"{counted(number, name)} with {counted(needs[name], 'GPU')}{' each' if number > 1 else ''}"
            for name, number in wanted.items()
        ]
        hint = "ask for more hosts, more GPUs or fewer workers"
    return PlacementError(
        f"{counted(total, 'training task')} {'does' if total == 1 else 'do'} not fit into "
        f"{counted(len(hosts), 'host')} with {count} {unit}{each}{most} (room for {room})",
        why=f"asked for: {' + '.join(words)}",
        hint=hint,
    )


def share_gpus(host: str, tasks: Sequence[PlacedTask], granted: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Share out the GPUs of a host among its tasks, in task order.

    Args:
        host: Its name, for messages.
        tasks: Its tasks.
        granted: The ids of the GPUs that the job has there.

    Returns:
        Task name -> GPU ids.

    Raises:
        PlacementError: There are too few.
    """
    needed = sum(task.gpus for task in tasks)
    if needed > len(granted):
        raise PlacementError(
            f"host {host}: its tasks need {needed} GPUs, but the scheduler granted {len(granted)}",
            why=f"its GPUs: {', '.join(granted) or 'none'}",
            hint="check the GPU request against gpus_per_node and gpus_per_task",
        )
    shares, next_gpu = {}, 0
    for task in tasks:
        shares[task.name] = tuple(granted[next_gpu : next_gpu + task.gpus])
        next_gpu += task.gpus
    return shares
