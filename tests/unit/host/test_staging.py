"""Copies of files and unpacked archives on a disk of this host."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gridtf.errors import GridtfError
from gridtf.host import staging
from gridtf.jobspec.staged import staged_name
from tests.support.topics import fast

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


def unpacked(tmp_path: Path, folder: Path, *fills: Fill) -> Path:
    """The copy of an archive with these members."""
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for fill in fills:
            fill(archive)
    return unpacked_of(tmp_path / "x.tar", folder)


def link(name: str, text: str) -> Fill:
    return member(name, tarfile.SYMTYPE, text)


@pytest.mark.parametrize(
    ("fill", "told"),
    [
        (member("../out", data=b"x"), r"'\.\./out' leads out of it"),
        (member("a/../../out", data=b"x"), "'a/../../out' leads out of it"),
        (link("/out-of-it/x", "/etc/passwd"), "'/etc/passwd' leads out of it"),
        (link("link", "../../../out"), "leads out of it"),
        (link("a/b", "../.."), "leads out of it"),
        (member("hard", tarfile.LNKTYPE, "../../out"), "leads out of it"),
        (member("hard", tarfile.LNKTYPE, "/etc/passwd"), "'hard' is neither"),
        (member("hard", tarfile.LNKTYPE, "hard"), "'hard' is neither"),
        (member("hard", tarfile.LNKTYPE, "later"), "'hard' is neither a file, a folder, nor a link to a file before"),
        (member("hard", tarfile.LNKTYPE, ""), "'hard' is neither"),
        (member("fifo", tarfile.FIFOTYPE), "'fifo' is neither"),
        (member("device", tarfile.CHRTYPE), "'device' is neither"),
        (member("unknown", b"Z"), "'unknown' is neither"),
        (member("a/" * 201 + "a"), "than 200 folders"),
        (member("before/below", data=b"x"), "'before/below' needs a place that another member has"),
        (member("before", tarfile.DIRTYPE), "'before' needs a place"),
        (member(".", data=b"x"), r"'\.' needs a place"),
        (member("", data=b"x"), r"'\.' needs a place"),
        (link(".", "before"), r"'\.' needs a place"),
    ],
)
def test_nothing_of_an_archive_leaves_its_folder(tmp_path: Path, folder: Path, fill: Fill, told: str) -> None:
    with pytest.raises(GridtfError, match=rf"cannot unpack {tmp_path}/x.tar: .*{told}") as caught:
        unpacked(tmp_path, folder, member("before", data=b"x"), fill)
    assert "complete" not in caught.value.hint
    assert left(folder) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([folder.name, "x.tar"])


def long_way(out: str) -> list[Fill]:
    """Links, the last of which is ``escape``: it leads out by a path that is longer than PATH_MAX when links in it are
    replaced, where os.path.realpath gives up (CVE-2025-4517)."""
    fills, real, short = [], "", ""
    for letter in "abcdefghijklmnop":
        fills += [member(f"{real}{'d' * 247}", tarfile.DIRTYPE), link(f"{real}{letter}", "d" * 247)]
        real, short = f"{real}{'d' * 247}/", f"{short}{letter}/"
    return [*fills, link(f"{short}{'l' * 254}", "../" * 16), link("escape", f"{short}{'l' * 254}/../../../{out}")]


@pytest.mark.parametrize(
    "fills",
    [
        [member("escape/new", data=b"bob's")],
        [member("h", tarfile.LNKTYPE, "escape/old"), member("h", data=b"bob's")],
        [member("escape", tarfile.DIRTYPE)],  # only its time
    ],
    ids=["new", "overwritten", "touched"],
)
def test_long_chain_of_links_leads_nothing_out(tmp_path: Path, folder: Path, fills: list[Fill]) -> None:
    home = tmp_path / "home"
    home.mkdir(0o700)
    (home / "old").write_text("alice's")
    before = home.stat()
    with contextlib.suppress(GridtfError):
        unpacked(tmp_path, folder, *long_way("home"), *fills)
    assert ([*home.iterdir()], (home / "old").read_text()) == ([home / "old"], "alice's")
    assert (home.stat().st_mtime_ns, home.stat().st_mode) == (before.st_mtime_ns, before.st_mode)
    assert left(folder) == []


@pytest.mark.parametrize(
    "fills",
    [
        [link("l", "real"), member("l/b", data=b"x")],
        [member("l/b", data=b"x"), link("l", "real")],
        [link("l", "real"), member("l/b", tarfile.DIRTYPE)],
        [link("l", "."), link("l/b", "..")],
        [link("l", "real"), member("l/b", tarfile.LNKTYPE, "real/a")],
    ],
)
def test_nothing_is_unpacked_through_a_link(tmp_path: Path, folder: Path, fills: list[Fill]) -> None:
    with pytest.raises(GridtfError, match=r"'l(/b)?' needs a place that another member has"):
        unpacked(tmp_path, folder, member("real/a", data=b"A"), *fills)
    assert left(folder) == []


def test_last_of_equal_names_counts_and_changes_nothing_else(tmp_path: Path, folder: Path) -> None:
    place = unpacked(
        *(tmp_path, folder, member("real", data=b"A")),
        *(link("l", "real"), member("l", data=b"written")),
        *(member("h", tarfile.LNKTYPE, "real"), member("h", data=b"written")),
        *(link("hs", "real"), member("h2", tarfile.LNKTYPE, "hs"), member("h2", data=b"written")),
        *(link("folder", "real"), member("folder", tarfile.DIRTYPE)),
        *(member("file", data=b"old"), link("file", "gone"), link("file", "./h")),
        *(link("hs2", "real"), member("sub/same", tarfile.LNKTYPE, "hs2")),
    )
    found = {path.name: path.readlink() if path.is_symlink() else path.is_dir() for path in place.iterdir()}
    links = {"file": Path("h"), "hs": Path("real"), "hs2": Path("real")}
    assert found == {"real": False, "l": False, "h": False, "h2": False, "folder": True, "sub": True, **links}
    assert [(place / name).read_text() for name in ("real", "l", "h", "h2")] == ["A", *["written"] * 3]
    assert (place / "sub/same").readlink() == Path("real")


@pytest.mark.parametrize("text", ["a/b/c/top/../../../../etc", "current/../data", "sub/../x", "../a/top/./../y"])
def test_links_lead_back_after_no_name(tmp_path: Path, folder: Path, text: str) -> None:
    """``..`` after a link is that of the folder that it leads to: perhaps outside, and never what it seems to be."""
    with pytest.raises(GridtfError, match="'deep/out' is a link that leads back on its way"):
        unpacked(
            tmp_path, folder, member("a/b/c/", tarfile.DIRTYPE), link("a/b/c/top", "../../.."), link("current", "a/b"),
            link("deep/out", text),
        )  # fmt: skip
    assert left(folder) == []


def test_archive_of_a_file_that_was_given_twice_and_has_two_names(tmp_path: Path, folder: Path) -> None:
    """GNU tar makes it a hard link to itself; with -P its names, and those of links, begin with a slash."""
    (tmp_path / "a").write_text("A")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    subprocess.run(["tar", "-cf", "x.tar", "a", "a", "b", "./a"], cwd=tmp_path, check=True)
    place = unpacked_of(tmp_path / "x.tar", folder)
    assert [(place / name).read_text() for name in "ab"] == ["A", "A"]
    names = [str(tmp_path / name) for name in "ab"]
    subprocess.run(["tar", "-cPf", "y.tar", *names], cwd=tmp_path, check=True)
    place = unpacked_of(tmp_path / "y.tar", folder)
    assert [(place / name.lstrip("/")).read_text() for name in names] == ["A", "A"]


@pytest.mark.timeout(120)  # it takes no time; with 80,000 digits in it, half a minute
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
@pytest.mark.parametrize("size", [66_000, 1 << 31])
def test_header_longer_than_any_real_one_is_refused(tmp_path: Path, folder: Path, kind: bytes, size: int) -> None:
    """tarfile takes the square of its length to read it (CVE-2024-6232), or all of the memory."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    with gzip.open(tmp_path / "x.tar.gz", "wb") as file:
        file.write(info.tobuf() + b"1" * 66_048 + bytes(10_240))
    with pytest.raises(GridtfError, match=f"cannot unpack .*x.tar.gz: .*a header of {size} bytes"):
        hold(tmp_path / "x.tar.gz", folder)
    assert left(folder) == []


