"""The stacks of a job's processes: what they say about where a task is. Pure.

The hook in tasks (gridtf/hook/sitecustomize.py) has faulthandler write them when the signal NUMBER comes; py-spy, where
it is installed, writes them for other Pythons. agentstacks.py asks for them on a host.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence

from gridtf.run.rundir import Record
from gridtf.text import some
from gridtf.values import Value, grouped

NUMBER = signal.SIGRTMIN + 7  # as in gridtf/hook/sitecustomize.py

STATES = {
    "T": "stopped by a signal (state T)",
    "t": "stopped by a debugger (state t)",
    "D": "waiting for a disk or a file system (state D)",
}

# faulthandler and py-spy: the line of a thread, and that of a frame
_THREAD = re.compile(r'(?:Current t|T)hread (?:0x\w+ |\d+ )?(?:\[.*\] )?\([^()]*\):?(?: "(?P<name>.*)")?')
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')
_SPIED = re.compile(r"    (?P<name>\S.*) \((?P<file>[^()]*):(?P<line>\d+)\)")
_LIBRARY = re.compile(r"^<|/python\d[.\d]*/|-packages/|/gridtf/(?:training|bootstrap|hook|contract|reporting)\b")
_TENSORFLOW = re.compile(r"-packages/(?:tensorflow|keras|tf_keras)\b|/tensorflow/python/")


class Frame(Value):
    """A line of a stack.

    Attributes:
        file: The path of the source file.
        line: The number of the line.
        function: The name of the function.
    """

    file: str
    line: int
    function: str

    @property
    def place(self) -> str:
        """Such as ``train.py:20``."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"

    @property
    def own(self) -> bool:
        """Whether it is the user's own code."""
        return not _LIBRARY.search(self.file)


Thread = tuple[Frame, ...]  # the innermost frame first


def threads(text: str) -> tuple[Thread, ...]:
    """Parse the stacks of a process.

    Args:
        text: As faulthandler or ``py-spy dump`` writes them.

    Returns:
        Those of all its threads, that of the main thread first.
    """
    found: list[list[Frame]] = []
    main = -1  # faulthandler shows it last
    for line in text.splitlines():
        if started := _THREAD.match(line):
            found.append([])
            if started["name"] == "MainThread":
                main = len(found) - 1
        elif found and (frame := _FRAME.fullmatch(line) or _SPIED.fullmatch(line)):
            found[-1].append(Frame(frame["file"], int(frame["line"]), frame["name"]))
    if not found:
        return ()
    first = found.pop(main)
    return tuple(tuple(stack) for stack in (first, *found))


class Place(Value):
    """Where a task is.

    Attributes:
        verb: What one task does: is, waits or shows.
        where: Such as ``in TensorFlow (train.py:20)``; without a stack, why there is none.
        stack: The thread that shows it; empty without one.
    """

    verb: str
    where: str
    stack: Thread = ()


class Group(Value):
    """Tasks that are at the same place.

    Attributes:
        tasks: Their names.
        place: The place.
        host: Their host; empty where they are on several.
    """

    tasks: tuple[str, ...]
    place: Place
    host: str = ""

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host and len(self.tasks) == 1 else ""
        verb = self.place.verb if len(self.tasks) == 1 else _PLURAL[self.place.verb]
        return f"{spans(self.tasks)}{where} {verb} {self.place.where}"


def groups(tasks: Mapping[str, Record], stacks: Sequence[str]) -> list[Group]:
    """Group the tasks of a job by where they are.

    Args:
        tasks: Task -> its record in stacks.json.
        stacks: The texts to which the records point.

    Returns:
        The groups, the smallest first.
    """
    parsed = {name: _threads_of(record, stacks) for name, record in tasks.items()}
    shown = [set(found) for found in parsed.values() if found]
    common = set.intersection(*shown) if shown else set()
    places = {name: _place(record, parsed[name], common) for name, record in tasks.items()}
    members = grouped(((place.verb, place.where), name) for name, place in places.items())
    found = []
    for names in members.values():
        place = places[names[0]]
        hosts = {str(tasks[name].get("host", "")) for name in names}
        found.append(Group(tuple(names), place, hosts.pop() if len(hosts) == 1 else ""))
    return sorted(found, key=lambda group: len(group.tasks))


