"""The pictures of a report besides its charts: the timeline, and where the tasks were placed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gridtf.report.drawing import Tick, TimeAxis, elapsed, time_axis
from gridtf.report.resources import percent
from gridtf.report.timeline import QUEUE, Attempt, Phase, Row, Stretch, natural, rows
from gridtf.report.usage import Usage
from gridtf.states import TaskState
from gridtf.text import duration
from gridtf.values import Value, grouped

WIDTH, _LABELS, _END = 1000, 104.0, 990.0
_ROWS_AT = 50.0
_MOST_ROWS = 72
_APART = 110.0  # units of the picture between two ticks
_LEAST = 2.0  # width of a bar
_SHORT = 64.0  # width of an attempt below which it has no heading
# What a bar's end is marked with, besides its colour.
GLYPHS = {
    str(TaskState.COMPLETED): "✓",
    str(TaskState.FAILED): "✕",
    str(TaskState.STOPPED): "■",
    str(TaskState.SAVED): "◆",
    str(TaskState.RUNNING): "▸",
}
_CAUSE = "!"  # marks the first cause, in place of these


class Bar(Value):
    """A rectangle.

    Attributes:
        x: Its left side, in units of the picture.
        width: Its width.
        kind: A phase, or a state: its class in the style sheet.
        title: What it stands for.
        glyph: What it is marked with at its end; empty without, or where there is no room.
    """

    x: float
    width: float
    kind: str
    title: str
    glyph: str = ""


class Lane(Value):
    """A row of the timeline.

    Attributes:
        label: Its task or tasks.
        y: Its upper side, in units of the picture.
        height: Its height.
        bars: When they ran.
    """

    label: str
    y: float
    height: float
    bars: tuple[Bar, ...]


class Timeline(Value):
    """The picture of the timeline.

    Attributes:
        width: In units of the picture.
        height: In units of the picture.
        phases: The phases of all attempts.
        lanes: The rows of the tasks.
        ticks: The marks of the time axis.
        headings: The attempts that are wide enough for it: (where it begins, its heading).
        borders: Where attempts but the first begin.
        marks: Events: (where, what).
        shortened: Whether a wait is drawn shorter than it took.
        grouped: Whether tasks share rows.
        caused: Whether a first cause is marked.
    """

    width: float
    height: float
    phases: tuple[Bar, ...]
    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    headings: tuple[tuple[float, str], ...]
    borders: tuple[float, ...]
    marks: tuple[tuple[float, str], ...]
    shortened: bool
    grouped: bool
    caused: bool


def waits(attempts: Sequence[Attempt]) -> list[tuple[float, float]]:
    """From when to when each attempt was in the queue."""
    return [(phase.begin, phase.end) for attempt in attempts for phase in attempt.phases if phase.name == QUEUE]


def timeline(attempts: Sequence[Attempt]) -> Timeline | None:
    """Draw the timeline; None for a job without attempts."""
    if not attempts:
        return None
    axis = time_axis(attempts[0].begin, attempts[-1].end, waits(attempts), _LABELS, _END)
    shown = rows(attempts, _MOST_ROWS)
    height = 18.0 if len(shown) <= 16 else 13.0 if len(shown) <= 40 else 11.0
    lanes = tuple(
        Lane(row.label, _ROWS_AT + number * height, height, _bars(row, axis)) for number, row in enumerate(shown)
    )
    headings = [
        (axis.at(attempt.begin), f"attempt {attempt.number}")
        for attempt in attempts
        if len(attempts) > 1 and axis.at(attempt.end) - axis.at(attempt.begin) >= _SHORT
    ]
    marks = [
        (axis.at(when), f"{elapsed(when - axis.zero)}: {text or event}")
        for attempt in attempts
        for when, event, text in attempt.marks
    ]
    return Timeline(
        width=WIDTH,
        height=_ROWS_AT + max(1, len(shown)) * height + 24,
        phases=tuple(_phase(axis, phase, attempt.number) for attempt in attempts for phase in attempt.phases),
        lanes=lanes,
        ticks=tuple(axis.ticks(_APART)),
        headings=tuple(headings),
        borders=tuple(axis.at(attempt.begin) for attempt in attempts[1:]),
        marks=tuple(marks),
        shortened=any(piece.short for piece in axis.pieces),
        grouped=len(shown) < len({name for attempt in attempts for name in attempt.tasks}),
        caused=any(stretch.cause for row in shown for stretch in row.stretches),
    )


def _phase(axis: TimeAxis, phase: Phase, attempt: int) -> Bar:
    left, right = axis.at(phase.begin), axis.at(phase.end)
    title = f"attempt {attempt}, {phase.name}: {duration(phase.end - phase.begin)}"
    return Bar(left, max(right - left, _LEAST), phase.name, title)


def _bars(row: Row, axis: TimeAxis) -> tuple[Bar, ...]:
    made = []
    for stretch in row.stretches:
        left, right = axis.at(stretch.begin), axis.at(stretch.end)
        glyph = (_CAUSE if stretch.cause else GLYPHS.get(stretch.state, "")) if right - left >= 14 else ""
        kind = f"{stretch.state.lower()}{' cause' * stretch.cause}"
        made.append(Bar(left, max(right - left, _LEAST), kind, _title(row.label, stretch), glyph))
    return tuple(made)


def _title(label: str, stretch: Stretch) -> str:
    where = f" on {stretch.host}" if stretch.host else ""
    how = f", {stretch.signal}" if stretch.signal else "" if stretch.exit is None else f", exit code {stretch.exit}"
    first = ", the first cause" if stretch.cause else ""
    lasted = duration(stretch.end - stretch.begin)
    return f"{label}{where}, attempt {stretch.attempt}: {stretch.state}{first}{how} after {lasted}"


class Tile(Value):
    """A GPU in the picture of the placement.

    Attributes:
        index: As its host names it.
        share: Its mean use, from 0 to 1; None when not measured.
        level: Its mean use in tenths, its class in the style sheet; None likewise.
        tasks: The tasks that had it.
        title: What is known of it.
    """

    index: str
    share: float | None
    level: int | None
    tasks: tuple[str, ...]
    title: str


class Place(Value):
    """A host in the picture of the placement.

    Attributes:
        host: Its name.
        gpus: Its GPUs.
        tasks: The tasks without a GPU of their own.
        cpu: The mean part of its CPUs that was busy, from 0 to 1; None when not known.
        cpus: Its CPUs; 0 when not known.
        memory: The largest part of its memory that was in use; None when not known.
    """

    host: str
    gpus: tuple[Tile, ...]
    tasks: tuple[str, ...]
    cpu: float | None
    cpus: int
    memory: float | None


def placement(
    hosts: Sequence[str], tasks: Mapping[str, str], gpus: Mapping[str, Sequence[str]], usage: Usage
) -> list[Place]:
    """Draw where the tasks were placed.

    Args:
        hosts: The hosts.
        tasks: Task -> its host.
        gpus: Task -> its GPUs.
        usage: What was used.
    """
    there, measured = grouped((host, name) for name, host in tasks.items()), grouped(usage.gpus)
    made = []
    for host in hosts:
        here = there.get(host, [])
        owners: dict[str, list[str]] = {index: [] for index in sorted(measured.get(host, ()), key=natural)}
        for name in here:
            for index in gpus.get(name, ()):
                owners.setdefault(index, []).append(name)
        used, cpus = usage.hosts.get(host), usage.cpus.get(host, 0)
        mean = used.mean if used else None
        made.append(
            Place(
                host,
                tuple(_tile(host, index, names, usage) for index, names in owners.items()),
                tuple(name for name in here if not gpus.get(name)),
                min(mean / cpus, 1.0) if mean is not None and cpus else None,
                cpus,
                min(used.memory / used.most_memory, 1.0) if used and used.most_memory else None,
            )
        )
    return made


def _tile(host: str, index: str, names: Sequence[str], usage: Usage) -> Tile:
    used = usage.gpus.get((host, index))
    share = used.mean if used else None
    owner = ", ".join(names) or "no task"
    measured = "not measured" if share is None else f"{percent(share)} used on average"
    level = None if share is None else min(9, int(share * 10))
    return Tile(index, share, level, tuple(names), f"GPU {index} of {host}, {owner}: {measured}")
