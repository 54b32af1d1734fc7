"""A declared pipeline: its bounds, and when a snapshot is due."""

import pytest

from onceload_core.errors import SettingRefused
from onceload_core.pipeline import Pipeline, SnapshotPolicy


@pytest.mark.parametrize(
    ("commits_since", "seconds_since", "due"),
    [(0, 1e9, False), (1, 0, False), (999, 119, False), (1000, 0, True), (1, 120, True)],
)
def test_a_snapshot_is_due_by_count_or_by_time_but_never_for_nothing(commits_since, seconds_since, due):
    policy = SnapshotPolicy(every_commits=1000, every_s=120)

    assert policy.is_due(commits_since=commits_since, seconds_since=seconds_since) is due


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x" * 201},
        {"name": "p", "producers_max": 0},
        {"name": "p", "islands_max": 0},
        {"name": "p", "message_keep_days": -1},
        {"name": "p", "forget_idle_after_s": 0},
        {"name": "p", "forget_idle_after_s": float("nan")},
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused(wrong):
    with pytest.raises(SettingRefused, match=r"found .*\. Nothing was changed\. Expected .*"):
        Pipeline(**wrong)


@pytest.mark.parametrize("wrong", [{"every_commits": 0}, {"every_s": -1}, {"kept": 0}])
def test_a_snapshot_policy_that_cannot_be_meant_is_refused(wrong):
    with pytest.raises(SettingRefused):
        SnapshotPolicy(**wrong)
