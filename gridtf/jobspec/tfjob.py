"""From a TFJob of Kubeflow's training operator to a job file. Pure.

The fields are those of kubeflow.org/v1 TFJob and, in its templates, of Kubernetes' PodSpec and Container.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gridtf.errors import UsageError
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.synonyms import found, rows
from gridtf.jobspec.tasktypes import LEADERS, TASK_TYPES
from gridtf.text import toml, toml_key
from gridtf.values import Value, grouped

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE][0-9]+)?)(m|[kMGTPE]|[KMGTPE]i)?")
_FACTORS = {"m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_FACTORS |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)}


class _Note(Value):
    """What has no counterpart: a field, the task type or the table that has it, and what to do."""

    field: str
    place: str
    text: str


class Converted(Value):
    """A TFJob as a job file.

    Attributes:
        text: The job file, in TOML.
        notes: What has no counterpart in it, one line each, with the path of the field.
    """

    text: str
    notes: tuple[str, ...]


def convert(documents: Sequence[Any], source: str) -> Converted:
    """Translate a manifest.

    Args:
        documents: The documents of a YAML file, as plain values.
        source: Name of the file, for messages and the first line.

    Raises:
        UsageError: When there is not exactly one TFJob, or a field has a value that cannot be.
    """
    jobs = [document for document in documents if isinstance(document, Mapping) and document.get("kind") == "TFJob"]
    if len(jobs) != 1:
        kinds = [str(document.get("kind")) for document in documents if isinstance(document, Mapping)]
        found = f"it has {' and '.join(kinds)}" if kinds else "it has no Kubernetes object"
        raise UsageError(f"{source}: one TFJob is expected", why=f"{len(jobs)} were found: {found}")
    notes: list[_Note] = []
    try:
        data = _job(jobs[0], notes)
        JobSpec.from_dict(data)
    except UsageError as error:
        raise UsageError(f"{source}: {error.what}", why=error.why, hint=error.hint) from None
    return Converted(
        f"# From the TFJob in {source}; gridtf render shows what it comes to\n{_toml(data)}", tuple(_lines(notes))
    )


def _lines(notes: Sequence[_Note]) -> Iterator[str]:
    """A line for each field, however many task types have it."""
    for (field, text), where in grouped(((note.field, note.text), note.place) for note in notes).items():
        yield f"{field} of {' and '.join(dict.fromkeys(where))}: {text}"


def _job(manifest: Mapping[str, Any], notes: list[_Note]) -> dict[str, Any]:
    spec = _table(manifest, "spec", "")
    replicas = {name: _table(table, "", path) for name, table, path in _replicas(spec)}
    if not replicas:
        raise UsageError("spec.tfReplicaSpecs has no task type")
    types = {name: _task(name, table, notes) for name, table in replicas.items()}
    data: dict[str, Any] = {}
    if name := re.sub(r"[^A-Za-z0-9_.+=-]", "-", str(_table(manifest, "metadata", "").get("name", ""))):
        data["name"] = name
    policy = _table(spec, "runPolicy", "spec.")
    if seconds := policy.get("activeDeadlineSeconds"):
        data["time"] = f"{_whole(seconds, 'spec.runPolicy.activeDeadlineSeconds')}s"
    # Where no type may start again, which is TFJob's default, the number of times means nothing.
    if (limit := policy.get("backoffLimit")) and any(map(_restarted, replicas.values())):
        data["restarts"] = _whole(limit, "spec.runPolicy.backoffLimit")
    # TFJob's default: the chief, or worker 0 without one, decides
    data["success_policy"] = "all" if spec.get("successPolicy") == "AllWorkers" else "chief"
    _unused(spec, {"tfReplicaSpecs", "runPolicy", "successPolicy"}, "spec", notes)
    _unused(policy, {"activeDeadlineSeconds", "backoffLimit"}, "spec.runPolicy", notes)
    chdirs = {str(made.pop("chdir")) for made in types.values() if "chdir" in made}
    if len(chdirs) == 1:
        data["chdir"] = chdirs.pop()
    elif chdirs:
        notes.append(_Note("workingDir", "the task types", f"a job has one chdir, not {' and '.join(sorted(chdirs))}"))
    images = {name: made.pop("image", "") for name, made in types.items()}
    lead = images[_lead(types)]
    if lead:
        data["container"] = lead
    notes += (
        _Note("image", name, found("image", rows("tfjob"))) for name, image in images.items() if image not in ("", lead)
    )
    return {**data, **_shared(types)}


def _restarted(replica: Mapping[str, Any]) -> bool:
    return bool(replica.get("restartPolicy", "Never") != "Never")


def _replicas(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    for name, table in _table(spec, "tfReplicaSpecs", "spec.").items():
        path = f"spec.tfReplicaSpecs.{name}"
        if name.lower() not in TASK_TYPES:
            raise UsageError(f"{path}: unknown task type", hint=f"known: {', '.join(TASK_TYPES)}")
        yield name.lower(), table, path


def _task(task_type: str, replica: Mapping[str, Any], notes: list[_Note]) -> dict[str, Any]:
    """The table of a task type, with all that may turn out to be the job's."""
    path = f"tfReplicaSpecs.{task_type}"
    once = () if _restarted(replica) else ("restartPolicy",)
    _unused(replica, {"replicas", "template", *once}, task_type, notes)
    pod = _table(_table(replica, "template", f"{path}."), "spec", f"{path}.template.")
    containers = [_table(container, "", path) for container in pod.get("containers", ())]
    main = next((one for one in containers if one.get("name") == "tensorflow"), containers[0] if containers else {})
    _unused(pod, {"containers"}, task_type, notes)
    _unused(main, {"command", "args", "env", "image", "workingDir", "resources"}, task_type, notes)
    if len(containers) > 1:
        notes.append(_Note("containers", task_type, f"only {main.get('name')} is taken"))
    made: dict[str, Any] = {"count": _whole(replica.get("replicas", 1), f"{path}.replicas")}
    if "workingDir" in main:
        made["chdir"] = main["workingDir"]
    if "image" in main:
        made["image"] = f"docker://{main['image']}"
    made["command"] = [str(word) for word in (*(main.get("command") or ()), *(main.get("args") or ()))]
    if not main.get("command"):
        notes.append(_Note("command", task_type, "the image has it, which is not known here: complete command"))
    if any("$(" in word for word in made["command"]):
        text = 'Kubernetes expands $(NAME), gridtf does not: run bash -c with "$NAME" in its line'
        notes.append(_Note("command", task_type, text))
    made["env"] = dict(_variables(main.get("env") or (), task_type, notes))
    resources = _table(main, "resources", f"{path}.")
    limits = {**_table(resources, "requests", path), **_table(resources, "limits", path)}
    for key, value in limits.items():
        if key == "cpu":
            made["cpus"] = max(1, math.ceil(_quantity(value, f"{path}.cpu")))
        elif key == "memory":
            made["mem"] = f"{max(1, math.ceil(_quantity(value, f'{path}.memory') / 2**20))}M"
        elif key.endswith("/gpu") and not TASK_TYPES[task_type].takes_gpu:
            notes.append(_Note(key, task_type, "its tasks have no GPU"))
        elif key.endswith("/gpu"):
            made["gpus"] = math.ceil(_quantity(value, f"{path}.{key}"))
        else:
            notes.append(_Note(key, task_type, "an option of the scheduler in native may request it"))
    return made


