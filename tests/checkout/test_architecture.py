"""Rules of ARCHITECTURE.md: what each room may import, which modules are pure, which commands start fast."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gridtf"
# Where processes of 0.1.0 that an upgrade in place has overtaken find what is elsewhere now; to go after 0.2.0.
_MOVED = {
    "": ["join"],
    "agent/": [
        "agentstacks",
        "containers",
        "gloostore",
        "hostcheck",
        "hostsetup",
        "logpump",
        "mpishim",
        "session",
        "stage",
        "world",
    ],
    "launcher/": ["remember"],
    "judge/": ["averaged", "ownfolders", "together"],
}
OF_LAST_RELEASE = {PACKAGE / f"bootstrap/{room}{name}.py" for room, names in _MOVED.items() for name in names}
SOURCES = sorted({*PACKAGE.rglob("*.py")} - OF_LAST_RELEASE)

# Room: the rooms that it imports from, exactly these. A room is a package, or a module that lies beside the packages;
# in bootstrap and schedulers also one inside (ROOMS_INSIDE).
_ARROWS = """
errors:
text:
values:
states:
resources:
secrets:
hook:
files: errors
archives:
findings: gridtf errors text values
jobspec: errors files text values
run: gridtf archives errors files jobspec states text values
host: archives errors files text values
contract: errors jobspec run values
reporting: contract errors run
training: contract errors reporting states text values
schedulers: errors files findings host jobspec run states text values
schedulers.slurm: errors files findings host jobspec run schedulers states text values
schedulers.sge: errors files findings host jobspec run schedulers states text values
bootstrap:
bootstrap.system: host run
bootstrap.wire: bootstrap.system errors host run values
bootstrap.plan: bootstrap.system contract errors host jobspec run schedulers text values wrappers
bootstrap.judge: bootstrap.plan contract errors files host jobspec run schedulers states text values
bootstrap.agent: gridtf bootstrap.judge bootstrap.plan bootstrap.system bootstrap.wire contract errors features files
    host jobspec run schedulers starters states values wrappers
bootstrap.launcher: bootstrap.agent bootstrap.judge bootstrap.plan bootstrap.system bootstrap.wire errors features host
    jobspec run schedulers starters states text values wrappers
bootstrap.unsubmitted: errors host jobspec run schedulers
starters: errors jobspec schedulers
starters.mpi: bootstrap.agent bootstrap.judge bootstrap.launcher bootstrap.plan errors host run starters states text
starters.joined: bootstrap.plan bootstrap.system bootstrap.unsubmitted bootstrap.wire errors features features.fence
    host jobspec run schedulers states text values
wrappers: jobspec run
wrappers.containers: bootstrap.agent bootstrap.plan contract errors files jobspec values
wrappers.logcap: bootstrap.agent bootstrap.system bootstrap.wire errors host run wrappers
features: bootstrap.wire errors jobspec run
features.averaged: bootstrap.judge bootstrap.launcher bootstrap.plan contract run states text
features.badhosts: bootstrap.judge bootstrap.launcher host run states
features.hostcheck: bootstrap.agent bootstrap.launcher bootstrap.plan errors host run text values
features.fence: bootstrap.agent bootstrap.launcher bootstrap.system bootstrap.wire host run text values
features.membership: bootstrap.agent bootstrap.judge bootstrap.launcher bootstrap.plan run states text values
features.ownfolders: bootstrap.agent bootstrap.judge bootstrap.launcher bootstrap.plan run states text
features.exec: bootstrap.agent bootstrap.launcher bootstrap.system bootstrap.wire contract host jobspec run schedulers
    secrets states
features.hostsetup: bootstrap.agent bootstrap.plan contract errors files host run schedulers
features.stage: bootstrap.agent bootstrap.wire contract errors host jobspec run
features.stalls: bootstrap.agent bootstrap.judge bootstrap.launcher bootstrap.plan bootstrap.system bootstrap.wire
    contract host run states values
features.straggler: bootstrap.agent bootstrap.launcher run values
features.trackers: bootstrap.agent bootstrap.judge bootstrap.launcher bootstrap.plan bootstrap.system bootstrap.wire
    contract errors files host jobspec run schedulers states
