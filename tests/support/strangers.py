"""Two plain users of this host, played for real: alice, who uses gridtf, and bob, who is out for her account."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.python import environment

ALICE, BOB, GROUP = 64001, 64002, 64010
LIMIT = 120.0


class Done(NamedTuple):
    """How a command has ended."""

    code: int
    out: str
    err: str


class Strangers:
    """folder: on a path that both may go along. ran: a file that the attacks try to make as alice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran = folder / "alice" / "ran"
        self.own(folder / "alice", ALICE, 0o755)
        self.own(folder / "bob", BOB, 0o755)

    def own(self, path: Path, uid: int, mode: int) -> Path:
        """Make a folder of this user's, and the group's that both are in."""
        path.mkdir(exist_ok=True)
        os.chown(path, uid, GROUP)
        path.chmod(mode)
        return path

    @contextmanager
    def start(
        self, uid: int, words: Sequence[object], cwd: Path, umask: int = 0o022
    ) -> Iterator[subprocess.Popen[str]]:
        """A command as this user, killed at the end. It may read everything, for Python may lie in root's home;
        it may write no more than the user, and what it makes is the user's."""
        user = [f"--reuid={uid}", f"--regid={uid}", f"--groups={GROUP}"]
        reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        state = str(self.folder / ("alice" if uid == ALICE else "bob"))
        with subprocess.Popen(
            ["setpriv", *user, *reads, *map(str, words)],
            cwd=cwd,
            env=environment(HOME=state, XDG_STATE_HOME=state, TMPDIR="/tmp"),
            umask=umask,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, uid: int, words: Sequence[object], cwd: Path, umask: int = 0o022) -> Done:
        """As start, to its end."""
        with self.start(uid, words, cwd, umask) as process:
            out, err = process.communicate(timeout=LIMIT)
        return Done(process.returncode, out, err)

    def gridtf(self, *words: object, cwd: Path, umask: int = 0o022) -> Done:
        """alice calls gridtf."""
        return self.run(ALICE, [sys.executable, "-m", "gridtf", *words], cwd, umask)

    def bob(self, code: str, *words: object, cwd: Path) -> str:
        """bob runs this Python; gives what it has printed."""
        done = self.run(BOB, [sys.executable, "-c", code, *words], cwd, 0)
        assert done.code == 0, done.err
        return done.out

    def jobs(self) -> list[int]:
        """alice's processes: those of this test, for another run of the tests has an alice as well."""
        home = os.fsencode(f"HOME={self.folder}/alice")
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if home in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.append(int(name))
        return found


def share_with(folder: Path, uid: int) -> None:
    """A default access control list (acl(5)) by which this user may write whatever is made in a folder."""
    rows = [(0x01, 7, -1), (0x02, 7, uid), (0x04, 5, -1), (0x10, 7, -1), (0x20, 5, -1)]
    packed = b"".join(struct.pack("<HHI", tag, allowed, number & 0xFFFFFFFF) for tag, allowed, number in rows)
    os.setxattr(folder, "system.posix_acl_default", struct.pack("<I", 2) + packed)
