"""The hook in tasks: real Pythons, old ones as well, whose exceptions are noted and which run as before otherwise."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import gridtf
from gridtf.contract import LOCAL_DIR, TASK_INDEX, TASK_TYPE, exception_name, stacks_name
from gridtf.run.stacks import NUMBER
from tests.support.jobs import ROOT
from tests.support.topics import fast
from tests.support.unpacked import need_unpacked

HOOK = Path(gridtf.__file__).parent / "hook"
PROGRAM = """\
import subprocess
def load(label):
    raise ValueError("bad label %d" % label)
load(11)
"""


@cache
def pythons() -> list[str]:
    """Every Python of this machine, from the oldest on: 3.6 can run the hook."""
    found, this = [sys.executable], os.path.realpath(sys.executable)
    # without shims of pyenv: only starts would tell which of them work, in each process that collects tests
    folders = [folder for folder in os.environ["PATH"].split(os.pathsep) if not folder.endswith("/shims")]
    for minor in range(6, 15):
        paths = [str(Path(folder, f"python3.{minor}")) for folder in folders]
        found += [path for path in paths if os.access(path, os.X_OK) and os.path.realpath(path) != this][:1]
    return found


def works(python: str) -> bool:
    """A shim of pyenv may stand for a Python that is not chosen."""
    return subprocess.run([python, "-c", ""], capture_output=True, timeout=180).returncode == 0


class Run:
    """What a program has printed, and what the hook has noted."""

    def __init__(
        self, folder: Path, *argv: str, env: Mapping[str, str] = {}, paths: str = "", cwd: Path | None = None
    ) -> None:
        local = folder / "local"
        local.mkdir(exist_ok=True)
        known = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        task = {LOCAL_DIR: str(local), TASK_TYPE: "worker", TASK_INDEX: "2", "PYTHONPATH": f"{HOOK}{paths}"}
        done = subprocess.run(argv, env={**known, **task, **env}, capture_output=True, text=True, timeout=180, cwd=cwd)
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        path = local / exception_name("worker", 2)
        self.noted: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        self.files = sorted(os.listdir(local))


@pytest.mark.parametrize("python", fast(1, *pythons()))
def test_exception_is_noted_with_the_last_line_of_the_user_s_code(python: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    run = Run(tmp_path, python, str(tmp_path / "train.py"))
    assert run.code == 1
    assert run.err.startswith("Traceback (most recent call last):")
    assert run.err.endswith("ValueError: bad label 11\n")
    assert run.noted is not None
    assert {"type": "ValueError", "message": "bad label 11", "place": "train.py:3"}.items() <= run.noted.items()
    assert run.files == [exception_name("worker", 2), stacks_name("worker", 2)]  # nothing temporary is left


def test_line_in_a_library_is_not_the_user_s(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import json\n\njson.loads('{')\n")
    run = Run(tmp_path, sys.executable, str(tmp_path / "train.py"))
    assert run.noted is not None
    assert run.noted["type"] == "JSONDecodeError"
    assert run.noted["place"] == "train.py:3"


def test_syntax_error_and_missing_module_are_noted(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    for text, kind in (("def f(:\n", "SyntaxError"), ("import no_such_module\n", "ModuleNotFoundError")):
        program.write_text(text)
        run = Run(tmp_path, sys.executable, str(program))
        assert run.noted is not None
        assert run.noted["type"] == kind


def test_message_with_a_null_character_is_noted(tmp_path: Path) -> None:
    run = Run(tmp_path, sys.executable, "-c", "raise ValueError('a' + chr(0) + 'b')")
    assert run.noted is not None
    assert run.noted["message"] == "a\\0b"


def test_long_and_strange_messages_are_cut_to_4_kib(tmp_path: Path) -> None:
    for text in ("'\\u00e4' * 5000", "'\\udce4' * 5000", "b'\\xff' * 5000"):
        run = Run(tmp_path, sys.executable, "-c", f"raise ValueError({text})")
        assert run.noted is not None
        assert 4000 < len(run.noted["message"].encode()) <= 4096


@pytest.mark.parametrize(
    "program",
    ["import sys; sys.exit(3)", "import sys; sys.exit('bad')", "raise KeyboardInterrupt", "import os; os._exit(1)", ""],
)
def test_other_ends_are_not_noted(program: str, tmp_path: Path) -> None:
    assert Run(tmp_path, sys.executable, "-c", program).noted is None


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_python_that_takes_no_variables_or_no_site_runs_without_it(flag: str, tmp_path: Path) -> None:
    run = Run(tmp_path, sys.executable, flag, "-c", "raise ValueError('x')")
    assert run.code == 1
    assert run.noted is None


@pytest.mark.parametrize(
    "gone",
    [{LOCAL_DIR: "/nonexistent/local"}, {LOCAL_DIR: "/proc/self"}, {TASK_TYPE: "a/b"}],
    ids=["gone", "full", "name"],
)
def test_program_ends_as_before_where_nothing_can_be_noted(gone: dict[str, str], tmp_path: Path) -> None:
    run = Run(tmp_path, sys.executable, "-c", "raise ValueError('bad label')", env=gone)
    assert run.code == 1
    assert run.err.endswith("ValueError: bad label\n")
    assert run.err.count("Traceback") == 1


@pytest.mark.parametrize("python", pythons()[:2])
@pytest.mark.parametrize("error", ["RuntimeError", "SystemExit(0)"])
def test_exception_that_cannot_be_shown_is_noted_as_python_prints_it(python: str, error: str, tmp_path: Path) -> None:
    program = f"class Bad(Exception):\n    def __str__(self): raise {error}\n    __repr__ = __str__\nraise Bad"
    run = Run(tmp_path, python, "-c", program)
    assert run.code == 1
    assert "<exception str() failed>" in run.err
    assert run.noted is not None
    assert (run.noted["type"], run.noted["message"]) == ("Bad", "<exception str() failed>")


# --- exceptions in the messages of others, and causes; with TensorFlow: tests/local/test_exceptions.py

RECORDED = ROOT / "tests" / "recorded" / "exceptions"


@pytest.mark.parametrize(
    ("kind", "text", "noted"),
    [
        ("KeyError", RECORDED / "function-2.2.txt", ("KeyError", "'no label'", "train.py:4")),
        ("InvalidArgumentError", RECORDED / "dataset-2.2.txt", ("ValueError", "bad record 11", "train.py:4")),
        (
            "InvalidArgumentError",
            RECORDED / "estimator-nan-2.15.txt",
            ("InvalidArgumentError", "loss is no number : Tensor had Inf values", "train.py:9"),
        ),
        ("InvalidArgumentError", RECORDED / "estimator-input-2.15.txt", ("ValueError", "bad record 11", "train.py:14")),
        ("KeyError", RECORDED / "estimator-map-2.15.txt", ("KeyError", "'no label'", "train.py:21")),
        ("InvalidArgumentError", RECORDED / "coordinator-2.21.txt", ("ValueError", "bad record 11", "train.py:12")),
        ("ValueError", "in user code:", ("ValueError", "in user code:", "program.py:4")),
        ("ValueError", "", ("ValueError", "", "program.py:4")),
    ],
)
def test_exception_in_the_message_of_another_one_is_noted(
    kind: str, text: Path | str, noted: tuple[str, str, str], tmp_path: Path
) -> None:
    message = text.read_text() if isinstance(text, Path) else text
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nmodule = 'tensorflow.python.framework.errors_impl'\n"
        "kind = type(sys.argv[1], (Exception,), {'__module__': module})\nraise kind(sys.argv[2])\n"
    )
    for python in pythons()[:2]:
        run = Run(tmp_path, python, str(program), kind, message)
        assert run.noted is not None
        assert (run.noted["type"], run.noted["message"].partition("\n")[0], run.noted["place"]) == noted
        assert message.strip()[:2000] in run.noted["message"]


@pytest.mark.parametrize("piece", [" ", "\\n", "Error in user-defined function ", "{{function_node "])
def test_message_of_1_mib_is_searched_in_a_moment(piece: str, tmp_path: Path) -> None:
    module = "tensorflow.python.framework.errors_impl"
    program = f"raise type('Odd', (Exception,), {{'__module__': '{module}'}})('{piece}' * ((1 << 20) // {len(piece)}))"
    run = Run(tmp_path, sys.executable, "-c", program)  # has a time limit; without bounds it would take hours
    assert run.noted is not None
    assert (run.noted["type"], len(run.noted["message"])) == ("Odd", 4096)


def test_place_in_a_message_of_the_program_s_own_is_not_that_of_the_exception(tmp_path: Path) -> None:
    text = 'no data\nTraceback (most recent call last):\n  File "/home/a/other.py", line 7, in load\nKeyError: 3'
    (tmp_path / "train.py").write_text(f"raise ValueError({text!r})\n")
    run = Run(tmp_path, sys.executable, "train.py", cwd=tmp_path)
    assert run.noted is not None
    assert (run.noted["type"], run.noted["message"], run.noted["place"]) == ("ValueError", text, "train.py:1")


CHAINED = """\
import json
def first():
    try:
        json.loads("{")
    except ValueError as error:
        raise KeyError("x") from error
