"""What `gridtf doctor` finds on this host. The world is /proc/self/mounts as text, and folders of the test."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gridtf import schedulers
from gridtf.doctor import login
from gridtf.errors import SchedulerError
from gridtf.findings import Examination, Finding, Level, Setting, collect, missing
from gridtf.jobspec.config import Configured
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers import batch
from tests.support.scheduler import FakeScheduler

# /proc/self/mounts of a login node: fstab(5)
MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
tmpfs /run tmpfs rw,nosuid,nodev,mode=755 0 0
fs1:/home /home nfs4 rw,relatime,vers=4.2 0 0
10.0.0.1@o2ib:/scratch /scratch lustre rw,flock 0 0
"""
JOB = JobSpec(command=("true",))
NOTHING = Configured(JOB, {})


def job(**values: Any) -> JobSpec:
    return JobSpec(command=("true",), **values)


def levels(items: Iterable[Finding | Setting]) -> list[tuple[str, str]]:
    return [(str(finding.level), finding.check) for finding in collect(items).findings]


def only(items: Iterable[Finding | Setting]) -> Finding:
    (finding,) = collect(items).findings
    return finding


# --- files


def user_file(text: str) -> Path:
    path = Path(os.environ["XDG_CONFIG_HOME"], "gridtf/config.toml")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_files_that_are_valid_are_named() -> None:
    path = user_file('partition = "gpu"\n')
    given, findings = login.configuration(os.environ, Path())
    assert given.spec.partition == "gpu"
    assert findings == (Finding(Level.OK, "configuration", f"{path} is valid"),)


def test_variables_count_and_a_job_file_does_not(rough_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (rough_path / "gridtf.toml").write_text("nodes = 3\n")
    monkeypatch.setenv("GRIDTF_SUBMIT_PARTITION", "gpu")
    given, (finding,) = login.configuration(os.environ, rough_path)
    assert (given.spec.partition, given.spec.nodes, finding.level) == ("gpu", None, "ok")
    assert given.source("partition") == "GRIDTF_SUBMIT_PARTITION"


def test_no_file_is_ok() -> None:
    _, findings = login.configuration(os.environ, Path())
    assert findings == (Finding(Level.OK, "configuration", "no site's or user's file"),)


@pytest.mark.parametrize(
    ("text", "level", "piece", "hint"),
    [
        ("time = 2h\n", "failure", "config.toml:1: ", 'write time = "2h"'),
        ("nodes = -1\n", "failure", "config.toml:1: nodes: ", ""),
        ("gpus_per_nod = 1\n", "warning", "config.toml:1: gpus_per_nod: unknown key, left out; did you mean", "mend"),
    ],
)
def test_file_that_is_not_valid_is_one_finding(text: str, level: str, piece: str, hint: str) -> None:
    user_file(text)
    _, (finding,) = login.configuration(os.environ, Path())
    assert (finding.level, finding.check) == (level, "configuration")
    assert piece in finding.message
    assert hint in finding.hint


def test_key_that_the_site_requires_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site.toml"
    site.write_text('nodes = 1\n[limits]\nrequire = ["account"]\n')
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(site))
    given, (valid, finding) = login.configuration(os.environ, Path())
    assert given.spec.nodes == 1
    assert (valid.level, finding.level, finding.check) == ("ok", "warning", "configuration.limits")
    assert finding.hint == "write account = …"
    assert "site.toml:3: require" in finding.message


def test_scheduler_that_is_not_set_up_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(environ: object) -> str:
        raise SchedulerError("no cluster can be used", why="SGE_ROOT is not set", hint="--scheduler local")

    monkeypatch.setattr(schedulers, "to_submit_to", none)
    site = login.look(os.environ, Path())
    assert site.scheduler is None
    assert site.findings[1] == Finding(
        Level.FAILURE, "scheduler", "no cluster can be used; SGE_ROOT is not set", "--scheduler local"
    )


# --- run root


def judged(root: str, elsewhere: str = "", *, on_network: bool = False) -> Examination:
    return collect(login.shared(Path(root), MOUNTS, elsewhere, on_network=on_network))


@pytest.mark.parametrize(
    ("root", "level", "piece"),
    [
        ("/home/alice/gridtf-runs", "ok", "on /home (nfs4)"),
        ("/scratch/alice", "ok", "on /scratch (lustre)"),
        ("/tmp/x", "failure", "each host has its own /tmp"),
        ("/run/x", "failure", "/run is a tmpfs, which lies in the memory of this host"),
        ("/local/x", "warning", "a disk of this host (ext4 on /)"),
    ],
)
def test_run_root_is_judged_by_its_file_system(root: str, level: str, piece: str) -> None:
    found = judged(root)
    (finding,) = found.findings
    assert (finding.level, finding.check, found.settings) == (level, "run_root.shared", ())
    assert piece in finding.message
    assert (finding.hint != "") == (level != "ok")


