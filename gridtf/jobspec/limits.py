"""The limits of a site: what ``[limits]`` in its file allows and requires of a job. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gridtf.errors import SpecError
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import format_walltime, parse_walltime
from gridtf.values import Value


class Limit(Value):
    """An entry of ``[limits]``: its value, where it stands, and the id of the user whose file that is."""

    value: Any
    source: str
    owner: int | None = None


# Entry -> the key of the job that it limits, and what the job has of it; None: not known before it runs.
_MOST: dict[str, tuple[str, Callable[[JobSpec], int | None]]] = {
    "max_nodes": ("nodes", lambda spec: spec.node_range[1] + spec.spare_nodes if spec.node_range else None),
    "max_workers": ("tasks.worker.count", lambda spec: spec.count("worker")),
    "max_gpus_per_node": ("gpus_per_node", lambda spec: spec.gpus_per_node),
    "max_time": ("time", lambda spec: spec.walltime),
    "max_restarts": ("restarts", lambda spec: spec.restarts),
    "max_spare_nodes": ("spare_nodes", lambda spec: spec.spare_nodes),
}
_MAY_BE_ZERO = ("max_restarts", "max_spare_nodes")
# Of a sweep, which is made later: all elements, those that run at once, and the text for users.
OF_SWEEPS = ("max_sweep", "max_at_once", "message")
_SWITCHES = ("exec", "advise_users", "when")  # of commands
HOOKS = "hooks"  # seconds that the commands of a job's `on` may take, in place of a minute
NAMES = (*_MOST, *OF_SWEEPS, HOOKS, "require", "bad_hosts", *_SWITCHES)


def parse(name: str, value: object) -> Any:
    """Read an entry of ``[limits]``.

    Args:
        name: One of NAMES.
        value: Its value in the file.

    Returns:
        A whole number (seconds of ``max_time``), the keys of ``require`` as a tuple, the text of ``message``; whether
        ``exec``, ``advise_users`` and ``when`` are allowed; the path of ``bad_hosts``.

    Raises:
        SpecError: For a value that cannot be.
    """
    key = f"limits.{name}"
    texts = {"message": "a text for users whose job is refused", "bad_hosts": "the absolute path of a file"}
    if name in texts:
        if isinstance(value, str) and (name == "message" or value.startswith("/")):
            return value
        raise SpecError(key, f"expected {texts[name]}")
    if name in _SWITCHES:
        if isinstance(value, bool):
            return value
        raise SpecError(key, "expected true or false")
    if name == "require":
        if isinstance(value, Sequence) and all(isinstance(word, str) for word in value) and not isinstance(value, str):
            return tuple(value)
        raise SpecError(key, "expected a list of keys", hint='such as require = ["account", "time"]')
    if name == "max_time" and isinstance(value, str | int) and not isinstance(value, bool):
        try:
            return parse_walltime(value)
        except ValueError as error:
            raise SpecError(key, str(error)) from None
    least = 0 if name in _MAY_BE_ZERO else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SpecError(key, f"{value!r} is not a whole number{'' if least == 0 else ' above 0'}")
    return value


def check(spec: JobSpec, sources: Mapping[str, str], limits: Mapping[str, Limit]) -> None:
    """Check a job against the site's limits.

    Args:
        spec: The job.
        sources: Dotted key -> source, as in config.Configured.
        limits: Name -> limit, as parsed.

    Raises:
        SpecError: For the first limit that the job exceeds, or the first required key that it lacks.
    """
    advice = str(limits["message"].value) if "message" in limits else ""
    made = spec.with_gpus_per_node
    for name, (key, requested) in _MOST.items():
        count = requested(made)
        if made is not spec and getattr(spec, key, "") is None:  # computed from it
            key = "gpus"
        if name in limits and count is not None and count > limits[name].value:
            most, shown = limits[name].value, str(count)
            if name == "max_time":
                most, shown = format_walltime(most), format_walltime(count)
            why = f"{limits[name].source}: {name} = {most}"
            raise SpecError(key, f"{shown} requested, the site allows {most}", why=why, hint=advice)
    if "require" in limits:
        for key in limits["require"].value:
            if not any(source == key or source.startswith(f"{key}.") for source in sources):
                why = f"{limits['require'].source}: require"
                raise SpecError(key, "the site requires a value", why=why, hint=advice)
