"""An archive for a support ticket: the records of a job, and the last part of each log, with secrets masked."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from gridtf import __version__
from gridtf.errors import RunDirError
from gridtf.report import page
from gridtf.report.codediff import files_of
from gridtf.report.gather import gather
from gridtf.run.rundir import RunDir, cannot, open_plain
from gridtf.secrets import MASK, Masker
from gridtf.text import plain, size

_RECORD, _LINES, _LOG = "record", "lines", "log"
_MOST = {_RECORD: 8 << 20, _LINES: 1 << 20, _LOG: 64 << 10}  # bytes of a file
_ALL_LOGS, _LEAST_LOG = 4 << 20, 4 << 10  # bytes of all logs together, and of each nevertheless
_ALL_CODE = 8 << 20  # bytes of all files of a snapshot together
_LONGEST_SECRET = 16 << 10  # bytes that are read before what is taken: of half a key it cannot be seen that it is one
_ATTEMPT = r"attempt-\d+"
_TAKEN = (
    (
        _RECORD,
        rf"(job|submitted|cancelled|ended|code)\.json|{_ATTEMPT}/(state|ranks)/[^/]+\.json|join-[^/]+/[^/]+\.json",
    ),
    (_RECORD, rf"{_ATTEMPT}/((plan|packages|rendezvous|stop|stacks(\.request)?|verdict)\.json)"),
    (_RECORD, rf"{_ATTEMPT}/logs/[^/]+\.parts"),
    (_LINES, rf"{_ATTEMPT}/(events|samples|logtimes)\.jsonl"),
    (_LOG, rf"job\.(sh|log)|{_ATTEMPT}/(agents\.log|(logs|mpi)/[^/]+)"),
)
_FOLDERS = re.compile(rf"{_ATTEMPT}(/(state|ranks|logs|mpi))?|join-[^/]+")
_WHY = {
    "listener.json": "it has the secret of the attempt",
    "output": "what the tasks have written",
    "array": "each element of a job array has an archive of its own",
    "code.diff": "code: --with-code takes it",
    "data_dispatcher": "the journal of the data workers' dispatcher",
}


def make(run: RunDir, examined: str, words: Mapping[str, str], now: float, *, with_code: bool = False) -> bytes:
    """Make the archive of a job.

    Args:
        run: Its run directory.
        examined: What ``gridtf doctor --json`` says of this host.
        words: What is replaced besides secrets, such as the name of the user -> what stands for it.
        now: Seconds since the epoch.
        with_code: Whether to take code.diff and the files of the job's snapshot as well.

    Returns:
        A compressed tar archive.

    Raises:
        RunDirError: When the run directory cannot be listed.
    """
    material = gather(run, now)
    masker = page.masker_of(material)

    def shown(text: str) -> str:
        for word, other in words.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", other, text)
        return text

    files = [*found(run.path)]
    places = {name: run.path / name for name, _, _ in files}
    if with_code:
        files = [(name, _LINES if name == run.diff.name else kind, why) for name, kind, why in files]
        code = _code(material.code.get("snapshot"))
        places |= code
        files += [(name, _RECORD, "") for name in code]
    logs = sum(kind == _LOG for _, kind, _ in files)
    most = {**_MOST, _LOG: max(_LEAST_LOG, min(_MOST[_LOG], _ALL_LOGS // max(1, logs)))}
    held = {"doctor.json": (_masked(examined, _RECORD, masker), "of the host where this archive was made")}
    left = []
    for name, kind, why in files:
        try:
            if not kind:
                raise RunDirError(why)
            held[name] = _read(places[name], kind, most[kind], masker)
        except (RunDirError, OSError) as error:
            left.append(f"  {name}: {getattr(error, 'strerror', None) or error}")
    about = f"{page.heading(material)}: {material.view.state} as of {page.clock(now)}, gridtf {__version__}"
    lines = [about, "", "In this archive:"]
    for name, (text, note) in held.items():
        masked = f"{text.count(MASK)} masked" if MASK in text else ""
        lines.append(f"  {name}: {', '.join(filter(None, (size(len(text.encode(errors='replace'))), masked, note)))}")
    lines += ["", "Left out:", *left, "", f"What looks like a secret is {MASK}: read this before you pass it on."]
    held["MANIFEST"] = "".join(f"{plain(line)}\n" for line in lines), ""
    return _archive({f"{run.path.name}/{name}": shown(held[name][0]) for name in sorted(held)}, int(now))


def _code(snapshot: str | None) -> dict[str, Path]:
    """Name in the archive -> the files of a snapshot, the small ones first, up to 8 MiB."""
    if snapshot is None:
        return {}
    folder, total, taken = Path(snapshot), 0, {}
    sizes = [((folder / name).lstat().st_size, name) for name in files_of(folder) if (folder / name).is_file()]
    for length, name in sorted(sizes):
        total += length
        if total <= _ALL_CODE:
            taken[f"code/{name}"] = folder / name
    return taken


def found(top: Path) -> Iterator[tuple[str, str, str]]:
    """All files of a run directory: (path in it, how it is taken, why it is left out). No link is followed.

    Raises:
        RunDirError: When it cannot be listed.
    """
    for folder, folders, names in os.walk(top, onerror=_fail):
        for name in sorted([*folders, *names]):
            path = Path(folder, name).relative_to(top).as_posix()
            if name in folders and _FOLDERS.fullmatch(path) and not Path(folder, name).is_symlink():
                continue
            kind = next((kind for kind, pattern in _TAKEN if re.fullmatch(pattern, path)), "")
            yield path, kind if name in names else "", _WHY.get(name, "neither a record nor a log of gridtf's")
        folders[:] = [name for name in sorted(folders) if _FOLDERS.fullmatch(f"{Path(folder, name).relative_to(top)}")]


def _fail(error: OSError) -> None:
    raise cannot("list", Path(error.filename), error) from None


def _read(path: Path, kind: str, most: int, masker: Masker) -> tuple[str, str]:
    """The text of a file, or of whole lines at its end, masked; and a note about it."""
    with open_plain(path) as file:
        whole = os.fstat(file.fileno()).st_size
        before = file.seek(max(0, whole - most - _LONGEST_SECRET))
        text = file.read(most + _LONGEST_SECRET).decode(errors="replace")
    if whole <= most:
        return _masked(text, kind, masker), ""
    text = _masked(text.partition("\n")[2] if before else text, kind, masker)
    return text[-most:].partition("\n")[2], f"the last of {size(whole)}"


def _masked(text: str, kind: str, masker: Masker) -> str:
    if kind == _LINES:
        return "".join(f"{_masked(line, _RECORD, masker)}\n" for line in text.splitlines())
    try:
        record = json.loads(text) if kind == _RECORD else None
    except (ValueError, RecursionError):  # damaged, which may be what is looked for
        record = None
    return masker.text(text) if record is None else json.dumps(masker.value("", record), ensure_ascii=False)


def _archive(texts: Mapping[str, str], now: int) -> bytes:
    data = io.BytesIO()
    with gzip.GzipFile(fileobj=data, mode="wb", mtime=now) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in texts.items():
            content = text.encode(errors="replace")
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o600, now
            archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()
