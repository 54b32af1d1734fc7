"""Records that name their producer or have a business id, beside files that are their own producers."""

from dataclasses import replace

from bench.events import Events
from bench.measured import Figure
from bench.parts.section import section
from bench.parts.stand import Stand, declared_as
from onceload_jobs.pipeline.declared import MessageId, Publish, RecordProducer

DIRECT, PRODUCERS, MESSAGES = "direct", "staged, record producers", "staged, business ids"
_KEEP_DAYS = 7


def producers(stand: Stand) -> str:
    rows = stand.sizes.rows_large
    devices = max(1, rows // 10)
    with stand.folder() as folder:
        amount = Events(rows=rows, devices=devices).write_jsonl(folder / "events.jsonl")
        direct = declared_as(folder / "events.jsonl", publish=Publish.DIRECT)
        producer = RecordProducer(name="device", sequence="sequence")
        named = replace(direct, publish=Publish.STAGED, producer=producer)
        messages = replace(
            direct,
            publish=Publish.STAGED,
            pipeline=replace(direct.pipeline, message_keep_days=_KEEP_DAYS),
            message_id=MessageId(columns=("device", "sequence"), keep_days=_KEEP_DAYS),
        )
        ways = {
            name: stand.ours(declared, rows=rows, amount=amount)
            for name, declared in ((DIRECT, direct), (PRODUCERS, named), (MESSAGES, messages))
        }
        taken = stand.alternate(ways)
    ratio = taken[PRODUCERS].per(taken[DIRECT])
    figures = [Figure(name="record producers, staged ÷ direct", must=0.4, aim=0.5, measured=ratio)]
    data = (
        f"Data: {rows:,} events of {devices:,} devices that take turns. All ids are new. The ledger records the ids of "
        "each device, or the business id of each event."
    )
    return section(data, figures, taken)
