"""What Grid Engine would refuse, or leave waiting for ever, told before submission, with what the cell offers.

qsub -w v knows most of it. It does not know that gridtf starts tasks on all hosts of a job, nor who counts GPUs how.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Sequence

from gridtf.errors import SchedulerError, SpecError
from gridtf.jobspec.layout import request
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import RunDir
from gridtf.schedulers.base import Plan
from gridtf.schedulers.client import Answer
from gridtf.schedulers.sge import cell, directives, refusal, site
from gridtf.schedulers.sge.asked import Asked, asked_for
from gridtf.schedulers.sge.refusal import Cell
from gridtf.schedulers.sge.site import PE, Resource
from gridtf.schedulers.sge.slots import in_job

_PATIENCE = 20.0  # seconds
# Without looking at the load, -w v does not know resources whose amount is a matter of load, such as mem_free.
_LOAD = re.compile(r"job requests unknown resource \(([\w.]+)\)")


def check(plan: Plan) -> tuple[str, ...]:
    """Ask Grid Engine about a job without submitting it. Gives notes: what will make it wait, or is doubtful.

    Its script is where the plan says. Raises SpecError, with the key to blame, for what the cell does not have,
    SchedulerError when the qmaster does not answer or refuses for another reason.
    """
    asked = asked_for(directives.directives(plan), plan.spec)
    script = str(RunDir(plan.run_dir).script)
    notes: list[str] = []
    answer = _verify("v", script)
    if answer.code and _LOAD.search(answer.err + answer.out):
        answer = _verify("p", script)
        if answer.code:
            notes.append(f"no host has at present what the job asks for: {_of_load(answer)}")
            answer = Answer(0, "", "")
    # what the cell offers is asked only when it is to be told
    try:
        if asked.pe:
            notes += check_pes(_matching(asked.pe), asked, plan.spec)
        if asked.key(plan.spec.gpu_resource) != "native" and plan.spec.gpu_resource in asked.resources:
            notes += check_counting(site.resources(), asked, plan.spec)
    except SpecError as error:
        raise _with_alternatives(error, asked, plan.spec, script) from None
    if answer.code:
        refusal.refuse(_without_verdict(answer), asked, plan.spec.gpu_resource, _cell(asked, plan.spec, script))
    return tuple(notes)


def _verify(how: str, script: str, *options: str) -> Answer:
    """options: instead of those in the script's head."""
    return cell.query(["qsub", "-w", how, *options, script], limit=_PATIENCE)


def _of_load(answer: Answer) -> str:
    """The reason that has to do with load: ``… because it offers only hl:mem_free=22.594G``."""
    reasons = _without_verdict(answer)
    line = next((line for line in reasons.err.splitlines() if " hl:" in line), cell.said(reasons))
    return re.sub(r"^(Unable to run job: )?Job \d+ ", "", line)


def _without_verdict(answer: Answer) -> Answer:
    """Its last word is then a reason."""
    said = answer.err or answer.out
    lines = [line for line in said.splitlines() if not line.startswith(("verification:", "Exiting."))]
    return Answer(answer.code, "", "\n".join(lines))


def _matching(pattern: str) -> list[PE]:
    if not re.search(r"[*?\[|!&]", pattern):
        found = site.pe(pattern)
        return [] if found is None else [found]
    return [one for one in site.pes() if fnmatch.fnmatchcase(one.name, pattern)]


def _cell(asked: Asked, spec: JobSpec, script: str) -> Cell:
    pes = site.pes()
    return Cell(
        pes=pes,
        suitable=_suitable(pes, asked, spec, script) if asked.pe else (),
        queues=site.queues(),
        resources=site.resources(),
        projects=site.names("-sprjl"),
        hosts=site.names("-ss"),
    )


def _suitable(pes: Sequence[PE], asked: Asked, spec: JobSpec, script: str) -> list[str]:
    """Those that the same job could run in, as far as they and qsub say."""
    slots = f"{asked.low}" if asked.low == asked.high else f"{asked.low}-{asked.high}"
    found = []
    for one in pes:
        if problem(one, asked, spec) is None and one.name != asked.pe:
            answer = _verify("v", script, "-pe", one.name, slots)
            if not answer.code or _LOAD.search(answer.err + answer.out):
                found.append(one.name)
    return found


