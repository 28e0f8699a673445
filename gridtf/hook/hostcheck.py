"""The check of a host before training: a program that the Python of the tasks runs, beside the agent of the host.

That Python, 3.8 or newer, need not have gridtf. Orders are lines of JSON on stdin, and the answer to each is one on
stdout: what was measured, and what could not be. The end of stdin ends it. Rates are the best of several, since others
may use a host. Each measure yields names of values, values, and what only hosts have in common that can be compared.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import select
import socket
import sys
import tempfile
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Measured = Iterator[tuple[str, float, str]]

_WINDOW = 0.25  # seconds in which work is repeated to see how fast it is
_SIDE, _GPU_SIDE = 768, 4096  # rows and columns of the matrices
_COPY = 16 << 20  # bytes that are copied at once
_BLOCK = 1 << 18  # bytes that are read, sent or received at once
_PINGS = 100
_STREAM = 0.3  # seconds for which a host sends to another one
_PATIENCE = 4.0  # seconds to wait for another host
_MOST_WAITING = 100  # connections, of which one must be the other host's
_LONGEST_WHY = 200  # characters


def _gpu(order: dict[str, Any], listener: socket.socket) -> Measured:
    """Matrix products on each GPU, in TFLOPS of float32."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    for index, gpu in enumerate(gpus):
        with tf.device(f"GPU:{index}"):
            matrix = tf.ones((_GPU_SIDE, _GPU_SIDE))

            def product(matrix: Any = matrix) -> None:
                for _ in range(8):
                    made = tf.linalg.matmul(matrix, matrix)
                made[0, 0].numpy()  # which waits for all of them

            product()
            model = tf.config.experimental.get_device_details(gpu).get("device_name", "")
            yield f"gpu:{index}", _rate(product, 2) * 8 * 2e-12 * _GPU_SIDE**3, str(model)


def _cpu(order: dict[str, Any], listener: socket.socket) -> Measured:
    """Matrix products on the CPUs, in GFLOPS of float32."""
    import numpy

    matrix = numpy.ones((_SIDE, _SIDE), "float32")
    yield "cpu", _rate(lambda: matrix @ matrix, 5) * 2e-9 * _SIDE**3, _cpu_model()


def _memory(order: dict[str, Any], listener: socket.socket) -> Measured:
    """Copies in memory, in GB/s."""
    source, target = bytes(_COPY), bytearray(_COPY)
    yield "memory", _rate(lambda: target.__setitem__(slice(None), source), 3) * 1e-9 * _COPY, _cpu_model()


def _share(order: dict[str, Any], listener: socket.socket) -> Measured:
    """For how much of the time in which this thread could run it does, in percent."""
    (ran, waited), _, (ran_then, waited_then) = _scheduled(), _rate(lambda: None, 2), _scheduled()
    yield "share", 100 * (ran_then - ran) / (ran_then - ran + waited_then - waited), ""


def _disk(order: dict[str, Any], listener: socket.socket, name: str = "run") -> Measured:
    """Writing to a folder, until all is on the disk, and reading, in MB/s."""
    folder, size = order[name]
    block = os.urandom(size)
    # the file has no name by the time that anything is in it
    with tempfile.TemporaryFile(dir=folder or os.environ.get("TMPDIR"), buffering=0) as file:
        begin = time.monotonic()
        if file.write(block) < size:
            raise OSError("no room for it on the disk")
        os.fsync(file.fileno())
        yield f"{name}_write", _speed(size, begin), ""
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        begin = time.monotonic()
        while file.read(_BLOCK):
            pass
        yield f"{name}_read", _speed(size, begin), ""