def unpacked_of(source: Path, folder: Path) -> Path:
    place, descriptor = hold(source, folder)
    os.close(descriptor)
    return place


@pytest.mark.parametrize("form", ["gnu", "posix"])
@pytest.mark.parametrize("packing", ["", "--gzip", "--xz", "--bzip2"])
def test_archive_of_gnu_tar_has_all_that_was_packed(tmp_path: Path, folder: Path, form: str, packing: str) -> None:
    data = tmp_path / "data"
    (data / "read-only/below").mkdir(parents=True)
    (data / "read-only/file").write_text("r")
    (data / "tool").write_text("#!/bin/sh\n")
    (data / "tool").chmod(0o4775)
    os.utime(data / "tool", (1e9, 1e9))
    (data / "read-only/below/up").symlink_to("../../tool")
    (data / "dangling").symlink_to("read-only/gone")
    (data / "twice").hardlink_to(data / "tool")
    os.link(data / "dangling", data / "dangling2", follow_symlinks=False)
    (data / "ä\udcff\n").write_text("u")
    (data / ("n" * 200) / ("m" * 200)).mkdir(parents=True)
    with (data / "sparse").open("wb") as file:
        file.truncate(1 << 32)
        file.seek(1 << 31)
        file.write(b"middle")
    (data / "read-only").chmod(0o555)
    source = tmp_path / "x.tar.any"
    command = [
        "tar",
        "-c",
        f"--format={form}",
        "--sparse",
        *filter(None, [packing]),
        "-f",
        str(source),
        "-C",
        str(data),
    ]
    subprocess.run([*command, "."], check=True)
    (data / "read-only").chmod(0o755)
    place, descriptor = staging.held(source, "x", folder, archive=True, say=lambda text: None)
    subprocess.run(["diff", "-r", "--no-dereference", "--exclude=sparse", data, place], check=True)
    assert (place / "tool").stat().st_mode & 0o7777 == 0o755
    assert ((place / "tool").stat().st_mtime, (place / "tool").stat().st_nlink) == (1e9, 2)
    with (place / "sparse").open("rb") as file:
        file.seek(1 << 31)
        assert file.read(6) == b"middle"
    assert ((place / "sparse").stat().st_size, (place / "sparse").stat().st_blocks < 1000) == (1 << 32, True)
    os.close(descriptor)
    staging.clean(folder)
    assert not folder.exists()


