"""Two real, ordinary users of this host: alice, who uses gridtf, and bob, who attacks her account."""

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
LIMIT = 500.0
# Arguments: a folder, a run directory to come in it, the entry of that to wait for, how often to exchange the folder
# for one of the attacker (an odd number), which has another job.sh, and what that script would make.
EXCHANGE = """
import ctypes, os, random, sys, time
from pathlib import Path
folder, run, entry, times, ran = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
os.umask(0)
other = folder.with_name("other")
forged = other / run.relative_to(folder)
(forged / "output").mkdir(parents=True)
(forged / "job.sh").write_text(f"#!/bin/bash\\ntouch {ran}\\n")
(forged / "job.sh").chmod(0o755)
exchange = ctypes.CDLL(None, use_errno=True).renameat2
words = -100, bytes(folder), -100, bytes(other), 2  # AT_FDCWD, RENAME_EXCHANGE
print("ready", flush=True)
end = time.monotonic() + 60
while not (run / entry).exists():
    assert time.monotonic() < end, "there was nothing to exchange"
for _ in range(times):
    assert exchange(*words) == 0, ctypes.get_errno()
    time.sleep(random.random() / 500 if times > 1 else 0)
"""
# A job waits a minute for a run directory that is gone, then start_timeout for a record that went into the other one.
START_TIMEOUT = ("--start-timeout", "60")
MOMENTS = [("job.json", 1), ("job.sh", 1), ("output", 1), ("job.sh", 301)]  # (entry, times)


class Done(NamedTuple):
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


class Strangers:
    """The users and their home folders.

    Args:
        folder: A folder that both can reach.

    Attributes:
        ran: A file that attacks try to make as alice.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran = folder / "alice" / "ran"
        self.own(folder / "alice", ALICE, 0o755)
        self.own(folder / "bob", BOB, 0o755)

    def own(self, path: Path, uid: int, mode: int) -> Path:
        """Make a folder that belongs to a user and to the group of both users."""
        path.mkdir(exist_ok=True)
        os.chown(path, uid, GROUP)
        path.chmod(mode)
        return path

    @contextmanager
    def start(
        self, uid: int, words: Sequence[object], cwd: Path, umask: int = 0o022
    ) -> Iterator[subprocess.Popen[str]]:
        """Start a command as a user; killed at the end.

        It can read everything, since Python may be installed in root's home, but can only write what the user can.
        """
        user = [f"--reuid={uid}", f"--regid={uid}", f"--groups={GROUP}"]
        reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        state = str(self.folder / ("alice" if uid == ALICE else "bob"))
        with subprocess.Popen(
            ["setpriv", *user, *reads, *map(str, words)],
            cwd=cwd,
            env=environment(HOME=state, XDG_STATE_HOME=state, TMPDIR="/tmp", GRIDTF_SUBMIT_SCHEDULER="local"),
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
        """Run a command as a user; see start."""
        with self.start(uid, words, cwd, umask) as process:
            out, err = process.communicate(timeout=LIMIT)
        return Done(process.returncode, out, err)

    def gridtf(self, *words: object, cwd: Path, umask: int = 0o022) -> Done:
        """Run a gridtf command as alice."""
        return self.run(ALICE, [sys.executable, "-m", "gridtf", *words], cwd, umask)

    def bob(self, code: str, *words: object, cwd: Path) -> str:
        """Run Python code as bob; returns its output."""
        done = self.run(BOB, [sys.executable, "-c", code, *words], cwd, 0)
        assert done.code == 0, done.err
        return done.out

    def jobs(self) -> list[int]:
        """The ids of alice's processes in this test, not those of a concurrent run of the tests."""
        home = os.fsencode(f"HOME={self.folder}/alice")
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if home in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.append(int(name))
        return found


def share_with(folder: Path, uid: int) -> None:
    """Set a default access control list (acl(5)) that lets a user write all new files of a folder."""
    rows = [(0x01, 7, -1), (0x02, 7, uid), (0x04, 5, -1), (0x10, 7, -1), (0x20, 5, -1)]
    packed = b"".join(struct.pack("<HHI", tag, allowed, number & 0xFFFFFFFF) for tag, allowed, number in rows)
    os.setxattr(folder, "system.posix_acl_default", struct.pack("<I", 2) + packed)
