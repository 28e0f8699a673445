"""gridtf diff: what it prints, in full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gridtf.cli import main
from gridtf.run.rundir import write_record
from tests.support import recordedruns
from tests.support.plans import NONCE

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, lr in (("a", 1), ("b", 2)):
        run = recordedruns.make(tmp_path / name, workers=2, minutes=5 * lr, state="FAILED" if lr == 2 else "COMPLETED")
        command = ["python", "train.py", "--data", f"/data/{'digits' * 7}/{name}", "--epochs", "20"]
        snapshot = tmp_path / f"snapshot-{name}"
        snapshot.mkdir()
        (snapshot / "train.py").write_text(f"lr = {lr}\x1b[2J\nAPI_KEY = 'hunter22-secret'\n")
        sources = {"params.lr": "--set", "command": f"gridtf.toml:{lr}"}
        about = {"top": str(tmp_path), "files": {"train.py": ""}, "code": {}, "diff": ""}
        (tmp_path / f"snapshot-{name}.json").write_text(json.dumps(about))
        origin = {"snapshot": str(snapshot)}
        recordedruns.describe(
            run, sources, origin, params={"lr": lr, "tag": f"\x9b{lr}"}, command=command, name="digits"
        )
        python = {"python": "/venv/bin/python", "version": "3.12.4", "packages": {"keras": "3.5.0"}}
        write_record(run.attempt(1).packages, {"nonce": NONCE, "pythons": {"worker": python}})
        write_record(run.code, {"commit": f"{lr}" * 40, "dirty": False})
    return tmp_path


def test_difference_as_text(capsys: Captured) -> None:
    assert main(["diff", "./a", "b/"]) == 0
    assert (
        capsys.readouterr().out
        == f"""\
- ./a  a (4711)  COMPLETED, ran for 5 min 1 s
+ b/   b (4711)  FAILED, ran for 10 min 1 s

PARAMETERS
  lr  1 (--set) -> 2 (--set)
  tag  \\x9b1 -> \\x9b2

SPECIFICATION
  command
    - python train.py --data /data/{"digits" * 7}/a
      --epochs 20 (gridtf.toml:1)
    + python train.py --data /data/{"digits" * 7}/b
      --epochs 20 (gridtf.toml:2)

CODE
  commit
    - {"1" * 40}
    + {"2" * 40}
--- a/train.py
+++ b/train.py
@@ -1,2 +1,2 @@
-lr = 1\\x1b[2J
+lr = 2\\x1b[2J
 API_KEY = '••••••'

OUTCOME
  state  COMPLETED -> FAILED
  reason  all training tasks have exited with 0 -> worker:0 on h0: exit code 1
  ran for  5 min 1 s -> 10 min 1 s
  exit code  0 -> 1

VALUES
  loss
    - 0.08094 at step 2950 (0.08094 to 2.025)
    + 0.04364 at step 5950 (0.04364 to 2.025)
  accuracy
    - 0.97302 at step 2950 (0.325 to 0.97302)
    + 0.985453 at step 5950 (0.325 to 0.985453)

the same: packages, programs, hosts
"""
    )


def test_run_and_itself(capsys: Captured) -> None:
    assert main(["diff", "./a", "./a"]) == 0
    line = "a (4711)  COMPLETED, ran for 5 min 1 s"
    same = "the same: parameters, specification, code, packages, programs, hosts, outcome,\n  values"
    assert capsys.readouterr().out == f"- ./a  {line}\n+ ./a  {line}\n\n{same}\n"


def test_difference_in_colours(capsys: Captured) -> None:
    assert main(["--color", "always", "diff", "./a", "./b"]) == 0
    text = capsys.readouterr().out
    for part in (
        "\x1b[31m- ./a\x1b[m  a (4711)  \x1b[32mCOMPLETED\x1b[m",
        "\x1b[1mPARAMETERS\x1b[m\n  lr  \x1b[31m1 (--set)\x1b[m -> \x1b[32m2 (--set)\x1b[m\n",
        "\x1b[31m-lr = 1\\x1b[2J\x1b[m\n\x1b[32m+lr = 2\\x1b[2J\x1b[m\n",
    ):
        assert part in text


def test_difference_as_json(here: Path, capsys: Captured) -> None:
    assert main(["diff", "./a", "./b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["first"] == {"name": "a", "job_id": "4711", "run_dir": f"{here}/a"}
    assert (found["same"], found["unknown"]) == (False, {})
    source = {"first_source": "--set", "second_source": "--set"}
    assert found["changes"]["parameters"][0] == {"name": "lr", "first": "1", "second": "2", **source}
    assert "\n-lr = 1\x1b[2J\n+lr = 2" in found["diff"]


def test_what_is_not_known(here: Path, capsys: Captured) -> None:
    run = recordedruns.make(here / "c", workers=2, minutes=5)
    run.job.unlink()
    assert main(["diff", "./a", "./c"]) == 0
    assert (
        capsys.readouterr().out.rpartition("\n\n")[2]
        == """\
the same: programs, hosts, outcome, values
not known: parameters: that of ./c is missing, or only its owner may read it
not known: specification: that of ./c is missing, or only its owner may read it
not known: packages: that of ./c is missing, or only its owner may read it
not known: code: ./c: neither a snapshot nor a commit that you may read
"""
    )


def test_errors(here: Path, capsys: Captured) -> None:
    for words in (["diff"], ["diff", "./a"]):
        assert main(words) == 2
        assert "write: gridtf diff JOB JOB; `gridtf list` shows the jobs" in capsys.readouterr().err
    assert main(["diff", "./a", "./gone"]) == 2
    assert "gone is not a run directory" in capsys.readouterr().err
    (here / "a" / "array" / "1").mkdir(parents=True)
    assert main(["diff", "./a", "./b"]) == 2
    assert f"one element: gridtf diff {here}/a/array/1" in capsys.readouterr().err
