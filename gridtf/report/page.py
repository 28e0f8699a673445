"""The pages: everything about one job, or two jobs beside each other, as HTML from gridtf's own templates."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2

from gridtf import __version__, resources
from gridtf.observe.eventwords import outcome
from gridtf.report import charts, compare, figures, pictures, timeline
from gridtf.report.drawing import time_axis
from gridtf.report.gather import Material, gather
from gridtf.run.rundir import RunDir
from gridtf.secrets import MASK, Masker, given
from gridtf.states import TaskState
from gridtf.text import duration, plain, size, toml
from gridtf.values import Value

_FOLDER = "report"  # of the templates
_MOST_EVENTS = 400
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
    settings = [settings_of(material, masker_of(material)) for material in both]
    differing, same = compare.settings(*({row.key: row.value for row in rows} for rows in settings))
    return _render(
        "compare.html.j2",
        masker_of(*both),
        title=" and ".join(heading(material) for material in both),
        runs=[_identity(material) for material in both],
        differing=differing,
        same=same,
        hidden=[not material.spec for material in both],
        figures=compare.figures(*(figures.figures(material) for material in both)),
        by_step=compare.by_step(*both),
        by_time=compare.by_time(*both),
        made=clock(now),
    )


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
    for key, name, value in _flat(material.spec):
        shown = masker.value(name, value)
        text = _joined(shown) if name in ("command", "container_command") and isinstance(shown, list) else _text(shown)
        source = sources.get(key) or sources.get(key.partition(".")[0]) or ""
        made.append(Setting(key, text, source, MASK in text))
    return made


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """(dotted key, last part of it, value) of a table and the tables in it."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(key), value


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
        "events": _events(material)[-_MOST_EVENTS:],
        "events_in_all": sum(len(told.events) for told in material.told),
        "charts": _charts(material),
        "samples": usage.samples,
        "odd": [(name, *told) for name, told in usage.odd.items()],
        "places": places[:_MOST_PLACES],
        "more_places": places[_MOST_PLACES:],
        "hours": figures.hours(material),
        "resources": figures.requested(material),
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
