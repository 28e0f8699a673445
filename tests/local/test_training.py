"""gridtf.training without TensorFlow: a small stand-in prints how it is called."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gridtf.contract import Task
from gridtf.errors import GridtfError, UsageError
from gridtf.training.context import Context
from gridtf.training.run import arguments, load
from gridtf.training.servers import listening_inodes, listens_on, start_server

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """
import os
print("tensorflow imported, GPUs:", repr(os.environ.get("CUDA_VISIBLE_DEVICES")), flush=True)
class train:
    ClusterSpec = dict
class compat:
    class v1:
        class ConfigProto:
            def __init__(self, *filters):
                self.device_filters = [*filters]
            def CopyFrom(self, other):
                self.device_filters = [*other.device_filters]
class distribute:
    class Server:
        def __init__(self, cluster, job_name, task_index, config=None):
            filters = config.device_filters if config else ()
            print(f"server of {job_name}:{task_index} in {cluster}", *filters, flush=True)
            self.target = "grpc://there"
        def join(self):
            import time
            time.sleep(600)
"""


def make_task(folder: Path, task_type: str = "worker", index: int = 0, **cluster: tuple[str, ...]) -> Task:
    cluster = cluster or {"worker": ("127.0.0.1:1", "127.0.0.1:2")}
    return Task(task_type, index, cluster, "1", "job", 1, folder, folder / "output", (), None, None)


class Bench:
    """A working folder, the contract's environment, and a stand-in for tensorflow on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "site" / "tensorflow").mkdir(parents=True)
        (folder / "site" / "tensorflow" / "__init__.py").write_text(STAND_IN)
        (folder / "site" / "gridtf").symlink_to(ROOT / "gridtf")
        self.rendezvous = folder / "rendezvous.json"

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def start(self, *words: str, task: str = "worker:0", **cluster: list[str]) -> subprocess.Popen[str]:
        """Start ``python -m WORDS`` without installed packages: tasks need the standard library only."""
        task_type, index = task.split(":")
        self.rendezvous.write_text(json.dumps({"nonce": "n", "cluster": cluster or {"worker": ["127.0.0.1:1"]}}))
        environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.folder / "site"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "GRIDTF_RUN_DIR": str(self.folder),
            "GRIDTF_ATTEMPT": "1",
            "GRIDTF_TASK_TYPE": task_type,
            "GRIDTF_TASK_INDEX": index,
            "GRIDTF_RENDEZVOUS": str(self.rendezvous),
            "GRIDTF_NONCE": "n",
            "CUDA_VISIBLE_DEVICES": "0,1",
        }
        return subprocess.Popen(
            [sys.executable, "-S", "-m", *words],
            cwd=self.folder,
            env=environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str, task: str = "worker:0", **cluster: list[str]) -> tuple[int, str, str]:
        """Like start, but waits for the end: (exit code, stdout, stderr)."""
        process = self.start(*words, task=task, **cluster)
        out, err = process.communicate(timeout=180)
        return process.returncode, out, err


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# --- the entry ------------------------------------------------------------------------------------------------


def test_entry_is_called_with_the_context(bench: Bench) -> None:
    bench.write(
        "train.py",
        "def main(ctx):\n"
        "    print(ctx.task.name, dict(ctx.cluster), ctx.is_chief, ctx.output_dir.name, ctx.checkpoint_requested)\n"
        "    return 7\n",
    )
    code, out, err = bench.run("gridtf.training.run", "train:main")
    assert (code, out, err) == (0, "worker:0 {'worker': ('127.0.0.1:1',)} True output False\n", "")


@pytest.mark.parametrize("function", ["async def main(ctx):\n    pass", "def main(ctx):\n    yield"])
def test_entry_that_is_a_generator_or_coroutine_is_refused(bench: Bench, function: str) -> None:
    bench.write("train.py", f"{function}\n")
    code, _, err = bench.run("gridtf.training.run", "train:main")
    assert code == 2
    assert "entry train:main: main is a generator or coroutine function: calling it would not run it" in err


