"""Pictures for the documents, made from the records of a run, whether it goes on or has ended:

python scripts/pictures.py monitor RUN_DIR OUT.svg
python scripts/pictures.py report RUN_DIR OUT.png
python scripts/pictures.py commands RUN_DIR OUT.svg     (of a run that goes on: of its last seconds, logs -f is shown)
"""

from __future__ import annotations

import asyncio
import io
import re
import shutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import browser
from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gridtf.errors import UsageError
from gridtf.monitor.app import Monitor
from gridtf.report import page
from gridtf.run import recordtypes
from gridtf.run.rundir import RunDir, read_record
from tests.support.terminals import live_terminal

_ENOUGH = rb"(?:\n[^\n]*){24} left\)[^\n]*\r"  # of logs -f: some lines, and the time left at the bottom
COLUMNS = 90  # of the terminal of commands
SIZE = (100, 32)  # columns and lines of a terminal
# Textual names a font on a server; without it a browser takes its own one, and a picture needs no network.
_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
WIDTH, HEIGHT = 1200, 1100  # pixels


def monitor(run: RunDir, out: Path) -> None:
    """Draw the first page of ``gridtf monitor``.

    Args:
        run: The run directory.
        out: The picture, in SVG.
    """

    async def drawn() -> str:
        app = Monitor(run, stacks=lambda _: [])
        async with app.run_test(size=SIZE) as pilot:
            while app.snapshot.reading:
                await pilot.pause(0.1)
            await pilot.pause()
            return app.export_screenshot(title=f"gridtf monitor {app.snapshot.name}")

    out.write_text(_FONT_FACE.sub("", asyncio.run(drawn())), encoding="utf-8")


def commands(run: RunDir, out: Path) -> None:
    """Draw what ``gridtf list``, ``status`` and ``logs -f`` print on a terminal.

    Args:
        run: The run directory.
        out: The picture, in SVG.
    """
    name = read_record(run.submitted, recordtypes.Submitted)["name"]  # type: ignore[index]
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    for words in (("list",), ("status", name), ("logs", "-f", "--tail", "1", name)):
        with live_terminal(*words, columns=COLUMNS) as terminal:
            seen = terminal.read_until(_ENOUGH if "-f" in words else b"\0").decode()
        shown = ""
        for part in seen.replace("\r\n", "\n").split("\r\x1b[2K"):  # the line at the bottom, and what takes its place
            shown = shown[: shown.rfind("\n") + 1] + part
        console.print(Text.from_ansi(f"\x1b[1m$\x1b[m gridtf {' '.join(words)}\n{shown.rstrip()}\n"), soft_wrap=True)
    out.write_text(_FONT_FACE.sub("", console.export_svg(title="gridtf")), encoding="utf-8")


def report(run: RunDir, out: Path) -> None:
    """Draw the beginning of what ``gridtf report`` writes.

    Args:
        run: The run directory.
        out: The picture, in PNG.

    Raises:
        UsageError: There is no Chromium.
    """
    program = shutil.which("chromium")
    if not program:
        raise UsageError("there is no chromium here", hint="install Debian's package of that name")
    with TemporaryDirectory() as folder, browser.page(program) as opened:
        file = Path(folder, "report.html")
        file.write_text(page.of_job(run, time.time()), encoding="utf-8")
        opened.show(file, WIDTH)
        out.write_bytes(opened.picture(HEIGHT))


PICTURES = {"monitor": monitor, "report": report, "commands": commands}


def main(words: list[str]) -> None:
    """Draw the picture that the words of a command line name.

    Raises:
        UsageError: For other words.
    """
    if len(words) != 3 or words[0] not in PICTURES:
        raise UsageError(f"usage: python scripts/pictures.py {'|'.join(PICTURES)} RUN_DIR OUT")
    PICTURES[words[0]](RunDir(words[1]), Path(words[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
