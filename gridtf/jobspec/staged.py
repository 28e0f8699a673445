"""How what is staged is called on the hosts. Pure."""

from __future__ import annotations

import re

_ARCHIVE = re.compile(r"(.+)\.(tar|tar\.gz|tgz|tar\.bz2|tbz2|tar\.xz|txz|zip)", re.IGNORECASE)


def staged_name(path: str) -> tuple[str, bool]:
    """The name of the copy of a file or folder, and whether a file of that name is an archive, to be unpacked.

    Args:
        path: Its path.
    """
    name = path.rstrip("/").rpartition("/")[2]
    match = _ARCHIVE.fullmatch(name)
    return (match[1], True) if match else (name, False)
