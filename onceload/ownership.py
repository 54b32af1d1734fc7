"""Which process serves the data of the embedded Postgres: one in any container of this kernel, or on another host.

**On one kernel, a lock is the proof.** The server is started with a locked file of its data, and each of its processes
inherits it. So the lock is free when the last of them has ended, however it ended. Postgres' own guards look for
process ids and shared memory, which containers hide from each other.

**Hosts that share the folder** over a network, or by copying it, might not share locks. `owner.json` names the host
that started the server, and a stop deletes it. A process that holds the lock finds there:

    nothing                        the last server was stopped             start
    this boot of this kernel       it was killed, as the lock is free      start; Postgres recovers
    this machine, another boot     it ended with that boot                 start; Postgres recovers
    anything else                  it may run there                        refuse, until the file is deleted

A container gets another host name each time, but it shares the boot id of its kernel. A machine is known by its host
name and its machine id together: clones share one of them. Many containers have no machine id. Then the folder has to
be the same one on a local disk, too. A local disk alone proves nothing: its kernel may export it to other hosts, whose
locks it does not see. The file is linked into place, so of two hosts that start at the same moment only one creates
it, if their file system is the same one.
"""

import fcntl
import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import psutil

from onceload_core.errors import DatabaseUnreachable

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")
#: A file that exists as long as the data, and that Postgres never replaces.
_LOCKED = "PG_VERSION"
#: File systems that one kernel mounts at a time; others may reach them through it.
_LOCAL = frozenset({"btrfs", "ext3", "ext4", "f2fs", "xfs", "zfs"})


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The host that started the server."""

    host: str
    machine: str
    boot: str
    #: Of the file that is locked.
    inode: int
    started: str


_HOW = "(`ONCELOAD_EMBEDDED_KEEP=0s onceload status`)"
_FOR_SEVERAL = "For several hosts or containers, set ONCELOAD_DSN to a Postgres of your own."
_UNKNOWN = Owner(host="unknown", machine="", boot="", inode=-1, started="an unknown time")


def find_lock(data: Path) -> BinaryIO | None:
    """Take the lock of the data; None while a server's process holds it."""
    file = (data / _LOCKED).open("r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def take(folder: Path) -> None:
    """Become the owner, for which the lock must be held."""
    earlier, here = refuse_other(folder), _here(folder)
    new = folder / f"owner.new-{here.boot}"
    with new.open("w") as file:
        json.dump(asdict(here), file)
        file.flush()
        # A crash must not leave the name without the content.
        os.fsync(file.fileno())
    try:
        if earlier:
            leave(folder)
        _file(folder).hardlink_to(new)
    except FileExistsError:
        raise _owned(folder, _find_owner(folder) or _UNKNOWN) from None
    finally:
        new.unlink()


def refuse_other(folder: Path) -> Owner | None:
    """Return the last owner; raise if its server may run, although no process of this kernel holds the lock."""
    owner, here = _find_owner(folder), _here(folder)
    if owner is None or owner.boot == here.boot or _is_same_machine(owner, here, folder):
        return owner
    raise _owned(folder, owner)


def _is_same_machine(owner: Owner, here: Owner, folder: Path) -> bool:
    if (owner.host, owner.machine) != (here.host, here.machine):
        return False
    # Containers of two hosts may have one name and no machine id. A copy of the folder has another inode.
    return bool(here.machine) or (owner.inode == here.inode and _is_on_local_disk(folder))


def leave(folder: Path) -> None:
    """Note that the server was stopped."""
    _file(folder).unlink(missing_ok=True)


def held(folder: Path, *, problem: str) -> DatabaseUnreachable:
    """The error about a lock that stays held."""
    owner = _find_owner(folder)
    started = f" that host {owner.host!r} started at {owner.started}" if owner else ""
    return DatabaseUnreachable(
        doing=f"using {folder}",
        reason=f"a process of the server{started} still runs, and {problem}",
        fix=f"Run the command where that server runs, for example in the same container, or stop it there {_HOW}. If "
        f"it was killed, end its remaining processes. {_FOR_SEVERAL}",
    )


def _owned(folder: Path, owner: Owner) -> DatabaseUnreachable:
    return DatabaseUnreachable(
        doing=f"starting the server in {folder}",
        reason=f"host {owner.host!r} started a server there at {owner.started}, and did not stop it, so it may still "
        "run. Two servers would destroy the data",
        fix=f"Run the command on that host, or stop the server there {_HOW}, and retry. If that host no longer runs "
        f"it, or if this folder is a copy, delete {_file(folder)} and retry. {_FOR_SEVERAL}",
    )


def _find_owner(folder: Path) -> Owner | None:
    try:
        return Owner(**json.loads(_file(folder).read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return _UNKNOWN


def _file(folder: Path) -> Path:
    return folder / "owner.json"


def _is_on_local_disk(folder: Path) -> bool:
    mounts = [each for each in psutil.disk_partitions(all=True) if folder.is_relative_to(each.mountpoint)]
    return max(mounts, key=lambda each: len(each.mountpoint)).fstype in _LOCAL if mounts else False


def _here(folder: Path) -> Owner:
    # Not every system has these files.
    boot, machine = str(int(psutil.boot_time())), ""
    with suppress(OSError):
        boot = _BOOT_ID.read_text().strip()
    with suppress(OSError):
        machine = _MACHINE_ID.read_text().strip()
    started = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    inode = (folder / "data" / _LOCKED).stat().st_ino
    return Owner(host=socket.gethostname(), machine=machine, boot=boot, inode=inode, started=started)
