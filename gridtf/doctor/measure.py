"""The program of the job of `gridtf doctor --probe`: every host measures itself and its connections to the others.

It runs as a script, by a Python without site-packages: beyond the standard library it has gridtf.host.network alone.
The hosts meet in a folder that they share. Each writes here-INDEX.json when its server listens, on the port that is
reserved for its task, and INDEX.json with its measurements (judge.py has their kind) at the end. Every wait ends.

If it shall measure the end of the job as well, it then waits to be killed; end-INDEX.json has the signals that came.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import resource
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

END = "end"  # the argument by which it shall wait to be killed
PROGRAM = "program="  # begins the arguments that name programs to look for
END_LIMIT = 120.0  # seconds that it waits for that

_LIMIT = 60.0  # seconds that all of it takes at most, without the end
_ARRIVAL = 20.0  # seconds for all hosts to appear
_PEERS = 40.0  # seconds after the beginning when measurements of other hosts end
_CONNECT = 4.0  # seconds for a connection, and for an answer
_DELAY = 12.0  # seconds for a file of another host to appear
_PYTHON = 20.0  # seconds for the user's Python to say its versions
_LONGEST = 4096  # characters of a question or an answer; other programs may send without end
_ROUNDS = 8  # exchanges of which the fastest gives the offset of two clocks
_PTRACE_SEIZE = 0x4206  # linux/ptrace.h
_WARNINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)

_LIMITS = ("NOFILE", "NPROC", "MEMLOCK", "AS", "STACK", "CORE")
_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "no_proxy")
# Variables that may list GPUs, and parts of the names of others that contain the same words.
_OF_GPUS = re.compile(r"GPU|CUDA|ROCR|HIP_|ZE_AFFINITY|ACCEL|SGE_HGR_|DEVICE", re.IGNORECASE)
_NOT_OF_GPUS = re.compile(r"PATH|HOME|ROOT|DIR|LIB|INC|MODULE|LMOD|LMFILES|EBVERSION|TF_|XLA", re.IGNORECASE)
_LISTS = re.compile(r"[\w.:/, -]{1,200}", re.ASCII)
_DEVICES = re.compile(r"nvidia\d+|kfd|davinci\d+|accel\d+")
# The names under which TensorFlow is published.
_VERSIONS = """
import json, sys
from importlib import metadata, util
found = None
for name in ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu", "tensorflow-rocm", "intel-tensorflow"):
    try:
        found = metadata.version(name)
        break
    except metadata.PackageNotFoundError:
        pass
if found is None and util.find_spec("tensorflow"):
    found = "of unknown version"
