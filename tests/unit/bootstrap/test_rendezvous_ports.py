"""Reserved ports: no other program can bind a port that is held, but TensorFlow can."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
from pathlib import Path

import pytest

from gridtf.bootstrap.plan.rendezvous import PortHolder, host_port
from gridtf.errors import GridtfError
from tests.support.python import environment, python


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


IPV6 = [(socket.AF_INET6, "::"), (socket.AF_INET6, "::1")] if _has_ipv6() else []
ADDRESSES = [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.0.0.1"), *IPV6]


def binds(family: int, address: str, port: int, *, options: tuple[int, ...] = (), listen: bool = True) -> bool:
    """Whether a socket of another program of this user gets the port."""
    with socket.socket(family, socket.SOCK_STREAM) as rival:
        for option in options:
            rival.setsockopt(socket.SOL_SOCKET, option, 1)
        if family == socket.AF_INET6:
            rival.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            rival.bind((address, port))
            if listen:
                rival.listen()
        except OSError as error:
            assert error.errno == errno.EADDRINUSE
            return False
        return True


@pytest.mark.parametrize(("family", "address"), ADDRESSES)
@pytest.mark.parametrize("options", [(), (socket.SO_REUSEADDR,)], ids=["plain", "reuseaddr"])
def test_reserved_port_cannot_be_bound_without_reuseport(family: int, address: str, options: tuple[int, ...]) -> None:
    with PortHolder() as holder:
        port = holder.reserve()
        assert not binds(family, address, port, options=options)
        holder.release(port)
        assert binds(family, address, port, options=options)


@pytest.mark.parametrize(("family", "address"), ADDRESSES)
def test_reserved_port_can_be_bound_with_reuseport(family: int, address: str) -> None:
    with PortHolder() as holder:
        assert binds(family, address, holder.reserve(), options=(socket.SO_REUSEPORT,))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.root
def test_another_user_cannot_bind_a_reserved_port_with_reuseport() -> None:
    code = (
        "import os, socket, sys\n"
        "os.setuid(65534)\n"
        "rival = socket.socket()\n"
        "rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
        "try: rival.bind(('', int(sys.argv[1])))\n"
        "except OSError as error: print(error.errno)\n"
    )
    with PortHolder() as holder:
        output = subprocess.check_output(python(code, holder.reserve()), text=True, timeout=180)
    assert output.strip() == str(errno.EADDRINUSE)


def test_reserved_port_receives_no_connections() -> None:
    with PortHolder() as holder:
        port = holder.reserve()
        with socket.socket() as client:
            client.settimeout(5)
            assert client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
        dual = bool(IPV6)
        family = socket.AF_INET6 if dual else socket.AF_INET
        with socket.create_server(("", port), family=family, reuse_port=True, dualstack_ipv6=dual) as server:
            for address in ["127.0.0.1", *(["::1"] if dual else [])] * 25:
                with socket.create_connection((address, port), timeout=5), contextlib.closing(server.accept()[0]):
                    pass


def test_reservations_of_two_processes_are_distinct() -> None:
    """Although all holders set SO_REUSEPORT, the kernel never assigns a port of another one."""
    code = (
        "import sys; from gridtf.bootstrap.plan.rendezvous import PortHolder\n"
        "holder = PortHolder(); print(*[holder.reserve() for _ in range(250)], flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(python(code), env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        with PortHolder() as holder, PortHolder() as second:
            ours = [one.reserve() for _ in range(125) for one in (holder, second)]
            theirs = [int(port) for port in other.stdout.readline().split()]
            other.stdin.close()
            assert other.wait(30) == 0
    assert len({*ours, *theirs}) == len(ours) + len(theirs) == 500


def test_port_in_use_is_never_reserved() -> None:
    """Neither a listening port, nor the local port of a connection."""
    with contextlib.ExitStack() as stack:
        used = set()
        for _ in range(100):
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0), reuse_port=True))
            client = stack.enter_context(socket.create_connection(server.getsockname()))
            used |= {server.getsockname()[1], client.getsockname()[1]}
        with PortHolder() as holder:
            assert not used & {holder.reserve() for _ in range(300)}


def test_release_and_close_free_the_ports() -> None:
    holder = PortHolder()
    first, second = holder.reserve(), holder.reserve()
    assert len(holder.filenos()) == 2
    holder.release(first)
    holder.release(first)
    holder.release(1)  # never held
    assert len(holder.filenos()) == 1
    assert binds(socket.AF_INET, "0.0.0.0", first)
    assert not binds(socket.AF_INET, "0.0.0.0", second)
    holder.close()
    holder.close()
    assert binds(socket.AF_INET, "0.0.0.0", second)


def test_reserved_ports_are_not_inherited_by_tasks() -> None:
    with PortHolder() as holder:
        holder.reserve()
        assert not any(os.get_inheritable(descriptor) for descriptor in holder.filenos())


def test_ports_are_reserved_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    class NoIPv6(real):  # type: ignore[misc, valid-type]
        def __init__(self, family: int = socket.AF_INET, *rest: int, **more: int) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *rest, **more)

    monkeypatch.setattr(socket, "socket", NoIPv6)
    with PortHolder() as holder:
        port = holder.reserve()
        assert not binds(socket.AF_INET, "0.0.0.0", port)


def test_error_without_free_ports_names_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(GridtfError, match=f"cannot reserve a port on {socket.gethostname()}: .*Too many open files"):
        PortHolder().reserve()


SERVE = """
import sys, time
import tensorflow as tf
print("importing done", flush=True)
sys.stdin.readline()
servers = [tf.distribute.Server({"worker": [member]}, job_name="worker", task_index=0) for member in sys.argv[1:]]
print("serving", flush=True)
sys.stdin.readline()
"""
TALK = """
import sys
import tensorflow as tf
for member in sys.argv[1:]:
    with tf.Graph().as_default(), tf.compat.v1.Session("grpc://" + member) as session:
        print(session.run(tf.constant(20) + 22))
"""
RIVAL = """
import os, socket, sys, time
stop, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]
tries = taken = 0
while not os.path.exists(stop):
    for port, address in [(port, address) for port in ports for address in ("0.0.0.0", "127.0.0.1")]:
        with socket.socket() as rival:
            try:
                rival.bind((address, port)); rival.listen(); taken += 1
            except OSError:
                pass
    tries += 1
    time.sleep(0.001)
print(tries, taken)
"""


@pytest.mark.tensorflow
def test_tensorflow_serves_on_reserved_ports_under_contention(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    addresses = ["localhost", *(["::1"] if IPV6 else [])]
    environ = environment(TF_GRPC_REUSE_PORT="1", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")

    def start(code: str, *arguments: object) -> subprocess.Popen[str]:
        command = python(code, *arguments)
        return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with PortHolder() as holder:
        ports = [holder.reserve() for _ in addresses]
        members = [host_port(address, port) for address, port in zip(addresses, ports, strict=True)]
        with start(RIVAL, stop, *ports) as rival, start(SERVE, *members) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            try:
                assert server.stdout.readline() == "importing done\n"
                server.stdin.write("go\n")
                server.stdin.flush()
                assert server.stdout.readline() == "serving\n"
                with start(TALK, *members) as client:
                    output, _ = client.communicate(timeout=500)
                assert output == "42\n" * len(members)
            finally:
                stop.touch()
                server.kill()
            tries, taken = map(int, rival.communicate(timeout=180)[0].split())
    assert taken == 0
    assert tries > 100
