"""The house stays as ARCHITECTURE.md says: who may import whom, what is pure, what starts fast."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gridtf"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Room -> the rooms it may import from. A room is a module of gridtf, or a package with all that is in it.
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "roles": set(),
    "units": set(),
    "resources": set(),
    "terminal": set(),
    "files": {"errors"},
    "procfs": set(),
    "processes": {"terminal"},
    "recordtypes": {"roles"},
    "tail": {"errors", "rundir", "terminal"},
    "placeholders": {"roles"},
    "spec": {"errors", "placeholders", "roles", "units"},
    "layout": {"errors", "roles", "spec"},
    "rundir": {"errors", "files", "recordtypes"},
    "contract": {"errors", "recordtypes", "roles", "rundir"},
    "toml": {"errors", "files"},
    "options": {"errors"},
    "arguments": {"errors", "options"},
    "config": {"arguments", "errors", "options", "roles", "spec", "terminal", "toml"},
    "locks": {"errors", "files", "terminal"},
    "gpus": {"errors", "locks", "procfs", "rundir"},
    "registry": {"errors", "recordtypes", "rundir"},
    "jobrecords": {"", "files", "registry", "rundir", "spec"},
}
ARROWS["schedulers"] = {
    "errors",
    "files",
    "gpus",
    "layout",
    "processes",
    "procfs",
    "recordtypes",
    "roles",
    "rundir",
    "spec",
    "units",
}
ARROWS["precheck"] = {"errors", "files", "spec"}
ARROWS["render"] = {"", "errors", "files", "layout", "resources", "schedulers", "spec", "units"}
ARROWS["bootstrap"] = ARROWS["schedulers"] | {
    "placeholders",
    "",
    "config",
    "contract",
    "jobrecords",
    "precheck",
    "schedulers",
    "tail",
}
ARROWS["training"] = {"contract", "errors", "roles", "rundir"}
ARROWS["observe"] = ARROWS["schedulers"] | {"registry", "schedulers", "tail"}
ARROWS["job"] = ARROWS["observe"] | {"jobrecords", "observe"}
ARROWS["submission"] = ARROWS["job"] | {"", "config", "job", "precheck", "render", "resources"}
ARROWS["__main__"] = {"cli"}
ARROWS["cli"] = ARROWS["submission"] | {"arguments", "bootstrap", "registry", "submission", "terminal"}

PURE = {
    "errors",
    "recordtypes",
    "roles",
    "units",
    "placeholders",
    "validation",
    "spec",
    "layout",
    "options",
    "terminal",
    "bootstrap.placement",
}
IMPURE_MODULES = {"os", "time", "socket", "subprocess", "pathlib", "io", "shutil", "tempfile", "datetime", "random"}
IMPURE_NAMES = {"open", "input", "print", "exec", "eval", "compile", "__import__"}

# Module from outside -> the only modules (or packages) of gridtf that may import it.
ONLY_IN = {
    "tensorflow": {"training"},
    "keras": {"training"},
    "numpy": {"training"},
    "jinja2": {"render"},
    "drmaa": {"schedulers.sge.session"},
    "filelock": {"gpus"},
    "pynvml": {"gpus"},
    "argcomplete": {"cli"},
    "tomllib": {"toml"},
    "tomli": {"toml"},
}


def module_name(path: Path) -> str:
    """gridtf/schedulers/base.py -> schedulers.base; gridtf/__init__.py -> ''."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: str) -> str:
    """A package's or a module's own name; a specification and its checks are one room in two files."""
    first = module.split(".")[0]
    return "spec" if first == "validation" else first


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in a file, wherever it stands; ``from gridtf import gpus`` is gridtf.gpus."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            base = node.module or ""
            for alias in node.names:
                folder = ROOT / base.replace(".", "/")
                is_module = (folder / alias.name).is_dir() or (folder / f"{alias.name}.py").is_file()
                yield node.lineno, f"{base}.{alias.name}" if is_module else base


def inner(name: str) -> str | None:
    """gridtf.spec -> spec, gridtf -> '', os -> None."""
    if name == "gridtf":
        return ""
    return name.removeprefix("gridtf.") if name.startswith("gridtf.") else None


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_point_one_way(path: Path) -> None:
    own = module_name(path)
    if own == "":
        return  # gridtf/__init__.py only names what users import from where
    assert room(own) in ARROWS, f"{path.relative_to(ROOT)}: say in ARROWS and ARCHITECTURE.md what it may import"
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for line, name in imports(path)
        if (target := inner(name)) is not None and room(target) != room(own) and room(target) not in ARROWS[room(own)]
    ]
    assert not wrong


def test_arrows_make_no_circle() -> None:
    def reached(start: str, seen: frozenset[str]) -> None:
        assert start not in seen, f"a circle through {start}"
        for target in ARROWS.get(start, ()):
            reached(target, seen | {start})

    for start in ARROWS:
        reached(start, frozenset())


def test_every_room_is_there() -> None:
    rooms = {room(module_name(path)) for path in SOURCES} - {""}
    assert rooms == set(ARROWS)


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_outside_modules_stay_in_their_room(path: Path) -> None:
    own = module_name(path)
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for line, name in imports(path)
        if (allowed := ONLY_IN.get(name.split(".")[0])) is not None and not {own, room(own)} & allowed
    ]
    assert not wrong


@pytest.mark.parametrize("module", sorted(PURE))
def test_pure_modules_touch_nothing(module: str) -> None:
    path = PACKAGE / f"{module.replace('.', '/')}.py"
    wrong = [f"line {line} imports {name}" for line, name in imports(path) if name.split(".")[0] in IMPURE_MODULES]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_NAMES:
            wrong.append(f"line {node.lineno} calls {node.func.id}")
    assert not wrong


def test_modules_are_looked_up_by_name_in_few_places() -> None:
    """An import that no reader of the source sees would slip past the arrows."""
    users = {module_name(path) for path in SOURCES if "import_module" in path.read_text(encoding="utf-8")}
    assert users <= {"", "bootstrap.later", "cli.common", "schedulers", "training", "training.run"}


# --- what starts fast ------------------------------------------------------------------------------------------

SLOW = {"tensorflow", "keras", "numpy", "drmaa", "pynvml", "filelock", "asyncio", "importlib.metadata", "argcomplete"}
PARSER = {"jinja2", "argparse", "subprocess", "json", "tomllib", "typing", "pathlib", "dataclasses", "inspect"}
MAIN = "import sys; from gridtf.cli import main; sys.exit(main())"


def loaded(folder: Path, *arguments: str) -> set[str]:
    """The modules that a fresh ``gridtf ARGUMENTS`` imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", MAIN, *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^import time:[\d |]+\| +(\S+)$", done.stderr, re.MULTILINE))


@pytest.mark.parametrize(
    ("arguments", "banned"),
    [
        (["--version"], SLOW | PARSER),
        (["--help"], SLOW | PARSER),
        (["list"], SLOW | {"jinja2"}),
        (["render", "--scheduler", "slurm", "--", "true"], SLOW),
        (["render", "--scheduler", "local", "--workers", "2", "--", "true"], SLOW),
    ],
    ids=["version", "help", "list", "render-slurm", "render-local"],
)
def test_login_side_loads_nothing_slow(tmp_path: Path, arguments: list[str], banned: set[str]) -> None:
    modules = loaded(tmp_path, *arguments)
    assert "gridtf.cli" in modules
    assert modules & banned == set()
    assert not [name for name in modules if name.startswith(("gridtf.training", "gridtf.bootstrap"))]