print(json.dumps({"version": sys.version.split()[0], "path": sys.executable, "tensorflow": found}))
"""

Answer = Callable[[str], "dict[str, Any]"]


def main(arguments: Sequence[str]) -> int:
    """Measure, and write the measurements.

    Args:
        arguments: The user's Python; programs to look for, after PROGRAM; and END, if it shall wait to be killed.

    Returns:
        The exit code.
    """
    traced = _ptrace()  # forks: before there are threads
    begin = time.monotonic()
    index, members = _place(os.environ)
    nonce = os.environ["GRIDTF_NONCE"]
    folder = meeting_folder(Path(os.environ["OUTPUT_DIR"]), nonce)
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"index": index, "hostname": socket.gethostname(), "ptrace": traced, "peers": {}}
    record |= _host()
    programs = [word.removeprefix(PROGRAM) for word in arguments[1:] if word.startswith(PROGRAM)]
    record["programs"] = [program for program in programs if shutil.which(program)]
    asked = threading.Thread(target=lambda: record.update(python=_python(arguments[0])))
    asked.daemon = True
    asked.start()
    with _serving(members[index][1], nonce, lambda word: _answer(word, index, folder)):
        _write(folder / f"here-{index}.json", {"interfaces": record["interfaces"]})
        arrived = _arrived(folder, [f"here-{other}.json" for other in range(len(members))], begin + _ARRIVAL)
        looks = {}
        for other, (host, port) in enumerate(members):
            if other == index:
                continue
            name = f"here-{other}.json"
            seen = json.loads((folder / name).read_text()) if name in arrived else None
            look = _Peer(index, other, host, port, nonce, seen, folder)
            looks[other] = look
            look.start()
        for other, look in looks.items():
            look.join(max(0.0, begin + _PEERS - time.monotonic()))
            record["peers"][str(other)] = look.found | {"links": dict(look.found["links"])}  # threads may go on
        asked.join(max(0.1, begin + _PEERS - time.monotonic()))
        record.setdefault("python", {"error": f"{arguments[0]}: no answer within {_PYTHON:g} s"})
        _write(folder / f"{index}.json", {**record, "time": time.time()})
        # others may still connect to this host
        _arrived(folder, [f"{other}.json" for other in range(len(members))], begin + _LIMIT)
    if END in arguments[1:]:
        _await_end(folder / end_name(index))
    return 0


def meeting_folder(output: Path, nonce: str) -> Path:
    """The folder where the hosts meet. Pure.

    Args:
        output: OUTPUT_DIR.
        nonce: That of the attempt: files of an earlier attempt are in another folder.
    """
    return output / f"probe-{nonce}"


def end_name(index: int) -> str:
    """The name of the file, in that folder, on the end of a task. Pure."""
    return f"end-{index}.json"


def _place(environ: Mapping[str, str]) -> tuple[int, list[tuple[str, int]]]:
    """This task's index, and (host, port) of all tasks."""
    config = json.loads(environ["TF_CONFIG"])
    split = (member.rpartition(":") for member in config["cluster"]["worker"])
    return int(config["task"]["index"]), [(host.strip("[]"), int(port)) for host, _, port in split]


