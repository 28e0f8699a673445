"""The rows of the monitor's tables: what each task and each host of a job does and uses. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gridtf.monitor.history import Use
from gridtf.monitor.lines import one_line
from gridtf.monitor.table import Cell, Column, Row
from gridtf.observe.gpus import mean_use
from gridtf.states import style_of
from gridtf.text import duration, short_size

if TYPE_CHECKING:
    from gridtf.monitor.snapshot import Snapshot
    from gridtf.observe.views import HostView, TaskView

TASKS = (
    Column("TASK", 0, number=False),
    Column("HOST", 6, number=False),
    Column("STATE", 1, least=9, number=False),
    Column("EXIT", 2, number=False),
    Column("RESTARTS", 9),
    Column("STEP", 3, least=7),
    Column("RATE", 4, least=6),
    Column("CPU", 5, least=5),
    Column("MEMORY", 7),
    Column("GPU", 8, least=5, top=100.0),
    Column("READ", 10),
    Column("WRITTEN", 11),
)
HOSTS = (
    Column("HOST", 0, number=False),
    Column("TASKS", 7),
    Column("SAMPLE", 1, least=12, number=False),
    Column("CPUS", 6),
    Column("CPU", 2, least=5),
    Column("MEMORY", 3, least=11),
    Column("GPU", 4, least=5, top=100.0),
    Column("POWER", 8),
    Column("RECEIVED", 9),
    Column("SENT", 10),
)
_LATE = 60.0  # seconds after which a host's newest sample is marked: they come every 5 s, of many hosts less often


def tasks(snapshot: Snapshot) -> list[Row]:
    """A row for each task, in the order of the plan."""
    view = snapshot.view
    if view is None:
        return []
    devices = {host.name: host.sample["gpus"] for host in view.hosts if host.sample}
    return [
        Row(task.name, _task(place, task, devices, snapshot.recent.get(task.name, ())))
        for place, task in enumerate(view.tasks)
    ]


def hosts(snapshot: Snapshot) -> list[Row]:
    """A row for each host, in the order of the plan."""
    view = snapshot.view
    if view is None:
        return []
    clock = None if view.finished else snapshot.clock
    return [
        Row(host.name, _host(place, host, clock, snapshot.recent.get(host.name, ())))
        for place, host in enumerate(view.hosts)
    ]


def _task(
    place: int, task: TaskView, devices: Mapping[str, Mapping[str, Any]], recent: tuple[Use, ...]
) -> dict[str, Cell]:
    exit_text = task.signal or ("" if task.exit is None else str(task.exit))
    cells = {
        "TASK": _word(task.name, place),
        "HOST": _word(task.host or "-", task.host),
        "STATE": _word(task.state, task.state, style_of(task.state)),
        **({"EXIT": _word(exit_text, exit_text)} if exit_text else {}),
        **({"RESTARTS": Cell(str(task.restarts), task.restarts)} if task.restarts else {}),
    }
    sample, progress = task.sample or {}, task.progress or {}
    step, rate = progress.get("step", sample.get("step")), sample.get("rate")
    if step is not None:
        cells["STEP"] = Cell(str(step), step)
    if rate is not None:
        cells["RATE"] = Cell(f"{rate:.3g}/s", rate)
    if sample:
        cells["CPU"] = Cell(f"{sample['cpu']:.1f}", sample["cpu"], trend=tuple(use.cpu for use in recent))
        cells["MEMORY"] = Cell(short_size(sample["memory"]), sample["memory"])
        for title, key in (("READ", "read"), ("WRITTEN", "written")):
            cells[title] = Cell(f"{short_size(sample[key])}/s", sample[key])
    return cells | _gpu(mean_use(devices.get(task.host or "", {}), task.gpus), recent)


def _host(place: int, host: HostView, clock: float | None, recent: tuple[Use, ...]) -> dict[str, Cell]:
    cells = {"HOST": _word(host.name, place), "TASKS": Cell(str(len(host.tasks)), len(host.tasks))}
    sample = host.sample
    if sample is None:
        return cells | {"SAMPLE": Cell("none", float("inf"), "bad")}
    age = 0.0 if clock is None else max(0.0, clock - sample["time"])
    old = f"{duration(age)} ago" if clock is not None else "the last"
    used, total = sample["memory"], sample["memory_total"]
    cells |= {
        "SAMPLE": Cell(old, age, "bad" if age > _LATE else ""),
        "CPUS": Cell(str(sample["cpus"]), sample["cpus"]),
        "CPU": Cell(f"{sample['cpu']:.1f}", sample["cpu"], trend=tuple(use.cpu for use in recent)),
        "MEMORY": Cell(f"{short_size(used)}/{short_size(total)}", used),
        "RECEIVED": Cell(f"{short_size(sample['received'])}/s", sample["received"]),
        "SENT": Cell(f"{short_size(sample['sent'])}/s", sample["sent"]),
    }
    devices = sample["gpus"]
    if power := sum(device.get("power", 0.0) for device in devices.values()):
        cells["POWER"] = Cell(f"{power:.0f} W", power)
    return cells | _gpu(mean_use(devices, devices), recent)


def _gpu(use: float | None, recent: tuple[Use, ...]) -> dict[str, Cell]:
    return {} if use is None else {"GPU": Cell(f"{use:.0f} %", use, trend=tuple(one.gpu for one in recent))}


def _word(text: str, key: float | str | None, style: str = "") -> Cell:
    return Cell(one_line(text), key, style)
