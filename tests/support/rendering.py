"""Plans of submissions for tests that render."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gridtf import schedulers
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.api import Plan

# Values that a shell, sbatch or qsub would misinterpret unless quoted.
NASTY = {
    "spaces": "  two  spaces  ",
    "quotes": """it's a "test" \\' \\""",
    "substitution": "$(touch pwned) `touch pwned` ${HOME} $((1+1)) !! ~ *",
    "separators": "a; touch pwned & b | c > d < e # f",
    "newlines": "one\ntwo\n\nfour\n",
    "directives": "x\n#$ -l evil=1\n#SBATCH --nodes=99\n",
    "trailing": "\\",
    "controls": "\t\r\x1b[31m\x07\x7f\x85\u2028",
    "text": "été 数据 \N{PARTY POPPER}",
    "bytes": b"\xff\xfe raw".decode(errors="surrogateescape"),
    "empty": "",
    "dash": "-n",
    "template": "{{ name }} {% raw %} {# x #}",
}


SCRIPT = "#!/bin/bash\n"


def plan(scheduler: str = "slurm", *, run_dir: str | Path = "/shared/runs/digits-1", **values: Any) -> Plan:
    """A plan with a specification from the values of a job file."""
    spec = JobSpec.from_dict({"command": ["python", "train.py"], **values})
    return Plan(
        spec=spec,
        scheduler=schedulers.get(scheduler),
        request=schedulers.get(scheduler).login.resolve(spec),
        run_dir=Path(run_dir),
        python="/opt/gridtf/bin/python",
        bootstrap=Path("/opt/gridtf/lib/gridtf-bootstrap.sh"),
        sources={},
        script=SCRIPT,
    )


def of_sweep(made: Plan, count: int, at_once: int, pack: int = 1) -> Plan:
    """The plan of a sweep with so many elements."""
    elements = tuple(str(number) for number in range(1, count + 1))
    return made.replace(request=made.request.of_sweep(elements, at_once, pack))
