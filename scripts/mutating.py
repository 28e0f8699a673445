"""Puts small faults into gridtf, one at a time, and sees whether the tests that come there notice: scripts/mutants.

There are three kinds: a condition turned round, a call left out, a number or a truth value changed. A seed draws where,
as many in each folder of gridtf. Which tests come to a fault is known from one run of those of RECORDED, in which its
place notes them, also in processes that tests start, but for those on other hosts; where none comes, SMALL_BEDS are
tried.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ("tests/unit", "tests/local", "tests/faults", "examples")
SMALL_BEDS = "tests/cluster/test_jobs.py"
_GIT = ["git"]
_LIMIT = 60.0  # seconds for the tests of one fault
_TESTS = 25.0  # of which these are chosen, by what they took when they were recorded: a fault may slow them down
_MOST_TESTS = 200
Times = dict[str, float]
_OPPOSITES = [(ast.Eq, ast.NotEq), (ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
_OPPOSITE = {**dict(_OPPOSITES), **{right: left for left, right in _OPPOSITES}}
# What a file with faults runs first in the recorded run, also where it runs without the rest of gridtf: it notes which
# test has come to the place of a fault. Processes that a test starts have its name from the environment.
_NOTING = """
def _reached(number, known=set(), os=__import__("os"), open=__import__("os").open):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if test and (number, test) not in known:
        known.add((number, test))
        try:
            file = open("{folder}/" + str(number), os.O_WRONLY | os.O_APPEND)
            os.write(file, (test + "\\n").encode())
            os.close(file)
        except OSError:
            pass
    return True
"""
_PLUGIN = """
import json, os, time
import pytest
_took, _failed = {}, set()
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    begin = time.monotonic()
    try:
        return (yield)
    finally:
        _took[item.nodeid] = time.monotonic() - begin
def pytest_runtest_logreport(report):
    _failed.update([report.nodeid] * report.failed)
def pytest_sessionfinish():
    for test in _failed:  # it would also fail with a fault
        _took.pop(test, None)
    with open(os.environ["MUTANTS_TOOK"] + f"/took-{os.getpid()}.json", "w") as file:
        json.dump(_took, file)