def test_server_of_a_worker_with_ps_starts_before_the_entry(bench: Bench) -> None:
    bench.write("train.py", "def main(ctx):\n    print('called', ctx.server.target)\n")
    cluster = {"ps": ["h:1"], "worker": ["h:2", "h:3"]}
    code, out, _ = bench.run("gridtf.training.run", "train:main", task="worker:1", **cluster)
    assert code == 0
    assert out.splitlines() == [
        "tensorflow imported, GPUs: '0,1'",
        "server of worker:1 in {'ps': ['h:1'], 'worker': ['h:2', 'h:3']}",
        "called grpc://there",
    ]


@pytest.mark.parametrize(
    ("arguments", "filters"),
    [
        ("'async'", "/job:ps /job:worker/task:1"),
        ("filters='sync'", "/job:ps /job:worker/task:0 /job:worker/task:1"),
        ("config=ConfigProto('/job:mine')", "/job:mine"),
    ],
)
def test_server_has_the_filters_of_its_way_of_training(bench: Bench, arguments: str, filters: str) -> None:
    bench.write(
        "train.py",
        "from gridtf import training\n"
        "from gridtf.training.servers import own_server\n"
        "import tensorflow\n"
        "ConfigProto = tensorflow.compat.v1.ConfigProto\n"
        f"server = training.server({arguments})\n"
        "assert own_server(None) is server\n",
    )
    code, out, err = bench.run("train", task="worker:1", ps=["h:1"], worker=["h:2", "h:3"])
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"server of worker:1 in {{'ps': ['h:1'], 'worker': ['h:2', 'h:3']}} {filters}"


@pytest.mark.parametrize(
    ("task", "cluster"),
    [
        ("worker:0", {"worker": ["h:1", "h:2"]}),  # MultiWorkerMirroredStrategy starts its own
        ("chief:0", {"chief": ["h:1"], "worker": ["h:2"], "ps": ["h:3"]}),  # ParameterServerStrategy does, too
    ],
)
def test_other_servers_start_on_first_use(bench: Bench, task: str, cluster: dict[str, list[str]]) -> None:
    bench.write("train.py", "def main(ctx):\n    print('called')\n    ctx.server\n    ctx.server\n")
    code, out, _ = bench.run("gridtf.training.run", "train:main", task=task, **cluster)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["called", "tensorflow", "server"]


def test_entry_module_missing(bench: Bench) -> None:
    bench.write("train.py", "")
    code, out, err = bench.run("gridtf.training.run", "trian:main")
    assert (code, out) == (2, "")
    assert err == f"gridtf: entry trian:main: no module 'trian' in {bench.folder}\n  did you mean train?\n"


def test_entry_function_missing(bench: Bench) -> None:
    bench.write("train.py", "from json import dumps\ndef main(): ...\ndef evaluate(): ...\ndef _own(): ...\n")
    code, out, err = bench.run("gridtf.training.run", "train:man")
    assert (code, out) == (2, "")
    assert err == (
        f"gridtf: entry train:man: no function 'man' in {bench.folder}/train.py\n"
        "  functions there: main, evaluate\n"
        "  did you mean main?\n"
    )


def test_exception_of_an_entry_keeps_its_traceback(bench: Bench) -> None:
    bench.write("train.py", "def main():\n    raise RuntimeError('loss is nan')\n")
    code, _, err = bench.run("gridtf.training.run", "train:main")
    assert code == 1
    assert "Traceback" in err
    assert f'File "{bench.folder}/train.py", line 2, in main' in err
    assert err.endswith("RuntimeError: loss is nan\n")


def test_failed_import_inside_the_entry_module_keeps_its_traceback(bench: Bench) -> None:
    bench.write("train.py", "import no_such_library\ndef main(): ...\n")
    code, _, err = bench.run("gridtf.training.run", "train:main")
    assert code == 1
    assert "Traceback" in err
    assert err.endswith("ModuleNotFoundError: No module named 'no_such_library'\n")


def test_entry_may_choose_its_exit_code(bench: Bench) -> None:
    bench.write("train.py", "import sys\ndef main():\n    sys.exit(3)\n")
    assert bench.run("gridtf.training.run", "train:main") == (3, "", "")


