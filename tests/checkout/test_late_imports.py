"""Processes of the last release that run while gridtf is replaced in place find what they import only later."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import CHECKOUT
from tests.support.releases import released, unpack

# What a process has loaded, of the last release; then the files of this checkout take their place, and each import that
# a function of a loaded module makes is tried, in a process of its own, with what that function has of a module.
_TRY = """
import ast, importlib, os, shutil, sys
from pathlib import Path

site, checkout, *loaded = sys.argv[1:]
sys.path.insert(0, site)
for name in loaded:
    importlib.import_module(name)
late = {}
for name, module in sorted(sys.modules.items()):
    if name.partition(".")[0] == "gridtf":
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for function in functions:
            nodes = [*ast.walk(function)]
            used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
            for node in nodes:
                if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "gridtf":
                    names = {alias.asname or alias.name for alias in node.names}
                    late.setdefault((ast.unparse(node), name), set()).update(
                        text for text in used if text.count(".") == 1 and text.partition(".")[0] in names
                    )
shutil.rmtree(f"{site}/gridtf")
shutil.copytree(f"{checkout}/gridtf", f"{site}/gridtf")
importlib.invalidate_caches()
for (text, name), used in late.items():
    pid = os.fork()
    if pid == 0:
        try:
            given = {}
            exec(text, given)
            for expression in used:
                eval(expression, given)
        except (ImportError, AttributeError) as error:
            print(f"{name}: {text}: {error}", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
print(len(late), "imports")
"""
# Its launchers load these at once, or when all hosts have met: one that is overtaken before fails, with a verdict.
NOT_YET = (
    "gridtf.bootstrap.launcher.launcher: from gridtf.bootstrap.launcher.hostcheck import HostCheck: ",
    "gridtf.bootstrap.launcher.launcher: from gridtf.bootstrap.launcher.trackers import Trackers: ",
    "gridtf.bootstrap.launcher.launcher: from gridtf.bootstrap.launcher.watch import Watch: ",
    "gridtf.bootstrap.launcher.reports: from gridtf.bootstrap.judge.straggler import WINDOW: ",
)


@pytest.mark.parametrize(
    "loaded",
    [
        ("agent.node", "agent.agent"),  # as srun and qrsh start it
        # while tasks run
        ("main", "launcher.launcher", "launcher.watch", "launcher.trackers", "agent.agent", "agent.supervisor"),
        ("main", "launcher.launcher", "agent.agent"),  # before they run
    ],
    ids=["agent", "launcher", "launcher-before"],
)
def test_process_of_the_last_release_finds_what_it_imports_after_an_upgrade(
    tmp_path: Path, loaded: tuple[str, ...]
) -> None:
    last = released()
    if last is None:
        pytest.skip("the history of this checkout dates no release")
    unpack(last[1], tmp_path)
    names = [f"gridtf.bootstrap.{name}" for name in loaded]
    command = [sys.executable, "-c", _TRY, str(tmp_path), str(CHECKOUT), *names]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    missing, count = done.stdout.splitlines()[:-1], int(done.stdout.split()[-2])
    missing = [line for line in missing if not line.startswith(NOT_YET)]
    assert (missing, count > 20, done.stderr) == ([], True, "")


def test_programs_that_agents_of_the_last_release_start_are_where_they_were() -> None:
    folder = CHECKOUT / "gridtf/bootstrap/agent"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = {"mpishim.py": "no agent of this attempt is on host", "gloostore.py": f"cannot listen on port {port}"}
        for name, text in said.items():
            argv = [sys.executable, "-I", "-S", str(folder / name), "rank" if name == "mpishim.py" else port]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
            assert (done.returncode, text in done.stderr) == (1, True), done.stderr
