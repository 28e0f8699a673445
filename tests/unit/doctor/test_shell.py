"""What a job's script finds of the user's shell."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gridtf.doctor import shell
from gridtf.findings import Finding, Setting, collect
from gridtf.jobspec.spec import JobSpec

JOB = JobSpec(command=("true",))


def job(**values: Any) -> JobSpec:
    return JobSpec(command=("true",), **values)


def levels(items: Iterable[Finding | Setting]) -> list[tuple[str, str]]:
    return [(str(finding.level), finding.check) for finding in collect(items).findings]


def only(items: Iterable[Finding | Setting]) -> Finding:
    (finding,) = collect(items).findings
    return finding


@pytest.mark.parametrize(
    ("versions", "level", "check"),
    [
        ({"version": "3.11.7", "tensorflow": "2.21.0"}, "ok", "python"),
        ({"version": "3.11.7", "tensorflow": None}, "warning", "python.tensorflow"),
        ({"error": "/v/bin/python: no module"}, "warning", "python"),
    ],
)
def test_python_is_judged_by_its_versions(versions: dict[str, str | None], level: str, check: str) -> None:
    finding = shell.judge_python("/v/bin/python", versions, "load it")
    assert (finding.level, finding.check) == (level, check)
    assert finding.message.startswith("/v/bin/python")
    assert ("load it" in finding.hint) == (level != "ok")


def program(folder: Path, text: str) -> dict[str, str]:
    (folder / "python").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "python").chmod(0o755)
    return {"PATH": str(folder)}


def test_python_on_the_path_is_asked(tmp_path: Path) -> None:
    environ = program(tmp_path, """echo '{"version": "3.12.1", "tensorflow": "2.16.1"}'""")
    assert only(shell.python(JOB, environ)).message == f"{tmp_path}/python is Python 3.12.1 with TensorFlow 2.16.1"
    assert only(shell.python(JOB, program(tmp_path, "echo broken >&2; exit 1"))).message.endswith("broken")
    assert only(shell.python(JOB, program(tmp_path, "echo 1"))).message == f"{tmp_path}/python: TypeError"
    assert "no program python" in only(shell.python(JOB, {"PATH": "/nowhere"})).message
    assert only(shell.python(job(setup=["module load tf"]), environ)).level == "ok"
    assert "container" in collect(shell.python(job(container="/tf.sif"), environ)).findings[0].message
    assert only(shell.python(job(python="/no/python", setup=["x"]), environ)).level == "warning"
    assert "python3.99" in only(shell.python(job(python="python3.99"), environ)).message


@pytest.mark.parametrize(
    ("values", "program", "level", "piece"),
    [
        ({}, "singularity", "ok", "singularity makes the containers"),
        ({}, "", "warning", " has neither apptainer nor singularity"),
        ({"setup": ["module load apptainer"]}, "", "ok", "set-up lines must load apptainer or singularity"),
        ({"container_command": ["nosuch", "{image}"]}, "singularity", "warning", " has no program nosuch, with which"),
    ],
)
def test_program_that_makes_containers_is_looked_for(
    tmp_path: Path, values: dict[str, Any], program: str, level: str, piece: str
) -> None:
    if program:
        (tmp_path / program).touch(0o755)
    _, finding = collect(shell.python(job(container="docker://i", **values), {"PATH": str(tmp_path)})).findings
    assert (finding.level, finding.check) == (level, "container")
    assert piece in finding.message
    assert ("gridtf doctor --probe" in finding.hint) == (level != "ok")


@pytest.mark.parametrize(
    ("environ", "lines"),
    [
        ({"VIRTUAL_ENV": "/home/a b/venv"}, ["source '/home/a b/venv'/bin/activate"]),
        (
            {"CONDA_PREFIX": "/c/envs/tf", "CONDA_EXE": "/c/bin/conda"},
            ["source /c/etc/profile.d/conda.sh", "conda activate /c/envs/tf"],
        ),
        ({}, []),
    ],
)
def test_set_up_lines_activate_the_environment_of_the_shell(environ: dict[str, str], lines: list[str]) -> None:
    assert shell.activation(environ) == lines


@pytest.mark.parametrize(
    ("environ", "program", "line"),
    [
        ({"VIRTUAL_ENV": "/v"}, "/v/bin/python", 'setup = ["source /v/bin/activate"]'),
        ({}, "/opt/py/bin/python", 'setup = ["export PATH=/opt/py/bin:$PATH"]'),
        ({}, "/usr/bin/python", ""),
        ({}, None, ""),
    ],
)
def test_job_that_inherits_nothing_needs_a_set_up_line(environ: dict[str, str], program: str | None, line: str) -> None:
    found = collect(shell.environment(environ, JOB, "Grid Engine", program))
    assert [setting.line for setting in found.settings] == [line] * bool(line)
    assert levels(found.findings) == [("warning" if line else "ok", "shell.environment")]
    has_one = collect(shell.environment(environ, job(setup=["x"]), "Grid Engine", program))
    assert (levels(has_one.findings), has_one.settings) == ([("ok", "shell.environment")], ())


@pytest.mark.parametrize(
    ("known", "initial", "environ", "setup", "level", "example"),
    [
        (True, "/m", {"MODULESHOME": "/x"}, [], "ok", ["module load cuda"]),
        (False, "/m", {"MODULESHOME": "/x"}, [], "warning", ["source /m", "module load cuda"]),
        (False, "/m", {"MODULESHOME": "/x"}, ["module load cuda"], "warning", ["source /m", "module load cuda"]),
        (False, "/m", {"MODULESHOME": "/x"}, ["source /etc/modules.sh"], "ok", ["source /m", "module load cuda"]),
        (False, "/m", {}, [], "ok", ["source /m", "module load cuda"]),
        (False, "/m", {}, ["true && module load cuda"], "warning", ["source /m", "module load cuda"]),
        (False, "", {}, [], "ok", None),
        (False, "", {}, ["module load cuda"], "warning", None),
        (False, "", {}, ["ml cuda"], "warning", None),
        (False, "", {}, ["source modules"], "ok", None),
    ],
)
def test_modules_in_a_script(
    known: bool, initial: str, environ: dict[str, str], setup: list[str], level: str, example: list[str] | None
) -> None:
    found = collect(shell.modules(known, initial, environ, job(setup=setup)))
    assert levels(found.findings) == [(level, "shell.module")]
    examples = [setting.value for setting in found.settings if "module" in setting.comment]
    assert examples == ([] if example is None else [example])
