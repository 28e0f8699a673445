"""scripts/gridtf-bootstrap.sh, as people source it into their own job scripts."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import pytest

from gridtf.run.rundir import Attempt, RunDir, read_record
from tests.support.configuration import user_file
from tests.support.jobs import gone, hosts_of, until
from tests.support.python import ROOT, environment, heed_signals
from tests.support.traps import Traps

SCRIPT = ROOT / "scripts" / "gridtf-bootstrap.sh"
STRICT = "set -euo pipefail"

Bash = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def bash(tmp_path: Path) -> Iterator[Bash]:
    """bash(script): a shell that has sourced the bootstrap script; without GRIDTF_PYTHON where python is None."""
    started: list[subprocess.Popen[str]] = []

    def start(
        script: str,
        *,
        first: str = STRICT,
        folder: Path = tmp_path,
        python: str | None = sys.executable,
        shell: tuple[str, ...] = ("bash",),
        source: Path = SCRIPT,
        **env: str,
    ) -> subprocess.Popen[str]:
        environ = environment(GRIDTF_LOCKS=str(tmp_path), SOURCE=str(source), **env)
        if python is not None:
            environ["GRIDTF_PYTHON"] = python
        started.append(
            subprocess.Popen(
                [*shell, "-c", f'{first}\n. "$SOURCE"\n{script}\n'],
                cwd=folder,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                preexec_fn=heed_signals,
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=180)


def ended(process: subprocess.Popen[str], seconds: float = 60.0) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=seconds)
    return process.returncode, out, errors


def attempt_in(folder: Path) -> Attempt:
    """The attempt of the one run in this folder."""

    def latest() -> Any:
        runs = list((folder / "gridtf-runs").glob("*")) if (folder / "gridtf-runs").is_dir() else []
        return RunDir(runs[0]).latest() if runs else None

    found = until(latest, f"a run in {folder}")
    assert isinstance(found, Attempt)
    return found


def verdict_in(folder: Path) -> dict[str, Any]:
    record = read_record(attempt_in(folder).verdict)
    assert record is not None
    return record


def task_pid(folder: Path, host: str = os.uname().nodename) -> int:
    def running() -> int | None:
        pid = hosts_of(attempt_in(folder)).get(host, {}).get("tasks", {}).get("worker:0", {}).get("pid")
        return int(pid) if pid else None

    return int(until(running, "worker:0 to run"))


# --- sourcing


@pytest.mark.parametrize(
    "first", ["", STRICT, "set -o posix; set -eu", "shopt -s failglob nullglob; set -f", "set -o noclobber"]
)
def test_sourcing_prints_nothing_and_changes_no_option_trap_or_variable(bash: Bash, tmp_path: Path, first: str) -> None:
    script = (
        "set -o >after; shopt >>after; trap >>after; compgen -v >after-variables\n"
        "declare -F gridtf_run gridtf_join gridtf_exec"
    )
    before = "set -o >before; shopt >>before; trap >>before; compgen -v >before-variables"
    process = bash(script, first=f"{first}\n{before}")
    assert ended(process) == (0, "gridtf_run\ngridtf_join\ngridtf_exec\n", "")
    assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()
    names = [set((tmp_path / f"{when}-variables").read_text().split()) for when in ("before", "after")]
    assert {name for name in names[1] - names[0] if not name.startswith("_")} <= {"BASH_ARGV0", "PIPESTATUS"}


@pytest.mark.skipif(not shutil.which("dash"), reason="needs dash, Debian's sh")
@pytest.mark.parametrize("first", ["", "set -eu"])
def test_shells_other_than_bash_are_refused(bash: Bash, first: str) -> None:
    code, out, errors = ended(bash("echo went on", shell=("dash",), first=first))
    assert "gridtf: gridtf-bootstrap.sh needs bash" in errors
    assert "-S /bin/bash" in errors
    assert "Syntax error" not in errors
    assert (code, out) == ((1, "") if first else (0, "went on\n"))


def test_paths_with_special_characters(bash: Bash, rough_path: Path) -> None:
    """The script, the working folder, the run directory and the command, all in one."""
    shutil.copy(SCRIPT, rough_path / "boot strap.sh")
    command = (
        'gridtf_run --tasks-per-node 1 --workers 1 -- bash -c \'printf "%s|" "$PWD" "$@"\' - "a b" \'$(x)\' "it\'s" "*"'
    )
    code, _, errors = ended(bash(command, folder=rough_path, source=rough_path / "boot strap.sh"))
    assert code == 0, errors
    log = attempt_in(rough_path).logs / "worker-0.log"
    assert log.read_text() == f"{rough_path}|a b|$(x)|it's|*|"


# --- which Python


def _command(folder: Path, text: str) -> Path:
    """A gridtf command."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "gridtf"
    path.write_text(text)
    path.chmod(0o755)
    return path


