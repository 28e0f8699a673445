"""gridtf stacks: where all tasks of a running job are, as the stacks of their threads show it."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from gridtf.cli import output
from gridtf.cli.common import find_job, new_parser
from gridtf.cli.logs import complete_tasks
from gridtf.jobspec.arguments import Parser
from gridtf.run.rundir import Record
from gridtf.text import plain, some


def parser(**more: Any) -> Parser:
    made = new_parser("stacks", "JOB [options]", ("digits", "4711 --task worker:3"), job=True, json=True, **more)
    task_help = "only this task (worker:0), or all of a type (worker); repeatable"
    task = made.add_argument("--task", metavar="TASK", action="append", help=task_help)
    task.completer = complete_tasks  # type: ignore[attr-defined]
    return made


def run(arguments: Namespace) -> int:
    from gridtf.observe import stacks

    record = stacks.chosen(stacks.request(find_job(arguments).run), arguments.task)
    output.result(_as_json(record) if arguments.json else "\n".join(map(plain, lines(record))))
    return 0


def _as_json(record: Record) -> str:
    from gridtf.run import stacks

    found = [
        {"tasks": [*group.tasks], "says": str(group)} for group in stacks.groups(record["tasks"], record["stacks"])
    ]
    shown = {name: record[name] for name in ("time", "missing", "tasks", "stacks")}
    return json.dumps({"groups": found, **shown}, indent=1)


def lines(record: Record) -> list[str]:
    """What is printed: the groups, the smallest first, then the stacks of one task of each.

    Args:
        record: stacks.json.
    """
    from gridtf.run import stacks

    found = stacks.groups(record["tasks"], record["stacks"])
    words = [str(group) for group in found]
    if record["missing"]:
        words.append(f"no answer from {some(record['missing'])}")
    for group in found:
        name = group.tasks[0]
        task = record["tasks"][name]
        for process in task["processes"]:
            who = f"{name} on {task['host']}, process {process['pid']} ({process['name']})"
            if process.get("stack") is None:
                why = stacks.STATES.get(process["state"]) or process.get("why", "")
                words += ["", f"{who}: {why}"]
            else:
                words += ["", f"{who}:", *(f"  {line}" for line in record["stacks"][process["stack"]].splitlines())]
    return words
