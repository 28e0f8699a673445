"""The pages: everything about one job, or two and more jobs compared, as HTML from gridtf's own templates."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2

from gridtf import __version__, resources
from gridtf.observe import jobs
from gridtf.observe.eventwords import outcome
from gridtf.observe.outcome import Reported, reported
from gridtf.observe.rows import flat
from gridtf.report import charts, compare, figures, pictures, table, timeline
from gridtf.report.advice import Advised
from gridtf.report.drawing import time_axis
from gridtf.report.gather import Material, gather
from gridtf.report.resources import lines
from gridtf.run.rundir import RunDir
from gridtf.secrets import MASK, Masker, given
from gridtf.states import TaskState
from gridtf.text import cut, duration, plain, size, some, toml
from gridtf.values import Value

_FOLDER = "report"  # of the templates
_MOST_EVENTS = 400
_MOST_COLUMNS = 8  # parameters, and values, in the table of several jobs
_LONGEST_LABEL = 48  # of a line, in columns of text
_MOST_PLACES = 96  # hosts that are shown at once


def of_job(run: RunDir, now: float, *, with_code: bool = False) -> str:
    """The page about a job.

    Args:
        run: Its run directory.
        now: Seconds since the epoch.
        with_code: Whether it shows how the code differs from its commit.

    Raises:
        RunDirError: When the run directory cannot be listed.
    """
    material = gather(run, now, with_code=with_code)
    masker = masker_of(material)
    return _render("job.html.j2", masker, **_of_job(material, masker))


def of_two(first: RunDir, second: RunDir, now: float) -> str:
    """The page that compares two jobs.

    Args:
        first: The run directory of one.
        second: That of the other.
        now: Seconds since the epoch.

    Raises:
        RunDirError: When a run directory cannot be listed.
    """
    both = gather(first, now), gather(second, now)
    one, other = ({row.key: row.value for row in settings_of(each, masker_of(each))} for each in both)
    differing = [(key, one.get(key), other.get(key)) for key in compare.differing((one, other))]
    return _render(
        "compare.html.j2",
        masker_of(*both),
        title=" and ".join(heading(material) for material in both),
        runs=[_identity(material) for material in both],
        differing=differing,
        same=[(key, value) for key, value in one.items() if other.get(key) == value],
        hidden=[not material.spec for material in both],
        figures=compare.figures(*(figures.figures(material) for material in both)),
        by_step=compare.by_step(*both),
        by_time=compare.by_time(*both),
        made=clock(now),
    )


def of_several(runs: Sequence[RunDir], now: float, told: str = "") -> str:
    """The page that compares more than two jobs.

    Args:
        runs: Their run directories, at most compare.MOST.
        now: Seconds since the epoch.
        told: What is said of the choice; empty: nothing.

    Raises:
        RunDirError: When a run directory cannot be listed.
    """
    materials = [gather(run, now, view) for run, view in zip(runs, jobs.views(runs), strict=True)]
    masker = masker_of(*materials)
    found = [_reported(run, material) for run, material in zip(runs, materials, strict=True)]
    rows = [table.row(run, one.view, now, values) for run, one, values in zip(runs, materials, found, strict=True)]
    settings = [_compared(one, row, masker) for one, row in zip(materials, rows, strict=True)]
    known = [number for number, material in enumerate(materials) if material.spec]
    differing = compare.differing([settings[number] for number in known])
    params = [key for key in differing if key.startswith(table.PARAMS)][:_MOST_COLUMNS]
    labels = [_label(number, row, settings[number], params) for number, row in enumerate(rows)]
    of_figures = [figures.figures(material)[: -3 * len(material.usage.by_step) or None] for material in materials]
    return _render(
        "several.html.j2",
        masker,
        title=f"{len(runs)} runs",
        told=told,
        unfinished=sum(not material.view.finished for material in materials),
        runs=[
            {
                **row,
                "heading": heading(material),
                "settings": {key: own.get(key) for key in params},
                "ran": "" if row.get("seconds") is None else duration(row["seconds"]),
                "hosts": some(row["hosts"].split(), most=4),
                **{f"{unit}s": _hours(row.get(f"{unit}_seconds")) for unit in ("cpu", "gpu")},
                "reported": values,
            }
            for material, row, own, values in zip(materials, rows, settings, found, strict=True)
        ],
        params=params,
        gpus=any(row.get("gpu_seconds") for row in rows),
        names=[*dict.fromkeys(name for values in found for name in values)][:_MOST_COLUMNS],
        differing=[
            (key, [(value, _places(known[number] for number in numbers)) for value, numbers in values.items()])
            for key, values in differing.items()
            if key not in (*params, "name")
        ],
        hidden=_places(number for number in range(len(runs)) if number not in known),
        figures=[
            (texts[0].name, [figure.text for figure in texts])
            for texts in zip(*of_figures, strict=True)
            if any(figure.number is not None for figure in texts)
        ],
        by_step=compare.by_step(*materials, labels=labels),
        by_time=compare.by_time(*materials, labels=labels),
        many=len(runs) if len(runs) > compare.MOST_AREAS else 0,
        made=clock(now),
    )


def _reported(run: RunDir, material: Material) -> dict[str, Reported]:
    """The values of a job; of an element of a sweep that is reduced to few files, what it has kept."""
    steps = max((step for _, step in material.usage.steps.values()), default=None)
    read = {
        name: Reported(curve.last, curve.low, curve.high, steps)
        for name, curve in material.usage.by_step.items()
        if curve.last is not None and curve.low is not None and curve.high is not None
    }
    return read or reported(run)


def _compared(material: Material, row: Mapping[str, Any], masker: Masker) -> dict[str, str]:
    """The settings of a job: those of its specification, its own parameters where it is one of a sweep, its commit."""
    known = {one.key: one.value for one in settings_of(material, masker)}
    params = {key: value for key, value in row.items() if key.startswith(table.PARAMS)}
    own = {key: _text(masker.value(key.removeprefix(table.PARAMS), value)) for key, value in params.items()}
    return {**known, **own, **({"commit": row["commit"][:12]} if row.get("commit") else {})}


def _label(number: int, row: Mapping[str, Any], settings: Mapping[str, str], params: Sequence[str]) -> str:
    """What the line of a job is called: its number in the table, and its parameters or its name."""
    words = [f"{key.removeprefix(table.PARAMS)}={settings[key]}" for key in params if key in settings]
    return cut(plain(f"{number + 1}: {', '.join(words) or row['name']}"), _LONGEST_LABEL)


def _places(numbers: Iterable[int]) -> str:
    """Numbers of rows, as the table counts them."""
    return some([str(number + 1) for number in numbers], most=compare.MOST)


def _hours(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds / 3600:.3g}"


def heading(material: Material) -> str:
    """Name and id of a job."""
    view = material.view
    return f"{view.name} ({view.job_id})" if view.job_id else view.name


def clock(seconds: float) -> str:
    """A time by this machine's clock, with the name of its time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))


