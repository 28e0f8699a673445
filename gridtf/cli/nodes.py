"""gridtf nodes: hosts that were bad in the user's jobs, and those that the site has marked."""

from __future__ import annotations

import contextlib
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
from gridtf.errors import NotFoundError, RunDirError, UsageError
from gridtf.jobspec import config
from gridtf.jobspec.arguments import Parser
from gridtf.run import hosthistory
from gridtf.run.hosthistory import Suspect
from gridtf.text import counted, duration, plain, some
from gridtf.values import as_dict


def parser(**more: Any) -> Parser:
    made = new_parser("nodes", "[forget HOST …] [options]", ("", "forget n7"), json=True, **more)
    made.add_argument("forget", nargs="?", choices=["forget"], help="forget what your jobs have found out about hosts")
    made.add_argument("hosts", metavar="HOST", nargs="*", help="the hosts, by their names in the table")
    return made


def run(arguments: Namespace) -> int:
    if arguments.forget and not arguments.hosts:
        raise UsageError("no host is named to forget", hint="`gridtf nodes` lists the hosts: gridtf nodes forget n7")
    now, forgotten = time.time(), {*arguments.hosts}
    known = hosthistory.read(os.environ, now, config.limit_of_site("bad_hosts", os.environ))
    if unknown := forgotten - {suspect.host for suspect in known.suspects if suspect.findings}:
        what = f"your jobs have found out nothing about {some([*unknown])}"
        raise NotFoundError(what, hint="`gridtf nodes` lists the hosts; those of the site's file are your site's")
    with contextlib.suppress(*[RunDirError] * (not forgotten)):  # as in a home that is read-only
        hosthistory.rewrite(os.environ, now, forgotten)
    for note in known.notes:
        output.message(f"gridtf: {plain(note)}")
    shown = [suspect for suspect in known.suspects if suspect.site or suspect.host not in forgotten]
    records = [{**as_dict(suspect), "staff": _of_staff(suspect)} for suspect in shown]
    if arguments.json:
        output.write(f"{show.as_json(records)}\n")
    elif records:
        output.write(f"{_shown(records, now)}\n")
    else:
        output.message("gridtf: nothing is known against any host from the last seven days")
    return 0


def _of_staff(suspect: Suspect) -> str:
    """The command with which staff takes a bad host out of service; empty where there is none."""
    name = suspect.cluster.partition(":")[0]
    words = schedulers.get(name).login.out_of_service if suspect.bad and name in schedulers.names() else ()
    return shlex.join(word.format(host=suspect.host, reason=suspect.reason) for word in words)


def _shown(records: Sequence[dict[str, Any]], now: float) -> str:
    rows = [["HOST", "CLUSTER", "IS", "FINDINGS", "JOBS", "EXPIRES IN", "SOURCE", "REASON"]]
    for each in records:
        found, source = len(each["findings"]), "site" if each["site"] else "yours"
        state = "bad" if each["bad"] else counted(found, "finding")
        expires = "-" if each["expires"] is None else duration(each["expires"] - now)
        about = (each["host"], each["cluster"], state, str(found), str(each["jobs"]), expires, source, each["reason"])
        rows.append([*map(plain, about)])
    staff = [f"  {plain(each['staff'])}" for each in records if each["staff"]]
    return "\n".join(
        [table(rows), *(["", "to take a bad host out of service, staff would run:"] if staff else []), *staff]
    )
