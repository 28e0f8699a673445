"""Every example, submitted as its README says, reaches the accuracy that its README states."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.examples import stated_accuracy

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(folder.parent.name for folder in (ROOT / "examples").glob("*/gridtf.toml"))


def test_all_examples_are_found() -> None:
    assert EXAMPLES == ["entry", "multiworker", "parameter_server", "ps_flags", "tf_config"]


@pytest.mark.tensorflow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("example", EXAMPLES)
def test_example_reaches_its_accuracy(example: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GRIDTF_")} | {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "http_proxy": "http://127.0.0.1:9",  # as on many clusters; this one refuses connections
    }

    def gridtf(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "import sys; from gridtf.cli import main; sys.exit(main())", *words]
        return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=220)

    # One CPU per task means one thread of each kind: a strategy that waits for itself would hang.
    options = ["--scheduler", "local", "--gpus-per-task", "0", "--cpus-per-task", "1", "--run-dir", str(run_dir)]
    try:
        done = gridtf("submit", f"examples/{example}/gridtf.toml", *options, "--wait")
    finally:
        gridtf("cancel", str(run_dir))  # a job that has not ended would outlive this test
    output = done.stdout + done.stderr + "".join(log.read_text() for log in run_dir.glob("attempt-*/logs/*"))
    assert done.returncode == 0, output
    reached = json.loads((run_dir / "output" / "result.json").read_text())["accuracy"]
    assert stated_accuracy(example) <= reached <= 1, output
    assert f"accuracy on 360 held-out digits: {reached:.3f}" in output


def test_slurm_and_sge_script_examples_share_their_program() -> None:
    one, other = (ROOT / "examples" / f"{kind}_scripts" / "train.py" for kind in ("sge", "slurm"))
    assert one.read_bytes() == other.read_bytes()
