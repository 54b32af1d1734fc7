"""Records that name their producer or have a business id, beside files that are their own producers."""

import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

from bench.events import Events
from bench.measured import Figure
from bench.parts.section import section
from bench.parts.stand import Stand, declared_as
from onceload_jobs.pipeline.declared import MessageId, Publish, RecordProducer

DIRECT, PRODUCERS, MESSAGES = "direct", "record producers, ten records each", "business ids"
MANY_EACH, REPEATED = "record producers, 1,000 records each", "record producers, 1,000 records each, 1 % repeated"
_KEEP_DAYS = 7


def producers(stand: Stand) -> str:
    rows = stand.sizes.rows
    with stand.folder() as folder:
        few, many, repeated = (folder / f"{name}.jsonl" for name in ("few", "many", "repeated"))
        amount = Events(rows=rows, devices=max(1, rows // 10)).write_jsonl(few)
        Events(rows=rows, devices=max(1, rows // 1_000)).write_jsonl(many)
        _repeat_some(many, repeated)
        producer = RecordProducer(name="device", sequence="sequence")
        direct = declared_as(few, publish=Publish.DIRECT)
        messages = replace(
            direct,
            publish=Publish.STAGED,
            pipeline=replace(direct.pipeline, message_keep_days=_KEEP_DAYS),
            message_id=MessageId(columns=("device", "sequence"), keep_days=_KEEP_DAYS),
        )
        named = {
            name: replace(declared_as(file, publish=Publish.STAGED), producer=producer)
            for name, file in ((MANY_EACH, many), (REPEATED, repeated), (PRODUCERS, few))
        }
        ways = {
            name: stand.ours(declared, rows=rows, amount=amount, tasks=stand.local_tasks())
            for name, declared in ({DIRECT: direct} | named | {MESSAGES: messages}).items()
        }
        taken = stand.alternate(ways)
    goals = ((MANY_EACH, 0.8, 0.95), (REPEATED, 0.6, 0.7), (PRODUCERS, 0.35, 0.5), (MESSAGES, 0.35, 0.5))
    figures = [
        Figure(name=f"{name} ÷ direct", must=must, aim=aim, measured=taken[name].per(taken[DIRECT]))
        for name, must, aim in goals
    ]
    data = (
        f"Data: {rows:,} events of devices that take turns, loaded by processes of this machine. All ids are new, or"
        " 1 % of the records are repeated at the end of the file. The ledger records the ids of each device, or the"
        " business id of each event."
    )
    return section(data, figures, taken)


def _repeat_some(file: Path, repeated: Path) -> None:
    """The same file, with every hundredth line once more at its end."""
    with file.open("rb") as lines, repeated.open("wb") as written:
        shutil.copyfileobj(lines, written)
        lines.seek(0)
        written.writelines(islice(lines, 0, None, 100))
