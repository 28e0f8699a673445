"""Unpacks archives that anyone may have made. The filters of tarfile are not relied on (CVE-2025-4517).

Symbolic links are made last, where nothing has been made yet: until then there is none to write through. ``..`` is only
at the beginning of what they lead to, so that all of them together lead to nothing outside of the folder.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar

_DEEPEST = 200  # folders in each other; files.empty has a descriptor and a call open for each
_LONGEST = 1 << 16  # bytes of a header, such as one with a long name: tarfile may take the square of its length
_AT_ONCE = 1 << 22  # bytes


class DamagedError(Exception):
    """An archive cannot be read.

    Attributes:
        hint: What to do.
    """

    hint: ClassVar[str] = "is it complete?"


class RefusedError(DamagedError):
    """A member of an archive is not what is unpacked."""

    hint = "an archive can have files, folders, and links that stay in it; nothing is written through a link"


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Raise a DamagedError for what the modules that read archives raise; errors of the system pass through."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, ArithmeticError, LookupError) as error:
        raise DamagedError(" ".join(str(error).split()) or type(error).__name__) from None
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DamagedError(str(error)) from None
    except Exception as error:
        if type(error).__module__ not in ("zlib", "_lzma"):  # which need not be there
            raise
        raise DamagedError(str(error)) from None


class _Member(tarfile.TarInfo):
    """A member of an archive that notices the archive's proper end: tarfile takes a damaged one for the end as well."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Member:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            archive.complete = True  # type: ignore[attr-defined]
            raise

    def _block(self, count: int) -> int:
        if count < 0:  # tarfile would go back and read the same members again, without end: CVE-2025-8194
            raise tarfile.InvalidHeaderError("negative size")  # type: ignore[attr-defined]
        if count > _LONGEST and self.type in b"LKxgX":
            raise tarfile.InvalidHeaderError(f"a header of {count} bytes")  # type: ignore[attr-defined]
        return super()._block(count)  # type: ignore[misc, no-any-return]


def unpack_tar(file: BinaryIO, folder: Path) -> None:
    """Unpack a tar archive, compressed or not. Owners, special bits and the modes of folders are left out.

    Args:
        file: Read from its beginning to its end.
        folder: An empty folder that no other user can enter.

    Raises:
        DamagedError: It is damaged, or ends too early.
        RefusedError: For a member that leads out of the folder, is in the way of another, or of another kind. Of files
            and links of the same name, the last one counts.
        OSError: A member cannot be made.
    """
    with reading(), tarfile.open(fileobj=file, tarinfo=_Member) as archive:
        links: dict[str, str] = {}
        name = ""
        try:
            for member in archive:
                name = below(member.name.lstrip("/"))
                _put(archive, member, name, folder, links)
            for name, target in links.items():
                (folder / name).symlink_to(target)
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            raise RefusedError(f"{name[:200]!r} needs a place that another member has") from None
        if not hasattr(archive, "complete"):
            raise DamagedError("it is damaged, or ends too early")
        while archive.fileobj.read(_AT_ONCE):
            pass  # the checksum of a compressed archive is at its end


def _put(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, folder: Path, links: dict[str, str]) -> None:
    """Make a member, or keep a symbolic link in mind."""
    path, source = folder / name, below(member.linkname.lstrip("/")) if member.islnk() else ""
    if source == name and (name in links or path.is_file()):
        return  # a file that was given twice, and has another name as well
    links.pop(name, None)
    os.makedirs(path if member.isdir() else path.parent, exist_ok=True)  # noqa: PTH103
    if member.isdir():
        return
    path.unlink(missing_ok=True)
    if member.isreg():
        archive.makefile(member, path)
        path.chmod(member.mode & (0o755 if member.mode & 0o100 else 0o644) | 0o600)
        os.utime(path, (member.mtime, member.mtime))
    elif member.issym() or source in links:
        text = links.get(source, member.linkname)
        links[name] = os.path.normpath(text)
        below(os.path.join(os.path.dirname(name), text))  # noqa: PTH118, PTH120
        if links[name].split("/").count("..") < text.split("/").count(".."):
            raise RefusedError(f"{name[:200]!r} is a link that leads back on its way, perhaps from another link")
    elif (folder / source).is_file():
        os.link(folder / source, path)
    else:
        raise RefusedError(f"{name[:200]!r} is neither a file, a folder, nor a link to a file before it")


def below(name: str) -> str:
    """The path of a member of an archive in the folder that it is unpacked in, without ``..``. Pure.

    Raises:
        RefusedError: For one that leads out of the folder, or is too deep in it.
    """
    path = os.path.normpath(name)
    if path.startswith("/") or path.split("/")[0] == ".." or path.count("/") > _DEEPEST:
        raise RefusedError(f"{name[:200]!r} leads out of it, or is deeper than {_DEEPEST} folders")
    return path
