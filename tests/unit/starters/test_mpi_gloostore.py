"""The store in which Horovod's ranks meet without MPI; it is asked as Horovod 0.28 asks."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from gridtf.starters.mpi import gloostore
from gridtf.starters.mpi.gloostore import Request, Store


@pytest.fixture
def store() -> Iterator[Store]:
    found = Store(("", 0), Request)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def ask(store: Store, method: str, key: str, value: bytes | None = None) -> tuple[int, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", store.server_address[1], timeout=30)
    link.request(method, key, value)
    answer = link.getresponse()
    found = answer.status, answer.read()
    link.close()
    return found


@pytest.mark.thorough
def test_ranks_find_what_others_have_put_until_all_have_met(store: Store) -> None:
    assert ask(store, "GET", "/global/0") == (404, b"")
    for number in range(3):
        assert ask(store, "PUT", f"/global/{number}", b"an\0address") == (200, b"")
    assert ask(store, "PUT", "/local_n1/0", b"another") == (200, b"")
    for rank in ("0", "1", "1"):  # a request that is made again counts once
        assert ask(store, "DELETE", f"/global/{rank}") == (200, b"")
        assert ask(store, "GET", "/global/0") == (200, b"an\0address")
    ask(store, "DELETE", "/global/2")
    assert ask(store, "GET", "/global/0") == (404, b"")  # for hvd.init() once more
    assert ask(store, "GET", "/local_n1/0") == (200, b"another")


@pytest.mark.thorough
def test_port_in_use_is_told(store: Store) -> None:
    argv = [sys.executable, "-I", "-S", gloostore.__file__, str(store.server_address[1])]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == f"gridtf: cannot listen on port {store.server_address[1]}: Address already in use\n"
