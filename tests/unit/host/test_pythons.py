"""The version of TensorFlow that a Python has, from the folders of a venv, a build of one's own, Debian and conda."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridtf.host.pythons import packages, tensorflow_version


def python(prefix: Path, name: str = "python3.11") -> Path:
    """A Python of its own with a folder for packages."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / name).write_text("")
    (prefix / "bin" / name).chmod(0o755)
    (prefix / "bin" / "python").symlink_to(name)
    (prefix / "lib" / name / "site-packages").mkdir(parents=True)
    return prefix / "bin" / "python"


def venv(prefix: Path, base: Path, *, system: bool = False) -> Path:
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python").symlink_to(base)
    (prefix / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = {str(system).lower()}\nversion = 3.11.7\n"
    )
    return prefix / "bin" / "python"


def install(prefix: Path, name: str) -> None:
    (prefix / "lib" / "python3.11" / "site-packages" / name).mkdir()


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("tensorflow-2.21.0.dist-info", "2.21.0"),
        ("tensorflow_cpu-2.2.0.dist-info", "2.2.0"),
        ("tensorflow_gpu-1.15.5.dist-info", "1.15.5"),
        ("tf_nightly-2.22.0.dev20260101.dist-info", "2.22.0.dev20260101"),
        ("tensorflow-2.15.0-py3.11.egg-info", "2.15.0"),
        ("tensorflow_estimator-2.15.0.dist-info", ""),
        ("tensorflow_io_gcs_filesystem-0.37.1.dist-info", ""),
        ("tensorflow", ""),
    ],
)
def test_version_is_that_of_the_distribution_s_metadata(name: str, version: str, tmp_path: Path) -> None:
    program = python(tmp_path)
    install(tmp_path, name)
    assert tensorflow_version(str(program), {}, Path("/")) == version


def test_folders_that_a_pth_file_names_are_looked_into(tmp_path: Path) -> None:
    program = python(tmp_path / "own")
    (tmp_path / "more" / "tensorflow-2.21.0.dist-info").mkdir(parents=True)
    site = tmp_path / "own/lib/python3.11/site-packages"
    (site / "more.pth").write_text(f"# folders\nimport os; os.environ['X'] = '1'\nnowhere\n\n{tmp_path}/more\n")
    assert tensorflow_version(str(program), {}, Path("/")) == "2.21.0"


def test_a_venv_has_its_own_packages_and_those_of_its_base_only_where_it_says_so(tmp_path: Path) -> None:
    base = python(tmp_path / "base")
    install(tmp_path / "base", "tensorflow-2.20.0.dist-info")
    alone, both = venv(tmp_path / "alone", base), venv(tmp_path / "both", base, system=True)
    assert tensorflow_version(str(alone), {}, Path("/")) == ""
    assert tensorflow_version(str(both), {}, Path("/")) == "2.20.0"
    install(tmp_path / "alone", "tensorflow-2.21.0.dist-info")
    assert tensorflow_version(str(alone), {}, Path("/")) == "2.21.0"


def test_the_program_is_looked_up_as_the_task_s_start_does(tmp_path: Path) -> None:
    install_in = tmp_path / "base"
    program = python(install_in)
    install(install_in, "tensorflow-2.21.0.dist-info")
    path = {"PATH": f"/nowhere:{program.parent}"}
    assert tensorflow_version("python", path, Path("/")) == "2.21.0"
    assert tensorflow_version("python3.11", path, Path("/")) == "2.21.0"
    assert tensorflow_version("base/bin/python", {}, tmp_path) == "2.21.0"
    assert tensorflow_version("python", {"PATH": "/nowhere"}, Path("/")) is None
    unusable = "/" + 300 * "x"  # as a folder of another user: stat(2) fails, but not with ENOENT
    assert tensorflow_version("python", {"PATH": f"{unusable}:{program.parent}"}, Path("/")) == "2.21.0"
    assert tensorflow_version(str(program), {"HOME": unusable, "PYTHONPATH": unusable}, Path("/")) == "2.21.0"


def test_pythonpath_comes_first_then_the_user_s_own_packages(tmp_path: Path) -> None:
    program = python(tmp_path / "base")
    install(tmp_path / "base", "tensorflow-2.21.0.dist-info")
    own = tmp_path / ".local" / "lib" / "python3.11" / "site-packages"
    (own / "tensorflow-2.20.0.dist-info").mkdir(parents=True)
    (tmp_path / "code" / "tensorflow-2.19.0.dist-info").mkdir(parents=True)
    assert tensorflow_version(str(program), {"HOME": str(tmp_path)}, Path("/")) == "2.20.0"
    env = {"HOME": str(tmp_path), "PYTHONPATH": "code:"}
    assert tensorflow_version(str(program), env, tmp_path) == "2.19.0"


def test_nothing_is_said_of_programs_that_are_no_python_or_lie_elsewhere(tmp_path: Path) -> None:
    shim = tmp_path / "shims" / "python"  # as pyenv's, which are scripts
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\n")
    shim.chmod(0o755)
    assert tensorflow_version(str(shim), {}, Path("/")) is None
    for program in ("bash", "mpirun", "./train.py", "", "python3-config"):
        assert tensorflow_version(program, {"PATH": "/usr/bin:/bin"}, Path("/")) is None


def test_packages_of_a_python_are_those_it_would_import(tmp_path: Path) -> None:
    program = python(tmp_path / "base")
    for name in ("numpy-2.0.1.dist-info", "typing_extensions-4.12.2.dist-info", "PyYAML-6.0-py3.11.egg-info", "numpy"):
        install(tmp_path / "base", name)
    (tmp_path / "own" / "numpy-1.26.4.dist-info").mkdir(parents=True)
    found = packages(str(program), {"PYTHONPATH": str(tmp_path / "own")}, Path("/"))
    assert found is not None
    assert found["python"] == str(program)
    assert found["version"] == "3.11"
    assert found["packages"] == {"numpy": "1.26.4", "pyyaml": "6.0", "typing-extensions": "4.12.2"}
    assert packages("bash", {}, Path("/")) is None
