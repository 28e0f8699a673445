"""What a user's jobs have found out about hosts: which were lost, stalled a job or failed a check, and when.

All of it is in one file of JSON lines beside the index of runs. Launchers append, each with one write, from several
hosts at once; commands of the login node rewrite it without what has expired. It is a help, never a need: whatever is
wrong with the file costs a note, and a line that cannot be read, such as one that is cut, is left out.

A host counts as bad by findings of at least two jobs within a week, or by one line of the site's own file, such as
``n7 GPU 3 has fallen off the bus``: the name of a host and a reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gridtf import files
from gridtf.errors import GridtfError, RunDirError
from gridtf.jobspec.limits import Limit
from gridtf.run import recordtypes, registry
from gridtf.run.jsonlines import line
from gridtf.run.rundir import Record, cannot, make_folder, open_log, open_plain, write_text
from gridtf.text import plain
from gridtf.values import Value, as_dict

CHECK, LOST, STALLED = "check", "lost", "stalled"  # kinds of findings
KEPT = 7 * 86400.0  # seconds for which a finding counts
_AHEAD = 86400.0  # seconds by which the clock of another host may be ahead
_JOBS = 2  # different jobs whose findings make a host bad
_MOST = 2000  # lines that are kept when the file is rewritten
_MOST_BYTES = 1 << 20  # of the file: above, jobs add nothing until a command of the login node has rewritten it
_MOST_REASON = 200  # characters


class Finding(Value):
    """What a job has found out about a host.

    Attributes:
        host: The scheduler's name of the host.
        job: The scheduler's id of the job; elements of an array are one job.
        time: In seconds since the epoch.
        kind: CHECK, LOST or STALLED.
        reason: One line, such as ``GPU 1 has 40 % of the others' speed``; may be empty.
        cluster: What tells the host from hosts of other clusters (Login.cluster).
    """

    host: str
    job: str
    time: float
    kind: str
    reason: str = ""
    cluster: str = ""


class Checked(Value):
    """That hosts have passed a check, at a time."""

    checked: tuple[str, ...]
    time: float
    cluster: str = ""


class Suspect(Value):
    """A host with findings.

    Attributes:
        host: Its name.
        cluster: As in Finding; empty: any cluster of this site.
        findings: Those that have not expired, the newest first.
        site: The reason in the site's file; None: it does not name the host.
    """

    host: str
    cluster: str
    findings: tuple[Finding, ...] = ()
    site: str | None = None

    @property
    def jobs(self) -> int:
        """How many different jobs the findings are of."""
        return len({finding.job for finding in self.findings})

    @property
    def bad(self) -> bool:
        """Whether it counts as bad."""
        return self.site is not None or self.jobs >= _JOBS

    @property
    def reason(self) -> str:
        """The newest reason, such as ``lost: no heartbeat for 30 s``."""
        if self.site is not None:
            return self.site
        return f"{self.findings[0].kind}: {self.findings[0].reason}".rstrip(": ")

    @property
    def expires(self) -> float | None:
        """When its newest finding expires, in seconds since the epoch; None: the site's file names it."""
        return None if self.site is not None else self.findings[0].time + KEPT


class History(Value):
    """What is known about hosts.

    Attributes:
        suspects: The hosts with findings, the worst first.
        notes: What could not be read, one line each.
    """

    suspects: tuple[Suspect, ...] = ()
    notes: tuple[str, ...] = ()

    def bad(self, cluster: str) -> tuple[Suspect, ...]:
        """The bad hosts of a cluster, the worst first."""
        return tuple(each for each in self.suspects if each.bad and _same(each.cluster, cluster))


def where(environ: Mapping[str, str]) -> Path:
    """The file.

    Args:
        environ: The environment, for HOME and XDG_STATE_HOME.

    Raises:
        RunDirError: For a user without a home folder.
    """
    return registry.folder(environ).with_name("hosts.jsonl")


def note(environ: Mapping[str, str], findings: Iterable[Finding]) -> None:
    """Remember what a job has found out. Where that is impossible it is not remembered: it raises nothing.

    Args:
        environ: As for where.
        findings: What it has found out.
    """
    _append(
        environ,
        (
            {**as_dict(each), "job": re.split(r"[._+]", each.job)[0], "reason": plain(each.reason)[:_MOST_REASON]}
            for each in findings
            if each.cluster
        ),
    )


def note_checked(environ: Mapping[str, str], hosts: Sequence[str], time: float, cluster: str) -> None:
    """Remember which hosts have passed a check; raises nothing either.

    Args:
        environ: As for where.
        hosts: The hosts.
        time: When, in seconds since the epoch.
        cluster: As in Finding; empty: nothing is remembered.
    """
    _append(environ, [as_dict(Checked(tuple(hosts), time, cluster))] if cluster and hosts else [])


