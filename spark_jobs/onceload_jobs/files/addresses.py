"""Addresses of files, local or with any backend of fsspec, and errors for files that cannot be read."""

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, cast

from onceload_core.errors import CallAgain, OnceloadError, SettingRefused

_LOGIN = re.compile(r"[^/]*@")
#: Schemes with addresses that start with `container@account`.
_WITH_CONTAINER = frozenset({"abfs", "abfss"})
_OF_S3 = re.compile(r"(?:^|::)(s3a?)://")
#: Environment variables with credentials of S3 stores, and the fsspec options for them.
_ACCESS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "token",
    "AWS_ENDPOINT_URL": "endpoint_url",
}
_REGION = "AWS_DEFAULT_REGION"
_SCHEME = re.compile(r"(?:file|local):(?://)?|(?:[\w+.-]+::)*[\w+.-]+://")


@dataclass(eq=False)
class Unreadable(CallAgain):
    url: str
    reason: str

    def __str__(self) -> str:
        return f"could not read {shown(self.url)}: {self.reason}. Its loaded rows stay. Retry when it can be read."


def local_path(url: str) -> str | None:
    """Return the local path of a URL, or None if it is not local."""
    if url.startswith("/"):
        return url
    scheme, path = split_address(url)
    return path if scheme == "" else None


def shown(url: str) -> str:
    """Format a URL for messages and logs, without its password."""
    first, *rest = url.split("://")
    return "://".join([first, *(part.removeprefix(login) for part, login in zip(rest, _logins(url), strict=True))])


#: Schemes that lead to the same stores as another one.
_OTHER_SCHEMES = {"s3a://": "s3://", "gcs://": "gs://", "abfss://": "abfs://"}


def address_of(folder: str) -> str:
    """The address of a folder, with a slash at its end: the same however its path is spelt, and without a password."""
    scheme, path = split_address(shown(folder))
    if scheme:
        return path_below(_OTHER_SCHEMES.get(scheme, scheme) + posixpath.normpath(path), "")
    return path_below(os.path.realpath(Path(path or ".").expanduser()), "")


def with_login(url: str, *, of: str) -> str:
    """Restore the user and password that `shown` removed, from the address that the URL was found by."""
    first, *rest = url.split("://")
    # A chained address has several logins.
    logins = _logins(of)[: len(rest)]
    return "://".join([first, *(f"{login}{part}" for login, part in zip_longest(logins, rest, fillvalue=""))])


def _logins(url: str) -> list[str]:
    """The login of each store in an address; for some schemes, the part before `@` is a container instead."""
    logins = []
    for before, part in pairwise(url.split("://")):
        found = _LOGIN.match(part)
        is_container = before.rpartition("::")[2] in _WITH_CONTAINER and found is not None and ":" not in found.group()
        logins.append("" if found is None or is_container else found.group())
    return logins


#: Without credentials here, the environment is used; each task of a shared process has its own.
_access: ContextVar[Mapping[str, str] | None] = ContextVar("access to a store", default=None)


def is_of_s3(url: str) -> bool:
    return _OF_S3.search(url) is not None


def use_access(access: Mapping[str, str]) -> None:
    """Use these credentials from now on, in this context only."""
    _access.set(access or None)


@contextmanager
def using(access: Mapping[str, str]) -> Iterator[None]:
    """Use these credentials while the block runs."""
    before = _access.set(access or None)
    try:
        yield
    finally:
        _access.reset(before)


def known_access() -> Mapping[str, str]:
    """The credentials that a worker elsewhere needs to open the same files."""
    return _access.get() or {name: os.environ[name] for name in (*_ACCESS, _REGION) if os.environ.get(name)}


def _options_of(url: str) -> dict[str, Any]:
    found, access = _OF_S3.search(url), _access.get()
    if found is None or access is None:
        return {}
    options: dict[str, Any] = {option: access[name] for name, option in _ACCESS.items() if name in access}
    if _REGION in access:
        options["client_kwargs"] = {"region_name": access[_REGION]}
    return {found[1]: options}


@contextmanager
def errors_naming(url: str) -> Iterator[None]:
    """Translate the errors of every backend into our own, which name the file."""
    try:
        yield
    except OnceloadError:
        raise
    except FileNotFoundError as error:
        raise Unreadable(url, "it is gone") from error
    except Exception as error:
        raise Unreadable(url, in_words(error)) from error


def in_words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def split_address(url: str) -> tuple[str, str]:
    """The scheme with its `://`, and the path; the scheme of a local path is empty."""
    found = _SCHEME.match(url)
    scheme = found.group() if found else ""
    path = url[len(scheme) :]
    return ("", path) if scheme.startswith(("file:", "local:")) else (scheme, path)


#: Stores without real folders: an empty folder is one without files so far.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "r2"})


def is_object_store(backend: Any) -> bool:  # noqa: ANN401 - fsspec ships no types.
    protocol = (backend.protocol,) if isinstance(backend.protocol, str) else backend.protocol
    return bool(_OBJECT_STORES.intersection(protocol))


def etag_of(backend: Any, facts: Mapping[str, Any]) -> str | None:  # noqa: ANN401 - fsspec ships no types.
    """The ETag of an object, if the store never gives the same ETag to other content of the same name."""
    # Web servers derive the ETag from time and size, which a quick rewrite may leave unchanged.
    etag = facts.get("ETag") or facts.get("etag") if is_object_store(backend) else None
    # A gateway may give all content the same weak ETag.
    if not etag or str(etag).startswith("W/"):
        return None
    # Azure omits the quotes in listings, but not in single answers.
    return f'"{str(etag).strip(chr(34))}" {facts["size"]}'


def path_refused(pattern: str, expected: str) -> SettingRefused:
    return SettingRefused(setting="source.path", found=shown(pattern), expected=expected)


def path_below(root: str, name: str) -> str:
    return root + name if root.endswith("/") else f"{root}/{name}"


def backend_of(url: str) -> tuple[Any, str]:
    # Imported late: the import takes longer than most runs over local files.
    from fsspec.core import url_to_fs

    try:
        return cast("tuple[Any, str]", url_to_fs(url, **_options_of(url)))
    except (ValueError, ImportError) as error:
        raise path_refused(url, f"an address that fsspec can open (error: {error})") from error