FOUND = '_gridtf_find; echo "$GRIDTF_PYTHON"; "$GRIDTF_PYTHON" -c "import gridtf.bootstrap.main"'
TOOLS = os.pathsep.join(sorted({str(Path(shutil.which(tool) or "/bin/x").parent) for tool in ("bash", "readlink")}))


@pytest.mark.parametrize("options", ["", " -s", " -E"])
def test_python_of_the_gridtf_command_on_the_path(bash: Bash, tmp_path: Path, options: str) -> None:
    python = tmp_path / "python"  # a first line has no room for the spaces that this Python's own path may have
    python.symlink_to(sys.executable)
    _command(tmp_path / "bin", f"#!{python}{options}\nimport gridtf.cli\n")
    path = f"{tmp_path / 'bin'}:{TOOLS}"
    assert ended(bash(FOUND, python=None, PATH=path)) == (0, f"{python}\n", "")


@pytest.mark.parametrize("linked", [False, True])
def test_gridtf_command_in_a_path_with_spaces(bash: Bash, tmp_path: Path, linked: bool) -> None:
    """pip writes such a command in two languages; people link it into ~/bin."""
    home = tmp_path / "my venv" / "bin"
    home.mkdir(parents=True)
    (home / "python").symlink_to(sys.executable)
    _command(home, f"#!/bin/sh\n'''exec' \"{home}/python\" \"$0\" \"$@\"\n' '''\nimport gridtf.cli\n")
    if linked:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "gridtf").symlink_to(home / "gridtf")
    path = f"{tmp_path / 'bin' if linked else home}:{TOOLS}"
    assert ended(bash(FOUND, python=None, PATH=path)) == (0, f"{home}/python\n", "")


def test_gridtf_command_with_an_env_interpreter_line(bash: Bash, tmp_path: Path) -> None:
    _command(tmp_path / "bin", "#!/usr/bin/env python3\nimport gridtf.cli\n")
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    path = f"{tmp_path / 'bin'}:{TOOLS}"
    assert ended(bash(FOUND, python=None, PATH=path)) == (0, f"{tmp_path}/bin/python3\n", "")


