"""Several names of one file: one of them is loaded."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from onceload_core.errors import OnceloadError
from onceload_core.ports import Knowledge, KnownProducer, Ledger
from onceload_jobs.content.copies import resemblance_of
from onceload_jobs.files.fingerprints import Resemblance
from onceload_jobs.files.listing import Listed, Listing, Name
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.ledger_lookup import find_known


def one_name_each(declared: Declared, ledger: Ledger[Any], listing: Listing) -> Listing:
    """Keep one name of each file: the name that it was loaded under, or the first that is not a symbolic link."""
    if not listing.names_of_one:
        return listing
    names = [each.name for group in listing.names_of_one for each in group]
    known, files = find_known(ledger, declared.pipeline, names), {listed.name: listed for listed in listing.files}
    others: dict[str, str] = {}
    for group in listing.names_of_one:
        registered = [each for each in group if _is_loaded_as(declared, each, files[each.name], known.get(each.name))]
        loaded = (each for each in registered if _has_content(known[each.name].knowledge))
        chosen = next(loaded, (registered or group)[0]).name
        others |= {each.name: chosen for each in group if each.name != chosen}
    notes = ((name, _OTHER_NAME.format(chosen)) for name, chosen in others.items())
    return replace(
        listing,
        files=tuple(listed for listed in listing.files if listed.name not in others),
        refused=tuple(sorted([*listing.refused, *notes])),
    )


_OTHER_NAME = "it is the same file as {0} (a link). A file is loaded once, here as {0}"


def _is_loaded_as(declared: Declared, name: Name, listed: Listed, known: KnownProducer | None) -> bool:
    """Whether a name is that of a producer and still of this file: a symbolic link may point elsewhere now."""
    if known is None:
        return False
    state, shared = known.knowledge.state, known.knowledge.shared
    if not name.is_link or state.fingerprint is None or shared is not None:
        return True
    with suppress(OnceloadError):
        return resemblance_of(declared.source, listed, state) not in (Resemblance.SHORTER, Resemblance.CHANGED)
    # It cannot be read now, and is most likely still the same file.
    return True


def _has_content(knowledge: Knowledge) -> bool:
    """Whether something is loaded under a name, or of the producer that it is a copy of."""
    return bool(knowledge.state.consumed or knowledge.shared)
