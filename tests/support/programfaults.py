"""Faults of programs, each with the first line that `gridtf status` and the verdict must have for it.

All of them are run on this machine (tests/local/test_program_faults.py), and a dozen that stand for the others also on
clusters, by `gridtf run` inside one allocation (tests/cluster/test_program_faults.py). docs/faults.md shows them
(scripts/faulttables.py). Other faults: hostfaults.py.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gridtf.values import Fields
from tests.support.firstlines import fits

EXITED = "exited with 0 while others trained (worker:N on HOST: RuntimeError: Socket closed…"

# fault NAME: as in FAULTS. In most faults worker 2 is the culprit and the others wait.
PROGRAM = '''\
import atexit, ctypes, os, signal, subprocess, sys, threading, time

name, rank = sys.argv[1], int(os.environ.get("RANK", -1))
task = os.environ["GRIDTF_TASK_TYPE"]

def wait():
    time.sleep(60)

def fail(error):
    raise error

def closed(other):
    """As TensorFlow tells that another task cannot be reached any more."""
    fail(RuntimeError(f"Socket closed: from remote target /job:worker/replica:0/task:{other}"))

def slowly(seconds=2.5):
    """The process ends so long after its program, as TensorFlow's do."""
    atexit.register(time.sleep, seconds)

def signalled(number):
    signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), number)
    wait()

def shell(line):
    sys.exit(subprocess.run(["sh", "-c", line]).returncode)

def in_a_thread():
    thread = threading.Thread(target=fail, args=(ValueError("in a thread"),))
    thread.start()
    thread.join()

def caught():
    code = subprocess.run([sys.executable, "-c", "raise ValueError('not mine')"], stderr=subprocess.DEVNULL).returncode
    sys.exit(0 if code == 1 else 9)

def open_files():
    """Ends with an exception, and with no descriptor left."""
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    held = []
    while True:
        held.append(os.dup(0))

def gridtf_error():
    from gridtf import GridtfError
    raise GridtfError("the data are gone", hint="look for them")

def deep(number):
    return deep(number + 1) + 1

def members(*ways):
    """Each rank has its way."""
    ways[rank]()

ACTED = os.path.join(os.environ["OUTPUT_DIR"], "acted")

def acts(way):
    """The culprit: the victims' way begins with its own."""
    return lambda: (open(ACTED, "w").close(), way())

def after(seconds, way):
    """A victim, so long after the culprit has acted."""
    def victim():
        while not os.path.exists(ACTED):
            time.sleep(0.05)
        time.sleep(seconds)
        way()
    return victim

def culprit(way):
    return lambda: members(wait, wait, way)

def kept(way):
    return lambda: (slowly(), way())

