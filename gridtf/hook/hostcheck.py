"""The check of a host before training: a program that the Python of the tasks runs, beside the agent of the host.

That Python, 3.8 or newer, need not have gridtf. Orders are lines of JSON on stdin, and the answer to each is one on
stdout: what was measured, and what could not be. The end of stdin ends it. Rates are the best of several, since others
may use a host.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WINDOW, _WINDOWS = 0.25, 5  # seconds in which work is repeated to see how fast it is, and how often that is done
_SIDE, _GPU_SIDE = 768, 4096  # rows and columns of the matrices
_COPY = 16 << 20  # bytes that are copied at once
_BLOCK = 1 << 18  # bytes that are written, sent or received at once
_PINGS = 100
_STREAM = 0.3  # seconds for which a host sends to another one
_PATIENCE = 4.0  # seconds to wait for another host
_LONGEST_WHY = 200  # characters


class _Check:
    """What one order after the other is done with.

    Attributes:
        listener: Where other hosts connect.
        values: What was measured for the present order, as in judge/hostcheck.py.
        alike: Name of a value -> what only hosts or GPUs have in common whose values are comparable.
    """

    def __init__(self) -> None:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self.listener = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        self.values: dict[str, float] = {}
        self.alike: dict[str, str] = {}
        self._cpu = f"{_cpu_model()}, {os.environ.get('OMP_NUM_THREADS')} threads"

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Do what an order says, as far as that is possible here."""
        self.values, self.alike = {}, {}
        missing = {}
        for name in order["measures"]:
            try:
                getattr(self, name)(order)
            except Exception as error:  # a package or the disk may fail in any way
                missing[name] = f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST_WHY]
        port = self.listener.getsockname()[1]
        found = {"values": self.values, "alike": self.alike, "missing": missing, "port": port, "time": time.time()}
        return dict(found, number=order["number"])

    def gpu(self, order: dict[str, Any]) -> None:
        """Measure matrix products on each GPU, in TFLOPS of float32."""
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
                name = f"gpu:{index}"
                self.values[name] = _rate(product, 2) * 8 * 2e-12 * _GPU_SIDE**3
                self.alike[name] = str(tf.config.experimental.get_device_details(gpu).get("device_name", ""))

    def cpu(self, order: dict[str, Any]) -> None:
        """Measure matrix products on the CPUs, in GFLOPS of float32."""
        import numpy

        matrix = numpy.ones((_SIDE, _SIDE), "float32")
        self.values["cpu"] = _rate(lambda: matrix @ matrix, _WINDOWS) * 2e-9 * _SIDE**3
        self.alike["cpu"] = self._cpu

    def memory(self, order: dict[str, Any]) -> None:
        """Measure copies in memory, in GB/s."""
        source, target = bytearray(_COPY), memoryview(bytearray(_COPY))

        def copy() -> None:
            target[:] = source

        self.values["memory"] = _rate(copy, 3) * 1e-9 * _COPY
        self.alike["memory"] = self._cpu

    def tmp(self, order: dict[str, Any]) -> None:
        """Measure the disk of TMPDIR."""
        self._disk("tmp", os.environ.get("TMPDIR") or "/tmp", *order["tmp"])  # noqa: S108

    def run(self, order: dict[str, Any]) -> None:
        """Measure the disk of the run directory."""
        self._disk("run", *order["run"])

    def _disk(self, name: str, folder: str, size: int) -> None:
        """Measure writing, until all is on the disk, and reading, in MB/s."""
        block = os.urandom(min(size, _BLOCK))
        count = max(1, size // len(block))
        # the file has no name by the time that anything is in it
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            begin = time.monotonic()
            for _ in range(count):
                file.write(block)
            os.fsync(file.fileno())
            written = time.monotonic()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            again = time.monotonic()
            while file.read(_BLOCK):
                pass
            read = time.monotonic()
        self.values[name + "_write"] = count * len(block) * 1e-6 / max(1e-9, written - begin)
        self.values[name + "_read"] = count * len(block) * 1e-6 / max(1e-9, read - again)

    def pair(self, order: dict[str, Any]) -> None:
        """Measure the way between this host and another one: latency in ms, what comes from the other in MB/s."""
        token, peer = order["token"].encode(), order["peer"]
        deadline = time.monotonic() + _PATIENCE
        if peer is None:
            with self._accepted(token, deadline) as other:
                for _ in range(_PINGS):
                    other.sendall(_received(other, 1))
                self.values["bandwidth"] = _receive_all(other)
                _send_all(other)
            return
        with _connected(peer, deadline) as other:
            other.sendall(token)
            fastest = _PATIENCE
            for _ in range(_PINGS):
                begin = time.monotonic()
                other.sendall(b"x")
                _received(other, 1)
                fastest = min(fastest, time.monotonic() - begin)
            self.values["latency"] = 1000 * fastest
            _send_all(other)
            self.values["bandwidth"] = _receive_all(other)

    def _accepted(self, token: bytes, deadline: float) -> socket.socket:
        """The connection of the host that knows the token."""
        while True:
            self.listener.settimeout(max(0.01, deadline - time.monotonic()))
            other = self.listener.accept()[0]
            try:
                _prepare(other)
                if hmac.compare_digest(_received(other, len(token)), token):
                    return other
            except OSError:
                pass
            other.close()


def _cpu_model() -> str:
    with Path("/proc/cpuinfo").open(errors="replace") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")


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


def _connected(peer: tuple[str, int], deadline: float) -> socket.socket:
    """A connection to another host, which may be a moment late."""
    while True:
        try:
            return _prepare(socket.create_connection((peer[0], peer[1]), max(0.01, deadline - time.monotonic())))
        except OSError:
            if time.monotonic() > deadline - 0.1:
                raise
            time.sleep(0.1)


def _prepare(other: socket.socket) -> socket.socket:
    other.settimeout(_PATIENCE)
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return other


def _received(other: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = other.recv(size - len(data))
        if not part:
            raise ConnectionError("the other host has closed the connection")
        data += part
    return data


def _send_all(other: socket.socket) -> None:
    block, end = bytes(_BLOCK), time.monotonic() + _STREAM
    while time.monotonic() < end:
        other.sendall(block)
    other.shutdown(socket.SHUT_WR)


def _receive_all(other: socket.socket) -> float:
    """How much comes, in MB/s."""
    space = bytearray(_BLOCK)
    total, begin = other.recv_into(space), time.monotonic()
    while True:
        size = other.recv_into(space)
        total += size
        if not size:
            return total * 1e-6 / max(1e-9, time.monotonic() - begin)


def main() -> None:
    """Follow orders until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    check = _Check()
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # libraries print what they like
        os.dup2(nothing, descriptor)
    for line in iter(sys.stdin.readline, ""):
        answers.write(json.dumps(check.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
