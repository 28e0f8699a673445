"""Files that killed processes have left in shared memory."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from gridtf.host.leftovers import remove_of_mpi, shared_memory, unused


def test_shared_memory_has_the_user_s_own_files(tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("own")
    (tmp_path / "folder").mkdir()
    assert shared_memory(tmp_path) == {str(tmp_path / "own"): 5}
    assert shared_memory(tmp_path / "absent") == {}
    if os.geteuid() == 0:
        os.chown(tmp_path / "own", 12345, 12345)
        assert shared_memory(tmp_path) == {}


def test_files_that_a_process_has_open_or_mapped_are_in_use(tmp_path: Path) -> None:
    opened, mapped, left = (tmp_path / name for name in ("opened", "mapped", "left"))
    for path in (opened, mapped, left):
        path.write_bytes(b"x" * mmap.PAGESIZE)
    paths = [str(path) for path in (opened, mapped, left)]
    code = (
        "import mmap, sys\n"
        "first = open(sys.argv[1])\n"
        "with open(sys.argv[2], 'r+b') as file: second = mmap.mmap(file.fileno(), 0)\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *paths[:2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert unused(paths) == {str(left)}
        process.communicate(b"")
    assert unused(paths) == set(paths)
    assert unused(()) == set()


def test_file_that_is_used_or_removed_a_moment_later_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two looks, as a job that has just begun or is about to end."""
    made, gone = tmp_path / "made", tmp_path / "gone"
    made.touch()
    gone.touch()
    held: list[IO[str]] = []

    def wait(_: float) -> None:
        held.append(made.open())
        gone.unlink()

    monkeypatch.setattr(time, "sleep", wait)
    assert unused([str(made), str(gone)]) == set()
    held[0].close()


def test_file_of_a_process_that_opens_and_closes_others_meanwhile_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "held").touch()
    code = (
        "import os, sys\n"
        "held = os.dup2(os.open(sys.argv[1], os.O_RDONLY), 900)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for each in [os.open('/dev/null', os.O_RDONLY) for _ in range(200)]: os.close(each)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "held")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = [unused([str(tmp_path / "held")]) for _ in range(20)]
        process.kill()
    assert not any(found)


def test_files_of_mpi_are_removed_and_no_others(tmp_path: Path) -> None:
    names = (
        "mpich_shm_6addf31a_0",
        "sm_segment.n1.0.9fc00001.0",
        "vader_segment.n1.1.0.1",
        "Intel_MPI_4711",
        "weights",
    )
    paths = {name: str(tmp_path / name) for name in names}
    for path in paths.values():
        Path(path).touch()
    gone = str(tmp_path / "mpich_shm_1_0")
    assert remove_of_mpi([*paths.values(), gone]) == {paths["weights"]}
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]
