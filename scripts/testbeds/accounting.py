"""Slurm's accounting, on the controller's host: MariaDB and slurmdbd (slurmdbd.conf(5))."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from . import boot
from .errors import TestbedError
from .view import DISK, LOG

PACKAGES = {"slurmdbd": "slurmdbd slurm-wlm-mysql-plugin", "mariadbd": "mariadb-server"}
_PORT = 6819
_DATA = f"{DISK}/mysql"
_SOCKET = "/run/mysqld/mysqld.sock"  # where Debian's client library looks for it
_PREPARE = "create database if not exists slurm_acct_db; create user if not exists slurm@localhost; "
_GRANT = "grant all on slurm_acct_db.* to slurm@localhost;"


def configuration(host: str) -> str:
    """The text of slurmdbd.conf."""
    settings = {
        "AuthType": "auth/munge",
        "DbdHost": host,
        "DbdPort": _PORT,
        "SlurmUser": "root",
        "LogFile": f"{LOG}/slurmdbd.log",
        "PidFile": "/run/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "slurm",
        "StorageLoc": "slurm_acct_db",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def settings(host: str) -> dict[str, str]:
    """The settings of slurm.conf for accounting."""
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": host,
        "AccountingStoragePort": str(_PORT),
        "AccountingStorageTRES": "gres/gpu",
    }


def start() -> None:
    """Start the daemons, before slurmctld, in the first process of the host and wait for slurmdbd to listen."""
    account = pwd.getpwnam("mysql")
    for folder in (_DATA, "/run/mysqld"):
        Path(folder).mkdir(exist_ok=True)
        os.chown(folder, account.pw_uid, account.pw_gid)
    if not Path("/run/mariadbd").exists():  # where the client library of Debian from trixie on looks for it
        Path("/run/mariadbd").symlink_to("/run/mysqld")
    if not Path(_DATA, "mysql").exists():
        plain = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        _run(["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={_DATA}", *plain])
    place = [f"--datadir={_DATA}", f"--socket={_SOCKET}", f"--pid-file={_DATA}/pid", f"--log-error={LOG}/mariadb.err"]
    small = ["--skip-networking", "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"]
    log = Path(LOG, "mariadb.err")
    log.touch()
    os.chown(log, account.pw_uid, account.pw_gid)
    boot.service(["mariadbd", "--no-defaults", "--user=mysql", *place, *small], log)
    _wait("MariaDB", Path(_SOCKET).exists)
    _run(["mariadb", "--no-defaults", "--user=root", f"--socket={_SOCKET}", "--execute", _PREPARE + _GRANT])
    boot.service(["slurmdbd", "-D"], f"{LOG}/slurmdbd.err")
    _wait("slurmdbd", _answers)


def _answers() -> bool:
    try:
        socket.create_connection(("127.0.0.1", _PORT), 1).close()
    except OSError:
        return False
    return True


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise TestbedError(f"{command[0]} has failed", why=(done.stderr or done.stdout).strip())


def _wait(what: str, there: Callable[[], bool], limit: float = 40) -> None:
    end = time.monotonic() + limit
    while not there():
        if time.monotonic() > end:
            raise TestbedError(f"{what} does not start", why=f"its log is {LOG}/{what.lower()}.err")
        time.sleep(0.05)
