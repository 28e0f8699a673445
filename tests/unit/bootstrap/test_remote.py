"""Commands of mpirun for other hosts, and how they have ended."""

from __future__ import annotations

import pytest

from gridtf.bootstrap.launcher.remote import Remote
from gridtf.bootstrap.wire import messages
from tests.support.streams import FakeListener

HOSTS = ("n1", "n2", "n3")


def test_commands_go_to_their_hosts_and_codes_come_back() -> None:
    listener = FakeListener()
    remote = Remote(listener)
    first = {"0": ["n2", "orted 1"]}
    remote.take("n1", {"commands": first, "codes": {}}, HOSTS)
    both = {**first, "1": ["n3", "orted 2"]}
    remote.take("n1", {"commands": both, "codes": {}}, HOSTS)  # an agent says all so far
    remote.take("n3", {"commands": {}, "codes": {"1": 0}}, HOSTS)
    assert listener.sent == [
        ("n2", messages.REMOTE, {"commands": first, "codes": {}}),
        ("n3", messages.REMOTE, {"commands": {"1": ["n3", "orted 2"]}, "codes": {}}),
        ("n1", messages.REMOTE, {"commands": {}, "codes": {"1": 0}}),
    ]


@pytest.mark.parametrize(("called", "host"), [("n2", "n2.site.org"), ("n2.site.org", "n2.site.org"), ("n10", "n10")])
def test_host_without_its_domain_is_found(called: str, host: str) -> None:
    listener = FakeListener()
    Remote(listener).take("n1", {"commands": {"0": [called, "orted"]}, "codes": {}}, ("n1", "n2.site.org", "n10"))
    assert [target for target, *_ in listener.sent] == [host]


def test_command_for_a_host_that_is_none_of_the_job_has_failed() -> None:
    listener = FakeListener()
    Remote(listener).take("n1", {"commands": {"0": ["elsewhere", "orted"]}, "codes": {}}, HOSTS)
    assert listener.sent == [("n1", messages.REMOTE, {"commands": {}, "codes": {"0": 1}})]
