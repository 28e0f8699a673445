"""Files that every host has on a disk of its own (stage), with real jobs."""

from __future__ import annotations

import os
import signal
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import Launch
from tests.support.jobs import LaunchedJob, until

ONE: dict[str, Any] = {"tasks": {"worker": {"count": 1}}}
SHOWS = "cd $GRIDTF_STAGED && find -L . -type f | sort | while read f; do echo $f; cat $f; done; readlink *"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """TMPDIR of the jobs; nothing is left in it at the end."""
    folder = tmp_path / "local"
    folder.mkdir(0o700)
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    until(lambda: not list(folder.iterdir()), "an empty folder")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "part").mkdir(parents=True)
    (folder / "a.txt").write_text("A\n")
    (folder / "part" / "b.txt").write_text("B\n")
    (folder / "link").symlink_to("a.txt")
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as archive:
        archive.add(folder / "part", "part")
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as zipped:
        zipped.write(folder / "a.txt", "deep/a.txt")
    return folder


def waits(job: LaunchedJob) -> None:
    until(lambda: (job.folder / "there").exists(), f"a task of the job:\n{job.output}")


def copies(local: Path) -> list[Path]:
    return [path for path in local.glob("gridtf-staged-*/*") if path.suffix != ".lock"]


def test_folder_file_and_archives_are_on_the_local_disk_and_removed(
    launch: Launch, tmp_path: Path, local: Path, data: Path
) -> None:
    single = tmp_path / "one.csv"
    single.write_text("1\n")
    paths = [str(data), str(single), str(tmp_path / "packed.tar.gz"), str(tmp_path / "zipped.zip")]
    job = launch("sh", "-c", SHOWS, stage=paths, **ONE)
    assert job.wait() == 0, job.output
    *found, l1, l2, l3, l4 = job.attempt.task_log("worker", 0).read_text().splitlines()
    assert " ".join(found) == (
        "./data/a.txt A ./data/link A ./data/part/b.txt B ./one.csv 1 ./packed/part/b.txt B ./zipped/deep/a.txt A"
    )
    assert all(str(local) in link for link in (l1, l2, l3, l4))


def test_two_jobs_at_once_share_a_copy_which_the_last_one_removes(
    launch: Launch, tmp_path: Path, local: Path, data: Path
) -> None:
    waiting = "touch there; while [ -e wait ]; do sleep 0.05; done"
    task = f"ls -i $GRIDTF_STAGED/data/a.txt; {waiting}; cat $GRIDTF_STAGED/data/a.txt"
    jobs = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "wait").touch()
        jobs.append(launch("sh", "-c", task, folder=folder, stage=[str(data)], **ONE))
    for job in jobs:
        waits(job)
    assert len(copies(local)) == 1
    (jobs[0].folder / "wait").unlink()
    assert jobs[0].wait() == 0, jobs[0].output
    assert len(copies(local)) == 1
    (jobs[1].folder / "wait").unlink()
    assert jobs[1].wait() == 0, jobs[1].output
    first, second = (job.attempt.task_log("worker", 0).read_text().split() for job in jobs)
    assert first[0] == second[0]
    assert first[-1] == second[-1] == "A"


def test_every_host_stages_once_and_names_itself_where_it_cannot(
    launch: Launch, tmp_path: Path, local: Path, data: Path
) -> None:
    hosts = [{"name": f"n{number}", "slots": 2} for number in (1, 2)]
    for host in hosts:
        own = local / str(host["name"])
        own.mkdir(0o700)
        host["prefix"] = ["env", f"TMPDIR={own}"]
    spec = {"tasks": {"worker": {"count": 4}}, "nodes": 2, "hosts": hosts}
    job = launch("sh", "-c", "readlink $GRIDTF_STAGED/data", stage=[str(data)], **spec)
    assert job.wait() == 0, job.output
    logs = [job.attempt.task_log("worker", index).read_text() for index in range(4)]
    assert len({*logs}) == 2
    for host in hosts:
        (local / str(host["name"])).rmdir()
    job.end()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("gone.tar", None, "cannot read {path}: No such file or directory"),
        ("bad.tar", b"no archive", "cannot unpack {path}: "),
        ("bad.zip", b"no archive", "cannot unpack {path}: File is not a zip file"),
    ],
)
def test_what_cannot_be_staged_fails_the_job_with_host_and_path(
    launch: Launch, tmp_path: Path, local: Path, name: str, content: bytes | None, told: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    job = launch("true", stage=[str(path)], **ONE)
    verdict = job.verdict()
    assert verdict["state"] == "FAILED"
    assert told.format(path=path) in verdict["reason"]
    assert f"(on host {os.uname().nodename}" in verdict["reason"]


def test_archive_that_writes_through_a_link_fails_the_job(launch: Launch, tmp_path: Path, local: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind in (("real", tarfile.DIRTYPE), ("a", tarfile.SYMTYPE), ("a/b", tarfile.REGTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "real"
            archive.addfile(info)
    verdict = launch("true", stage=[str(path)], **ONE).verdict()
    assert verdict["state"] == "FAILED"
    assert f"cannot unpack {path}: 'a' needs a place that another member has" in verdict["reason"]
    assert "nothing is written through a link" in verdict["hint"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_job_that_is_ended_while_it_stages(
    launch: Launch, tmp_path: Path, local: Path, number: int
) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(8 << 30)  # more than is copied meanwhile
    job = launch("true", stage=[str(big)], **ONE)
    until(lambda: list(local.glob("gridtf-staged-*/*.part/big")), "its copy")
    os.kill(job.process.pid, number)
    job.wait()
    until(lambda: not list(local.glob("gridtf-staged-*")), "its removal")


def test_killed_agent_leaves_no_copy(launch: Launch, tmp_path: Path, local: Path, data: Path) -> None:
    job = launch("sh", "-c", "touch there; exec sleep 1000", stage=[str(data)], **ONE)
    waits(job)
    assert copies(local)
    os.kill(job.agent_pid(os.uname().nodename), signal.SIGKILL)
    assert job.verdict()["state"] == "FAILED"


def test_copies_of_killed_jobs_are_removed_by_the_next_one(
    launch: Launch, tmp_path: Path, local: Path, data: Path
) -> None:
    task = "import os, time; open('there', 'w').close(); time.sleep(1000)"
    job = launch(sys.executable, "-c", task, stage=[str(data)], **ONE)
    waits(job)
    agent = job.agent_pid(os.uname().nodename)
    for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        os.kill(int(pid), signal.SIGKILL)  # the process that holds the copy too
    job.wait()
    assert copies(local)
    (data / "a.txt").write_text("new\n")
    again = launch("cat", "local/../data/a.txt", folder=tmp_path, stage=[str(tmp_path / "packed.tar.gz")], **ONE)
    assert again.wait() == 0, again.output


def test_disk_that_is_too_small_is_told_before_the_copy(launch: Launch, tmp_path: Path, local: Path) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(1 << 43)
    job = launch("true", stage=[str(big)], **ONE)
    assert f"{big} needs 8192.0 GiB in {local}/gridtf-staged-" in job.verdict()["reason"]
