"""A shared file system with stale caches, as NFS has: every host caches which names did not exist.

Debian's bindfs with caches, one mount per host in its own mount namespace: a name that did not exist stays absent for
8 s, and a lock taken through one mount has no effect on the others.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.packages import need_program

# In the end --kill-child kills all processes of the pid namespace, including bindfs.
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
    """The prefix of a command that sees the folder ``real`` at ``seen_as``, through its own caches."""
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*apart, "bash", "-c", _VIEW, "view", str(real), str(seen_as)]


def need_bindfs() -> None:
    """Install bindfs if necessary; skip the test, with the reason, where that is impossible."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a shared file system with stale caches")
    if not Path("/dev/fuse").exists():
        pytest.skip("needs /dev/fuse")
    need_program("bindfs")
