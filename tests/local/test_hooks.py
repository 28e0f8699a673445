"""The commands that a job runs at its events (on), with real jobs of the local scheduler."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from gridtf.host.procfs import alive
from gridtf.run.rundir import RunDir, read_record
from tests.support.commands import call, python, submit
from tests.support.fixtures import Launch
from tests.support.jobs import LaunchedJob, until

NOTES = "read -r line && printf '%s\\n' \"$line\" >> notes; echo $GRIDTF_EVENT >> names"
STEPS = """
import os, sys, time
import gridtf
gridtf.progress(3, loss=0.5)
while os.path.exists("wait"):
    time.sleep(0.05)
sys.exit(int(sys.argv[1]) if os.environ["GRIDTF_ATTEMPT"] == "1" else 0)
"""


@pytest.fixture
def told(launch: Launch, tmp_path: Path) -> Any:
    """told(EXIT, on=..., …): start two workers, which report a step; their first attempt exits with EXIT."""
    (tmp_path / "steps.py").write_text(STEPS)

    def start(code: int = 0, *, on: Any = (NOTES,), **spec: Any) -> LaunchedJob:
        command = (sys.executable, "steps.py", str(code))
        return launch(*command, on=on, tasks={"worker": {"count": 2}}, tasks_per_node=2, **spec)

    return start


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "notes").read_text().splitlines()]


def events(folder: Path) -> list[str]:
    return [record["event"] for record in records(folder)]


def test_every_event_of_a_job_fires_once_in_order_with_its_record(told: Any, tmp_path: Path) -> None:
    job = told(params={"lr": 0.1, "layers": 4}, name="digits")
    assert job.wait() == 0, job.output
    assert events(tmp_path) == ["start", "first_step", "end"]
    assert (tmp_path / "names").read_text().split() == events(tmp_path)
    start, step, end = records(tmp_path)
    for record in (start, step, end):
        assert record["version"] == 1
        assert (record["name"], record["scheduler"], record["attempt"]) == ("digits", "local", 1)
        assert record["run_dir"] == str(job.run.path)
        assert record["output_dir"] == str(job.run.output)
        assert record["params"] == {"lr": 0.1, "layers": 4}
        assert record["tasks"] == {"worker": 2}
        assert len(record["hosts"]) == 1
    assert (step["progress"]["step"], step["progress"]["values"]) == (3, {"loss": 0.5})
    assert (end["state"], end["exit_code"], end["next"], end["cause"]) == ("COMPLETED", 0, None, None)
    assert "state" not in start
    assert job.run.hooks_log.stat().st_mode & 0o777 == 0o600
    assert "nonce" not in (tmp_path / "notes").read_text()


def test_failure_of_each_attempt_is_told_and_the_end_once(told: Any, tmp_path: Path) -> None:
    job = told(3, restarts=2)
    assert job.wait() == 0, job.output
    names = [(record["event"], record["attempt"]) for record in records(tmp_path)]
    first = [("start", 1), ("first_step", 1), ("failure", 1)]
    assert names == [*first, ("start", 2), ("first_step", 2), ("end", 2)]
    failure = records(tmp_path)[2]
    assert (failure["state"], failure["next"], failure["cause"]["exit"]) == ("FAILED", 2, 3)


def test_failed_job_tells_failure_and_end_with_the_cause(told: Any, tmp_path: Path) -> None:
    job = told(3)
    assert job.verdict()["state"] == "FAILED"
    *_, failure, end = records(tmp_path)
    assert [failure["event"], end["event"]] == ["failure", "end"]
    assert failure["reason"] == end["reason"] == job.verdict()["reason"]
    assert end["cause"]["task"] in ("worker:0", "worker:1")


def test_job_whose_tasks_never_started_tells_failure_and_end(launch: Launch, tmp_path: Path) -> None:
    job = launch("true", on=[NOTES], host_setup=["false"], tasks={"worker": {"count": 1}})
    assert job.verdict()["state"] == "FAILED"
    assert events(tmp_path) == ["failure", "end"]


def test_hooks_that_fail_hang_print_and_daemonize_change_nothing(
    told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [
        "exit 7",
        "kill -9 $$",
        "no-such-program",
        "yes | head -c 5000000",
        "(setsid sleep 1000 & echo $! > daemon)",
        NOTES,
    ]
    job = told(on=bad)
    assert job.verdict()["state"] == "COMPLETED"
    assert events(tmp_path) == ["start", "first_step", "end"]
    log = job.run.hooks_log.read_text()
    assert job.run.hooks_log.stat().st_size < 3 * (1 << 16) + 4096
    assert "4934464 more bytes were left out" in log
    for how in ("hook 1 failed with exit code 7", "hook 2 was killed by SIGKILL", "hook 3 failed with exit code 127"):
        assert f"gridtf: {how}, at start: see {job.run.hooks_log}" in job.output
        assert f"gridtf: {how}, at end:" in job.output
    assert not alive(job.written("daemon"))
    assert f"{tmp_path}/run/hooks.log" in job.attempt.events.read_text()


def test_hook_that_hangs_is_ended_and_later_ones_run(told: Any, tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    job = told(on=["echo $$ > pid-$GRIDTF_EVENT; test $GRIDTF_EVENT != start || exec sleep 1000", NOTES])
    pid = job.written("pid-start")
    job.process.send_signal(signal.SIGTERM)  # while it hangs
    assert job.verdict()["state"] == "CANCELLED"
    assert events(tmp_path) == ["first_step", "end"]
    assert not alive(pid)
    assert "hook 1 was ended" in job.output


def test_site_says_how_long_hooks_may_take(told: Any, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text("[limits]\nhooks = 1\n")
    job = told(on=["test $GRIDTF_EVENT != end || exec sleep 1000"], env={"GRIDTF_SITE_CONFIG": str(site)})
    assert job.wait() == 0, job.output
    # by itself, or at the same moment by the launcher, which waits for all of them as long; or it begins too late
    ended = "hook 1 was ended(?: after 1 s|, since the job waits for it no longer)|no time is left for the hooks at end"
    assert re.search(rf"gridtf: (?:{ended}) \({re.escape(str(site))}:2: hooks = 1\)", job.output)


def test_hook_that_runs_when_the_tasks_are_ended_goes_on(told: Any, tmp_path: Path) -> None:
    job = told(3, on=["test $GRIDTF_EVENT != start || sleep 2; echo $GRIDTF_EVENT >> done"], kill_grace=0.1, restarts=1)
    assert job.wait() == 0, job.output
    done = (tmp_path / "done").read_text().split()
    assert done == ["start", "first_step", "failure", "start", "first_step", "end"]
    assert "hook 1" not in job.output


def test_hook_runs_although_its_log_cannot_be_written(told: Any, tmp_path: Path) -> None:
    (tmp_path / "run" / "hooks.log").mkdir(parents=True)
    job = told()
    assert job.wait() == 0, job.output
    assert events(tmp_path) == ["start", "first_step", "end"]


def test_job_of_a_script_tells_its_events(here: Path) -> None:
    call("run", "--on", NOTES, "--name", "script", "--", "true")
    assert events(here) == ["start", "end"]
    assert records(here)[-1]["name"] == "script"


def test_cancelled_job_tells_its_end(told: Any, tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    job = told(on=[NOTES])
    until(lambda: (tmp_path / "notes").exists() and "first_step" in events(tmp_path), "the first step")
    job.process.send_signal(signal.SIGTERM)
    assert job.verdict()["state"] == "CANCELLED"
    assert events(tmp_path) == ["start", "first_step", "end"]
    assert records(tmp_path)[-1]["state"] == "CANCELLED"


@pytest.mark.parametrize("who", ["launcher", "runner of the hooks"])
def test_nothing_is_left_when_a_process_of_gridtf_is_killed(told: Any, tmp_path: Path, who: str) -> None:
    (tmp_path / "wait").touch()
    hangs = "(setsid sleep 1000 & echo $! > daemon); echo $PPID > helper; exec sleep 1000"
    job = told(on=[f"test $GRIDTF_EVENT = start || exit 0; {hangs}"])
    daemon, helper = job.written("daemon"), job.written("helper")
    os.kill(job.process.pid if who == "launcher" else helper, signal.SIGKILL)
    if who == "launcher":
        until(lambda: not alive(helper), "the end of what runs the hooks")
    else:
        (tmp_path / "wait").unlink()
        assert job.verdict()["state"] == "COMPLETED"
        assert "what ran the hooks was killed, at start" in job.output
    until(lambda: not alive(daemon), "the end of the daemon")


def test_saved_job_that_goes_on_tells_its_end_once(here: Path) -> None:
    saves = "import os, sys, gridtf\nlast = os.environ['GRIDTF_ATTEMPT'] == '2'\ngridtf.progress(1 + last)\n"
    words = (
        "--continue",
        "2",
        "--time",
        "10m",
        "--checkpoint-before",
        "1m",
        "--on",
        NOTES,
        "--env",
        "LATER=yes",
        "--on",
        "test $LATER = yes",
    )
    job = submit(*words, *python(f"{saves}sys.exit(0 if last else 42)"))
    call("wait", job["run_dir"])
    until(lambda: (read_record(RunDir(job["run_dir"]).ended) or {}).get("exit") == 0, "the end of the script")
    names = [(record["event"], record["attempt"]) for record in records(here)]
    assert names == [("start", 1), ("first_step", 1), ("start", 2), ("first_step", 2), ("end", 2)]
    assert "hook 2" not in RunDir(job["run_dir"]).log.read_text()
