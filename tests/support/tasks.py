"""Tasks started by hand: real TensorFlow processes on this host, without launcher and agents."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 500.0  # seconds; what tests wait for takes a small part of it on a quiet machine


class Cluster:
    """Tasks on this host, with ports held as an agent holds them, and without TF_CONFIG."""

    def __init__(self, folder: Path, stack: ExitStack, counts: dict[str, int]) -> None:
        self.folder = folder
        self.stack = stack
        self.members: dict[str, list[str]] = {}
        for task_type, count in counts.items():
            self.members[task_type] = [f"127.0.0.1:{self._hold_port()}" for _ in range(count)]
        (folder / "rendezvous.json").write_text(json.dumps({"nonce": "n", "cluster": self.members}))

    def _hold_port(self) -> int:
        holder = self.stack.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("", 0))
        return int(holder.getsockname()[1])

    def start(self, task_type: str, index: int, *words: str, label: str = "") -> subprocess.Popen[bytes]:
        """``python -m WORDS`` as this task; the label tells apart the logs of several processes of one task."""
        environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"} | {
            "PYTHONPATH": str(ROOT),
            "GRIDTF_RUN_DIR": str(self.folder),
            "GRIDTF_ATTEMPT": "1",
            "GRIDTF_TASK_TYPE": task_type,
            "GRIDTF_TASK_INDEX": str(index),
            "GRIDTF_RENDEZVOUS": str(self.folder / "rendezvous.json"),
            "GRIDTF_NONCE": "n",
            "GRIDTF_LOCAL_DIR": str(self.folder / "local"),
            "OUTPUT_DIR": str(self.folder),
            "TF_GRPC_REUSE_PORT": "1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "CUDA_VISIBLE_DEVICES": "",
        }
        with self.log(task_type, index, label).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *words], cwd=self.folder, env=environ, stdout=log, stderr=subprocess.STDOUT
            )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def log(self, task_type: str, index: int, label: str = "") -> Path:
        return self.folder / f"{task_type}-{index}{label}.log"

    def wait_for(self, process: subprocess.Popen[bytes], task_type: str, index: int, words: str) -> None:
        """Wait until the log of a task contains these words."""
        deadline = time.monotonic() + LIMIT
        while words not in (log := self.log(task_type, index).read_text()):
            assert process.poll() is None, log
            assert time.monotonic() < deadline, log
            time.sleep(0.05)
