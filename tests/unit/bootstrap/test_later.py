"""A module that is loaded later is the real one for whoever uses it."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gridtf.bootstrap.agent, gridtf.bootstrap.warden, sys
loaded = {"ast", "dis", "tokenize"} & sys.modules.keys()
import inspect
assert inspect.signature(len).parameters.keys() == {"obj"}
assert sys.modules["inspect"].__file__.endswith("inspect.py")
print(*sorted(loaded))
"""


def test_an_agent_starts_without_inspect_and_has_it_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.strip() == "") == (sys.version_info < (3, 13))
