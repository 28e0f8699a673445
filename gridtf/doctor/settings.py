"""The settings that a site needs as a commented TOML file. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from gridtf.findings import Setting
from gridtf.text import plain, toml_key

_WIDTH = 100
_PROFILE = (
    Setting("nodes", 1, "for jobs with --profile test", "profiles.test", example=True),
    Setting("time", "10m", "", "profiles.test", example=True),
)
_LIMITS = (
    Setting(
        "max_nodes", 16, "what the site allows and requires of a job; only in the site's file", "limits", example=True
    ),
    Setting("max_time", "2-00:00:00", "", "limits", example=True),
)
_OWN = ("account", "setup")  # keys whose values are those of this user
_FENCE = Setting(
    "fence", "auto", "TensorFlow's ports take orders from whoever connects: other users of shared hosts are kept out"
)


def for_all(settings: Iterable[Setting]) -> tuple[Setting, ...]:
    """The settings for a file for all users: those of this user alone become examples, and users are kept apart."""
    own = (setting.replace(example=setting.example or setting.key in _OWN) for setting in settings)
    return (*own, _FENCE)


def text(settings: Iterable[Setting], about: str, *, limits: bool = False) -> str:
    """Write settings as a site's or user's file.

    Args:
        settings: The settings. Of two for one key the first counts, unless it is an example.
        about: What they are for, in one line.
        limits: Whether to add an example of limits, which only a site's file may have.

    Returns:
        TOML. Above each line stands why; examples are comments.
    """
    settings = [*settings, *_PROFILE, *(_LIMITS if limits else ())]
    needed: dict[tuple[str, str], Setting] = {}
    for setting in settings:
        if not setting.example:
            needed.setdefault((setting.table, setting.key), setting)
    examples = [one for one in settings if one.example and (one.table, one.key) not in needed]
    parts = [
        f"# {plain(about)}\n"
        "# A job file and options override these values; `gridtf render` shows where each value of a job comes from.\n"
    ]
    parts += [_lines(setting) for setting in needed.values() if not setting.table]
    if not any(not setting.table for setting in needed.values()):
        parts.append("# Jobs need no setting here: without one, the defaults apply.\n")
    top = [setting for setting in examples if not setting.table]
    parts.append("# Remove the # from what fits:\n")
    parts += [_lines(setting) for setting in top]
    tables = dict.fromkeys(setting.table for setting in (*needed.values(), *examples) if setting.table)
    for table in tables:
        own = [setting for setting in needed.values() if setting.table == table]
        other = [setting for setting in examples if setting.table == table]
        mark = "" if own else "# "
        comment = "".join(_comment(setting.comment) for setting in (*own, *other)[:1] if not own)
        head = ".".join(map(toml_key, table.split(".", 1)))
        lines = [_lines(setting) for setting in own] + [f"# {plain(setting.line)}\n" for setting in other]
        parts.append(f"{comment}{mark}[{head}]\n{''.join(lines)}")
    return "\n".join(parts)


def _lines(setting: Setting) -> str:
    return f"{_comment(setting.comment)}{'# ' if setting.example else ''}{setting.line}\n"


def _comment(words: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(plain(words), _WIDTH))