bootstrap.elements: bootstrap.agent bootstrap.judge bootstrap.launcher bootstrap.plan bootstrap.system errors host
    jobspec run schedulers states
bootstrap.main: bootstrap.elements bootstrap.judge bootstrap.launcher bootstrap.plan bootstrap.system
    bootstrap.unsubmitted contract errors files host jobspec run schedulers starters starters.joined
observe: errors host jobspec run schedulers states text values
monitor: errors observe run states text values
report: gridtf errors files jobspec observe resources run secrets states text values
login: gridtf contract errors files host jobspec observe report resources run schedulers starters states text values
    wrappers
doctor: errors files findings host jobspec login observe run schedulers starters states text training values
cli: gridtf bootstrap.main doctor errors files findings host jobspec login monitor observe report resources run
    schedulers secrets starters states text values
__main__: cli
testing: errors findings jobspec login resources run schedulers states values
"""
ARROWS = {
    own: {target.replace("gridtf", "") for target in targets.split()}
    for own, targets in re.findall(r"^(\S+):(.*(?:\n    .*)*)", _ARROWS, re.MULTILINE)
}
# Modules named in a string that another Python runs, or imported by name: these are imports as well.
HIDDEN: dict[str, set[str]] = {
    "schedulers": {"bootstrap.agent"},
    "testing": {"jobspec"},
    "bootstrap.launcher": {"bootstrap.agent"},
    "bootstrap.plan": {"training"},
    "bootstrap.judge": {"training"},
    "features.membership": {"training"},
    "starters": {"starters.mpi"},
    "starters.joined": {"training"},
}

PURE = {
    "errors",
    "text",
    "run.recordtypes",
    "jobspec.tasktypes",
    "jobspec.units",
    "jobspec.placeholders",
    "jobspec.spec",
    "jobspec.request",
    "jobspec.options",
    "jobspec.sweep",
    "bootstrap.plan.placement",
    "observe.gpus",
    "observe.eventwords",
    "secrets",
    "monitor.lines",
    "monitor.charts",
    "monitor.history",
    "monitor.snapshot",
    "monitor.table",
    "monitor.rows",
    "monitor.look",
    "monitor.pages",
}
IMPURE_MODULES = {"os", "time", "socket", "subprocess", "pathlib", "io", "shutil", "tempfile", "datetime", "random"}
IMPURE_NAMES = {"open", "input", "print", "exec", "eval", "compile", "__import__"}

# Module from outside -> the only modules (or packages) of gridtf that may import it.
ONLY_IN = {
    "tensorflow": {"training", "hook.hostcheck"},  # the latter in the Python of the tasks
    "keras": {"training"},
    "tf_keras": {"training"},
    "numpy": {"training", "hook.hostcheck"},
    "jinja2": {"login.templates", "report.page"},
    "cryptography": {"host.encrypted"},
    "ssl": {"host.encrypted", "features.exec.session", "observe.beside"},
    "drmaa": {"schedulers.sge.drmaa_session"},
    "filelock": {"host.gpus"},
    "pynvml": {"host.gpus"},
    "argcomplete": {"cli"},
    "yaml": {"cli.import_job", "jobspec.jobfile"},  # the latter for a file that is no TOML
    "rich": {"monitor.app"},
    "textual": {"monitor.app"},
    "tomllib": {"jobspec.jobfile"},
    "tomli": {"jobspec.jobfile"},
    "pytest": {"testing"},
}


def module_name(path: Path) -> str:
    """gridtf/schedulers/api.py -> schedulers.api; gridtf/__init__.py -> ''."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in SOURCES}


# Each of these is a room, or all below it are.
_FEW = ("schedulers.slurm", "schedulers.sge", "starters.mpi", "starters.joined")
ROOMS_INSIDE = (*_FEW, "bootstrap.", "features.", "wrappers.")