def _pair(order: dict[str, Any], listener: socket.socket) -> Measured:
    """The way between this host and another one: round trips a second, and what comes from the other one in MB/s."""
    token, peer, fastest = order["token"].encode(), order["peer"], _PATIENCE
    # the peer listens, and may be late to answer
    with socket.create_connection(peer, _PATIENCE) if peer else _accepted(listener, token) as other:
        begin = time.monotonic()
        if peer:
            other.sendall(token + b"x")
        for _ in range(_PINGS):
            other.recv(1)
            fastest = min(fastest, time.monotonic() - begin)
            begin = time.monotonic()  # before it is sent, after which this process may not run for a while
            other.sendall(b"x")
        if peer:
            _send_all(other)
            yield "round_trips", 1 / fastest, ""
        yield "bandwidth", _receive_all(other), ""
        if not peer:
            _send_all(other)


_MEASURES = {"gpu": _gpu, "cpu": _cpu, "memory": _memory, "share": _share, "run": _disk, "pair": _pair}
_MEASURES["tmp"] = lambda order, listener: _disk(order, listener, "tmp")


def _scheduled() -> list[int]:
    """For how many nanoseconds the first thread has run, and has waited for a CPU."""
    return [int(word) for word in Path("/proc/self/schedstat").read_text().split()[:2]]


def _cpu_model() -> str:
    with Path("/proc/cpuinfo").open(errors="replace") as file:
        model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    return f"{model}, {os.environ.get('OMP_NUM_THREADS')} threads"


def _rate(work: Callable[[], object], windows: int) -> float:
    """How often a second work is done, in the best of several windows."""
    best = 0.0
    for _ in range(windows):
        begin, count, passed = time.monotonic(), 0, 0.0
        while passed < _WINDOW:
            work()
            count += 1
            passed = time.monotonic() - begin
        best = max(best, count / passed)
    return best


def _speed(size: int, begin: float) -> float:
    """In MB/s."""
    return size * 1e-6 / max(1e-9, time.monotonic() - begin)


def _accepted(listener: socket.socket, token: bytes) -> socket.socket:
    """The connection of the host that knows the token, whoever else connects: users of this host, port scanners."""
    end, waiting = time.monotonic() + _PATIENCE, [listener]
    listener.setblocking(False)
    try:
        while (left := end - time.monotonic()) > 0:
            for one in select.select(waiting, [], [], left)[0]:
                with contextlib.suppress(OSError):  # it was reset
                    if one is listener:
                        waiting.append(listener.accept()[0])
                        waiting[-1].settimeout(_PATIENCE)
                    elif hmac.compare_digest(one.recv(len(token)), token):
                        return waiting.pop(waiting.index(one))
                if one is not listener:
                    waiting.remove(one)
                    one.close()
            while len(waiting) > _MOST_WAITING:
                waiting.pop(1).close()
        raise TimeoutError("the other host has not connected")
    finally:
        for other in waiting[1:]:
            other.close()


def _send_all(other: socket.socket) -> None:
    block, end = bytes(_BLOCK), time.monotonic() + _STREAM
    while time.monotonic() < end:
        other.sendall(block)
    other.shutdown(socket.SHUT_WR)


def _receive_all(other: socket.socket) -> float:
    """How much comes, in MB/s."""
    space = bytearray(_BLOCK)
    total, begin = other.recv_into(space), time.monotonic()
    if not total:
        raise ConnectionError("the other host has ended the connection")
    while size := other.recv_into(space):
        total += size
    return _speed(total, begin)


def main() -> None:
    """Follow orders until stdin ends."""
    dual, answers = socket.has_dualstack_ipv6(), os.fdopen(os.dup(1), "w")
    listener = socket.create_server(("", 0), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual)
    for descriptor in (1, 2):  # libraries print what they like
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        values, alike, missing = {}, {}, {}
        for measure in order["measures"]:
            try:
                for name, value, like in _MEASURES[measure](order, listener):
                    values[name], alike[name] = value, like
            except Exception as error:  # a package or a disk may fail in any way
                missing[measure] = f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST_WHY]
        found = {"values": values, "alike": alike, "missing": missing, "port": listener.getsockname()[1]}
        answers.write(json.dumps({**found, "number": order["number"], "time": time.time()}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
