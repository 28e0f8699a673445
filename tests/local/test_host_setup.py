"""Set-up lines of every host (host_setup), with real jobs on simulated hosts."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path

import pytest

from gridtf.host.procfs import alive
from tests.support.fixtures import Launch
from tests.support.jobs import until

HOSTS = [{"name": f"n{number}"} for number in (1, 2, 3)]
ONE = {"tasks": {"worker": {"count": 1}}}
THREE = {"tasks": {"worker": {"count": 3}}, "nodes": 3, "tasks_per_node": 1}


def lines(folder: Path, name: str) -> list[str]:
    return sorted((folder / name).read_text().split())


def test_lines_run_once_on_every_host_and_tasks_get_what_they_export(launch: Launch, tmp_path: Path) -> None:
    here = {**HOSTS[0], "slots": 2}
    spec = {"tasks": {"worker": {"count": 4}}, "nodes": 3}
    setup = ["echo $GRIDTF_ATTEMPT >> ran", r"export MODEL=$'a\nb' EMPTY=", "unset GONE", "cd /", "echo $MODEL"]
    code = "import os; print(repr(os.environ['MODEL']), repr(os.environ['EMPTY']), 'GONE' in os.environ, os.getcwd())"
    job = launch(sys.executable, "-c", code, hosts=[here, *HOSTS[1:]], host_setup=setup, env={"GONE": "x"}, **spec)
    assert job.wait() == 0, job.output
    assert lines(tmp_path, "ran") == ["1", "1", "1"]
    for index in range(4):
        log = job.attempt.task_log("worker", index).read_text()
        assert log == f"'a\\nb' '' False {tmp_path}\n"
    assert (job.attempt.host_setup / "n2.log").read_text() == "a b\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("test $(uname -n) = elsewhere", "host_setup line 2 failed with exit code 1 on host n2"),
        ("exit 0", "host_setup ended before its last line on host n2"),
        ("exit 3", "host_setup failed with exit code 3 on host n2"),
        ("kill -9 $$", "host_setup was killed by SIGKILL on host n2"),
        ("f() { false; true; }; f; source ./bad; false", "host_setup line 2 failed with exit code 1 on host n2"),
    ],
)
def test_line_that_fails_on_one_host_names_it(launch: Launch, tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "bad").write_text("false\ntrue\n")
    hosts = [{**host, "prefix": ["env", f"GRIDTF_HERE={host['name']}"]} for host in HOSTS]
    setup = ["echo begin", f"[ $GRIDTF_HERE != n2 ] || {{ echo oh; {line}; }}", "echo more"]
    job = launch("true", hosts=hosts, host_setup=setup, **THREE)
    verdict = job.verdict()
    assert verdict["state"] == "FAILED"
    assert told in verdict["reason"], verdict
    assert "oh" in verdict["reason"]
    assert verdict["hint"] == f"see {job.attempt.host_setup / 'n2.log'}"


def test_lines_that_hang_are_ended_in_time(launch: Launch, tmp_path: Path) -> None:
    job = launch("true", host_setup=["echo $$ > pid", "exec sleep 1000"], start_timeout=4, **ONE)
    verdict = job.verdict()
    assert "host_setup has not ended within 3 s on host" in verdict["reason"]
    assert not alive(job.written("pid"))


def test_log_of_lines_that_print_much_is_begun_anew(launch: Launch, tmp_path: Path) -> None:
    setup = ["yes | head -c 40000000", "touch printed", "until [ -e go ]; do sleep 0.05; done", "echo last"]
    job = launch("true", host_setup=setup, **ONE)
    until(lambda: (tmp_path / "printed").exists(), "the end of the output")
    (log,) = job.attempt.host_setup.iterdir()
    until(lambda: 0 < log.stat().st_size < 20_000_000, "a shorter log")
    (tmp_path / "go").touch()
    assert job.wait() == 0, job.output
    assert log.read_text().endswith("last\n")


def test_log_of_lines_that_print_one_long_line_keeps_its_end(launch: Launch, tmp_path: Path) -> None:
    prints = f'{shlex.quote(sys.executable)} -c \'import os; os.write(1, 60_000_000 * b"x" + b"end")\''  # all at once
    setup = [prints, "touch printed", "until [ -e go ]; do sleep 0.05; done", "false"]
    job = launch("true", host_setup=setup, **ONE)
    until(lambda: (tmp_path / "printed").exists(), "the end of the output")
    (log,) = job.attempt.host_setup.iterdir()
    until(lambda: 0 < log.stat().st_size < 20_000_000, "a shorter log")
    (tmp_path / "go").touch()
    assert "xxx" in job.verdict()["reason"]
    assert log.read_text().endswith("xxx")


def test_cancelled_job_ends_lines_and_what_they_have_started(launch: Launch, tmp_path: Path) -> None:
    job = launch("true", host_setup=["setsid sleep 1000 & echo $! > daemon", "sleep 1000"], **ONE)
    daemon = job.written("daemon")
    job.process.send_signal(signal.SIGTERM)
    assert job.verdict()["state"] == "CANCELLED"
    until(lambda: not alive(daemon), "the end of the daemon")


def test_daemon_of_a_line_lives_as_long_as_the_tasks(launch: Launch, tmp_path: Path) -> None:
    setup = ["setsid sleep 1000 & echo $! > daemon", "export DAEMON=$(cat daemon)"]
    job = launch("sh", "-c", "kill -0 $DAEMON", host_setup=setup, **ONE)
    assert job.wait() == 0, job.output
    assert not alive(job.written("daemon"))