"""


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        ("first()", r"caused by JSONDecodeError: .* \(train\.py:4\)"),
        ("try: first()\nfinally: 1 / 0", r"caused by JSONDecodeError: .* \(train\.py:4\)"),
        ("try: 1 / 0\nfinally: int('x')", r"while handling ZeroDivisionError: division by zero \(train\.py:7\)"),
        ("try: 1 / 0\nexcept Exception: raise ValueError from None", ""),
        ("import uuid; uuid.UUID(int=-1)", ""),
        ("error = ValueError()\nerror.__cause__ = error\nraise error", ""),
        ("class Odd(Exception): exceptions = property(lambda self: 1 / 0)\nraise Odd", ""),
        ("from multiprocessing import Pool\nwith Pool(1) as pool: pool.map(int, ['x'])", ""),
    ],
)
def test_cause_of_an_exception_is_noted(end: str, cause: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{CHAINED}{end}\n")
    run = Run(tmp_path, sys.executable, "train.py", cwd=tmp_path)
    assert run.noted is not None
    assert re.fullmatch(cause, run.noted.get("cause", ""))


GROUP = """\
from exceptiongroup import ExceptionGroup
def load():
    raise ValueError("bad label 11")
try:
    load()
except ValueError as error:
    raise ExceptionGroup("no data", [ExceptionGroup("files", [error])])
