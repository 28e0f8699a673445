"""What differs between two runs: what was asked for, the code and the programs, where it ran, and what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any

from gridtf.errors import RunDirError
from gridtf.observe.outcome import reported
from gridtf.observe.rows import flat
from gridtf.report import figures, table
from gridtf.report.codediff import CodeDiff, code_diff, code_of
from gridtf.report.gather import Material, gather
from gridtf.report.page import masker_of, settings_of
from gridtf.run import recordtypes, reduced
from gridtf.run.reading import known
from gridtf.run.rundir import Record, RunDir
from gridtf.secrets import Masker
from gridtf.text import duration, some
from gridtf.values import Value, grouped


class Change(Value):
    """Something that differs.

    Attributes:
        name: What it is.
        first: That of the first run, as text; None where it has none, or its default.
        second: That of the second one.
        first_source: Where it came from, such as ``gridtf.toml:3``; empty where that is not known.
        second_source: Likewise.
    """

    name: str
    first: str | None
    second: str | None
    first_source: str = ""
    second_source: str = ""


class Difference(Value):
    """What differs between two runs.

    Attributes:
        runs: The state of each.
        changes: ``parameters``, ``specification``, ``code``, ``packages``, ``programs``, ``hosts``, ``outcome``,
            ``values`` -> what differs; empty where nothing does.
        unknown: Of these, those that are not known of both -> why.
        diff: That of the code.
    """

    runs: tuple[table.Row, table.Row]
    changes: Mapping[str, tuple[Change, ...]]
    unknown: Mapping[str, str]
    diff: str

    @property
    def same(self) -> bool:
        """Whether the runs are alike in all that is known, but for hosts, outcome and values."""
        return not self.diff and not any(self.changes[name] for name in ASKED)


ASKED = ("parameters", "specification", "code", "packages", "programs")
_Side = Mapping[str, tuple[str, str, Any]]  # name -> (value as it is shown, its source, what is compared)


def difference(first: RunDir, second: RunDir, names: tuple[str, str], now: float) -> Difference:
    """Compare two runs.

    Args:
        first: One.
        second: The other.
        names: What the user calls them.
        now: Seconds since the epoch.

    Raises:
        RunDirError: When a run directory cannot be listed, or a record of the code is damaged.
    """
    runs = (first, second)
    one, other = (gather(run, now) for run in runs)
    masker = masker_of(one, other)
    rows = table.row(first, one.view, now), table.row(second, other.view, now)
    code = code_diff(first, second, names) if first.path != second.path else CodeDiff()
    sides = [_sides(run, material, masker, now) for run, material in zip(runs, (one, other), strict=True)]
    changes: dict[str, tuple[Change, ...]] = {}
    unknown: dict[str, str] = {}
    for name, (side, its) in {name: (sides[0][name], sides[1][name]) for name in sides[0]}.items():
        changes[name] = () if side is None or its is None else _changes(side, its)
        if missing := [typed for typed, known in zip(names, (side, its), strict=True) if known is None]:
            unknown[name] = f"that of {' and '.join(missing)} is missing, or only its owner may read it"
    if code.unknown:
        unknown["code"] = code.unknown
    return Difference(rows, changes, unknown, masker.text(code.text))


def _sides(run: RunDir, material: Material, masker: Masker, now: float) -> dict[str, _Side | None]:
    """What is known of a run, for each part; None where that is nothing."""
    given = {key: value for key, _, value in flat(material.spec)}
    settings = {one.key: (one.value, one.source, given[one.key]) for one in settings_of(material, masker)}
    params = {key.removeprefix(table.PARAMS): item for key, item in settings.items() if key.startswith(table.PARAMS)}
    aside = ("run_root",)  # where it is recorded, which rerun writes down: it changes nothing that runs
    rest = {key: item for key, item in settings.items() if not key.startswith((table.PARAMS, *aside))}
    code = code_of(run)
    said = {name: code.get(name) for name in ("commit", "branch", "remote")}
    if code.get("commit"):
        said["not committed"] = "changes" if code.get("dirty") else "nothing"
    hosts = [*dict.fromkeys(host for host in material.tasks.values() if host)]
    gpus = sum(map(len, material.gpus.values()))
    seconds = table.ran(material.view, now)
    outcome = {
        "state": material.view.state,
        "reason": material.view.reason,
        "attempts": len(material.attempts) or None,
        "ran for": None if seconds is None else duration(seconds),
        "exit code": material.view.exit_code,
    }
    values = {
        name: f"{one.last:.6g} at step {one.step} ({one.least:.6g} to {one.most:.6g})"
        for name, one in reported(run).items()
    }
    return {
        "parameters": params if material.spec else None,
        "specification": rest if material.spec else None,
        "code": _plain(said, masker),
        "packages": _plain(packages, masker) if (packages := _packages(run)) else None,
        "programs": _plain({name: text for name, text in figures.versions(material) if name != figures.CODE}, masker),
        "hosts": _plain({"hosts": some(hosts, most=64), "tasks": len(material.tasks), "GPUs": gpus}, masker),
        "outcome": _plain(outcome, masker),
        "values": _plain(values, masker),
    }


def _packages(run: RunDir) -> dict[str, str]:
    """The Python of the tasks, and the packages there, with their versions."""
    pythons: Collection[Record] = ()
    with contextlib.suppress(RunDirError), reduced.unpacked(run) as place:  # of an element of a sweep
        if latest := place.latest():
            pythons = known(latest.packages, recordtypes.Packages).get("pythons", {}).values()
    each = ({"Python": f"{one['version']} ({one['python']})", **one["packages"]} for one in pythons)
    found = grouped(item for everything in each for item in everything.items())
    return {name: ", ".join(dict.fromkeys(versions)) for name, versions in found.items()}


def _plain(values: Mapping[str, Any], masker: Masker) -> _Side:
    return {
        name: (masker.text(str(value)), "", str(value)) for name, value in values.items() if value not in (None, "")
    }


def _changes(first: _Side, second: _Side) -> tuple[Change, ...]:
    made = []
    for name in dict.fromkeys([*first, *second]):
        one, other = (side.get(name, (None, "", None)) for side in (first, second))
        if one[2] != other[2]:
            made.append(Change(name, one[0], other[0], one[1], other[1]))
    return tuple(made)