def summary(found: Sequence[Group], most: int = 4) -> str:
    """One line on the groups, the smallest last, as the result of a comparison.

    Args:
        found: As groups returns them.
        most: How many groups are named.
    """
    named = [str(group) for group in found[:most]]
    left = sum(len(group.tasks) for group in found[most:])
    return "; ".join([*([f"{left} other tasks elsewhere"] if left else []), *reversed(named)])


def equal(first: Mapping[str, Record], second: Mapping[str, Record]) -> bool:
    """Whether nothing has moved between two looks at all processes, and at least one of them shows where it is."""

    def shown(tasks: Mapping[str, Record]) -> dict[str, object]:
        return {name: [_without_addresses(each) for each in task["processes"]] for name, task in tasks.items()}

    seen = [process for task in second.values() for process in task["processes"]]
    return shown(first) == shown(second) and any(each.get("text") or each["state"] in STATES for each in seen)


def packed(tasks: Mapping[str, Record]) -> Record:
    """Task -> its record with texts, as the part of stacks.json that has each text once."""
    texts: dict[str, int] = {}
    found = {}
    for name, task in tasks.items():
        kept = []
        for process in task["processes"]:
            rest = {key: value for key, value in process.items() if key != "text"}
            if process.get("text"):
                rest["stack"] = texts.setdefault(normal(process["text"]), len(texts))
            kept.append(rest)
        found[name] = {**task, "processes": kept}
    return {"tasks": found, "stacks": [*texts]}


def normal(text: str) -> str:
    """The text of stacks without what differs between two equal processes: the addresses of threads."""
    return re.sub(r"^(?:Current t|T)hread 0x\w+", "Thread", text, flags=re.MULTILINE).strip()


def _without_addresses(process: Record) -> Record:
    return {**process, "text": normal(process.get("text", ""))}


def _threads_of(record: Record, stacks: Sequence[str]) -> tuple[Thread, ...]:
    """The threads of a task with code of the user's, those of its first process that has such threads."""
    for process in record["processes"]:
        if process.get("stack") is not None:
            found = threads(stacks[process["stack"]])
            if with_own := tuple(thread for thread in found if any(frame.own for frame in thread)):
                return with_own
    return ()


def _place(record: Record, own: tuple[Thread, ...], common: Iterable[Thread]) -> Place:
    halted = [each for each in record["processes"] if each["state"] in STATES]
    if halted:
        return Place("is", STATES[halted[0]["state"]])
    known = set(common)
    telling = [thread for thread in own if thread not in known] or list(own[:1])
    if not telling:
        nothing = "none of its threads runs code of a file" if record["processes"] else "it has no process"
        why = next((each["why"] for each in record["processes"] if each.get("why")), nothing)
        return Place("shows", f"no stack: {why}")
    # a thread that runs code of the user's tells more than a main thread that waits for it
    stack = next((thread for thread in telling if thread[0].own), telling[0])
    frame = next(frame for frame in stack if frame.own)
    if stack[0].own:
        return Place("is", f"at {frame.place}", stack)
    if _TENSORFLOW.search(stack[0].file):
        return Place("waits", f"in TensorFlow ({frame.place})", stack)
    module = stack[0].file.rpartition("/")[2].removesuffix(".py").strip("<>")
    return Place("is", f"in {module}.{stack[0].function} ({frame.place})", stack)


_PLURAL = {"is": "are", "waits": "wait", "shows": "show"}


def spans(names: Sequence[str], most: int = 8) -> str:
    """Names of tasks in few words, such as ``worker:0-6, ps:0``.

    Args:
        names: The tasks.
        most: How many spans are named.
    """
    by_type = grouped((task_type, int(index)) for task_type, _, index in (name.partition(":") for name in names))
    found = []
    for task_type, indices in by_type.items():
        ordered = sorted(indices)
        first = ordered[0]
        for last, after in zip(ordered, [*ordered[1:], -1], strict=True):
            if after != last + 1:
                found.append(f"{task_type}:{first}" if first == last else f"{task_type}:{first}-{last}")
                first = after
    return some(found, most=most)