"""


@pytest.mark.thorough
def test_group_of_the_backport_is_noted_with_its_first_exception_and_printed_as_without_the_hook(
    tmp_path: Path,
) -> None:
    """With a Python that has no groups of its own, where there is one."""
    python = shutil.which("python3.10")
    python = python if python and works(python) else sys.executable
    folder = need_unpacked("exceptiongroup", "exceptiongroup==1.3.*", "typing_extensions==4.*")
    (tmp_path / "train.py").write_text(GROUP)
    run = Run(tmp_path, python, "train.py", paths=f":{folder}", cwd=tmp_path)
    assert run.noted is not None
    assert (run.noted["type"], run.noted["message"]) == ("ExceptionGroup", "no data (1 sub-exception)")
    assert run.noted["cause"] == "first of them ValueError: bad label 11 (train.py:3)"
    plain = subprocess.run(
        [python, "train.py"], env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, cwd=tmp_path
    )
    assert "ValueError: bad label 11" in plain.stderr
    assert run.err == plain.stderr


def test_exception_after_one_that_the_program_has_shown_itself_is_noted(tmp_path: Path) -> None:
    program = "import sys\nsys.excepthook(OSError, OSError('first'), None)\nraise ValueError('last')"
    run = Run(tmp_path, sys.executable, "-c", program)
    assert run.noted is not None
    assert run.noted["message"] == "last"


@pytest.mark.parametrize("python", fast(1, *pythons()))
def test_exception_of_a_program_without_a_free_descriptor_is_noted(python: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("held = []\nwhile True:\n    held.append(open('/dev/null'))\n")
    run = Run(tmp_path, "bash", "-c", 'ulimit -n 64; exec "$0" train.py', python, cwd=tmp_path)
    assert run.code == 1
    assert run.noted is not None, run.err
    assert (run.noted["type"], run.noted["place"]) == ("OSError", "train.py:3")
    assert run.noted["message"].startswith("[Errno 24] Too many open files")


# What programs do to themselves before they fail.
SPOILT = {
    "closes all descriptors": "import os; os.closerange(3, 1000)",
    "has another excepthook": "import sys; sys.excepthook = lambda *_: print('own')",
    "has the first excepthook": "import sys; sys.excepthook = sys.__excepthook__",
    "allows nobody to read its files": "import os; os.umask(0o777)",
    "tidies up the disk": "import os, shutil; shutil.rmtree(os.environ['GRIDTF_LOCAL_DIR'])",
    "has a json.py": "open('json.py', 'w').close()",
    "has loaded a json.py": "open('json.py', 'w').close(); import json",
}


@pytest.mark.thorough
@pytest.mark.parametrize("python", fast(1, *pythons()))
def test_exception_of_a_program_that_has_spoilt_something_is_noted(python: str, tmp_path: Path) -> None:
    for number, text in enumerate(SPOILT.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "train.py").write_text(f"{text}\nraise ValueError('caf\\u00e9 \\U0001f600 \"quoted\"')\n")
        run = Run(folder, python, "train.py", cwd=folder)
        assert run.code == 1
        assert run.noted is not None, text
        assert (run.noted["message"], run.noted["place"]) == ('café 😀 "quoted"', "train.py:2")
        assert (folder / "local" / exception_name("worker", 2)).stat().st_mode & 0o777 == 0o600


def test_file_that_has_the_number_of_a_closed_descriptor_stays_open(tmp_path: Path) -> None:
    program = (
        "import os; os.closerange(3, 1000); files = [open(str(n), 'w') for n in range(9)];"
        " [file.write('kept') for file in files]; raise ValueError('x')"
    )
    run = Run(tmp_path, sys.executable, "-c", program, cwd=tmp_path)
    assert run.noted is not None
    assert "Bad file descriptor" not in run.err
    assert [(tmp_path / str(number)).read_text() for number in range(9)] == ["kept"] * 9


def test_what_another_has_put_in_the_place_of_the_note_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("kept")
    program = (
        "import os, sys; os.symlink('../theirs', 'local/%s.%d' % (sys.argv[1], os.getpid())); raise ValueError('x')"
    )
    Run(tmp_path, sys.executable, "-c", program, exception_name("worker", 2), cwd=tmp_path)
    assert (tmp_path / "theirs").read_text() == "kept"


# --- the sitecustomize that it hides


def hidden(folder: Path, text: str) -> str:
    """A site's own sitecustomize; returns what to add to PYTHONPATH."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(text)
    return f":{folder / 'site'}"


