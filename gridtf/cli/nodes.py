"""gridtf nodes: hosts that were bad in the user's jobs, and those that the site has marked."""

from __future__ import annotations

import os
import shlex
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from gridtf import schedulers
from gridtf.cli import output, show
from gridtf.cli.common import new_parser
from gridtf.cli.tasktable import table
from gridtf.errors import NotFoundError, SchedulerError
from gridtf.jobspec.arguments import Parser
from gridtf.login import badhosts
from gridtf.run import hosthistory
from gridtf.run.hosthistory import Suspect
from gridtf.text import counted, duration, plain


def parser(**more: Any) -> Parser:
    made = new_parser("nodes", "[forget HOST …] [options]", ("", "forget n7"), json=True, **more)
    made.add_argument("forget", nargs="?", choices=["forget"], help="forget what your jobs have found out about hosts")
    made.add_argument("hosts", metavar="HOST", nargs="*", help="their names")
    return made


def run(arguments: Namespace) -> int:
    now, known = time.time(), badhosts.known(time.time())
    if arguments.forget:
        return _forget(arguments.hosts, known.suspects, now)
    hosthistory.rewrite(os.environ, now)
    for note in known.notes:
        output.message(f"gridtf: {plain(note)}")
    records = [_record(suspect) for suspect in known.suspects]
    if arguments.json:
        output.write(f"{show.as_json(records)}\n")
    elif not records:
        output.message("gridtf: your jobs have found no fault with any host within seven days")
    else:
        output.write("".join(f"{line}\n" for line in _shown(records, now)))
    return 0


def _forget(hosts: Sequence[str], suspects: Sequence[Suspect], now: float) -> int:
    """Forget what is known about hosts.

    Raises:
        NotFoundError: For a host that nothing is known about.
    """
    mine = [suspect.host for suspect in suspects if suspect.findings]
    for host in hosts or ("",):
        if host not in mine:
            what = f"your jobs have found nothing out about host {host}" if host else "no host is named"
            marked = "the site has marked it" if host in {each.host for each in suspects} else ""
            raise NotFoundError(what, why=marked, hint="`gridtf nodes` lists the hosts with findings")
    hosthistory.rewrite(os.environ, now, hosts)
    return 0


def _record(suspect: Suspect) -> dict[str, Any]:
    """A host as --json prints it."""
    return {
        "host": suspect.host,
        "cluster": suspect.cluster,
        "bad": suspect.bad,
        "findings": suspect.findings,
        "jobs": suspect.jobs,
        "reason": suspect.reason,
        "expires": suspect.expires,
        "source": "yours" if suspect.site is None else "site",
        "staff": _of_staff(suspect),
    }


def _of_staff(suspect: Suspect) -> str:
    """The command line with which staff takes a bad host out of service; empty: there is none."""
    try:
        login = schedulers.get(suspect.cluster.partition(":")[0]).login if suspect.bad and suspect.cluster else None
    except (NotFoundError, SchedulerError):  # of a plugin that is not installed here
        login = None
    return shlex.join(login.out_of_service(suspect.host, suspect.reason)) if login else ""


def _shown(records: Sequence[dict[str, Any]], now: float) -> list[str]:
    rows = [("HOST", "CLUSTER", "IS", "FINDINGS", "JOBS", "EXPIRES IN", "SOURCE", "REASON")]
    for each in records:
        found = len(each["findings"])
        state = "bad" if each["bad"] else counted(found, "finding")
        expires = "-" if each["expires"] is None else duration(each["expires"] - now)
        rows.append(
            (
                each["host"],
                each["cluster"],
                state,
                str(found),
                str(each["jobs"]),
                expires,
                each["source"],
                each["reason"],
            )
        )
    lines = [table([[plain(word) for word in row] for row in rows])]
    if staff := [plain(each["staff"]) for each in records if each["staff"]]:
        lines += ["", "to take a bad host out of service, staff would run:", *(f"  {line}" for line in staff)]
    return lines
