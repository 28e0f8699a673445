"""Faults of programs, each with the first line that `gridtf status` and the verdict must have for it.

All of them are run on this machine (tests/local/test_program_faults.py), and some that stand for the others also on
clusters, by `gridtf run` inside one allocation (tests/cluster/test_program_faults.py). docs/reference.md shows them
(scripts/faulttables.py). Other faults: hosts.py.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gridtf.values import Fields
from tests.faults.firstlines import fits

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

def limited(what, value):
    """A limit that befalls root as well."""
    import resource
    resource.setrlimit(getattr(resource, what), (value, value))

def memory():
    limited("RLIMIT_AS", 500 << 20)
    held = []
    while True:
        held.append(bytearray(1 << 20))

def threads():
    limited("RLIMIT_AS", 900 << 20)
    threading.stack_size(64 << 20)
    while True:
        threading.Thread(target=wait, daemon=True).start()

def file_size():
    limited("RLIMIT_FSIZE", 1000)
    with open(os.path.join(os.environ["OUTPUT_DIR"], "large"), "wb", 0) as file:
        while True:
            file.write(bytes(600))

def full():
    with open("/dev/full", "wb", 0) as file:
        file.write(b"x")

class Odd(Exception):
    def __str__(self):
        raise RuntimeError("it has no message")

def chained():
    try:
        raise ValueError("first")
    except ValueError as error:
        raise KeyError("last") from error

def port_in_use():
    import socket
    one, other = socket.socket(), socket.socket()
    one.bind(("127.0.0.1", 0))
    one.listen()
    other.bind(one.getsockname())

def refused():
    import socket
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        nobody = one.getsockname()
    socket.create_connection(nobody)

def broken_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"x")

def no_json():
    import json
    json.loads("{")

def cut_pickle():
    import pickle
    pickle.loads(pickle.dumps([1, 2])[:-3])

def in_asyncio():
    import asyncio
    async def main():
        fail(ValueError("bad label 11"))
    asyncio.run(main())

def cancelled():
    import asyncio
    fail(asyncio.CancelledError())

def in_a_pool():
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(1) as pool:
        pool.submit(full).result()

def in_a_process():
    import multiprocessing
    child = multiprocessing.Process(target=fail, args=(ValueError("bad"),))
    child.start()
    child.join()
    sys.exit(child.exitcode)

def no_folder():
    os.makedirs(os.path.join(os.environ["OUTPUT_DIR"], "gone"))
    os.chdir(os.path.join(os.environ["OUTPUT_DIR"], "gone"))
    os.rmdir(os.getcwd())

def tidied():
    import shutil
    shutil.rmtree(os.environ["GRIDTF_LOCAL_DIR"])

def own_json():
    """Goes on as a program beside a module with the name of one of Python's."""
    for name, text in (("json.py", ""), ("train.py", "import json\\nraise ValueError('bad label 11')")):
        with open(os.path.join(os.environ["OUTPUT_DIR"], name), "w") as file:
            file.write(text)
    os.execv(sys.executable, [sys.executable, file.name])

def without_log():
    run = os.path.dirname(os.environ["OUTPUT_DIR"])
    os.unlink(os.path.join(run, "attempt-1", "logs", "worker-0.log"))

def child(way):
    if os.fork() == 0:
        way()
        os._exit(0)

def daemon():
    child(lambda: (os.setsid(), child(wait)))

def ignoring(number):
    signal.signal(number, signal.SIG_IGN)
    wait()

def exits_when_ended():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    wait()

