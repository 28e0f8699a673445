"""Commands beside tasks: what the launcher makes of a user's request, and an agent of its order."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.launcher.requests import Requests
from gridtf.bootstrap.wire.messages import MessageError
from gridtf.features import exec as feature_exec
from gridtf.features.exec import EXEC, InAgent, InLauncher
from gridtf.features.stalls import STACKS, launcher
from gridtf.run.rundir import Record, write_record
from tests.support.features import FakeHelper, agent_view, launcher_view
from tests.support.plans import hosts, task_plan
from tests.support.streams import FakeLink, FakeListener
from tests.support.system import FakeSystem

ID, OTHER = "0123456789abcdef", "fedcba9876543210"
ORDER: Record = {"id": ID, "task": "worker:1", "command": ["ls", "a b"], "term": "", "user": "alice"}
ORDER |= {"certificate": "-----BEGIN"}
NOTED = {"task": "worker:1", "host": "h1", "user": "alice", "text": "ls 'a b'"}


class Half:
    """The launcher's half, of a job with a worker on each of three hosts."""

    def __init__(self, folder: Path) -> None:
        self.system = FakeSystem()
        self.plan = task_plan(folder / "run", hosts(0, 0, 0, slots=1), tasks={"worker": {"count": 3}})
        view = launcher_view(self.plan, self.system)
        self.hosts, self.reporter, listener = view.hosts, view.reporter, view.hosts.listener
        assert isinstance(listener, FakeListener)
        self.listener = listener
        self.feature = InLauncher(view, None)
        self.stalls = launcher.InLauncher(view, None)
        self.listener.kinds.update(self.feature.hears)
        self.hosts.heard.update({EXEC: self.feature.heard})

    def hear(self, host: str, content: Record) -> None:
        self.listener.say(host, EXEC, content)
        self.hosts.read()

    def ask(self, request: Record) -> None:
        admitted = self.feature.admitted(request)
        assert admitted is not None
        self.feature.asked(admitted)

    @property
    def events(self) -> Sequence[Record]:
        self.reporter.journal.end()
        _, *lines = map(json.loads, self.plan.attempt.events.read_text().splitlines())
        return [{name: value for name, value in line.items() if name not in ("time", "nonce")} for line in lines]

    def requested(self) -> Sequence[tuple[str, Record]]:
        """What the process that finds requests passes on."""
        requests = Requests(self.plan.attempt, self.plan.nonce, self.system, [self.feature, self.stalls])
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for path in sorted(self.plan.attempt.path.glob("*.request.json")):
                requests._pass_on(path.name, theirs)
            ours.setblocking(False)
            try:
                return [tuple(json.loads(line)) for line in ours.recv(1 << 16).splitlines()]
            except BlockingIOError:
                return []


def test_order_goes_to_the_host_of_the_task_with_all_that_run_there_and_its_end_is_noted_once(tmp_path: Path) -> None:
    half = Half(tmp_path)
    half.ask(ORDER)
    half.ask({**ORDER, "id": OTHER, "task": "worker:2"})
    half.ask({**ORDER, "id": OTHER[::-1], "task": "worker:9"})  # there is none
    also = {**ORDER, "id": OTHER[:8] * 2}
    half.ask(also)
    assert half.listener.sent == [
        ("h1", EXEC, {ID: ORDER}),
        ("h2", EXEC, {OTHER: {**ORDER, "id": OTHER, "task": "worker:2"}}),
        ("h1", EXEC, {ID: ORDER, also["id"]: also}),
    ]
    half.hear("h1", {ID: {"exit": 2}})
    half.hear("h1", {ID: {"exit": 2}, also["id"]: {"exit": None}})  # an agent says all so far
    assert half.events == [
        {"event": "exec", **NOTED},
        {"event": "exec", **NOTED, "task": "worker:2", "host": "h2"},
        {"event": "exec", **NOTED},
        {"event": "exec ended", **NOTED, "exit": 2},
        {"event": "exec ended", **NOTED, "exit": None},
    ]


@pytest.mark.parametrize("content", [{ID: {"exit": 256}}, {ID: {}}, [ID]])
def test_messages_that_are_none_are_refused(content: Any, tmp_path: Path) -> None:
    half = Half(tmp_path)
    with pytest.raises(MessageError):
        half.hear("h1", content)


def test_requests_go_to_who_takes_them(tmp_path: Path) -> None:
    half = Half(tmp_path)
    attempt, nonce = half.plan.attempt, {"nonce": half.plan.nonce}
    write_record(attempt.exec_files(ID)[0], {**nonce, **ORDER}, mode=0o600)
    write_record(attempt.stacks_request, {**nonce, "id": OTHER}, mode=0o600)
    write_record(attempt.exec_files(OTHER)[0], {**nonce, "id": OTHER}, mode=0o600)  # none
    assert half.requested() == [
        ("exec-", {"order": {**nonce, **ORDER}, "text": "ls 'a b'"}),
        (STACKS, {**nonce, "id": OTHER}),
    ]
    assert half.requested() == []


def test_site_that_forbids_commands_is_named_in_the_answer(tmp_path: Path) -> None:
    half = Half(tmp_path)
    site = tmp_path / "site.toml"
    site.write_text("[limits]\nexec = false\n")
    half.system.environ = {"GRIDTF_SITE_CONFIG": str(site)}
    request, answer = half.plan.attempt.exec_files(ID)
    write_record(request, {"nonce": half.plan.nonce, **ORDER}, mode=0o600)
    assert half.requested() == []
    assert json.loads(answer.read_text()) == {
        "nonce": half.plan.nonce,
        "error": f"the site forbids it: {site}:2: exec = false",
    }


def test_agent_starts_a_process_for_each_order_once_and_tells_all_ends_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[FakeHelper] = []
    monkeypatch.setattr(feature_exec, "Helper", partial(FakeHelper, started))
    plan = task_plan(tmp_path / "run", hosts(0, 0, slots=1), tasks={"worker": {"count": 2}})
    view = agent_view(plan, FakeSystem(), "h1")
    talk = view.conversation
    link = talk.link
    assert isinstance(link, FakeLink)
    feature = InAgent(view)
    talk.expect(feature.hears)

    def look(orders: Record) -> None:
        link.say(EXEC, orders)
        talk.hear()
        feature.look()

    both = {ID: ORDER, OTHER: {**ORDER, "id": OTHER}}
    look({ID: ORDER})
    look(both)
    assert (len(started), sorted(view.processes.pids(outlive=False)), link.sent) == (2, [100, 101], [])
    started[0].said = [b"3"]
    look(both)
    assert view.processes.pids(outlive=False) == {101}
    started[1].pid = None  # without a word
    feature.end()
    look(both)
    assert link.sent == [
        (EXEC, {ID: {"exit": 3}}),
        (EXEC, {ID: {"exit": 3}, OTHER: {"exit": None}}),
    ]
    assert len(started) == 2
