"""The wheel, built and used outside the checkout: its files, its metadata, that it works."""

from __future__ import annotations

import email
import email.message
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: object, cwd: Path, **env: str) -> str:
    """Run a command with a minimal environment; returns its stdout."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), "PIP_NO_INDEX": "1", **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the checkout, with additional files that must not get into it."""
    source = tmp_path_factory.mktemp("source") / "gridtf"
    ignore = shutil.ignore_patterns("__pycache__", ".*", "gridtf-runs")
    shutil.copytree(ROOT, source, ignore=ignore)
    (source / "templates" / "slurm.sh.j2~").write_text("an editor's copy")
    (source / "scripts" / "gridtf-bootstrap.sh.orig").write_text("a merge's copy")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", source / "dist", ".", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed with a space") / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, wheel]
    run(*command, cwd=target.parent)
    return target


def gridtf(installed: Path, cwd: Path, *arguments: str) -> str:
    command = [sys.executable, installed / "bin" / "gridtf", *arguments]
    return run(*command, cwd=cwd, PYTHONPATH=str(installed))


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_wheel_contains_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    own = [path for path in (ROOT / "gridtf").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    code = {str(path.relative_to(ROOT)) for path in own}
    templates = {f"gridtf/{path.relative_to(ROOT)}" for path in (ROOT / "templates").rglob("*.*")}
    assert {"gridtf/templates/job.sh.j2", "gridtf/templates/report/report.css"} <= templates
    version = metadata(wheel)["Version"]
    about = {f"gridtf-{version}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    licence = f"gridtf-{version}.dist-info/licenses/LICENSE"
    data = f"gridtf-{version}.data/data/share"
    manual = {f"{data}/{path.relative_to(ROOT / 'docs')}" for path in ROOT.glob("docs/man/*/*")}
    assert manual
    assert names == code | templates | about | manual | {
        licence,
        f"{data}/doc/gridtf/status.schema.json",
        f"{data}/bash-completion/completions/gridtf",
        f"{data}/zsh/site-functions/_gridtf",
        f"{data}/fish/vendor_completions.d/gridtf.fish",
        "gridtf/scripts/gridtf-bootstrap.sh",
    }


def test_metadata(wheel: Path) -> None:
    about = metadata(wheel)
    assert about["Name"] == "gridtf"
    assert about["Requires-Python"] == ">=3.10"
    assert about["License-Expression"] == "Apache-2.0"
    classifiers = about.get_all("Classifier") or []
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)} <= set(classifiers)
    assert {"tensorflow", "cpu", "cuda"} <= set(about.get_all("Provides-Extra") or [])
    unconditional = [need for need in about.get_all("Requires-Dist") or [] if "extra ==" not in need]
    assert not [need for need in unconditional if need.startswith("tensorflow")]


def test_version(installed: Path, tmp_path: Path) -> None:
    (about,) = installed.glob("gridtf-*.dist-info")
    assert gridtf(installed, tmp_path, "--version").split()[-1] in about.name


def test_bootstrap_script_comes_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    path = Path(gridtf(installed, tmp_path, "bootstrap-path").strip())
    assert path == installed / "gridtf" / "scripts" / "gridtf-bootstrap.sh"
    run("bash", "-euo", "pipefail", "-c", 'source "$1"; declare -F gridtf_run gridtf_join', "-", path, cwd=tmp_path)


@pytest.mark.parametrize("scheduler", ["local", "slurm", "sge"])
def test_render_uses_the_templates_of_the_wheel(installed: Path, tmp_path: Path, scheduler: str) -> None:
    extra = ["--pe", "mpi"] if scheduler == "sge" else []
    where = ["--run-dir", str(tmp_path / "run")]  # its default holds the time
    arguments = ["render", "--scheduler", scheduler, "--workers", "2", *where, *extra, "--", "true"]
    script = gridtf(installed, tmp_path, *arguments)
    assert script.startswith("#!/")
    assert str(installed / "gridtf" / "scripts" / "gridtf-bootstrap.sh") in script
    assert str(ROOT / "scripts") not in script
    template = installed / "gridtf" / "templates" / "job.sh.j2"
    text = template.read_text()
    try:
        template.write_text(f"{text}# only the installed template says this\n")
        assert gridtf(installed, tmp_path, *arguments) == f"{script}# only the installed template says this\n"
    finally:
        template.write_text(text)
