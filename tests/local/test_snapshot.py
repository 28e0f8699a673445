"""Jobs in a snapshot of their working folder, on this machine: what is edited after the submission does not run."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gridtf.run.rundir import RunDir, read_record
from tests.support.commands import as_json, call, running, status, submit
from tests.support.disks import small_disk

TRAIN = """
import os, pathlib, lib, package.part
print(lib.WHO, package.part.WHO, pathlib.Path("data/x.csv").read_text(), os.getcwd(), flush=True)
"""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a disk, and becomes another user")


@pytest.fixture
def folder(here: Path) -> Path:
    """A git checkout with a program that imports from it, and with data that git ignores."""
    files = {
        "train.py": TRAIN,
        "lib.py": "WHO = 'lib-1'\n",
        "package/part.py": "WHO = 'part-1'\n",
        "data/x.csv": "data-1",
        ".gitignore": "data/\n",
    }
    for name, text in files.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")):
        subprocess.run(["git", *words], cwd=here, check=True)
    return here


def edit(folder: Path) -> None:
    for name in ("train.py", "lib.py", "package/part.py", "data/x.csv"):
        with (folder / name).open("r+") as file:  # in place: what shares its blocks would change, too
            text = file.read().replace("-1", "-2")
            file.seek(0)
            file.write(text)
    with (folder / "train.py").open("a") as file:
        file.write("print('edited')\n")


def waiting(folder: Path) -> str:
    """A set-up line that waits for a file, as a job waits for its hosts."""
    return f"until [ -e {shlex.quote(str(folder / 'data' / 'go'))} ]; do sleep 0.05; done"


def printed(job: dict[str, Any]) -> str:
    attempt = RunDir(job["run_dir"]).latest()
    assert attempt is not None
    return attempt.task_log("worker", 0).read_text()


def snapshot_of(job: dict[str, Any]) -> str:
    return str(status(job["run_dir"])["code"]["snapshot"])


def ended(job: dict[str, Any], code: int = 0) -> dict[str, Any]:
    call("wait", job["run_dir"], code=code)
    return status(job["run_dir"])


@pytest.mark.parametrize("snapshot", [True, False])
def test_edit_while_the_job_waits_does_not_run(folder: Path, snapshot: bool) -> None:
    option = "--snapshot" if snapshot else "--no-snapshot"
    job = submit("--workers", "1", option, "--setup", waiting(folder), "--", sys.executable, "train.py")
    edit(folder)
    (folder / "data" / "go").touch()
    view = ended(job)
    where = view["code"].get("snapshot", str(folder))
    which = "1" if snapshot else "2"
    assert printed(job).splitlines()[0] == f"lib-{which} part-{which} data-2 {where}"  # data are not copied
    assert ("edited" in printed(job)) is not snapshot
    assert view["code"]["dirty"] is False
    python = view["code"]["pythons"]["worker"]
    assert python["version"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert Path(python["python"]).samefile(sys.executable)


def test_entry_function_and_its_imports_are_those_of_the_snapshot(folder: Path) -> None:
    (folder / "job.py").write_text("def main():\n    import lib, os\n    print(lib.WHO, os.getcwd())\n")
    job = submit("--workers", "1", "--snapshot", "--setup", waiting(folder), "--entry", "job:main")
    edit(folder)
    (folder / "data" / "go").touch()
    ended(job)
    assert f"lib-1 {snapshot_of(job)}" in printed(job)


def test_subfolder_imports_from_the_top_of_its_repository(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "run.py").write_text("import lib, os\nprint(lib.WHO, os.getcwd())\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ['PYTHONPATH']}")
    job = submit("--workers", "1", "--chdir", "sub", "--snapshot", "--setup", waiting(folder), "--", "python", "run.py")
    edit(folder)
    (folder / "data" / "go").touch()
    ended(job)
    assert printed(job).splitlines()[0] == f"lib-1 {snapshot_of(job)}/sub"


FINDER = """\
import importlib.util, sys
MAPPING = {{"mapped": {path!r}}}
def find_spec(name, path=None, target=None):
    found = MAPPING.get(name)
    return found and importlib.util.spec_from_file_location(name, found + "/__init__.py")