BAD = ValueError("bad label 11")

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
    "memory-error": culprit(memory),
    "recursion": culprit(lambda: deep(0)),
    "disk-full": culprit(full),
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
    "all-at-once": lambda: fail(BAD),
    "victims-ignore-term": lambda: members(*[lambda: ignoring(15)] * 2, lambda: (slowly(0.5), fail(BAD))),
    "victims-exit-well": lambda: members(exits_when_ended, exits_when_ended, lambda: (slowly(0.5), fail(BAD))),
    "unprintable": lambda: fail(Odd()),
    "nul": lambda: fail(ValueError("bad\\0label")),
    "surrogate": lambda: fail(ValueError("bad \\udc80 label")),
    "chained": chained,
    "asyncio": in_asyncio,
    "cancelled-error": cancelled,
    "pool": in_a_pool,
    "process": in_a_process,
    "fork": lambda: (child(lambda: fail(BAD)), os.wait()),
    "threads": threads,
    "file-size": file_size,
    "quota": lambda: fail(OSError(122, "Disk quota exceeded")),
    "read-only": lambda: fail(OSError(30, "Read-only file system", "/data")),
    "no-input": input,
    "no-terminal": lambda: open("/dev/tty"),
    "port-in-use": port_in_use,
    "refused": refused,
    "broken-pipe": broken_pipe,
    "failing-child": lambda: subprocess.run(["false"], check=True),
    "no-json": no_json,
    "cut-pickle": cut_pickle,
    "no-library": lambda: ctypes.CDLL("libno-such.so"),
    "closed-output": lambda: (os.close(1), os.close(2), fail(BAD)),
    "closed-descriptors": lambda: (os.closerange(3, 1000), fail(BAD)),
    "own-excepthook": lambda: (setattr(sys, "excepthook", lambda *_: print("own")), fail(BAD)),
    "umask": lambda: (os.umask(0o777), fail(BAD)),
    "tidied": lambda: (tidied(), fail(BAD)),
    "own-json": own_json,
    "no-folder": lambda: (no_folder(), fail(BAD)),
    "no-log": lambda: (without_log(), fail(BAD)),
    "many-children": lambda: ([child(wait) for _ in range(100)], fail(BAD)),
    "stubborn-child": lambda: (child(lambda: (os.setsid(), ignoring(15))), fail(BAD)),
    "daemon": daemon,
    "thread-exits": lambda: threading.Thread(target=sys.exit, args=(5,)).start(),
    "atexit": lambda: atexit.register(fail, BAD),
    "exec": lambda: os.execvp("sh", ["sh", "-c", "exit 7"]),
    "exit-256": lambda: sys.exit(256),
    "exit-negative": lambda: sys.exit(-1),
    "exit-float": lambda: sys.exit(2.5),
    "exit-42": lambda: sys.exit(42),
    "exit-99": lambda: sys.exit(99),
    "exit-100": lambda: sys.exit(100),
    "shell-143": lambda: shell("exit 143"),
    "binary-log": lambda: (os.write(1, bytes(range(256)) * 400), sys.exit(3)),
    "long-line": lambda: (os.write(1, b"x" * (20 << 20)), sys.exit(3)),
    "sigterm": lambda: signalled(signal.SIGTERM),
    "sigquit": lambda: signalled(signal.SIGQUIT),
    "sigusr1": lambda: signalled(signal.SIGUSR1),
    "sigpipe": lambda: signalled(signal.SIGPIPE),
    "sigsys": lambda: signalled(signal.SIGSYS),
    "sigtrap": lambda: signalled(signal.SIGTRAP),
    "alarm": lambda: (signal.setitimer(signal.ITIMER_REAL, 0.1), wait()),
    "real-time-signal": lambda: signalled(signal.SIGRTMIN + 3),
    "kills-group": lambda: (os.killpg(0, signal.SIGTERM), wait()),
    "hangs-at-exit": lambda: (slowly(60), fail(BAD)),
    "kills-agent": lambda: (os.kill(os.getppid(), signal.SIGKILL), wait()),
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
_ONE = "worker:0 on HOST: "


def _of_one(name: str, what: str, end: str, *, command: Sequence[str] = (), words: Sequence[str] = ()) -> Fault:
    """A fault of a program of one task. end: how it fails."""
    return Fault(name, what, f"{_ONE}{end}", words=("--workers", "1", *words), command=command)


def _well(name: str, what: str, *, command: Sequence[str] = ()) -> Fault:
    """What costs the job nothing."""
    return Fault(name, what, _DONE, state="COMPLETED", words=("--workers", "1"), command=command)


def _shell(line: str) -> tuple[str, ...]:
    return ("bash", "-c", line.replace("@python", shlex.quote(sys.executable)))


