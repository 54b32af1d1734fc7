"""The image of the Dockerfile, built without Docker, and its files as the root of processes.

`buildah` builds it in a chroot. The base in the Dockerfile is for users, and comes from a registry of images; here,
`debootstrap` makes one of Debian's packages with the same release and the same Python.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
_RELEASE = "bookworm"
_BASE, _IMAGE = "localhost/base", "localhost/onceload"
#: Where this machine trusts more authorities than Debian does, its package registries may need them.
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
#: What a container runtime does, in a mount namespace of the process: its folders, then its root and its user.
_ENTER = """\
root=$1 user=$2; shift 2
mount --rbind /proc "$root/proc" && mount --rbind /dev "$root/dev" && mount --bind /etc/hosts "$root/etc/hosts" || exit
while [ "$1" != -- ]; do
    mkdir -p "$root$2" || exit
    mount --bind "$1" "$root$2" || exit
    [ "$3" = rw ] || mount -o remount,bind,ro "$root$2" || exit
    shift 3
done
shift
exec chroot --userspec="$user" "$root" "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Bind:
    """A folder of this machine in the root."""

    here: Path
    there: str
    is_writable: bool


@dataclass(frozen=True, kw_only=True)
class Image:
    """The files of the image, and what it says of its processes."""

    root: Path
    #: Before anything ran in it.
    megabytes: int
    environment: Mapping[str, str]
    user: str
    folder: str

    def inside(
        self, command: Sequence[str], *, environment: Mapping[str, str], binds: Sequence[Bind] = ()
    ) -> list[str]:
        """The command as its user, with its root."""
        folders = [part for each in binds for part in (str(each.here), each.there, "rw" if each.is_writable else "ro")]
        settings = [f"{name}={value}" for name, value in {**self.environment, **environment}.items()]
        entered = [
            str(shutil.which("unshare")),
            "--mount",
            "sh",
            "-c",
            _ENTER,
            "sh",
            str(self.root),
            self.user,
            *folders,
            "--",
        ]
        return [*entered, "env", "-i", f"--chdir={self.folder}", *settings, *command]

    def run(self, *command: str, **environment: str) -> str:
        done = subprocess.run(
            self.inside(command, environment=environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def make_place(self, bind: Bind) -> None:
        """Where the folder goes in the root; a new folder that the user may write to belongs to it."""
        (self.root / bind.there.lstrip("/")).mkdir(parents=True, exist_ok=True)
        if bind.is_writable:
            bind.here.mkdir(parents=True, exist_ok=True)
            os.chown(bind.here, int(self._account[2]), int(self._account[3]))

    @property
    def home(self) -> str:
        return self._account[5]

    @property
    def _account(self) -> list[str]:
        accounts = (line.split(":") for line in (self.root / "etc/passwd").read_text().splitlines())
        return next(each for each in accounts if each[0] == self.user)


def why_not() -> str | None:
    """Why it cannot be built here."""
    missing = [each for each in ("buildah", "debootstrap") if shutil.which(each) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return None if os.geteuid() == 0 else "only root can build the image"


def build(folder: Path) -> Image:
    """Build it below this folder, which holds several GB then."""
    if reason := why_not():
        pytest.skip(reason)
    buildah = _Buildah(folder)
    buildah.make_base()
    file = folder / "Dockerfile"
    file.write_text(re.sub(r"(?m)^FROM \S+", f"FROM {_BASE}", (ROOT / "Dockerfile").read_text()))
    ignored = str(ROOT / ".dockerignore")
    buildah("bud", "--layers=false", "--ignorefile", ignored, "--file", str(file), "--tag", _IMAGE, str(ROOT))
    container = buildah("from", _IMAGE)
    said = json.loads(buildah.all_of("inspect", container))["OCIv1"]["config"]
    root = Path(buildah("mount", container))
    used = subprocess.run(
        ["du", "--summarize", "--block-size=1MB", str(root)], capture_output=True, text=True, check=True
    ).stdout
    return Image(
        root=root,
        megabytes=int(used.split()[0]),
        environment=dict(each.split("=", 1) for each in said["Env"]),
        user=said["User"],
        folder=said["WorkingDir"],
    )


class _Buildah:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, *arguments: str) -> str:
        """What it says in its last line."""
        return (self.all_of(*arguments).splitlines() or ["nothing"])[-1]

    def all_of(self, *arguments: str) -> str:
        """It needs neither a daemon nor a namespace of users. Without layers of folders, it leaves no mounts."""
        kept = ["--root", str(self._folder / "images"), "--runroot", str(self._folder / "run"), "--storage-driver=vfs"]
        return self._run(["buildah", *kept, *arguments], BUILDAH_ISOLATION="chroot")

    def make_base(self) -> None:
        base = self._folder / "base"
        included = "ca-certificates,python3,python3-venv"
        self._run(["debootstrap", "--variant=minbase", f"--include={included}", _RELEASE, str(base)])
        (base / "usr/bin/python").symlink_to("python3")
        # As in the slim variants of Debian's images.
        for left in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"):
            shutil.rmtree(base / left)
            (base / left).mkdir()
        container = self("from", "scratch")
        self("add", container, str(base), "/")
        if _AUTHORITIES.exists():
            self("copy", container, str(_AUTHORITIES), str(_AUTHORITIES))
            trusted = [f"--env={name}={_AUTHORITIES}" for name in ("PIP_CERT", "SSL_CERT_FILE")]
            self("config", *trusted, container)
        self("commit", "--rm", container, _BASE)
        shutil.rmtree(base)

    def _run(self, command: Sequence[str], **environment: str) -> str:
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout.strip()
