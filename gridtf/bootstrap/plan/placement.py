"""Which task runs on which host, with how many GPUs and CPUs. Pure: allocation and request in, tasks out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice

from gridtf.errors import PlacementError
from gridtf.jobspec.request import Request
from gridtf.jobspec.tasktypes import LEADERS, TaskType, properties
from gridtf.jobspec.units import MOST
from gridtf.schedulers.api import Allocation, Host
from gridtf.text import counted, some
from gridtf.values import Value

ALL_GPUS = "give each task more with --gpus-per-task, start more tasks, or request fewer GPUs"


class PlacedTask(Value):
    """One task and its place.

    Attributes:
        type: Its type, such as ``worker``.
        index: Its index among the tasks of its type.
        host: The host, as the allocation calls it.
        gpus: How many GPUs it gets.
        cpus: How many CPUs it should use; None where the CPUs of its host are unknown.
        local_rank: Its number among the training tasks of its host; None for a task that does not train.
        rank: Its number among the training tasks of the job; None for a task that does not train.
        served: Whether gridtf runs a plain TensorFlow server in it.
        in_cluster: Whether it is in TensorFlow's cluster.
        kind: Its kind, for a type of the job's own; empty for TensorFlow's types.
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
    kind: str = ""

    @property
    def name(self) -> str:
        """Type and index: ``worker:0``."""
        return f"{self.type}:{self.index}"

    @property
    def trains(self) -> bool:
        """Whether the end of the training depends on this task."""
        return self.row.trains and not self.served

    @property
    def row(self) -> TaskType:
        """How gridtf treats tasks of its type."""
        return properties(self.type, self.kind)


def place(allocation: Allocation, request: Request) -> tuple[PlacedTask, ...]:
    """Place all tasks of the job.

    Training tasks are spread as evenly as the hosts' capacity allows and numbered host by host. Tasks without a GPU
    (ps, evaluator, data workers) are distributed in turn, beginning with the hosts that have the fewest tasks: types
    with a partition of their own to the hosts of that partition, other types to the hosts of the training tasks. A
    leader whose GPUs are of another model is on a host of its own.

    Args:
        allocation: The hosts that the scheduler allocated.
        request: What the job requests.

    Returns:
        The tasks, in rank order.

    Raises:
        PlacementError: The tasks do not fit; the message has the numbers.
    """
    most = request.chosen("gpus_per_node") or MOST
    everywhere = [
        host if host.component else host.replace(gpus=host.gpus and min(host.gpus, most))
        for host in sorted(allocation.hosts, key=lambda host: host.component)
    ]
    hosts = [host for host in everywhere if not host.component]
    gpus = _share(hosts, request)
    leader = next((name for name in LEADERS if request.role(name).count), None)
    apart = leader is not None and request.role(leader).component and len(hosts) < len(everywhere)
    start, room = _seats(hosts, None if apart else leader, gpus, request)
    if leader is not None and apart:
        role = request.role(leader)
        places = [number for number, host in enumerate(everywhere) if host.component == role.component]
        start = next((number for number in places if (everywhere[number].gpus or 0) >= (role.gpus or 0)), None)
    workers = request.role("worker").count
    if workers is None:
        workers = sum(room) or (0 if leader else 1)  # without any room: the error that follows says what is requested
    if leader is not None and start is None:
        raise _too_few(hosts, leader, workers, 0, gpus, request)
    if workers > sum(room):
        beside = None if apart else leader
        raise _too_few(hosts, beside, workers, sum(room) + (beside is not None), gpus, request)
    _refuse_many(workers, request)
    load = [int(number == start) for number in range(len(everywhere))]
    members = [] if leader is None else [(leader, 0)]
    members += [("worker", index) for index in range(workers)]
    seats = sorted(islice(_level_by_level(room, load), workers))
    for home in seats:
        load[home] += 1
    homes = seats if start is None else [start, *seats]
    others = [(role.type, index) for role in request.roles if not role.takes_gpu for index in range(role.count or 0)]
    turn = sorted(range(len(hosts)), key=lambda number: load[number])
    turns: dict[str, Iterator[int]] = dict.fromkeys((name for name, _ in others), cycle(turn))
    # without components (one machine, or an allocation made by hand) a partition means nothing
    if len(hosts) < len(everywhere):
        turns.update(_own_places(everywhere, request))
    for name, _ in others:
        home = next(turns[name])
        load[home] += 1
        homes.append(home)
    return tuple(_placed([*members, *others], homes, everywhere, gpus, request))


