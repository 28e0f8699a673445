"""How the code of two runs differs: by their snapshots, else by their commits and what was not committed."""

from __future__ import annotations

import difflib
import filecmp
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from gridtf import files
from gridtf.errors import RunDirError
from gridtf.observe.git import answer, git
from gridtf.run import recordtypes, registry
from gridtf.run.reading import known
from gridtf.run.rundir import RunDir, open_plain, read_record, read_text
from gridtf.values import Value

_MOST_LINES = 2000
_MOST_BYTES = 1 << 18  # of a file; larger ones are only said to differ
_SECONDS = 20.0  # for git
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


class CodeDiff(Value):
    """How the code of two runs differs.

    Attributes:
        text: Unified, from the first to the second one, at most 2,000 lines; empty where nothing differs.
        unknown: Why it is not known, or only in part; empty where it is.
    """

    text: str = ""
    unknown: str = ""


def code_of(run: RunDir) -> Mapping[str, Any]:
    """The record of the code of a run; empty without one, and where only its owner may read it.

    Raises:
        RunDirError: When it is damaged.
    """
    return known(registry.whole(run).code, recordtypes.Code)


def code_diff(first: RunDir, second: RunDir, names: tuple[str, str]) -> CodeDiff:
    """Compare the code of two runs.

    Args:
        first: One.
        second: The other.
        names: What they are called, for what is said of one of them.

    Raises:
        RunDirError: When a record is damaged.
    """
    folders = [_snapshot(run) for run in (first, second)]
    if folders[0] and folders[1]:
        return _bounded(_of_folders((folders[0], folders[1]))) if folders[0] != folders[1] else CodeDiff()
    records = [code_of(run) for run in (first, second)]
    missing = [name for name, record in zip(names, records, strict=True) if not record.get("commit")]
    if missing:
        return CodeDiff(unknown=f"{' and '.join(missing)}: neither a snapshot nor a commit that you may read")
    commits = [str(record["commit"]) for record in records]
    committed = "" if commits[0] == commits[1] else _of_commits(records, commits)
    diffs = [
        read_text(run.diff) if os.access(run.diff, os.R_OK) else None for run in map(registry.whole, (first, second))
    ]
    parts = [*(committed or "").splitlines()]
    if diffs[0] != diffs[1]:
        for name, diff in zip(names, diffs, strict=True):
            parts += [f"# not committed in {name}:", *(diff or "# nothing").splitlines()]
    unknown = [] if committed is not None else [f"{commits[0][:12]} and {commits[1][:12]} are not both at hand here"]
    for name, record in zip(names, records, strict=True):
        if record.get("dirty") and not record.get("diff"):
            unknown.append(f"what was not committed in {name} is not known as a whole")
    if any(record.get("untracked") for record in records):
        unknown.append("untracked files are not compared")
    return _bounded(iter(parts)).replace(unknown="; ".join(unknown))


def _snapshot(run: RunDir) -> Path | None:
    """The folder with the snapshot of a run; None without one that can be read."""
    for place in (run, registry.whole(run)):
        named = known(place.job, recordtypes.Job).get("origin", {}).get("snapshot")
        if named and files.is_folder(named) and files_of(Path(named)):
            return Path(named)
    return None


def _bounded(lines: Iterator[str]) -> CodeDiff:
    kept: list[str] = []
    for line in lines:
        if len(kept) == _MOST_LINES:
            kept.append(f"# more than {_MOST_LINES} lines: the rest is left out")
            break
        kept.append(line)
    return CodeDiff("\n".join(kept))


def files_of(snapshot: Path) -> Collection[str]:
    """The files of a snapshot as it was made, not what the job has written there; none without a record of this user's.

    Args:
        snapshot: Its folder.

    Raises:
        RunDirError: When its record is damaged.
    """
    record = snapshot.with_name(f"{snapshot.name}.json")
    if not os.access(record, os.R_OK):
        return ()
    found: Collection[str] = (read_record(record, recordtypes.Snapshot, own=True) or {"files": {}})["files"]
    return found


def _of_folders(folders: tuple[Path, Path]) -> Iterator[str]:
    both = [{*files_of(folder)} for folder in folders]
    for name in sorted(both[0] | both[1]):
        paths = [folder / name for folder in folders]
        try:
            if name in both[0] & both[1] and _equal(*paths):
                continue
            texts = [_lines(path) if name in there else [] for path, there in zip(paths, both, strict=True)]
        except (OSError, RunDirError):
            yield f"# {name} cannot be read"
            continue
        if texts[0] is None or texts[1] is None:
            yield f"# {name} differs: it is binary, or larger than {_MOST_BYTES >> 10} KiB"
            continue
        old, new = (f"{side}/{name}" if name in there else "/dev/null" for side, there in zip("ab", both, strict=True))
        yield from difflib.unified_diff(texts[0], texts[1], old, new, lineterm="")


def _equal(first: Path, second: Path) -> bool:
    if files.is_link(first) or files.is_link(second):
        return _lines(first) == _lines(second)
    return first.samefile(second) or filecmp.cmp(first, second, shallow=False)


def _lines(path: Path) -> list[str] | None:
    """The lines of a text, or where a link leads; None for a file that is not to be shown."""
    if files.is_link(path):
        return [f"-> {path.readlink()}"]
    with open_plain(path) as file:
        data = file.read(_MOST_BYTES + 1)
    return None if len(data) > _MOST_BYTES or b"\0" in data else data.decode(errors="replace").splitlines()


def _of_commits(records: list[Mapping[str, Any]], commits: list[str]) -> str | None:
    """What git tells of two commits; None where no work tree of the runs has both."""
    if not all(map(_COMMIT.fullmatch, commits)):
        return None
    words = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", *commits, "--")
    folders = dict.fromkeys(str(record["folder"]) for record in records if "folder" in record)
    told = (answer(git(Path(folder), *words), _SECONDS) for folder in folders)
    return next((diff.decode(errors="replace") for diff in told if diff is not None), None)
