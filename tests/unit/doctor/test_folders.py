"""The folders of a job. File systems are /proc/self/mounts as text, and folders of the test."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gridtf import schedulers
from gridtf.doctor import folders
from gridtf.findings import Examination, Finding, Level, Setting, collect
from gridtf.host import mounts
from gridtf.jobspec.config import Configured
from gridtf.jobspec.spec import JobSpec

# /proc/self/mounts of a login node: fstab(5)
MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
tmpfs /run tmpfs rw,nosuid,nodev,mode=755 0 0
proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0
fs1:/home /home nfs4 rw,relatime,vers=4.2 0 0
10.0.0.1@o2ib:/scratch /scratch lustre rw,flock 0 0
"""
JOB = JobSpec(command=("true",))
NOTHING = Configured(JOB, {})
CHOOSE = "write run_root = …"


def levels(items: Iterable[Finding | Setting]) -> list[tuple[str, str]]:
    return [(str(finding.level), finding.check) for finding in collect(items).findings]


def judged(root: str, elsewhere: str = "", *, on_network: bool = False) -> Examination:
    return collect(folders.shared(Path(root), MOUNTS, elsewhere, on_network=on_network))


@pytest.mark.parametrize(
    ("root", "level", "piece"),
    [
        ("/home/alice/gridtf-runs", "ok", "on /home (nfs4)"),
        ("/scratch/alice", "ok", "on /scratch (lustre)"),
        ("/tmp/x", "failure", "each host has its own /tmp"),
        ("/run/x", "failure", "/run is a tmpfs, which lies in the memory of this host"),
        ("/proc/x", "failure", "/proc (proc) has no files of users"),
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
    monkeypatch.setattr(folders, "own_mounts", lambda: MOUNTS)
    monkeypatch.setattr(folders, "suggestion", lambda *_: ("$SCRATCH/gridtf-runs", True))
    monkeypatch.setattr(folders, "usable", lambda root, choose: iter(()))
    slurm, folder = schedulers.get("slurm"), Path("/run/x")
    found = [
        item
        for item in folders.run_root(NOTHING, slurm, {}, folder, folder / "gridtf-runs")
        if isinstance(item, Finding)
    ]
    assert [(item.level, item.check) for item in found if item.check.endswith("shared")] == [
        ("failure", "chdir.shared")
    ]
    assert found[0].hint == "work in a folder that all hosts share: cd $SCRATCH"
    other = levels(folders.run_root(NOTHING, slurm, {}, folder, Path("/home/alice")))
    assert other[:2] == [("failure", "chdir.shared"), ("ok", "run_root.shared")]
    assert levels(folders.run_root(NOTHING, schedulers.get("local"), {}, folder, folder)) == [("failure", "job")]


def test_suggestion_prefers_a_file_system_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) in ("/scratch/alice", "/local/alice", "/tmp/work"))
    monkeypatch.setattr(os.path, "realpath", os.fspath)
    assert folders.suggestion({"WORK": "/local/alice", "USER": "alice"}, MOUNTS) == ("/scratch/$USER/gridtf-runs", True)
    assert folders.suggestion({"SCRATCH": "/scratch/alice"}, MOUNTS) == ("$SCRATCH/gridtf-runs", True)
    assert folders.suggestion({"SCRATCH": "/tmp/work", "WORK": "/local/alice"}, MOUNTS) == ("$WORK/gridtf-runs", False)
    assert folders.suggestion({"SCRATCH": "/tmp/work"}, MOUNTS) == ("", False)


def test_usable_run_root_leaves_nothing_behind(tmp_path: Path) -> None:
    assert levels(folders.usable(tmp_path / "a" / "b", CHOOSE))[:2] == [
        ("ok", "run_root.write"),
        ("ok", "run_root.space"),
    ]
    assert list(tmp_path.iterdir()) == []


def test_run_root_is_judged_where_symbolic_links_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to("real")
    monkeypatch.setattr(folders, "own_mounts", lambda: f"{MOUNTS}fs1:/gpfs {tmp_path / 'real'} gpfs rw 0 0\n")
    monkeypatch.setattr(mounts, "OF_A_HOST", ())
    home = tmp_path / "home"
    found = collect(folders.run_root(NOTHING, schedulers.get("slurm"), {}, home, home / "runs"))
    (finding,) = (finding for finding in found.findings if finding.check == "run_root.shared")
    real = tmp_path / "real"
    assert finding.message == f"run directories are made in {real / 'runs'}, on {real} (gpfs)"


def test_run_root_that_is_no_folder_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "runs"):
        (finding,) = collect(folders.usable(root, CHOOSE)).findings
        assert (finding.level, finding.check) == ("failure", "run_root.write")
        assert finding.message == f"run directories cannot be made in {tmp_path / 'file'}, which is not a folder"


def test_run_root_of_which_the_system_tells_nothing_is_tried_out_above(tmp_path: Path) -> None:
    assert levels(folders.usable(tmp_path / ("x" * 300) / "runs", CHOOSE))[0] == ("ok", "run_root.write")


def test_quotas_that_are_exceeded_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = tmp_path / "quota"
    quota.write_text(
        "#!/bin/sh\nprintf 'Disk quotas for user alice (uid 1000): \\n\\tBlock limit reached on fs1:/home\\n'\n"
    )
    quota.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (finding,) = (item for item in collect(folders.usable(tmp_path, CHOOSE)).findings if item.check == "run_root.quota")
    assert finding.message == "you are over a quota: Block limit reached on fs1:/home"


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
    finding = next(item for item in collect(folders.usable(tmp_path, CHOOSE)).findings if item.level != Level.OK)
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
    found = collect(folders.usable(tmp_path, CHOOSE)).findings[1]
    assert (found.level, found.check) == ("warning", "run_root.space")
    assert piece in found.message


def test_run_directory_that_qsub_would_misread_is_a_failure(tmp_path: Path) -> None:
    (folder := tmp_path / "a,b").mkdir()
    found = [
        item
        for item in folders.run_root(NOTHING, schedulers.get("sge"), {}, folder, folder / "runs")
        if isinstance(item, Finding)
    ]
    (finding,) = (item for item in found if item.check == "job")
    assert (finding.level, finding.hint) == ("failure", "choose another place with --run-dir or --run-root")


@pytest.mark.parametrize("root", ["", "/x/a/runs"])
def test_folder_that_cannot_be_written_is_named_with_where_run_directories_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    given = Configured(JOB.replace(run_root=root or None), {})
    path = Path(root) if root else tmp_path / "gridtf-runs"
    finding = next(
        item
        for item in folders.run_root(given, None, {}, tmp_path, path)
        if isinstance(item, Finding) and item.check == "run_root.write"
    )
    above = "/" if root else tmp_path
    assert finding.message == f"cannot make {path}: {above} cannot be written: Disk quota exceeded"
    begin = "choose another folder: " if root else "run directories go to ./gridtf-runs: cd to another folder, or "
    assert finding.hint == f"{begin}write run_root = …"