"""


@dataclass(frozen=True)
class Mutant:
    """A fault: what stands where in a file, as bytes, and what takes its place."""

    file: str
    line: int
    column: int
    kind: str
    begin: int
    end: int
    new: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.kind}"

    def text(self) -> str:
        """The file with the fault."""
        whole = (ROOT / self.file).read_bytes()
        return (whole[: self.begin] + f"({self.new})".encode() + whole[self.end :]).decode()

    def is_one(self) -> bool:
        """Whether it can be put there: the parts of an f-string have no place of their own in Python 3.11."""
        try:
            return ast.dump(ast.parse(self.text())) != ast.dump(ast.parse((ROOT / self.file).read_bytes()))
        except SyntaxError:
            return False


class Turned(ast.NodeVisitor):
    """Finds the places of a file where a fault can be put."""

    def __init__(self) -> None:
        self.found: list[tuple[str, ast.expr, str]] = []  # kind, what is replaced, by what

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self._turn(node.test)
            self.generic_visit(node)

    visit_While = visit_IfExp = visit_If

    def _turn(self, test: ast.expr) -> None:
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            other = ast.Compare(test.left, [_OPPOSITE[type(test.ops[0])]()], test.comparators)
            self.found.append(("condition turned round", test, ast.unparse(other)))
        else:
            self.found.append(("condition turned round", test, f"not ({ast.unparse(test)})"))

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and "super()" not in ast.unparse(node.value):
            self.found.append(("call left out", node.value, "None"))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.found.append(("constant changed", node, str(not node.value)))
        elif isinstance(node.value, int | float):
            self.found.append(("constant changed", node, repr(node.value + 1)))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)


def places(file: Path) -> list[Mutant]:
    """All places of a file where a fault may be put."""
    text, visitor = file.read_bytes(), Turned()
    visitor.visit(ast.parse(text))
    name, begins = str(file.relative_to(ROOT)), _begins(text)
    return [
        Mutant(name, node.lineno, node.col_offset, kind, *_place(node, begins), new)
        for kind, node, new in visitor.found
    ]


def _begins(text: bytes) -> list[int]:
    """Where each line begins."""
    return [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]


def _place(node: ast.expr | ast.stmt, begins: Sequence[int]) -> tuple[int, int]:
    """Where it begins and ends."""
    end = begins[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    return begins[node.lineno - 1] + node.col_offset, end


def drawn(seed: int, count: int) -> list[Mutant]:
    """Faults of all folders of gridtf in turn, until there are enough; of each, kinds are drawn before places."""
    draw = random.Random(seed)
    rooms: dict[str, list[Mutant]] = defaultdict(list)
    for file in sorted((ROOT / "gridtf").rglob("*.py")):
        parts = file.relative_to(ROOT / "gridtf").parts
        rooms[parts[0] if parts[1:] else "."] += places(file)
    chosen: list[Mutant] = []
    while len(chosen) < count:
        for room in sorted(rooms):
            kinds = sorted({mutant.kind for mutant in rooms[room]})
            if kinds and len(chosen) < count:
                kind = draw.choice(kinds)
                mutant = draw.choice([one for one in rooms[room] if one.kind == kind])
                rooms[room].remove(mutant)
                chosen += [mutant] * mutant.is_one()
    return chosen


@contextlib.contextmanager
def checkout(tests: str) -> Iterator[Path]:
    """A copy of this checkout, as it is but for what git ignores, with the tests of a commit."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder, "gridtf")
        subprocess.run([*_GIT, "clone", "-q", str(ROOT), str(copy)], check=True)
        listing = [*_GIT, "-C", str(ROOT), "ls-files", "-coz", "--exclude-standard"]
        listed = subprocess.run(listing, capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file() and not (tests and name.startswith("tests/")):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        if tests:
            subprocess.run([*_GIT, "-C", str(copy), "checkout", "-q", tests, "--", "tests"], check=True)
        yield copy


def pytest(
    copy: Path,
    *arguments: str,
    seconds: float | None = None,
    shown: bool = False,
    environ: Mapping[str, str] | None = None,
) -> int | None:
    """The exit code of pytest in the copy; None where it takes longer. shown: its output is.

    It is asked to end by SIGINT, which ends the jobs of tests, also when this process is to end.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    env = {**os.environ, "PYTHONPATH": str(copy), **(environ or {})}
    output = None if shown else subprocess.DEVNULL
    with subprocess.Popen(command, cwd=copy, env=env, stdout=output, stderr=output, start_new_session=True) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def marked(text: bytes, numbers: Mapping[int, Mutant], folder: Path) -> bytes:
    """A file that notes when it comes to a fault, or, for one outside of all functions, to any of its functions.

    Args:
        text: The file.
        numbers: Number -> a fault of this file.
        folder: Where it notes the tests, in files of these numbers.
    """
    tree, begins = ast.parse(text), _begins(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    bodies = [(_place(node.body[0], begins)[0], _place(node.body[-1], begins)[1]) for node in functions]
    heads = [node for node in tree.body[:2] if isinstance(node, ast.Expr) or "__future__" in ast.unparse(node)]
    noting = f"; exec({_NOTING.replace('{folder}', str(folder))!r})"
    inserted = [(_place(heads[-1], begins)[1], 0, 0, noting)]  # where, in which order, what
    for number, fault in numbers.items():
        note = f"_reached({number})"
        if any(begin <= fault.begin < end for begin, end in bodies):
            inserted += [(fault.begin, 2, -fault.end, f"({note} and ("), (fault.end, 0, -fault.begin, "))")]
            continue
        for first in (node.body[0] for node in functions):
            begin, end = _place(first, begins)
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):  # its docstring
                inserted.append((end, 1, number, f"; {note}"))
            elif not hasattr(first, "body") and not isinstance(first, ast.Match):
                inserted.append((begin, 1, number, f"{note}; "))
    for place, _, _, note in sorted(inserted, reverse=True):
        text = text[:place] + note.encode() + text[place:]
    return text


def recorded(copy: Path, folder: Path, select: str, mutants: Sequence[Mutant]) -> tuple[dict[str, list[str]], Times]:
    """(name of a fault -> the tests that come to it, test -> its seconds): of a run of the tests in the copy.

    Tests that fail without a fault are left out.
    """
    (folder / "mutants_plugin.py").write_text(_PLUGIN, encoding="utf-8")
    files: dict[str, dict[int, Mutant]] = defaultdict(dict)
    for number, mutant in enumerate(mutants):
        with contextlib.suppress(SyntaxError):  # parts of patterns
            ast.parse(marked((copy / mutant.file).read_bytes(), {number: mutant}, folder))
            files[mutant.file][number] = mutant
        (folder / str(number)).touch()
        (folder / str(number)).chmod(0o666)
    folder.chmod(0o755)
    texts = {copy / file: (copy / file).read_bytes() for file in files}
    for path, faults in zip(texts, files.values(), strict=True):
        path.write_bytes(marked(texts[path], faults, folder))
    more = {"MUTANTS_TOOK": str(folder), "PYTHONPATH": os.pathsep.join([str(copy), str(folder)])}
    side_by_side = ("--numprocesses", str((os.cpu_count() or 1) + 4), "--dist", "loadfile")
    pytest(copy, "-p", "mutants_plugin", *side_by_side, "-m", select, *RECORDED, shown=True, environ=more)
    for path, text in texts.items():
        path.write_bytes(text)
    took: Times = {}
    for part in folder.glob("took-*.json"):
        took.update(json.loads(part.read_text()))
    reached = {
        mutant.name: sorted(set((folder / str(number)).read_text(encoding="utf-8").splitlines()))
        for number, mutant in enumerate(mutants)
    }
    return reached, took


def tests_of(mutant: Mutant, reached: Mapping[str, Sequence[str]], took: Times) -> list[str]:
    """The quickest tests that come to a fault, as many as take _TESTS seconds together."""
    names = [name for name in reached[mutant.name] if name in took]
    chosen: list[str] = []
    left = _TESTS
    for name in sorted(names, key=lambda name: took[name])[:_MOST_TESTS]:
        left -= took[name]
        if left < 0 and chosen:
            break
        chosen.append(name)
    return chosen


def tried(mutant: Mutant, copy: Path, tests: list[str]) -> str:
    """What became of a fault: seen, hangs, or survives."""
    path, listed = copy / mutant.file, copy / ".tests"
    text = path.read_text(encoding="utf-8")
    listed.write_text("\n".join(tests), encoding="utf-8")
    try:
        path.write_text(mutant.text(), encoding="utf-8")
        code = pytest(copy, "-x", f"@{listed}", seconds=_LIMIT if tests[0] != SMALL_BEDS else 5 * _LIMIT)
    finally:
        path.write_text(text, encoding="utf-8")
    return "hangs" if code is None else "survives" if code in (0, 5) else "seen"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description="Do the tests notice small faults?")
    parser.add_argument("--count", type=int, default=120, help="how many faults (120)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--tests", default="", metavar="COMMIT", help="with the tests of that commit")
    parser.add_argument("--select", default="not release", metavar="TOPICS", help="of which these (not release)")
    parser.add_argument("--record", type=Path, default=ROOT / ".mutants.json", help="what the recorded run has shown")
    parser.add_argument("--beds", action="store_true", help="on test beds, too: lines that nothing else runs")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with checkout(options.tests) as copy:
        mutants = drawn(options.seed, options.count)
        reached, took = json.loads(options.record.read_text()) if options.record.exists() else ({}, {})
        if not reached.keys() >= {mutant.name for mutant in mutants}:
            print("recording which tests come to which fault", flush=True)
            with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
                reached, took = recorded(copy, Path(folder), options.select, mutants)
            options.record.write_text(json.dumps([reached, took]), encoding="utf-8")
        counts: Counter[str] = Counter()
        print("| fault | tests | result | seconds |\n|---|---|---|---|")
        for mutant in mutants:
            tests = tests_of(mutant, reached, took) or [SMALL_BEDS] * options.beds
            begin = time.monotonic()
            result = tried(mutant, copy, tests) if tests else "on test beds only"
            counts[result] += 1
            print(f"| {mutant.name} | {len(tests)} | {result} | {time.monotonic() - begin:.0f} |", flush=True)
    print("\n" + ", ".join(f"{count} {result}" for result, count in counts.most_common()))


if __name__ == "__main__":
    main()
