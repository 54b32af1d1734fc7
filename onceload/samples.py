"""Growing sample files, as devices would write them."""

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

_EVERY_S = 1.0
_DEVICES = 4
_ROWS_MAX = 20


@contextmanager
def growing(folder: Path) -> Iterator[None]:
    """Append readings to one file per day and device while the block runs; a few lines are broken."""
    ended = threading.Event()
    thread = threading.Thread(target=_write, args=(folder, ended), name="onceload samples", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _write(folder: Path, ended: threading.Event) -> None:
    chance = random.Random()  # noqa: S311 - not used for secrets.
    while not ended.wait(_EVERY_S):
        now = datetime.now(UTC)
        day = folder / f"{now:%Y-%m-%d}"
        day.mkdir(parents=True, exist_ok=True)
        device = chance.randrange(_DEVICES)
        lines = [_line(chance, device, now) for _ in range(chance.randint(1, _ROWS_MAX))]
        with (day / f"device-{device}.jsonl").open("a", encoding="utf-8") as file:
            file.write("".join(lines))


def _line(chance: random.Random, device: int, now: datetime) -> str:
    if chance.random() < 0.001:
        return "a line that a device lost power in\n"
    reading = {"device": f"device-{device}", "at": now.isoformat(), "celsius": round(chance.gauss(21, 3), 2)}
    return json.dumps(reading) + "\n"