def test_python3_without_a_gridtf_command(bash: Bash, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    path = f"{tmp_path / 'bin'}:{TOOLS}"
    assert ended(bash(FOUND, python=None, PATH=path)) == (0, f"{tmp_path}/bin/python3\n", "")


def test_folder_called_gridtf_is_not_imported(bash: Bash, tmp_path: Path) -> None:
    (tmp_path / "gridtf").mkdir()  # which Python would import as an empty package
    (tmp_path / "bin").mkdir()
    python = Path(sys.executable).resolve()  # in an environment without any package
    (tmp_path / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    (tmp_path / "bin" / "python3").symlink_to(python)
    code, _, errors = ended(bash(FOUND, python=None, PATH=f"{tmp_path / 'bin'}:{TOOLS}", PYTHONPATH=""))
    assert code == 1
    assert "no Python with gridtf on host" in errors


@pytest.mark.parametrize("place", ["user's site", "PYTHONPATH"])
def test_gridtf_of_a_user_s_site_and_of_a_module_runs_in_a_folder_of_traps(
    bash: Bash, tmp_path: Path, place: str
) -> None:
    """Python runs isolated, and finds both; an empty or relative entry of PYTHONPATH is the folder of traps."""
    traps, python = Traps(tmp_path / "traps", tmp_path / "ran"), Path(sys.executable).resolve()
    packages = tmp_path / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    for folder in {Path(filelock.__file__).parents[1], ROOT}:
        for entry in folder.iterdir():
            if not (packages / entry.name).exists() and entry.suffix != ".pth":
                (packages / entry.name).symlink_to(entry)
    given = {"PYTHONUSERBASE": str(tmp_path)} if place == "user's site" else {}
    path = ":." if given else f"..:{packages}:"
    script = f"gridtf_run --scheduler local --run-root {shlex.quote(str(tmp_path))}/runs --workers 1 -- true"
    process = bash(script, folder=traps.folder, python=str(python), PYTHONPATH=path, PYTHONNOUSERSITE="", **given)
    code, _, errors = ended(process)
    assert (code, traps.ran) == (0, []), errors


@pytest.mark.parametrize("call", ["gridtf_run -- true", "gridtf_join", "gridtf_exec"])
def test_no_python_with_gridtf_is_an_error(bash: Bash, tmp_path: Path, call: str) -> None:
    (tmp_path / "empty").mkdir()
    process = bash(
        f"{call} || echo code $?", python=None, shell=(shutil.which("bash") or "",), PATH=str(tmp_path / "empty")
    )
    assert ended(process) == (
        0,
        "code 1\n",
        f"gridtf: no Python with gridtf on host {os.uname().nodename}\n"
        "gridtf: put the gridtf command on the PATH, or set GRIDTF_PYTHON to the Python it is installed in\n",
    )


def test_user_modules_in_the_working_folder_are_not_imported(bash: Bash, tmp_path: Path) -> None:
    for name in ("random", "logging", "json", "signal", "ctypes", "argparse", "tomllib", "socket", "filelock"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    (tmp_path / "gridtf").mkdir()
    (tmp_path / "gridtf" / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    (tmp_path / "gridtf.toml").write_text('command = ["true"]\ntasks_per_node = 1\n')
    code, _, errors = ended(bash("gridtf_run --gpus-per-node 1", RANK="0", GRIDTF_LOCAL_GPUS="0"))
    assert code == 0, errors
    assert "gridtf: the job is taken from gridtf.toml\n" in errors  # which no option names
    join = 'RANK=0 WORLD_SIZE=1 GRIDTF_JOB_ID=x gridtf_join; echo "$GRIDTF_TASK_TYPE"'
    assert ended(bash(join)) == (0, "worker\n", "")


# --- gridtf_run


def test_script_continues_after_a_successful_gridtf_run(bash: Bash, tmp_path: Path) -> None:
    process = bash(
        "for lr in 0.1 0.2; do gridtf_run --workers 2 --tasks-per-node 2 --run-dir run-$lr -- echo $lr; done\n"
        "gridtf_run --workers 1 --run-dir last -- true && echo and then"
    )
    code, out, errors = ended(process)
    assert (code, out) == (0, "and then\n"), errors
    for name in ("run-0.1", "run-0.2", "last"):
        record = read_record(RunDir(tmp_path / name).attempt(1).verdict)
        assert record is not None
        assert record["state"] == "COMPLETED"
    assert (tmp_path / "run-0.2" / "attempt-1" / "logs" / "worker-1.log").read_text() == "0.2\n"


def test_failed_gridtf_run_ends_a_strict_script_with_its_exit_code(bash: Bash, tmp_path: Path) -> None:
    code, out, errors = ended(bash("gridtf_run -- bash -c 'echo no data; exit 7'; echo not reached"))
    assert (code, out) == (1, "")
    assert "worker:0" in errors
    assert "exit code 7" in errors
    assert "no data" in errors
    assert verdict_in(tmp_path)["state"] == "FAILED"


def test_exit_code_of_gridtf_run_can_be_tested(bash: Bash) -> None:
    script = "gridtf_run -- false || echo code $?\nif gridtf_run --run-dir b -- false; then echo yes; else echo no; fi"
    assert ended(bash(script))[:2] == (0, "code 1\nno\n")
    assert ended(bash("gridtf_run -- false\necho code $?", first=""))[:2] == (0, "code 1\n")
    code, _, errors = ended(bash("gridtf_run --workres 2 -- true"))
    assert code == 2
    assert "--workers" in errors


def test_gridtf_run_leaves_set_up_lines_of_the_user_file_out(bash: Bash, tmp_path: Path) -> None:
    user_file('setup = ["module load cuda"]\nnods = 2\n')
    (tmp_path / "gridtf.toml").write_text("command = ['false']\n")
    code, _, errors = ended(bash("gridtf_run --workers 1 -- true"))
    assert code == 0, errors
    assert ":2: nods: unknown key, left out; did you mean nodes?\n" in errors
    assert "gridtf.toml is not read" not in errors  # a hint for terminals
    code, _, errors = ended(bash("gridtf_run --workers 1 --setup true -- true"))
    assert (code, errors) == (
        2,
        f"{errors.splitlines()[0]}\n"
        "gridtf: --setup: set-up lines are for jobs that gridtf submits\n"
        "gridtf: run them first, in the shell or the script, and add --no-setup\n",
    )
    (tmp_path / "gridtf.toml").write_text("command = ['true']\nsetup = ['module load cuda']\n")
    code, _, errors = ended(bash("gridtf_run --workers 1 --run-dir b"))
    assert (code, "gridtf.toml:2: setup: set-up lines are for jobs" in errors) == (2, True)
    assert ended(bash("gridtf_run --workers 1 --run-dir b --no-setup"))[0] == 0


def test_gridtf_run_does_not_read_the_script_s_stdin(bash: Bash) -> None:
    process = bash("printf 'one\\ntwo\\n' | while read -r word; do gridtf_run --run-dir $word -- cat; echo $word; done")
    assert ended(process)[:2] == (0, "one\ntwo\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_to_the_script_cancels_the_job(bash: Bash, tmp_path: Path, number: signal.Signals) -> None:
    process = bash("gridtf_run -- sleep 1000 || code=$?; echo code ${code-0}")
    pid = task_pid(tmp_path)
    process.send_signal(number)  # to bash alone, as a scheduler may
    assert ended(process)[:2] == (0, "code 1\n")
    assert verdict_in(tmp_path)["state"] == "CANCELLED"
    gone(pid)


def test_two_signals_to_the_script_cancel_the_job(bash: Bash, tmp_path: Path) -> None:
    process = bash(
        "gridtf_run -- bash -c \"trap '' TERM; while :; do sleep 0.1; done\" || code=$?; echo code ${code-0}"
    )
    pid = task_pid(tmp_path)
    process.send_signal(signal.SIGTERM)
    until(lambda: (read_record(attempt_in(tmp_path).launcher) or {}).get("phase") == "stopping", "the launcher to stop")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[:2] == (0, "code 1\n")
    assert verdict_in(tmp_path)["state"] == "CANCELLED"
    gone(pid)


def test_successful_job_has_exit_code_0_although_the_script_received_a_signal(bash: Bash, tmp_path: Path) -> None:
    """Whatever interrupts bash's wait, the code is the launcher's own."""
    launcher = tmp_path / "python"
    launcher.write_text("#!/bin/bash\ntrap 'exit 0' TERM\ntouch started\nwhile :; do sleep 0.05; done\n")
    launcher.chmod(0o755)
    # the launcher is gone before bash looks again
    slow = (
        'kill() { builtin kill "$@" && [ "$1" = -TERM ] || return; while builtin kill -0 "$2"; do sleep 0.01; done; }'
    )
    process = bash(f"{slow} 2>/dev/null\ngridtf_run -- true; echo well", python=str(launcher))
    until((tmp_path / "started").exists, "the launcher to start")
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (0, "well\n", "")


def test_traps_of_the_script_are_restored(bash: Bash, tmp_path: Path) -> None:
    script = (
        "trap 'echo mine TERM' TERM; trap 'echo mine EXIT' EXIT; trap '' HUP\n"
        "trap -p >before; gridtf_run -- true; trap -p >after; kill -TERM $$; kill -HUP $$; echo on"
    )
    code, out, errors = ended(bash(script))
    assert (code, out) == (0, "mine TERM\non\nmine EXIT\n"), errors
    assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()
    code, out, _ = ended(bash("gridtf_run -- true; kill -TERM $$; echo still here", folder=tmp_path))
    assert (code, out) == (-signal.SIGTERM, "")  # where there was none, there is none


# --- gridtf_exec


def test_gridtf_exec_execs_the_launcher_and_hides_the_specification_from_tasks(bash: Bash, tmp_path: Path) -> None:
    spec = '{"command": ["bash", "-c", "echo ${GRIDTF_SPEC-none}; sleep 1000"], "scheduler": "local"}'
    process = bash("gridtf_exec", GRIDTF_SPEC=spec, GRIDTF_RUN_DIR=str(tmp_path / "gridtf-runs" / "one"))
    pid = task_pid(tmp_path)
    launcher = read_record(attempt_in(tmp_path).launcher) or {}
    assert launcher["pid"] == process.pid
    log = attempt_in(tmp_path).logs / "worker-0.log"
    until(lambda: log.read_text() == "none\n", "the task's word")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 1
    gone(pid)


@pytest.mark.parametrize("spec", [None, "", "{", '{"command": 7}', '{"nonsense": 1}'])
def test_gridtf_exec_outside_a_rendered_script_is_an_error(bash: Bash, spec: str | None) -> None:
    env = {} if spec is None else {"GRIDTF_SPEC": spec}
    code, _, errors = ended(bash("gridtf_exec", **env))
    assert code == 2
    assert errors.startswith("gridtf: GRIDTF_SPEC ")
    assert "Traceback" not in errors