def _write(path: Path, record: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(path)


def _arrived(folder: Path, names: Sequence[str], deadline: float) -> set[str]:
    """Wait until a listing of the folder shows all of these names; returns those that it shows."""
    while True:
        there = set(names).intersection(os.listdir(folder))
        if len(there) == len(names) or time.monotonic() > deadline:
            return there
        time.sleep(0.05)


def _await_end(path: Path) -> None:
    """Wait to be killed. The file has the signals that came before, and for how long this process has lived."""
    begin = time.monotonic()
    signals: list[tuple[str, float]] = []
    for number in _WARNINGS:
        signal.signal(number, lambda got, _: signals.append((signal.Signals(got).name, time.monotonic() - begin)))
    while (lived := time.monotonic() - begin) < END_LIMIT:
        names, times = ([*column] for column in zip(*signals, strict=True)) if signals else ([], [])
        _write(path, {"signals": names, "times": times, "lived": lived})
        time.sleep(0.2)


# --- the server ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _serving(port: int, nonce: str, answer: Answer) -> Iterator[None]:
    """Answer on this port, which the agent holds, as TensorFlow would: a line for each line "NONCE word"."""

    class Handler(socketserver.StreamRequestHandler):
        timeout = _PEERS

        def handle(self) -> None:
            with contextlib.suppress(OSError):
                while line := self.rfile.readline(_LONGEST):
                    given, _, word = line.decode(errors="replace").strip().partition(" ")
                    if given != nonce:
                        return
                    self.wfile.write(json.dumps(answer(word)).encode() + b"\n")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("", port), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = _listening(port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _listening(port: int) -> socket.socket:
    """A socket that listens on all addresses of this host, IPv6 and IPv4, or IPv4 where there is no IPv6."""
    try:
        opened = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    opened.bind(("", port))
    opened.listen(128)
    return opened


def _answer(word: str, index: int, folder: Path) -> dict[str, Any]:
    """The answer to another host: who this is, and its time; or, to "mark N", once a file for host N is written."""
    name, _, other = word.partition(" ")
    if name == "mark" and other.isdecimal():
        _write(folder / f"mark-{index}-{int(other)}.json", {})
    return {"index": index, "time": time.time()}


# --- another host ----------------------------------------------------------------------------------------------------


class _Peer(threading.Thread):
    """Measures one other host: its name, connections, clock, and how soon its files appear here.

    Args:
        index: This task.
        other: The task of the other host.
        host: Its address in TF_CONFIG.
        port: Its port.
        nonce: The nonce of the attempt, by which the hosts know each other.
        here: What the other host has written when it began; None if its file did not appear.
        folder: The folder where the hosts meet.

    Attributes:
        found: The measurements so far.
    """

    def __init__(
        self, index: int, other: int, host: str, port: int, nonce: str, here: Mapping[str, Any] | None, folder: Path
    ) -> None:
        super().__init__(daemon=True)
        self._index, self._other, self._host, self._port = index, other, host, port
        self._nonce, self._here, self._folder = nonce, here, folder
        self.found: dict[str, Any] = {"host": host, "port": port, "seen": here is not None, "unresolved": "no answer"}
        self.found["links"] = {}

    def run(self) -> None:
        begin = time.monotonic()
        links: dict[str, dict[str, str]] = self.found["links"]
        tries = [threading.Thread(target=self._by_link, args=(row, links), daemon=True) for row in self._links()]
        for one in tries:
            one.start()
        try:
            answers = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self.found["unresolved"] = ""
        except (OSError, UnicodeError) as error:
            answers = []
            self.found["unresolved"] = getattr(error, "strerror", None) or str(error)
        self.found["resolving"] = time.monotonic() - begin
        self.found["resolved"] = list(dict.fromkeys(str(target[0]) for *_, target in answers))
        if answers:
            self.found["by_name"] = self._try(self._host)
        for one in tries:
            one.join(2 * _CONNECT)
        places = [self._host] if self.found.get("by_name") == "" else []
        places += [link["address"] for link in dict(links).values() if link["error"] == ""]
        if places:
            with contextlib.suppress(OSError, ValueError), self._connection(places[0]) as ask:
                self._compare_clocks(ask)
                self._await_file(ask)

    def _links(self) -> list[Mapping[str, Any]]:
        return [row for row in (self._here or {}).get("interfaces", []) if row["up"] and row["address"]]

    def _by_link(self, row: Mapping[str, Any], links: dict[str, dict[str, str]]) -> None:
        links[row["name"]] = {"address": row["address"], "error": self._try(row["address"])}

    def _try(self, place: str) -> str:
        """Connect to a name or an address of the other host. Returns what is wrong; empty if it answers."""
        try:
            with self._connection(place) as ask:
                who = ask("who")["index"]
        except OSError as error:
            return "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        except (ValueError, TypeError, LookupError):  # no JSON, or other JSON than a host of this job sends
            return "another program answers"
        return "" if who == self._other else "another host of this job answers"

    @contextlib.contextmanager
    def _connection(self, place: str) -> Iterator[Answer]:
        """A connection; yields a function that sends a word and returns the answer."""
        with socket.create_connection((place, self._port), _CONNECT) as opened, opened.makefile("rw") as stream:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield lambda word: _ask(stream, f"{self._nonce} {word}")

    def _compare_clocks(self, ask: Answer) -> None:
        rounds = []
        for _ in range(_ROUNDS):
            sent, before = time.time(), time.monotonic()
            theirs = float(ask("who")["time"])
            rounds.append((time.monotonic() - before, theirs - sent))
        ahead, doubt = offset(rounds)
        self.found["ahead"], self.found["doubt"] = round(ahead * 1e6), round(doubt * 1e6)  # in microseconds

    def _await_file(self, ask: Answer) -> None:
        ask(f"mark {self._index}")
        begin = time.monotonic()
        name = f"mark-{self._other}-{self._index}.json"
        there = _arrived(self._folder, [name], begin + _DELAY)
        self.found["delay"] = time.monotonic() - begin if there else None


def _ask(stream: TextIO, line: str) -> dict[str, Any]:
    stream.write(line + "\n")
    stream.flush()
    answer: dict[str, Any] = json.loads(stream.readline(_LONGEST))
    return answer


def offset(rounds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The offset of another host's clock, as NTP finds it (RFC 5905): the fastest exchange is the most precise. Pure.

    Args:
        rounds: (seconds from question to answer, time in the answer less the time of the question), at least one.

    Returns:
        Seconds by which the other clock is ahead, and the most by which this may be wrong.
    """
    took, ahead = min(rounds)
    return ahead - took / 2, took / 2


# --- this host -------------------------------------------------------------------------------------------------------


def _host() -> dict[str, Any]:
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from gridtf.host import network

    rows = [
        {"name": one.name, "up": one.up, "address": one.ipv4 or one.ipv6}
        for one in network.interfaces()
        if not network.is_loopback(one.ipv4 or "")
    ]
    return {
        "interfaces": rows,
        "variables": gpu_variables(_started_with(os.getppid())),
        "devices": [name for name in sorted(os.listdir("/dev")) if _DEVICES.fullmatch(name) and _usable(name)],
        "proxies": [name for name in _PROXIES if os.environ.get(name) or os.environ.get(name.upper())],
        "limits": {name.lower(): _limit(getattr(resource, f"RLIMIT_{name}")) for name in _LIMITS},
        "infiniband": Path("/sys/class/infiniband").is_dir() and bool(os.listdir("/sys/class/infiniband")),
        "ports": "-".join(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()),
        "cpus": [len(os.sched_getaffinity(0)), os.cpu_count() or 1],
    }


def _limit(kind: int) -> int:
    """A resource limit that holds now (the soft one); -1: unlimited, as are numbers beyond all memory."""
    soft = resource.getrlimit(kind)[0]
    return soft if soft < 1 << 50 else -1


def _started_with(pid: int) -> dict[str, str]:
    """The environment with which a process was started: that of the agent has the variables as the job has them."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return dict(os.environ)
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def gpu_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that may list GPUs, by their names and values. Pure.

    Args:
        environ: An environment of the job.
    """
    return {
        name: text
        for name, text in sorted(environ.items())
        if _OF_GPUS.search(name) and not _NOT_OF_GPUS.search(name) and _LISTS.fullmatch(text)
    }


def _usable(device: str) -> bool:
    """Whether this job may use a device; device control groups deny others."""
    return os.access(f"/dev/{device}", os.R_OK)


def _python(chosen: str) -> dict[str, Any]:
    """Versions of the user's Python and of its TensorFlow."""
    found = shutil.which(chosen) or (shutil.which("python3") if chosen == "python" else None)
    if not found:
        return {"error": f"there is no {chosen}{'' if '/' in chosen else ' on the PATH'}"}
    return versions(found, _PYTHON)


def versions(program: str, limit: float) -> dict[str, Any]:
    """Have a Python print its version and that of its TensorFlow, which it does not import.

    Args:
        program: Its path.
        limit: Seconds that it may take.

    Returns:
        ``version``, ``path`` and ``tensorflow``, which is None where there is none; or ``error``, in one line.
    """
    from gridtf.host.interpreter import ROOT, asked

    argv, environ = asked(program, ["-c", _VERSIONS], os.environ, Path())
    try:
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=limit, cwd=ROOT, check=False)
        if done.returncode:
            return {"error": f"{program}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}"}
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {"error": f"{program}: no answer within {limit:g} s"}
    except (OSError, ValueError, TypeError, IndexError) as error:
        return {"error": f"{program}: {type(error).__name__}"}


def _ptrace() -> dict[str, str]:
    """Try to trace a child of this process, as a debugger would: what is wrong, and Yama's ptrace_scope."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        signal.pause()
        os._exit(0)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
        libc.ptrace.restype = ctypes.c_long
        error = "" if libc.ptrace(_PTRACE_SEIZE, child, None, None) == 0 else errno.errorcode[ctypes.get_errno()]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        scope = ""
    return {"error": error, "scope": scope}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
