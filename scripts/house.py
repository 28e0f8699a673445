"""Prints how large the rooms of gridtf are, and what a launch loads, opens, forks and says.

    python scripts/house.py [TREE]    of this checkout, or of another tree of gridtf

A code line is one that is neither blank nor a comment nor in a docstring. A launch is that of a job of two tasks on
this host, without options; the agent is a child of the launcher there, and what it loads comes on top.
"""

from __future__ import annotations

import ast
import io
import os
import signal
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = ("jobspec", "login", "schedulers", "bootstrap", "run", "host", "observe", "cli")
OF_A_JOB = ("bootstrap/launcher", "bootstrap/agent", "bootstrap/judge")
# What a process of its own imports first.
FIRST = {"agent": "agent.node, gridtf.bootstrap.agent.agent", "launcher": "main, gridtf.bootstrap.launcher.launcher"}
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_CODE = (".py", ".pyc", ".so")
# Says which process has done what, in the launcher and in all processes that it forks.
_COUNT = """
import os, sys

to = int(os.environ.pop("COUNT_TO"))

def note(what, about):
    os.write(to, f"{os.getpid()} {what} {about}\\n".encode(errors="replace"))

def heard(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        note("open", os.fsdecode(arguments[0]))
    elif event == "os.fork":
        note("fork", "")

sys.addaudithook(heard)
from gridtf.bootstrap import main
from gridtf.bootstrap.wire import messages

encoded = messages.encoded

def said(kind, content):
    note("said", kind)
    return encoded(kind, content)

messages.encoded = said
sys.exit(main.main(["run", "--scheduler", "local", *sys.argv[1:]]))
"""


def code_lines(path: Path) -> int:
    """How many code lines a file has."""
    text = path.read_text(encoding="utf-8")
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docs.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = [range(token.start[0], token.end[0] + 1) for token in tokens if token.type not in _NO_CODE]
    return len({number for one in lines for number in one} - docs)


def size(*folders: Path) -> tuple[int, int]:
    """The code lines of folders, and their files without __init__."""
    files = [file for folder in folders for file in folder.rglob("*.py")]
    return sum(map(code_lines, files)), sum(file.name != "__init__.py" for file in files)


class Launch:
    """What the processes of a launch have done.

    Args:
        tree: The folder with gridtf.

    Attributes:
        modules: Modules of gridtf that were loaded, of ``launcher`` and ``agent``.
        files: Other files that were opened, but for those of the kernel.
        forks: Processes that were forked.
        said: Kind of a message -> how many were sent.
    """

    def __init__(self, tree: Path) -> None:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
            argv = [sys.executable, "-S", "-c", _COUNT, "--workers", "2", "--", "true"]
            own = {"PATH": os.environ["PATH"], "HOME": folder, "PYTHONPATH": str(tree), "COUNT_TO": str(log.fileno())}
            subprocess.run(
                argv, cwd=folder, env=own, pass_fds=[log.fileno()], check=True, capture_output=True, timeout=300
            )
            log.seek(0)
            events = [line.split(" ", 2) for line in log.read().decode().splitlines()]
        pids = dict.fromkeys(pid for pid, _, _ in events)
        agents = [pid for pid, what, about in events if (what, about) == ("said", "hello")]
        of = {"launcher": next(iter(pids)), "agent": agents[0]}
        opened = {who: [about for pid, what, about in events if (pid, what) == (of[who], "open")] for who in of}
        own_code = f"{tree}/gridtf/"
        self.modules = {
            who: sum(name.startswith(own_code) for name in names if name.endswith(_CODE))
            for who, names in opened.items()
        }
        kernel = ("/proc", "/sys", "/dev")
        self.files = {
            who: sum(not name.startswith(kernel) and not name.endswith(_CODE) for name in names)
            for who, names in opened.items()
        }
        self.forks = {who: sum((pid, what) == (of[who], "fork") for pid, what, _ in events) for who in of}
        self.said = {
            who: Counter(about for pid, what, about in events if (pid, what) == (of[who], "said")) for who in of
        }


def loaded(tree: Path, who: str) -> int:
    """How many modules of gridtf an agent or a launcher loads before it does anything."""
    code = f"import sys, gridtf.bootstrap.{FIRST[who]}; print(sum(name.startswith('gridtf') for name in sys.modules))"
    argv = [sys.executable, "-S", "-c", code]
    return int(subprocess.run(argv, cwd=tree, check=True, capture_output=True, text=True).stdout)


def rows(tree: Path) -> Iterator[tuple[str, str]]:
    """What is printed: name, number."""
    package = tree / "gridtf"
    lines, files = size(package)
    yield "gridtf", f"{lines:,} code lines in {files} files"
    lines, files = size(*(package / room for room in CORE))
    yield "the core", f"{lines:,} in {files}"
    for room in OF_A_JOB:
        lines, files = size(package / room)
        yield room, f"{lines:,} in {files}"
    _, files = size(*(package / room for room in OF_A_JOB))
    yield "these three", f"{files} files"
    for room in sorted(path.name for path in package.iterdir() if path.is_dir() and path.name not in CORE):
        lines, files = size(package / room)
        if lines:
            yield room, f"{lines:,} in {files}"
    for who in FIRST:
        yield f"loads first: {who}", f"{loaded(tree, who)} modules"
    launch = Launch(tree)
    for who in launch.modules:
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(launch.said[who].items()))
        yield (
            f"a launch: {who}",
            f"{launch.modules[who]} modules, {launch.files[who]} files, {launch.forks[who]} forks; {said}",
        )


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads may end before
    for name, number in rows(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT):
        print(f"{name:22} {number}")