def room(module: str) -> str:
    """schedulers.slurm.query -> schedulers.slurm, bootstrap.wire.stream -> bootstrap.wire,
    schedulers.api -> schedulers, errors -> errors."""
    inside = ".".join(module.split(".")[:2])
    return inside if inside.startswith(ROOMS_INSIDE) else module.partition(".")[0]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, module) of every import in a file, wherever it stands; ``from gridtf import gpus`` is gridtf.host.gpus."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(path)):
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
    """gridtf.jobspec.spec -> spec, gridtf -> '', os -> None."""
    if name == "gridtf":
        return ""
    return name.removeprefix("gridtf.") if name.startswith("gridtf.") else None


@cache
def arrows() -> dict[str, dict[str, str]]:
    """Room -> the rooms that it imports from, each with the file and line of one import."""
    found: dict[str, dict[str, str]] = {room(module_name(path)): {} for path in SOURCES}
    for path in SOURCES:
        own = room(module_name(path))
        for line, name in imports(path):
            if (target := inner(name)) is not None and room(target) != own:
                found[own].setdefault(room(target), f"{path.relative_to(ROOT)}:{line}")
    del found[""]  # gridtf/__init__.py only names what users import from where
    return found


def test_rooms_import_from_those_that_are_listed() -> None:
    real = arrows()
    assert set(real) == set(ARROWS), "ARROWS lists every room"
    denied = [
        f"{place}: {own} imports from {target}"
        for own, targets in real.items()
        for target, place in targets.items()
        if target not in ARROWS[own]
    ]
    assert not denied, "say in ARROWS and ARCHITECTURE.md what a room may import"
    gone = [
        f"{own} no longer imports from {target}"
        for own, targets in ARROWS.items()
        for target in targets
        if target not in real[own]
    ]
    assert not gone


def test_imports_of_rooms_have_no_cycle() -> None:
    graph = {own: {*targets} - {""} for own, targets in arrows().items()}
    assert {*graphlib.TopologicalSorter(graph).static_order()} == {*graph}  # or CycleError names the rooms


def hidden(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every module of gridtf that is named in a string other than a docstring."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            for name in re.findall(r"\bgridtf\.([a-z_.]+[a-z])", node.value):
                if name in MODULES:
                    yield node.lineno, name


def test_modules_named_in_strings_are_declared() -> None:
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        if (own := room(module_name(path))) != "":
            for _, name in hidden(path):
                if room(name) != own:
                    found.setdefault(own, set()).add(room(name))
    assert found == HIDDEN


def test_external_modules_are_imported_in_their_room_only() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in SOURCES
        for line, name in imports(path)
        if (allowed := ONLY_IN.get(name.split(".")[0])) is not None
        and not {module_name(path), room(module_name(path))} & allowed
    ]
    assert not wrong


@pytest.mark.parametrize("module", sorted(PURE))
def test_pure_modules_do_no_io(module: str) -> None:
    path = PACKAGE / f"{module.replace('.', '/')}.py"
    wrong = [f"line {line} imports {name}" for line, name in imports(path) if name.split(".")[0] in IMPURE_MODULES]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_NAMES:
            wrong.append(f"line {node.lineno} calls {node.func.id}")
    assert not wrong


def test_the_judge_alone_makes_and_changes_verdicts() -> None:
    """Who else knows something of an end hands over evidence."""
    found = []
    for path in sorted((PACKAGE / "bootstrap").rglob("*.py")):
        calls = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
        for node in calls if path.parent.name != "judge" else ():
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            keys = {each.arg for each in node.keywords}
            if name in ("Verdict", "noting") or (name == "replace" and keys & {"reason", "continuation", "chain"}):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found


def test_core_of_a_job_reads_no_key_of_starters_wrappers_and_features() -> None:
    """Which of them a job has, `api` asks; and ARROWS lets nobody import one."""
    keys = {"mpi", "contained", "container", "container_binds", "container_command", "log_limit", "log_bytes"}
    keys |= {
        "stage",
        "host_setup",
        "on",
        "fence",
        "check",
        "on_bad_host",
        "on_stall",
        "stall_after",
        "seconds_to_stall",
    }
    rooms = {f"bootstrap.{name}" for name in ("launcher", "agent", "judge", "plan", "wire", "system")}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} reads {node.attr}"
        for path in SOURCES
        if room(module_name(path)) in rooms and path.name != "api.py"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and node.attr in keys
        and ast.unparse(node.value).endswith(("spec", "request"))
    ]
    assert not found


