"""The verdict: one line with the task that failed and how, a hint, and the last lines of the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.judge.verdict import Verdict, of_task
from gridtf.run.rundir import Attempt, RunDir, read_record
from gridtf.run.tail import last_error, last_lines
from gridtf.text import some
from tests.support.plans import task
from tests.support.states import CANCELLED, COMPLETED, FAILED, NODE_FAIL, TIMEOUT

WORKER = task("worker:1", "n3", rank=1)
LOST = "the agent on host n3 was killed by SIGKILL"


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return RunDir(tmp_path).new_attempt()


def verdict(attempt: Attempt, log: str | bytes | None = None, *, also: str = "", **record: Any) -> Verdict:
    if log is not None:
        attempt.task_log("worker", 1).write_bytes(log.encode() if isinstance(log, str) else log)
    usual = {"state": "FAILED", "exit": None, "signal": None, "oom": False, "error": None}
    return of_task(WORKER, {**usual, **record}, attempt, also)


# --- reason and hint


def test_verdict_on_an_exit_code(attempt: Attempt) -> None:
    found = verdict(attempt, "one\ntwo\n", exit=3)
    assert (found.state, found.reason, found.exit_code) == (FAILED, "worker:1 on n3: exit code 3", 1)
    assert found.cause == {
        "task": "worker:1",
        "host": "n3",
        "exit": 3,
        "signal": None,
        "log": str(attempt.task_log("worker", 1)),
        "tail": ["one", "two"],
    }


SHELLS = "with which a shell reports"
NO_ROOM = "Resource temporarily unavailable"


@pytest.mark.parametrize(
    ("record", "reason", "hint"),
    [
        ({"signal": "SIGKILL"}, "killed by SIGKILL", "by hand, or by the kernel because memory ran out"),
        ({"signal": "SIGKILL", "oom": True}, "killed by SIGKILL (out of memory)", "the kernel's out-of-memory killer"),
        ({"signal": "SIGSEGV"}, "killed by SIGSEGV", "it crashed in native code"),
        ({"signal": "SIGTERM"}, "killed by SIGTERM", ""),
        ({"signal": "signal 40"}, "killed by signal 40", ""),
        ({"exit": 139}, f"exit code 139, {SHELLS} SIGSEGV", "it crashed in native code"),
        ({"exit": 137, "oom": True}, f"exit code 137, {SHELLS} SIGKILL (out of memory)", "the kernel's"),
        ({"exit": 255}, "exit code 255", ""),
        ({"error": f"cannot run x: {NO_ROOM}", "exit": 126}, f"cannot run x: {NO_ROOM}", "the limit on your processes"),
        ({"error": "command not found: ./x", "exit": 127}, "command not found: ./x", "check the command"),
    ],
)
def test_verdict_on_a_task_has_reason_and_hint(
    attempt: Attempt, record: dict[str, Any], reason: str, hint: str
) -> None:
    found = verdict(attempt, "", **record)
    assert found.reason == f"worker:1 on n3: {reason}"
    assert found.hint.startswith(hint)
    assert bool(found.hint) == bool(hint)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("bad label 11", "ValueError: bad label 11 (train.py:41)"),
        ("", "ValueError (train.py:41)"),
        ("first\nsecond", "ValueError: first (train.py:41)"),
        ("\x1b[31mred", "ValueError: \\x1b[31mred (train.py:41)"),
        ("x" * 1000, f"ValueError: {'x' * 300}… (train.py:41)"),
        ("of two words " * 100, f"ValueError: {'of two words ' * 23}… (train.py:41)".replace(" …", "…")),
    ],
)
def test_verdict_on_an_exception(attempt: Attempt, message: str, shown: str) -> None:
    noted = {"type": "ValueError", "message": message, "place": "train.py:41", "time": 1.0, "pid": 7}
    found = verdict(attempt, "Traceback\nValueError\n", exit=1, pid=7, exception=noted)
    assert found.reason == f"worker:1 on n3: {shown}"
    assert found.cause is not None
    assert found.cause["exit"] == 1


def test_verdict_on_an_exception_has_its_cause(attempt: Attempt) -> None:
    noted = {"type": "OSError", "message": "no data", "place": "train.py:9", "time": 1.0, "pid": 7}
    found = verdict(attempt, "", exit=1, pid=7, exception={**noted, "cause": "caused by KeyError: 'x' (train.py:7)"})
    assert found.reason == "worker:1 on n3: OSError: no data (train.py:9), caused by KeyError: 'x' (train.py:7)"


TRACE = """\
Traceback (most recent call last):
  File "/home/alice/train.py", line 41, in <module>
    model.fit(data)
  File "/env/lib/python3.11/site-packages/keras/trainer.py", line 7, in fit
    raise error
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 3, in <module>
  | ExceptionGroup: two (1 sub-exception)
  +-+---------------- 1 ----------------
    | ValueError: 1
    +------------------------------------
