"""Scheduler plugins: found by the entry points of installed packages, through the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.topics import fast

ROOT = Path(__file__).resolve().parents[3]

# A complete scheduler: the abstract methods, and no more.
GOOD = """
from gridtf.schedulers import words
from gridtf.schedulers.api import Scheduler
from gridtf.schedulers.commands import Commands
from gridtf.schedulers.injob import BatchInJob
from gridtf.schedulers.login import CommandLogin


class QueueCommands(Commands):
    title = "Queue"


class QueueLogin(CommandLogin):
    commands, directive_prefix = QueueCommands(), "#Q"

    def directives(self, plan): return ("-n " + plan.request.name,)
    def submit_command(self, plan): return ("qput",)
    def parse_job_id(self, output): return output.strip()
    def query_command(self, jobs): return ["qget"]
    def parse_query(self, output, jobs): return {}
    def cancel_command(self, job, force): return ["qkill", job.job_id]


class QueueInJob(BatchInJob):
    def identity(self, environ): raise NotImplementedError
    def allocation(self, environ, request, wait): raise NotImplementedError
    def agent_command(self, host, call, environ): return [host]


class Queue(Scheduler):
    name, title, options = "queue", "Queue", words.PLACE

    @property
    def login(self): return QueueLogin(self)

    @property
    def injob(self): return QueueInJob(self)

    def is_available(self, environ): return "QUEUE_SERVER" in environ
    def is_current(self, environ): return False
