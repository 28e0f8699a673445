"""The command line: help, errors, completion."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import gridtf
from gridtf import cli, resources
from gridtf.cli import COMMANDS, main
from gridtf.cli.common import find_command
from gridtf.run import registry
from gridtf.run.rundir import RunDir, write_record
from tests.support.scheduler import FakeScheduler

ROOT = str(Path(gridtf.__file__).parents[1])

Captured = pytest.CaptureFixture[str]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "gridtf", *words]


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_names_every_command(word: str, capsys: Captured) -> None:
    assert main([word]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out and summary in out for name, summary in COMMANDS.items())
    assert max(map(len, out.splitlines())) <= 80
    assert len(out.splitlines()) <= 48


def test_no_arguments_print_help_and_fail(capsys: Captured) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", cli.HELP)


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_version(word: str, capsys: Captured) -> None:
    assert main([word]) == 0
    assert capsys.readouterr().out == f"gridtf {gridtf.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name: str, capsys: Captured) -> None:
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: gridtf {name}")
    assert COMMANDS[name][1:] in out.replace("\n", " ")
    assert "gridtf" in out.partition(COMMANDS[name][1:40])[2]  # an example
    assert max(map(len, out.splitlines())) <= 118


def test_help_of_when_says_that_a_job_can_be_given(capsys: Captured) -> None:
    assert main(["when", "--help"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  JOBFILE"))
    assert line.split(maxsplit=1)[1] == "a gridtf.toml; or a job that waits: its run directory, its id or its name"


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_in_the_help_parse(name: str) -> None:
    from gridtf.jobspec.arguments import split_command

    parser = find_command(name).parser()
    lines = [line for line in (parser.epilog or "").splitlines() if "…" not in line]
    examples = [words for line in lines for words in re.findall(rf"gridtf {name}\b([^\")|>(]*)", line)]
    assert examples
    for words in examples:
        assert parser.parse(split_command(words.split())[0])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["sumbit"], "gridtf: unknown command sumbit\n  did you mean submit?\n"),
        (["xyz"], "gridtf: unknown command xyz\n  see `gridtf --help`\n"),
        (["list", "--josn"], "gridtf: unknown option --josn\n  did you mean --json?\n"),
        (["list", "--zeta"], "gridtf: unknown option --zeta\n  see `gridtf list --help`\n"),
        (["list", "x", "y"], "gridtf: unexpected argument 'y'\n  see `gridtf list --help`\n"),
        (["list", "--", "x"], "gridtf: gridtf list takes no command\n  see `gridtf list --help`\n"),
        (
            ["status"],
            "gridtf: the following arguments are required: JOB\n  write: gridtf status JOB; `gridtf list` shows",
        ),
        (["logs", "--tail", "3"], "gridtf: the following arguments are required: JOB\n  write: gridtf logs JOB; "),
        (
            ["wait", "x", "--timeout", "soon"],
            "gridtf: argument --timeout: 'soon' is not a number of seconds, nor a time",
        ),
        (["wait", "x", "--timeout", "nan"], "gridtf: argument --timeout: 'nan' is not a number of seconds, nor a time"),
        (["submit", "--json", "--dry-run", "--", "x"], "gridtf: --dry-run prints the job script, not JSON\n"),
        (["completion", "csh"], "gridtf: 'csh' is not one of bash, zsh, fish\n"),
        (["submit", "--wiat", "--", "x"], "gridtf: unknown option --wiat\n  did you mean --wait?\n"),
        (["submit", "nothing.toml"], "gridtf: no such file: nothing.toml\n"),
        (["submit", "--nodes", "x", "--", "y"], "gridtf: --nodes: 'x' is not a node count\n  write a number, or a"),
        (["status", "--jsno"], "gridtf: unknown option --jsno\n  did you mean --json?"),
        (["wait", "x", "--timeout", "-5"], "gridtf: argument --timeout: '-5' is not a number of seconds"),
        (["status", "nothing"], "gridtf: no job is called nothing\n  `gridtf list` shows the jobs"),
    ],
)
def test_wrong_usage_is_reported_in_a_few_lines(
    words: list[str], error: str, rough_path: Path, capsys: Captured
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(error)
    assert "Traceback" not in captured.err


def test_commands_work_in_a_removed_current_folder(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    assert main(["submit", "--run-dir", str(rough_path.parent / "run"), "--", "x"]) == 0
    rough_path.rmdir()
    for words in (
        ["status", str(rough_path.parent / "run")],
        ["logs", str(rough_path.parent / "run")],
        ["status", "x"],
    ):
        assert main(words) == 0
    capsys.readouterr()
    assert main(["submit", "--", "x"]) == 1
    assert capsys.readouterr().err == "gridtf: the current folder no longer exists\n  change to another one with cd\n"


def test_debug_option_is_recognized_anywhere_before_the_user_s_command(rough_path: Path, capsys: Captured) -> None:
    from gridtf.errors import NotFoundError

    for words in (["--debug", "status", "x"], ["status", "--debug", "x"], ["status", "x", "--debug"]):
        with pytest.raises(NotFoundError):
            main(words)
    assert main(["render", "--scheduler", "slurm", "--", "x", "--debug"]) == 0
    assert '"--debug"' in capsys.readouterr().out


def test_unexpected_exception_is_reported_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def broken() -> Path:
        raise ValueError("broken")

    monkeypatch.setattr(resources, "bootstrap_script", broken)
    assert main(["bootstrap-path"]) == 1
    error = "gridtf: ValueError: broken\n  this is a bug in gridtf: --debug shows where\n"
    assert capsys.readouterr().err == error


def test_ctrl_c_returns_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(resources, "bootstrap_script", interrupted)
    assert main(["bootstrap-path"]) == 130


def test_bootstrap_path_prints_the_script_s_path(capsys: Captured) -> None:
    assert main(["bootstrap-path"]) == 0
    path = Path(capsys.readouterr().out.rstrip("\n"))
    assert path.name == "gridtf-bootstrap.sh"
    assert path.is_file()


def test_output_prints_the_output_folder(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    assert main(["submit", "--run-dir", str(rough_path / "run"), "--", "true"]) == 0
    capsys.readouterr()
    assert main(["output", str(rough_path / "run")]) == 0
    assert capsys.readouterr().out == f"{rough_path / 'run' / 'output'}\n"
    (rough_path / "run" / "output").rmdir()
    assert main(["output", str(rough_path / "run")]) == 2
    assert "has no output" in capsys.readouterr().err


def test_closed_pipe_on_stdout_returns_141() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command("--help"), stdout=writer, stderr=subprocess.PIPE, env={"PYTHONPATH": ROOT}, timeout=180, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


# --- completion


# Each line is completed in a process, as argcomplete ends it; they have all modules of a first one, which takes long.
COMPLETES = """\
import os, sys
from gridtf.cli import COMMANDS, completion, main
from gridtf.cli.common import find_command
for name in COMMANDS:
    find_command(name).parser()