"""


@pytest.mark.parametrize(
    ("log", "code", "shown"),
    [
        (f"{TRACE}ValueError: bad label 11\n", 1, "ValueError: bad label 11 (train.py:41)"),
        (f"{TRACE}keras.errors.NoDataError\n", 1, "NoDataError (train.py:41)"),
        (f"{TRACE}ValueError: first\n\t [[{{{{node x}}}}]]\n", 1, "ValueError: first (train.py:41)"),
        (f"{TRACE}ValueError: bad label 11\ncould not save\n", 1, "exit code 1"),  # it was caught
        (f"{TRACE}ValueError: bad label 11\n", 3, "exit code 3"),
        ("ValueError: bad label 11\n", 1, "exit code 1"),
        ('  File "train.py", line 41\n', 1, "exit code 1"),
        ('File "shape.ml", line 3\nError: Unbound value\n', 1, "exit code 1"),  # of another compiler
        (f"{GROUP}Exiting\n", 1, "exit code 1"),
        (f"no data\nException ignored in: <function Files.__del__>\n{TRACE}KeyError: 1\n", 1, "exit code 1"),
        (f"no data\nError in atexit._run_exitfuncs:\n{TRACE}KeyError: 1\n", 1, "exit code 1"),
        (f"{TRACE}ValueError: logged\n  1/100 ━━━━ 9s\n  2/100 ━━━━ 8s\n", 1, "exit code 1"),
    ],
)
def test_exception_that_was_not_noted_is_that_at_the_end_of_the_log(
    attempt: Attempt, log: str, code: int, shown: str
) -> None:
    assert verdict(attempt, log, exit=code).reason == f"worker:1 on n3: {shown}"


def test_operation_that_a_task_does_not_know_is_explained_long_after_it_was_told(attempt: Attempt) -> None:
    """The words are those of TensorFlow 2.21, as its ClusterCoordinator logs them again and again."""
    told = (
        "ERROR:tensorflow:Worker /job:worker/replica:0/task:0 failed with NotFoundError: 'Simple' is neither a type of"
    )
    log = f"{told} a primitive operation nor a name of a function registered in binary\n" + "INFO: recovered\n" * 300
    found = verdict(attempt, f"{log}AssertionError\n", exit=1)
    assert found.hint.startswith("a task that gridtf serves knows no operations of other packages: name the modules")
    assert not verdict(attempt, "INFO: recovered\nAssertionError\n", exit=1).hint


def test_verdict_on_an_exception_has_the_hint_for_its_message(attempt: Attempt) -> None:
    noted = {"type": "OSError", "message": "No space left on device", "place": "", "time": 1.0, "pid": 7}
    found = verdict(attempt, "", exit=1, pid=7, exception=noted)
    assert found.reason == "worker:1 on n3: OSError: No space left on device"
    assert found.hint.startswith("a disk is full")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("ModuleNotFoundError: No module named 'tensorflow'", "TensorFlow is not in the task's Python"),
        ("OSError: [Errno 28] No space left on device: '/data/x'", "a disk is full"),
        ("PermissionError: [Errno 13] Permission denied: 'config.json'", "with --snapshot, code is read-only"),
        ("MemoryError", "the task ran out of memory"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 GiB.", "the GPU or the host ran out"),
        ("RuntimeError: can't start new thread", "the limit on your processes and threads"),
        (
            "F external/local_tsl/env.cc:74] Check failed: Thread tf creation via pthread_create() failed.",
            "the limit on",
        ),
        ("OSError: [Errno 30] Read-only file system: '/data/x'", "that folder cannot be written"),
        ("EOFError: EOF when reading a line", "nobody answers"),
        ("tensorflow…ResourceExhaustedError: … RESOURCE_EXHAUSTED: OOM when allocating", "the GPU or the host ran out"),
        ("UnknownError: Could not start gRPC server", "the port was taken"),
        ("ValueError: Attempt to convert a value (PerReplica:{", "Keras 3's fit does not work under this strategy"),
        (
            "InvalidArgumentError: Could not apply FILE based sharding: the dataset",
            "there are fewer files than workers",
        ),
        (
            "ValueError: When using a multi-worker distribution …, the data must be provided as a `tf.data.Dataset`.",
            "keras.distribution divides the batches of a dataset, in the same order on all workers",
        ),
        (
            "RuntimeError: Fetching value for `jax.Array` that spans non-addressable (non process local) devices is",
            "under keras.distribution, predict in one task alone",
        ),
        (
            "InvalidArgumentError: Inputs to operation AddN of type AddN must have the same size and shape.",
            "choose a batch",
        ),
        (
            "AssertionError: … passed to device_put is not the same on each process.",
            "the tasks have done different things",
        ),
        ("InternalError: Collective instance 373 expected type 0 and data_type 9 but", "the tasks have done different"),
        (
            "ValueError: The batch size … unknown. Please config the batch size for the input dataset",
            "under keras.distr",
        ),
        ("ModuleNotFoundError: No module named 'jax'", "KERAS_BACKEND=jax needs the package jax in the tasks' Python"),
        (
            "RuntimeError: SLURM_PROCID not found in environment. Not running inside a SLURM step?",
            "gridtf's tasks are",
        ),
        ("ValueError: coordinator_address should be defined.", "give jax.distributed.initialize"),
        ("RuntimeError: Collective ops must be configured at program startup", "a tensor was made before the strategy"),
        ("ValueError: Unrecognized task_type: master, valid task types are: ('chief'", "strategies know chief, worker"),
        ("ValueError: Disallowed task type found in cluster spec. Allowed types", "strategies know chief, worker"),
        ("TBNotInstalledError: TensorBoard is not installed, missing", "tf.summary needs the package tensorboard"),
    ],
)
def test_hint_from_the_last_lines_of_the_log(attempt: Attempt, line: str, hint: str) -> None:
    assert verdict(attempt, f"Traceback\n{line}\n", exit=1).hint.startswith(hint)
    assert not verdict(attempt, f"{line}\n" + "later\n" * 30, exit=1).hint.startswith(hint)  # long ago is not why


def test_error_of_gridtf_s_own_in_a_program_is_the_reason(attempt: Attempt) -> None:
    log = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
        "gridtf.errors.GridtfError: worker:0 and worker:1 have attached different models\n"
        "variable 1 is a float32 [2] at worker:0, b float32 [3] at worker:1\nbuild the model by the same lines\n"
    )
    found = verdict(attempt, log, exit=1)
    assert found.reason == "worker:1 on n3: exit code 1: worker:0 and worker:1 have attached different models"
    assert found.why == "variable 1 is a float32 [2] at worker:0, b float32 [3] at worker:1"
    assert found.hint == "build the model by the same lines"
    noted = {"type": "GridtfError", "message": "", "place": "", "time": 1.0, "pid": 7}
    found = verdict(attempt, log, signal="SIGTERM", pid=7, exception=noted)  # gridtf's signal was faster than its end
    assert found.reason.startswith("worker:1 on n3: worker:0 and worker:1 have attached different models")
    short = "gridtf.errors.UsageError: no such filter\n2026-11-22 17:00:00.1: W tensorflow: closing\n"
    assert verdict(attempt, short, exit=1).reason == "worker:1 on n3: exit code 1: no such filter"
    assert not verdict(attempt, short, exit=1).hint


def test_reason_of_a_rank_of_mpi(attempt: Attempt) -> None:
    """That mpirun had ended explains an exit code, not an exception; MPICH says itself why it ends a rank."""
    assert verdict(attempt, "ready\n", exit=195, abandoned=True).reason.endswith("exit code 195, when mpirun had ended")
    raised = {"type": "ValueError", "message": "no", "place": "train.py:9", "pid": 7, "time": 1.0}
    found = verdict(attempt, "ready\n", pid=7, signal="SIGKILL", abandoned=True, exception=raised)
    assert found.reason == "worker:1 on n3: ValueError: no (train.py:9)"
    line = "Abort(134924550) on node 1 (rank 1 in comm 0): Fatal error in internal_Send_c: Invalid rank, error stack:"
    found = verdict(attempt, f"ready\n{line}\ninternal_Send_c(123)\n", signal="SIGSEGV")
    assert (found.reason, found.hint) == (f"worker:1 on n3: {line}", "")


def test_further_observation_is_part_of_the_reason(attempt: Attempt) -> None:
    found = verdict(attempt, "", signal="SIGKILL", also=LOST)
    assert found.reason == "worker:1 on n3: killed by SIGKILL"
    assert found.why == "the agent on host n3 was killed by SIGKILL"
    assert found.record("n", 1.0, 2.0)["reason"] == f"{found.reason} ({found.why})"


def test_restarts_are_reported(attempt: Attempt) -> None:
    reason = "worker:1 on n3: killed by SIGKILL, after 1 restart"
    assert verdict(attempt, "", signal="SIGKILL", restarts=1).reason == reason


# --- the record, and the words for the log


def test_verdict_record(attempt: Attempt) -> None:
    found = verdict(attempt, "x\n", exit=3)
    record = found.record("abc", 1.5, 2.5)
    assert record == {
        "nonce": "abc",
        "state": "FAILED",
        "reason": "worker:1 on n3: exit code 3",
        "hint": "",
        "cause": found.cause,
        "again": False,
        "started": 1.5,
        "ended": 2.5,
        "exit_code": 1,
    }
    attempt.write_verdict(record)
    assert read_record(attempt.verdict) == record


def test_only_completed_has_exit_code_0() -> None:
    assert Verdict(COMPLETED, "").exit_code == 0
    assert {Verdict(state, "").exit_code for state in (FAILED, CANCELLED, TIMEOUT, NODE_FAIL)} == {1}


def test_verdict_text_for_the_log(attempt: Attempt) -> None:
    assert verdict(attempt, "a\n\tb\n", signal="SIGBUS", also=LOST).text().splitlines() == [
        "FAILED: worker:1 on n3: killed by SIGBUS",
        "the agent on host n3 was killed by SIGKILL",
        "it crashed in native code, often because /dev/shm or a mapped file's disk is full",
        f"last lines of {attempt.task_log('worker', 1)}:",
        "  a",
        "  \tb",
    ]
    nothing = f"it printed nothing: {attempt.task_log('worker', 1)}"
    assert verdict(attempt, "", exit=1).text() == f"FAILED: worker:1 on n3: exit code 1\n{nothing}"
    assert Verdict(COMPLETED, "all is well").text() == "COMPLETED: all is well"


# --- the last lines


def test_last_lines_of_a_log(attempt: Attempt) -> None:
    log = attempt.task_log("worker", 1)
    assert last_lines(log) == []  # not there
    for text, lines in (
        ("", []),
        ("\n\n  \n", []),
        ("one", ["one"]),
        ("one\n\ntwo  \n\n\n", ["one", "", "two"]),
        ("".join(f"line {number}\n" for number in range(100)), [f"line {number}" for number in range(80, 100)]),
    ):
        log.write_text(text)
        assert last_lines(log) == lines


def test_last_lines_keep_the_line_of_an_exception_with_a_tensor(attempt: Attempt) -> None:
    log = attempt.task_log("worker", 1)
    place = ['  File "train.py", line 9, in <module>', "    model.fit(x)"]
    said = "ValueError: Attempt to convert a value (PerReplica:{"
    tensor = [f"       [{number}., 0., 0.]," for number in range(300)]
    trace = ["Traceback (most recent call last):", *place, "    ^^^^^^^^^^^^", said, *tensor, "}) to a Tensor."]
    log.write_text("\n".join(["step 1", *trace]))
    assert last_lines(log) == ["step 1", *trace[:5], "…", "}) to a Tensor."]
    log.write_text("\n".join(["step 1", *trace, *trace[-1:] * 30]))
    assert last_lines(log) == [*place, said, "…", *trace[-1:] * 16]
    assert verdict(attempt, log.read_bytes(), exit=1).hint.startswith("Keras 3's fit")
    log.write_text("\n".join(["step 1", *trace[:5], "short"]))
    assert last_lines(log) == ["step 1", *trace[:5], "short"]


KERAS = """\
ValueError: Exception encountered when calling Outer.call().