OF_FEATURES = [path for path in SOURCES if module_name(path).startswith("features.")]
# One side of a feature each, with its file.
PARTS = [
    (path, node)
    for path in OF_FEATURES
    for node in ast.walk(tree(path))
    if isinstance(node, ast.ClassDef) and node.name in ("InAgent", "InLauncher")
]


def test_features_set_nothing_of_the_core() -> None:
    """Hooks return values. What they set is their own: attributes, entries of these, and variables."""
    own = re.compile(r"(self\.(?!view\b))?\w+(\[.*\])?")
    found = []
    for path, part in PARTS:
        for node in ast.walk(part):
            if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                text = ast.unparse(node)
                found += [] if own.fullmatch(text) else [f"{path.relative_to(ROOT)}:{node.lineno} sets {text}"]
    assert not found


def test_what_features_see_is_small_and_each_hook_has_a_user() -> None:
    from gridtf.bootstrap.agent import api as of_agent
    from gridtf.bootstrap.launcher import api as of_launcher

    hooks = []
    defined = {node.name for _, part in PARTS for node in ast.walk(part) if isinstance(node, ast.FunctionDef)}
    for api, view in ((of_agent, of_agent.AgentView), (of_launcher, of_launcher.LauncherView)):
        own = {*vars(view), *view._fields, "processes"}
        assert len([name for name in own if not name.startswith("_")]) <= 15, view
        hooks += [name for name, hook in vars(api.Feature).items() if callable(hook) and not name.startswith("_")]
        assert "Any" not in ast.unparse(tree(Path(str(api.__file__))))
    assert len(hooks) <= 16
    assert {*hooks} <= defined


def test_features_say_whether_a_job_may_go_on_without_them() -> None:
    says = [{ast.unparse(one) for one in part.body} & {"vital = True", "vital = False"} for _, part in PARTS]
    assert {len(one) for one in says} == {1}
    vital = {
        module_name(path).split(".")[1] for (path, _), said in zip(PARTS, says, strict=True) if "vital = True" in said
    }
    assert vital == {"fence", "hostsetup", "stage"}  # as CHANGELOG.md says


def test_import_module_is_used_in_few_places() -> None:
    """The checks of imports above do not see these imports."""
    users = {module_name(path) for path in SOURCES if "import_module" in path.read_text(encoding="utf-8")}
    rooms = {"", "cli.common", "features", "schedulers", "starters", "training", "training.run", "training.servers"}
    assert users <= rooms | {"wrappers"}


# --- what starts fast ------------------------------------------------------------------------------------------

SLOW = {
    "ssl",
    "cryptography",
    "tensorflow",
    "keras",
    "numpy",
    "drmaa",
    "yaml",
    "pynvml",
    "filelock",
    "asyncio",
    "importlib.metadata",
    "argcomplete",
    "rich",
    "textual",
}
BOOTSTRAP = SLOW | {
    "statistics",
    "jinja2",
    "argparse",
    "dataclasses",
    "inspect",
    "tomllib",
    "gridtf.cli",
    "gridtf.login",
}
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
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^import time:[\d |]+\| +(\S+)$", done.stderr, re.MULTILINE))


@pytest.mark.parametrize(
    ("arguments", "banned"),
    [
        (["--version"], SLOW | PARSER),
        (["--help"], SLOW | PARSER),
        (["list"], SLOW | {"jinja2", "argparse", "subprocess", "typing", "dataclasses", "inspect"}),  # without jobs
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


@pytest.mark.parametrize("module", ["agent.agent", "launcher.launcher", "main"])
def test_bootstrap_loads_nothing_slow(module: str) -> None:
    code = f"import sys, gridtf.bootstrap.{module}; print(*sys.modules, sep=chr(10))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {*done.stdout.splitlines()} & BOOTSTRAP == set()
