"""How gridtf starts a Python: real ones, in a folder with a trap for each module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gridtf.doctor import measure, mpi
from gridtf.findings import collect
from gridtf.host import encrypted
from gridtf.host.interpreter import ROOT, asked, isolated
from gridtf.jobspec.spec import JobSpec
from tests.support.traps import Traps

MPI4PY = """
class rc: pass
class MPI:
    @staticmethod
    def Get_library_version(): return "Open MPI v5.0.11, package: Open MPI"
"""


@pytest.fixture
def traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traps:
    made = Traps(tmp_path / "traps", tmp_path / "ran")
    monkeypatch.chdir(made.folder)
    return made


# as from PYTHONPATH=/opt/lib:$PYTHONPATH in a shell without one
@pytest.mark.parametrize("path", [None, "", ":", "{good}:", ":{good}", "{good}::.", "..:{good}", "../traps"])
def test_python_of_a_job_is_asked_without_modules_of_its_working_folder(
    traps: Traps, tmp_path: Path, path: str | None
) -> None:
    good = tmp_path / "good"
    good.mkdir()
    (good / "of_the_module_system.py").touch()
    given = {"PYTHONPATH": path.format(good=good)} if path is not None else {}
    environ = {**{name: text for name, text in os.environ.items() if name != "PYTHONPATH"}, **given}
    code = "import json, os, socket, importlib.util as u; print(json.dumps(bool(u.find_spec('of_the_module_system'))))"
    argv, own = asked(sys.executable, ["-c", code], environ, traps.folder)
    done = subprocess.run(argv, env=own, cwd=ROOT, capture_output=True, text=True)
    assert not traps.ran
    assert json.loads(done.stdout) is ("{good}" in (path or ""))
    assert {**own, **given} == environ, "nothing else of its environment has changed"


def test_python_named_by_a_path_is_that_of_the_working_folder(tmp_path: Path) -> None:
    assert asked("venv/bin/python", ["-V"], {}, tmp_path)[0] == [f"{tmp_path}/venv/bin/python", "-V"]
    assert asked("/opt/bin/python", [], {}, tmp_path)[0] == ["/opt/bin/python"]
    assert asked("python3", [], {}, tmp_path)[0] == ["python3"]


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["user's site", "PYTHONPATH"])
def test_doctor_sees_mpi_of_a_user_s_site_and_of_a_module(
    traps: Traps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "user"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python = Path(sys.executable).resolve()  # in a virtual environment there is no user's site
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(python)
    asking = [str(python), "-c", "import site; print(site.getusersitepackages())"]
    site = Path(subprocess.run(asking, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip())
    if place == "PYTHONPATH":
        site = tmp_path / "module"
        monkeypatch.setenv("PYTHONPATH", f"{site}:")
    site.mkdir(parents=True)
    (site / "mpi4py.py").write_text(MPI4PY)
    environ = {**os.environ, "PATH": str(tmp_path / "bin")}
    (found,) = collect(mpi.mpi(JobSpec(command=("true",)), None, environ)).findings
    assert found.message == "mpi4py has Open MPI 5.0.11, and there is no mpirun on the PATH"
    assert not traps.ran


@pytest.mark.thorough
def test_version_of_a_job_s_python_is_that_without_the_working_folder(
    traps: Traps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    for path in ("", ":", "."):
        monkeypatch.setenv("PYTHONPATH", path)
        assert measure.versions(sys.executable, 60.0)["version"] == sys.version.split()[0]
    assert not traps.ran


def test_python_is_asked_also_where_the_current_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert measure.versions(sys.executable, 60.0)["version"] == sys.version.split()[0]
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    mpirun.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{Path(sys.executable).parent}"}
    (found,) = collect(mpi.mpi(JobSpec(command=("true",)), None, environ)).findings
    assert found.message.startswith(f"{mpirun} is of Open MPI 4.1.4")


@pytest.mark.thorough
def test_helpers_are_isolated(traps: Traps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":.")
    done = subprocess.run(
        isolated(sys.executable, "-c", "import socket, random, sys; print(sys.path)"), capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert str(traps.folder).encode() not in done.stdout
    # what srun runs on another host, to which no connection can be made
    copy = subprocess.run([*encrypted.COPY, "1"], capture_output=True, text=True)
    assert "ConnectionRefusedError" in copy.stderr
    assert not traps.ran