bad label 11

Call arguments received by layer 'inner' (type Inner):
  • x=tf.Tensor(shape=(None, 3), dtype=float32)
  • y=array([[1., 2.],
       [3., 4.]])

Arguments received by Outer.call():
  • kwargs=<class 'inspect._empty'>
W0000 00:00:1795968020.26   27310 local_rendezvous.cc:412] Local rendezvous is aborting with status: ABORTED: Shutdown
"""


def test_last_lines_have_no_arguments_contents_of_tensors_and_noise(attempt: Attempt) -> None:
    log = attempt.task_log("worker", 1)
    log.write_text(KERAS)
    assert last_lines(log) == ["ValueError: Exception encountered when calling Outer.call().", "", "bad label 11"]
    one = ["losses", "[0.5 0.4]", "0.5", "0.4", "[array([[1, 2]])]"]  # what a program prints in one row
    log.write_text("\n".join(one))
    assert last_lines(log) == one
    rows = " [ 0.25 -1.5e-03 nan inf]\n" * 9000  # more than is read at first
    log.write_text(f"ValueError: bad values:\n[[0. 0.\n  0. 0.]\n{rows} ...\n{rows}")
    assert last_lines(log) == ["ValueError: bad values:", "…"]


def test_last_lines_of_a_task_without_gpus_do_not_tell_of_missing_ones(attempt: Attempt) -> None:
    log = attempt.task_log("worker", 1)
    log.write_text("E0000 00:00:1.1  7 cuda_platform.cc:51] failed call to cuInit: INTERNAL\nValueError: x\n")
    assert [len(last_lines(log, gpus=gpus)) for gpus in (True, False)] == [2, 1]


@pytest.mark.parametrize("frames", [2, 30])
def test_crash_below_its_stacks_is_the_last_error(attempt: Attempt, frames: int) -> None:
    """What CPython 3.11 prints with faulthandler and NumPy, after an exception that the program has caught."""
    log = attempt.task_log("worker", 0)
    caught = [
        "Traceback (most recent call last):",
        '  File "train.py", line 1, in <module>',
        "OSError: no cache",
        "step 7",
    ]
    crash = [
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f39f0020b80 (most recent call first):",
    ]
    stack = [f'  File "/home/a/train.py", line {number} in step' for number in range(frames)]
    modules = "Extension modules: numpy._core._multiarray_umath, zmq.error, numpy.linalg._umath_linalg (total: 3)"
    log.write_text("\n".join([*caught, *crash, *stack, "", modules, ""]))
    assert last_error(log) == ["Fatal Python error: Segmentation fault"]
    lines = last_lines(log)
    assert lines[-1] == stack[-1]
    assert lines == ([*caught, *crash, *stack] if frames == 2 else [crash[0], "…", *stack[-18:]])


def test_last_lines_read_only_the_end_of_a_long_log(attempt: Attempt) -> None:
    log = attempt.task_log("worker", 1)
    with log.open("wb") as file:
        file.truncate(4 << 30)  # sparse
        file.seek(0, 2)
        file.write(b"\nthe end\n")
    assert last_lines(log)[-1] == "the end"


def test_last_lines_cut_a_long_line(attempt: Attempt) -> None:
    log = attempt.task_log("worker", 1)
    log.write_text("short\n" + "graph " * 10_000 + "\nValueError\n")
    *_, long, last = last_lines(log)
    assert last == "ValueError"
    assert (len(long), long[-1]) == (502, "…")


def test_last_lines_show_the_final_state_of_a_progress_bar(attempt: Attempt) -> None:
    bar = "".join(f"\r{step}/100 [=====>....]" for step in range(100))
    log = attempt.task_log("worker", 1)
    log.write_bytes(f"Epoch 1\n{bar}\nTraceback (most recent call last):\r\nValueError: x\n".encode())
    assert last_lines(log) == ["Epoch 1", "99/100 [=====>....]", "Traceback (most recent call last):", "ValueError: x"]


def test_last_lines_have_no_terminal_control_sequences(attempt: Attempt) -> None:
    log = attempt.task_log("worker", 1)
    log.write_bytes(b"\x1b[31mred\x1b[0m \x1b]0;title\x07\x08\x08\x00 a\x0bb\tc \xff\xfe \xc2\x9b2J\n")
    assert last_lines(log) == ["red  ab\tc �� "]


def test_verdict_on_the_longest_log_fits_into_the_reserved_space(attempt: Attempt) -> None:
    attempt.reserve_verdict()
    room = next(path for path in attempt.path.iterdir() if path.is_file())
    found = verdict(attempt, (b"\xff" * 700 + b"\n") * 40, exit=1)
    assert len(json.dumps(found.record("n", 1.0, 2.0), indent=1)) < room.stat().st_size


def test_some_names_in_one_line() -> None:
    names = [f"n{number}" for number in range(20)]
    assert some(names[:2]) == "n0, n1"
    assert some(names[:3], most=3) == "n0, n1, n2"
    assert some(names, most=3) == "n0, n1, n2 and 17 more"
