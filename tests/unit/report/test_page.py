"""The page about a job: what it says. Of damaged records it is made in test_damaged_runs.py."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gridtf.observe.outcome import Reported
from gridtf.report import page
from gridtf.report.save import MARK
from gridtf.run import jsonlines
from gridtf.run.rundir import RunDir, read_record, write_record
from gridtf.secrets import MASK
from tests.support import recordedruns
from tests.support.plans import NONCE
from tests.support.recordedruns import BEGIN
from tests.support.topics import fast

RECORDED = Path(__file__).parents[2] / "recorded" / "run-0.1.0"
NOW = BEGIN + 7200
_VOID = ("meta", "br", "link", "img", "input", "hr")


class _Tags(HTMLParser):
    """Checks that every element is closed in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        """Shapes of SVG have no content."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.text.append(data)


def seen(html: str) -> str:
    """The text of a page, after a check of its elements."""
    parser = _Tags()
    parser.feed(html)
    assert parser.open == []
    return " ".join(" ".join(parser.text).split())


def made(run: RunDir, now: float = NOW) -> str:
    html = page.of_job(run, now)
    assert MARK in html[:1024]
    assert not re.search(r"(?:src|href)=|url\(\s*['\"]?(?!#hatch)|@import", html)
    return html


def test_page_of_a_failed_job(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", workers=2, ps=1, gpus=2, minutes=10, state="FAILED")
    text = seen(made(run))
    for part in (
        *("digits (4711)", "✕ FAILED", "worker:0 on h0: exit code 1", "worker:0 on h0 exited with code 1"),
        *(
            "step 19 loss 0.0500 of worker:0",
            "queue 20 s",
            "training 10 min 0 s",
            "Steps per second",
            "GPU utilisation",
        ),
        *("GPU-hours were allocated", "Memory of a worker", "ann", "#!/bin/bash", "Made by gridtf"),
    ):
        assert part in text
    assert "has not ended" not in text


def test_first_cause_that_gridtf_has_ended_is_told_as_such(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", workers=2, minutes=1, state="FAILED")
    text = run.attempt(1).events.read_text()
    ended = '"task": "worker:0", "host": "h0", "state": "FAILED", "exit": 1, "signal": null'
    assert ended in text
    stopped = '"task": "worker:0", "host": "h0", "state": "STOPPED", "exit": null, "signal": "SIGTERM"'
    run.attempt(1).events.write_text(text.replace(ended, stopped))
    verdict = json.loads(run.attempt(1).verdict.read_text())
    verdict["cause"] |= {"exit": None, "signal": "SIGTERM"}
    write_record(run.attempt(1).verdict, verdict)
    html = made(run)
    assert "worker:0 on h0 was ended by gridtf with SIGTERM." in seen(html)
    assert "worker:0 on h0, attempt 1: FAILED, the first cause, SIGTERM after 1 min 0 s" in html
    assert "! first cause" in seen(html)


def test_page_of_several_attempts(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=5, state="FAILED")
    recordedruns.make(tmp_path / "digits", minutes=5, begin=BEGIN + 4000)
    html = made(run)
    text = seen(html)
    assert "in 2 attempts" in text
    assert "✓ COMPLETED" in text
    assert "First cause" not in text
    assert "Long waits in the queue are drawn shorter" in text
    assert html.count('class="wait"') > 1


@pytest.mark.parametrize("clock", [0.0, -3600.0, 3600.0])
def test_last_step_is_that_of_the_end_although_no_sample_has_it(clock: float, tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "run", workers=2, minutes=10)
    summary = read_record(run.attempt(1).summary, listed=True)
    assert summary is not None
    task = summary["hosts"]["h0"]["tasks"]["worker:0"]
    task["progress"] = {"step": 98765, "values": {"loss": 0.0125}, "time": task["ended"] + clock}
    task["ranges"] = {"loss": [0.0075, 77.0]}
    write_record(run.attempt(1).summary, summary)
    html = made(run)
    text = seen(html)
    assert "Last step 98,765" in text
    assert "Last loss 0.0125 0.0075 to 77" in text
    assert "1 h" not in text.partition("Curves")[2].partition("Placement")[0]  # on the axis of time
    run.attempt(1).samples.unlink()
    text = seen(made(run))
    assert "Last step 98,765" in text
    assert "From 0 samples" not in text


def test_page_of_a_job_that_is_not_over_says_so(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=5, state="RUNNING")
    assert "The job has not ended: this is what was known on" in seen(made(run, BEGIN + 400))


def test_page_of_a_job_that_has_only_been_submitted(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=1)
    shutil.rmtree(run.attempt(1).path)
    assert "The job has not started yet." in seen(made(run))


def test_page_of_an_older_gridtf(tmp_path: Path) -> None:
    shutil.copytree(RECORDED, tmp_path / "old")
    text = seen(made(RunDir(tmp_path / "old")))
    assert "worker:0 on n1: exit code 3" in text
    assert "ValueError: no data" in text
    assert "has no samples" in text


def test_page_of_tasks_that_joined(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "joined", workers=2, host_count=1, minutes=5)
    attempt = run.attempt(1)
    for path in (attempt.verdict, attempt.events, attempt.samples, attempt.summary, attempt.launcher):
        path.unlink()
    attempt.ranks.mkdir()
    for rank in range(2):
        state = {"state": "COMPLETED", "started": BEGIN + 30, "ended": BEGIN + 330 + rank, "exit": 0}
        record = {"nonce": NONCE, "host": "h0", "tasks": {f"worker:{rank}": state}}
        write_record(attempt.rank_state(f"rank-{rank}"), record)
    (run.path / "join-4711").mkdir()
    write_record(run.path / "join-4711" / "opened.json", {"nonce": NONCE, "attempt": 1})
    text = seen(made(run))
    assert "worker:1 on h0, attempt 1: COMPLETED, exit code 0 after 5 min 1 s" in text
    assert "has no samples" in text


def test_records_and_logs_are_escaped(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=1, state="FAILED")
    verdict = json.loads(run.attempt(1).verdict.read_text())
    verdict["reason"] = "<script>alert(1)</script>\x1b[31m\u202e"
    verdict["cause"]["tail"] = ["</pre><img src=x onerror=alert(1)>", "\x1b]0;title\x07 bell \udc9b2J"]
    verdict["cause"]["task"] = '"><b>'
    write_record(run.attempt(1).verdict, verdict)
    html = page.of_job(run, NOW)
    assert "<script>alert" not in html
    assert "<img" not in html
    assert '"><b>' not in html
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", html)
    assert r"\x1b]0;title\x07" in seen(html)
    html.encode()


def test_secrets_are_masked_everywhere(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=1, state="FAILED")
    env = {"WANDB_API_KEY": "hunter22-secret", "MODE": "fast", "DATA": "https://ann:hunter33-secret@example.org/x"}
    spec = {
        "command": ["train", "--token", "hunter44-secret"],
        "env": env,
        "tasks": {"ps": {"env": {"A_KEY": "hunter55-secret"}}},
    }
    write_record(run.job, {"spec": spec, "sources": {"env.MODE": "gridtf.toml:3"}})
    run.script.write_text(f"export GRIDTF_SPEC='{json.dumps(spec)}'\nexport DB_PASSWORD=hunter66-secret\n")
    verdict = json.loads(run.attempt(1).verdict.read_text())
    verdict["cause"]["tail"] = ["wandb: login with hunter22-secret"]
    write_record(run.attempt(1).verdict, verdict)
    html = made(run)
    assert not re.search(r"hunter\d\d-secret", html)
    text = seen(html)
    assert f"wandb: login with {MASK}" in text
    assert "MODE fast gridtf.toml:3" in text
    assert f"WANDB_API_KEY {MASK}" in text


def test_files_of_other_users_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=1)
    monkeypatch.setattr("os.access", lambda path, _: Path(path).name not in ("job.json", "plan.json", "job.sh"))
    text = seen(made(run))
    assert "Only the owner of the job may read attempt-1/plan.json, job.json, job.sh" in text
    assert "such as the specification" in text
    assert "Steps per second" in text


def test_values_that_are_no_finite_numbers_are_told(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", workers=1, host_count=1, minutes=2)
    text = run.attempt(1).samples.read_text()
    last = text.rindex('"loss":')
    run.attempt(1).samples.write_text(text[:last] + re.sub(r'"loss":[\d.]+', '"loss":"nan"', text[last:]))
    assert "loss was no finite number at step 1150 of worker:0" in seen(made(run))


def test_cut_lines_and_newer_files_are_left_out(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=2)
    samples = run.attempt(1).samples
    samples.write_text(samples.read_text()[:-40])
    assert "From 47 samples" in seen(made(run))
    samples.write_text(jsonlines.line({"version": 99, "nonce": "x"}) + samples.read_text())
    assert "has no samples" in seen(made(run))


def test_cut_record_is_named_on_the_page(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", workers=2, minutes=0.5, state="FAILED")
    (path,) = run.path.rglob("hosts.json")
    path.write_text(path.read_text()[:100])
    assert f"{path} is damaged: it is not a JSON object" in seen(page.of_job(run, NOW))


@pytest.mark.thorough
def test_report_of_many_tasks_is_small(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", workers=1000, host_count=125, gpus=8, minutes=5, interval=60)
    html = made(run)
    assert len(html) < 1_000_000
    assert "share a row" in seen(html)


def test_two_jobs_are_compared(tmp_path: Path) -> None:
    first = recordedruns.make(tmp_path / "a", workers=2, minutes=5)
    second = recordedruns.make(tmp_path / "b", workers=4, gpus=2, minutes=10)
    text = seen(page.of_two(first, second, NOW))
    assert "a (4711)" in text
    assert "b (4711)" in text
    for part in (
        "tasks.worker.count 2 4",
        "Time with hosts 5 min 11 s 10 min 11 s +96.5 %",
        "GPU-hours used",
        "loss, last",
        "By step",
        "By time",
    ):
        assert part in text


def test_job_without_records_is_compared_as_well(tmp_path: Path) -> None:
    first = recordedruns.make(tmp_path / "a", minutes=1)
    (tmp_path / "b").mkdir()
    text = seen(page.of_two(first, RunDir(tmp_path / "b"), NOW))
    assert "The specification of B is not known here" in text


@pytest.mark.thorough
def test_several_jobs_of_all_kinds_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        recordedruns.make(tmp_path / "plain", workers=2, minutes=5),
        recordedruns.make(tmp_path / "runs", workers=2, minutes=5, state="RUNNING"),
        recordedruns.make(tmp_path / "failed", workers=2, minutes=5, state="FAILED"),
        recordedruns.make(tmp_path / "silent", workers=2, minutes=5, reports=False),
        recordedruns.make(tmp_path / "resumed", minutes=5, state="FAILED"),
        recordedruns.make(tmp_path / "waits", workers=2, minutes=1),
        recordedruns.make(tmp_path / "theirs", workers=2, minutes=5),
    ]
    (tmp_path / "array").mkdir()
    element = recordedruns.make(tmp_path / "array" / "2", workers=2, minutes=5)
    write_record(RunDir(tmp_path).code, {"commit": "0123456789abcdef", "dirty": False})  # of the array
    for number, run in enumerate([*runs, element]):
        recordedruns.describe(
            run,
            params={"lr": 0.5**number, "api_key": f"hunter{number}-secret"},
            env={"A_KEY": f"hunter{number}-secret"},
        )
    recordedruns.make(tmp_path / "resumed", minutes=5, begin=BEGIN + 4000)
    shutil.rmtree(runs[5].attempt(1).path)
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != runs[6].job)
    html = page.of_several([*runs, element], BEGIN + 400, "The first ones.")
    text = seen(html)
    assert not re.search(r"hunter\d-secret", html)
    for part in (
        "8 runs The first ones. 2 of them have not ended: this is what was known on",
        "1 plain (4711) COMPLETED 1.0 5 min 1 s h0, h1 0.167 0.08094 0.08094 to 2.025 0.973 0.325 to 0.973",
        "2 runs (4711) UNKNOWN last heartbeat from h0",
        "3 failed (4711) FAILED worker:0 on h0: exit code 1 0.25 5 min 1 s",
        "4 silent (4711) COMPLETED 0.125 5 min 1 s h0, h1 0.167 \u2013 \u2013",
        "5 resumed (4711) COMPLETED 0.0625 10 min 2 s",
        "6 waits (4711) UNKNOWN",
        "7 theirs (4711) COMPLETED \u2013 5 min 1 s h0, h1 \u2013 0.08094",
        "8 2 (4711) COMPLETED 0.0078125 5 min 1 s",
        "The specification of 7 is not known here",
        "commit default 1, 2, 3, 4, 5, 6 0123456789ab 8",
        "tasks.worker.count 2 1, 2, 3, 4, 6, 8 4 5",
        "Time in the queue",
        "By step",
        "By time",
    ):
        assert part in text, text
    assert html.count('data-line="7"') > 2  # the last run has its own colour, whichever runs a chart has
    assert 'stroke="hsl(0 65% 45%)"' in html


@pytest.mark.thorough
def test_few_jobs_have_areas_and_dashes_instead_of_a_scale_of_colours(tmp_path: Path) -> None:
    runs = [recordedruns.make(tmp_path / name, workers=2, minutes=40) for name in "abc"]
    html = page.of_several(runs, NOW)
    assert "Settings that differ None. By step" in seen(html)
    assert 'class="line s2"' in html
    assert 'class="area s2"' in html
    assert "hsl(" not in html


@pytest.mark.parametrize("count", fast(1, 3, 50))
def test_comparison_of_fifty_jobs_is_a_small_page(count: int, tmp_path: Path) -> None:
    runs = [
        recordedruns.make(tmp_path / f"r{n}", workers=1, host_count=1, gpus=1, minutes=3 + n, begin=BEGIN + 11.7 * n)
        for n in range(count)
    ]
    html = page.of_several(runs, NOW)
    assert len(html) < 60_000 + count * 60_000
    assert html.count('<figure class="chart"') == 12


def test_values_of_runs_whose_samples_were_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [recordedruns.make(tmp_path / name, minutes=5, reports=False) for name in "abc"]
    monkeypatch.setattr(page, "reported", lambda run: {"loss": Reported(0.25, 0.125, 4.0, 7)} if run is runs[1] else {})
    assert "h0, h1 0.334 0.25 0.125 to 4 3 c (4711)" in seen(page.of_several(runs, NOW))
