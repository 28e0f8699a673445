"""What each key changes."""

from __future__ import annotations

import pytest

from gridtf.monitor import look
from gridtf.monitor.look import Extent, Look, press
from gridtf.monitor.table import Column

COLUMNS = (Column("TASK", 0, number=False), Column("CPU", 1), Column("STATE", 2, number=False))
TABLE = Extent(names=("a", "b", "c", "d", "e"), at=1, visible=3, columns=COLUMNS, values=("loss", "acc"), value="loss")
TEXT = Extent(visible=10, beyond=25)


def pressed(keys: str, extent: Extent, start: Look) -> Look:
    for key in keys.split():
        start = press(start, key, extent)
    return start


@pytest.mark.parametrize(("key", "page"), look.PAGES.items())
def test_key_opens_its_page(key: str, page: str) -> None:
    assert press(Look(page=look.EVENTS, back=5), key, TEXT) == Look(page=page)


def test_tab_goes_round_all_pages_and_escape_to_the_tasks() -> None:
    pages = [pressed("tab " * times, Extent(), Look()).page for times in range(6)]
    assert pages == ["tasks", "hosts", "events", "curve", "log", "tasks"]
    assert press(Look(), "shift+tab", Extent()).page == look.LOG
    assert press(Look(page=look.STACKS), "tab", Extent()).page == look.TASKS
    assert press(Look(page=look.STACKS), "escape", Extent()).page == look.TASKS


@pytest.mark.parametrize(
    ("key", "chosen"), [("down", "c"), ("up", "a"), ("pagedown", "d"), ("pageup", "a"), ("home", "a"), ("end", "e")]
)
def test_keys_select_a_row(key: str, chosen: str) -> None:
    assert press(Look(), key, TABLE).chosen == {"tasks": chosen}


def test_selection_stays_when_the_order_changes_or_a_page_opens() -> None:
    for key in ("s", "r", "h", "l", "x"):
        assert press(Look(), key, TABLE).chosen["tasks"] == "b"


def test_s_sorts_by_the_next_column_numbers_from_the_largest() -> None:
    orders = [pressed("s " * times, TABLE, Look()).sort["tasks"] for times in (1, 2, 3)]
    assert orders == [("CPU", True), ("STATE", False), ("TASK", False)]
    assert press(Look(), "S", TABLE).sort["tasks"] == ("STATE", False)
    assert pressed("s r", TABLE, Look()).sort["tasks"] == ("CPU", False)


def test_v_shows_the_next_value() -> None:
    assert press(Look(page=look.CURVE), "v", TABLE).value == "acc"
    assert press(Look(page=look.CURVE), "v", Extent()).value == ""


def test_logs_and_events_begin_at_their_end_other_texts_at_their_beginning() -> None:
    for page, key, opposite in ((look.LOG, "up", "down"), (look.EVENTS, "up", "down"), (look.STACKS, "down", "up")):
        moved = pressed(f"{key} {key}", TEXT, Look(page=page))
        assert moved.back == 2
        assert pressed(f"{opposite} {opposite} {opposite}", TEXT, moved).back == 0
    assert press(Look(page=look.LOG), "home", TEXT).back == 25
    assert press(Look(page=look.LOG), "pageup", TEXT).back == 9
    assert pressed("home end", TEXT, Look(page=look.LOG)).back == 0


def test_other_keys_and_empty_pages_change_nothing() -> None:
    for key in ("x", "f1", "ctrl+a", "s", "r", "down", "end"):
        assert press(Look(), key, Extent()) == Look()