def test_hidden_sitecustomize_is_loaded_and_its_hook_still_called(tmp_path: Path) -> None:
    text = "import sys\nsys.excepthook = lambda *_: print('site:', _[1])\nloaded = 1\n"
    paths = hidden(tmp_path, text)
    for python in pythons():
        program = "import sitecustomize, sys; print(sitecustomize.loaded, sys.path[0] == ''); raise ValueError('x')"
        run = Run(tmp_path, python, "-c", program, paths=paths)
        assert run.out == "1 True\nsite: x\n"
        assert run.err == ""
        assert run.noted is not None


def test_error_of_a_hidden_sitecustomize_is_reported_as_without_the_hook(tmp_path: Path) -> None:
    for number, text in enumerate(("import no_such_module\n", "1 / 0\n")):
        folder = tmp_path / str(number)
        folder.mkdir()
        paths = hidden(folder, text)
        run = Run(folder, sys.executable, "-c", "raise ValueError('x')", paths=paths)
        plain = Run(folder, sys.executable, "-c", "raise ValueError('x')", env={"PYTHONPATH": paths[1:]})
        assert run.err == plain.err
        assert run.noted is not None


def test_folder_of_the_hook_is_not_searched_for_modules(tmp_path: Path) -> None:
    program = "import sys, sitecustomize; print(*sys.path, sitecustomize.__file__, sep='\\n')"
    *paths, file = Run(tmp_path, sys.executable, "-c", program).out.splitlines()
    assert str(HOOK) not in paths
    assert file == str(HOOK / "sitecustomize.py")


