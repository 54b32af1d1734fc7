"""Addresses of files: here or with any backend of fsspec, and what is said of one that cannot be read."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, cast

from dedup_core.errors import CallAgain, OnceloadError, SettingRefused

_LOGIN = re.compile(r"[^/]*@")
#: Schemes whose addresses start as `container@account`.
_WITH_CONTAINER = frozenset({"abfs", "abfss"})
_OF_S3 = re.compile(r"(?:^|::)(s3a?)://")
#: How to get into a store that speaks S3, by the names that its tools give to it, and what fsspec calls the same.
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
        return f"could not read {shown(self.url)}: {self.reason}. Nothing more of it was loaded. Retry."


def local_path(url: str) -> str | None:
    """Where a URL lies on this machine, if it does."""
    if url.startswith("/"):
        return url
    scheme, path = split_address(url)
    return path if scheme == "" else None


def shown(url: str) -> str:
    """Write a URL for people and logs: without the password that it may hold."""
    first, *rest = url.split("://")
    return "://".join([first, *(part.removeprefix(login) for part, login in zip(rest, _logins(url), strict=True))])


def with_login(url: str, *, of: str) -> str:
    """A URL as it was before it was shown: with the user and password of the address that it was found by."""
    first, *rest = url.split("://")
    # A chained address holds several, each with its own.
    logins = _logins(of)[: len(rest)]
    return "://".join([first, *(f"{login}{part}" for login, part in zip_longest(logins, rest, fillvalue=""))])


def _logins(url: str) -> list[str]:
    """Who logs in to each store of an address; what stands in the place of a user may be a container."""
    logins = []
    for before, part in pairwise(url.split("://")):
        found = _LOGIN.match(part)
        is_container = before.rpartition("::")[2] in _WITH_CONTAINER and found is not None and ":" not in found.group()
        logins.append("" if found is None or is_container else found.group())
    return logins


#: Where nothing else was said, the environment says; each task of a process that has many has its own.
_access: ContextVar[Mapping[str, str] | None] = ContextVar("how to get into a store", default=None)


def is_of_s3(url: str) -> bool:
    return _OF_S3.search(url) is not None


def use_access(access: Mapping[str, str]) -> None:
    """Get into stores by this from now on, in this context alone: others of this process have theirs."""
    _access.set(access or None)


def known_access() -> Mapping[str, str]:
    """What somebody elsewhere has to be told to get in as we do."""
    return _access.get() or {name: os.environ[name] for name in (*_ACCESS, _REGION) if os.environ.get(name)}


def _options_of(url: str) -> dict[str, Any]:
    found, access = _OF_S3.search(url), _access.get()
    if found is None or access is None:
        return {}
    options: dict[str, Any] = {said: access[name] for name, said in _ACCESS.items() if name in access}
    if _REGION in access:
        options["client_kwargs"] = {"region_name": access[_REGION]}
    return {found[1]: options}


@contextmanager
def told(url: str) -> Iterator[None]:
    """Every backend raises errors of its own; tell them all in our words."""
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


#: Stores without folders of their own: there, an empty folder is one that no file has come to yet.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "r2"})


def is_object_store(backend: Any) -> bool:  # noqa: ANN401 - fsspec ships no types.
    protocol = (backend.protocol,) if isinstance(backend.protocol, str) else backend.protocol
    return bool(_OBJECT_STORES.intersection(protocol))


def etag_of(backend: Any, facts: Mapping[str, Any]) -> str | None:  # noqa: ANN401 - fsspec ships no types.
    """What a store calls the content of an object, if no other content is ever called so under the same name."""
    # Web servers make theirs of the time and the size, which a quick rewrite leaves alone.
    etag = facts.get("ETag") or facts.get("etag") if is_object_store(backend) else None
    # A gateway before something else may call all of it alike.
    if not etag or str(etag).startswith("W/"):
        return None
    # Azure's listing leaves out the quotes that its answer about a single one has.
    return f'"{str(etag).strip(chr(34))}" {facts["size"]}'


def path_refused(pattern: str, expected: str) -> SettingRefused:
    return SettingRefused(setting="source.path", found=shown(pattern), expected=expected)


def path_below(root: str, name: str) -> str:
    return root + name if root.endswith("/") else f"{root}/{name}"


def backend_of(url: str) -> tuple[Any, str]:
    # The import takes longer than most runs over local files.
    from fsspec.core import url_to_fs

    try:
        return cast("tuple[Any, str]", url_to_fs(url, **_options_of(url)))
    except (ValueError, ImportError) as error:
        raise path_refused(url, f"an address that fsspec can open, not one that says: {error}") from error