FAULTS = {
    "raises": culprit(lambda: fail(ValueError("bad label 11"))),
    "raises-first": lambda: members(lambda: fail(ValueError("bad label 11")), wait, wait),
    "chief-raises": lambda: fail(KeyError("loss")) if task == "chief" else wait(),
    "ps-raises": lambda: fail(OSError("no variables")) if task == "ps" else wait(),
    "evaluator-raises": lambda: fail(OSError("no checkpoint")) if task == "evaluator" else time.sleep(1),
    "long-message": culprit(lambda: fail(ValueError("x" * 9000))),
    "strange-message": culprit(lambda: fail(ValueError("caf\\u00e9 \\x1b[31mred\\nand more"))),
    "no-message": culprit(lambda: fail(ValueError())),
    "assertion": culprit(lambda: fail(AssertionError("shapes differ"))),
    "no-file": culprit(lambda: open("/nonexistent/data")),
    "no-module": culprit(lambda: __import__("no_such_module")),
    "memory-error": culprit(lambda: fail(MemoryError())),
    "recursion": culprit(lambda: deep(0)),
    "disk-full": culprit(lambda: fail(OSError(28, "No space left on device"))),
    "open-files": culprit(open_files),
    "gridtf-error": culprit(gridtf_error),
    "interrupted": culprit(lambda: fail(KeyboardInterrupt())),
    "exit-3": culprit(lambda: sys.exit(3)),
    "exit-text": culprit(lambda: sys.exit("no data left")),
    "exit-at-once": culprit(lambda: os._exit(4)),
    "exit-255": culprit(lambda: os._exit(255)),
    "abort": culprit(os.abort),
    "segfault": culprit(lambda: ctypes.string_at(0)),
    "sigbus": culprit(lambda: signalled(signal.SIGBUS)),
    "sigfpe": culprit(lambda: signalled(signal.SIGFPE)),
    "sigill": culprit(lambda: signalled(signal.SIGILL)),
    "sigkill": culprit(lambda: signalled(signal.SIGKILL)),
    "sigxcpu": culprit(lambda: signalled(signal.SIGXCPU)),
    "sighup": culprit(lambda: signalled(signal.SIGHUP)),
    "shell-137": culprit(lambda: shell("exit 137")),
    "shell-139": culprit(lambda: shell("exit 139")),
    "thread": lambda: members(lambda: None, lambda: None, in_a_thread),
    "caught": lambda: members(lambda: None, lambda: None, caught),
    "slow-end": lambda: members(
        after(0.5, lambda: closed(2)),
        after(0.7, lambda: closed(0)),
        acts(kept(lambda: fail(ValueError("bad label 11")))),
    ),
    "slow-end-of-all": lambda: members(
        kept(after(0.5, lambda: closed(2))),
        kept(after(0.7, lambda: closed(0))),
        acts(kept(lambda: fail(ValueError("bad label 11")))),
    ),
    "victim-by-abort": lambda: members(
        after(0.5, lambda: (print("Socket closed: /job:worker/replica:0/task:2", flush=True), os.abort())),
        wait,
        acts(kept(lambda: fail(ValueError("bad label 11")))),
    ),
    "early-exit": lambda: members(after(0.5, lambda: closed(2)), after(0.6, lambda: closed(0)), acts(lambda: None)),
    "chain": lambda: members(after(1.5, lambda: closed(1)), kept(after(0.5, lambda: closed(2))), acts(lambda: None)),
    "silent": lambda: members(after(0.5, lambda: closed(2)), after(0.6, lambda: closed(2)), acts(wait)),
    "stopped": lambda: members(after(0.5, lambda: closed(2)), wait, acts(lambda: signalled(signal.SIGSTOP))),
    "killed-with-victims": lambda: members(
        after(0.5, lambda: closed(2)), after(0.6, lambda: closed(0)), acts(lambda: signalled(signal.SIGKILL))
    ),
    "leader-killed": lambda: members(
        acts(lambda: signalled(signal.SIGKILL)), after(0.5, lambda: closed(0)), after(0.4, lambda: closed(1))
    ),
    "victims-only": lambda: members(
        acts(lambda: closed(0)), after(0.5, lambda: closed(0)), after(0.5, lambda: closed(1))
    ),
}
FAULTS[name]()
'''


class Fault(Fields):
    """One fault.

    Attributes:
        name: Of the fault, and of the function of PROGRAM.
        what: What happens.
        line: The expected first line, as in firstlines.py.
        state: The final state of the job.
        words: Options of gridtf run; three workers without any.
        command: The command; empty: PROGRAM.
    """

    name: str
    what: str
    line: str
    state: str = "FAILED"
    words: Sequence[str] = ()
    command: Sequence[str] = ()

    def words_of(self, folder: Path, *more: str) -> list[str]:
        """The words of gridtf that run it, with PROGRAM as faults.py and its run directory in a folder."""
        words = self.words or ("--workers", "3")
        command = self.command or (sys.executable, str(folder / "faults.py"), self.name)
        return ["run", "--name", self.name, "--run-dir", str(folder / self.name), *words, *more, "--", *command]

    def fits(self, verdict: Mapping[str, object]) -> bool:
        """Whether a verdict is what it should be."""
        return verdict["state"] == self.state and fits(self.line, verdict["reason"])


_CULPRIT = "worker:2 on HOST: "
_PLACE = " (faults.py:N)"
_BAD_LABEL = f"{_CULPRIT}ValueError: bad label 11{_PLACE}"
_DONE = "all training tasks have exited with 0"
_SHELLS = "with which a shell reports"
_PS = ("--workers", "1", "--ps", "1")

FAULTS = (
    Fault("raises", "a worker raises an exception", _BAD_LABEL),
    Fault(
        "raises-first", "the first worker raises an exception", f"worker:0 on HOST: ValueError: bad label 11{_PLACE}"
    ),
    Fault(
        "chief-raises",
        "the chief raises an exception",
        f"chief:0 on HOST: KeyError: 'loss'{_PLACE}",
        words=("--workers", "1", "--chief"),
    ),
    Fault("ps-raises", "a ps raises an exception", f"ps:0 on HOST: OSError: no variables{_PLACE}", words=_PS),
    Fault(
        "evaluator-raises",
        "the evaluator raises an exception",
        "all training tasks have exited with 0; evaluator:0 failed",
        state="COMPLETED",
        words=("--workers", "1", "--evaluator"),
    ),
    Fault(
        "long-message", "an exception with a message of 9,000 characters", f"{_CULPRIT}ValueError: {'x' * 300}{_PLACE}"
    ),
    Fault(
        "strange-message",
        "a message with an escape sequence, in two lines",
        rf"{_CULPRIT}ValueError: café \x1b[31mred{_PLACE}",
    ),
    Fault("no-message", "an exception without a message", f"{_CULPRIT}ValueError{_PLACE}"),
    Fault("assertion", "an assertion fails", f"{_CULPRIT}AssertionError: shapes differ{_PLACE}"),
    Fault("no-file", "a file does not exist", f"{_CULPRIT}FileNotFoundError: … '/nonexistent/data'{_PLACE}"),
    Fault("no-module", "a module does not exist", f"{_CULPRIT}ModuleNotFoundError: No module named …{_PLACE}"),
    Fault("memory-error", "Python runs out of memory", f"{_CULPRIT}MemoryError{_PLACE}"),
    Fault("recursion", "a recursion without an end", f"{_CULPRIT}RecursionError: maximum recursion depth …{_PLACE}"),
    Fault("disk-full", "a disk is full", f"{_CULPRIT}OSError: [Errno 28] No space left on device{_PLACE}"),
    Fault("open-files", "too many open files", f"{_CULPRIT}OSError: [Errno 24] Too many open files{_PLACE}"),
    Fault("gridtf-error", "an error of gridtf's own ends the program", f"{_CULPRIT}exit code 1: the data are gone"),
    Fault("interrupted", "a program interrupts itself", f"{_CULPRIT}killed by SIGINT"),
    Fault("exit-3", "exit code 3", f"{_CULPRIT}exit code 3"),
    Fault("exit-text", "`sys.exit` with a text", f"{_CULPRIT}exit code 1"),
    Fault("exit-at-once", "`os._exit`", f"{_CULPRIT}exit code 4"),
    Fault("exit-255", "exit code 255", f"{_CULPRIT}exit code 255"),
    Fault("abort", "a program aborts", f"{_CULPRIT}killed by SIGABRT"),
    Fault("segfault", "a crash in native code", f"{_CULPRIT}killed by SIGSEGV"),
    Fault("sigbus", "SIGBUS", f"{_CULPRIT}killed by SIGBUS"),
    Fault("sigfpe", "SIGFPE", f"{_CULPRIT}killed by SIGFPE"),
    Fault("sigill", "SIGILL", f"{_CULPRIT}killed by SIGILL"),
    Fault("sigkill", "SIGKILL", f"{_CULPRIT}killed by SIGKILL"),
    Fault("sigxcpu", "the CPU limit of the shell", f"{_CULPRIT}killed by SIGXCPU"),
    Fault("sighup", "SIGHUP", f"{_CULPRIT}killed by SIGHUP"),
    Fault("shell-137", "a shell whose program was killed", f"{_CULPRIT}exit code 137, {_SHELLS} SIGKILL"),
    Fault("shell-139", "a shell whose program has crashed", f"{_CULPRIT}exit code 139, {_SHELLS} SIGSEGV"),
    Fault(
        "thread",
        "an exception in a thread, which the program survives",
        "all training tasks have exited with 0",
        state="COMPLETED",
    ),
    Fault("caught", "a failing child that the program expects", _DONE, state="COMPLETED"),
    Fault("slow-end", "a worker raises, and ends after its victims", _BAD_LABEL),
    Fault("slow-end-of-all", "the same where all take time to end", _BAD_LABEL),
    Fault("victim-by-abort", "the same where a victim aborts without an exception", _BAD_LABEL),
    Fault("early-exit", "a worker exits with 0 while others train", f"worker:2 on HOST {EXITED}"),
    Fault("chain", "the same where one victim accuses another", f"worker:2 on HOST {EXITED}"),
    Fault("silent", "a worker hangs, and others lose it", "worker:2 on HOST did not respond any more (…"),
    Fault("stopped", "a worker is stopped, and others lose it", "worker:2 on HOST did not respond any more (…"),
    Fault("killed-with-victims", "a worker is killed, and others lose it", f"{_CULPRIT}killed by SIGKILL"),
    Fault("leader-killed", "the first worker is killed, and others lose it", "worker:0 on HOST: killed by SIGKILL"),
    Fault("victims-only", "tasks that accuse each other", f"worker:0 on HOST: RuntimeError: Socket closed…{_PLACE}"),
    Fault(
        "not-found",
        "a script calls a command that does not exist",
        "worker:N on HOST: exit code 127",
        command=("sh", "-c", "no-such-program"),
    ),
    Fault("false", "a command fails and prints nothing", "worker:N on HOST: exit code 1", command=("false",)),
    Fault(
        "syntax-error",
        "a program has a wrong syntax",
        "worker:0 on HOST: SyntaxError: …",
        words=("--workers", "1"),
        command=(sys.executable, "-c", "def f(:"),
    ),
    Fault(
        "in-a-shell",
        "a shell passes the end of a program on",
        "worker:0 on HOST: ValueError: bad (<string>:1)",
        words=("--workers", "1"),
        command=("sh", "-c", f"{shlex.quote(sys.executable)} -c \"raise ValueError('bad')\"; exit $?"),
    ),
    Fault(
        "without-the-hook",
        "an exception with `--no-hook`",
        "worker:0 on HOST: exit code 1",
        words=("--workers", "1", "--no-hook"),
        command=(sys.executable, "-c", "raise ValueError('bad')"),
    ),
    Fault(
        "isolated",
        "an exception in `python -I`",
        "worker:0 on HOST: exit code 1",
        words=("--workers", "1"),
        command=(sys.executable, "-I", "-c", "raise ValueError('bad')"),
    ),
)
# An exception, a task type that decides nothing, an exit code, signals by a program, the kernel and a limit, a shell
# that reports one; a culprit that ends last, that ends well, that hangs, that is killed; no program at all.
_STANDING = (
    *("raises", "evaluator-raises", "exit-3", "segfault", "sigkill", "sigxcpu", "shell-137"),
    *("slow-end-of-all", "early-exit", "silent", "killed-with-victims", "not-found"),
)
ON_CLUSTERS = tuple(fault for fault in FAULTS if fault.name in _STANDING)
