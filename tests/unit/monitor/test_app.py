"""The monitor as Textual runs it, without a terminal: keys, logs, stacks, and how little is written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.geometry import Region
from textual.pilot import Pilot

from gridtf.errors import GridtfError
from gridtf.monitor.app import Monitor, Picture
from gridtf.run.rundir import RunDir
from tests.support import recordedruns

Driven = Pilot[int]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return recordedruns.make(tmp_path / "digits", minutes=2.0)


def stacks(_: RunDir) -> list[str]:
    return ["4 tasks: train.py:7"]


def text(pilot: Driven) -> str:
    picture = pilot.app.query_one(Picture)
    return "\n".join(picture.render_line(row).text for row in range(picture.size.height))


async def until(pilot: Driven, words: str) -> None:
    """Wait until the screen shows some words."""
    for _ in range(600):
        if words in text(pilot):
            return
        await pilot.pause(0.05)
    raise AssertionError(f"no {words!r} in\n{text(pilot)}")


def drive(app: Monitor, keys: Callable[[Driven], Awaitable[None]], size: tuple[int, int] = (80, 24)) -> int | None:
    async def driven() -> int | None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, "COMPLETED")
            await keys(pilot)
        return app.return_value

    return asyncio.run(driven())


@pytest.mark.thorough
def test_keys_open_pages_and_sort(run: RunDir) -> None:
    async def keys(pilot: Driven) -> None:
        await pilot.press("h")
        await until(pilot, "SAMPLE")
        await pilot.press("c")
        await until(pilot, "loss (1 of 2 values)")
        await pilot.press("v")
        await until(pilot, "accuracy (2 of 2 values)")
        await pilot.press("e")
        await until(pilot, "all hosts have reported their ports")
        await pilot.press("question_mark")
        await until(pilot, "quit; the job goes on")
        await pilot.press("escape", "s")
        await until(pilot, "HOST▲")
        await pilot.press("r")
        await until(pilot, "HOST▼")

    drive(Monitor(run, stacks), keys)


@pytest.mark.thorough
def test_log_of_the_selected_task_is_followed(run: RunDir) -> None:
    log = run.attempt(1).task_log("worker", 1)

    async def keys(pilot: Driven) -> None:
        await pilot.press("down", "l")
        await until(pilot, "step 19 loss 0.0500 of worker:1")
        with log.open("a") as file:
            file.write("\x1b]0;title\x07\x1b[2Jone more line\n")
        await until(pilot, "one more line")
        assert "\x1b" not in text(pilot)

    drive(Monitor(run, stacks), keys)


def test_stacks_are_shown(run: RunDir) -> None:
    async def keys(pilot: Driven) -> None:
        await pilot.press("k")
        await until(pilot, "4 tasks: train.py:7")

    drive(Monitor(run, stacks), keys)


def test_error_of_stacks_is_shown_and_the_monitor_goes_on(run: RunDir) -> None:
    def refused(_: RunDir) -> list[str]:
        raise GridtfError("the job belongs to user ann", hint="only that user can ask it")

    async def keys(pilot: Driven) -> None:
        await pilot.press("k")
        await until(pilot, "only that user can ask it")
        await pilot.press("t")
        await until(pilot, "worker:0")

    drive(Monitor(run, refused), keys)


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_keys_that_quit(key: str, run: RunDir) -> None:
    async def keys(pilot: Driven) -> None:
        await pilot.press(key)
        await pilot.pause()
        assert not pilot.app.is_running

    drive(Monitor(run, stacks), keys)


@pytest.mark.thorough
def test_terminal_without_utf_8_gets_ascii_alone(run: RunDir) -> None:
    async def keys(pilot: Driven) -> None:
        for page in "thecl":
            await pilot.press(page)
            assert text(pilot).isascii()
        await pilot.press("c")
        await until(pilot, "**")

    drive(Monitor(run, stacks, ascii_only=True), keys)


def test_resized_terminal_is_drawn_anew(run: RunDir) -> None:
    async def keys(pilot: Driven) -> None:
        for size in ((40, 10), (3, 2), (1, 1), (120, 40)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert {len(line) for line in text(pilot).splitlines()} == {size[0]}
        assert "worker:0" in text(pilot)

    drive(Monitor(run, stacks), keys)


def test_only_what_has_changed_is_drawn(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Region] = []

    async def keys(pilot: Driven) -> None:
        await pilot.pause(0.2)
        monkeypatch.setattr(Picture, "refresh", lambda self, *regions: drawn.extend(regions))
        await pilot.press("S", "S")
        assert drawn
        assert {region.height for region in drawn} == {1}
        drawn.clear()
        await pilot.press("f1")
        assert drawn == []
        monkeypatch.undo()

    drive(Monitor(run, stacks), keys)


def test_bug_in_a_reader_ends_the_monitor_with_it(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: RunDir) -> list[str]:
        raise ZeroDivisionError("a bug")

    app = Monitor(run, broken)

    def as_users_do(**_: object) -> int:
        async def keys(pilot: Driven) -> None:
            await pilot.press("k")
            for _ in range(100):
                await pilot.pause(0.05)
                if not pilot.app.is_running:
                    return

        return drive(app, keys) or 0

    monkeypatch.setattr(app, "run", as_users_do)
    with pytest.raises(ZeroDivisionError):
        app.run_until_quit()
