"""Traces that a test bed may leave on this machine."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from pathlib import Path

from testbeds import groups

from tests.support.cluster import Bed


def footprint() -> set[str]:
    """Traces that a test bed could leave on this machine: mounts, links, devices, groups, users, files."""
    found = {f"mount {line.split()[4]}" for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    found |= {f"group {path}" for path in Path("/sys/fs/cgroup").glob("*/gridtf-testbed-*")}
    found |= {f"user {user.pw_name}" for user in pwd.getpwall() if user.pw_uid >= 1000}  # packages use lower ids
    return found | {
        f"{folder}/{name}" for folder in ("/sys/class/net", "/dev", "/var/tmp") for name in os.listdir(folder)
    }


def left_by(bed: Bed, before: set[str]) -> set[str]:
    """New traces since ``before``, except those that clearly belong to a concurrent test."""
    new = footprint() - before
    own, group = f"mount {bed.state}", f"/{groups.name(bed.state / bed.kind)}"
    folders = {text for text in new if text.startswith("mount /tmp/") and not text.startswith(own)}
    return new - folders - {text for text in new if text.startswith("group ") and not text.endswith(group)}


def processes_of(bed: Bed) -> set[tuple[int, str]]:
    """(pid, start time) of the processes in the network namespaces of its hosts."""
    firsts = re.findall(r'"pid": (\d+)', (bed.state / f"{bed.kind}/bed.json").read_text())
    homes = {Path(f"/proc/{pid}/ns/net").readlink() for pid in firsts}
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if (process / "ns/net").readlink() in homes:
                found.add((int(process.name), start_of(int(process.name))))
    return found


def start_of(pid: int) -> str:
    """Start time of a process; empty when it is gone or a zombie."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]
    return ""


def still_alive(known: set[tuple[int, str]]) -> list[int]:
    return [pid for pid, start in known if start and start_of(pid) == start]