def test_outside_of_a_task_nothing_is_installed(tmp_path: Path) -> None:
    run = Run(tmp_path, sys.executable, "-c", "import sys; print(sys.excepthook)", env={LOCAL_DIR: ""})
    assert "_install" in run.out
    env = {"PYTHONPATH": str(HOOK), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", "import sys; print(sys.excepthook)"], env=env, capture_output=True)
    assert b"built-in" in done.stdout


def test_start_loads_no_module_that_python_does_not_load_itself(tmp_path: Path) -> None:
    """Hence it costs no time worth speaking of."""
    program = "import sys; print(*sorted(sys.modules))"
    modules = [Run(tmp_path, sys.executable, "-c", program, env=env).out.split() for env in ({}, {"PYTHONPATH": ""})]
    assert set(modules[0]) - set(modules[1]) == {"sitecustomize", "faulthandler", "atexit"}
    assert {"faulthandler", "atexit"} <= set(sys.builtin_module_names)


# --- the stacks of all threads

CRASH = """
import os, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("x", file=sys.stderr)
os.kill(os.getpid(), int(sys.argv[1]))
"""


@pytest.mark.parametrize("python", fast(1, *pythons()))
def test_crash_prints_the_stacks_of_all_threads(python: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CRASH)
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        run = Run(tmp_path, python, str(tmp_path / "train.py"), str(int(number)), cwd=tmp_path)  # for a core file
        assert (run.code, run.out) == (-number, "")
        assert run.err.startswith("x\nFatal Python error: "), run.err
        assert f'File "{tmp_path / "train.py"}", line 5 in <module>' in run.err
        assert run.err.count("(most recent call first)") == 2


def test_abort_and_programs_that_handle_a_crash_are_left_alone(tmp_path: Path) -> None:
    """A library says why it aborts, in the last lines of the log."""
    (tmp_path / "train.py").write_text(CRASH)
    abort = str(int(signal.SIGABRT))
    run = Run(tmp_path, sys.executable, str(tmp_path / "train.py"), abort, cwd=tmp_path)
    assert (run.code, run.err) == (-signal.SIGABRT, "x\n")
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGABRT, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    run = Run(tmp_path, sys.executable, "-c", ignoring, sys.executable, str(tmp_path / "train.py"), abort)
    assert (run.code, run.err) == (0, "x\n")
    run = Run(
        tmp_path, sys.executable, str(tmp_path / "train.py"), abort, env={"PYTHONFAULTHANDLER": "1"}, cwd=tmp_path
    )
    assert "Fatal Python error: Aborted" in run.err
    own = (
        "import os, signal; signal.signal(signal.SIGSEGV, lambda *_: os._exit(3)); os.kill(os.getpid(), signal.SIGSEGV)"
    )
    run = Run(tmp_path, sys.executable, "-c", own)
    assert (run.code, run.err) == (3, "")
    closed = "import os; os.close(2); os.kill(os.getpid(), 11)"
    assert Run(tmp_path, sys.executable, "-c", closed, cwd=tmp_path).code == -signal.SIGSEGV


WAITING = """
import os, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
os.kill(os.getpid(), int(sys.argv[1]))
print("goes on")
"""


@pytest.mark.parametrize("python", fast(1, *pythons()))
def test_line_of_several_words_is_written_at_once_and_a_started_one_at_the_end(python: str, tmp_path: Path) -> None:
    """Another process, or a library in C++, prints to the same log."""
    packets, stdout = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a packet each write
    program = "import sys; print('step', 1); print('loss', 2, file=sys.stderr); sys.stdout.write('end')"
    task = {LOCAL_DIR: str(tmp_path), TASK_TYPE: "worker", TASK_INDEX: "2", "PYTHONPATH": str(HOOK)}
    with packets, stdout:
        packets.settimeout(60)
        env = {**os.environ, **task, "PYTHONUNBUFFERED": "1"}
        subprocess.run([python, "-c", program], env=env, stdout=stdout.fileno(), stderr=subprocess.STDOUT, timeout=180)
        assert [packets.recv(100) for _ in range(3)] == [b"step 1\n", b"loss 2\n", b"end"]


@pytest.mark.parametrize("python", fast(1, *pythons()))
def test_signal_has_the_stacks_of_all_threads_written(python: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITING)
    run = Run(tmp_path, python, str(tmp_path / "train.py"), str(NUMBER))
    assert (run.code, run.out, run.err) == (0, "goes on\n", "")
    stacks = (tmp_path / "local" / stacks_name("worker", 2)).read_text()
    assert f'File "{tmp_path / "train.py"}", line 4 in <module>' in stacks
    assert "in wait" in stacks
    assert stacks.count("(most recent call first)") == 2


def test_signal_that_the_program_has_ignored_or_handles_stays_the_program_s(tmp_path: Path) -> None:
    ignoring = f"import os, signal, sys; signal.signal({NUMBER}, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    kill = f"import os; os.kill(os.getpid(), {NUMBER})"
    own = f"import os, signal; signal.signal({NUMBER}, lambda *_: print('own')); os.kill(os.getpid(), {NUMBER})"
    for argv, out in (("-c", ignoring, sys.executable, "-c", kill), ""), (("-c", own), "own\n"):
        run = Run(tmp_path, sys.executable, *argv)
        assert (run.code, run.out) == (0, out)
        assert (tmp_path / "local" / stacks_name("worker", 2)).read_text() == ""
