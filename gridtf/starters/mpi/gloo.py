"""Horovod without MPI: each rank is told its place as by horovodrun, and all meet at the store of its Gloo."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf.host.interpreter import isolated
from gridtf.host.network import interfaces, own_addresses
from gridtf.starters.mpi.world import World

if TYPE_CHECKING:
    from gridtf.bootstrap.plan.placement import PlacedTask

_STORE = Path(__file__).with_name("gloostore.py")


class Starter(World):
    """This host's part: the store, on MASTER_PORT of the first host, starts no ranks."""

    prints = False

    def begin(self, hosts: Sequence[str]) -> None:
        super().begin(hosts)
        port = self.cluster.master_port
        if hosts[0] != self.host or port in self.system.listening([port]):
            self.places.update({task.name: self._told(task, hosts) for task in self.mine})

    def command(self, hosts: Sequence[str]) -> tuple[Sequence[str], Mapping[str, str]]:
        return isolated(sys.executable, str(_STORE), str(self.cluster.master_port)), self.environ

    def _told(self, task: PlacedTask, hosts: Sequence[str]) -> Mapping[str, str]:
        """What horovodrun would tell a rank. hosts: of each rank."""
        here, count = self.host, Counter(hosts)
        number = task.local_rank or 0
        across = [host for host in count if count[host] > number]  # a rank each
        found = {*own_addresses(self.plan.hosts[here], here)}
        interface = next((one.name for one in interfaces() if {one.ipv4, one.ipv6} & found), "")
        told = (
            f"RANK={task.rank} SIZE={len(hosts)} LOCAL_RANK={number} LOCAL_SIZE={count[here]} "
            f"CROSS_RANK={across.index(here)} CROSS_SIZE={len(across)} HOSTNAME={here} CONTROLLER=gloo "
            f"CPU_OPERATIONS=gloo GLOO_RENDEZVOUS_ADDR={self.cluster.master_addr} "
            f"GLOO_RENDEZVOUS_PORT={self.cluster.master_port} GLOO_IFACE={interface}"
        )
        return {f"HOROVOD_{name}": value for name, _, value in (pair.partition("=") for pair in told.split())}