def test_checkpoint_request(bench: Bench) -> None:
    bench.write(
        "train.py",
        "import os, signal\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"  # already while the module is imported
        "def main(ctx):\n"
        "    print(ctx.checkpoint_requested)\n"
        "    ctx.checkpoint_saved()\n"
        "    print(ctx.checkpoint_requested)\n",
    )
    assert bench.run("gridtf.training.run", "train:main") == (0, "True\nFalse\n", "")


def test_entry_and_serve_outside_a_task_are_refused(bench: Bench) -> None:
    bench.write("train.py", "def main(): ...\n")
    environ = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    for words in (["gridtf.training.run", "train:main"], ["gridtf.training.serve"]):
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=bench.folder, env=environ, capture_output=True, text=True, timeout=180
        )
        assert done.returncode == 1
        assert done.stderr.startswith("gridtf: this process is not a gridtf task\n")


@pytest.mark.parametrize("entry", ["train", "train:", ":main", ""])
def test_malformed_entry_is_refused(entry: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not module:function"):
        load(entry, tmp_path)


def test_entry_that_is_not_callable_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "settings_only.py").write_text("main = 3\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(UsageError) as caught:
        load("settings_only:main", tmp_path)
    del sys.modules["settings_only"]
    assert caught.value.why == "it defines no function"


@pytest.mark.parametrize(
    ("function", "takes"),
    [
        (lambda: None, False),
        (lambda argv=None: None, False),
        (lambda *rest: None, False),
        (lambda *, steps=3: None, False),
        (lambda anything: None, True),
        (lambda ctx=None: None, True),
        (lambda context, steps=3: None, True),
    ],
)
def test_arguments_of_entry_functions(function: object, takes: bool, tmp_path: Path) -> None:
    context = Context(make_task(tmp_path))
    assert arguments(function, context) == ((context,) if takes else ())  # type: ignore[arg-type]


# --- servers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "gpus"), [("ps:0", "''"), ("worker:0", "'0,1'")])
def test_served_ps_sees_no_gpu(bench: Bench, task: str, gpus: str) -> None:
    process = bench.start("gridtf.training.serve", task=task, ps=["h:1"], worker=["h:2"])
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGUSR1)  # a request for a checkpoint does no harm
        process.terminate()
        _, err = process.communicate(timeout=180)
    finally:
        process.kill()
    assert lines == [
        f"tensorflow imported, GPUs: {gpus}\n",
        f"server of {task} in {{'ps': ['h:1'], 'worker': ['h:2']}}\n",
        f"gridtf serves {task} at {'h:1' if task == 'ps:0' else 'h:2'}\n",
    ]
    assert (process.returncode, err) == (-signal.SIGTERM, "")


def test_evaluator_has_no_server(tmp_path: Path) -> None:
    with pytest.raises(GridtfError) as caught:
        Context(make_task(tmp_path, "evaluator")).server  # noqa: B018
    assert str(caught.value) == "evaluator:0 has no server\nit is not a member of the job's cluster"


def test_second_server_in_one_process_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as strategy:
        address = f"127.0.0.1:{strategy.getsockname()[1]}"
        with pytest.raises(GridtfError) as caught:
            start_server(make_task(tmp_path, worker=(address,)))
    assert caught.value.what == f"worker:0 already has a TensorFlow server, at {address}"


def test_listens_on_considers_this_process_only() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        assert not listens_on(port)  # as the agent holds it: bound only
        held.listen()
        assert listens_on(port)
        script = f"from gridtf.training.servers import listens_on; print(listens_on({port}))"
        other = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=180)
        assert other.stdout == "False\n"
    assert not listens_on(port)


def test_listening_inodes() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 00000000:08AE 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 48211 1 0 100 0\n"
        "   1: 0100007F:08AE 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1000        0 48300 1 0 20 4\n"
        "   2: 00000000:08AF 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 48400 1 0 100 0\n"
    )
    assert listening_inodes(table, 0x08AE) == {"48211"}
    assert listening_inodes("", 0x08AE) == set()


def test_training_imports_tensorflow_on_first_use_only() -> None:
    script = (
        "import sys, gridtf.training, gridtf.training.run, gridtf.training.servers\n"
        "gridtf.training.Context, gridtf.training.serve\n"
        "print(*sorted({'tensorflow', 'numpy', 'subprocess', 'jinja2'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert (done.stdout, done.stderr) == ("\n", "")
