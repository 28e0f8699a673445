"""A folder that this user may not search: root, as whom tests may run, can search all of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def close(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the calls that look into a folder fail as for another user.

    Args:
        folder: The folder, made here.
        monkeypatch: Restores the calls.
    """
    folder.mkdir(exist_ok=True)

    def closed(call: Callable[..., Any], where: Callable[[Path], bool]) -> Callable[..., Any]:
        def wrapper(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            if isinstance(path, str | os.PathLike) and where(Path(os.fspath(path))):
                raise PermissionError(13, "Permission denied", str(path))
            return call(path, *arguments, **options)

        return wrapper

    for name in ("stat", "lstat", "open"):
        inside = closed(getattr(os, name), lambda path: folder in path.parents)
        monkeypatch.setattr(os, name, inside)
    for name in ("listdir", "scandir", "fwalk"):
        monkeypatch.setattr(os, name, closed(getattr(os, name), lambda path: path == folder or folder in path.parents))