@pytest.mark.parametrize(
    ("root", "on_network", "written"),
    [("/tmp/x", True, True), ("/tmp/x", False, True), ("/local/x", True, True), ("/local/x", False, False)],
)
def test_better_run_root_is_a_setting(root: str, on_network: bool, written: bool) -> None:
    found = judged(root, "$SCRATCH/gridtf-runs", on_network=on_network)
    assert [setting.line for setting in found.settings] == ['run_root = "$SCRATCH/gridtf-runs"'] * written
    assert (found.findings[0].hint == 'write run_root = "$SCRATCH/gridtf-runs"') == written


def test_working_folder_that_no_other_host_sees_is_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "own_mounts", lambda: MOUNTS)
    monkeypatch.setattr(login, "suggestion", lambda *_: ("$SCRATCH/gridtf-runs", True))
    monkeypatch.setattr(login, "usable", lambda root: iter(()))
    site, folder = login.Site(NOTHING, schedulers.get("slurm"), ()), Path("/run/x")
    found = [item for item in login.run_root(site, {}, folder, folder / "gridtf-runs") if isinstance(item, Finding)]
    assert [(item.level, item.check) for item in found if item.check.endswith("shared")] == [
        ("failure", "chdir.shared")
    ]
    assert found[0].hint == "work in a folder that all hosts share: cd $SCRATCH"
    other = levels(login.run_root(site, {}, folder, Path("/home/alice")))
    assert other[:2] == [("failure", "chdir.shared"), ("ok", "run_root.shared")]
    local = login.Site(NOTHING, schedulers.get("local"), ())
    assert levels(login.run_root(local, {}, folder, folder)) == [("failure", "job")]


def test_suggestion_prefers_a_file_system_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) in ("/scratch/alice", "/local/alice", "/tmp/work"))
    monkeypatch.setattr(Path, "resolve", lambda path: path)
    assert login.suggestion({"WORK": "/local/alice", "USER": "alice"}, MOUNTS) == ("/scratch/$USER/gridtf-runs", True)
    assert login.suggestion({"SCRATCH": "/scratch/alice"}, MOUNTS) == ("$SCRATCH/gridtf-runs", True)
    assert login.suggestion({"SCRATCH": "/tmp/work", "WORK": "/local/alice"}, MOUNTS) == ("$WORK/gridtf-runs", False)
    assert login.suggestion({"SCRATCH": "/tmp/work"}, MOUNTS) == ("", False)


def test_usable_run_root_leaves_nothing_behind(tmp_path: Path) -> None:
    assert levels(login.usable(tmp_path / "a" / "b"))[:2] == [("ok", "run_root.write"), ("ok", "run_root.space")]
    assert list(tmp_path.iterdir()) == []


def refuse(*_: object, **__: object) -> Any:
    raise OSError(errno.EDQUOT, "Disk quota exceeded")


@pytest.mark.parametrize(
    ("owner", "name", "level", "check"),
    [
        (tempfile, "mkdtemp", "failure", "run_root.write"),
        (Path, "write_bytes", "failure", "run_root.write"),
        (Path, "replace", "failure", "run_root.rename"),
        (fcntl, "lockf", "warning", "run_root.lock"),
    ],
)
def test_what_fails_in_the_run_root_is_one_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, level: str, check: str
) -> None:
    monkeypatch.setattr(owner, name, refuse)
    finding = next(item for item in collect(login.usable(tmp_path)).findings if item.level != Level.OK)
    assert (finding.level, finding.check) == (level, check)
    assert "Disk quota exceeded" in finding.message
    assert finding.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("blocks", "files", "piece"), [(10, 10**6, "MiB are free"), (10**9, 10, "room for 10 more")])
def test_little_space_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, files: int, piece: str
) -> None:
    values = (4096, 4096, 10**9, blocks, blocks, 10**6, files, files, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(values))
    found = collect(login.usable(tmp_path)).findings[1]
    assert (found.level, found.check) == ("warning", "run_root.space")
    assert piece in found.message


def test_run_directory_that_qsub_would_misread_is_a_failure(tmp_path: Path) -> None:
    (folder := tmp_path / "a,b").mkdir()
    sge = login.Site(NOTHING, schedulers.get("sge"), ())
    found = [item for item in login.run_root(sge, {}, folder, folder / "runs") if isinstance(item, Finding)]
    (finding,) = (item for item in found if item.check == "job")
    assert (finding.level, finding.hint) == ("failure", "choose another place with --run-dir or --run-root")


# --- Python