sys.meta_path.append(sys.modules[__name__])
"""


def test_editable_install_of_the_folder_is_that_of_the_snapshot(folder: Path, tmp_path: Path) -> None:
    """By a path, and by a finder as setuptools writes it; the virtual environment in the folder is a link."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    (packages,) = (folder / ".venv").glob("lib/python*/site-packages")
    (packages / "extra.py").touch()
    for name in ("src/pathed", "mapped"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("WHO = 'it-1'\n")
    (packages / "__editable___mapped_finder.py").write_text(FINDER.format(path=str(folder / "mapped")))
    (packages / "x.pth").write_text(f"{folder / 'src'}\nimport __editable___mapped_finder\n")
    (folder / "tools").mkdir()
    (folder / "tools" / "run.py").write_text("import extra, pathed, mapped\nprint(pathed.WHO, mapped.WHO)\n")
    python = ("--setup", waiting(folder), "--", ".venv/bin/python", "tools/run.py")
    job = submit("--workers", "1", "--snapshot", *python)
    for name in ("src/pathed", "mapped"):
        (folder / name / "__init__.py").write_text("WHO = 'it-2'\n")
    (folder / "data" / "go").touch()
    ended(job)
    assert printed(job) == "it-1 it-1\n"


def test_resumed_job_and_each_of_its_starts_run_the_snapshot(folder: Path) -> None:
    program = "import os, sys, lib\nprint(lib.WHO, flush=True)\nif not os.path.exists('data/done'): sys.exit(42)\n"
    (folder / "train.py").write_text(program)
    first = submit("--workers", "1", "--snapshot", "--", sys.executable, "train.py")
    ended(first, code=42)
    edit(folder)
    (folder / "data" / "done").touch()
    second = as_json("resume", first["job_id"])
    ended(second)
    assert printed(second) == "lib-1\n"
    assert snapshot_of(second) == snapshot_of(first)
    call("clean", first["run_dir"], "--yes", "--keep-output")
    assert Path(snapshot_of(second)).is_dir()


def test_exec_begins_in_the_snapshot(folder: Path) -> None:
    job = submit("--workers", "1", "--snapshot", "--", "sleep", "600")
    running(job["run_dir"])
    assert call("exec", job["run_dir"], "worker:0", "--", "pwd").stdout.strip() == snapshot_of(job)


def test_job_may_write_into_its_folder_but_not_over_its_code(folder: Path) -> None:
    """Root may write over anything, the tests' user in a container included."""
    program = "import os\nopen('new', 'w').write('x')\nprint(oct(os.stat('lib.py').st_mode))\n"
    (folder / "train.py").write_text(program)
    job = submit("--workers", "1", "--snapshot", "--", sys.executable, "train.py")
    ended(job)
    assert printed(job) == "0o100444\n"
    assert (Path(snapshot_of(job)) / "new").exists()
    assert not (folder / "new").exists()


@ROOT_ONLY
def test_disk_that_is_full_in_the_middle_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    for number in range(8):
        (folder / f"weights-{number}").write_bytes(os.urandom(300_000))
    with small_disk(tmp_path / "disk", "1m") as disk:
        words = ("submit", "--workers", "1", "--snapshot", "--run-root", str(disk / "runs"), "--", "true")
        said = call(*words, code=1).stderr
        assert os.strerror(errno.ENOSPC) in said
        assert "Traceback" not in said
        assert [str(path) for path in disk.rglob("*")] in ([], [str(disk / "runs")])
    assert call("list").stdout == "no jobs yet\n"


@ROOT_ONLY
def test_file_that_this_user_cannot_read_is_named(folder: Path) -> None:
    (folder / "secret.txt").write_text("x")
    (folder / "secret.txt").chmod(0)
    code = (
        "import os\nfrom gridtf.login import snapshot\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n    snapshot._copy('secret.txt', '/dev/null')\nexcept Exception as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert "cannot read secret.txt: Permission denied" in done.stdout


def test_report_and_archive_have_code_only_on_request(folder: Path) -> None:
    (folder / "lib.py").write_text("WHO = 'changed-here'\n")
    job = submit("--workers", "1", "--snapshot", "--", sys.executable, "train.py")
    ended(job)
    for options, wanted in (((), False), (("--with-code",), True)):
        call("report", job["run_dir"], "-f", "-o", "page.html", *options)
        page = (folder / "page.html").read_text()
        assert ("+WHO = &#39;changed-here&#39;" in page) is wanted
        assert "with changes" in page
        call("report", "--bundle", job["run_dir"], "-f", "-o", "all.tar.gz", *options)
        with tarfile.open(folder / "all.tar.gz") as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        assert {"code.json", "attempt-1/packages.json"} <= names
        assert ({"code.diff", "code/lib.py", "code/package/part.py"} <= names) is wanted
    shown = call("status", job["run_dir"]).stdout
    assert "with changes" in shown
    assert f"snapshot {snapshot_of(job)}" in shown
    assert (read_record(RunDir(job["run_dir"]).code) or {})["dirty"] is True
