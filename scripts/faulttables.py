"""Writes the tables in docs/reference.md from those of the tests: tests/faults/programs.py, exceptions.py and
hosts.py.

    python scripts/faulttables.py      after a change of a fault or of its expected first line

tests/checkout/test_faults.py compares what is there with what this makes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.faults import hosts, programs  # noqa: E402
from tests.faults.exceptions import EXCEPTIONS  # noqa: E402
from tests.faults.hosts import HostFault  # noqa: E402

PAGE = ROOT / "docs/reference.md"
_NAMES = {"local": "local", "slurm": "Slurm", "sge": "Grid Engine"}
_LONGEST = 110  # characters of a first line


def tables() -> dict[str, str]:
    """Name of a table, as in the comments around it in the page -> its lines."""
    return {
        "programs": _table(("what happens", "state", "first line"), _programs()),
        "exceptions": _table(("what happens", "the exception"), ((one.what, _code(one.line)) for one in EXCEPTIONS)),
        "processes": _of_hosts(hosts.OF_JOBS),
        "hosts": _of_hosts(hosts.OF_HOSTS),
    }


def page(text: str) -> str:
    """The page with the tables as they are now.

    Args:
        text: The page; each table is between the comments ``<!-- NAME: … -->`` and ``<!-- end of NAME -->``.
    """
    for name, table in tables().items():
        begin, end = rf"(?P<begin><!-- {name}: [^\n]*-->\n\n)", rf"(?P<end>\n<!-- end of {name} -->)"
        text, count = re.subn(
            f"{begin}.*?{end}",
            lambda match, table=table: f"{match['begin']}{table}{match['end']}",  # type: ignore[misc]
            text,
            flags=re.DOTALL,
        )
        if count != 1:
            raise SystemExit(f"{PAGE} has {count} places for the table {name}")
    return text


def _programs() -> Iterator[Sequence[str]]:
    for fault in programs.FAULTS:
        yield fault.what, fault.state, _code(fault.line)


def _of_hosts(faults: Iterable[HostFault]) -> str:
    heads = ("what happens", "scheduler", "state", "first line", "who notices it, and how the rest ends", "when")
    return _table(heads, (row for fault in faults for row in _rows(fault)))


def _rows(fault: HostFault) -> Iterator[Sequence[str]]:
    """One row for each of a fault's first lines."""
    about = (fault.what, fault.noticed, fault.after)
    for line, schedulers in _by_line(fault.lines).items():
        what, noticed, after = about
        names = "all" if len(schedulers) == len(_NAMES) else ", ".join(_NAMES[name] for name in schedulers)
        yield what, names, fault.state, _code(line), noticed, after
        about = ("", "", "")


def _by_line(lines: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for scheduler in (name for name in _NAMES if name in lines):
        found.setdefault(lines[scheduler], []).append(scheduler)
    return found


def _code(line: str) -> str:
    short = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
    return f"`{short}`"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Write the tables."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
