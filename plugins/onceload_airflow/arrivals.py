"""A trigger that fires when new records arrive, for scheduled DAGs and for waiting tasks; it runs in the triggerer.

Airflow's database stores only the pipeline file and the name of a connection; its address is looked up when needed.
Reported news is stored with the asset, also across restarts. If news is reported twice anyway, the second run finds
nothing new.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from onceload.pipeline_file import read_pipeline
from onceload_airflow.connections import CONNECTION
from onceload_airflow.hook import OnceloadHook
from onceload_core.errors import OnceloadError
from onceload_jobs.files.addresses import local_path
from onceload_jobs.files.listing import Listing, list_files

if TYPE_CHECKING:
    from onceload.runs import Found

_EVERY_S = 10.0
#: Local files are listed this often in between: a look is due at once when a file has arrived.
_LISTS_EVERY_S = 2.0
#: News that are still not loaded by then, because a run failed or its DAG was paused, are reported again.
_AGAIN_S = 3600.0
#: Airflow stores the news under this key and with these fields, so the names must stay.
_REPORTED_KEY = "told"


@dataclass(frozen=True, kw_only=True)
class _Reported:
    news: str = ""
    at_s: float = 0.0


class Arrivals(BaseEventTrigger):
    """Fires when a pipeline has new records: once for each state of its files."""

    #: Airflow sets it for a trigger of an asset. Before Airflow 3.3 there is no store: a restart may repeat an event.
    asset_state_store: Any = None

    def __init__(
        self,
        *,
        pipeline_file: str,
        onceload_conn_id: str = CONNECTION,
        values: Mapping[str, str] = {},
        every_s: float = _EVERY_S,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's own.
        self.pipeline_file = pipeline_file
        self.onceload_conn_id = onceload_conn_id
        self.values = dict(values)
        self.every_s = every_s
        self._path: str | None = None
        #: A digest: a list of many files is large.
        self._listed = b""
        self._listing_pause_s = _LISTS_EVERY_S

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("pipeline_file", "onceload_conn_id", "values", "every_s")
        return "onceload_airflow.arrivals.Arrivals", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        reported = await self._recall()
        while True:
            found = await self._look()
            if found is not None and found.is_paused:
                # The run that they started may have met the pause, so they are reported again after the resume.
                reported = _Reported()
            is_due = found is not None and _is_due(found, reported)
            if found is not None and is_due:
                reported = _Reported(news=found.news, at_s=time.time())
                payload = {"files": found.files, "bytes": found.bytes}
                yield TriggerEvent(payload)  # type: ignore[no-untyped-call] # Airflow's own.
            # After an event, a file that keeps growing must not start the next one at once.
            await self._pause(may_be_short=not is_due)
            if is_due and self.asset_state_store is not None:
                # Only now, because Airflow has stored the event by this time: it may come twice, but is never lost.
                await self.asset_state_store.aset(_REPORTED_KEY, asdict(reported))

    async def _recall(self) -> _Reported:
        """Return the news that was reported before; a waiting task has no store, and needs none."""
        kept: Any = None if self.asset_state_store is None else await self.asset_state_store.aget(_REPORTED_KEY)
        return _Reported(**kept) if kept else _Reported()

    async def _look(self) -> "Found | None":
        """Check files and database in a thread, because all triggers share one event loop; errors are retried."""
        try:
            return await asyncio.to_thread(self._look_now)
        except OnceloadError as error:
            self.log.warning("looking for new records failed, checking again in %g s: %s", self.every_s, error)
            return None

    def _look_now(self) -> "Found":
        # A slow import; the DAG processor needs only the class.
        from onceload.runs import look

        declared, started = read_pipeline(Path(self.pipeline_file), offered=self.values), time.monotonic()
        self._list(declared.source.path)
        found = look(OnceloadHook(self.onceload_conn_id).pipeline(declared))
        # Lists and looks take at most half of the time, however large the folder is.
        self._listing_pause_s = max(_LISTS_EVERY_S, time.monotonic() - started, self._listing_pause_s)
        return found

    async def _pause(self, *, may_be_short: bool) -> None:
        """Wait for the next look, which is due at once if the list of files changes; object stores are not listed."""
        until = time.monotonic() + self.every_s
        while (left := until - time.monotonic()) > self._listing_pause_s:
            await asyncio.sleep(self._listing_pause_s)
            if may_be_short and self._path is not None and await asyncio.to_thread(self._list, self._path):
                return
        await asyncio.sleep(max(0.0, left))

    def _list(self, path: str) -> bool:
        """List the files if they are on a disk of this machine, and return whether any have changed."""
        self._path = path if local_path(path) else None
        before, started = self._listed, time.monotonic()
        with suppress(OSError, OnceloadError):
            # The next look reports errors.
            self._listed = _digest(list_files(path)) if self._path else b""
        # A large folder takes at most a twentieth of the time.
        self._listing_pause_s = max(_LISTS_EVERY_S, 20 * (time.monotonic() - started))
        return self._listed != before


def _digest(listing: Listing) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for file in listing.files:
        digest.update(repr((file.name, file.size, file.modified_at)).encode())
    return digest.digest()


def _is_due(found: "Found", reported: _Reported) -> bool:
    is_other = found.files > 0 and found.news != reported.news
    return is_other or (found.is_anything_new and time.time() - reported.at_s >= _AGAIN_S)
