"""Which code a job runs: the commit of its working folder, and what differs from it; git tells during a submission."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from fnmatch import translate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridtf.run.rundir import RUN_ROOT, Record, RunDir, write_record, write_text

if TYPE_CHECKING:
    import subprocess

# Of these, neither the content is copied nor a diff is kept: shell patterns of names.
SECRETS = (
    *(".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *(".netrc", ".pypirc", ".git-credentials", ".ssh", ".aws", ".gnupg", "credentials", "credentials*.json"),
)
_SECONDS = 2.0  # for all questions of a submission; a work tree on a slow file system is then not known
_LEFT = 0.2  # for the end of one that was killed
_MOST_DIFF = 1 << 20  # bytes
_MOST_NAMES = 1000  # of untracked and of changed files, and of changed ones
# What a repository's configuration could have git run is turned off, but for filters such as that of Git LFS, without
# which other files would differ; git refuses to work in a repository of another user. No lock is taken.
_SAFE = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_DIFF = ("--literal-pathspecs", "diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD", "--")
_SECRET = re.compile("|".join(map(translate, SECRETS)))


def is_secret(name: str) -> bool:
    """Whether a file or a folder of this name probably holds keys or passwords. Pure."""
    return _SECRET.fullmatch(name) is not None


def work_tree(folder: Path) -> Path | None:
    """The top of the git work tree that a folder lies in; None without one."""
    return next((place for place in (folder, *folder.parents) if os.path.lexists(place / ".git")), None)


def git(folder: Path, *words: str) -> subprocess.Popen[bytes] | None:
    """Start git, with its output in a pipe; None where there is none.

    Args:
        folder: Where it works, whatever the variables of git in this environment say.
        words: Its arguments.
    """
    import subprocess

    environ = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.Popen(
            ["git", *_SAFE, "-C", str(folder), *words],  # noqa: S607
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environ, "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"},
        )
    except OSError:
        return None


def answer(process: subprocess.Popen[bytes] | None, seconds: float, most: int | None = None) -> bytes | None:
    """What git prints.

    Args:
        process: As git returns it.
        seconds: How long it may take.
        most: How many bytes are kept of it; the rest is not waited for. None: all.

    Returns:
        The output; None when git fails, or has not ended by then.
    """
    import select

    if process is None or process.stdout is None:
        return None
    end, data = time.monotonic() + seconds, bytearray()
    with process.stdout as pipe:
        while select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
            part = os.read(pipe.fileno(), 1 << 16)
            data += part
            if not part:
                return bytes(data) if process.wait() == 0 else None
            if most is not None and len(data) >= most:
                break
        else:
            data.clear()
    _leave(process)
    return bytes(data[:most]) or None


def _leave(process: subprocess.Popen[bytes]) -> None:
    """End a process, and wait for it, unless a file system holds it up."""
    import subprocess

    process.kill()
    if process.stdout is not None:
        process.stdout.close()
    try:
        process.wait(_LEFT)
    except subprocess.TimeoutExpired:
        process.returncode = -9


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
                _leave(process)


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
