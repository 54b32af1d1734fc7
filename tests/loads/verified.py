"""Verifications, and what they find."""

from dataclasses import replace

from onceload_jobs.verify.verify import verify


def verified(loads, *, deep=False, **changes):
    return verify(replace(loads.declared, **changes), loads.engine, deep=deep)


def named(verification):
    return [(each.producer, each.kind, each.sequence_id) for each in verification.differences]
