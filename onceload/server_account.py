"""The system account that the embedded Postgres runs under: Postgres refuses root."""

import fcntl
import logging
import os
import pwd
import shutil
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onceload_core.errors import SettingRefused

log = logging.getLogger(__name__)

_SERVER_USER = "onceload"


@dataclass(frozen=True, kw_only=True)
class Account:
    uid: int
    gid: int


def account_of(data: Path) -> Account:
    """Choose the server's account: this user; or, for root, the owner of the data or an account made for it."""
    if os.geteuid() != 0:
        return Account(uid=os.geteuid(), gid=os.getegid())
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return Account(uid=owner.st_uid, gid=owner.st_gid)
    useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    # Two processes at once could both create it, and one entry would be lost. So all wait for a lock on the same file.
    with Path("/etc/passwd").open("rb") as accounts:
        fcntl.flock(accounts, fcntl.LOCK_EX)
        with suppress(KeyError):
            return _known_account()
        if useradd:
            subprocess.run([useradd, "--system", "--user-group", "--no-create-home", _SERVER_USER], check=False)
            with suppress(KeyError):
                return _known_account()
    raise SettingRefused(
        setting="the system account of the embedded Postgres",
        found=f"root, and no account {_SERVER_USER}, which could not be created",
        expected=f"an account {_SERVER_USER} (create it), an ordinary user, or ONCELOAD_DSN",
    )


def _known_account() -> Account:
    entry = pwd.getpwnam(_SERVER_USER)
    return Account(uid=entry.pw_uid, gid=entry.pw_gid)


def let_through(path: Path, *, account: Account) -> None:
    """Let the server's account traverse the folders above, without listing them."""
    if os.geteuid() != 0:
        return
    for folder in path.parents:
        state = folder.stat()
        if state.st_uid == account.uid:
            needed = stat.S_IXUSR
        else:
            needed = stat.S_IXGRP if state.st_gid == account.gid else stat.S_IXOTH
        if not state.st_mode & needed:
            folder.chmod(stat.S_IMODE(state.st_mode) | needed)
            log.warning("embedded_postgres_let_through folder=%s mode=+%o", folder, needed)
