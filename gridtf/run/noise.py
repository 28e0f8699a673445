"""What TensorFlow's C++ code prints in every job, mostly while a task starts, and says nothing about it. Pure.

The lines are those of TensorFlow 2.8 to 2.21, with and without GPUs. An error is among them only if it is known to be
none: the factories of the CUDA libraries are registered twice in every process. What is said about missing GPUs is
noise only in tasks without GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# I0000 00:00:1795801395.635739   17122 cpu_feature_guard.cc:227] This …        (since 2.18)
# 2024-08-20 10:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN …
_HEAD = r"(?:[{0}]\d{{4}} [\d:.]+ +\d+ |\d{{4}}-\d\d-\d\d [\d:.]+: [{0}] )(?:[\w.-]+/)*(?:{1})\.(?:cc|h):\d+\] *(?:{2})"
_ROWS = (  # severities, source files, beginnings of messages
    ("I", "cpu_feature_guard|mlir_graph_optimization_pass", ""),
    ("I", "port|util", "oneDNN custom operations are on"),
    ("I", "grpc_server_lib", "Started server with target"),
    ("I", "grpc_channel", "Initialize GrpcChannelCache"),
    ("I", "master", "Scanning workers for devices"),
    (
        "I",
        "coordination_service|coordination_service_agent",
        r"Initializing|\S+ has connected|Waiting for \d+/\d+ tasks|Example stragglers|"
        r"Barrier\(.*\) has passed with status: OK|Coordination agent has successfully connected",
    ),
    ("I", "eager_service_impl", "Creating |SessionOptions: "),
    ("I", "dispatcher_impl|worker_impl", "Attempting to restore|No journal|Started|Worker registered"),
    ("I", "server_lib", r"Started tf\.data"),
    ("I", "service|xla_service|device_compiler", "XLA service|StreamExecutor device|Compiled cluster using XLA"),
    ("I", "dump_mlir_util", "disabling MLIR crash reproducer"),
    ("I", "kernel_and_device", "Ignoring error status when releasing"),
    ("IW", "generator_dataset_op|dataset", "Memory patch applied|Input of GeneratorDatasetOp"),
    ("I", r"cuda_\w+|gpu_\w+", ".*NUMA node"),
    ("I", "executor", ".*does not indicate an error"),
    (
        "IW",
        "local_rendezvous",
        "Local rendezvous is aborting with status: (?:ABORTED: (?:Clean|Shutdown)|OUT_OF_RANGE: End)",
    ),
    ("W", "destroy_tensor_handle_node", "Ignoring an error encountered when deleting remote tensors"),
    ("EW", "cuda_dnn|cuda_fft|cuda_blas", r"Unable to register cu\w+ factory"),
    ("EW", "computation_placer", "computation placer already registered"),
    ("W", "py_utils", "TF-TRT Warning: Could not find TensorRT"),
)
_ROWS_WITHOUT_GPUS = (
    ("IW", "cudart_stub|dso_loader", ""),
    ("I", "cuda_diagnostics", ""),
    ("EW", r"cuda_\w+", ".*[Ff]ailed call to cuInit"),
    ("W", "gpu_device", "Cannot dlopen some GPU libraries"),
)
# by its coordination service, of a task that has ended before this one
_ROWS_OF_LEAVING = (("E", "base_collective_executor", r".*UNAVAILABLE: .*stopped sending heartbeats\)"),)
_PLAIN = (
    "WARNING: All log messages before absl::InitializeLog",
    "To enable the following instructions: .*rebuild TensorFlow",
    r"/job:\w+/replica:\d+/task:\d+$",  # below Example stragglers
    "Your kernel may have been built without NUMA support",
)
_PLAIN_WITHOUT_GPUS = (r"Skipping registering GPU devices\.\.\.$",)
_PLAIN_OF_LEAVING = ("The tasks have crashed. Check the task logs for an earlier error",)
# a record of protobuf behind such a line, up to an empty line: SessionOptions: goo.gle/debugstr
_RECORD = re.compile(r".*: goo\.gle/debug\w+ *$")
_FIELD = re.compile(r" *(?:[a-z_0-9]+(?:: .*| \{)|\})?$")


def _one_of(rows: tuple[tuple[str, str, str], ...], lines: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join([*(_HEAD.format(*row) for row in rows), *lines]))


_NOISE = _one_of(_ROWS, _PLAIN)
_WITHOUT_GPUS = _one_of(_ROWS_WITHOUT_GPUS, _PLAIN_WITHOUT_GPUS)
_OF_LEAVING = _one_of(_ROWS_OF_LEAVING, _PLAIN_OF_LEAVING)


# Keras's progress bar, which has a line for each of its states where the output is no terminal.
BAR = re.compile(r"(?:\x1b\[[\d;]*m)* *\d+/(?:\d+|Unknown)\b.*[━=>]")


class Noise:
    """Tells the noise, and states of a progress bar that another one follows, from the other lines of one log.

    Args:
        gpus: Whether the task has GPUs.
        left: Whether other tasks have left the job in good order, which TensorFlow takes for a crash.
    """

    def __init__(self, *, gpus: bool, left: bool = False) -> None:
        self._patterns = [_NOISE, *([] if gpus else [_WITHOUT_GPUS]), *([_OF_LEAVING] if left else [])]
        self._in_record = False

    def without(self, lines: list[str]) -> Iterator[str]:
        """The lines, in the order of the log, that are not noise."""
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if BAR.match(line) and BAR.match(following):
                continue
            if any(pattern.match(line) for pattern in self._patterns):
                self._in_record = bool(_RECORD.match(line))
            elif self._in_record and _FIELD.match(line):
                self._in_record = bool(line)
            else:
                self._in_record = False
                yield line
