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
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from gridtf import files
from gridtf.errors import GridtfError, RunDirError
from gridtf.jobspec.limits import Limit
from gridtf.run import recordtypes, registry
from gridtf.run.jsonlines import line
from gridtf.run.rundir import cannot, make_folder, open_log, open_plain, write_text
from gridtf.text import plain
from gridtf.values import Value, as_dict

CHECK, LOST, STALLED, PASSED = "check", "lost", "stalled", "passed"  # kinds of findings
KEPT = 7 * 86400.0  # seconds for which a finding counts
_AHEAD = 86400.0  # seconds by which the clock of another host may be ahead
_MOST = 2000  # lines that are kept when the file is rewritten
_MOST_BYTES = 1 << 20  # of the file: above, jobs add nothing until a command of the login node has rewritten it
_LONGEST = 200  # characters of a reason


class Finding(Value):
    """What a job has found out about a host.

    Attributes:
        host: The scheduler's name of the host.
        job: The scheduler's id of the job; elements of an array are one job. Empty for PASSED.
        time: In seconds since the epoch.
        kind: CHECK, LOST or STALLED; or PASSED: it has passed a check.
        reason: One line, such as ``GPU 1 has 40 % of the others' speed``; may be empty.
        cluster: What tells the host from hosts of other clusters (Login.cluster).
    """

    host: str
    job: str
    time: float
    kind: str
    reason: str = ""
    cluster: str = ""


class Suspect(Value):
    """A host with findings.

    Attributes:
        host: Its name.
        cluster: As in Finding; empty: any cluster of this site.
        findings: Those that have not expired, the newest first.
        jobs: How many different jobs they are of.
        site: Whether the site's file names it.
        bad: Whether it counts as bad.
        reason: That of the site, else the newest one, such as ``lost: no heartbeat for 30 s``.
        expires: When its newest finding expires, in seconds since the epoch; None: there is none.
    """

    host: str
    cluster: str
    findings: tuple[Finding, ...]
    jobs: int
    site: bool
    bad: bool
    reason: str
    expires: float | None


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
    known = (each for each in findings if each.cluster)
    found = [each.replace(job=re.split(r"[._+]", each.job)[0], reason=plain(each.reason)[:_LONGEST]) for each in known]
    with contextlib.suppress(OSError, GridtfError):
        make_folder(where(environ).parent, parents=True)
        with open_log(where(environ)) as file:
            os.fchmod(file.fileno(), 0o600)
            if found and os.fstat(file.fileno()).st_size < _MOST_BYTES:
                file.write(f"\n{''.join(line(as_dict(each)) for each in found)}".encode())  # the last line may be cut


def note_checked(environ: Mapping[str, str], hosts: Sequence[str], time: float, cluster: str) -> None:
    """Remember which hosts have passed a check; raises nothing either.

    Args:
        environ: As for where.
        hosts: The hosts.
        time: When, in seconds since the epoch.
        cluster: As in Finding; empty: nothing is remembered.
    """
    note(environ, [Finding(host, "", time, PASSED, "", cluster) for host in hosts])


def checked_since(environ: Mapping[str, str], cluster: str, since: float) -> frozenset[str]:
    """The hosts that have passed a check and have no newer finding; none where nothing can be read. It raises nothing.

    Args:
        environ: As for where.
        cluster: As in Finding.
        since: In seconds since the epoch.
    """
    entries = sorted(_read(environ, since)[0], key=lambda each: each.time)
    last = {each.host: each.kind for each in entries if _same(each.cluster, cluster)}
    return frozenset(host for host, kind in last.items() if kind == PASSED)


def read(environ: Mapping[str, str], now: float, site: Limit | None = None) -> History:
    """Read what is known about hosts. It raises nothing: what cannot be read becomes a note.

    Args:
        environ: As for where.
        now: In seconds since the epoch.
        site: ``bad_hosts`` of the site's file; None: there is none.
    """
    entries, wrong = _read(environ, now - KEPT, now + _AHEAD)
    marked, also = _of_site(site) if site else ({}, "")
    found: dict[tuple[str, str], list[Finding]] = {}
    for entry in sorted((each for each in entries if each.kind != PASSED), key=lambda each: each.time):
        found.setdefault((entry.host, entry.cluster), []).insert(0, entry)
    found |= {(host, ""): [] for host in marked}
    suspects = []
    for (host, cluster), each in found.items():
        named, jobs = not cluster, len({finding.job for finding in each})
        reason = marked[host] if named else f"{each[0].kind}: {each[0].reason}"
        expires = each[0].time + KEPT if each else None
        suspects.append(Suspect(host, cluster, tuple(each), jobs, named, named or jobs > 1, reason, expires))
    suspects.sort(key=lambda each: (not each.site, -each.jobs, -len(each.findings), each.host))
    return History(tuple(suspects), tuple(filter(None, (wrong, also))))


def rewrite(environ: Mapping[str, str], now: float, forget: Collection[str] = ()) -> None:
    """Write the file without what has expired. A line that a job appends at the same time may be lost.

    Args:
        environ: As for where.
        now: In seconds since the epoch.
        forget: Hosts of which nothing is kept. If there is too much, findings are kept before checks that were passed.

    Raises:
        RunDirError: When it cannot be written.
    """
    entries, wrong = _read(environ, now - KEPT, now + _AHEAD)
    if not wrong and files.exists(path := where(environ)):
        kept = sorted((each for each in entries if each.host not in forget), key=lambda each: each.kind != PASSED)
        write_text(path, "".join(line(as_dict(each)) for each in kept[-_MOST:]), mode=0o600)


def _same(one: str, other: str) -> bool:
    """Whether two clusters may be the same: the name of one may not be known, as in ``slurm:``."""
    return one in ("", other) or (one.partition(":")[0] == other.partition(":")[0] and ":" in (one[-1], other[-1:]))


def _read(environ: Mapping[str, str], since: float, until: float = float("inf")) -> tuple[list[Finding], str]:
    """The lines of the file of a time, in their order; and what is wrong with it, empty where nothing is."""
    entries: list[Finding] = []
    try:
        text = _end(where(environ))
    except RunDirError as error:
        return [], f"{error.what}: what jobs have found out about hosts is not read"
    for row in text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            entries.append(recordtypes.read(Finding, json.loads(row)))
    return [entry for entry in entries if entry.cluster and since <= entry.time <= until], ""


def _end(path: Path) -> str:
    """The end of the file, which is all of one that gridtf alone has written. Raises RunDirError."""
    try:
        with open_plain(path, own=True) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * _MOST_BYTES))
            return file.read(2 * _MOST_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise cannot("read", path, error) from None


def _of_site(site: Limit) -> tuple[dict[str, str], str]:
    """Host -> the reason in the site's file; and what is wrong with that file."""
    try:
        data, _ = files.read(Path("/", site.value), str(site.value), trusted=(site.owner or 0,))
    except (OSError, GridtfError) as error:
        return {}, plain(f"{site.source}: bad_hosts is not read: {error}")
    lines = data.decode(errors="replace").splitlines()
    rows = (line.split(maxsplit=1) for line in lines if line.strip()[:1] not in ("#", ""))
    return {row[0]: row[1].strip() if row[1:] else "no reason is given" for row in rows}, ""