_BAD = f"ValueError: bad label 11{_PLACE}"
_RAISE = "@python -c 'raise ValueError(11)'"
_GRACE = ("--kill-grace", "1")

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
        "long-message", "an exception with a message of 9,000 characters", f"{_CULPRIT}ValueError: {'x' * 300}…{_PLACE}"
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
        "worker:0 on HOST: ValueError: bad (<string>:1)",
        words=("--workers", "1", "--no-hook"),
        command=(sys.executable, "-c", "raise ValueError('bad')"),
    ),
    Fault(
        "isolated",
        "an exception in `python -I`",
        "worker:0 on HOST: ValueError: bad (<string>:1)",
        words=("--workers", "1"),
        command=(sys.executable, "-I", "-c", "raise ValueError('bad')"),
    ),
    Fault("all-at-once", "all workers raise the same exception", f"worker:N on HOST: {_BAD}"),
    Fault(
        "victims-ignore-term",
        "a worker raises, and others ignore SIGTERM",
        _BAD_LABEL,
        words=("--workers", "3", *_GRACE),
    ),
    Fault("victims-exit-well", "a worker raises, and others exit with 0 at SIGTERM", _BAD_LABEL),
    _of_one("unprintable", "an exception whose `__str__` raises", f"Odd: <exception str() failed>{_PLACE}"),
    _of_one("nul", "a message with a NUL", rf"ValueError: bad\0label{_PLACE}"),
    _of_one("surrogate", "a message that is no valid Unicode", rf"ValueError: bad \udc80 label{_PLACE}"),
    _of_one(
        "chained",
        "an exception with another one as its cause",
        f"KeyError: 'last'{_PLACE}, caused by ValueError: first{_PLACE}",
    ),
    _of_one("asyncio", "an exception in asyncio", _BAD),
    _of_one("cancelled-error", "an exception that is no `Exception`", f"CancelledError{_PLACE}"),
    _of_one("pool", "an exception in a process of a pool", f"OSError: [Errno 28] No space left on device{_PLACE}"),
    _of_one(
        "process", "a child of multiprocessing raises, and the program exits with its code", f"ValueError: bad{_PLACE}"
    ),
    _well("fork", "a child raises, and the program goes on"),
    _of_one("threads", "no thread can be started", f"RuntimeError: can't start new thread{_PLACE}"),
    _of_one("file-size", "a file exceeds the shell's limit", f"OSError: [Errno 27] File too large{_PLACE}"),
    _of_one("quota", "a quota is used up", f"OSError: [Errno 122] Disk quota exceeded{_PLACE}"),
    _of_one("read-only", "a disk is read-only", f"OSError: [Errno 30] Read-only file system: '/data'{_PLACE}"),
    _of_one("no-input", "a program reads its standard input", f"EOFError: EOF when reading a line{_PLACE}"),
    _of_one("no-terminal", "a program opens its terminal", f"OSError: [Errno 6] …: '/dev/tty'{_PLACE}"),
    _of_one("port-in-use", "a port is in use", f"OSError: [Errno 98] Address already in use{_PLACE}"),
    _of_one("refused", "nobody listens on a port", f"ConnectionRefusedError: [Errno 111] Connection refused{_PLACE}"),
    _of_one("broken-pipe", "nobody reads a pipe", f"BrokenPipeError: [Errno 32] Broken pipe{_PLACE}"),
    _of_one(
        "failing-child", "a child that must not fail", f"CalledProcessError: Command '['false']' returned …{_PLACE}"
    ),
    _of_one("no-json", "a file with wrong JSON", f"JSONDecodeError: …{_PLACE}"),
    _of_one("cut-pickle", "a truncated pickle", f"UnpicklingError: pickle data was truncated{_PLACE}"),
    _of_one("no-library", "a shared library does not exist", f"OSError: libno-such.so: …{_PLACE}"),
    _of_one("closed-output", "an exception after standard output and error were closed", _BAD),
    _of_one("closed-descriptors", "an exception after all other descriptors were closed", _BAD),
    _of_one("own-excepthook", "an exception in a program that has its own `sys.excepthook`", _BAD),
    _of_one("umask", "an exception in a program whose umask is 777", _BAD),
    _of_one("tidied", "an exception after the host's `/tmp` was tidied up", _BAD),
    _of_one(
        "own-json", "an exception in a program with a `json.py` of its own", "ValueError: bad label 11 (train.py:2)"
    ),
    _of_one("no-folder", "an exception after the working folder was removed", _BAD),
    _of_one("no-log", "an exception after the task's log was removed", _BAD),
    _of_one("many-children", "an exception of a program with a hundred children", _BAD),
    _of_one("stubborn-child", "the same with a child in its own session that ignores SIGTERM", _BAD, words=_GRACE),
    _well("daemon", "a program ends and leaves a daemon, which is ended"),
    _well("thread-exits", "`sys.exit` in a thread"),
    _well("atexit", "an exception in an exit handler, after which Python exits with 0"),
    _of_one("exec", "a program that another one has replaced", "exit code 7"),
    _well("exit-256", "`sys.exit(256)`, of which the kernel keeps the lowest 8 bits"),
    _of_one("exit-negative", "`sys.exit(-1)`", "exit code 255"),
    _of_one("exit-float", "`sys.exit(2.5)`, which Python prints", "exit code 1"),
    Fault(
        "exit-42",
        "exit code 42",
        "worker:0 saved a checkpoint and ended (exit code 42), to be continued",
        state="SAVED",
        words=("--workers", "1"),
    ),
    _of_one("exit-99", "exit code 99, with which a job script asks Grid Engine for a new start", "exit code 99"),
    _of_one("exit-100", "exit code 100, with which a job script asks Grid Engine to be held", "exit code 100"),
    _of_one("shell-143", "a shell whose program was ended", f"exit code 143, {_SHELLS} SIGTERM"),
    _of_one("binary-log", "exit code 3 after 100 KB that are no text", "exit code 3"),
    _of_one("long-line", "exit code 3 after a line of 20 MB", "exit code 3"),
    _of_one("sigterm", "SIGTERM", "killed by SIGTERM"),
    _of_one("sigquit", "SIGQUIT", "killed by SIGQUIT"),
    _of_one("sigusr1", "SIGUSR1 without a handler", "killed by SIGUSR1"),
    _of_one("sigpipe", "SIGPIPE", "killed by SIGPIPE"),
    _of_one("sigsys", "SIGSYS, by a filter of system calls", "killed by SIGSYS"),
    _of_one("sigtrap", "SIGTRAP", "killed by SIGTRAP"),
    _of_one("alarm", "an alarm without a handler", "killed by SIGALRM"),
    _of_one("real-time-signal", "a real-time signal", "killed by signal N"),
    _of_one("kills-group", "a program ends its process group", "killed by SIGTERM"),
    Fault(
        "kills-agent",
        "a program kills its parent, the agent",
        "the agent on host HOST was killed by SIGKILL",
        words=("--workers", "1"),
    ),
    Fault(
        "hangs-at-exit",
        "an exception in a program that never ends, until the walltime is over",
        f"the walltime is over; worker:0 on HOST had not ended after {_BAD}",
        state="TIMEOUT",
        words=("--workers", "1", "--time", "20s"),
    ),
    _of_one(
        "stack-overflow",
        "a recursion in native code without an end",
        "killed by SIGSEGV",
        command=_shell("ulimit -s 256; f() { f; }; f"),
    ),
    _of_one(
        "ascii",
        "a locale without the character that is printed",
        "UnicodeEncodeError: 'ascii' codec can't encode character … (<string>:1)",
        command=_shell("PYTHONIOENCODING=ascii @python -c 'print(chr(233))'"),
    ),
    _of_one(
        "broken-site",
        "a sitecustomize of the site that fails",
        "ValueError: 11 (<string>:1)",
        command=_shell(
            f'mkdir "$OUTPUT_DIR/site"; echo 1/0 >"$OUTPUT_DIR/site/sitecustomize.py"; '
            f'PYTHONPATH="$PYTHONPATH:$OUTPUT_DIR/site" {_RAISE}'
        ),
    ),
    _of_one(
        "no-home-of-python", "a wrong PYTHONHOME", "exit code 1", command=_shell("PYTHONHOME=/nowhere @python -c ''")
    ),
    _of_one(
        "empty-environment",
        "an exception in `env -i python`",
        "ValueError: 11 (<string>:1)",
        command=_shell(f"env -i {_RAISE}"),
    ),
    _of_one("not-executable", "a command that may not be run", "exit code 126", command=_shell("/etc/passwd")),
    _well("pipeline", "a program fails whose output goes through a pipe", command=_shell(f"{_RAISE} | cat")),
    _of_one(
        "pipefail",
        "the same in a shell with `set -o pipefail`",
        "ValueError: 11 (<string>:1)",
        command=_shell(f"set -o pipefail; {_RAISE} | cat"),
    ),
)
# An exception, a task type that decides nothing, an exit code, signals by a program, the kernel and a limit, a shell
# that reports one; a culprit that ends last, that ends well, that hangs, that is killed; no program at all; its own
# excepthook, an exit code with a meaning for Grid Engine, a process that is left, a killed agent.
_STANDING = (
    *("raises", "evaluator-raises", "exit-3", "segfault", "sigkill", "sigxcpu", "shell-137"),
    *("slow-end-of-all", "early-exit", "silent", "killed-with-victims", "not-found"),
    *("own-excepthook", "exit-99", "daemon", "kills-agent"),
)
ON_CLUSTERS = tuple(fault for fault in FAULTS if fault.name in _STANDING)
