"""Only gridtf/host/interpreter.py starts a Python: another way could run a module of the current folder."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gridtf"
STARTERS = {"isolated", "asked"}
OPTIONS = {"-c", "-m", "-I", "-S", "-E", "-P"}  # by which a Python runs a program, or finds modules
OTHER_PROGRAMS = {"bash", "/bin/sh", "sh", "qacct", "sacct", "--no-optional-locks"}  # the last is an option of git's
# Other lists of words with such an option, or that begin with an interpreter: (file, first element).
OTHERS = {
    ("bootstrap/plan/environment.py", "plan.python"),  # a task: the function of a user is called, in any folder
    ("starters/mpi/mpirun.py", "*_shell()"),  # the shell of the user
    ("starters/joined/join.py", "sys.executable"),  # no command
    ("doctor/login.py", "sys.executable"),  # the command of a job that is never submitted
    ("login/tensorboard.py", "-m"),  # words that are given to asked, or that are the command of a job
    ("login/tensorboard.py", "sys.executable"),
    ("observe/git.py", "-c"),
}


def starts(tree: ast.Module) -> Iterator[str]:
    """The first element of each list of words that seems to start a Python outside of a call of a starter."""
    allowed: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in STARTERS:
            allowed |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        words = node.elts if isinstance(node, ast.List | ast.Tuple) else []
        if id(node) in allowed or not words:
            continue
        first = ast.unparse(words[0]).strip("'\"")
        texts = {word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)}
        if first not in OTHER_PROGRAMS and (texts & OPTIONS or re.search(r"^sys\.executable$|\.python$", first)):
            yield first


def test_every_python_is_started_by_one_module() -> None:
    files = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    for tests in ("host/interpreter.py", "testing.py"):  # the latter has tests of schedulers
        del files[tests]
    assert {(name, first) for name, path in files.items() for first in starts(ast.parse(path.read_text()))} == OTHERS


def test_starts_are_found() -> None:
    code = 'a = [plan.python, "x"]\nb = (sys.executable, "-m", "x")\nc = ["python3", "-c", code]\nisolated("p", "-c")\n'
    assert [*starts(ast.parse(code))] == ["plan.python", "sys.executable", "python3"]


def test_shell_scripts_start_pythons_isolated() -> None:
    script = (ROOT / "scripts" / "gridtf-bootstrap.sh").read_text()
    started = re.findall(r'"\$(?:GRIDTF_PYTHON|python)" +(-\S+ \S+)', script)
    assert len(started) == 5
    assert {*started} == {"-I -S"}
    for template in (ROOT / "templates").rglob("*.j2"):
        assert not re.search(r"python[\w.]*[\"']? -", template.read_text()), template
