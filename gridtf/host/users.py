"""Acting as another user, as root can: what that user may not do, the kernel and the scheduler then refuse."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gridtf.errors import GridtfError
from gridtf.files import user_name


def run_as(path: Path, action: Callable[[], Any]) -> Any:
    """Run a function as the owner of a file or folder, in a child of this process, which must be root's.

    The child has the owner's groups, HOME, USER and LOGNAME. It keeps no way back to root, so that no record, path or
    environment of that user's can make it do more than the user could.

    Args:
        path: The file or folder, absolute.
        action: The function. What it imports should have been imported before: Python may lie in root's home folder.

    Returns:
        What it returns, which must fit into JSON.

    Raises:
        GridtfError: The error that it raises, one that says how the child has ended, or that the path leads to it
            through a link of yet another user.
        OSError: When there is no such file.
    """
    return run_as_user(*owner_of(path), action)


def owner_of(path: Path) -> tuple[int, int]:
    """User and group to become for a file or folder. Raises GridtfError and OSError as run_as does."""
    status = path.stat()
    _need_own_links(path, status.st_uid)
    return status.st_uid, status.st_gid


def run_as_user(uid: int, gid: int, action: Callable[[], Any]) -> Any:
    """Run a function as a user; see run_as. gid: the group of one who is not known here by name."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            _become(uid, gid)
            said = {"done": action()}
        except GridtfError as error:
            said = {"failed": [error.what, error.why, error.hint]}
        except BaseException as error:
            said = {"failed": [f"{type(error).__name__}: {error}", "", ""]}
        try:
            with os.fdopen(writer, "w") as answer:
                json.dump(said, answer)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        text = answers.read()
    os.waitpid(child, 0)
    if not text:
        raise GridtfError(f"the process that acted as user {uid} was killed")
    said = json.loads(text)
    if "failed" in said:
        what, why, hint = said["failed"]
        raise GridtfError(what, why=why, hint=hint)
    return said["done"]


def _need_own_links(path: Path, uid: int) -> None:
    """Refuse a path through a link of another user, who could have chosen whose file it leads to."""
    for place in (path, *path.parents):
        if place.is_symlink() and (user := place.lstat().st_uid) not in (0, uid):
            what = f"{place} is a link of user {user_name(user)} that leads to files of user {user_name(uid)}"
            raise GridtfError(what, hint=f"if these are meant, write {path.resolve()}")


def _become(uid: int, gid: int) -> None:
    name, home, groups = str(uid), "/", [gid]
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        pass
    else:
        name, home, gid = user.pw_name, user.pw_dir, user.pw_gid
        groups = os.getgrouplist(name, gid)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    os.chdir("/")  # root's working folder may be closed to the user
    for variable in [variable for variable in os.environ if variable.startswith("XDG_")]:
        del os.environ[variable]
    os.environ.update(HOME=home, USER=name, LOGNAME=name)
