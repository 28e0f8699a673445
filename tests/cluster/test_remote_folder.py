"""scripts/testbed KIND up --shared remote: a shared folder that hosts reach over their links."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.beds import on_every_remote_scheduler
from tests.support.cluster import SHARED, Bed
from tests.support.clusterfaults import ended, started
from tests.support.clusterjobs import received
from tests.support.jobs import until

HOME = f"{SHARED}/home/alice"


def tried(bed: Bed, host: str, script: str) -> str:
    """What a script prints that is killed after three seconds, and its exit code."""
    done = bed.run(host, "timeout", "-s", "KILL", "3", "bash", "-c", f"exec 2>&1; {script}", cwd="/", check=False)
    return f"{done.stdout.strip()}|{done.returncode}"


@on_every_remote_scheduler
def test_hosts_see_each_other_s_files_over_their_links(bed: Bed) -> None:
    before = received(bed, "n2")["n2"]
    bed.run("n1", "bash", "-c", "umask 077; head -c 1000000 /dev/zero >big; echo old >record; mkdir folder")
    assert bed.run("n2", "cat", "record").stdout == "old\n"
    bed.run("n1", "bash", "-c", "echo new >.record; mv .record record; ln -s record link")
    assert bed.run("n2", "cat", "link").stdout == "new\n"  # an open shows at once what was closed before
    assert len(bed.run("n2", "cat", "big").stdout) == 1_000_000
    assert received(bed, "n2")["n2"] - before > 1_000_000
    assert bed.run("n2", "test", "-e", "later", check=False).returncode == 1
    bed.run("n1", "touch", "later")
    until(lambda: bed.run("n2", "test", "-e", "later", check=False).returncode == 0, "the new name is seen")
    assert bed.run("n3", "stat", "-c", "%U %a", "big").stdout == "alice 600\n"
    assert bed.run("n3", "cat", f"{HOME}/big", user="bob", check=False).stderr.endswith("Permission denied\n")
    for path in (bed.home() / "big", bed.home() / "folder"):
        assert path.stat().st_uid == 7001


@on_every_remote_scheduler
def test_calls_wait_while_the_link_is_cut_and_go_on_afterwards(bed: Bed) -> None:
    bed.run("n1", "bash", "-c", "echo one >file")
    assert bed.run("n2", "cat", "file").stdout == "one\n"
    bed.cut("n2")
    assert tried(bed, "n2", f"cat {HOME}/file") == "|137"  # and a process that waits can be killed
    assert bed.run("n3", "cat", "file").stdout == "one\n"
    with (
        bed.popen("n2", "cat", f"{HOME}/file", cwd="/") as reads,
        bed.popen("n2", "bash", "-c", f"echo two >{HOME}/new", cwd="/") as writes,
    ):
        with pytest.raises(subprocess.TimeoutExpired):
            reads.wait(2)
        assert writes.poll() is None
        assert not (bed.home() / "new").exists()
        bed.mend("n2")
        assert reads.communicate(timeout=180)[0] == "one\n"
        assert writes.wait(180) == 0
    assert (bed.home() / "new").read_text() == "two\n"


@on_every_remote_scheduler
def test_the_folder_is_spoilt_on_one_host(bed: Bed) -> None:
    bed.run("n1", "bash", "-c", "echo one >file")
    look, missing = f"cat {HOME}/file; echo x >{HOME}/spoilt", "No such file or directory"
    for state, said in {
        "full": f"one bash: line 1: {HOME}/spoilt: No space left on device|1",
        "read-only": f"one bash: line 1: {HOME}/spoilt: Read-only file system|1",
        "unmounted": f"cat: {HOME}/file: {missing} bash: line 1: {HOME}/spoilt: {missing}|1",
        "hang": "|137",
    }.items():
        bed.spoil("n3", state)
        assert f"n3      shared {state}" in bed.tool("status").stdout
        assert tried(bed, "n3", look).replace("\n", " ") == said
        assert tried(bed, "n4", f"cat {HOME}/file") == "one|0"
        assert not (bed.home() / "spoilt").exists()
    bed.mend("n3")
    assert tried(bed, "n3", look) == "one|0"


@on_every_remote_scheduler
def test_host_that_was_off_has_the_folder_again(bed: Bed) -> None:
    bed.spoil("n4", "hang")
    bed.kill("n4")
    bed.mend("n4")
    bed.run("n4", "touch", "back")
    assert Path(bed.home() / "back").exists()


@on_every_remote_scheduler
def test_whole_job(bed: Bed) -> None:
    job = started(bed, command="echo hello from $RANK", running=False)
    ended(job, "COMPLETED")
    assert job.gridtf("status").returncode == 0
    assert {text.strip() for text in job.logs().values()} == {f"hello from {rank}" for rank in range(4)}


def test_spoiling_needs_a_remote_folder(slurm: Bed) -> None:
    done = slurm.tool("shared", "n1", "full", check=False)
    assert done.stderr == (
        "error: the shared folder of this test bed is a local one\n"
        "       bring up another: scripts/testbed slurm up --shared remote\n"
    )