"""

BROKEN = {
    "raises on import": ("import no_such_module\n" + GOOD, "ModuleNotFoundError: No module named 'no_such_module'"),
    "raises over several lines": ("raise RuntimeError('a\\n b')", "RuntimeError: a b"),
    "raises when made": (f"{GOOD}\n    def __init__(self): raise OSError('no licence')", "OSError: no licence"),
    "lacks methods": (
        re.sub(r"    def (identity|parse_query).*\n", "", GOOD),
        "TypeError: Can't instantiate abstract class QueueLogin with",
    ),
    "lacks what starts agents": (
        re.sub(r"    def agent_command.*\n", "", GOOD),
        "TypeError: Can't instantiate abstract class QueueInJob with",
    ),
    "is written for another version": (
        f"{GOOD}\n    api_version = 3",
        "it is written for version 3 of gridtf's scheduler interface, this gridtf has version 2",
    ),
    "calls itself something else": (f"{GOOD}\n    name = 'cue'", "its class has the name 'cue'"),
    "has no name": (GOOD.replace('"queue", "Queue", words', '1, "Queue", words'), "its class has the name 1"),
    "is no scheduler": ("Queue = dict", "queue_plugin:Queue is not a gridtf.schedulers.api.Scheduler"),
    "lacks the class": ("", "AttributeError: module 'queue_plugin' has no attribute 'Queue'"),
    "is no Python": ("class Queue(:", "SyntaxError: invalid syntax (queue_plugin.py, line 1)"),
}


def install(folder: Path, code: str, *, name: str = "queue", package: str = "queue-plugin") -> Path:
    """Install a package with one module and one entry point, as pip does."""
    module = package.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gridtf.schedulers]\n{name} = {module}:Queue\n")
    return folder


def gridtf(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run ``gridtf WORDS`` so that it finds the packages in folder, but no scheduler's commands; it prints its import
    times on stderr."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    if not (programs / "true").exists():
        (programs / "true").symlink_to("/bin/true")
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gridtf", *words],
        cwd=folder,
        env={
            "PATH": str(programs),
            "HOME": str(folder),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
            "GRIDTF_SITE_CONFIG": "",
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def output(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if not line.startswith("import time:")]


def imported(done: subprocess.CompletedProcess[str]) -> set[str]:
    return set(re.findall(r"^import time:[\d |]+\| +(\S+)$", done.stderr, re.MULTILINE))


@pytest.mark.thorough
def test_plugin_renders_with_the_common_template(tmp_path: Path) -> None:
    done = gridtf(install(tmp_path, GOOD), "render", "--scheduler", "queue", "--name", "digits", "--", "true")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash\n#Q -n digits\n")
    assert "submit runs    qput " in done.stderr


@pytest.mark.thorough
def test_plugin_adds_options_of_its_own(tmp_path: Path) -> None:
    """They are a flag, a key of the job file and a variable; without the plugin they are unknown."""
    option = 'of_scheduler("lane", "--lane --track", "NAME", "the lane of the queue")'
    code = GOOD.replace('return ("-n " + plan.request.name,)', 'return ("-l " + plan.request.options["lane"],)')
    code = code.replace("    def is_available", f"    options = ({option},)\n\n    def is_available", 1)
    folder = install(tmp_path, f"from gridtf.jobspec.options import of_scheduler\n{code}")
    (folder / "job.toml").write_text('scheduler = "queue"\ntrack = "slow"\ncommand = ["true"]\n')
    for words, environ, lane in (
        (("--scheduler", "queue", "--lane", "fast", "--", "true"), {}, "fast"),
        (("job.toml",), {}, "slow"),
        (("job.toml",), {"GRIDTF_SUBMIT_LANE": "left"}, "left"),
    ):
        done = gridtf(folder, "render", *words, **environ)
        assert done.returncode == 0, done.stderr
        assert f"#Q -l {lane}\n" in done.stdout
    done = gridtf(folder, "render", "--scheduler", "slurm", "--lane", "fast", "--", "true")
    assert done.returncode == 0, done.stderr
    # argparse names the value once from Python 3.13 on
    named = "--lane, --track NAME" if sys.version_info >= (3, 13) else "--lane NAME, --track NAME"
    assert named in gridtf(folder, "submit", "--help").stdout
    (folder / "site.toml").write_text('nods = 2\nlane = "site"\n')
    done = gridtf(folder, "render", "--scheduler", "queue", "--", "true", GRIDTF_SITE_CONFIG="site.toml")
    assert (done.returncode, "#Q -l site\n" in done.stdout) == (0, True), done.stderr
    assert output(done)[0] == "gridtf: site.toml:1: nods: unknown key, left out; did you mean nodes?"
    (folder / "queue_plugin.py").unlink()
    done = gridtf(folder, "render", "--scheduler", "slurm", "--lane", "fast", "--", "true")
    assert done.returncode == 2
    assert "gridtf: unknown option --lane" in output(done)


@pytest.mark.thorough
def test_plugin_is_chosen_where_it_is_available(tmp_path: Path) -> None:
    folder = install(tmp_path, GOOD)
    done = gridtf(folder, "render", "--", "true", QUEUE_SERVER="q1")
    assert "scheduler      queue" in output(done)
    done = gridtf(folder, "render", "--", "true")
    assert "scheduler      local" in output(done)


@pytest.mark.thorough
@pytest.mark.parametrize("case", fast(1, *BROKEN))
def test_broken_plugin_is_reported_with_its_package_and_the_reason(tmp_path: Path, case: str) -> None:
    code, reason = BROKEN[case]
    line = f"the scheduler plugin 'queue' of queue-plugin cannot be used: {reason}"
    done = gridtf(install(tmp_path, code), "render", "--scheduler", "queue", "--", "true")
    (said,) = output(done)
    assert (done.returncode, done.stdout) == (2, "")
    assert said.startswith(f"gridtf: --scheduler: {line}")


@pytest.mark.thorough
@pytest.mark.parametrize("case", fast(1, *BROKEN))
def test_other_schedulers_work_with_a_broken_plugin_installed(tmp_path: Path, case: str) -> None:
    code, reason = BROKEN[case]
    done = gridtf(install(tmp_path, code), "render", "--", "true")
    assert done.returncode == 0, done.stderr
    what = f"gridtf: scheduler: the scheduler plugin 'queue' of queue-plugin cannot be used: {reason}"
    assert sum(line.startswith(what) for line in output(done)) == 1
    assert "scheduler      local" in output(done)


@pytest.mark.thorough
def test_plugin_whose_is_available_raises_is_skipped_with_a_warning(tmp_path: Path) -> None:
    code = GOOD.replace('return "QUEUE_SERVER" in environ', "return open('/no/such/file')")
    done = gridtf(install(tmp_path, code), "render", "--", "true")
    assert done.returncode == 0, done.stderr
    assert sum("gridtf: the scheduler plugin 'queue' is skipped: FileNotFoundError" in x for x in output(done)) == 1
    assert "scheduler      local" in output(done)


@pytest.mark.thorough
def test_two_plugins_with_the_same_name_are_refused(tmp_path: Path) -> None:
    folder = install(install(tmp_path, GOOD), GOOD, package="other-plugin")
    done = gridtf(folder, "render", "--scheduler", "queue", "--", "true")
    assert done.returncode == 2
    (line,) = output(done)
    assert "cannot be used: another package has a scheduler of this name (" in line


@pytest.mark.thorough
def test_plugin_cannot_replace_a_built_in_scheduler(tmp_path: Path) -> None:
    folder = install(tmp_path, GOOD.replace('"queue"', '"slurm"'), name="slurm")
    done = gridtf(folder, "render", "--scheduler", "slurm", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH" in done.stdout
    done = gridtf(folder, "render", "--", "true", QUEUE_SERVER="q1")
    reason = "gridtf itself has a scheduler of this name"
    what = f"gridtf: scheduler: the scheduler plugin 'slurm' of queue-plugin cannot be used: {reason}"
    assert sum(line.startswith(what) for line in output(done)) == 1
    assert "scheduler      local" in output(done)


@pytest.mark.thorough
@pytest.mark.parametrize("words", [["list"], ["render", "--scheduler", "slurm", "--", "true"]], ids=["list", "render"])
@pytest.mark.parametrize("case", fast(1, "raises on import", "good"))
def test_commands_that_need_no_plugin_import_none(tmp_path: Path, words: list[str], case: str) -> None:
    code = GOOD if case == "good" else BROKEN[case][0]
    done = gridtf(install(tmp_path, code), *words)
    assert done.returncode == 0, done.stderr
    assert not {"importlib.metadata", "queue_plugin", "gridtf.schedulers.plugins"} & imported(done)
    assert "plugin" not in "\n".join(output(done))


@pytest.mark.thorough
def test_error_on_unknown_scheduler_lists_plugins(tmp_path: Path) -> None:
    done = gridtf(install(tmp_path, GOOD), "render", "--scheduler", "queu", "--", "true")
    assert done.returncode == 2
    assert output(done) == [
        "gridtf: --scheduler: 'queu' is not one of slurm, sge, local, queue",
        "  did you mean queue?",
    ]


def test_code_in_docs_extending_is_that_of_examples_pbs() -> None:
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    code = (ROOT / "examples" / "pbs" / "gridtf_pbs.py").read_text(encoding="utf-8")
    shown = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(shown) > 8
    assert [piece for piece in shown if piece not in code] == []
