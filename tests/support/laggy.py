"""A shared file system that lies, as NFS does: every host has its own view, which remembers what was not there.

Debian's bindfs with caches, one mount a host in a mount namespace of its own: a name that did not exist stays absent
for 8 s, and no lock taken through one view is seen through another.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.packages import need_program

# The last line of defence is --kill-child: what runs in the process namespace ends with it, bindfs too.
_VIEW = """
bindfs -f -o negative_timeout=8,attr_timeout=3 "$1" "$2" &
until mountpoint -q "$2"; do sleep 0.02; done
cd "$2" && shift 2
"$@" &
child=$!
trap 'kill -TERM $child' TERM
wait $child; code=$?
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
exit $code
"""


def view(real: Path, seen_as: Path) -> list[str]:
    """The prefix of a command that sees the folder real, through caches of its own, at seen_as."""
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*apart, "bash", "-c", _VIEW, "view", str(real), str(seen_as)]


def need_bindfs() -> None:
    """Install bindfs where that can be done; skip, with the reason, where it cannot."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a shared file system that lies")
    if not Path("/dev/fuse").exists():
        pytest.skip("needs /dev/fuse")
    need_program("bindfs")
