"""gridtf submit --follow and gridtf status --watch on real jobs, in a pipe and on a terminal."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import jsonschema
import pytest

from tests.support.commands import (
    FAILS,
    PRINTS,
    SLEEPS,
    TWO,
    as_json,
    call,
    command,
    python,
    running,
    started,
    status,
    submit,
)
from tests.support.jobs import until
from tests.support.python import ROOT
from tests.support.terminals import live_terminal, on_terminal

# prints a step, something for the terminal to act on, and a byte that is no UTF-8, then waits for the file `go`
TRAINS = python(
    "import os, sys, time\n"
    "sys.stdout.buffer.write(b'step 7/9 \\x1b[31mred\\x1b[m\\x1b[2J\\xff\\n'); sys.stdout.flush()\n"
    "while not os.path.exists('go'): time.sleep(0.05)"
)
# says which worker it is, then waits for the file `go`
STAYS = python(
    "import os, time\n"
    "print('I am worker', os.environ['GRIDTF_TASK_INDEX'], flush=True)\n"
    "while not os.path.exists('go'): time.sleep(0.05)"
)
HOST = os.uname().nodename.partition(".")[0]
ACTS = re.compile(r"\x1b\[2J|\x1b\]")


def test_follow_prints_logs_to_stdout_and_states_to_stderr(here: Path) -> None:
    with started("submit", "-f", "--name", "digits", *TWO, *STAYS) as process:
        assert process.stderr is not None
        errors = process.stderr
        until(lambda: re.match(r"\d\d:\d\d:\d\d  running; ", errors.readline()), "the job to be said to run")
        Path("go").touch()
        rows = process.communicate(timeout=180)[0].splitlines()
        assert process.returncode == 0
    assert [row.split()[0] for row in rows[:3]] == ["name", "scheduler", "job"]
    assert sorted(rows[4:6]) == [f"worker:0@{HOST} | I am worker 0", f"worker:1@{HOST} | I am worker 1"]
    assert rows[6].startswith("digits (")
    assert "): COMPLETED after " in rows[6]


def test_follow_has_the_exit_code_and_the_verdict_of_a_job_that_failed(here: Path) -> None:
    done = call("submit", "--follow", "--name", "bad", *TWO, *FAILS, code=1)
    assert f"worker:1@{HOST} | last words\n" in done.stdout
    assert "worker:1 on " in done.stdout
    assert done.stdout.endswith("\n  last words\n")


def test_follow_tells_what_led_to_the_state_and_the_verdict_above_the_next_attempt(here: Path) -> None:
    Path("fails.sh").write_text("echo begins; [ $GRIDTF_ATTEMPT = 2 ] || exit 1\n")
    words = command("submit", "-f", "--workers", "1", "--restarts", "1", "--", "bash", "fails.sh")
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=180, check=True)
    first, _, second = done.stdout.partition("--- attempt 2 ---\n")
    assert re.search(r"^[\d:]+  attempt 1 FAILED: .*; attempt 2 follows$", first, re.MULTILINE)
    assert "begins" in second
    assert "attempt 1 FAILED" not in second
    for part in (first, second):
        told = re.findall(r"^[\d:]+  (allocated 1 host|running; 1 task)", part, re.MULTILINE)
        told = [what for what, _ in groupby(told)]  # it may be said again, with more about it
        assert told in (["allocated 1 host", "running; 1 task"], ["allocated 1 host"])


def test_quiet_prints_the_verdict_alone(here: Path) -> None:
    for words in (("-f",), ("--wait",)):
        done = call("submit", *words, "--quiet", "--name", "digits", "--workers", "1", *PRINTS)
        assert done.stdout.startswith("digits (")
        assert done.stdout.count("\n") == 2
        assert "running" not in done.stderr


def test_ctrl_c_leaves_a_followed_job_running(here: Path) -> None:
    with started("submit", "-f", *TWO, *SLEEPS) as process:
        assert process.stdout is not None
        rows = [process.stdout.readline() for _ in range(6)]
        job = rows[2].split()[1]
        assert sorted(rows[4:]) == [f"worker:0@{HOST} | up\n", f"worker:1@{HOST} | up\n"]
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=180)
        assert process.returncode == 130
    assert error.splitlines()[-4:] == [
        f"gridtf: job {job} continues",
        f"  to see its logs again: gridtf logs -f {job}",
        f"  to wait again:         gridtf wait {job}",
        f"  to cancel it:          gridtf cancel {job}",
    ]
    assert running(job)["state"] == "RUNNING"
    call("cancel", job)


def test_follow_ends_quietly_when_its_reader_does(here: Path) -> None:
    Path("noisy.py").write_text("while True: print('words', flush=True)\n")
    words = command("submit", "-f", *TWO, "--", sys.executable, "noisy.py")
    done = subprocess.run(
        ["bash", "-c", f"{shlex.join(words)} | head -20"], capture_output=True, text=True, timeout=180, check=True
    )
    assert len(done.stdout.splitlines()) == 20
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "environ", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"NO_COLOR": "1"}]
)
def test_follow_on_a_terminal_has_a_line_at_the_bottom(here: Path, environ: dict[str, str]) -> None:
    Path("go").touch()
    code, seen = on_terminal("submit", "-f", *TWO, *TRAINS, **environ)
    text = seen.decode(errors="replace")
    assert code == 0, text
    assert re.search(r"worker:0(-1|@\S+) ", text)  # one line for both, if they print it within a moment
    assert "step 7/9 " in text
    assert re.search(r"\): (\x1b\[32m)?COMPLETED(\x1b\[m)? after ", text)
    assert re.search(r"[-\\|/] (running|attempt)", text)
    assert not ACTS.search(text)


def test_follow_on_a_dumb_terminal_prints_lines_alone(here: Path) -> None:
    Path("go").touch()
    code, seen = on_terminal("submit", "-f", *TWO, *TRAINS, TERM="dumb")
    assert code == 0
    assert not ACTS.search(seen.decode(errors="replace"))
    assert b"\r" not in seen
    assert b"\x1b[?25" not in seen


def test_line_at_the_bottom_has_steps_and_fits_a_terminal_that_is_resized(here: Path) -> None:
    with live_terminal("submit", "-f", *TWO, *TRAINS) as terminal:
        terminal.read_until(rb"[-\\|/] running for [^\r\n]*step 7/9[^\r\n]*\r")
        terminal.resize(30)
        terminal.read_until(rb"[-\\|/] running [^\r\n]*\xe2\x80\xa6\r")  # one of the new size
        seen = terminal.read_until(rb"\xe2\x80\xa6\r.*\xe2\x80\xa6\r")
        Path("go").touch()
        seen += terminal.read_until(b"COMPLETED\x1b")
    bottom = [line for line in re.split(r"\r\x1b\[2K|\n", seen.decode()) if re.match(r"[-\\|/] running", line)]
    assert bottom
    assert max(map(len, bottom)) < 30


@pytest.mark.parametrize("controls", [True, False])
@pytest.mark.parametrize("command", ["submit", "logs"])
def test_job_goes_on_when_the_terminal_of_its_follower_is_closed(here: Path, command: str, controls: bool) -> None:
    words = ["submit", "-f", "--name", "digits", *TWO, *STAYS]
    if command == "logs":
        submit("--name", "digits", *TWO, *STAYS)
        words = ["logs", "-f", "digits"]
    with live_terminal(*words, controls=controls) as terminal:
        terminal.read_until(b"I am worker 1")
        terminal.close()
        assert terminal.process.wait(60) == (-signal.SIGHUP if controls else 128 + signal.SIGPIPE)
    assert running("digits")["state"] == "RUNNING"
    Path("go").touch()
    call("wait", "digits")


def test_logs_f_on_a_terminal_has_a_line_at_the_bottom_and_no_states(here: Path) -> None:
    submit("--name", "digits", *TWO, *TRAINS)
    with live_terminal("logs", "-f", "digits") as terminal:
        seen = terminal.read_until(rb"[-\\|/] running for [^\r\n]*step 7/9")
        Path("go").touch()
        seen += terminal.read_until(rb"never")
        assert terminal.process.wait(60) == 0
    assert re.search(rb"worker:0(-1|@\S+) ", seen)
    assert not re.search(rb"\d\d:\d\d:\d\d  ", seen)


def test_submit_on_a_terminal_says_what_comes_next(here: Path) -> None:
    code, seen = on_terminal("submit", "--name", "digits", *TWO, *PRINTS)
    assert code == 0
    assert seen.decode().splitlines()[4:] == [
        "next           gridtf logs -f digits",
        "               gridtf status digits",
    ]
    for words in (("--quiet",), ("--json",)):
        assert b"gridtf status" not in on_terminal("submit", *words, *TWO, *PRINTS)[1]
    assert "gridtf status" not in call("submit", *TWO, *PRINTS).stderr


# --- status --watch


def test_status_shows_the_step_in_the_log_and_watch_ends_with_the_job(here: Path) -> None:
    job = submit("--name", "digits", *TWO, *TRAINS)
    running("digits")
    view = until(lambda: (found := as_json("status", "digits"))["tasks"][0]["logged"] and found, "a step in the log")
    assert view["tasks"][0]["logged"] == {"step": 7, "steps": 9, "epoch": None, "epochs": None}
    schema = json.loads((ROOT / "docs" / "status.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(view)
    text = call("status", "digits").stdout
    assert "7/9 (log)" in text
    assert "\x1b" not in text
    with started("status", "--watch", "digits") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("--- ")
        Path("go").touch()
        rest, error = process.communicate(timeout=180)
    assert (process.returncode, error) == (0, "")
    assert "state          COMPLETED after " in rest.split("--- ")[-1]
    assert job["job_id"] in rest


def test_watch_on_a_terminal_draws_in_place(here: Path) -> None:
    submit("--name", "digits", *TWO, *PRINTS)
    code, seen = on_terminal("status", "--watch", "digits", NO_COLOR="1")
    text = seen.decode()
    assert code == 0
    assert "state          COMPLETED after " in text.split("\x1b[J")[-1]
    assert "\x1b[?" not in text


def test_narrow_terminals(here: Path) -> None:
    Path("go").touch()
    code, seen = on_terminal("submit", "-f", "--name", "digits", *TWO, *TRAINS, COLUMNS="40")
    assert code == 0
    bottom = [line for line in re.split(r"\r\x1b\[2K|\n", seen.decode(errors="replace")) if re.match(r"[-\\|/] ", line)]
    assert bottom
    assert max(map(len, bottom)) <= 40
    code, seen = on_terminal("status", "digits", COLUMNS="40", NO_COLOR="1")
    table = seen.decode().partition("TASK ")[2].splitlines()
    assert max(map(len, table)) <= 40
    for environ in ({"COLUMNS": "40"}, {"COLUMNS": "20"}, {"COLUMNS": "20", "LC_ALL": "C"}, {"TERM": "dumb"}):
        code, seen = on_terminal("status", "--watch", "digits", **environ)
        assert code == 0
        assert b"COMPLETED" in seen


def test_ctrl_c_ends_watch_and_not_the_job(here: Path) -> None:
    job = submit(*TWO, *SLEEPS)["job_id"]
    running(job)
    with started("status", "--watch", job) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        assert (process.communicate(timeout=180)[1], process.returncode) == ("", 130)
    assert running(job)["state"] == "RUNNING"
    call("cancel", job)


# --- gridtf run


def test_run_follows_its_own_job(here: Path) -> None:
    done = call("run", *TWO, *PRINTS)
    assert sorted(done.stdout.splitlines()) == [f"worker:0@{HOST} | I am worker 0", f"worker:1@{HOST} | I am worker 1"]
    done = call("run", *TWO, *FAILS, code=1)
    assert f"worker:1@{HOST} | last words\n" in done.stdout
    assert "gridtf: FAILED: worker:1 on " in done.stderr


def test_run_on_a_terminal_folds_lines_unless_they_are_to_be_raw(here: Path) -> None:
    _, seen = on_terminal("run", *TWO, *python("print('alike')"), NO_COLOR="1", COLUMNS="80")
    assert re.search(rb"^worker:0(-1|@\S+) +\| alike$", seen, re.MULTILINE)
    _, seen = on_terminal("run", "--raw", *TWO, *python("print('alike')"), NO_COLOR="1", COLUMNS="80")
    assert len(re.findall(rb"^worker:[01]@\S+ +\| alike$", seen, re.MULTILINE)) == 2


def test_run_that_cannot_begin_says_why(here: Path) -> None:
    done = call("run", "--", "python3", "trian.py", code=2)
    assert "there is no file" in done.stderr
    done = call("run", "--workers", "1", "--run-dir", "/proc/no", "--", "true", code=1)
    assert done.stderr.startswith("gridtf: ")


@pytest.mark.parametrize(("number", "to_all"), [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, False)])
def test_signals_end_a_job_that_run_follows(here: Path, number: signal.Signals, to_all: bool) -> None:
    with started("run", "--name", "digits", *TWO, *SLEEPS) as process:
        assert process.stdout is not None
        assert {process.stdout.readline(), process.stdout.readline()} == {
            f"worker:0@{HOST} | up\n",
            f"worker:1@{HOST} | up\n",
        }
        os.killpg(process.pid, number) if to_all else os.kill(process.pid, number)
        process.communicate(timeout=180)
        assert process.returncode not in (0, None)
    assert status("digits")["state"] in ("CANCELLED", "FAILED")


def test_request_for_a_checkpoint_is_passed_on_by_run(here: Path) -> None:
    saves = (
        "import gridtf, time; print('up', flush=True)\n"
        "while not gridtf.checkpoint_requested(): time.sleep(0.05)\n"
        "exit(42)"
    )
    with started("run", "--workers", "1", *python(saves)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGUSR1)
        process.communicate(timeout=180)
        assert process.returncode == 42
