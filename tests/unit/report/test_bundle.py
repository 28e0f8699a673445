"""The archive for a support ticket: nothing secret is in it, and every file of a run directory is accounted for."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import os
import tarfile
from pathlib import Path
from typing import BinaryIO

import pytest

from gridtf.report import bundle, page
from gridtf.run.rundir import RunDir, open_plain, write_record
from gridtf.secrets import MASK
from tests.support import recordedruns
from tests.support.recordedruns import BEGIN

NOW = BEGIN + 7200


def unpacked(run: RunDir, examined: str = "{}", words: dict[str, str] | None = None) -> dict[str, str]:
    """Name without the folder -> the text of each file, in the order of the archive."""
    data = bundle.make(run, examined, words or {}, NOW)
    assert data == bundle.make(run, examined, words or {}, NOW)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert {(entry.isfile(), entry.mode, entry.uid) for entry in archive} == {(True, 0o600, 0)}
        assert [*archive.getnames()] == sorted(archive.getnames())
        files = {name.partition("/")[2]: archive.extractfile(name) for name in archive.getnames()}
        return {name: file.read().decode() for name, file in files.items() if file}


def test_no_secret_is_in_any_file(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=1, state="FAILED")
    told = json.loads(run.job.read_text())
    told["spec"] |= {
        "env": {"WANDB_API_KEY": "hunter11-secret", "DATA": "https://ann:hunter12-secret@example.org/x"},
        "setup": ["module load cuda", "export HF_TOKEN='hunter13-secret'", 'DB_PASSWORD="hunter14-secret" ./login'],
        "command": ["python", "train.py", "--auth-token", "hunter15-secret", "--api_key=hunter16-secret"],
        "tasks": {"worker": {"count": 4, "env": {"A_KEY": "hunter17-secret"}}},
    }
    write_record(run.job, told)
    names = ("hunter11", "hunter13", "hunter14", "hunter15", "hunter16", "hunter17")
    run.script.write_text(f"#!/bin/bash\n{told['spec']['setup'][1]}\nexport GRIDTF_SPEC='{json.dumps(told['spec'])}'\n")
    submitted = json.loads(run.submitted.read_text())
    write_record(run.submitted, {**submitted, "command": ["sbatch", "--export=S3_SECRET=hunter18-secret", "job.sh"]})
    attempt = run.attempt(1)
    write_record(attempt.listener, {"addresses": [], "port": 1, "secret": "hunter19-secret".ljust(64, "0")})
    plan = json.loads(attempt.plan.read_text())
    write_record(attempt.plan, {**plan, "key": "hunter20-secret", "spec": told["spec"]})
    said = "".join(f"logged in with {name}-secret\n" for name in names)
    attempt.task_log("worker", 0).write_text(f"{said}https://bob:hunter21-secret@example.org\nkey: hunter22-secret\n")
    attempt.task_log("worker", 1).write_text(f"x = {'y' * 200_000}\npassword: hunter23-secret\n")
    verdict = json.loads(attempt.verdict.read_text())
    verdict["cause"]["tail"] = ["no such user: hunter11-secret"]
    write_record(attempt.verdict, verdict)
    events = attempt.events.read_text()
    attempt.events.write_text(
        f'{events}{{"time": 1.0, "event": "stopping", "text": "hunter15-secret"}}\n{{"cut": "hunter16-sec'
    )
    attempt.agents_log.write_text("srun --export=S3_SECRET=hunter18-secret\n")
    texts = unpacked(run, '{"message": "hunter11-secret"}')
    assert [name for name, text in texts.items() if "hunter" in text] == ["attempt-1/events.jsonl"]
    assert texts["attempt-1/events.jsonl"].count("hunter") == 1  # half of a line that was cut, so half of a secret
    assert "listener.json" not in texts
    assert f"attempt-1/logs/worker-0.log: 0 KiB, {len(names) + 2} masked" in texts["MANIFEST"]
    assert json.loads(texts["job.json"])["spec"]["env"]["WANDB_API_KEY"] == MASK
    assert json.loads(texts["attempt-1/plan.json"])["tasks"][0]["type"] == "worker"
    assert len(texts["attempt-1/events.jsonl"].splitlines()) == len(events.splitlines()) + 2


@pytest.mark.parametrize("first", [0, 1, 4])
def test_no_json_in_json_and_no_line_of_a_private_key_is_in_report_or_archive(first: int, tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=1, state="FAILED")
    spec = {"env": {"CONFIG": json.dumps({"db": {"user": "ann", "password": "hunter11 secret"}})}}
    run.script.write_text(f"#!/bin/bash\nexport GRIDTF_SPEC='{json.dumps(spec)}'\n")
    words = json.dumps(json.dumps({"db": json.dumps({"password": "hunter12 secret"})}))
    run.script.write_text(f"{run.script.read_text()}export SETTINGS={words}\nexport SSHPASS=hunter13-secret\n")
    body = base64.b64encode(b"".join(hashlib.sha512(bytes([number])).digest() for number in range(5))).decode()
    lines = [body[start : start + 64] for start in range(0, len(body), 64)]
    tail = ["-----BEGIN RSA PRIVATE KEY-----", *lines, "-----END RSA PRIVATE KEY-----", "ValueError: no such host"]
    verdict = json.loads(run.attempt(1).verdict.read_text())
    verdict["cause"]["tail"] = tail[first:]
    write_record(run.attempt(1).verdict, verdict)
    texts = {**unpacked(run), "page": html.unescape(page.of_job(run, NOW))}
    hidden = (*lines, "hunter11", "hunter12", "hunter13")
    assert [(name, secret) for name, text in texts.items() for secret in hidden if secret in text] == []
    for name in ("job.sh", "attempt-1/verdict.json", "page"):
        assert MASK in texts[name], name
    assert "ValueError: no such host" in texts["page"]
    assert json.loads(texts["attempt-1/verdict.json"])["cause"]["tail"][-1] == "ValueError: no such host"


def test_every_file_is_held_or_named_as_left_out(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=1, state="FAILED")
    attempt = run.attempt(1)
    for folder in (run.output, attempt.data, attempt.mpi, attempt.ranks, run.path / "join-1", run.path / "mine"):
        folder.mkdir()
        (folder / "a.json").write_text("{}")
    for path in (run.cancelled, run.ended, attempt.rendezvous, attempt.stop, attempt.stacks, attempt.agents_log):
        path.write_text("{}")
    attempt.listener.write_text("{}")
    attempt.task_log("worker", 0).with_name("worker-0.log.1").write_text("before\n")
    os.mkfifo(attempt.logs / "worker-9.log")
    (attempt.logs / "worker-8.log").symlink_to("/etc/passwd")
    (run.path / "attempt-2").symlink_to("/etc")
    run.claim("4711")
    (run.path / ".env").write_text("mine")
    texts = unpacked(run)
    held = set(texts) - {"MANIFEST", "doctor.json"}
    left = {line.partition(":")[0].strip() for line in texts["MANIFEST"].partition("Left out:")[2].splitlines()[1:-2]}
    for path in run.path.rglob("*"):
        name = path.relative_to(run.path).as_posix()
        above = {parent.as_posix() for parent in Path(name).parents}
        assert path.is_dir() or (name in held) + (name in left) + len(above & left) == 1, name
    assert held >= {"job.sh", "attempt-1/stop.json", "attempt-1/logs/worker-0.log.1", "attempt-1/mpi/a.json"}
    assert left >= {"output", "mine", ".env", "attempt-1/listener.json", "attempt-2", "attempt-1/logs/worker-8.log"}
    assert "attempt-1/listener.json: it has the secret of the attempt" in texts["MANIFEST"]
    assert "root:" not in "".join(texts.values())


def test_logs_are_cut_at_lines_and_a_key_that_begins_before_is_masked(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=1)
    lines = [f"step {number} " + "." * 60 for number in range(3000)]
    body = "\n".join("MIIEpAIBAAKCAQEA" * 4 for _ in range(25))
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"
    after = 64 * 1024 // len(lines[2000]) - 10
    run.attempt(1).task_log("worker", 0).write_text("\n".join([*lines[:-after], key, *lines[-after:]]) + "\n")
    texts = unpacked(run)
    text = texts["attempt-1/logs/worker-0.log"]
    assert text.endswith(lines[-1] + "\n")
    assert 32 * 1024 < len(text) <= 64 * 1024
    assert "MIIE" not in text
    assert text.splitlines()[0] in (*lines, f"-----BEGIN RSA PRIVATE KEY-----{MASK}-----END RSA PRIVATE KEY-----")
    assert "the last of" in texts["MANIFEST"]


def test_name_and_home_of_the_user_are_replaced_on_request(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=1)
    run.log.write_text("/home/ann/train.py ann@login1 channel annotate\n")
    words = {"/home/ann": "HOME", "ann": "USER"}
    assert unpacked(run, words=words)["job.log"] == "HOME/train.py USER@login1 channel annotate\n"
    assert unpacked(run)["job.log"].startswith("/home/ann/train.py ann@login1")


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
def test_job_without_samples_or_that_runs(state: str, tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=1, state=state)
    run.attempt(1).samples.unlink()
    texts = unpacked(run)
    assert "attempt-1/samples.jsonl" not in texts
    seen = "UNKNOWN" if state == "RUNNING" else state  # its launcher has given no sign of life for a long time
    assert texts["MANIFEST"].startswith(f"digits (4711): {seen} as of ")
    run.attempt(1).plan.write_text('{"damaged')
    assert unpacked(run)["attempt-1/plan.json"] == '{"damaged'


def test_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=1)

    def refuse(path: Path) -> BinaryIO:
        if path == run.script:
            raise PermissionError(13, "Permission denied", str(path))
        return open_plain(path)

    monkeypatch.setattr(bundle, "open_plain", refuse)
    assert "\n  job.sh: Permission denied\n" in unpacked(run)["MANIFEST"].partition("Left out:")[2]


@pytest.mark.thorough
def test_archive_of_a_thousand_tasks_is_small(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", workers=1000, host_count=125, minutes=5, interval=60, lines=200)
    data = bundle.make(run, "{}", {}, NOW)
    assert len(data) < 10 << 20
