"""Programs for tests of the fence: members of a job that connect to each other, and strangers that knock."""

from __future__ import annotations

# python -c MEMBER OVER ROUNDS CROWD ALSO: listens as TensorFlow does, greets who gets in; connects to all members in
# rounds, until there is a file OVER-enough, also by other addresses of theirs. A crowd of connections is reset as soon
# as it is in.
MEMBER = """
import json, os, socket, struct, sys, threading, time
over, rounds = sys.argv[1], int(sys.argv[2])
crowd = brief = int(sys.argv[3])
also = json.loads(sys.argv[4])
config = json.loads(os.environ["TF_CONFIG"])
members = [member.rsplit(":", 1) for member in config["cluster"]["worker"]]
server = socket.socket(socket.AF_INET6)
server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind(("", int(members[config["task"]["index"]][1])))
server.listen(512)

def say(line):
    os.write(1, f"{line}\\n".encode())

def greet(connection):
    with connection:
        connection.settimeout(10)
        try:
            say("heard " + connection.recv(20).decode())
            connection.sendall(b"welcome")
        except ConnectionResetError:
            pass

def serve():
    while True:
        threading.Thread(target=greet, args=server.accept()[:1], daemon=True).start()

threading.Thread(target=serve, daemon=True).start()

def visit(name, port):
    begin = time.monotonic()
    with socket.create_connection((name, port), 125) as client:
        took = time.monotonic() - begin
        if brief:  # a moment later, its port is anybody's
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        client.sendall(b"member")
        assert client.recv(20) == b"welcome"
    say(f"in {name} {port} {took:.3f}")

for _ in range(rounds):
    if os.path.exists(over + "-enough"):
        break
    names = [(host.strip("[]"), int(port)) for host, port in members]
    names += [(also[host], port) for host, port in names if host in also]
    visits = [threading.Thread(target=visit, args=name) for name in names * (crowd or 1)]
    for thread in visits:
        thread.start()
    for thread in visits:
        thread.join()
say("rounds done")
while not os.path.exists(over):
    time.sleep(0.05)
os._exit(0)
"""

_FIND = """
import json, os, socket, sys, threading, time
from itertools import product
from pathlib import Path
over, where = Path(sys.argv[1]), sys.argv[2]
if where.startswith("["):
    targets = [tuple(target) for target in json.loads(where)]
else:
    def published():
        for path in Path(where).glob("attempt-1/state/hosts.json"):
            return [host for host in json.loads(path.read_text())["hosts"].values() if "ports" in host]
    while not (found := published()):
        time.sleep(0.01)
    ports = [port for host in found for port in host["ports"].values()]
    targets = [*product(["127.0.0.1", "127.0.0.2", "::1", socket.gethostbyname(socket.gethostname())], ports)]
results = {"tries": 0, "in": 0}

def tried(client):
    results["tries"] += 1
    try:
        client.sendall(b"stranger")
    except OSError:  # not connected
        return
    results["in"] += 1
"""

# python -c KNOCK OVER WHERE: knocks at all ports of a job until it is over, in many ways, and says so at first. WHERE:
# address and port of each, as JSON; or the run directory of a job on one host.
KNOCK = f"""{_FIND}
def knock(address, port, patience):
    while not over.exists():
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as client:
            client.settimeout(patience)
            try:
                client.connect((address, port))
            except OSError:
                time.sleep(0.01)
            tried(client)

threads = [threading.Thread(target=knock, args=(*target, patience)) for target in targets for patience in (0.1, 4)]
for thread in threads:
    thread.start()
while results["tries"] < 20 and not over.exists():
    time.sleep(0.01)
print("knocked", flush=True)
for thread in threads:
    thread.join()
print(json.dumps(results))
"""

# python -c RACE OVER RUN: sees in /proc whence members connect, and tries to have the same port just behind them. Makes
# a file raced when it has tried 500 times.
RACE = f"""{_FIND}
loopback = "0100007F"
seen = {{}}  # port of a member, port of a task -> when it was seen first
while not over.exists():
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        ends = int(local.split(":")[1], 16), int(remote.split(":")[1], 16)
        if ends[1] in ports and local.startswith(loopback):
            seen.setdefault(ends, time.monotonic())
    # the member gets in after a second
    late = [ends for ends, begin in seen.items() if 0.9 < time.monotonic() - begin < 1.5]
    pause = time.monotonic() + 0.05
    while late and time.monotonic() < pause:
        for source, port in late:
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                client.setblocking(False)
                try:
                    client.bind(("127.0.0.1", source))
                except OSError:  # the member has it
                    continue
                client.connect_ex(("127.0.0.1", port))
                tried(client)
    if results["tries"] >= 500:
        Path("raced").touch()
print(json.dumps(results))
"""
