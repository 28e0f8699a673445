"""What a user has chosen to see, and what each key changes of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gridtf.monitor.table import Column
from gridtf.values import Value

TASKS, HOSTS, EVENTS, CURVE, LOG, STACKS, HELP = "tasks", "hosts", "events", "curve", "log", "stacks", "help"
TABLES = (TASKS, HOSTS)
# Textual's name of a key -> the page that it opens, in the order in which they are shown.
PAGES = {"t": TASKS, "h": HOSTS, "e": EVENTS, "c": CURVE, "l": LOG, "k": STACKS, "enter": LOG, "question_mark": HELP}
_CYCLE = (TASKS, HOSTS, EVENTS, CURVE, LOG)  # with the tab key

# Keys as the help page and the last line of the screen name them -> what they do.
KEYS = {
    "t": "tasks",
    "h": "hosts",
    "e": "events",
    "c": "curve of the selected task; v: of the next value",
    "l": "log of the selected task, as it grows",
    "k": "stacks: where all tasks are now",
    "s": "sort by the next column; S: by the one before",
    "r": "reverse the order",
    "up/down": "select a task, or move in the text; also page up, page down, home, end",
    "tab": "next page",
    "escape": "back to the tasks",
    "q": "quit; the job goes on",
}


class Look(Value):
    """What a user has chosen to see.

    Attributes:
        page: The page, such as TASKS.
        chosen: TASKS or HOSTS -> the name of the selected row; the first one where there is none.
        sort: TASKS or HOSTS -> title of the column to sort by, and whether backwards.
        value: Name of the value whose curve is shown; empty: the first.
        back: Lines that a text is moved away from where it begins: from its end for events and logs.
    """

    page: str = TASKS
    chosen: Mapping[str, str] = {}
    sort: Mapping[str, tuple[str, bool]] = {}
    value: str = ""
    back: int = 0


class Extent(Value):
    """What of a page is beyond the screen, and what can be chosen in it.

    Attributes:
        names: The rows of a table, in their order.
        at: The place of the selected row in ``names``.
        visible: Lines or rows that the screen shows at once.
        beyond: Lines of a text that the screen does not show.
        columns: The columns of a table that can be sorted by.
        values: The values that have a curve.
        value: The value whose curve is shown.
    """

    names: tuple[str, ...] = ()
    at: int = 0
    visible: int = 1
    beyond: int = 0
    columns: tuple[Column, ...] = ()
    values: tuple[str, ...] = ()
    value: str = ""


def press(look: Look, key: str, extent: Extent) -> Look:
    """What is shown after a key.

    Args:
        look: What is shown now.
        key: Textual's name of the key.
        extent: That of the page that is shown.
    """
    if extent.names:  # an order or a task that is new must not change what is selected
        look = look.replace(chosen={**look.chosen, look.page: extent.names[extent.at]})
    if key in PAGES:
        return look.replace(page=PAGES[key], back=0)
    if key == "escape":
        return look.replace(page=TASKS, back=0)
    if key in ("tab", "shift+tab"):
        return look.replace(page=_next(_CYCLE, look.page, 1 if key == "tab" else -1), back=0)
    if key == "v" and extent.values:
        return look.replace(value=_next(extent.values, extent.value, 1))
    if look.page in TABLES:
        return _in_table(look, key, extent)
    return _in_text(look, key, extent)


def _in_table(look: Look, key: str, extent: Extent) -> Look:
    if key in ("s", "S", "r") and extent.columns:
        title, backwards = look.sort.get(look.page, (extent.columns[0].title, False))
        if key == "r":
            order = title, not backwards
        else:
            title = _next([column.title for column in extent.columns], title, 1 if key == "s" else -1)
            order = title, any(column.title == title and column.number for column in extent.columns)
        return look.replace(sort={**look.sort, look.page: order})
    move = _moves(extent).get(key)
    if move is None or not extent.names:
        return look
    at = min(max(0, extent.at + move), len(extent.names) - 1)
    return look.replace(chosen={**look.chosen, look.page: extent.names[at]})


def _in_text(look: Look, key: str, extent: Extent) -> Look:
    move = _moves(extent).get(key, 0)
    if look.page in (EVENTS, LOG):
        move = -move  # they begin at their end
    return look.replace(back=min(max(0, look.back + move), extent.beyond))


def _moves(extent: Extent) -> Mapping[str, int]:
    """Key -> by how many lines it moves down."""
    page, all_of_it = max(1, extent.visible - 1), len(extent.names) + extent.beyond
    return {
        "up": -1,
        "down": 1,
        "pageup": -page,
        "pagedown": page,
        "space": page,
        "home": -all_of_it,
        "end": all_of_it,
    }


def _next(choices: Sequence[str], current: str, by: int) -> str:
    at = choices.index(current) + by if current in choices else 0
    return choices[at % len(choices)]
