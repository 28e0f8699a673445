"""What a job has asked Grid Engine for, and was submitted with: ``qstat -j``. Parsing is pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gridtf.errors import SchedulerError
from gridtf.run.rundir import RUN_ROOT
from gridtf.schedulers.sge import cell, reply

# CE_consumable in complex(5)'s order; the last is not in Son of Grid Engine.
NO, PER_SLOT, PER_JOB, PER_HOST = "0", "1", "2", "3"


@dataclass(frozen=True)
class Resource:
    """One ``-l NAME=AMOUNT``. per: what one amount is for: NO, PER_SLOT, PER_JOB or PER_HOST."""

    amount: float
    per: str


def ask(job_id: str, *, limit: float) -> Mapping[str, Resource]:
    """The hard requests of a job by the resource's name. limit: seconds. Raises SchedulerError."""
    return resources(_qstat(job_id, limit))


def ask_variables(job_id: str, *, limit: float) -> Mapping[str, str]:
    """The variables that a job was submitted with (``-v``, ``-V``). limit: seconds. Raises SchedulerError."""
    return variables(_qstat(job_id, limit))


def _qstat(job_id: str, limit: float) -> str:
    answer = cell.query(["qstat", "-xml", "-j", job_id.partition(".")[0]], limit=limit)
    if answer.code:
        raise SchedulerError(f"qstat -j {job_id} has failed: {cell.said(answer)}")
    return answer.out


def run_dirs(job_id: str, *, limit: float) -> list[Path]:
    """As places, of the job that qstat shows. Raises SchedulerError when the qmaster does not answer."""
    answer = cell.query(["qstat", "-j", job_id.partition(".")[0]], limit=limit)
    return [] if answer.code else places(answer.out, job_id)


def places(text: str, job_id: str) -> list[Path]:
    """Where the run directory of a job may be, by `qstat -j`: that of its script, or where gridtf_run makes one."""
    said = dict(re.findall(r"^(\w+): +(\S.*?) *$", text, re.MULTILINE))
    found = [Path(said["script_file"]).parent] if "script_file" in said else []
    folder = said.get("cwd") or said.get("sge_o_workdir")
    return found + ([Path(folder, RUN_ROOT, f"{said['job_name']}-{job_id}")] if folder and "job_name" in said else [])


def resources(text: str) -> Mapping[str, Resource]:
    """Read ``qstat -xml -j``. Raises SchedulerError for what is no XML."""
    root = reply.tree(text, "qstat -xml -j")
    found: dict[str, Resource] = {}
    # Open Cluster Scheduler has one list for the job, and one each for the first host and the others
    for hard in (one for tag in ("JB_hard_resource_list", "JRS_hard_resource_list") for one in root.iter(tag)):
        for one in hard:
            name = one.findtext("CE_name") or ""
            try:
                amount = float(one.findtext("CE_doubleval") or one.findtext("CE_stringval") or 0)
            except ValueError:
                continue  # a string or a host name
            if math.isfinite(amount):
                found.setdefault(name, Resource(amount, one.findtext("CE_consumable") or NO))
    return found


def variables(text: str) -> Mapping[str, str]:
    """The environment in ``qstat -xml -j``. Raises SchedulerError for what is no XML."""
    lists = reply.tree(text, "qstat -xml -j").iter("JB_env_list")
    return {one.findtext("VA_variable") or "": one.findtext("VA_value") or "" for own in lists for one in own}
