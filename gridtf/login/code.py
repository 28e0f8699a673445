"""Which code a job runs: the commit of its working folder, and what differs from it; git tells during a submission."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from fnmatch import translate
from pathlib import Path
from typing import Any

from gridtf.observe.git import answer, git, leave
from gridtf.run.rundir import RUN_ROOT, Record, RunDir, write_record, write_text

# Of these, neither the content is copied nor a diff is kept: shell patterns of names.
SECRETS = (
    *(".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *(".netrc", ".pypirc", ".git-credentials", ".ssh", ".aws", ".gnupg", "credentials", "credentials*.json"),
)
_SECONDS = 2.0  # for all questions of a submission; a work tree on a slow file system is then not known
_MOST_DIFF = 1 << 20  # bytes
_MOST_NAMES = 1000  # of untracked and of changed files, and of changed ones
_DIFF = ("--literal-pathspecs", "diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD", "--")
_SECRET = re.compile("|".join(map(translate, SECRETS)))


def is_secret(name: str) -> bool:
    """Whether a file or a folder of this name probably holds keys or passwords. Pure."""
    return _SECRET.fullmatch(name) is not None


def work_tree(folder: Path) -> Path | None:
    """The top of the git work tree that a folder lies in; None without one."""
    return next((place for place in (folder, *folder.parents) if os.path.lexists(place / ".git")), None)


@contextlib.contextmanager
def asked(folder: Path | None) -> Iterator[Callable[[], tuple[Record, str]]]:
    """Ask git which code is in a folder, while something else is done.

    Args:
        folder: The working folder of a job; None: nothing is asked.

    Yields:
        A function that waits for the answers: the record for code.json, empty without a work tree, and the diff.
    """
    top = folder and work_tree(folder)
    if top is None:
        yield lambda: ({}, "")
        return
    status = git(top, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal")
    remote = git(top, "config", "--get", "remote.origin.url")

    def answers() -> tuple[Record, str]:
        end = time.monotonic() + _SECONDS
        told, url = (answer(process, end - time.monotonic()) for process in (status, remote))
        record: Record = {"folder": str(top), **_about(told)}
        if url:  # without a user's name and password
            record["remote"] = re.sub(r"(?<=://)[^/@]*@", "", os.fsdecode(url).strip())
        changed = [path for path in _changed(told or b"") if not any(map(is_secret, path.split("/")))]
        if not (changed and record["commit"]):
            return record, ""
        diff = answer(git(top, *_DIFF, *changed[:_MOST_NAMES]), end - time.monotonic(), _MOST_DIFF + 1)
        text = (diff or b"")[:_MOST_DIFF].decode("utf-8", "surrogateescape")
        whole = diff is not None and len(diff) <= _MOST_DIFF and len(changed) <= _MOST_NAMES
        return {**record, "diff": None if diff is None else whole}, text

    try:
        yield answers
    finally:
        for process in filter(None, (status, remote)):
            if process.returncode is None:
                leave(process)


def _about(status: bytes | None) -> Record:
    """What git-status(1), Porcelain Format Version 2, tells. Pure."""
    if status is None:
        return {"unknown": f"git did not answer within {_SECONDS:g} s, or refused to"}
    lines = _lines(status)
    heads = {words[1]: words[2] for line in lines if len(words := line.split(" ", 2)) == 3 and words[0] == "#"}
    new = [line[2:] for line in lines if line.startswith("? ") and not f"/{line[2:]}".endswith(f"/{RUN_ROOT}/")]
    commit, branch = heads.get("branch.oid", "("), heads.get("branch.head", "(")
    return {
        "commit": None if commit.startswith("(") else commit,  # (initial)
        "branch": None if branch.startswith("(") else branch,  # (detached)
        "dirty": bool(_changed(status)),
        "untracked": new[:_MOST_NAMES],
    }


def _changed(status: bytes) -> list[str]:
    """The tracked files that differ from the commit. Pure."""
    entries = [re.match(r"(?:1(?: \S+){7}|2(?: \S+){8}|u(?: \S+){9}) (.*)", line, re.DOTALL) for line in _lines(status)]
    return [entry[1] for entry in entries if entry]


def _lines(status: bytes) -> list[str]:
    return os.fsdecode(status).split("\0")


def write(run: RunDir, record: Mapping[str, Any], diff: str) -> None:
    """Write code.json and code.diff, for this user alone, as far as there is something to write.

    Raises:
        RunDirError: When they cannot be written.
    """
    if record:
        write_record(run.code, dict(record), mode=0o600)
    if diff:
        write_text(run.diff, diff, mode=0o600)
