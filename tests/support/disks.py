"""Small disks, and a way to fill them up. Needs root."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def ext4(image: Path, folder: Path) -> Iterator[Path]:
    """Mount a new ext4 file system of 8 MiB."""
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill a disk; returns the file that takes the space."""
    big = folder / "big"
    with big.open("wb", buffering=0) as file:
        for size in (65536, 1024, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return big
