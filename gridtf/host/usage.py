"""What processes and this host use: CPU time, memory, input and output, network, as /proc and cgroups show it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gridtf.host import procfs
from gridtf.values import Fields

_CGROUPS = Path("/sys/fs/cgroup")
# In a folder of a cgroup: its limit, what it uses, what of that is cache that the kernel would give up first, and where
# it counts the processes that the kernel has killed for lack of memory: there alone (1), or below it as well (2).
_MEMORY_2 = ("memory.max", "memory.current", b"\ninactive_file", "memory.events")
_MEMORY_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", b"\ntotal_inactive_file", "memory.oom_control")
_LITTLE = 1 / 16  # of the memory of the largest process: where the others together have less, sharing matters not


class ProcessUse(Fields):
    """What a process and all that it has started have used; sizes in bytes.

    Attributes:
        ticks: CPU time, in ticks of the clock (sysconf(3), _SC_CLK_TCK).
        memory: Memory that is theirs: RssAnon and RssShmem, and what several have only once.
        read: What they have read, from caches too (rchar).
        written: What they have written (wchar).
        processes: How many there are.
        sharing: Those that may share much of their memory, for shared_memory().
    """

    ticks: int
    memory: int
    read: int
    written: int
    processes: int
    sharing: list[int]


class HostUse(Fields):
    """What a host has used; sizes in bytes.

    Attributes:
        ticks: CPU time of all CPUs that was not idle, in ticks of the clock.
        memory: Memory in use, without caches: of the cgroup of this process, if that has a limit.
        memory_total: How much there is.
        received: Bytes received by all network interfaces but loopback.
        sent: Bytes sent by them.
    """

    ticks: int
    memory: int
    memory_total: int
    received: int
    sent: int


class Families:
    """Which processes belong to which task: its own and all that it and they have started.

    A look reads the parents of new processes only: a host has thousands of others. A process stays with its task when
    its parent has ended.

    Args:
        roots: Task -> its process.
    """

    def __init__(self, roots: Mapping[str, int]) -> None:
        self._roots = roots
        self._owner: dict[int, str] = {pid: task for task, pid in roots.items()}  # empty: it belongs to no task

    def look(self) -> dict[str, list[int]]:
        """Task -> its processes, without tasks whose own process is gone."""
        there = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        for pid in self._owner.keys() - there:
            del self._owner[pid]
        parents = {pid: procfs.parent(pid) for pid in there - self._owner.keys()}
        for pid in parents:
            above = pid
            while above in parents and above not in self._owner:
                above = parents[above]
            self._owner[pid] = self._owner.get(above, "")
        found: dict[str, list[int]] = {task: [] for task, pid in self._roots.items() if pid in there}
        for pid, task in self._owner.items():
            if task in found:
                found[task].append(pid)
        return found


def of_processes(pids: Iterable[int], shared: Mapping[int, int]) -> ProcessUse:
    """What processes have used, with their children that have ended.

    Args:
        pids: Their ids; those that are gone do not count.
        shared: As shared_memory() returned it at any time before; of processes that it does not tell of, the memory of
            the largest is counted, unless the others together have more.
    """
    ticks = read = written = 0
    sizes: dict[int, int] = {}
    for pid in pids:
        status, io = _read(f"/proc/{pid}/status"), _read(f"/proc/{pid}/io")
        if not status:
            continue
        ticks += sum(map(int, _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[11:15]))
        sizes[pid] = _resident(status)
        read, written = read + _value(io, b"rchar:"), written + _value(io, b"wchar:")
    memory, largest = sum(sizes.values()), max(sizes.values(), default=0)
    sharing = list(sizes) if memory - largest > largest * _LITTLE else []
    if sharing:
        new = max((size for pid, size in sizes.items() if pid not in shared), default=0)
        memory = max(new, sum(max(0, size - shared[pid]) for pid, size in sizes.items() if pid in shared))
    return ProcessUse(ticks, memory, read, written, len(sizes), sharing)


def shared_memory(pids: Iterable[int]) -> dict[int, int]:
    """How much of the memory of processes counts elsewhere, since a fork has left it to several of them.

    The kernel goes through all of their pages, in about 0.1 s per GiB of small ones.

    Args:
        pids: Their ids; those that are gone are left out.

    Returns:
        Process id -> bytes of RssAnon and RssShmem above the process's share of them; 0 before Linux 5.3.
    """
    found = {}
    for pid in pids:
        text = _read(f"/proc/{pid}/smaps_rollup")
        share = (_value(text, b"Pss_Anon:") + _value(text, b"Pss_Shmem:")) << 10
        if size := _resident(_read(f"/proc/{pid}/status")):
            found[pid] = max(0, size - share) if b"Pss_Anon:" in text else 0
    return found


def _resident(status: bytes) -> int:
    return (_value(status, b"RssAnon:") + _value(status, b"RssShmem:")) << 10


class Threads(Fields):
    """What the threads of some processes do.

    Attributes:
        states: State, a letter of proc_pid_stat(5) -> the number of threads in it.
        delay: For how many nanoseconds all of them together have waited for a CPU since they started: in the queue of
            a CPU, or because a control group has used up its quota.
    """

    states: dict[str, int]
    delay: int


def threads(pids: Iterable[int]) -> Threads:
    """What all threads of some processes do.

    Args:
        pids: The ids of the processes; those that are gone do not count.
    """
    found = Threads({}, 0)
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                text = _read(f"/proc/{pid}/task/{thread}/stat")
                if text:
                    at = text.rindex(b")") + 2
                    state = text[at : at + 1].decode()
                    found.states[state] = found.states.get(state, 0) + 1
                    run = _read(f"/proc/{pid}/task/{thread}/schedstat").split()  # kernels may lack it
                    found.delay += int(run[1]) if len(run) > 1 else 0
    return found


class Host:
    """This host, or the part of it that a cgroup allows this process to use."""

    def __init__(self) -> None:
        self._limit, self._folder, self._names = _memory_limit()

    def use(self) -> HostUse:
        """What it has used."""
        busy = [int(field) for field in _read("/proc/stat").split(b"\n", 1)[0].split()[1:9]]
        ticks = sum(busy) - sum(busy[3:5])  # without idle and iowait
        used, total = self._memory()
        return HostUse(ticks, used, total, *_network(_read("/proc/net/dev").decode(errors="replace")))

    def _memory(self) -> tuple[int, int]:
        known = _read("/proc/meminfo")
        total = _value(known, b"MemTotal:") << 10
        if self._limit is None or self._limit >= total:
            return total - (_value(known, b"MemAvailable:") << 10), total
        _, current, cache, _ = self._names
        used = _number(f"{self._folder}/{current}") - _value(_read(f"{self._folder}/memory.stat"), cache)
        return max(0, used), self._limit


def out_of_memory_kills() -> int:
    """Number of processes that the kernel has killed for lack of memory: in the cgroup of this process, which those of
    other jobs of the host are not in, and where cgroups do not count it, on the host since boot (proc_vmstat(5)).

    0 when unknown.
    """
    for folder, names in _memory_groups():
        if b"\noom_kill " in (text := _read(f"{folder}/{names[-1]}")):
            return _value(text, b"\noom_kill ")
        if names is _MEMORY_1:
            break
    return _value(_read("/proc/vmstat"), b"\noom_kill ")


def _memory_limit() -> tuple[int | None, Path, tuple[str, str, bytes, str]]:
    """The least memory limit of the cgroups of this process, and which one has it."""
    least, folder, names = None, Path(), _MEMORY_2
    for each, known in _memory_groups():
        limit = _number(f"{each}/{known[0]}")
        if limit and (least is None or limit < least):
            least, folder, names = limit, each, known
    return least, folder, names


def _memory_groups() -> Iterator[tuple[Path, tuple[str, str, bytes, str]]]:
    """The folders of the cgroups that this process is in, innermost first, and what their files are called."""
    for line in _read("/proc/self/cgroup").decode(errors="replace").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers or "memory" in controllers.split(","):
            root, known = (_CGROUPS / "memory", _MEMORY_1) if controllers else (_CGROUPS, _MEMORY_2)
            here = root / path.lstrip("/")
            yield from ((each, known) for each in (here, *here.parents) if each.is_relative_to(root))


def _network(text: str) -> tuple[int, int]:
    """Bytes received and sent, from the text of /proc/net/dev (proc_pid_net(5))."""
    received = sent = 0
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        if name.strip() != "lo":
            fields = numbers.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def printed(pid: int) -> int | None:
    """How far the stdout of a process has come in its file (proc_pid_fdinfo(5)), in bytes; None when it is gone.

    Nothing is asked of the file system.
    """
    text = _read(f"/proc/{pid}/fdinfo/1")
    return _value(text, b"pos:") if text else None


def _value(text: bytes, name: bytes) -> int:
    """The number after a name, as in ``RssAnon:  120 kB``; 0 without it."""
    at = text.find(name)
    number = text[at + len(name) : at + len(name) + 40].split(None, 1)[:1] if at >= 0 else []
    return int(number[0]) if number and number[0].isdigit() else 0


def _number(path: str) -> int:
    text = _read(path).strip()
    return int(text) if text.isdigit() else 0


def _read(path: str) -> bytes:
    """The first bytes of a file of /proc or /sys; nothing when it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 16384)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
