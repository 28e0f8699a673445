"""Screens of the monitor, made from the records of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridtf.monitor import pages
from gridtf.monitor.lines import text_of
from gridtf.monitor.look import CURVE, EVENTS, HELP, HOSTS, LOG, STACKS, TASKS, Look
from gridtf.monitor.reader import Reader
from gridtf.monitor.snapshot import Snapshot
from gridtf.run.rundir import RunDir
from gridtf.states import JobState
from gridtf.text import columns
from tests.support import recordedruns

FIRST = Look()
ALL = (TASKS, HOSTS, EVENTS, CURVE, LOG, STACKS, HELP)


def read(run: RunDir) -> Snapshot:
    reader = Reader(run)
    for _ in reader.look():
        pass
    assert not reader.snapshot.reading
    return reader.snapshot


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    path = tmp_path_factory.mktemp("runs") / "digits"
    return read(recordedruns.make(path, gpus=2, state=JobState.FAILED))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    path = tmp_path_factory.mktemp("runs") / "large"
    return read(recordedruns.make(path, workers=240, ps=16, host_count=32, gpus=8, minutes=2.0))


def shown(snapshot: Snapshot, look: Look = FIRST, size: tuple[int, int] = (80, 24), text: tuple[str, ...] = ()) -> str:
    screen = pages.screen(snapshot, look, *size, now=snapshot.at, text=text)
    assert len(screen.lines) == size[1]
    made = text_of(screen.lines)
    assert [line for line in made.splitlines() if columns(line) > size[0]] == []
    return made


def test_first_page_has_header_tasks_curve_and_events(failed: Snapshot) -> None:
    lines = shown(failed).splitlines()
    assert lines[0] == "digits  4711 on local".ljust(57) + "FAILED after 10 min 1 s"
    assert lines[1] == "worker:0 on h0: exit code 1"
    assert lines[3].split()[:3] == ["TASK▲", "HOST", "STATE"]
    assert lines[4].split()[:5] == ["worker:0", "h0", "FAILED", "1", "5950"]
    assert lines[-1].endswith("q quit")
    text = "\n".join(lines)
    assert "loss (1 of 2 values) of worker:0" in text
    assert "attempt 1 FAILED" in text


@pytest.mark.thorough
def test_256_tasks_are_shown_page_by_page(large: Snapshot) -> None:
    first = shown(large)
    assert "1 to 10 of 256" in first
    assert "loss" in first
    last = shown(large, Look(chosen={TASKS: "ps:15"}))
    assert "251 to 256 of 256" in last
    assert "ps:15" in last


def test_wide_terminals_have_sparklines(failed: Snapshot) -> None:
    row = shown(failed, size=(120, 24)).splitlines()[4]
    assert set("▂▄▆") & set(row)


@pytest.mark.parametrize("page", ALL)
@pytest.mark.parametrize("size", [(1, 1), (2, 5), (20, 3), (40, 10), (40, 24), (80, 24), (300, 100)])
def test_every_page_fits_terminals_of_every_size(page: str, size: tuple[int, int], large: Snapshot) -> None:
    shown(large, Look(page=page), size, ("one", "two" * 50))


def test_hosts_have_their_newest_sample_and_those_without_are_marked(failed: Snapshot) -> None:
    view = failed.view
    assert view is not None
    one, other = view.hosts
    running = view.replace(state=JobState.RUNNING, ended=None, hosts=(one, other.replace(sample=None)))
    assert one.sample is not None
    snapshot = failed.replace(view=running, clock=one.sample["time"] + 125)
    screen = pages.screen(snapshot, Look(page=HOSTS, chosen={HOSTS: "h1"}), 100, 24, snapshot.at)
    rows = {line[0][0].strip(): line for line in screen.lines if line and line[0][0].startswith("h")}
    assert next(part for part in rows["h0"] if part[0].strip() == "2 min 5 s ago")[1] == "bad"
    assert "none" in text_of([rows["h1"]])


def test_the_end_of_the_walltime_is_shown(failed: Snapshot) -> None:
    view = failed.view
    assert view is not None
    running = view.replace(state=JobState.RUNNING, ended=None, reason="", hint="", attempt=2, phase="rendezvous")
    snapshot = failed.replace(view=running, clock=1000.0, ends=1000.0 + 7200, now=9e9)
    text = shown(snapshot)
    assert "attempt 2, 2 h 0 min of walltime left" in text
    assert text.splitlines()[2].startswith("rendezvous") or "rendezvous" in text.splitlines()[1]


def test_curve_is_that_of_the_selected_task(large: Snapshot) -> None:
    assert "accuracy (2 of 2 values) of worker:7" in shown(
        large, Look(page=CURVE, chosen={TASKS: "worker:7"}, value="accuracy")
    )
    assert "loss (1 of 2 values) of worker:0" in shown(large, Look(page=CURVE, chosen={TASKS: "ps:1"}))


def test_job_without_reports_says_how_to_have_a_curve(tmp_path: Path) -> None:
    snapshot = read(recordedruns.make(tmp_path / "run", reports=False, minutes=1.0))
    assert "gridtf.progress" in shown(snapshot, Look(page=CURVE))
    assert "STEP" not in shown(snapshot)


def test_log_begins_at_its_end_and_says_whose_it_is(failed: Snapshot) -> None:
    text = tuple(f"line {number}" for number in range(100))
    lines = shown(failed, Look(page=LOG), text=text).splitlines()
    assert lines[3] == "log of worker:0"
    assert lines[-2] == "line 99"
    assert shown(failed, Look(page=LOG, back=1000), text=text).splitlines()[4] == "line 0"
    assert shown(failed, Look(page=STACKS), text=text).splitlines()[3] == "line 0"


def test_task_that_failed_first_is_selected(failed: Snapshot) -> None:
    view = failed.view
    assert view is not None
    cause = {**(view.cause or {}), "task": "worker:2"}
    snapshot = failed.replace(view=view.replace(cause=cause))
    assert pages.selected_task(snapshot, Look()) == "worker:2"
    assert pages.selected_task(snapshot, Look(chosen={TASKS: "worker:1"})) == "worker:1"


def test_nothing_read_yet() -> None:
    nothing = Snapshot("digits-1", at=100.0)
    assert "reading its records" in shown(nothing)
    assert "no answer" not in shown(nothing)
    late = text_of(pages.screen(nothing, Look(), 100, 24, 190.0).lines)
    assert "nothing could be read for 1 min 30 s" in late


def test_trouble_is_a_line(failed: Snapshot) -> None:
    assert "/run was removed" in shown(failed.replace(trouble="/run was removed while gridtf waited"))
    assert "worker:0" in shown(failed.replace(trouble="/run was removed while gridtf waited"))


def test_job_of_another_user_says_who_may_read_its_tasks(failed: Snapshot) -> None:
    view = failed.view
    assert view is not None
    text = shown(failed.replace(view=view.replace(tasks=(), hosts=()), private="ann"))
    assert "only user ann may read which tasks this job has" in text
    assert "submitted" in text


def test_texts_of_records_are_safe_for_a_terminal(failed: Snapshot) -> None:
    evil = "\x1b]52;c;eA==\x07\x1b[2J\n\u202e"
    view = failed.view
    assert view is not None
    task = view.tasks[0].replace(host=evil, state=evil, signal=evil)
    bad = view.replace(name=evil, job_id=evil, state=evil, reason=evil, hint=evil, tasks=(task,))
    snapshot = failed.replace(view=bad, name=evil, trouble=evil, events=({"time": 0, "event": evil, "attempt": 1},))
    for page in ALL:
        for size in ((80, 24), (300, 24)):
            made = pages.screen(snapshot, Look(page=page), *size, now=snapshot.at, text=(evil,))
            assert all(text.isprintable() for line in made.lines for text, _ in line)
    assert all(line.isprintable() for line in pages.as_text(snapshot, 80).splitlines())


def test_text_of_all_pages(failed: Snapshot, large: Snapshot) -> None:
    text = pages.as_text(failed, 80)
    assert [part.split()[0] for part in text.split("\n\n")][:3] == ["digits", "TASK", "HOST"]
    assert "attempt 1 FAILED" in text
    assert "loss (1 of 2 values) of worker:0" in text
    assert len([line for line in pages.as_text(large, 80).splitlines() if line.startswith(("worker:", "ps:"))]) == 256


def test_job_without_samples_is_not_said_to_report_nothing(failed: Snapshot) -> None:
    assert "no samples: " in pages._no_curve(failed.replace(recent={}, curves={}))
    assert "no values: " in pages._no_curve(failed.replace(curves={}))