def _with_alternatives(error: SpecError, asked: Asked, spec: JobSpec, script: str) -> SpecError:
    """The same error, with the parallel environments that would do."""
    if error.key != asked.key("pe"):
        return error
    pes = site.pes()
    hint = site.these("do", _suitable(pes, asked, spec, script), [one.name for one in pes])
    return SpecError(error.key, error.problem, why=error.why, hint=hint or error.hint)


def naming_pes(error: SpecError, plan: Plan) -> SpecError:
    """The same error, that several slots need a parallel environment, with those that would do as far as they say."""
    spec = dataclasses.replace(plan.spec, pe="any")
    asked = asked_for(directives.directives(dataclasses.replace(plan, spec=spec)), spec)
    try:
        pes = site.pes()
    except SchedulerError:
        return error
    hint = site.these(
        "may do", [one.name for one in pes if problem(one, asked, spec) is None], [one.name for one in pes]
    )
    return SpecError(error.key, error.problem, why=error.why, hint=f"name one with --pe; {hint}") if hint else error


# --- what qsub does not know -----------------------------------------------------------------------------------


def check_pes(matching: Sequence[PE], asked: Asked, spec: JobSpec) -> list[str]:
    """Notes. Raises SpecError when no parallel environment that the job may get can ever do. Pure."""
    problems = {one.name: error for one in matching if (error := problem(one, asked, spec)) is not None}
    if problems and len(problems) == len(matching):
        raise next(iter(problems.values()))
    if problems:
        return [
            f"Grid Engine may choose a parallel environment that will not do: {next(iter(problems.values())).problem}"
        ]
    return []


def problem(one: PE, asked: Asked, spec: JobSpec) -> SpecError | None:
    """Why a parallel environment can never give what the job asks for: sge_pe(5). Pure."""
    key = asked.key("pe")
    if asked.low > one.slots:
        return SpecError(key, f"PE `{one.name}` has {one.slots} slots in all, {asked.low} are asked for")
    if not one.control_slaves and one.hosts(asked.high) > 1:
        return SpecError(key, f"PE `{one.name}` does not let gridtf start tasks on other hosts (control_slaves FALSE)")
    low, high = spec.node_range or (1, one.hosts(asked.high))
    if one.rule == "$pe_slots" and low > 1:
        return SpecError(
            key, f"PE `{one.name}` gives a job slots of one host only (allocation_rule $pe_slots), not of {low}"
        )
    if one.fixed is None:
        return None
    counts = range(-(-asked.low // one.fixed), asked.high // one.fixed + 1)  # hosts
    if not counts:
        slots = f"{asked.low}" if asked.low == asked.high else f"{asked.low}-{asked.high}"
        return SpecError(
            key, f"PE `{one.name}` gives {one.fixed} slots on every host (allocation_rule): {slots} is no multiple"
        )
    if counts[0] > high or counts[-1] < low:
        return SpecError(
            key,
            f"PE `{one.name}` gives {one.fixed} slots a host: {asked.low} slots are {counts[0]} hosts, not {low}",
        )
    need = request(spec).tasks_per_node * in_job(spec).per_task
    if spec.tasks_per_node is not None and need > one.fixed:
        return SpecError(
            key,
            f"PE `{one.name}` gives {one.fixed} slots on every host, {spec.tasks_per_node} tasks a host need {need}",
        )
    return None


def check_counting(known: Sequence[Resource], asked: Asked, spec: JobSpec) -> list[str]:
    """Notes on the resource that stands for GPUs. Raises SpecError when it does not count as gridtf asks. Pure."""
    name = spec.gpu_resource
    found = next((one for one in known if name in (one.name, one.shortcut)), None)
    if found is None:
        return []
    if found.consumable in ("JOB", "HOST") and asked.high > 1:
        whom = "every host of a job" if found.consumable == "HOST" else "a job as a whole"
        raise SpecError(
            "gpu_resource",
            f"{name} counts for {whom} here (consumable {found.consumable}), and gridtf would ask for it by slot",
            hint=f"ask for it yourself, such as --native='-l {name}=4', and for slots with --slots",
        )
    if found.consumable == "NO":
        return [
            f"resource {name} is not counted (consumable NO): Grid Engine may give the same GPUs to other jobs, too"
        ]
    return []
