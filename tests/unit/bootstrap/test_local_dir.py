"""The folder of an attempt on a host: its name, and that its removal touches nothing else."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.agent import local_dir


def filled(folder: Path) -> Path:
    (folder / "sub" / "deep").mkdir(parents=True)
    for name in ("a", "sub/b", "sub/deep/c"):
        (folder / name).write_text("x")
    return folder


@pytest.mark.parametrize("prepared", ["folder", "link to a folder", "link to nothing", "file", "fifo"])
def test_what_another_user_has_prepared_in_its_place_is_not_used(tmp_path: Path, prepared: str) -> None:
    taken, free, other = tmp_path / "tmp" / "gridtf-x", tmp_path / "gridtf-x", tmp_path / "other"
    taken.parent.mkdir()
    other.mkdir()
    make: dict[str, Callable[[], object]] = {
        "folder": lambda: taken.mkdir(0o777),
        "link to a folder": lambda: taken.symlink_to(other),
        "link to nothing": lambda: taken.symlink_to(tmp_path / "new"),
        "file": taken.touch,
        "fifo": lambda: os.mkfifo(taken),
    }
    make[prepared]()
    before = taken.lstat()
    assert local_dir.make([taken]) is None  # the job runs without
    assert local_dir.make([taken, free]) == free
    assert free.stat().st_mode & 0o777 == 0o700
    assert (taken.lstat().st_ino, taken.lstat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gridtf-x", "other", "tmp"]
    assert not list(other.iterdir())


def test_folder_s_place_may_be_no_folder_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    places = [tmp_path / "file" / "gridtf-x", tmp_path / "nowhere" / "gridtf-x", tmp_path / "gridtf-x"]
    assert local_dir.make(places) == places[-1]


def test_folder_is_removed_and_what_links_in_it_point_to_is_not(tmp_path: Path) -> None:
    folder, other = filled(tmp_path / "gridtf-x"), filled(tmp_path / "other")
    (folder / "sub" / "to folder").symlink_to(other)
    (folder / "to file").symlink_to(other / "a")
    (folder / "to nothing").symlink_to(tmp_path / "nothing")
    local_dir.remove([tmp_path / "not there", folder])
    assert not folder.exists()
    assert sorted(path.name for path in other.rglob("*")) == ["a", "b", "c", "deep", "sub"]


def test_subfolder_that_becomes_a_link_meanwhile_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = filled(tmp_path / "gridtf-x"), filled(tmp_path / "other")

    def exchanging(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(path: Any, *arguments: Any, **options: Any) -> Any:
            if Path(str(path)).name == "sub" and not (folder / "sub").is_symlink():
                (folder / "sub").rename(tmp_path / "away")
                (folder / "sub").symlink_to(other)
            return call(path, *arguments, **options)

        return wrapper

    for name in ("open", "listdir"):
        monkeypatch.setattr(os, name, exchanging(getattr(os, name)))
    local_dir.remove([folder])
    assert sorted(path.name for path in other.rglob("*")) == ["a", "b", "c", "deep", "sub"]


def left(parent: Path, number: int, host: str = "n1", *, age: float = 3600.0) -> Path:
    folder = parent / f"gridtf-{'a' * 16}-{host}-{number:016x}"
    folder.mkdir(mode=0o700)
    filled(folder)
    os.utime(folder, (time.time() - age,) * 2)
    return folder


def make(parent: Path) -> None:
    assert local_dir.make(local_dir.places({"TMPDIR": str(parent)}, "b" * 16, "n1"))


def test_folder_that_killed_processes_have_left_is_removed_by_the_next_agent(tmp_path: Path) -> None:
    gone, young, elsewhere = left(tmp_path, 1), left(tmp_path, 2, age=0.0), left(tmp_path, 3, "n2")
    others = [tmp_path / "gridtf-runs", tmp_path / f"gridtf-x-n1-{'0' * 16}"]
    for folder in others:
        filled(folder)
    holds = (
        "import sys, time; from pathlib import Path; from gridtf.bootstrap.agent import local_dir; "
        "print(local_dir.make([Path(sys.argv[1])]), flush=True); time.sleep(600)"
    )
    living = tmp_path / f"gridtf-{'c' * 16}-n1-{'0' * 16}"
    with subprocess.Popen([sys.executable, "-c", holds, str(living)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{living}\n"
        assert not gone.exists()
        os.utime(living, (0, 0))
        make(tmp_path)
        assert living.exists()
        process.kill()
    local_dir._remove_left(tmp_path / f"gridtf-{'d' * 16}-n1-{'0' * 16}")
    assert not living.exists()
    assert all((folder / "sub" / "deep" / "c").exists() for folder in (young, elsewhere, *others))


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_nothing_is_removed_where_others_can_give_a_folder_that_name(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    folder = left(tmp_path, 1)
    assert local_dir.make([tmp_path / f"gridtf-{'b' * 16}-n1-{'e' * 16}"])
    assert folder.exists()
    tmp_path.chmod(mode | stat.S_ISVTX)
    folder.chmod(0o770)  # one that others may have moved here
    local_dir._remove_left(tmp_path / f"gridtf-{'d' * 16}-n1-{'0' * 16}")
    assert folder.exists()
    folder.chmod(0o700)
    local_dir._remove_left(tmp_path / f"gridtf-{'d' * 16}-n1-{'0' * 16}")
    assert not folder.exists()


@pytest.mark.parametrize("mode", [0o777, 0o2775])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_folder_is_not_made_where_others_can_exchange_one_above_it(tmp_path: Path, mode: int, depth: int) -> None:
    place, link = tmp_path / "a" / "b", tmp_path / "link"
    place.mkdir(parents=True)
    link.symlink_to(place)
    common = local_dir.places({}, "b" * 16, "n1")
    assert len(common) == 1
    for folder in (place, link):
        (own, *others) = local_dir.places({"TMPDIR": str(folder)}, "b" * 16, "n1")
        assert (own.parent, tuple(others)) == (folder, common)
    (place, *place.parents)[depth].chmod(mode)
    for folder in (place, link):
        assert local_dir.places({"TMPDIR": str(folder)}, "b" * 16, "n1") == common
    (place, *place.parents)[depth].chmod(mode | stat.S_ISVTX)
    assert len(local_dir.places({"TMPDIR": str(place)}, "b" * 16, "n1")) == 2


@pytest.mark.root
def test_folder_of_another_user_is_left_alone(tmp_path: Path) -> None:
    folder = filled(tmp_path / "gridtf-x")
    os.chown(folder, 65534, 65534)
    local_dir.remove([folder])
    assert (folder / "sub" / "deep" / "c").exists()
    folder = left(tmp_path, 1)
    os.chown(folder, 65534, 65534)
    make(tmp_path)
    assert (folder / "sub" / "deep" / "c").exists()


def test_name_cannot_be_guessed_from_what_others_see_and_is_that_of_forked_processes() -> None:
    ours = local_dir.places({"TMPDIR": "/scratch"}, "nonce", "n1")
    assert [place.parent for place in ours] == [Path("/scratch"), Path("/tmp")]
    program = (
        "import os; from gridtf.bootstrap.agent import local_dir; child = os.fork(); child and os.waitpid(child, 0); "
        "print(local_dir.places({}, 'nonce', 'n1')[0].name, flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=True)
    one, other = done.stdout.split()
    assert one == other != ours[0].name
