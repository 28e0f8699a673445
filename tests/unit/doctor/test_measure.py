"""What a host of a probe works out from what it reads."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from pathlib import Path

import pytest

from gridtf.doctor import measure
from gridtf.doctor.measure import gpu_variables, offset


@pytest.mark.parametrize(
    ("rounds", "ahead", "doubt"),
    [
        ([(0.002, 5.001)], 5.0, 0.001),
        ([(0.100, 0.09), (0.004, 0.001), (0.020, -0.01)], -0.001, 0.002),
        ([(0.0, 0.0)], 0.0, 0.0),
    ],
    ids=["one", "fastest", "same-clock"],
)
def test_offset_of_a_clock_is_that_of_the_fastest_exchange(
    rounds: list[tuple[float, float]], ahead: float, doubt: float
) -> None:
    assert offset(rounds) == pytest.approx((ahead, doubt))


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (json.dumps({"index": 1, "time": 0.0}).encode() + b"\n", ""),
        (json.dumps({"index": 2, "time": 0.0}).encode() + b"\n", "another host of this job answers"),
        (b"[]\n", "another program answers"),
        (b"{}\n", "another program answers"),
        (b"\xff\xfe\n", "another program answers"),
        (b"1" * 100_000, "another program answers"),  # a line without end
    ],
    ids=["host", "other-host", "list", "empty", "bytes", "endless"],
)
def test_connection_is_judged_by_who_answers(sent: bytes, error: str) -> None:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.recv(100)
                self.request.sendall(sent)
                self.request.recv(100)  # until the other side closes

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        peer = measure._Peer(0, 1, "localhost", server.server_address[1], "nonce", None, Path())
        assert peer._try("127.0.0.1") == error
        server.shutdown()


def test_server_closes_the_connection_of_a_stranger_that_sends_without_end() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with measure._serving(port, "nonce", lambda word: {"word": word}):
        with socket.create_connection(("127.0.0.1", port), 10) as known:
            known.sendall(b"nonce who\n")
            assert json.loads(known.recv(100)) == {"word": "who"}
        with socket.create_connection(("127.0.0.1", port), 10) as stranger:
            stranger.sendall(b"x" * 8192)  # and keeps the connection open
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(100) == b""


def test_gpu_variables_are_those_that_may_list_gpus() -> None:
    lists = {
        "CUDA_VISIBLE_DEVICES": "GPU-1b2c,GPU-3d",
        "SGE_HGR_gpu": "gpu0 gpu1",
        "SITE_GPUS": "0,1",
        "MY_ACCELERATORS": "2",
        "NUM_GPUS": "2",
    }
    others = {
        "CUDA_HOME": "/usr/local/cuda",
        "CUDA_PATH": "/opt/cuda",
        "LD_LIBRARY_PATH": "/opt/cuda/lib",
        "LOADEDMODULES": "cuda/12",
        "TF_GPU_ALLOCATOR": "cuda_malloc_async",
        "GPU_KEY": "a secret; with = signs",
        "PATH": "/usr/bin",
        "RANK": "0",
    }
    assert gpu_variables({**others, **lists}) == lists