def checked_since(environ: Mapping[str, str], cluster: str, since: float) -> frozenset[str]:
    """The hosts that have passed a check and have no newer finding; none where nothing can be read. It raises nothing.

    Args:
        environ: As for where.
        cluster: As in Finding.
        since: In seconds since the epoch.
    """
    passed: dict[str, float] = {}
    for entry in _read(environ, since)[0]:
        if not _same(entry.cluster, cluster):
            continue
        if isinstance(entry, Checked):
            passed |= dict.fromkeys(entry.checked, entry.time)
        elif passed.get(entry.host, entry.time) <= entry.time:
            passed.pop(entry.host, None)
    return frozenset(passed)


def read(environ: Mapping[str, str], now: float, site: Limit | None = None) -> History:
    """Read what is known about hosts. It raises nothing: what cannot be read becomes a note.

    Args:
        environ: As for where.
        now: In seconds since the epoch.
        site: ``bad_hosts`` of the site's file; None: there is none.
    """
    entries, wrong = _read(environ, now - KEPT, now + _AHEAD)
    found: dict[tuple[str, str], list[Finding]] = {}
    for entry in entries:
        if isinstance(entry, Finding):
            found.setdefault((entry.host, entry.cluster), []).append(entry)
    mine = [Suspect(*key, tuple(sorted(each, key=lambda finding: finding.time)[::-1])) for key, each in found.items()]
    marked, also = _of_site(site)
    named = [each.replace(site=marked.get(each.host)) for each in mine]
    named += [Suspect(host, "", site=why) for host, why in marked.items() if host not in {key[0] for key in found}]
    worst = sorted(named, key=lambda each: (each.site is None, -each.jobs, -len(each.findings), each.host))
    return History(tuple(worst), tuple(filter(None, (wrong, also))))


def rewrite(environ: Mapping[str, str], now: float, forget: Collection[str] = ()) -> None:
    """Write the file without what has expired. A line that a job appends at the same time may be lost.

    Args:
        environ: As for where.
        now: In seconds since the epoch.
        forget: Hosts whose findings are left out.

    Raises:
        RunDirError: When it cannot be written.
    """
    path = where(environ)
    if not files.exists(path):
        return
    kept = [
        line(as_dict(entry))
        for entry in _read(environ, now - KEPT, now + _AHEAD)[0]
        if isinstance(entry, Checked) or entry.host not in forget
    ]
    write_text(path, "".join(kept[-_MOST:]), mode=0o600)


def _same(one: str, other: str) -> bool:
    """Whether two clusters may be the same: the name of one may not be known, as in ``slurm:``."""
    return one in ("", other) or (one.partition(":")[0] == other.partition(":")[0] and ":" in (one[-1], other[-1:]))


def _append(environ: Mapping[str, str], records: Iterable[Record]) -> None:
    text = "".join(map(line, records)).encode()
    with contextlib.suppress(OSError, GridtfError):
        if not text:
            return
        path = where(environ)
        make_folder(path.parent, parents=True)
        with open_log(path) as file:
            os.fchmod(file.fileno(), 0o600)
            if os.fstat(file.fileno()).st_size < _MOST_BYTES:
                file.write(b"\n" + text)  # the last line may be cut


def _read(
    environ: Mapping[str, str], since: float, until: float = float("inf")
) -> tuple[Sequence[Finding | Checked], str]:
    """The lines of the file of a time, in their order; and what is wrong with it, empty where nothing is."""
    try:
        path = where(environ)
        with open_plain(path, own=True) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_BYTES))
            data = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return (), ""
    except OSError as error:
        return (), cannot("read", path, error).what
    except RunDirError as error:
        return (), f"{error.what}: what was found out about hosts is not read"
    return [entry for entry in _parsed(data) if since <= entry.time <= until], ""


def _parsed(data: bytes) -> Iterator[Finding | Checked]:
    for text in data.splitlines():
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            record = json.loads(text)
            if "checked" in record:
                yield recordtypes.read(Checked, record)
            else:
                yield recordtypes.read(Finding, record)


def _of_site(site: Limit | None) -> tuple[dict[str, str], str]:
    """Host -> the reason in the site's file; and what is wrong with that file."""
    if site is None:
        return {}, ""
    path = str(site.value)
    try:
        data, _ = files.read(Path(path), path, trusted=() if site.owner is None else (site.owner,))
    except OSError as error:
        return {}, plain(f"{site.source}: bad_hosts: {path}: {error.strerror}")
    except GridtfError as error:
        return {}, plain(f"{site.source}: bad_hosts: {error.what}: it is not read")
    rows = (row.split(None, 1) for row in data.decode(errors="replace").splitlines() if not row.startswith("#"))
    return {row[0]: row[1].strip() if row[1:] else "" for row in rows if row}, ""
