"""Addresses of files: here or with any backend of fsspec, and what is said of one that cannot be read."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, cast

from dedup_core.errors import CallAgain, OnceloadError, SettingRefused

_LOGIN = re.compile(r"[^/]*@")
#: Schemes whose addresses start as `container@account`.
_WITH_CONTAINER = frozenset({"abfs", "abfss"})
_SCHEME = re.compile(r"(?:file|local):(?://)?|(?:[\w+.-]+::)*[\w+.-]+://")


@dataclass(eq=False)
class Unreadable(CallAgain):
    url: str
    reason: str

    def __str__(self) -> str:
        return f"{shown(self.url)} should have been readable, but {self.reason}; nothing was loaded of it: call again"


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
    return str(etag) if etag and not str(etag).startswith("W/") else None


def path_refused(pattern: str, expected: str) -> SettingRefused:
    return SettingRefused(setting="source.path", found=shown(pattern), expected=expected)


def path_below(root: str, name: str) -> str:
    return root + name if root.endswith("/") else f"{root}/{name}"


def backend_of(url: str) -> tuple[Any, str]:
    # The import takes longer than most runs over local files.
    from fsspec.core import url_to_fs

    try:
        # What a listing says of a file is not asked of it again later: by then it may be another one.
        return cast("tuple[Any, str]", url_to_fs(url, use_listings_cache=False))
    except (ValueError, ImportError) as error:
        raise path_refused(url, f"an address that fsspec can open, not one that says: {error}") from error