class Setting(Value):
    """A value of the specification.

    Attributes:
        key: Its dotted name.
        value: As text, with secrets masked.
        source: Where it came from; empty when not known.
        masked: Whether a secret was masked.
    """

    key: str
    value: str
    source: str
    masked: bool


def settings_of(material: Material, masker: Masker) -> list[Setting]:
    """The specification of a job, a row for each value that is not a default."""
    sources = material.job.get("sources", {})
    made = []
    for key, name, value in flat(material.spec):
        shown = masker.value(name, value)
        text = _joined(shown) if name in ("command", "container_command") and isinstance(shown, list) else _text(shown)
        source = sources.get(key) or sources.get(key.partition(".")[0]) or ""
        made.append(Setting(key, text, source, MASK in text))
    return made


def _joined(words: Sequence[str]) -> str:
    """Words as a shell takes them; what is masked is in no quotes."""
    return " ".join(word if MASK in word else shlex.quote(word) for word in words)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else toml(value)


def masker_of(*materials: Material) -> Masker:
    """Masks the secrets of jobs, and those that their set-up lines and commands give by name, wherever they occur."""
    tables: list[Any] = []
    for material in materials:
        setup = "\n".join(map(str, material.spec.get("setup", ())))
        for text in (setup, material.script or "", json.dumps([material.spec, material.submitted])):
            tables += given(text)
        types = material.spec.get("tasks", {})
        of_types = types.values() if isinstance(types, Mapping) else ()
        tables += [table.get("env") for table in (material.spec, *of_types) if isinstance(table, Mapping)]
    return Masker(table for table in tables if isinstance(table, Mapping))


def _identity(material: Material) -> dict[str, Any]:
    """What the head of a page says of a job."""
    view, submitted = material.view, material.submitted
    return {
        "name": heading(material),
        "state": view.state,
        "glyph": pictures.GLYPHS.get(view.state, "●"),
        "finished": view.finished,
        "reason": view.reason,
        "hint": view.hint,
        "scheduler": view.scheduler,
        "user": submitted.get("user", ""),
        "submitted": clock(submitted["time"]) if "time" in submitted else "",
        "run_dir": str(view.run_dir),
        "facts": figures.facts(material),
    }


