"""A plan as text: the job script, from the shipped template or the user's own."""

from __future__ import annotations

import re
from typing import Any

import gridtf
from gridtf import resources
from gridtf.errors import SpecError
from gridtf.jobspec import config
from gridtf.jobspec.units import LONGEST_VARIABLE
from gridtf.login import templates
from gridtf.login.filters import json_text
from gridtf.schedulers.api import Plan

# Keys of the specification that only the login side needs; the job does not get them.
LOGIN_SIDE = frozenset(
    (
        *("run_dir", "run_root", "template", "native", "partition", "account", "qos"),
        *("constraint", "reservation", "licenses", "nodelist", "exclude", "notify", "time_min"),
    )
)

# Variables that bash would not pass on unchanged: read-only, set by bash, or evaluated as arithmetic, which runs $(…).
_BASH_OWN = re.compile(
    r"_|BASHOPTS|BASHPID|BASH_(?:ALIASES|ARGC|ARGV|CMDS|COMMAND|LINENO|MONOSECONDS|SOURCE|SUBSHELL|TRAPSIG|VERSINFO)"
    r"|DIRSTACK|EPOCHREALTIME|EPOCHSECONDS|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|OPTIND|PPID|RANDOM|SECONDS|SHELLOPTS"
    r"|SHLVL|SRANDOM|UID"
)


def script(plan: Plan) -> str:
    """Render the job script of a plan.

    Returns:
        The text, determined by the plan alone: no clock, no environment. Bytes of values that are not UTF-8 are
        surrogate escapes.

    Raises:
        SpecError: For values that a script or a directive cannot contain.
        NotFoundError: When the user's template does not exist.
        GridtfError: For errors in the user's template, with file and line.
    """
    for name in plan.spec.env:
        if _BASH_OWN.fullmatch(name):
            raise SpecError(f"env.{name}", f"bash itself sets {name}", hint="choose another name")
    values = _values(plan)
    _refuse_long(values["job"])
    return templates.render(plan, values)


def _values(plan: Plan) -> dict[str, Any]:
    """The names that templates can use, listed in docs/extending.md. Plain values only: a Path would let a template out
    of the sandbox, to the file system."""
    spec, scheduler = plan.spec, plan.scheduler
    job = spec.replace(scheduler=scheduler.name).to_dict()
    return {
        "version": gridtf.__version__,
        "scheduler": plan.scheduler.name,
        "template": spec.template or (scheduler.login.template.name if scheduler.login.template else resources.COMMON),
        "name": spec.title,
        "directive_prefix": scheduler.login.directive_prefix,
        "directives": scheduler.login.directives(plan),
        "chdir": spec.chdir,
        "moved": plan.moved,
        "setup": spec.setup,
        "setup_by_source": config.setup_by_source(spec, plan.sources),
        "env": dict(spec.env),
        "run_dir": str(plan.run_dir),
        "python": plan.python,
        "bootstrap": str(plan.bootstrap),
        "spec": spec,
        "job": {key: value for key, value in job.items() if key not in LOGIN_SIDE},
        "request": plan.request.to_dict(in_job=True),
    }


def _refuse_long(job: dict[str, Any]) -> None:
    """Raise SpecError for a specification that does not fit into an environment variable: no program could be started
    with it."""
    size = len(f"GRIDTF_SPEC={json_text(job)}".encode())
    if size > LONGEST_VARIABLE:
        key = max(job, key=lambda key: len(json_text(job[key])))
        raise SpecError(
            key,
            f"the specification has {size} bytes, at most {LONGEST_VARIABLE} can be passed to a job",
            why=f"it is passed in an environment variable, whose length Linux limits; most of it is {key}",
            hint="put long values into a file that the program reads",
        )
