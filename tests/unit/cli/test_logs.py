"""What `gridtf logs` prints: prefixes and colours, chosen lines, wrong arguments, terminals of every kind."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from gridtf.cli import main
from gridtf.cli.common import since
from gridtf.run import logparts
from gridtf.run.rundir import BY_HAND, RunDir, read_record, write_record
from tests.support import recordedruns
from tests.support.commands import command
from tests.support.terminals import on_terminal

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return recordedruns.make(tmp_path / "run", workers=2, state="FAILED", lines=2)


def printed(capsys: Captured, run: RunDir, *options: str) -> list[str]:
    assert main(["logs", str(run.path), *options]) == 0
    return capsys.readouterr().out.splitlines()


def test_lines_of_all_tasks_have_their_task_and_host(run: RunDir, capsys: Captured) -> None:
    assert printed(capsys, run) == [
        "job | gridtf: starting",
        "worker:0@h0 | step 0 loss 1.0000 of worker:0",
        "worker:1@h1 | step 0 loss 1.0000 of worker:1",
        "worker:0@h0 | step 1 loss 0.5000 of worker:0",
        "worker:1@h1 | step 1 loss 0.5000 of worker:1",
    ]


def test_one_log_has_no_prefix(run: RunDir, capsys: Captured) -> None:
    assert printed(capsys, run, "--task", "worker:1", "--tail", "1") == ["step 1 loss 0.5000 of worker:1"]
    assert printed(capsys, run, "--task", "job") == ["gridtf: starting"]


def test_output_of_a_script_with_gridtf_run_is_said_to_be_elsewhere(run: RunDir, capsys: Captured) -> None:
    write_record(run.submitted, {**(read_record(run.submitted) or {}), "command": [BY_HAND]})
    run.log.unlink()
    assert main(["logs", str(run.path), "--task", "job"]) == 0
    assert capsys.readouterr() == (
        "",
        "gridtf: what a script with gridtf_run prints is in the file that sbatch or qsub made for it\n",
    )


def test_tasks_follow_the_job_with_options_between(run: RunDir, capsys: Captured) -> None:
    assert main(["logs", str(run.path), "--tail", "1", "worker:1"]) == 0
    assert main(["logs", "--tail", "1", str(run.path), "worker:1", "--task", "worker:0"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "step 1 loss 0.5000 of worker:1",
        "worker:0@h0 | step 1 loss 0.5000 of worker:0",
        "worker:1@h1 | step 1 loss 0.5000 of worker:1",
    ]


def test_timestamps_stand_before_each_line(run: RunDir, capsys: Captured) -> None:
    attempt = run.attempt(1)
    attempt.task_log("worker", 0).write_text(attempt.task_log("worker", 0).read_text() + "later\n")
    end = recordedruns.BEGIN + 30 + 600
    then = [time.strftime("%Y-%m-%dT%H:%M:%S.000", time.localtime(end - 300 * back)) for back in (1, 0)]
    lines = [f"{at} step {number} loss {1 / (number + 1):.4f} of worker:0" for number, at in enumerate(then)]
    lines.append(f"{'-':<23} later")
    assert printed(capsys, run, "worker:0", "--timestamps") == lines
    several = [line for line in printed(capsys, run, "--timestamps") if line.startswith("worker:0")]
    assert several == [f"worker:0@h0 | {line}" for line in lines]


ALIKE = "I0000 00:00:1.5   7 grpc_server_lib.cc:467] Started server with target: grpc://h0:1\nalike\n"


@pytest.fixture
def alike(run: RunDir) -> RunDir:
    for index in (0, 1):
        run.attempt(1).task_log("worker", index).write_text(ALIKE)
    run.attempt(1).log_times.unlink()
    return run


def test_pipe_gets_all_lines_unless_no_raw_is_given(alike: RunDir, capsys: Captured) -> None:
    assert printed(capsys, alike)[1:] == [f"worker:{n}@h{n} | {line}" for n in (0, 1) for line in ALIKE.splitlines()]
    assert main(["logs", str(alike.path), "--no-raw"]) == 0
    assert capsys.readouterr() == (
        "job | gridtf: starting\nworker:0-1 | alike\n",
        "gridtf: 2 lines of TensorFlow and of progress bars left out; --raw shows all\n",
    )
    assert printed(capsys, alike, "--no-raw", "--grep", "grpc") == [f"worker:0-1 | {ALIKE.splitlines()[0]}"]


def test_lines_are_chosen_by_a_regular_expression(run: RunDir, capsys: Captured) -> None:
    assert printed(capsys, run, "--grep", r"^step 1.*:0$") == ["worker:0@h0 | step 1 loss 0.5000 of worker:0"]
    assert main(["logs", str(run.path), "--grep", "no such line"]) == 0
    assert capsys.readouterr() == ("", "gridtf: no line of the logs is chosen\n")


def test_lines_are_chosen_by_their_time(run: RunDir, capsys: Captured) -> None:
    end = recordedruns.BEGIN + 30 + 600
    then = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(end - 60))
    assert [line for line in printed(capsys, run, "--since", then) if "step" in line] == [
        "worker:0@h0 | step 1 loss 0.5000 of worker:0",
        "worker:1@h1 | step 1 loss 0.5000 of worker:1",
    ]


def test_last_errors_are_shown_a_block_for_each_task(run: RunDir, capsys: Captured) -> None:
    log = run.attempt(1).task_log("worker", 0)
    log.write_text('Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nKeyError: "x\x1b[2J"\n')
    run.attempt(1).task_log("worker", 1).write_text("done\nfatal: no data\nbye\n")
    run.log.write_text("gridtf: FAILED: worker:0 on h0: KeyError: x (a.py:3)\n")
    assert printed(capsys, run, "--errors") == [
        "worker:0@h0",
        '  KeyError: "x"',
        '    File "a.py", line 3, in f',
        "      g()",
        "worker:1@h1",
        "  fatal: no data",
    ]
    assert printed(capsys, run, "--errors", "--task", "worker:1") == ["worker:1@h1", "  fatal: no data"]


def test_errors_of_all_attempts_are_named_by_attempt(run: RunDir, capsys: Captured) -> None:
    recordedruns.make(run.path, workers=1, state="COMPLETED", lines=2)
    run.attempt(1).task_log("worker", 0).write_text("ValueError: no data\n")
    assert printed(capsys, run, "--errors", "--attempt", "all") == [
        "attempt 1, worker:0@h0",
        "  ValueError: no data",
    ]


def test_what_a_limit_has_removed_is_said(run: RunDir, capsys: Captured) -> None:
    log = run.attempt(1).task_log("worker", 0)
    logparts.note_begins(log, {log.stat().st_ino: 5000})
    missing = "gridtf: 5000 bytes are missing here: log_limit has removed them"
    assert printed(capsys, run, "--task", "worker:0")[0] == missing
    assert f"worker:0@h0 | {missing}" in printed(capsys, run)
    assert missing not in printed(capsys, run, "--task", "worker:0", "--tail", "1")


def test_following_ends_when_its_reader_does_although_nothing_comes(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "run", workers=1, state="RUNNING", lines=2)
    with subprocess.Popen(command("logs", "-f", str(run.path)), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 128 + 13


def test_logs_without_errors_are_said_to_have_none(run: RunDir, capsys: Captured) -> None:
    assert main(["logs", str(run.path), "--errors"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "gridtf: the logs end without an error\n")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--grep", "("],
            "'(' is not a regular expression of Python: missing ), unterminated subpattern at position 0",
        ),
        (["--since", "yesterday"], "'yesterday' is neither a duration, such as 10m or 2h, nor a time, such as 14:30"),
        (["--since", "25:00"], "'25:00' is neither a duration"),
        (["--attempt", "0"], "'0' is neither the number of an attempt nor all"),
        (["--attempt", "7"], "no such attempt: 7"),
        (["--tail", "x"], "'x' is not a number of lines"),
        (["--task", "worker:9"], "no such task: worker:9"),
        (["--errors", "-f"], "--errors shows one error of each task: leave out --follow"),
        (["--errors", "--grep", "x"], "leave out --grep"),
    ],
)
def test_wrong_options_are_refused_in_a_few_lines(options: list[str], says: str, run: RunDir, capsys: Captured) -> None:
    assert main(["logs", str(run.path), *options]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""
    assert len(captured.err.splitlines()) <= 3


def test_clock_time_is_the_last_one_that_has_been() -> None:
    now = time.time()
    soon, before = (time.strftime("%H:%M:%S", time.localtime(now + shift)) for shift in (3600, -3600))
    assert now - 86400 - 3600 <= since(soon) <= now - 86400 + 2 * 3600  # a day may have 23 or 25 hours
    assert now - 3602 <= since(before) <= now - 3598
    assert now - 602 <= since("10m") <= now - 598
    assert time.localtime(since("2026-11-23 14:30"))[:5] == (2026, 11, 23, 14, 30)
    for wrong in ("", "-5m", "14:61", "2026-13-01", "inf"):
        with pytest.raises(ArgumentTypeError):
            since(wrong)


# --- terminals


def test_prefixes_are_aligned_and_coloured_by_task_on_a_terminal(run: RunDir) -> None:
    code, seen = on_terminal("logs", str(run.path), COLUMNS="80")
    lines = seen.decode().splitlines()
    assert code == 0
    assert lines[1] == "\x1b[36mworker:0@h0 |\x1b[m step 0 loss 1.0000 of worker:0"
    assert lines[2] == "\x1b[33mworker:1@h1 |\x1b[m step 0 loss 1.0000 of worker:1"
    assert lines[0].endswith("job |\x1b[m gridtf: starting")


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_terminal_without_colours_gets_none(environ: dict[str, str], run: RunDir) -> None:
    run.attempt(1).task_log("worker", 0).write_text("\x1b[31mred\x1b[m\n")
    code, seen = on_terminal("logs", str(run.path), COLUMNS="80", **environ)
    assert code == 0
    assert b"\x1b" not in seen
    assert b"worker:0@h0 | red\n" in seen


@pytest.mark.thorough
def test_terminal_gets_what_tasks_print_alike_once_and_no_noise(alike: RunDir) -> None:
    code, seen = on_terminal("logs", str(alike.path), COLUMNS="80")
    note = "gridtf: 2 lines of TensorFlow and of progress bars left out; --raw shows all"
    assert (code, seen.decode().splitlines()[1:]) == (0, ["\x1b[1mworker:0-1 |\x1b[m alike", note])
    _, seen = on_terminal("logs", "--raw", str(alike.path), COLUMNS="80", NO_COLOR="1")
    assert seen.decode().splitlines()[1:] == [
        f"worker:{n}@h{n} | {line}" for n in (0, 1) for line in ALIKE.splitlines()
    ]


def test_narrow_terminal_gets_no_hosts(run: RunDir) -> None:
    _, seen = on_terminal("logs", str(run.path), COLUMNS="40", NO_COLOR="1")
    assert seen.decode().splitlines()[1] == "worker:0 | step 0 loss 1.0000 of worker:0"


def test_escape_sequences_of_logs_and_records_do_not_reach_a_terminal(run: RunDir) -> None:
    plan = {"nonce": "n", "tasks": [{"type": "worker", "index": index, "host": "h\x1b[2J"} for index in (0, 1)]}
    write_record(run.attempt(1).plan, plan)
    run.attempt(1).task_log("worker", 0).write_bytes(b"\x1b]52;c;eA==\x07text\x9b2J \x1b[1mbold\n")
    _, seen = on_terminal("logs", str(run.path), COLUMNS="80")
    assert {*re.findall(rb"\x1b[^m]*.", seen)} <= {b"\x1b[36m", b"\x1b[33m", b"\x1b[1m", b"\x1b[m"}
    assert rb"worker:0@h\x1b[2J |" in seen


def test_terminal_without_utf_8_gets_question_marks(run: RunDir) -> None:
    run.attempt(1).task_log("worker", 0).write_text("caf\u00e9\n")
    environ = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    code, seen = on_terminal("logs", str(run.path), "--task", "worker:0", **environ)
    assert (code, seen) == (0, b"caf?\n")


def test_bytes_reach_a_pipe_unchanged(run: RunDir) -> None:
    rubbish = bytes(number for number in range(256) if number not in b"\r\n")
    run.attempt(1).task_log("worker", 0).write_bytes(rubbish + b"\n")
    done = subprocess.run(command("logs", str(run.path)), stdout=subprocess.PIPE, timeout=180, check=True)
    assert b"worker:0@h0 | " + rubbish + b"\n" in done.stdout


@pytest.mark.parametrize("options", ["", "-f", "--grep step"])
def test_logs_end_quietly_when_their_reader_does(options: str, run: RunDir) -> None:
    run.attempt(1).task_log("worker", 0).write_text("step\n" * 1_000_000)
    words = shlex.join(command("logs", str(run.path), *options.split()))
    done = subprocess.run(
        ["bash", "-c", f"{words} | head -n 1"], capture_output=True, text=True, timeout=180, check=True
    )
    assert (done.stdout, done.stderr) == (
        "job | gridtf: starting\n" if "grep" not in options else "worker:0@h0 | step\n",
        "",
    )