def _of_job(material: Material, masker: Masker) -> dict[str, Any]:
    view, attempts, usage = material.view, material.attempts, material.usage
    settings = settings_of(material, masker)
    events = material.told[-1].events if material.told else ()
    # the first cause may be one of these: it had failed, and was slow to end
    stopped = {event.get("task") for event in events if event.get("state") == TaskState.STOPPED}
    hosts = [*dict.fromkeys([*(attempts[-1].hosts if attempts else ()), *material.tasks.values()])]
    places = pictures.placement([host for host in hosts if host], material.tasks, material.gpus, usage)
    return {
        "title": heading(material),
        "job": _identity(material),
        "cause": view.cause,
        "by_gridtf": (view.cause or {}).get("task", "") in stopped,
        "log": "\n".join((view.cause or {}).get("tail", ())),
        "timeline": pictures.timeline(attempts),
        "attempts": [(attempt, _phases(attempt)) for attempt in attempts],
        "slow": [
            (f"{task} on {host}", what, duration(seconds), f"{share:.0%}")
            for task, host, what, seconds, share in timeline.slow(material.told, attempts)
        ],
        "events": _events(material)[-_MOST_EVENTS:],
        "events_in_all": sum(len(told.events) for told in material.told),
        "charts": _charts(material),
        "samples": usage.samples,
        "odd": [(name, *told) for name, told in usage.odd.items()],
        "places": places[:_MOST_PLACES],
        "more_places": places[_MOST_PLACES:],
        "hours": figures.hours(material),
        "resources": lines(material.request, material.usage, material.attempts),
        "advice": "\n".join(Advised([material]).lines()),
        "settings": [row for row in settings if not row.key.startswith("env.")],
        "environment": [row for row in settings if row.key.startswith("env.")],
        "command": _joined(masker.words(material.submitted.get("command", ()))),
        "script": material.script,
        "private": "job.json" in material.hidden,
        "versions": figures.versions(material),
        "pythons": material.code.get("pythons", {}),
        "diff": material.diff,
        "hidden": material.hidden,
        "damaged": material.damaged,
        "made": clock(material.now),
    }


def _phases(attempt: timeline.Attempt) -> list[tuple[str, str]]:
    return [(phase.name, duration(phase.end - phase.begin)) for phase in attempt.phases]


def _events(material: Material) -> list[tuple[str, int, str, str]]:
    """(time, attempt, event, what about it) of all events."""
    rows = []
    for told in material.told:
        for event in told.events:
            about = [*(event.get(key) for key in ("user", "task", "host", "state")), outcome(event), event.get("text")]
            said = " · ".join(str(part) for part in about if part)
            rows.append((clock(event["time"]), told.number, event["event"], said))
    return rows


def _charts(material: Material) -> list[charts.Chart]:
    attempts, usage = material.attempts, material.usage
    if usage.begin is None:
        return []
    begin = min([usage.begin, *(attempt.allocated for attempt in attempts[:1])])
    zero = min([begin, *(attempt.begin for attempt in attempts[:1])])
    end = max([usage.end, *(attempt.end for attempt in attempts[-1:])])
    axis = time_axis(begin, end, pictures.waits(attempts[1:]), charts.LEFT, charts.RIGHT, zero)
    owners = {
        (host, index): f"{task}, GPU {index}"
        for task, host in material.tasks.items()
        for index in material.gpus.get(task, ())
    }
    names = {device: owners.get(device, f"{device[0]}, GPU {device[1]}") for device in usage.gpus}
    return charts.of_run(usage, charts.by_time(axis), names, [*material.tasks])


def _render(name: str, masker: Masker, **values: Any) -> str:
    """Fill in a template. Every text passes the masker, and control characters in it are shown as escapes."""

    def shown(value: Any) -> Any:
        if not isinstance(value, str) or hasattr(value, "__html__"):  # what gridtf has drawn is HTML already
            return value
        lines = (plain(line) for line in value.split("\n"))
        return masker.text("\n".join(lines).encode(errors="replace").decode())  # half characters become ?

    folder = resources.templates() / _FOLDER
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        finalize=shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["size"] = size
    style, script = ((folder / file).read_text(encoding="utf-8") for file in ("report.css", "report.js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    assets = {"style": style, "script": script, "policy": policy}
    return environment.get_template(name).render(values, assets=assets, version=__version__, chart=charts)


def _hash(text: str) -> str:
    """What a content security policy calls a text that a page contains."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
