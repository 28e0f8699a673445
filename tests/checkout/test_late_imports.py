"""Processes of the last release that run while gridtf is replaced in place find what they import only later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import CHECKOUT
from tests.support.releases import released, unpack

# What a process has loaded while tasks run, of the last release; then the files of this checkout take their place, and
# each import that a function of a loaded module makes is tried, in a process of its own.
_TRY = """
import ast, importlib, os, shutil, sys
from pathlib import Path

site, checkout, *loaded = sys.argv[1:]
sys.path.insert(0, site)
for name in loaded:
    importlib.import_module(name)
late = {}
first = "from gridtf.bootstrap import join"  # by which another verb of main begins
for name, module in sorted(sys.modules.items()):
    if name.partition(".")[0] == "gridtf":
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for node in [node for function in functions for node in ast.walk(function)]:
            here = isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "gridtf"
            if here and ast.unparse(node) != first:
                late.setdefault(ast.unparse(node), name)
shutil.rmtree(f"{site}/gridtf")
shutil.copytree(f"{checkout}/gridtf", f"{site}/gridtf")
importlib.invalidate_caches()
for text, name in late.items():
    pid = os.fork()
    if pid == 0:
        try:
            exec(text, {})
        except ImportError as error:
            print(f"{name}: {text}: {error}", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
print(len(late), "imports")
"""


@pytest.mark.parametrize(
    "loaded",
    [
        ("agent.node", "agent.agent"),  # as srun and qrsh start it
        ("main", "launcher.launcher", "launcher.watch", "launcher.trackers", "agent.agent", "agent.supervisor"),
    ],
    ids=["agent", "launcher"],
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
    assert (missing, count > 20, done.stderr) == ([], True, "")