def test_file_that_was_appended_to_an_archive_replaces_the_older_one(tmp_path: Path, folder: Path) -> None:
    for text in ("old", "new"):
        (tmp_path / "f").write_text(text)
        subprocess.run(["tar", "-rf", tmp_path / "x.tar", "-C", tmp_path, "f"], check=True)
    place, descriptor = hold(tmp_path / "x.tar", folder)
    assert (place / "f").read_text() == "new"
    os.close(descriptor)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "links", fast(1, (tarfile.SYMTYPE, 1_500), (tarfile.SYMTYPE, 10_000), (tarfile.LNKTYPE, 10_000))
)
def test_archive_of_many_links_takes_no_longer_for_each(tmp_path: Path, folder: Path, links: tuple[bytes, int]) -> None:
    kind, count = links
    source = tmp_path / "x.tar"
    with source.open("wb") as file:
        info = tarfile.TarInfo("0")
        for number in range(count):
            file.write(info.tobuf(tarfile.USTAR_FORMAT))
            info.name, info.linkname, info.type = str(number + 1), str(number), kind
        file.write(bytes(1024))
    place, descriptor = hold(source, folder)
    assert len(os.listdir(place)) == count
    os.close(descriptor)
    staging.clean(folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("name", "mode", "told"),
    [
        ("../out", 0, "'../out' leads out of it"),
        ("/out", 0, "'/out' leads out of it"),
        ("a/../../out", 0, "'a/../../out' leads out of it"),
        ("a", 0o120777, "'a' is a link"),
    ],
)
def test_nothing_of_a_zip_leaves_its_folder(tmp_path: Path, folder: Path, name: str, mode: int, told: str) -> None:
    source = tmp_path / "x.zip"
    with zipfile.ZipFile(source, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        archive.writestr(info, "..")
        archive.writestr("a/b", "x")
    with pytest.raises(GridtfError, match=rf"cannot unpack {source}: {told}") as caught:
        hold(source, folder)
    assert "complete" not in caught.value.hint
    assert left(folder) == []


def test_member_of_a_zip_without_a_name_is_told(tmp_path: Path, folder: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("\0a"), "1")
    with pytest.raises(GridtfError, match=r"cannot unpack .*x.zip: "):
        hold(tmp_path / "x.zip", folder)


def test_names_in_a_zip_that_are_none_in_windows_stay_in_its_folder(tmp_path: Path, folder: Path) -> None:
    source = tmp_path / "x.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("..\\out", "x")
        archive.writestr("c:/d", "y")
    place, descriptor = hold(source, folder)
    assert {str(path.relative_to(place)) for path in place.rglob("*")} == {"..\\out", "c:", "c:/d"}
    os.close(descriptor)


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


def test_archive_that_leads_back_to_an_earlier_member_is_damaged(tmp_path: Path, folder: Path) -> None:
    member = tarfile.TarInfo("bad")
    member.pax_headers = {"GNU.sparse.size": "0"}  # the size of the file that is made, not the one in the archive
    packed = bytearray(member.tobuf(tarfile.PAX_FORMAT))
    member.size = -len(packed)
    packed[-512:] = member.tobuf(tarfile.GNU_FORMAT)
    (tmp_path / "x.tar").write_bytes(tarfile.TarInfo("good").tobuf() + packed + bytes(1024))
    with pytest.raises(GridtfError, match=r"cannot unpack .*: negative size"):
        hold(tmp_path / "x.tar", folder)
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


def test_folder_that_is_changed_meanwhile_leads_nothing_out(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link becomes a folder between the look at it and the look into it."""
    source, home = tmp_path / "data", tmp_path / "home"
    source.mkdir()
    home.mkdir()
    (source / "a").symlink_to(home)
    entries, calls = staging._entries, []

    def changing(place: Path) -> Iterator[tuple[Path, os.stat_result]]:
        calls.append(place)
        for path, status in entries(place):
            yield path, status
            if path.name == "a" and len(calls) == 2:
                path.unlink()
                path.mkdir()
                (path / "new").write_text("bob's")

    monkeypatch.setattr(staging, "_entries", changing)
    with contextlib.suppress(GridtfError):
        hold(source, folder)
    assert len(calls) == 2
    assert [*home.iterdir()] == []
    assert left(folder) == []


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


@pytest.mark.parametrize(("number", "step"), [(errno.EACCES, "_Counted"), (errno.EIO, "copyfileobj")])
def test_file_of_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, folder: Path, number: int, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "data" / "train" / "7.bin"
    broken.parent.mkdir(parents=True)
    for path in (broken, broken.with_name("6.bin")):
        path.write_text("x" * 100)
    opens = step == "_Counted"
    module: Any = staging if opens else shutil
    real = getattr(module, step)

    def fails(first: Any, *more: Any) -> Any:
        if (first if opens else first.name) == broken:
            raise OSError(number, os.strerror(number), *([str(broken)] if opens else []))  # a read names no file
        return real(first, *more)

    monkeypatch.setattr(module, step, fails)
    with pytest.raises(GridtfError) as caught:
        hold(tmp_path / "data", folder)
    assert caught.value.what == f"cannot stage {tmp_path / 'data'}: {os.strerror(number)}: {broken}"
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