for number, line in enumerate(sys.argv[2:]):
    if not os.fork():
        os.environ.update(COMP_LINE=line, COMP_POINT=str(len(line)))
        os.environ["_ARGCOMPLETE_STDOUT_FILENAME"] = f"{sys.argv[1]}/{number}"
        main([])
        os._exit(1)
    assert os.wait()[1] == 0
"""


def completions(folder: Path, *lines: str, argv: Sequence[str] = ("-c", COMPLETES)) -> list[set[str]]:
    """The completions that a shell would offer for each of these lines."""
    environ = {
        **os.environ,
        "PYTHONPATH": ROOT,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": f"{os.environ['TMPDIR']}/0",
        "COMP_LINE": lines[0],
        "COMP_POINT": str(len(lines[0])),
    }
    answers = Path(os.environ["TMPDIR"])
    subprocess.run([sys.executable, *argv, answers, *lines], env=environ, cwd=folder, timeout=180, check=True)
    texts = [(answers / str(number)).read_text() for number in range(len(lines))]
    return [{word.strip() for word in text.splitlines()} for text in texts]


def test_completion_by_the_command_itself(tmp_path: Path) -> None:
    (found,) = completions(tmp_path, "gridtf sub", argv=["-m", "gridtf"])
    assert found == {"submit"}


@pytest.mark.thorough
def test_completion_of_commands_options_and_jobs(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "job.json").write_text('{"spec": {}}')
    registry.add(run, {"scheduler": "slurm", "job_id": "4711", "name": "digits", "time": 1.0}, os.environ)
    commands, submit, options, status, cancel, shells, chosen = completions(
        tmp_path,
        "gridtf ",
        "gridtf sub",
        "gridtf submit --",
        "gridtf status d",
        "gridtf cancel ",
        "gridtf completion z",
        "gridtf submit --scheduler s",
    )
    assert commands >= set(COMMANDS)
    assert submit == {"submit"}
    assert options >= {"--nodes", "--wait", "--gpus-per-node"}
    assert status == {"digits"}
    assert cancel >= {"digits", "4711"}
    assert shells == {"zsh"}
    assert chosen == {"slurm", "sge"}


@pytest.mark.thorough
def test_completion_of_tasks(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).new_attempt()
    tasks = [{"type": "worker", "index": 0}, {"type": "worker", "index": 1}, {"type": "ps", "index": 0}]
    write_record(attempt.plan, {"tasks": tasks})
    every = {"worker:0", "worker:1", "worker", "ps:0", "ps", "job", "agents"}
    lines = "gridtf logs . --task ", "gridtf logs . --task p", "gridtf logs --task p", "gridtf address . p"
    assert completions(tmp_path, *lines) == [every, {"ps:0", "ps"}, set(), {"ps:0"}]


@pytest.mark.thorough
def test_completion_of_files_where_a_path_is_expected(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    for name in ("data.py", "n"):
        (tmp_path / name).touch()
    expected: dict[str, set[str]] = {
        "submit d": {"data.py", "dir/"},
        "submit --chdir d": {"data.py", "dir/"},
        "submit --container d": {"data.py", "dir/"},
        "submit -- python d": {"data.py", "dir/"},
        "submit --workers 2 -- n": {"n"},
        "submit dir/x -- d": {"data.py", "dir/"},
        "status d": {"dir/"},
        "submit --name ": set(),
        "submit --nodes ": set(),
        "submit --mem d": set(),
        "submit --entry d": set(),
        "wait dir --timeout ": set(),
        "logs dir --tail ": set(),
    }
    found = completions(tmp_path, *(f"gridtf {line}" for line in expected))
    assert dict(zip(expected, found, strict=True)) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_code_is_valid_shell(shell: str, capsys: Captured, tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    code = capsys.readouterr().out
    assert "gridtf" in code
    if program := shutil.which(shell):
        script = tmp_path / "code"
        script.write_text(code)
        subprocess.run([program, "-n", str(script)], timeout=180, check=True)