def _variables(entries: Sequence[Any], task_type: str, notes: list[_Note]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        name = str(_table(entry, "", f"tfReplicaSpecs.{task_type}.env").get("name", ""))
        if "valueFrom" in entry:
            notes.append(
                _Note(f"env {name}", task_type, f"Kubernetes has its value: set it, and submit with --env {name}")
            )
        else:
            yield name, str(entry.get("value", ""))


def _lead(types: Mapping[str, object]) -> str:
    """The first type that trains."""
    return next(name for name in (*LEADERS, "worker", *types) if name in types)


def _shared(types: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The keys of the job: what the first type that trains has is the job's, what differs stays in a type's table."""
    lead = types[_lead(types)]
    job: dict[str, Any] = {"command": lead["command"]}
    common = {"gpus_per_task": lead.get("gpus"), "cpus_per_task": lead.get("cpus"), "mem_per_task": lead.get("mem")}
    job |= {key: value for key, value in common.items() if value}
    env = {key: value for key, value in lead["env"].items() if all(t["env"].get(key) == value for t in types.values())}
    if env:
        job["env"] = env
    tasks: dict[str, dict[str, Any]] = {}
    for name, made in types.items():
        table = {"count": made["count"]}
        table |= {key: made[key] for key in ("command", "cpus", "mem") if key in made and made[key] != lead.get(key)}
        if made.get("gpus") != lead.get("gpus") and TASK_TYPES[name].takes_gpu:
            table["gpus"] = made.get("gpus", 0)
        if own := {key: value for key, value in made["env"].items() if key not in env}:
            table["env"] = own
        tasks[name] = {key: value for key, value in table.items() if value or key in ("count", "gpus")}
    return {**job, "tasks": tasks}


def _unused(table: Mapping[str, Any], used: set[str], place: str, notes: list[_Note]) -> None:
    for key in table:
        text = found(key, rows("tfjob"))
        if key not in used and text != "":
            notes.append(_Note(key, place, text or "no counterpart"))


def _table(value: Any, key: str, path: str) -> Mapping[str, Any]:
    """value[key], or value where key is empty: a table; an empty one where it is not there."""
    found = (value.get(key) if key else value) or {}
    if not isinstance(found, Mapping):
        raise UsageError(f"{path}{key} is not a table")
    return found


def _whole(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{path}: {value!r} is not a whole number")
    return value


def _quantity(value: Any, path: str) -> float:
    """A quantity of Kubernetes, such as ``500m``, ``2``, ``4Gi``."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise UsageError(f"{path}: {value!r} is not a quantity", hint="such as 2, 500m or 4Gi")
    return float(match[1]) * _FACTORS[match[2] or ""]


def _toml(data: Mapping[str, Any]) -> str:
    lines = [f"{toml_key(key)} = {toml(value)}" for key, value in data.items() if not isinstance(value, Mapping)]
    tables = [(["env"], data.get("env", {}))] + [(["tasks", name], table) for name, table in data["tasks"].items()]
    for path, table in tables:
        if table:
            plain = [f"{toml_key(key)} = {toml(value)}" for key, value in table.items()]
            lines += ["", f"[{'.'.join(map(toml_key, path))}]", *plain]
    return "\n".join(lines) + "\n"
