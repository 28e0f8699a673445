"""Copies of files and unpacked archives on a disk of this host."""

from __future__ import annotations

import errno
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from gridtf.errors import GridtfError
from gridtf.host import staging
from gridtf.jobspec.staged import staged_name

Fill = Callable[[tarfile.TarFile], None]


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"") -> Fill:
    def fill(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, link, len(data)
        archive.addfile(info, io.BytesIO(data))

    return fill


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = staging.folder_of(tmp_path, "here")
    assert found is not None
    return found


def hold(source: Path, folder: Path, said: Callable[[str], None] = lambda text: None) -> tuple[Path, int]:
    name, archive = staged_name(str(source))
    return staging.held(source, name, folder, archive=archive, say=said)


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*") if path.suffix != ".lock"]


@pytest.mark.parametrize(
    ("path", "name", "archive"),
    [
        ("/d/x.tar", "x", True),
        ("/d/x.TAR.gz", "x", True),
        ("/d/x.v1.tgz", "x.v1", True),
        ("/d/x.zip", "x", True),
        ("/d/x.gz", "x.gz", False),
        ("/d/folder/", "folder", False),
        ("/d/.zip", ".zip", False),
        ("/", "", False),
    ],
)
def test_name_of_a_copy(path: str, name: str, archive: bool) -> None:
    assert staged_name(path) == (name, archive)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_archive_is_unpacked_with_links_within_it(tmp_path: Path, folder: Path, mode: str) -> None:
    source = tmp_path / f"x.tar{mode[1:].replace(':', '.')}"
    with tarfile.open(source, mode) as archive:  # type: ignore[call-overload]
        for fill in (
            member("a/b", data=b"B"),
            member("a/l", tarfile.SYMTYPE, "b"),
            member("h", tarfile.LNKTYPE, "a/b"),
        ):
            fill(archive)
    place, descriptor = hold(source, folder)
    assert (place / "a/l").read_bytes() == (place / "h").read_bytes() == b"B"
    os.close(descriptor)
    staging.clean(folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    "fill",
    [
        member("../out", data=b"x"),
        member("/out-of-it/x", tarfile.SYMTYPE, "/etc/passwd"),
        member("link", tarfile.SYMTYPE, "../../../out"),
        member("hard", tarfile.LNKTYPE, "../../out"),
        member("fifo", tarfile.FIFOTYPE),
        member("device", tarfile.CHRTYPE),
    ],
)
@pytest.mark.parametrize("filtered", [True, False])
def test_nothing_of_an_archive_leaves_its_folder(
    tmp_path: Path, folder: Path, fill: Fill, filtered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not filtered:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    source = tmp_path / "x.tar"
    with tarfile.open(source, "w") as archive:
        member("before", data=b"x")(archive)
        fill(archive)
    with pytest.raises(GridtfError, match="cannot unpack"):
        hold(source, folder)
    assert left(folder) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([folder.name, "x.tar"])


@pytest.mark.parametrize("name", ["../out", "/out"])
def test_nothing_of_a_zip_leaves_its_folder(tmp_path: Path, folder: Path, name: str) -> None:
    source = tmp_path / "x.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), "x")
    with pytest.raises(GridtfError, match="is a link or outside"):
        hold(source, folder)
    assert left(folder) == []


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
@pytest.mark.parametrize("damage", ["cut", "cut between members", "overwritten"])
def test_damaged_archive_is_refused_and_nothing_is_left(tmp_path: Path, folder: Path, mode: str, damage: str) -> None:
    source = tmp_path / f"x.tar{mode[1:].replace(':', '.')}"
    with tarfile.open(source, mode) as archive:  # type: ignore[call-overload]
        for number in range(9):
            member(f"m{number}", data=os.urandom(512))(archive)
    data = bytearray(source.read_bytes())
    if damage == "overwritten":
        data[2048:2148] = b"x" * 100
    else:
        del data[4096 if damage != "cut" else 4500 :]
    source.write_bytes(data)
    with pytest.raises(GridtfError, match=r"cannot unpack .*x\.tar"):
        hold(source, folder)
    assert left(folder) == []


def test_changed_source_is_another_copy(tmp_path: Path, folder: Path) -> None:
    source = tmp_path / "data"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "a").write_text("old")
    first, one = hold(source, folder)
    again, two = hold(source, folder)
    (source / "deep" / "a").write_text("newer")
    other, three = hold(source, folder)
    assert first == again != other
    assert ((first / "deep/a").read_text(), (other / "deep/a").read_text()) == ("old", "newer")
    os.close(one)
    staging.clean(folder)
    assert first.exists()
    os.close(two)
    os.close(three)
    staging.clean(folder)
    assert not folder.exists()


def test_other_files_are_refused(tmp_path: Path, folder: Path) -> None:
    source = tmp_path / "data"
    source.mkdir()
    (source / "ok").write_text("x")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(source / "s"))
        with pytest.raises(GridtfError, match="data/s is neither a file nor a folder"):
            hold(source, folder)


def test_full_disk_in_the_middle_leaves_nothing(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "data"
    source.write_text("x" * 100)

    def fails(given: object, made: io.RawIOBase, at_once: int) -> None:
        made.write(b"x")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", fails)
    with pytest.raises(GridtfError, match=r"cannot stage .*: No space left on device"):
        hold(source, folder)
    assert left(folder) == []


def test_room_is_looked_at_before(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(50 << 10))
    source = tmp_path / "x.zip"
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", b"\0" * (100 << 10))
    assert source.stat().st_size < 50 << 10
    with pytest.raises(GridtfError, match=r"x.zip needs 100 KiB in .*gridtf-staged-\S+, where 50 KiB are free"):
        hold(source, folder)


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_folder_that_is_not_this_users_alone_is_not_used(tmp_path: Path, folder: Path, kind: str) -> None:
    folder.rmdir()
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif kind == "open":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        folder.touch()
    assert staging.folder_of(tmp_path, "here") is None


def test_copy_that_another_process_makes_is_waited_for(tmp_path: Path, folder: Path) -> None:
    source = tmp_path / "data"
    source.write_text("x")
    place, descriptor = hold(source, folder)
    lock = place.parent.with_name(f"{place.parent.name}.lock")
    os.close(descriptor)
    shutil.rmtree(place.parent)
    code = (
        "import fcntl, os, sys\nfile = open(sys.argv[1])\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\nsys.stdin.read()\nos.mkdir(sys.argv[2])\n"
        "open(sys.argv[2] + '/data', 'w').write('theirs')\n"
    )
    about = [sys.executable, "-c", code, str(lock), str(place.parent)]
    with subprocess.Popen(about, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin and other.stdout
        assert other.stdout.readline() == "locked\n"
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            if "another job" in text and not other.stdin.closed:  # type: ignore[union-attr]
                other.stdin.close()  # type: ignore[union-attr]

        found, descriptor = hold(source, folder, say)
    assert found == place
    assert found.read_text() == "theirs"
    assert "another job of yours stages data, for 0 s" in said
    os.close(descriptor)