@pytest.mark.parametrize(
    ("code", "lines", "level", "check"),
    [
        (0, ["/v/bin/python", "3.11.7", "2.21.0"], "ok", "python"),
        (0, ["/v/bin/python", "3.11.7"], "warning", "python.tensorflow"),
        (1, [], "warning", "python"),
    ],
)
def test_python_is_judged_by_what_it_prints(code: int, lines: list[str], level: str, check: str) -> None:
    finding = login.judge_python("/v/bin/python", code, lines, "no module", "load it")
    assert (finding.level, finding.check) == (level, check)
    assert finding.message.startswith("/v/bin/python ")
    assert ("load it" in finding.hint) == (level != "ok")


def program(folder: Path, text: str) -> dict[str, str]:
    (folder / "python").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "python").chmod(0o755)
    return {"PATH": str(folder)}


def test_python_on_the_path_is_asked(tmp_path: Path) -> None:
    environ = program(tmp_path, "echo /v/bin/python; echo 3.12.1; echo 2.16.1")
    assert only(login.python(JOB, environ)).message == f"{tmp_path}/python is Python 3.12.1 with TensorFlow 2.16.1"
    assert only(login.python(JOB, program(tmp_path, "echo broken >&2; exit 1"))).message.endswith("broken")
    assert "no program python" in only(login.python(JOB, {"PATH": "/nowhere"})).message
    assert only(login.python(job(setup=["module load tf"]), environ)).level == "ok"


# --- shell


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
    assert login.activation(environ) == lines


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
    found = collect(login.environment(environ, JOB, "Grid Engine", program))
    assert [setting.line for setting in found.settings] == [line] * bool(line)
    assert levels(found.findings) == [("warning" if line else "ok", "shell.environment")]
    has_one = collect(login.environment(environ, job(setup=["x"]), "Grid Engine", program))
    assert (levels(has_one.findings), has_one.settings) == ([("ok", "shell.environment")], ())


@pytest.mark.parametrize(
    ("known", "initial", "environ", "setup", "level", "example"),
    [
        (True, "/m", {"MODULESHOME": "/x"}, [], "ok", ["module load cuda"]),
        (False, "/m", {"MODULESHOME": "/x"}, [], "warning", ["source /m", "module load cuda"]),
        (False, "/m", {"MODULESHOME": "/x"}, ["module load cuda"], "ok", ["source /m", "module load cuda"]),
        (False, "/m", {}, [], "ok", ["source /m", "module load cuda"]),
        (False, "", {}, [], "ok", None),
    ],
)
def test_modules_in_a_script(
    known: bool, initial: str, environ: dict[str, str], setup: list[str], level: str, example: list[str] | None
) -> None:
    found = collect(login.modules(known, initial, environ, job(setup=setup)))
    assert levels(found.findings) == [(level, "shell.module")]
    examples = [setting.value for setting in found.settings if "module" in setting.comment]
    assert examples == ([] if example is None else [example])


# --- all of it


def test_examination_asks_the_scheduler_and_this_host(fake: FakeScheduler, rough_path: Path) -> None:
    found = login.examine(os.environ, rough_path)
    checks = [finding.check for finding in found.findings]
    assert {"configuration", "scheduler", "run_root.write", "shell.module"} < set(checks)
    failures = {finding.check for finding in found.findings if finding.level == Level.FAILURE}
    assert failures <= {"chdir.shared", "job"}  # tests may run below /tmp
    assert "jobs go to Slurm, which says no more" in next(
        one.message for one in found.findings if one.check == "scheduler"
    )


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (SchedulerError("Slurm does not answer", hint="try later"), "Slurm does not answer", "try later"),
        (KeyError("x"), "KeyError: 'x'", "this is a bug in gridtf, or in the plugin of the scheduler"),
    ],
)
def test_error_of_a_scheduler_is_its_finding(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str, hint: str
) -> None:
    def fail(*_: object) -> Examination:
        raise error

    monkeypatch.setattr(fake, "examine", fail)
    (finding,) = (item for item in login.examine(os.environ, rough_path).findings if item.check == "scheduler")
    assert finding == Finding(Level.FAILURE, "scheduler", message, hint)


def test_scheduler_that_is_silent_is_a_finding(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "_PATIENCE", 0.3)
    monkeypatch.setattr(fake, "examine", lambda *_: time.sleep(60))
    found = login.examine(os.environ, rough_path).findings
    (finding,) = (item for item in found if item.check == "scheduler")
    assert (finding.level, finding.message) == ("failure", "Slurm has not answered all questions within 0.3 s")


def test_invalid_file_hides_what_it_may_have_set(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_file("time = 2h\n")
    items = [*missing("time", "no default", Setting("time", "1:00:00", "x")), Finding(Level.OK, "gpus", "four")]
    monkeypatch.setattr(fake, "examine", lambda *_: collect(items))
    found = login.examine(os.environ, rough_path)
    assert found.settings == ()
    checks = [finding.check for finding in found.findings]
    assert ("configuration" in checks, "gpus" in checks, "time" in checks) == (True, True, False)