def idle_gpus(hosts: Sequence[Host], tasks: Iterable[PlacedTask]) -> str:
    """A note on GPUs of the job that no task gets, which only the allocation tells. Empty when there are none.

    Args:
        hosts: The hosts that the scheduler allocated.
        tasks: All tasks.
    """
    idle = {host.name: host.gpus or 0 for host in hosts}
    present = counted(sum(idle.values()), "GPU")
    for task in tasks:
        idle[task.host] -= task.gpus
    where = [f"{number} on {name}" for name, number in idle.items() if number > 0]
    return f"no task uses {sum(idle.values())} of {present}: {some(where)}" if where else ""


def _share(hosts: Sequence[Host], request: Request) -> int:
    """GPUs of a training task, where the user has not set them: an even part of those of its host, else one."""
    sizes = {host.gpus or 0 for host in hosts}
    with_gpus = [role.count for role in request.own_roles if role.takes_gpu and role.gpus != 0]
    training = 0 if None in with_gpus else sum(filter(None, with_gpus))
    tasks = min(filter(None, (request.chosen("tasks_per_node"), -(-training // max(1, len(hosts))))), default=0)
    size = max(sizes, default=0)
    return size // tasks if len(sizes) == 1 and tasks and not size % tasks else min(size, 1)


def _refuse_many(workers: int, request: Request) -> None:
    """A typing error, or an absurd variable such as 10^8 tasks per host, must not cost hours of computing."""
    total = workers + sum(role.count or 0 for role in request.roles if role.type != "worker")
    if total > MOST:
        raise PlacementError(
            f"{counted(total, 'task')} are more than the maximum of {MOST}",
            hint="check --workers and --tasks-per-node, or the number of tasks per node that the scheduler reports",
        )


def _own_places(hosts: Sequence[Host], request: Request) -> dict[str, Iterator[int]]:
    """Task type -> the hosts of its tasks, as indices, for the types that have a partition of their own; types with the
    same partition share its slots. Raises PlacementError, with the numbers, when there are too few."""
    places: dict[str, Iterator[int]] = {}
    for component, part in enumerate(request.components[1:], 1):
        slots = [host.slots for host in hosts if host.component == component]
        counts = {name: request.role(name).count or 0 for name in part.types}
        total = sum(counts.values())
        if total > sum(slots):
            tasks = f"{counted(total, 'task')} on partition {part.partition}"
            requested = [f"{number} {name}" for name, number in counts.items()]
            hint = f"request that many tasks in its component of the job, or leave out tasks.{part.types[0]}.partition"
            raise _no_room(tasks, total, _sizes(slots, "slot"), sum(slots), requested, hint)
        room = [host.slots if host.component == component else 0 for host in hosts]
        places.update(dict.fromkeys(part.types, _level_by_level(room, [0] * len(room))))
    return places


def _level_by_level(room: Sequence[int], load: Sequence[int]) -> Iterator[int]:
    """Indices of hosts for tasks, one by one, each time of a host with the fewest tasks.

    Args:
        room: How many more tasks fit on each host.
        load: How many tasks each host has already.
    """
    level = 0
    free = [number for number, most in enumerate(room) if most]
    while free:
        yield from (number for number in free if load[number] <= level)
        level += 1
        free = [number for number in free if load[number] + room[number] > level]


def _placed(
    members: Sequence[tuple[str, int]],
    homes: Sequence[int],
    hosts: Sequence[Host],
    gpus: int,
    request: Request,
) -> list[PlacedTask]:
    # Some tasks have a fixed number of CPUs, the others share the rest of their host's CPUs.
    fixed = [request.role(task_type).cpus for task_type, _ in members]
    given, sharers = [0] * len(hosts), [0] * len(hosts)
    for count, home in zip(fixed, homes, strict=True):
        given[home] += count or 0
        sharers[home] += count is None
    placed = []
    rank = 0
    local = [0] * len(hosts)
    for (task_type, index), home, cpus in zip(members, homes, fixed, strict=True):
        role = request.role(task_type)
        ranked = role.row.trains and not role.served
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
                served=role.served,
                in_cluster=role.in_cluster,
                kind=role.kind,
            )
        )
        if ranked:
            rank += 1
            local[home] += 1
    return placed


def _seats(hosts: Sequence[Host], leader: str | None, gpus: int, request: Request) -> tuple[int | None, list[int]]:
    """The leader's host, None where it fits on none; and how many workers fit on each host besides the leader."""
    room = [_room(host, 0, 0, gpus, request) for host in hosts]
    if leader is None:
        return None, room
    needs = request.gpus_of(leader, gpus)
    # a leader without a GPU, among workers with GPUs, takes no worker's place
    place = int(bool(needs) or not request.gpus_of("worker", gpus))
    fits = [number for number, host in enumerate(hosts) if needs <= (host.gpus or 0) and (needs or host.slots >= place)]
    if not fits:
        return None, room
    beside = {number: _room(hosts[number], needs, place, gpus, request) for number in fits}
    home = min(fits, key=lambda number: room[number] - beside[number])
    return home, [beside[home] if number == home else free for number, free in enumerate(room)]


def _room(host: Host, taken: int, places: int, gpus: int, request: Request) -> int:
    """How many workers fit on this host, where `taken` GPUs and `places` slots are in use."""
    needs = request.gpus_of("worker", gpus)
    if not needs:
        return max(0, host.slots - places)
    room = ((host.gpus or 0) - taken) // needs
    return max(0, min(room, host.slots - places) if request.chosen("tasks_per_node") else room)


def _too_few(
    hosts: Sequence[Host], leader: str | None, workers: int, room: int, gpus: int, request: Request
) -> PlacementError:
    counts = {**({leader: 1} if leader else {}), **({"worker": workers} if workers else {})}
    total = sum(counts.values())
    tasks = counted(total, "training task")
    needs = {name: request.gpus_of(name, gpus) for name in counts}
    if not any(needs.values()):
        requested = [counted(number, name) for name, number in counts.items()]
        hint = "request more hosts or fewer workers, or let tasks share cores with --tasks-per-node"
        where = _sizes([host.slots for host in hosts], "CPU slot")
        return _no_room(tasks, total, where, room, requested, hint)
    requested = [
        f"{counted(number, name)} with {counted(needs[name], 'GPU')}{' each' if number > 1 else ''}"
        for name, number in counts.items()
    ]
    limit = request.chosen("tasks_per_node")
    most = f", at most {counted(limit, 'task')} per host" if limit else ""
    hint = "request more hosts, more GPUs or fewer workers"
    where = f"{_sizes([host.gpus or 0 for host in hosts], 'GPU')}{most}"
    return _no_room(tasks, total, where, room, requested, hint)


def _sizes(sizes: Sequence[int], unit: str) -> str:
    """What hosts have, such as ``4 hosts with 2 GPUs each``.

    Args:
        sizes: What each host has, in units.
        unit: Such as ``GPU``.
    """
    fewest, largest = min(sizes, default=0), max(sizes, default=0)
    size = counted(largest, unit) if fewest == largest else f"{fewest} to {counted(largest, unit)}"
    return f"{counted(len(sizes), 'host')} with {size}{' each' if len(sizes) > 1 else ''}"


def _no_room(tasks: str, total: int, where: str, room: int, requested: Iterable[str], hint: str) -> PlacementError:
    """The error for tasks that do not fit, with all the numbers that a user needs to see why.

    Args:
        tasks: The tasks, with their number.
        total: Their number.
        where: The hosts, with their sizes.
        room: How many of the tasks fit.
        requested: The tasks by type.
        hint: What to do about it.
    """
    return PlacementError(
        f"{tasks} {'does' if total == 1 else 'do'} not fit into {where} (room for {room})",
        why=f"requested: {' + '.join(requested)}",
        hint=hint,
    )


def share_gpus(host: str, tasks: Sequence[PlacedTask], granted: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Divide the GPUs of a host among its tasks, in task order.

    Args:
        host: Its name, for messages.
        tasks: Its tasks.
        granted: The ids of the GPUs that the job has on this host.

    Returns:
        Task name -> GPU ids.

    Raises:
        PlacementError: There are too few.
    """
    needed = sum(task.gpus for task in tasks)
    if needed > len(granted):
        raise PlacementError(
            f"host {host}: its tasks need {counted(needed, 'GPU')}, but the scheduler granted {len(granted)}",
            why=f"its GPUs: {', '.join(granted) or 'none'}",
            hint="check the GPU request against gpus_per_node and gpus_per_task",
        )
    ids = iter(granted)
    return {task.name: tuple(islice(ids, task.gpus)) for task in tasks}
