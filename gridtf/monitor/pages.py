"""The pages of the monitor, as lines for a terminal of any size; the same pages one after the other as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from gridtf.monitor import eventlines, rows, table
from gridtf.monitor.charts import Point, number, plot
from gridtf.monitor.lines import Line, fit, folded, line, one_line, text_of
from gridtf.monitor.look import CURVE, EVENTS, HELP, HOSTS, KEYS, LOG, PAGES, TABLES, TASKS, Extent, Look
from gridtf.monitor.snapshot import Snapshot
from gridtf.monitor.table import Column, Row
from gridtf.states import JobState, style_of
from gridtf.text import columns as width
from gridtf.text import duration, some
from gridtf.values import Value

_SILENT = 20.0  # seconds without a new picture after which that is shown: one comes every 5 s
_PANEL = 7  # lines of events and curve below the tasks, at least
_SPLIT = 72  # columns from which on events and curve are side by side
_LAST = 10  # events in the text of all pages
_PLOT = 12  # lines of a curve in it
_FOLDS = 5  # lines of an event on their page
_ALWAYS = "? help  q quit"  # the last line of the screen
_IN_TABLE = f"up/down select  s sort  r reverse  v next curve  enter log  {_ALWAYS}"
_IN_CURVE = f"v next curve  escape tasks  {_ALWAYS}"
_IN_TEXT = f"up/down move  escape tasks  {_ALWAYS}"


class Screen(Value):
    """A screen.

    Attributes:
        lines: As many as the terminal has.
        extent: What there is beyond it.
    """

    lines: tuple[Line, ...]
    extent: Extent


def screen(snapshot: Snapshot, look: Look, columns: int, height: int, now: float, text: Sequence[str] = ()) -> Screen:
    """Make a screen.

    Args:
        snapshot: The job.
        look: What the user has chosen to see.
        columns: Columns of the terminal.
        height: Lines of the terminal.
        now: time.monotonic().
        text: The lines of the log or of the stacks, where these are chosen; safe for a terminal.
    """
    head = [*header(snapshot, columns, now), _tabs(look, columns)]
    space = max(0, height - len(head) - 1)
    body, extent = _body(snapshot, look, columns, space, text)
    filled = [*body[:space], *[()] * (space - len(body))]
    keys = _IN_TABLE if look.page in TABLES else _IN_CURVE if look.page == CURVE else _IN_TEXT
    lines = [*head, *filled, line(keys if len(keys) <= columns else _ALWAYS, columns, "dim")]
    return Screen(tuple(lines[:height]), extent)


def as_text(snapshot: Snapshot, columns: int) -> str:
    """The job as plain text: header, all tasks and hosts, the last events, the curve."""
    parts = [header(snapshot, columns, snapshot.at)]
    for columns_of, made in ((rows.TASKS, snapshot.tasks), (rows.HOSTS, snapshot.hosts)):
        if made:
            whole = table.layout(columns_of, made, columns)
            parts.append([table.heading(whole, "", backwards=False), *(table.row_line(whole, row) for row in made)])
    parts.append(eventlines.lines(snapshot.events, columns)[-_LAST:])
    parts.append(_curve(snapshot, Look(), columns, _PLOT)[0])
    return "\n\n".join(text_of(part) for part in parts if part)


def selected_task(snapshot: Snapshot, look: Look) -> str:
    """The task that is selected: the one that failed first, or the first one, while the user has chosen none."""
    names = [task.name for task in snapshot.view.tasks] if snapshot.view else []
    cause = (snapshot.view.cause or {}).get("task") if snapshot.view else None
    known = (name for name in (look.chosen.get(TASKS), cause) if name in names)
    return next(known, names[0] if names else "")


def header(snapshot: Snapshot, columns: int, now: float) -> list[Line]:
    """Name, id, scheduler and state of the job, then why it is in that state, then what is wrong with these facts."""
    view = snapshot.view
    if view is None:
        return [
            line(snapshot.name, columns, "bold"),
            _trouble(snapshot, columns, now) or line("reading its records …", columns),
        ]
    name = f"{view.name}  {view.job_id or 'no id'} on {view.scheduler or 'no scheduler'}"
    when = [view.state + view.lasting(snapshot.now)]
    if snapshot.ends is not None and snapshot.clock is not None and not view.finished:
        when.append(f"{duration(snapshot.ends - snapshot.clock)} of walltime left")
    state, style = one_line(", ".join(when)), style_of(view.state)
    if width(name) + width(state) + 2 <= columns:
        lines: list[Line] = [((fit(name, columns - width(state)), "bold"), (state, style))]
    else:
        lines = [line(name, columns, "bold"), line(state, columns, style)]
    phase = view.phase if not view.finished and view.state == JobState.RUNNING and view.phase != "running" else ""
    why = "; ".join(filter(None, (phase, view.reason, view.hint)))
    lines += [((words, ""),) for words in folded(why or _counts(snapshot), columns, most=2)]
    trouble = _trouble(snapshot, columns, now)
    return [*lines, trouble] if trouble else lines


def _counts(snapshot: Snapshot) -> str:
    tasks = snapshot.view.tasks if snapshot.view else ()
    states = [task.state for task in tasks]
    return ", ".join(f"{states.count(state)} {state.lower()}" for state in dict.fromkeys(states))


def _trouble(snapshot: Snapshot, columns: int, now: float) -> Line | None:
    if snapshot.trouble:
        return line(snapshot.trouble, columns, "bad")
    if snapshot.view is not None and snapshot.view.damaged:
        return line(f"damaged, so that what they say is missing here: {some(snapshot.view.damaged)}", columns, "bad")
    finished = snapshot.view is not None and snapshot.view.finished and not snapshot.reading
    if not finished and now - snapshot.at > _SILENT:
        return line(
            f"nothing could be read for {duration(now - snapshot.at)}: a file server or the scheduler does not answer",
            columns,
            "bad",
        )
    return None


def _tabs(look: Look, columns: int) -> Line:
    """The pages, each with the key that opens it if there is space."""
    keys = {page: key for key, page in PAGES.items() if len(key) == 1}
    opened = [*keys, *([look.page] if look.page not in keys else [])]
    words = [f" {keys[page]} {page} " if page in keys else f" {page} " for page in opened]
    if sum(map(len, words)) > columns:
        words = [f" {page} " for page in opened]
    parts: list[tuple[str, str]] = []
    for page, word in zip(opened, words, strict=True):
        columns -= len(word)
        if columns < 0:
            break
        parts.append((word, "chosen" if page == look.page else "dim"))
    return tuple(parts)


def _body(snapshot: Snapshot, look: Look, columns: int, height: int, text: Sequence[str]) -> tuple[list[Line], Extent]:
    if look.page == TASKS:
        return _overview(snapshot, look, columns, height)
    if look.page == HOSTS:
        return _table(rows.HOSTS, snapshot.hosts, look, columns, height, look.chosen.get(HOSTS, ""))
    if look.page == CURVE:
        return _curve(snapshot, look, columns, height)
    if look.page == EVENTS:
        return _part(
            eventlines.lines(snapshot.events, columns, most=_FOLDS) or [line("no events", columns)], look, height
        )
    if look.page == HELP:
        return _part([line(f"{key:<9}{what}", columns) for key, what in KEYS.items()], look, height)
    made: list[Line] = [((words, ""),) for one in text for words in folded(one, columns)]
    if look.page != LOG:
        return _part(made, look, height)
    lines, extent = _part(made, look, height - 1)
    return [line(f"log of {selected_task(snapshot, look) or 'the job script'}", columns, "bold"), *lines], extent


def _overview(snapshot: Snapshot, look: Look, columns: int, height: int) -> tuple[list[Line], Extent]:
    """The tasks, and below them events and curve if there is space."""
    made = snapshot.tasks
    if snapshot.view is None:
        return [], Extent()
    if not made:
        only = f"only user {snapshot.private} may read which tasks this job has" if snapshot.private else ""
        none: list[Line] = [line(only or "no tasks yet", columns), ()]
        return [*none, *_panel(snapshot, look, columns, height - 2)], Extent()
    panel = max(_PANEL, height - len(made) - 2) if height >= 2 * _PANEL + 2 else 0
    below = _panel(snapshot, look, columns, panel) if panel else []
    above = height - len(below) - (1 if below else 0)
    lines, extent = _table(rows.TASKS, made, look, columns, above, selected_task(snapshot, look))
    if below:
        lines += [()] * (above + 1 - len(lines))
    _, of_curve = _curve(snapshot, look, columns, 0)
    return [*lines, *below], extent.replace(values=of_curve.values, value=of_curve.value)


def _panel(snapshot: Snapshot, look: Look, columns: int, height: int) -> list[Line]:
    """Curve and last events, side by side on a wide terminal, else the events."""
    left = columns // 2 - 1 if columns >= _SPLIT else 0
    curve = _curve(snapshot, look, left, height)[0] if snapshot.curves and left else []
    events = eventlines.lines(snapshot.events, columns - left - 2 if curve else columns)[-height:] if height > 0 else []
    if not curve:
        return events
    padded = [_padded(one, left + 2) for one in curve]
    return [(*one, *two) for one, two in zip_longest(padded, events, fillvalue=((" " * (left + 2), ""),))][:height]


def _padded(parts: Line, columns: int) -> Line:
    return (*parts, (" " * (columns - sum(width(text) for text, _ in parts)), ""))


def _table(
    columns_of: tuple[Column, ...], made: list[Row], look: Look, columns: int, height: int, chosen: str
) -> tuple[list[Line], Extent]:
    """A table, page by page: a key that moves the selection changes two lines."""
    title, backwards = look.sort.get(look.page, (columns_of[0].title, False))
    ordered = table.ordered(made, title, backwards=backwards)
    names = tuple(row.name for row in ordered)
    at = names.index(chosen) if chosen in names else 0
    visible = max(1, height - 1)
    if len(ordered) > visible:
        visible = max(1, visible - 1)
    first = at // visible * visible
    whole = table.layout(columns_of, made, columns)
    lines = [table.heading(whole, title, backwards=backwards)]
    for place, row in enumerate(ordered[first : first + visible], first):
        lines.append(table.row_line(whole, row, "chosen" if place == at else ""))
    if len(ordered) > visible:
        shown = f"{first + 1} to {min(first + visible, len(ordered))} of {len(ordered)}"
        lines += [()] * (visible + 1 - len(lines)) + [line(shown, columns, "dim")]
    there = {*table.titles(columns_of, made)}
    sortable = tuple(column for column in columns_of if column.title in there)
    return lines, Extent(names=names, at=at, visible=visible, columns=sortable)


def _curve(snapshot: Snapshot, look: Look, columns: int, height: int) -> tuple[list[Line], Extent]:
    """The curve of a value that the selected task has reported, or the first task that has reported any."""
    reporting = dict.fromkeys(task for task, _ in snapshot.curves)
    task = selected_task(snapshot, look)
    task = task if task in reporting else next(iter(_in_order(snapshot, reporting)), "")
    values = tuple(value for name, value in snapshot.curves if name == task)
    if not values:
        return [line(_no_curve(snapshot), columns)], Extent()
    value = look.value if look.value in values else values[0]
    points = snapshot.curves[task, value]
    which = f" ({values.index(value) + 1} of {len(values)} values)" if len(values) > 1 else ""
    lines = [line(f"{value}{which} of {task}: {_newest(points)}", columns, "bold"), *plot(points, columns, height - 1)]
    return lines, Extent(values=values, value=value)


def _in_order(snapshot: Snapshot, names: dict[str, None]) -> list[str]:
    tasks = snapshot.view.tasks if snapshot.view else ()
    return [task.name for task in tasks if task.name in names] or [*names]


def _newest(points: Sequence[Point]) -> str:
    step, low, high = points[-1]
    value = number(low) if low == high else f"{number(low)} to {number(high)}"
    return f"{value} at step {number(step)}"


def _no_curve(snapshot: Snapshot) -> str:
    if snapshot.reading:
        return "reading its samples …"
    if not snapshot.recent:
        return "no samples: they are taken every sample_interval, from a second after the start of the tasks on"
    return "no values: tasks report them with gridtf.progress(step, loss=…)"


def _part(lines: list[Line], look: Look, height: int) -> tuple[list[Line], Extent]:
    """The part of a text that the screen shows: its end for events and logs, else its beginning."""
    beyond = max(0, len(lines) - height)
    back = min(look.back, beyond)
    first = beyond - back if look.page in (EVENTS, LOG) else back
    return lines[first : first + height], Extent(visible=height, beyond=beyond)
