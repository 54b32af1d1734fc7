"""The bugs that are planted: each is one that loaders have had, in one exact change of this code."""

from dataclasses import dataclass

GUARDS = "dedup_core/onceload_core/guards.py"
LEDGER = "dedup_core/onceload_core/postgres/ledger.py"
COMMIT = "dedup_core/onceload_core/postgres/commit.py"
PIPELINE_ROW = "dedup_core/onceload_core/postgres/pipeline_row.py"
PRODUCERS = "dedup_core/onceload_core/postgres/producers.py"
CONNECTION = "dedup_core/onceload_core/postgres/connection.py"
CONNECTION_SQL = "dedup_core/onceload_core/postgres/connection.sql"
LEDGER_SQL = "dedup_core/onceload_core/postgres/ledger.sql"
LOADED_FILES_SQL = "dedup_core/onceload_core/postgres/loaded_files.sql"
RECOVERY = "dedup_core/onceload_core/postgres/recovery.py"
RECOVERY_SQL = "dedup_core/onceload_core/postgres/recovery.sql"
PROVEN = "dedup_core/onceload_core/postgres/proven.py"
PROVEN_SQL = "dedup_core/onceload_core/postgres/proven.sql"
SNAPSHOTS = "dedup_core/onceload_core/postgres/snapshots.py"
SNAPSHOTS_SQL = "dedup_core/onceload_core/postgres/snapshots.sql"
DELIVERY = "tests/models/board.py"
BOARD_SQL = "dedup_core/onceload_core/postgres/deliveries.sql"
CLAIM_VIEW = "migrations/versions/0001_first_version.py"

OF_CLAIMS = "tests/contract/test_claims.py"
OF_COMMITS = "tests/contract/test_commits.py"
OF_DECLARATIONS = "tests/contract/test_declarations.py"
OF_PRODUCERS = "tests/contract/test_producers.py"
KILL_POINTS = "tests/fault/test_kill_points.py"
OF_CHANGES = (
    "tests/integration/test_unanswered_changes.py"
    "::test_a_change_whose_commit_gets_no_answer_is_unknown_and_may_be_repeated"
)
UNANSWERED = f"{KILL_POINTS}::test_a_commit_without_an_answer_is_called_unknown"
STRUCK = f"{KILL_POINTS}::test_a_load_struck_at_any_step_and_retried_lands_each_record_once"
IN_POSTGRES = "tests/integration/test_postgres_ledger.py"
OF_RECOVERY = "tests/integration/test_recovery.py"
OF_SNAPSHOTS = "tests/integration/test_snapshots.py"
OF_BOARD = "tests/integration/test_deliveries.py"
OF_FAILED_DELIVERIES = "tests/loads/test_failed_deliveries.py"
OF_SESSIONS = "tests/loads/test_sessions.py"
OF_SESSION_TROUBLES = "tests/loads/test_session_troubles.py"
OF_TAKEOVERS = "tests/integration/test_takeovers.py"
OF_FAILOVERS = "tests/loads/test_failover.py"
OF_LOOKS = "tests/integration/test_look.py"
OF_KEEPERS = "tests/integration/test_keeping.py"
OF_EMBEDDED = "tests/integration/test_embedded.py"
_OTHER_HOME = "test_the_end_of_a_use_stops_no_server_of_another_home_at_the_same_path"
OF_STREAMS = "tests/integration/test_streams.py"
OF_LOADS = "tests/loads/test_load.py"
OF_EVENTS = "tests/loads/test_events.py"
OF_AUDITS = "tests/loads/test_audit.py"
OF_KEPT = "tests/loads/test_kept.py"
OF_VERIFIED_HISTORIES = "tests/loads/test_verify_histories.py"
OF_POSTGRES_TRANSFORMS = "tests/loads/test_postgres_transform.py"
OF_TRANSFORMS = "tests/loads/test_verify_transforms.py"
OF_GAPS = "tests/loads/test_verify_gaps.py"
OF_VERIFYING_WORKERS = "tests/loads/test_verify_workers.py"
_SHARED = "test_workers_share_the_files_and_find_what_one_finds_in_the_same_order"
OF_REPLACED_ROWS = "tests/loads/test_replaced_rows.py"
OF_REPLACED_BY_NOTHING = "tests/loads/test_replaced_by_nothing.py"
OF_CHOICES = "tests/loads/test_choice.py"
OF_TRIES = "tests/loads/test_tries.py"
OF_VERSIONS = "tests/loads/test_versions.py"
OF_LOADED_FILES = "tests/loads/test_loaded_files.py"
OF_IDENTITY = "tests/loads/test_identity.py"
OF_GROWING_COPIES = "tests/loads/test_growing_copies.py"
OF_INTERRUPTED = "tests/loads/test_interrupted_comparisons.py"
OF_PARTIAL_COPIES = "tests/loads/test_partial_copies.py"
OF_RECOVERED_COPIES = "tests/loads/test_recovered_copies.py"
OF_ROTATION = "tests/loads/test_rotation.py"
OF_CLUSTERS = "tests/cluster/test_cluster.py"
OF_ROLES = "tests/integration/test_roles.py"
OF_STORES = "tests/loads/test_object_store.py"
OF_RUNS = "tests/dags/test_runs.py"
OF_DOCTOR = "tests/dags/test_doctor.py"
OF_RECOVERIES = "tests/dags/test_recovery.py"
OF_REWOUND = "tests/loads/test_rewound.py"
OF_REWOUND_ROWS = "tests/python/test_rewound_rows.py"
OF_STORED_LAYOUTS = "tests/loads/test_stored_layouts.py"
OF_ADVICE = "tests/integration/test_advice.py"
OF_STORED = "tests/loads/test_stored_values.py"
OF_ATTEMPTS = "tests/loads/test_attempts.py"
OF_STATES = "tests/loads/test_states_agree.py::test_a_state_is_shown_that_was_hidden_once"
KILLED_REPLACING = (
    "tests/loads/test_killed_replace.py"
    "::test_a_load_that_is_killed_while_it_replaces_and_called_again_leaves_each_row_once"
)
OF_REFERENCE = "tests/handbook/test_reference.py"
OF_STORMS = "tests/loads/test_storm.py"
OF_PAUSES = "tests/integration/test_pausing.py"
OF_PAUSED_LOADS = "tests/loads/test_pause.py"
_BEHIND_ANY_COMMIT = "test_a_fault_that_was_found_once_is_not_found_again_behind_any_commit"
_WITH_A_PART_LOADED = "test_a_fault_that_was_found_once_is_not_found_again_when_a_part_of_a_file_is_loaded"
OF_BUSINESS_IDS = "tests/loads/test_business_ids.py"
OF_RECORD_PRODUCERS = "tests/loads/test_record_producers.py"
OF_ROWS_OF_A_RECORD = "tests/loads/test_rows_of_a_record.py"
OF_NOTHING_GOOD = "tests/loads/test_nothing_good.py"
OF_QUARANTINE = "tests/loads/test_quarantine.py"
OF_RETRIES = "tests/loads/test_retry.py"
OF_RETRY_ROADS = "tests/loads/test_retry_roads.py"
OF_ACTIONS = "tests/console/test_actions.py"
OF_PAGES = "tests/console/test_pages.py"
OF_TURNS = "tests/loads/test_turns.py"
OF_SOURCES = "tests/unit/sources"
OF_NUMERICS = f"{OF_SOURCES}/test_numerics.py"
OF_OUTCOMES = "tests/dags/test_outcomes.py"
OF_SCHEMA = "tests/migrations/test_schema.py"
OF_PARQUET = "tests/unit/sources/test_parquet.py"
OF_FOOTERS = "tests/unit/sources/test_footers.py"
OF_DEADLY_FILES = "tests/loads/test_deadly_files.py"
OF_BROKEN_FILES = "tests/loads/test_broken_files.py"
TOO_DEEP = f"{OF_BROKEN_FILES}::test_a_file_of_values_that_are_nested_too_deeply_is_a_note_and_its_neighbours_load"
OF_JSON_LINES = f"{OF_SOURCES}/test_jsonl.py"
OF_JSON = f"{OF_SOURCES}/test_json.py"
OF_FIXED = f"{OF_SOURCES}/test_fixed.py"
OF_JSON_FILES = "tests/loads/test_json_files.py"
OF_CASTS = f"{OF_SOURCES}/test_casts.py::test_texts_are_cast_together_as_each_alone"
OF_DIRTY_LINES = f"{OF_SOURCES}/test_dirty_lines.py::test_every_tier_reads_dirty_lines_as_the_slow_one_does"
OF_SLABS = f"{OF_SOURCES}/test_csv.py::test_records_end_in_the_same_places_however_the_slabs_are_cut"
OF_CHANGED_FILES = "tests/loads/test_changed_meanwhile.py"
OF_PROGRESS = "tests/loads/test_progress.py"
OF_LIMITS = "tests/loads/test_limits_of_roles.py"
OF_REFUSALS = "tests/integration/test_refusals.py"
ROWS_OF_PROGRAMS = "spark_jobs/onceload_jobs/load/given_rows.py"
PIECES_OF_PROGRAMS = "spark_jobs/onceload_jobs/load/given_pieces.py"
OF_PIECES_OF_PROGRAMS = "tests/python/test_rows_in_pieces.py"
OF_GIVEN_ROWS = "tests/python/test_load_rows.py"
OF_KILLED_ROWS = "tests/python/test_killed_rows.py"
OF_COPIES = "tests/loads/test_copy.py"
OF_DRAFTS = "tests/unit/draft"
ORDERS = "tests/interleavings/test_all_orders.py"
IN_ANY_ORDER = f"{ORDERS}::test_no_order_of_two_committers_and_a_snapshotter_breaks_the_promise"


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A wrong text instead of the correct one, which must be in the file once."""

    name: str
    file: str
    correct: str
    wrong: str
    #: The test files, or single tests, that should fail.
    tests: tuple[str, ...]
    #: More such pairs of texts, where one change alone would be noticed for another reason.
    also: tuple[tuple[str, str], ...] = ()


COMMIT_BUGS = (
    Bug(
        name="watermark in a transaction of its own",
        file=COMMIT,
        correct="    advance(connection, taken, commit, repeats_allowed=repeats_allowed)\n",
        wrong="    with connection.engine.begin() as another:\n"
        "        advance(another, taken, commit, repeats_allowed=repeats_allowed)\n",
        tests=(f"{OF_COMMITS}::test_a_load_that_crashes_anywhere_and_is_retried_lands_each_row_once",),
    ),
    Bug(
        name="rows in a transaction of their own",
        file=COMMIT,
        correct="    written = commit.write_rows(connection)\n",
        wrong="    with connection.engine.begin() as another:\n        written = commit.write_rows(another)\n",
        tests=(f"{OF_COMMITS}::test_a_repeated_commit_is_refused_whole",),
    ),
    Bug(
        name="compare-and-set left out: consumed spans are advanced again",
        file=LEDGER_SQL,
        correct="AND (:repeats_allowed OR NOT producer.consumed && offered.spans)",
        wrong="AND (:repeats_allowed OR true)",
        tests=(f"{OF_COMMITS}::test_a_repeated_commit_is_refused_whole",),
    ),
    Bug(
        name="a commit of several producers lands in part",
        file=COMMIT,
        correct="if done.advanced != done.offered:",
        wrong="if done.advanced == 0:",
        tests=(f"{OF_COMMITS}::test_a_commit_of_several_producers_is_refused_whole_for_one_of_them",),
    ),
    Bug(
        name="fence left out: an earlier epoch of a session commits",
        file=PIPELINE_ROW,
        correct="    if not taken.is_latest:\n",
        wrong="    if taken.is_latest is None:\n",
        tests=(f"{OF_COMMITS}::test_an_earlier_life_of_a_session_is_refused",),
    ),
    Bug(
        name="a commit that waited for the pipeline trusts its session as it was before the wait",
        file=LEDGER_SQL,
        correct="    UPDATE onceload.session SET last_position = taken.position FROM taken\n",
        wrong="    SELECT session.session_id FROM onceload.session, taken\n",
        also=(("= :version\n    RETURNING session_id\n", "= :version\n"),),
        tests=(f"{OF_TAKEOVERS}::test_a_session_that_ends_while_its_commit_waits_for_the_pipeline_commits_nothing",),
    ),
    Bug(
        name="a commit locks its session before the pipeline",
        file=LEDGER_SQL,
        correct="WITH taken AS (\n    UPDATE onceload.pipeline SET position = position + 1 WHERE name = :pipeline\n",
        wrong="WITH first AS MATERIALIZED (\n    SELECT FROM onceload.session WHERE name = :session FOR UPDATE\n"
        "), taken AS (\n    UPDATE onceload.pipeline SET position = position + 1\n"
        "     WHERE name = :pipeline AND (SELECT count(*) FROM first) >= 0\n",
        tests=(f"{OF_TAKEOVERS}::test_a_commit_waits_for_a_takeover_in_progress_under_the_lock_of_the_pipeline",),
    ),
    Bug(
        name="fence that does not rise: a session comes back in the same epoch",
        file=LEDGER_SQL,
        correct="SET epoch = greatest(session.epoch + 1, excluded.epoch),",
        wrong="SET epoch = session.epoch,",
        tests=(f"{OF_COMMITS}::test_an_earlier_life_of_a_session_is_refused",),
    ),
    Bug(
        name="position read, not taken under the commit lock",
        file=LEDGER_SQL,
        correct="UPDATE onceload.pipeline SET position = position + 1 WHERE name = :pipeline\n"
        "RETURNING pipeline_id, position, guarantee, islands_max, message_keep_days, version;\n",
        wrong="SELECT pipeline_id, position + 1 AS position, guarantee, islands_max, message_keep_days, version\n"
        "  FROM onceload.pipeline WHERE name = :pipeline;\n",
        also=(
            (
                "ON CONFLICT ON CONSTRAINT ledger_positions_have_no_twins DO NOTHING;\n",
                "ON CONFLICT ON CONSTRAINT ledger_positions_have_no_twins DO NOTHING;\n"
                "UPDATE onceload.pipeline SET position = :position WHERE pipeline_id = :pipeline_id;\n",
            ),
        ),
        tests=(f"{IN_ANY_ORDER}[all-apart]",),
    ),
    Bug(
        name="receipts not written",
        file=LEDGER_SQL,
        correct="      FROM advanced\n)\nSELECT count(*) AS advanced",
        wrong="      FROM advanced WHERE false\n)\nSELECT count(*) AS advanced",
        tests=(f"{OF_COMMITS}::test_a_commit_of_several_producers_is_refused_whole_for_one_of_them",),
    ),
    Bug(
        name="gap forgiven: consuming a span consumes all below it",
        file=LEDGER_SQL,
        correct="SET consumed = producer.consumed + offered.spans,",
        wrong="SET consumed = producer.consumed + int8multirange(int8range(0, upper(offered.spans))),",
        tests=(f"{OF_COMMITS}::test_failure_in_the_middle_leaves_no_gap",),
    ),
    Bug(
        name="a refused commit of one producer passes unseen",
        file=COMMIT,
        correct="if done.advanced != done.offered:",
        wrong="if done.advanced != done.offered and done.offered > 1:",
        tests=(f"{OF_COMMITS}::test_a_repeated_commit_is_refused_whole",),
    ),
    Bug(
        name="ack of a claim that has ended accepted",
        file=COMMIT,
        correct="execute_prepared(connection, statement, holder_binds(claim)).rowcount != 1:",
        wrong="execute_prepared(connection, statement, holder_binds(claim)).rowcount < 0:",
        tests=(f"{OF_CLAIMS}::test_a_claim_is_acked_by_its_commit_and_by_no_second_one",),
    ),
    Bug(
        name="a transaction that write_rows ended goes on as another",
        file="dedup_core/onceload_core/postgres/own_transaction.py",
        correct="connection.in_transaction() and driver.info.transaction_status == TRANSACTION_STATUS_INTRANS",
        wrong="driver",
        tests=(f"{IN_POSTGRES}::test_the_writer_of_the_rows_must_leave_the_transaction_open",),
    ),
    Bug(
        name="rows that write_rows committed are a reason to retry, should the next statement fail",
        file="dedup_core/onceload_core/postgres/own_transaction.py",
        correct='return cursor.fetchone() == ("committed",)',
        wrong='return cursor.fetchone() == ("lost",)',
        tests=(f"{IN_POSTGRES}::test_rows_that_the_writer_committed_forbid_a_retry_if_the_next_statement_fails",),
    ),
    Bug(
        name="a connection that is lost is asked for the end of its transaction",
        file=PIPELINE_ROW,
        correct="if not error.connection_invalidated and has_committed(",
        wrong="if has_committed(",
        tests=("tests/fault/test_kill_points.py",),
    ),
    Bug(
        name="rows and proof in two transactions, should write_rows end the first",
        file=PIPELINE_ROW,
        correct="    if taken.transaction_id != transaction_id:\n",
        wrong="    if taken.transaction_id is None:\n",
        tests=(f"{IN_POSTGRES}::test_the_writer_of_the_rows_must_leave_the_transaction_open",),
    ),
    Bug(
        name="islands_max ignored",
        file=COMMIT,
        correct="if done.islands > taken.islands_max:",
        wrong="if done.islands > taken.islands_max * 1_000_000:",
        tests=(f"{OF_COMMITS}::test_more_islands_than_declared_are_refused_whole",),
    ),
    Bug(
        name="producers_max ignored",
        file=PRODUCERS,
        correct="if producers > found.producers_max:",
        wrong="if producers > found.producers_max * 1_000_000:",
        tests=(f"{OF_PRODUCERS}::test_more_producers_than_declared_are_refused_whole",),
    ),
    Bug(
        name="<= for <: islands_max is one too few",
        file=COMMIT,
        correct="if done.islands > taken.islands_max:",
        wrong="if done.islands >= taken.islands_max:",
        tests=(f"{OF_COMMITS}::test_more_islands_than_declared_are_refused_whole",),
    ),
    Bug(
        name="business ids that stay on the server are not recorded",
        file=COMMIT,
        correct='        yield on_table(SQL["messages_in_a_table"], commit.offered_messages), {}\n',
        wrong="        yield from ()\n",
        tests=(f"{OF_BUSINESS_IDS}::test_a_business_id_takes_effect_once_in_its_window",),
    ),
    Bug(
        name="a repeated business id accepted",
        file=COMMIT,
        correct="    if repeats and not repeats_allowed:",
        wrong="    if repeats < 0 and not repeats_allowed:",
        tests=(f"{OF_COMMITS}::test_a_business_id_takes_effect_once_in_its_window",),
    ),
    Bug(
        name="message window ignored: only today's business ids count",
        file=LEDGER_SQL,
        correct="AND seen.day >= (SELECT day FROM today) - :keep_days)",
        wrong="AND seen.day >= (SELECT day FROM today) - 0 * :keep_days)",
        tests=(f"{IN_POSTGRES}::test_a_business_id_is_remembered_for_as_long_as_the_pipeline_declares",),
    ),
    Bug(
        name="message window without end: an id is refused forever",
        file=LEDGER_SQL,
        correct="AND seen.day >= (SELECT day FROM today) - :keep_days)",
        wrong="AND seen.day >= (SELECT day FROM today) - 10000 * :keep_days)",
        tests=(f"{IN_POSTGRES}::test_a_business_id_takes_effect_again_after_its_window",),
    ),
    Bug(
        name="a pipeline that declares no guarantee has none",
        file=COMMIT,
        correct="repeats_allowed = taken.guarantee == Guarantee.AT_LEAST_ONCE",
        wrong="repeats_allowed = taken.guarantee != Guarantee.EXACTLY_ONCE",
        tests=(f"{OF_COMMITS}::test_a_repeated_commit_is_refused_whole",),
    ),
)

CLAIM_BUGS = (
    Bug(
        name="another session loads between the plan and the claim of one that has to be alone",
        file=GUARDS,
        correct="    added = now.claimed - planned.claimed\n",
        wrong="    added = planned.claimed - now.claimed\n",
        tests=(f"{OF_CLAIMS}::test_a_claim_may_ask_that_nothing_has_changed_since_it_was_planned",),
    ),
    Bug(
        name="a commit comes between the plan and the claim of a session that has to be alone",
        file=GUARDS,
        correct="    if committed is None and now.position != planned.position:\n",
        wrong="    if committed is None and now.position < planned.position:\n",
        tests=(f"{OF_CLAIMS}::test_a_claim_may_ask_that_nothing_has_changed_since_it_was_planned",),
    ),
    Bug(
        name="an edit gives consumed ids another meaning",
        file="dedup_core/onceload_core/declaration.py",
        correct="        if not is_meant and _depends_on(key, old, new, in_use):\n",
        wrong="        if not is_meant and False:\n",
        tests=(f"{OF_DECLARATIONS}::test_the_terms_of_a_pipeline_change_only_while_nothing_is_consumed",),
    ),
    Bug(
        name="an edit takes no version",
        file="dedup_core/onceload_core/postgres/declaring.py",
        correct="    return version_in(found) if before == settled(before, pipeline.declaration) else None\n",
        wrong="    return version_in(found)\n",
        tests=(f"{OF_DECLARATIONS}::test_the_same_declaration_is_one_version_and_another_is_the_next",),
    ),
    Bug(
        name="work of an earlier version of the pipeline file is committed",
        file=PIPELINE_ROW,
        correct="    refuse_other_version(session.pipeline, session.version, version_in(taken))\n",
        wrong="",
        tests=(f"{OF_DECLARATIONS}::test_nothing_that_was_begun_under_an_earlier_version_takes_effect",),
    ),
    Bug(
        name="deliveries of an earlier version stay on the board",
        file=LEDGER_SQL,
        correct="DELETE FROM onceload.delivery WHERE pipeline_id = :pipeline_id;\n\n-- name: find_pipeline",
        wrong="DELETE FROM onceload.delivery WHERE pipeline_id = :pipeline_id AND false;\n\n-- name: find_pipeline",
        tests=(f"{OF_DECLARATIONS}::test_nothing_that_was_begun_under_an_earlier_version_takes_effect",),
    ),
    Bug(
        name="claims of others not seen",
        file=GUARDS,
        correct="        if busy:\n",
        wrong="        if busy and not busy:\n",
        tests=(f"{OF_CLAIMS}::test_a_claim_makes_the_span_unknown_to_others_and_falls_back_when_released",),
    ),
    Bug(
        name="claims that outlive their session's epoch",
        file=CLAIM_VIEW,
        correct="\n           AND delivery.epoch = (SELECT epoch FROM onceload.session"
        " WHERE session.session_id = delivery.session_id)));",
        wrong="));",
        tests=(f"{OF_CLAIMS}::test_spans_are_named_while_a_session_loads_them_and_not_after",),
    ),
    Bug(
        name="claims without a deadline",
        file=CLAIM_VIEW,
        correct="AND delivery.state = 'held' AND delivery.deadline_at > clock_timestamp()\n",
        wrong="AND delivery.state = 'held'\n",
        tests=(f"{OF_CLAIMS}::test_a_claim_whose_deadline_passed_goes_to_who_asks_and_its_late_commit_is_refused",),
    ),
    Bug(
        name="an earlier epoch of a session claims",
        file=LEDGER_SQL,
        correct="WHERE pipeline_id = :pipeline_id AND name = :session AND epoch = :epoch\n    RETURNING delivery_id\n",
        wrong="WHERE pipeline_id = :pipeline_id AND name = :session\n    RETURNING delivery_id\n",
        tests=(f"{OF_CLAIMS}::test_an_earlier_life_can_claim_nothing",),
    ),
    Bug(
        name="purge of a live producer: claims ignored",
        file=LEDGER_SQL,
        correct="            WHERE delivery_span.producer_id = producer.producer_id)\n",
        wrong="            WHERE delivery_span.producer_id = producer.producer_id AND claim.delivery_id < 0)\n",
        tests=(f"{OF_CLAIMS}::test_a_producer_is_kept_while_a_session_claims_even_an_empty_part_of_it",),
    ),
    Bug(
        name="purge of producers where it was not declared",
        file=LEDGER_SQL,
        correct="make_interval(secs => pipeline.forget_idle_after_s)",
        wrong="make_interval(secs => coalesce(pipeline.forget_idle_after_s, 60))",
        tests=(f"{OF_PRODUCERS}::test_idle_producers_are_forgotten_only_where_that_is_declared",),
    ),
    Bug(
        name="purge without an entry in the ledger",
        file="dedup_core/onceload_core/replay.py",
        correct="                    after.pop(receipt.producer_id, None)\n",
        wrong="                    pass\n",
        tests=(f"{OF_PRODUCERS}::test_idle_producers_are_forgotten_only_where_that_is_declared",),
    ),
)

ANSWER_BUGS = (
    Bug(
        name="COMMIT without an answer reported as a plain failure",
        file=CONNECTION,
        correct="            raise unknown(first_line(error)) from error",
        wrong="            raise",
        tests=(UNANSWERED,),
    ),
    Bug(
        name="COMMIT without an answer reported as done",
        file=CONNECTION,
        correct="            raise unknown(first_line(error)) from error",
        wrong="            return",
        tests=(f"{STRUCK}[commit_lost]",),
    ),
    Bug(
        name="a pause whose COMMIT got no answer counts as not made",
        file="dedup_core/onceload_core/postgres/pausing.py",
        correct='    with change(engine, pipeline, doing="pausing a pipeline") as connection:\n',
        wrong='    with transaction(engine, pipeline, doing="pausing a pipeline") as connection:\n',
        tests=(OF_CHANGES,),
    ),
    Bug(
        name="a batch that is given up without an answer counts as kept",
        file="dedup_core/onceload_core/postgres/batches.py",
        correct='return change(self._engine, self._pipeline, doing="giving up a batch", see=see)',
        wrong='return transaction(self._engine, self._pipeline, doing="giving up a batch")',
        tests=(OF_CHANGES,),
    ),
    Bug(
        name="a rewind that loses the database after its commit does not report that it is done",
        file="spark_jobs/onceload_jobs/recover/rewind.py",
        correct="        if found.applied:\n",
        wrong="        if not found.applied:\n",
        tests=(
            "tests/loads/test_rewind.py"
            "::test_a_rewind_that_loses_the_database_after_its_commit_reports_that_it_is_done",
        ),
    ),
    Bug(
        name="blind retry after an unknown commit: the rows are written again",
        file=LEDGER,
        correct="            with at_once(self._engine, partial(CommitOutcomeUnknown, pipeline, batch), begun=begun) as"
        " connection:\n                position = run(connection, commit, self._reached)\n",
        wrong="            try:\n"
        "                with at_once(self._engine, partial(CommitOutcomeUnknown, pipeline, batch)) as connection:\n"
        "                    position = run(connection, commit, self._reached)\n"
        "            except Exception as error:\n"
        "                if type(error).__name__ != 'CommitOutcomeUnknown':\n"
        "                    raise\n"
        "                with self._engine.begin() as again:\n"
        "                    commit.write_rows(again)\n",
        tests=(f"{STRUCK}[commit_answer_lost]",),
    ),
    Bug(
        name="a refusal of COMMIT swallowed",
        file=CONNECTION,
        correct="            if _refused_for_certain(error):\n                raise\n",
        wrong="            if _refused_for_certain(error):\n                return\n",
        tests=(f"{IN_POSTGRES}::test_a_refusal_at_commit_is_certain_and_leaves_nothing",),
    ),
    Bug(
        name="errors lose their facts between processes",
        file="dedup_core/onceload_core/errors.py",
        correct="tuple(getattr(self, field.name) for field in fields(self)), notes_of(self)\n",
        wrong="(str(self),), notes_of(self)\n",
        tests=("tests/unit/test_errors.py::test_an_error_survives_pickling_with_its_facts_and_its_words",),
    ),
)

SPAN_BUGS = (
    Bug(
        name="<= for <: the end of a span belongs to it",
        file="dedup_core/onceload_core/spans.py",
        correct="        return self.first <= sequence_id < self.end\n",
        wrong="        return self.first <= sequence_id <= self.end\n",
        tests=("tests/unit/test_spans.py::test_an_id_is_in_a_set_as_it_is_in_the_naive_one",),
    ),
    Bug(
        name="<= for <: spans that only touch overlap",
        file="dedup_core/onceload_core/spans.py",
        correct="        if first < end:\n            yield Span(first, end)\n",
        wrong="        if first <= end:\n            yield Span(first, end + 1)\n",
        tests=("tests/unit/test_spans.py::test_the_algebra_is_that_of_sets",),
    ),
    Bug(
        name=">= for >: spans that touch stay apart",
        file="dedup_core/onceload_core/spans.py",
        correct="        elif span.first > current.end:\n",
        wrong="        elif span.first >= current.end:\n",
        tests=("tests/unit/test_spans.py::test_spans_are_kept_sorted_apart_and_never_touching",),
    ),
    Bug(
        name="a span may be empty",
        file="dedup_core/onceload_core/spans.py",
        correct="if not 0 <= self.first < self.end <= SEQUENCE_END:",
        wrong="if not 0 <= self.first <= self.end <= SEQUENCE_END:",
        tests=("tests/unit/test_spans.py::test_a_span_outside_its_bounds_is_refused_with_what_was_expected",),
    ),
    Bug(
        name="gap forgiven: `any` judged by a high-water mark",
        file="dedup_core/onceload_core/verdicts.py",
        correct="        case Order.ANY:\n            return consumed\n",
        wrong="        case Order.ANY:\n            return SpanSet.of((0, consumed.end)) if consumed else consumed\n",
        tests=("tests/unit/test_verdicts.py::test_in_any_order_each_id_is_judged_by_itself",),
    ),
    Bug(
        name="an ordered producer overtakes itself",
        file="dedup_core/onceload_core/verdicts.py",
        correct="            unknown = rest if claimed - seen else SpanSet()\n",
        wrong="            unknown = rest & claimed\n",
        tests=("tests/unit/test_verdicts.py::test_an_ordered_producer_never_goes_back_and_never_overtakes_itself",),
    ),
    Bug(
        name="unknown taken for new",
        file="dedup_core/onceload_core/verdicts.py",
        correct="            unknown = rest & claimed\n",
        wrong="            unknown = SpanSet()\n",
        tests=("tests/unit/test_verdicts.py::test_in_any_order_each_id_is_judged_by_itself",),
    ),
)

RECOVERY_BUGS = (
    Bug(
        name="snapshot without the lock: position and states in two views",
        file=LEDGER,
        correct='isolation_level="REPEATABLE READ"',
        wrong='isolation_level="READ COMMITTED"',
        tests=(f"{IN_ANY_ORDER}[all-apart]",),
    ),
    Bug(
        name="a snapshot is never due by time",
        file="dedup_core/onceload_core/pipeline.py",
        correct="commits_since >= self.every_commits or seconds_since >= self.every_s",
        wrong="commits_since >= self.every_commits",
        tests=("tests/unit/test_pipeline.py::test_a_snapshot_is_due_by_count_or_by_time_but_never_for_nothing",),
    ),
    Bug(
        name="digest of a snapshot file not checked",
        file="onceload/snapshot_file.py",
        correct='        if last != {"sha256": hashlib.sha256(b"".join(lines[:-1])).hexdigest()}:\n',
        wrong='        if not last["sha256"]:\n',
        tests=("tests/integration/test_snapshot_file.py::test_every_changed_byte_of_the_content_is_refused",),
    ),
    Bug(
        name="replay overwrites instead of adding",
        file="dedup_core/onceload_core/replay.py",
        correct="consumed=before.consumed | receipt.spans), receipt)",
        wrong="consumed=receipt.spans), receipt)",
        tests=(f"{OF_COMMITS}::test_an_advance_without_spans_notes_what_was_seen_and_consumes_nothing",),
    ),
    Bug(
        name="recovery loses the first entry after the snapshot",
        file=PROVEN_SQL,
        correct="= :pipeline_id AND position > :after AND position <= :up_to\n",
        wrong="= :pipeline_id AND position > :after + 1 AND position <= :up_to\n",
        tests=(f"{OF_RECOVERY}::test_damaged_state_is_rebuilt_from_the_whole_ledger",),
    ),
    Bug(
        name="second recovery at once",
        file=RECOVERY_SQL,
        correct="SELECT pg_try_advisory_xact_lock(hashtextextended("
        "'onceload.recovery of pipeline ' || :pipeline_id, 0));",
        wrong="SELECT CAST(:pipeline_id AS bigint) > 0;",
        tests=(f"{OF_RECOVERY}::test_two_recoveries_at_once_are_one_too_many",),
    ),
    Bug(
        name="dry run that writes",
        file=RECOVERY,
        correct="if dry_run or not recovery.is_different:",
        wrong="if not recovery.is_different:",
        tests=(f"{OF_RECOVERY}::test_damaged_state_is_rebuilt_from_the_whole_ledger",),
    ),
    Bug(
        name="recovery over a ledger with missing positions",
        file=PROVEN,
        correct="if reach.entries != reach.position - after:",
        wrong="if reach.entries > reach.position - after:",
        tests=(f"{OF_RECOVERY}::test_a_ledger_with_a_hole_is_not_replayed",),
    ),
    Bug(
        name="snapshots of the damage outlive the recovery",
        file=RECOVERY,
        correct='    connection.execute(SQL["drop_snapshots_after"], binds)\n',
        wrong="",
        tests=(f"{OF_RECOVERY}::test_damaged_state_is_rebuilt_from_the_whole_ledger",),
    ),
    Bug(
        name="a running load goes on after a recovery",
        file=RECOVERY,
        correct='    connection.execute(SQL["fence_sessions"], binds)\n',
        wrong="",
        tests=(f"{OF_RECOVERY}::test_a_running_load_is_fenced_by_a_recovery",),
    ),
    Bug(
        name="recovery from a snapshot that is newer than the ledger",
        file=PROVEN,
        correct="    if after > reach.position:\n",
        wrong="    if after > reach.position + 1_000_000:\n",
        tests=(f"{OF_RECOVERY}::test_a_snapshot_of_a_later_position_than_the_ledger_has_is_refused",),
    ),
    Bug(
        name="recovery from the newest snapshot by default",
        file=RECOVERY,
        correct="    if snapshot_position != BEGINNING:\n"
        "        get_summary(connection, found.pipeline_id, snapshot_position)\n",
        wrong="    newest = get_summary(connection, found.pipeline_id, snapshot_position or None)\n"
        "    snapshot_position = newest.position\n",
        tests=(f"{OF_RECOVERY}::test_damaged_state_is_rebuilt_from_the_whole_ledger",),
    ),
    Bug(
        name="a rewind sets the state that a snapshot says",
        file="dedup_core/onceload_core/postgres/rewind.py",
        correct="after=BEGINNING, up_to=way.to)",
        wrong="after=way.to, up_to=way.to)",
        tests=("tests/loads/test_rewind_refused.py::test_state_that_is_damaged_is_recovered_first",),
    ),
    Bug(
        name="spans that a rewind rolled back are consumed again after a recovery",
        file=PROVEN_SQL,
        correct="FILTER (WHERE kind = 'load' AND is_in_force)",
        wrong="FILTER (WHERE kind = 'load')",
        tests=("tests/loads/test_rewind.py::test_commits_after_a_position_are_rewound_and_loaded_again",),
    ),
    Bug(
        name="a snapshot is not compared with the ledger",
        file=SNAPSHOTS,
        correct="            _refuse_unproven(connection, pipeline, found)\n",
        wrong="",
        tests=(f"{OF_SNAPSHOTS}::test_no_snapshot_is_taken_of_damaged_states",),
    ),
    Bug(
        name="a damaged snapshot is taken for a damaged state",
        file=SNAPSHOTS,
        correct="in dict.fromkeys((Position(before.scalar_one()), BEGINNING)):",
        wrong="in (Position(before.scalar_one()),):",
        tests=(f"{OF_SNAPSHOTS}::test_a_damaged_snapshot_does_not_keep_the_next_from_being_taken",),
    ),
    Bug(
        name="a load that found damaged states ends as done",
        file="spark_jobs/onceload_jobs/load/load.py",
        correct="        notes += snapshot_if_due(context.engine, name)\n",
        wrong="        snapshot_if_due(context.engine, name)\n",
        tests=("tests/loads/test_snapshot_refused.py::test_a_load_on_damaged_states_stays_loaded_and_needs_a_person",),
    ),
    Bug(
        name="claims and registrations wait for a snapshot",
        file=LEDGER_SQL,
        correct="FOR NO KEY UPDATE OF pipeline;",
        wrong="FOR UPDATE OF pipeline;",
        tests=(f"{OF_SNAPSHOTS}::test_a_snapshot_that_is_taken_makes_no_writer_wait",),
    ),
    Bug(
        name="a recovery does not wait for the snapshot that is being taken",
        file=LEDGER_SQL,
        correct="SELECT pipeline_id, position FROM onceload.pipeline WHERE name = :pipeline FOR UPDATE;",
        wrong="SELECT pipeline_id, position FROM onceload.pipeline WHERE name = :pipeline FOR NO KEY UPDATE;",
        tests=(f"{OF_SNAPSHOTS}::test_a_snapshot_that_was_begun_before_a_recovery_ended_is_taken_again",),
    ),
    Bug(
        name="only a foreign key keeps recoveries and snapshots apart",
        file=SNAPSHOTS,
        correct="found = hold_pipeline(connection, pipeline)\n",
        wrong="found = get_pipeline(connection, pipeline)\n",
        tests=(f"{OF_SNAPSHOTS}::test_a_snapshot_that_was_begun_before_a_recovery_ended_is_taken_again",),
    ),
    Bug(
        name="a dry run holds the commit lock",
        file=RECOVERY,
        correct="yield connection, get_pipeline(connection, pipeline)\n",
        wrong="yield connection, _own_recovery(connection, pipeline)\n",
        tests=(f"{OF_RECOVERY}::test_a_dry_run_makes_no_writer_wait",),
    ),
)

DELIVERY_BUGS = (
    Bug(
        name="an earlier epoch acks a delivery",
        file=DELIVERY,
        correct="    if board.sessions[name].epoch != epoch:\n",
        wrong="    if board.sessions[name].epoch < epoch:\n",
        tests=("tests/unit/test_delivery.py::test_an_earlier_life_is_refused_whatever_it_says",),
    ),
    Bug(
        name="< for <=: a deadline passes one tick late",
        file=DELIVERY,
        correct="delivery.deadline <= now]",
        wrong="delivery.deadline < now]",
        tests=(
            "tests/unit/test_delivery.py"
            "::test_an_unacked_delivery_is_redelivered_once_its_deadline_has_passed_and_not_before",
        ),
    ),
    Bug(
        name="<= for <: one try too many before the dead letter",
        file=DELIVERY,
        correct="cause if delivery.tries < board.deliveries_max else Event.EXHAUST",
        wrong="cause if delivery.tries <= board.deliveries_max else Event.EXHAUST",
        tests=(
            "tests/unit/test_delivery.py::test_a_poison_chunk_is_delivered_as_often_as_declared_and_the_others_go_on",
        ),
    ),
    Bug(
        name="deliveries that an earlier epoch held are never delivered again",
        file=DELIVERY,
        correct="    for delivery_id in sorted(known.held) if known else ():\n",
        wrong="    for delivery_id in ():\n",
        tests=(
            "tests/unit/test_delivery.py"
            "::test_a_session_that_comes_back_has_a_higher_epoch_and_finds_waiting_what_its_earlier_life_held",
        ),
    ),
)

LOAD_BUGS = (
    Bug(
        name="records behind the claim of another run are read",
        file="spark_jobs/onceload_jobs/plan/plan.py",
        correct="        if name in outlook.claimed:\n",
        wrong="        if name in outlook.claimed and False:\n",
        tests=(
            "tests/loads/test_at_once.py"
            "::test_a_file_that_is_rewritten_under_the_claim_of_a_loader_that_died_is_loaded_whole",
        ),
    ),
    Bug(
        name="a stage that a crash emptied is published",
        file="spark_jobs/onceload_jobs/publish/table_road.py",
        correct="    check_there(connection, stage)\n    run(connection, WORK_MEMORY)\n",
        wrong="    run(connection, WORK_MEMORY)\n",
        tests=("tests/loads/test_load.py::test_a_stage_that_a_crash_empties_before_its_commit_is_staged_again",),
    ),
    Bug(
        name="a stage that is filled again keeps the rows of the first time",
        file="spark_jobs/onceload_jobs/publish/table_road.py",
        correct='                run(connection, f"TRUNCATE {table}")\n',
        wrong="                pass\n",
        tests=("tests/loads/test_at_once.py::test_a_stage_whose_filling_got_no_answer_is_filled_again",),
    ),
    Bug(
        name="a cut before a newline instead of behind it",
        file="spark_jobs/onceload_jobs/read/parts.py",
        correct="            yield edge, newline + 1\n            edge = newline + 1\n",
        wrong="            yield edge, newline\n            edge = newline\n",
        tests=("tests/unit/files/test_pieces.py::test_offsets_stay_right_in_files_of_any_size",),
    ),
    Bug(
        name="the rest of a record that took effect is read as a record",
        file="spark_jobs/onceload_jobs/plan/bundles.py",
        correct='    if begins and read_at(chunk.url, offset=begins - 1, size=1) != b"\\n":\n',
        wrong="    if False:\n",
        tests=(f"{OF_LOADS}::test_every_cut_of_a_prefix_that_took_effect_is_left_out",),
    ),
    Bug(
        name="records that took effect meanwhile are written again",
        file="spark_jobs/onceload_jobs/read/new_content.py",
        correct="        rows = rows.filter(_is_new(rows, new))\n",
        wrong="        pass\n",
        tests=(f"{OF_LOADS}::test_a_task_that_reads_more_when_it_is_tried_again_repeats_nothing",),
    ),
    Bug(
        name="a file that was rewritten since it was planned is read",
        file="spark_jobs/onceload_jobs/read/checked_parts.py",
        correct="        if resemblance not in (Resemblance.SAME, Resemblance.GROWN):\n",
        wrong="        if False:\n",
        tests=("tests/loads/test_sequences.py::test_a_sequence_that_went_wrong_once_does_not_again",),
    ),
    Bug(
        name="the first file of a delivery that is read again file by file counts as all of it",
        file="spark_jobs/onceload_jobs/work/parts.py",
        correct="            if piece.number == part.number:\n                return piece\n",
        wrong="            return piece\n",
        tests=(
            "tests/loads/test_tries.py::"
            "test_a_file_that_vanishes_before_its_delivery_is_read_again_holds_no_other_back",
        ),
    ),
    Bug(
        name="the rows of another load make a batch through a table a refused one",
        file="spark_jobs/onceload_jobs/publish/table_road.py",
        correct="            refuse_repeats(ledger, job, totals.advances)\n",
        wrong="",
        tests=(
            "tests/loads/test_taken_away.py::"
            "test_rows_that_another_load_has_committed_are_not_refused_because_each_may_be_there_once",
        ),
    ),
    Bug(
        name="the ids of another load make a batch through a table a refused one",
        file="spark_jobs/onceload_jobs/publish/table_road.py",
        correct="            _refuse_used_ids(engine, job, stage)\n",
        wrong="",
        tests=(
            "tests/loads/test_kept.py::"
            "test_a_kept_batch_some_of_whose_records_are_loaded_from_another_file_is_given_up",
        ),
    ),
    Bug(
        name="the rows of another retry are refused rows of this one",
        file="spark_jobs/onceload_jobs/recover/retry.py",
        correct="        if rest is not None and rest.piece.settled == tried:\n",
        wrong="        if True:\n",
        tests=(
            "tests/loads/test_retry_roads.py::"
            "test_rows_of_another_process_are_not_refused_because_each_may_be_there_once",
        ),
    ),
    Bug(
        name="what the server says of a column makes forget what it said of another",
        file="spark_jobs/onceload_jobs/write/writer.py",
        correct="        if before is None:\n            return self\n",
        wrong="        if True:\n            return self\n",
        tests=(
            "tests/loads/test_refused.py::test_a_delivery_whose_fields_differ_one_after_the_other_is_read_as_the_columns_that_are_there[True-staged]",
        ),
    ),
    Bug(
        name="a process dies of what the server said of the columns",
        file="spark_jobs/onceload_jobs/write/writer.py",
        correct="    def __reduce__(self)",
        wrong="    def _reduce(self)",
        tests=("tests/loads/test_local.py::test_a_process_reads_a_delivery_again_as_the_columns_that_are_there",),
    ),
    Bug(
        name="the target refuses a batch of which a file is gone",
        file="spark_jobs/onceload_jobs/work/parts.py",
        correct="        if left:\n",
        wrong="        if False:\n",
        tests=(
            "tests/loads/test_tries.py::test_a_file_that_changes_before_its_refused_rows_are_found_holds_no_other_back",
        ),
    ),
    Bug(
        name="half a file takes the place of a whole one",
        file="spark_jobs/onceload_jobs/publish/replaced_rows.py",
        correct="        if new not in read or replacement.name in noted or not replacement.is_whole(read[new])\n",
        wrong="        if False\n",
        tests=("tests/loads/test_refused.py::test_a_file_that_breaks_off_does_not_replace_what_was_loaded_of_it",),
    ),
    Bug(
        name="a file of which nothing was read takes the place of a whole one",
        file="spark_jobs/onceload_jobs/publish/replaced_rows.py",
        correct="        if new not in read or replacement.name in noted or not replacement.is_whole(read[new])\n",
        wrong="        if new in read and (replacement.name in noted or not replacement.is_whole(read[new]))\n",
        tests=(f"{OF_REPLACED_BY_NOTHING}::test_a_file_of_which_workers_read_nothing_replaces_nothing",),
    ),
    Bug(
        name="the staged rows of a killed load stay until another load stages rows",
        file="spark_jobs/onceload_jobs/load/load.py",
        correct="                        sweep(context.engine)\n",
        wrong="                        pass\n",
        tests=("tests/loads/test_sequences.py::test_a_sequence_that_went_wrong_once_does_not_again",),
    ),
    Bug(
        name="a rewritten file without a good record deletes all loaded rows",
        file="spark_jobs/onceload_jobs/publish/replaced_rows.py",
        correct="    if job.differences_accepted or not job.replaced:\n        return {}\n",
        wrong="    return {}\n",
        tests=(f"{OF_REPLACED_BY_NOTHING}::test_a_file_without_a_good_record_replaces_nothing",),
    ),
    Bug(
        name="a file is compared with a generation whose rows were deleted",
        file="spark_jobs/onceload_jobs/plan/file_state.py",
        correct="    if state.condition is Condition.REPLACED:\n",
        wrong="    if False:\n",
        tests=(f"{OF_REPLACED_BY_NOTHING}::test_a_file_whose_rows_were_deleted_is_loaded_again_after_a_rewind",),
    ),
    Bug(
        name="the old rows of a file go in a transaction of their own",
        file="spark_jobs/onceload_jobs/publish/replaced_rows.py",
        correct="    deleted = _delete(connection, job, replaced)\n",
        wrong="    with connection.engine.begin() as another:\n        deleted = _delete(another, job, replaced)\n",
        tests=(KILLED_REPLACING,),
    ),
    Bug(
        name="a batch replaces again what it has replaced",
        file="spark_jobs/onceload_jobs/load/settings.py",
        correct="done=frozenset(done)",
        wrong="done=frozenset()",
        tests=(KILLED_REPLACING,),
    ),
    Bug(
        name="a batch replaces nothing that it has loaded",
        file=LEDGER_SQL,
        correct="ledger_span.condition = 'replaced' OR position > CAST(:after AS bigint)",
        wrong="true",
        tests=(f"{OF_CHOICES}::test_a_batch_replaces_what_an_earlier_call_of_it_loaded",),
    ),
    Bug(
        name="a file that another load has loaded shows that a whole batch took effect",
        file="spark_jobs/onceload_jobs/publish/commits.py",
        correct="is_whole=True, ",
        wrong="",
        tests=(
            "tests/loads/test_at_once.py::test_a_batch_that_loses_one_of_its_files_to_another_load_loads_the_others",
        ),
    ),
    Bug(
        name="a generation whose rows were deleted does not count as replaced",
        file="spark_jobs/onceload_jobs/publish/commits.py",
        correct="advances=(*advances, *gone),",
        wrong="advances=advances,",
        tests=(
            "tests/loads/test_killed_replace.py::test_a_load_that_is_killed_while_it_replaces_and_called_again_leaves_each_row_once",
        ),
    ),
    Bug(
        name="a load of some files takes all",
        file="spark_jobs/onceload_jobs/plan/choice.py",
        correct="for listed in listing.files if choice.includes(listed.name)",
        wrong="for listed in listing.files",
        tests=(KILLED_REPLACING,),
    ),
    Bug(
        name="a generation that failed keeps the one before from being verified",
        file="dedup_core/onceload_core/postgres/audit.sql",
        correct="                      AND NOT (isempty(later.consumed) AND later.fingerprint IS NULL)) AS is_latest\n",
        wrong="                      ) AS is_latest\n",
        tests=(
            "tests/loads/test_verify_histories.py::test_a_generation_that_breaks_off_hides_no_difference_of_the_one_before",
        ),
    ),
    Bug(
        name="a record that occurs twice in a batch is published twice",
        file="spark_jobs/onceload_jobs/work/by_producer.py",
        correct="    is_first[1:] = (producers[1:] != producers[:-1]) | (ids[1:] != ids[:-1])\n",
        wrong="",
        tests=(f"{OF_RECORD_PRODUCERS}::test_a_record_that_occurs_twice_in_a_first_batch_takes_effect_once",),
    ),
    Bug(
        name="of several rows of one id, not the first one counts",
        file="spark_jobs/onceload_jobs/work/by_producer.py",
        correct="np.lexsort((in_file, files, ids, producers))",
        wrong="np.lexsort((-in_file, files, ids, producers))",
        tests=("tests/unit/test_new_ids.py::test_the_first_record_of_each_id_that_is_not_consumed_is_new",),
    ),
    Bug(
        name="each local worker imports pandas",
        file="spark_jobs/onceload_jobs/executor/local.py",
        correct="    keep_pandas_out()\n",
        wrong="",
        tests=("tests/integration/test_cli_results.py::test_the_sessions_of_a_load_do_not_import_pandas",),
    ),
    Bug(
        name="a business id that occurs twice in a batch is published twice",
        file="spark_jobs/onceload_jobs/work/by_message.py",
        correct='    is_first[1:] = by_hash["hash"][1:] != by_hash["hash"][:-1]\n',
        wrong="",
        tests=(f"{OF_BUSINESS_IDS}::test_a_business_id_takes_effect_once_in_its_window",),
    ),
    Bug(
        name="a record that took effect in another file is published again",
        file="spark_jobs/onceload_jobs/work/by_producer.py",
        correct="is_first & ~consumed.cover(producers, ids)",
        wrong="is_first",
        tests=(f"{OF_RECORD_PRODUCERS}::test_an_id_that_was_jumped_over_is_late_or_lost_as_declared",),
    ),
    Bug(
        name="a column of another type takes what was encoded for ours",
        file="spark_jobs/onceload_jobs/write/writer.py",
        correct="raise ColumnsDiffer(",
        wrong="ColumnsDiffer(",
        tests=("tests/loads/test_refused.py::test_a_later_piece_is_read_as_the_column_that_an_earlier_one_made",),
    ),
    Bug(
        name="a number of more digits than there is room for becomes another one",
        file="spark_jobs/onceload_jobs/formats/casts.py",
        correct="    if longest <= PRECISION_MAX - target.scale:\n",
        wrong="    if longest <= PRECISION_MAX:\n",
        tests=(f"{OF_NUMERICS}::test_a_number_is_read_exactly_or_not_at_all",),
    ),
    Bug(
        name="a number of JSON of more digits than there is room for becomes another one",
        file="spark_jobs/onceload_jobs/formats/jsonl/rows.py",
        correct="    if decimal.precision + decimal.scale <= PRECISION_MAX:\n",
        wrong="    if decimal.precision <= PRECISION_MAX:\n",
        tests=(f"{OF_NUMERICS}::test_a_number_is_read_exactly_or_not_at_all",),
    ),
    Bug(
        name="an exponent that begins in one slab and ends in the next is not found",
        file="spark_jobs/onceload_jobs/formats/jsonl/rows.py",
        correct="octets[at : at + _SLAB_BYTES + 2]",
        wrong="octets[at : at + _SLAB_BYTES]",
        tests=(f"{OF_NUMERICS}::test_an_exponent_is_found_wherever_it_begins",),
    ),
    Bug(
        name="a record that is too long is held in memory at the end of a chunk",
        file="spark_jobs/onceload_jobs/read/parts.py",
        correct="min(piece_bytes_max(source), _held_max(source))",
        wrong="piece_bytes_max(source)",
        tests=("tests/unit/files/test_pieces.py::test_exactly_the_records_that_are_too_long_stand_alone",),
    ),
    Bug(
        name="a number with a small exponent becomes another one",
        file="spark_jobs/onceload_jobs/formats/jsonl/rows.py",
        correct="if _number_at(lines.block, at) > harmless]",
        wrong="if _number_at(lines.block, at) > 1000]",
        tests=(f"{OF_NUMERICS}::test_a_number_is_read_exactly_or_not_at_all",),
    ),
    Bug(
        name="a number that is too small for its type becomes zero in lines of JSON",
        file="spark_jobs/onceload_jobs/formats/jsonl/rows.py",
        correct="if column.type.kind in (Kind.NUMERIC, *_HALF_WAY)]:",
        wrong="if column.type.kind is Kind.NUMERIC]:",
        tests=(f"{OF_SOURCES}/test_jsonl.py::test_both_tiers_read_a_value_alike",),
    ),
    Bug(
        name="a text that is too small for its type becomes zero among others",
        file="spark_jobs/onceload_jobs/formats/casts.py",
        correct="    zeros = texts.filter(pc.equal(floats, 0))\n",
        wrong="    zeros = texts.filter(pc.is_nan(floats))\n",
        tests=(f"{OF_SOURCES}/test_csv.py::test_both_tiers_read_a_value_alike",),
    ),
    Bug(
        name="a stored number that is too small for its column becomes zero",
        file="spark_jobs/onceload_jobs/formats/parquet/rows.py",
        correct="        return mask_of(pc.or_(made_infinite, made_zero))\n",
        wrong="        return mask_of(made_infinite)\n",
        tests=(f"{OF_SOURCES}/test_parquet.py::test_a_value_is_read_alike_by_both_tiers_and_alone",),
    ),
    Bug(
        name="a time that Postgres refuses is taken among others",
        file="spark_jobs/onceload_jobs/formats/casts.py",
        correct="    if _have_times_of_arrow(texts):\n",
        wrong="    if not texts:\n",
        tests=(f"{OF_SOURCES}/test_jsonl.py::test_both_tiers_read_a_value_alike",),
    ),
    Bug(
        name="a zone that Postgres refuses is taken",
        file="spark_jobs/onceload_jobs/formats/values.py",
        correct="    if hours > 15 or minutes > 59:\n",
        wrong="    if hours > 23 or minutes > 59:\n",
        tests=(
            "tests/unit/sources/test_values.py::test_a_json_value_that_the_type_does_not_take_is_refused_with_a_reason",
        ),
    ),
    Bug(
        name="hex without its mark becomes other bytes",
        file="spark_jobs/onceload_jobs/formats/values.py",
        correct="    if _HEX_OR_BASE64.fullmatch(text):\n",
        wrong="    if not text.isascii():\n",
        tests=(
            "tests/unit/sources/test_values.py::test_a_json_value_that_the_type_does_not_take_is_refused_with_a_reason",
        ),
    ),
    Bug(
        name="NaN that is not JSON is taken by a column of texts",
        file="spark_jobs/onceload_jobs/formats/values.py",
        correct='(_FLOATS if "N" in raw or "I" in raw else WRITTEN_BARE)',
        wrong="WRITTEN_BARE",
        tests=(
            "tests/unit/sources/test_values.py::test_a_json_value_that_the_type_does_not_take_is_refused_with_a_reason",
        ),
    ),
    Bug(
        name="a copy is not found for a record that is too long to be held",
        file="spark_jobs/onceload_jobs/read/digests.py",
        correct="        return shortened(self._seen), *self._beginning\n",
        wrong="        return (shortened(self._seen),)\n",
        tests=("tests/loads/test_twins.py::test_a_file_is_found_again_though_a_record_in_it_is_too_long_to_be_held",),
    ),
)

CONTENT_BUGS = (
    Bug(
        name="a new file is a copy of none if the store does not answer when its beginning is read",
        file="spark_jobs/onceload_jobs/plan/same_content.py",
        correct="    waiting = {each: each for each, head in heads.items() if head is None}\n",
        wrong="    waiting: dict[Listed, Listed] = {}\n",
        tests=(f"{OF_INTERRUPTED}::test_a_copy_in_progress_waits_if_its_comparison_is_interrupted",),
    ),
    Bug(
        name="a renamed file is new if the store does not answer while it is compared",
        file="spark_jobs/onceload_jobs/plan/copies.py",
        correct="records would be loaded twice.\n            raise\n",
        wrong="records would be loaded twice.\n            return None\n",
        tests=(f"{OF_INTERRUPTED}::test_a_renamed_file_is_not_new_if_its_comparison_is_interrupted",),
    ),
    Bug(
        name="copies part earlier than they do if the store does not answer",
        file="spark_jobs/onceload_jobs/plan/other_names.py",
        correct="would be loaded twice.\n        raise\n",
        wrong="would be loaded twice.\n        return\n",
        tests=(f"{OF_INTERRUPTED}::test_copies_part_where_they_do_although_the_search_for_that_was_interrupted",),
    ),
    Bug(
        name="a copy in progress is new if the store does not answer while it is compared",
        file="spark_jobs/onceload_jobs/plan/same_content.py",
        correct="waits until both can be read.\n        return True\n",
        wrong="waits until both can be read.\n        return False\n",
        tests=(f"{OF_INTERRUPTED}::test_a_copy_in_progress_waits_if_its_comparison_is_interrupted",),
    ),
    Bug(
        name="a rewind makes a copy new though the records that it shares stay",
        file="dedup_core/onceload_core/postgres/rewind.sql",
        correct="rebuilt.producer_id = ledger_span.shares_with AND rebuilt.consumed && ledger_span.spans",
        wrong="rebuilt.producer_id = ledger_span.shares_with AND false",
        tests=(f"{OF_PARTIAL_COPIES}::test_a_rewind_to_before_two_copies_parted_is_refused_while_one_of_them_stays",),
    ),
    Bug(
        name="recovery loses which files are copies",
        file=RECOVERY,
        correct="    add_copies(connection, found.pipeline_id)\n",
        wrong="",
        tests=(f"{OF_RECOVERED_COPIES}::test_a_copy_stays_one_when_the_state_is_recovered",),
    ),
    Bug(
        name="recovery does not find that a copy has become a file of its own",
        file=RECOVERY_SQL,
        correct="condition = excluded.condition, copy_of = excluded.copy_of\n",
        wrong="condition = excluded.condition\n",
        tests=(f"{OF_RECOVERED_COPIES}::test_state_from_before_a_copy_parted_is_recovered",),
    ),
    Bug(
        name="the name that a producer had before is a copy without a receipt",
        file=LEDGER_SQL,
        correct="generation, '{}', 0, fingerprint, size, condition, copy_of FROM kept;",
        wrong="generation, '{}', 0, fingerprint, size, condition, NULL FROM kept;",
        tests=(f"{OF_RECOVERED_COPIES}::test_the_name_that_a_producer_had_before_is_recovered_as_its_copy",),
    ),
    Bug(
        name="a rewind rolls back what has committed since its dry run",
        file="dedup_core/onceload_core/postgres/rewind.py",
        correct="        if expected is not None and expected != way.position:\n",
        wrong="        if False:\n",
        tests=(
            "tests/loads/test_rewind.py::test_a_rewind_of_other_commits_than_were_shown_is_refused",
            "tests/console/test_actions.py::test_a_commit_after_the_confirmation_is_not_rolled_back",
        ),
    ),
    Bug(
        name="a rewind does not look for business ids that are forgotten",
        file="dedup_core/onceload_core/postgres/rewind.py",
        correct="        differing=(*_differing(connection, sums), *_forgotten_messages(connection, way)),\n",
        wrong="        differing=_differing(connection, sums),\n",
        tests=(
            "tests/loads/test_rewind_refused.py"
            "::test_a_rewind_of_duplicates_whose_business_ids_are_forgotten_is_asked_for_explicitly",
        ),
    ),
    Bug(
        name="a rewind sets a copy back that stays one",
        file="dedup_core/onceload_core/postgres/rewind.sql",
        correct="producer.pipeline_id = :pipeline_id AND producer.copy_of IS NULL;",
        wrong="producer.pipeline_id = :pipeline_id;",
        tests=(f"{OF_PARTIAL_COPIES}::test_a_copy_stays_one_when_a_rewind_goes_back_to_before_it_was_noted",),
    ),
    Bug(
        name="in a merge, a new log is loaded before the rest of the rotated one",
        file="spark_jobs/onceload_jobs/plan/same_content.py",
        correct="        found |= _waiting_rotated(found, choice)\n",
        wrong="        pass\n",
        tests=(f"{OF_ROTATION}::test_a_new_log_alone_does_not_overtake_the_rotated_one_in_a_merge",),
    ),
    Bug(
        name="a Parquet file is trusted to be a copy by its edges",
        file="spark_jobs/onceload_jobs/plan/copies.py",
        correct="        return _has_only(source, listed, digests)\n",
        wrong="        return True\n",
        tests=(f"{OF_IDENTITY}::test_a_parquet_file_with_the_same_statistics_of_other_values_is_not_a_copy",),
    ),
    Bug(
        name="rows of a Parquet file are read again after its bytes were digested",
        file="spark_jobs/onceload_jobs/formats/parquet/rows.py",
        correct="read_row_group(part, url",
        wrong="read_row_group(replace(part, raw=open(url, 'rb').read()[part.row_group.first_byte : "
        "part.row_group.end_byte]), url",
        tests=(f"{OF_CHANGED_FILES}::test_the_rows_of_a_parquet_file_are_decoded_from_the_bytes_that_were_digested",),
    ),
    Bug(
        name="a row group is taken of another file than its footer",
        file="spark_jobs/onceload_jobs/read/checked_parts.py",
        correct="        _check_whole(chunk, whole)\n",
        wrong="",
        tests=(
            f"{OF_CHANGED_FILES}::test_a_parquet_file_whose_place_another_takes_while_it_is_read_gives_no_rows_of_both",
        ),
    ),
    Bug(
        name="checksums of Parquet pages are not verified",
        file="spark_jobs/onceload_jobs/formats/parquet/row_groups.py",
        correct="page_checksum_verification=True",
        wrong="page_checksum_verification=False",
        tests=(f"{OF_PARQUET}::test_a_page_whose_checksum_is_wrong_is_damaged",),
    ),
    Bug(
        name="Parquet pages of fewer rows than the footer says are taken",
        file="spark_jobs/onceload_jobs/formats/parquet/row_groups.py",
        correct="for batch in batches)) != rows:",
        wrong="for batch in batches)) > rows:",
        tests=(f"{OF_PARQUET}::test_pages_of_fewer_rows_than_the_footer_says_are_damaged",),
    ),
    Bug(
        name="a dictionary column counts by its indices",
        file="spark_jobs/onceload_jobs/formats/plain_values.py",
        correct="    if not pa.types.is_dictionary(array.type):\n",
        wrong="    if True:\n",
        tests=(f"{OF_PARQUET}::test_a_dictionary_cannot_unfold_to_fill_the_memory",),
    ),
    Bug(
        name="INT96 is cut to microseconds",
        file="spark_jobs/onceload_jobs/formats/parquet/row_groups.py",
        correct="return any(file.schema.column(at).physical_type",
        wrong="return False and any(file.schema.column(at).physical_type",
        tests=(f"{OF_PARQUET}::test_int96_is_rounded_as_nanoseconds_are",),
    ),
    Bug(
        name="INT96 beyond all calendars overflows into one",
        file="spark_jobs/onceload_jobs/formats/plain_values.py",
        correct="    rounded[np.abs(whole) > _SECONDS_MAX] = np.iinfo(np.int64).max\n",
        wrong="",
        tests=(f"{OF_PARQUET}::test_int96_beyond_all_calendars_is_bad_alone",),
    ),
    Bug(
        name="row groups need not add up to the rows of their file",
        file="spark_jobs/onceload_jobs/formats/parquet/footers.py",
        correct="sum(rows) != metadata[_Of.FILE_ROWS]",
        wrong="False",
        tests=(f"{OF_FOOTERS}::test_counts_that_contradict_each_other_are_refused",),
    ),
    Bug(
        name="columns need not hold values for all rows",
        file="spark_jobs/onceload_jobs/formats/parquet/footers.py",
        correct="if values < rows or (is_single and values != rows):",
        wrong="if values < 0:",
        tests=(f"{OF_FOOTERS}::test_counts_that_contradict_each_other_are_refused",),
    ),
    Bug(
        name="the bytes that an old writer leaves out of its sizes are not held",
        file="spark_jobs/onceload_jobs/formats/parquet/footers.py",
        correct=" + omitted),",
        wrong="),",
        tests=(f"{OF_FOOTERS}::test_writers_that_leave_bytes_out_of_their_sizes_have_row_groups_that_reach_further",),
    ),
    Bug(
        name="an encrypted column is left for Arrow to find",
        file="spark_jobs/onceload_jobs/formats/parquet/footers.py",
        correct="or any(not signs.isdisjoint(column) for column in columns)",
        wrong="",
        tests=(f"{OF_FOOTERS}::test_a_column_that_is_encrypted_is_reported_as_such",),
    ),
    Bug(
        name="the value of a fixed-width line that was cut off is taken",
        file="spark_jobs/onceload_jobs/formats/fixed/rows.py",
        correct="        if self.options.short_lines is ShortLines.QUARANTINE:\n            doubted",
        wrong="        if False:\n            doubted",
        tests=(
            f"{OF_FIXED}::test_a_line_that_ends_before_its_last_column_is_bad_or_padded",
            f"{OF_FIXED}::test_both_tiers_read_a_line_alike",
        ),
    ),
    Bug(
        name="a fixed-width line is cut by bytes",
        file="spark_jobs/onceload_jobs/formats/fixed/rows.py",
        correct="        values = pc.ascii_trim(pc.utf8_slice_codeunits(texts, place.first, place.end), _BLANK)\n",
        wrong="        values = pc.ascii_trim(\n"
        "            pc.binary_slice(texts.cast(pa.binary()), place.first, place.end).cast(pa.string()), _BLANK\n"
        "        )\n",
        tests=(f"{OF_FIXED}::test_values_are_cut_by_characters_and_lose_their_blanks",),
    ),
    Bug(
        name="an array that is not closed is loaded as far as it goes",
        file="spark_jobs/onceload_jobs/formats/json/documents.py",
        correct="        if self._closed < 0:\n            raise self._incomplete()\n",
        wrong="        if self._closed < 0:\n            self._closed = self.at\n",
        tests=(f"{OF_JSON_FILES}::test_nothing_of_an_array_that_is_not_closed_is_loaded",),
    ),
    Bug(
        name="a quote behind a block that ends in a backslash ends its string",
        file="spark_jobs/onceload_jobs/formats/json/tokens.py",
        correct='        self._is_escaped = block.endswith(b"\\\\")\n',
        wrong="        self._is_escaped = False\n",
        tests=(f"{OF_JSON}::test_a_backslash_at_the_end_of_a_block_escapes_the_next_byte",),
    ),
    Bug(
        name="records of a JSON array are read in the places of another content",
        file="spark_jobs/onceload_jobs/formats/json/rows.py",
        correct="    if found is None or len(found[0]) != part.end - part.first:\n",
        wrong="    if found is None:\n",
        tests=(f"{OF_JSON_FILES}::test_an_array_that_changes_behind_its_plan_gives_no_row_of_both_contents",),
    ),
    Bug(
        name="a packed array is recognised only while it is packed alike",
        file="spark_jobs/onceload_jobs/files/fingerprints.py",
        correct="packed == fingerprint.packed or _marks_of_stream(listed.url, packed) == fingerprint.stream\n",
        wrong="packed == fingerprint.packed\n",
        tests=(f"{OF_JSON_FILES}::test_the_same_content_that_is_packed_again_is_not_loaded_again",),
    ),
    Bug(
        name="a Parquet file is recognised by its last bytes instead of its footer",
        file="spark_jobs/onceload_jobs/files/fingerprints.py",
        correct="    return min(size, max(EDGE_BYTES, length))\n",
        wrong="    return min(size, EDGE_BYTES)\n",
        tests=(f"{OF_IDENTITY}::test_a_parquet_file_that_is_rewritten_with_the_same_edges_is_rewritten",),
    ),
    Bug(
        name="two names of one content have a compare-and-set of their own",
        file="spark_jobs/onceload_jobs/plan/other_names.py",
        correct="                copy_of=shared.producer_id,\n",
        wrong="                consumed=shared.state.consumed,\n                records=shared.records,\n",
        tests=(f"{OF_GROWING_COPIES}::test_known_copies_that_grow_alike_are_loaded_once",),
    ),
    Bug(
        name="a copy that goes on does not wait for its original",
        file="spark_jobs/onceload_jobs/plan/same_content.py",
        correct="else replace(file, spans=())\n",
        wrong="else file\n",
        tests=(f"{OF_GROWING_COPIES}::test_a_copy_that_is_further_on_than_its_grown_original_is_loaded_behind_it",),
    ),
    Bug(
        name="holes are planned under the copy as well",
        file="spark_jobs/onceload_jobs/plan/same_content.py",
        correct="            if reader is not None and file.listed != reader.listed:\n",
        wrong="            if reader is not None and file.listed != reader.listed and file.spans[0][1] is None:\n",
        tests=(f"{OF_PARTIAL_COPIES}::test_a_hole_is_filled_once_though_a_copy_holds_it_as_well",),
    ),
    Bug(
        name="after a rotation the old tail gets the later id",
        file="spark_jobs/onceload_jobs/plan/other_names.py",
        correct="                copy_of=shared.producer_id,\n",
        wrong="                consumed=shared.state.consumed,\n                records=shared.records,\n",
        tests=(f"{OF_ROTATION}::test_a_new_log_alone_does_not_overtake_the_rotated_one_in_a_merge",),
    ),
    Bug(
        name="in a merge, new files count in the order of their names, whatever is declared",
        file="spark_jobs/onceload_jobs/plan/to_read.py",
        correct="    if declared.target.newer_file is not NewerFile.BY_TIME:\n",
        wrong="    if True:\n",
        tests=(f"{OF_ROTATION}::test_a_log_that_is_rotated_before_its_first_load_is_older_by_its_time",),
    ),
    Bug(
        name="a killed load decides which new file is the newer one",
        file="spark_jobs/onceload_jobs/load/offering.py",
        correct="            if kept == len(new):\n",
        wrong="            if True:\n",
        tests=(f"{OF_ROTATION}::test_after_a_killed_load_a_new_file_is_still_newer_than_the_rotated_one",),
    ),
    Bug(
        name="a new file may be older than the tail of a loaded one",
        file="spark_jobs/onceload_jobs/load/offering.py",
        correct="            kept = _in_order(new, ids, after=last)\n",
        wrong="            kept = _in_order(new, ids, after=0)\n",
        tests=(f"{OF_ROTATION}::test_after_a_killed_load_a_new_file_is_still_newer_than_the_tail_of_a_loaded_one",),
    ),
    Bug(
        name="a file begins as a later generation while another load reads it as an earlier one",
        file="dedup_core/onceload_core/guards.py",
        correct='            raise NotAlone(session.pipeline, planned.position, f"{min(changed)} was committed")\n',
        wrong="            pass\n",
        tests=(f"{OF_ROTATION}::test_a_later_generation_does_not_begin_while_another_load_reads_the_file",),
    ),
    Bug(
        name="a copy that parts is a file of its own from its first byte",
        file="spark_jobs/onceload_jobs/plan/other_names.py",
        correct="            return self._diverged(listed, file_state, copy_of)\n",
        wrong="            return file_state\n",
        tests=(f"{OF_GROWING_COPIES}::test_a_copy_that_goes_on_in_another_way_is_loaded_from_where_they_part",),
    ),
    Bug(
        name="a copy is believed though the other was rewound",
        file="dedup_core/onceload_core/postgres/rewind.py",
        correct='    connection.execute(recovery.SQL["forget_copies"], way.binds)\n',
        wrong="",
        tests=(
            f"{OF_PARTIAL_COPIES}::test_a_copy_is_not_believed_once_the_other_was_rewound_and_loaded_in_another_way",
        ),
    ),
)

BOARD_BUGS = (
    Bug(
        name="an earlier epoch of a session gets deliveries",
        file=BOARD_SQL,
        correct="     WHERE session_id = :session_id AND epoch = :epoch\n       AND EXISTS (",
        wrong="     WHERE session_id = :session_id\n       AND EXISTS (",
        tests=(f"{OF_BOARD}::test_an_earlier_epoch_of_a_session_gets_no_delivery",),
    ),
    Bug(
        name="a delivery on the board is tried once too often",
        file=BOARD_SQL,
        correct="CASE WHEN tries < :deliveries_max THEN",
        wrong="CASE WHEN tries <= :deliveries_max THEN",
        tests=(f"{OF_BOARD}::test_any_history_is_that_of_the_machine",),
    ),
    Bug(
        name="the next delivery of a file is handed out while one is held",
        file=BOARD_SQL,
        correct="(other.state = 'held' OR (other.state = 'waiting'",
        wrong="(other.state = 'dead' OR (other.state = 'waiting'",
        tests=(f"{OF_BOARD}::test_any_history_is_that_of_the_machine",),
    ),
    Bug(
        name="a bundle is handed out before it is first for all of its files",
        file=BOARD_SQL,
        correct="AND other.delivery_id < delivery.delivery_id)))",
        wrong="AND other.delivery_id < 0)))",
        tests=(f"{OF_BOARD}::test_a_bundle_waits_until_it_is_first_for_all_of_its_files",),
    ),
    Bug(
        name="deliveries in order are taken away from a session that is alive",
        file=BOARD_SQL,
        correct="   AND (session_id IS NULL OR session_id = :session_id OR keeper.lease_until <= clock_timestamp())\n\n"
        "-- name: next_key_shared",
        wrong="\n-- name: next_key_shared",
        tests=(f"{OF_BOARD}::test_any_history_is_that_of_the_machine",),
    ),
    Bug(
        name="an expired delivery stays with the session that lost it",
        file=BOARD_SQL,
        correct="-- name: which_late\ndeadline_at <= clock_timestamp()",
        wrong="-- name: which_late\ndeadline_at <= '-infinity'",
        tests=(f"{OF_BOARD}::test_any_history_is_that_of_the_machine",),
    ),
    Bug(
        name="work that waits on the board is planned again",
        file=CLAIM_VIEW,
        correct="delivery.state IN ('waiting', 'held', 'dead'))",
        wrong="delivery.state IN ('held', 'dead'))",
        tests=(
            f"{OF_SESSIONS}::test_deliveries_of_a_vanished_consumer_are_loaded_by_another_once_its_lease_has_ended",
        ),
    ),
    Bug(
        name="a piece of a delivery that was taken away is committed",
        file=COMMIT,
        correct="    if claim.session != session or execute",
        wrong="    if is_last and (claim.session != session) or is_last and execute",
        tests=(f"{OF_CLAIMS}::test_a_commit_that_does_not_end_its_claim_needs_it_as_well",),
    ),
    Bug(
        name="an audit finds no other tables by their bare names",
        file="spark_jobs/onceload_jobs/quality/quality.sql",
        correct="concat_ws(', ', nullif(current_setting('search_path'), ''), %s)",
        wrong="concat_ws(', ', %s)",
        tests=("tests/loads/test_audit.py::test_an_expectation_may_query_another_table_by_its_bare_name",),
    ),
    Bug(
        name="a retry of records with their own ids counts as a batch in a drafted suite",
        file="spark_jobs/onceload_jobs/quality/quality.sql",
        correct="AND retry.kind = 'retry'",
        wrong="AND retry.kind = 'discard'",
        tests=("tests/loads/test_suggest.py::test_only_batches_of_loads_are_counted",),
    ),
    Bug(
        name="files have the columns of the stage instead of those of the target",
        file="spark_jobs/onceload_jobs/load/road.py",
        correct="    if road is Road.BATCH:\n        return Writer.into_target(",
        wrong="    if road is None:\n        return Writer.into_target(",
        tests=("tests/loads/test_stage_folder.py::test_rows_go_from_files_into_the_target_and_no_file_is_left",),
    ),
    Bug(
        name="a connection keeps a statement whose plan is gone",
        file=CONNECTION,
        correct="        if sqlstate(error) not in _PLAN_IS_GONE:\n",
        wrong="        if True:\n",
        tests=(
            "tests/integration/test_postgres_ledger.py::"
            "test_a_statement_whose_plan_is_gone_is_planned_again_by_the_next_try",
        ),
    ),
    Bug(
        name="rows of a transform in files are not counted for their files",
        file="spark_jobs/onceload_jobs/publish/commits.py",
        correct="            rows_of[each.producer_id] += each.rows\n            named",
        wrong="            named",
        tests=("tests/loads/test_spark.py::test_a_transform_that_keeps_records_keeps_their_lineage",),
    ),
    Bug(
        name="a fixed session ends while more is to be handed out to it",
        file="spark_jobs/onceload_jobs/load/others.py",
        correct="            return not (more and self._before_us(more, outlook)) and not",
        wrong="            return True or not",
        tests=(f"{OF_SESSION_TROUBLES}::test_a_delivery_that_depends_on_another_line_waits_with_a_bound",),
    ),
    Bug(
        name="a file that kills its worker takes all of its delivery with it",
        file="spark_jobs/onceload_jobs/work/session.py",
        correct="        until_answered(partial(self._board.note, handed, reading(handed.work, chunk.name)))\n",
        wrong="        reading(handed.work, chunk.name)\n",
        tests=(
            f"{OF_DEADLY_FILES}::test_only_the_file_that_kills_its_worker_is_set_aside[direct-b-reading-key_shared]",
        ),
    ),
    Bug(
        name="values that are nested too deeply are an error without a file",
        file="spark_jobs/onceload_jobs/formats/typed_files.py",
        correct="    except RecursionError as error:\n",
        wrong="    except StopAsyncIteration as error:\n",
        tests=(
            f"{TOO_DEEP}[direct-avro]",
            f"{OF_DRAFTS}/test_typed_files.py::test_a_file_of_values_that_are_nested_too_deeply_is_named",
        ),
    ),
    Bug(
        name="a Parquet schema of more levels than Arrow reads is called damaged",
        file="spark_jobs/onceload_jobs/formats/parquet/footers.py",
        correct="    if level > _LEVELS_MAX:\n",
        wrong="    if level > 10 * _LEVELS_MAX:\n",
        tests=(f"{OF_FOOTERS}::test_a_schema_of_more_levels_than_arrow_reads_is_not_called_damaged",),
    ),
    Bug(
        name="two quotes in a value without quotes are loaded as one",
        file="spark_jobs/onceload_jobs/formats/csv/dialect.py",
        correct=" if quote else _NEVER, _NEVER\n",
        wrong=' if quote else _NEVER, f"{quote}({quote})" if quote else _NEVER\n',
        tests=(f"{OF_SOURCES}/test_csv.py::test_a_malformed_record_is_bad_alone",),
    ),
    Bug(
        name="a sealed file that breaks off is still being written",
        file="spark_jobs/onceload_jobs/read/checked_parts.py",
        correct="error.in_sealed_file() if chunk.sealed else error",
        wrong="error",
        tests=(f"{OF_BROKEN_FILES}::test_a_packed_file_that_breaks_off_needs_a_person_once_it_is_sealed",),
    ),
    Bug(
        name="a zstd file with a large window is called damaged",
        file="spark_jobs/onceload_jobs/files/compression.py",
        correct="WindowTooLarge if _TOO_LARGE in str(error) else Damaged",
        wrong="Damaged",
        tests=("tests/unit/files/test_streams.py::test_a_zstd_window_that_takes_too_much_memory_is_not_called_damage",),
    ),
    Bug(
        name="a null that a transform makes is reported for a table of the stage",
        file="spark_jobs/onceload_jobs/publish/postgres_transform.py",
        correct="    if sqlstate(error) == _NULL:\n",
        wrong="    if not error:\n",
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_a_null_in_a_column_that_must_have_none_is_refused",),
    ),
    Bug(
        name="a column of a type that loads do not write is refused as one that could lose values",
        file="spark_jobs/onceload_jobs/write/differences.py",
        correct='        parse_type(change.name, change.found or "")\n    except',
        wrong="        pass\n    except",
        tests=(
            "tests/loads/test_new_columns.py::"
            "test_a_column_of_a_type_that_loads_do_not_write_is_refused_with_what_can_be_done",
        ),
    ),
    Bug(
        name="files of a delivery that killed its worker are committed together",
        file="spark_jobs/onceload_jobs/read/new_content.py",
        correct=(
            "            if held:\n                yield held, False\n"
            "                held, held_bytes = [], 0\n            on_chunk("
        ),
        wrong="            on_chunk(",
        tests=(
            "tests/loads/test_deadly_files.py::test_only_the_file_that_kills_its_worker_is_set_aside[direct-b-decoding-key_shared]",
        ),
    ),
    Bug(
        name="a file that fails takes all of its delivery with it",
        file="spark_jobs/onceload_jobs/work/session.py",
        correct="                if not self._is_last_try(left):\n",
        wrong="                if left.tries:\n",
        tests=(
            f"{OF_FAILED_DELIVERIES}::test_only_the_files_of_a_delivery_that_fail_are_set_aside[direct-3-key_shared]",
        ),
    ),
    Bug(
        name="a file that only failed is reported to have killed its worker",
        file="spark_jobs/onceload_jobs/work/session.py",
        correct="                    self._board.note(left, left.work)\n",
        wrong="                    pass\n",
        tests=(
            f"{OF_DEADLY_FILES}::test_a_file_that_only_failed_is_not_blamed_for_a_killed_worker[direct-key_shared]",
        ),
    ),
    Bug(
        name="a batch is published, and the file that killed its workers is not set aside",
        file="spark_jobs/onceload_jobs/load/staged/staged_batch.py",
        correct="            self._set_aside(culprits)\n",
        wrong="",
        tests=(
            "tests/loads/test_deadly_files.py::test_only_the_file_that_kills_its_worker_is_set_aside[staged-b-reading-shared]",
        ),
    ),
    Bug(
        name="a delivery whose handing out got no answer is kept by a heartbeat",
        file="spark_jobs/onceload_jobs/work/session.py",
        correct="        until_answered(partial(self._board.give_back, session))",
        wrong="        until_answered(partial(self._board.renew, session))",
        tests=(f"{OF_SESSION_TROUBLES}::test_a_delivery_handed_out_without_an_answer_is_not_kept_by_a_heartbeat",),
    ),
    Bug(
        name="a stage is opened once, also if its connection is from before a crash of the server",
        file="spark_jobs/onceload_jobs/load/staged/staged_batch.py",
        correct="until_answered(partial(open_tables, self._context.engine, self._job, staging))",
        wrong="open_tables(self._context.engine, self._job, staging)",
        tests=("tests/loads/test_at_once.py::test_a_stage_is_opened_although_the_server_has_ended_all_connections",),
    ),
    Bug(
        name="a batch that must be whole is published without its dead letters",
        file="spark_jobs/onceload_jobs/load/staged/staged_batch.py",
        correct="        if self._declared.is_published_whole:\n",
        wrong="        if False:\n",
        tests=(
            "tests/loads/test_failed_deliveries.py::test_a_batch_that_makes_sense_only_whole_is_not_published_without_a_poison_chunk",
        ),
    ),
)

BATCH_BUGS = (
    Bug(
        name="verify takes a file with a hole for whole",
        file="spark_jobs/onceload_jobs/verify/files.py",
        correct="        for difference in (*found, *self._gaps.within(file)):\n",
        wrong="        for difference in found:\n",
        tests=(f"{OF_GAPS}::test_a_file_with_a_gap_is_not_taken_for_whole",),
    ),
    Bug(
        name="verify takes a packed file for read because of its size",
        file="spark_jobs/onceload_jobs/verify/gaps.py",
        correct="        if left := self._without_open(file, _after(file, end)):\n            yield self._gap(",
        wrong="        if left := self._without_open(file, _after(file, -end)):\n            yield self._gap(",
        tests=(f"{OF_GAPS}::test_records_missing_at_the_end_of_a_file_that_was_noted_as_read_to_its_end_are_a_gap",),
    ),
    Bug(
        name="verify takes the note of a packed copy for a file of which nothing is loaded",
        file="dedup_core/onceload_core/postgres/audit.sql",
        correct="receipt.size IS NOT NULL AND receipt.shares_with IS NULL ORDER",
        wrong="receipt.size IS NOT NULL ORDER",
        tests=(f"{OF_GAPS}::test_packed_copies_that_were_read_to_their_end_have_no_gap",),
    ),
    Bug(
        name="verify does not look past the loaded end of a packed copy",
        file="spark_jobs/onceload_jobs/verify/files.py",
        correct="        size=copy.size,\n",
        wrong="        size=None,\n",
        tests=(
            f"{OF_GAPS}::test_records_missing_at_the_end_of_a_packed_copy_that_was_noted_as_read_to_its_end_are_a_gap",
        ),
    ),
    Bug(
        name="verify takes a file that was loaded twice for one that at_least_once allows",
        file="spark_jobs/onceload_jobs/verify/verify.py",
        correct="        again = _compare_receipts(view, findings)\n",
        wrong="        again = 0\n",
        tests=(f"{OF_VERIFIED_HISTORIES}::test_a_file_that_was_loaded_twice_is_a_difference_until_it_is_replaced",),
    ),
    Bug(
        name="Postgres makes rows again beside those that are there",
        file="spark_jobs/onceload_jobs/publish/postgres_transform.py",
        correct='        run(connection, f"TRUNCATE {stage.rows}")\n',
        wrong="",
        tests=("tests/loads/test_postgres_transform.py::test_rows_are_made_again_if_the_answer_is_lost",),
    ),
    Bug(
        name="Postgres may make rows of some records only",
        file="spark_jobs/onceload_jobs/publish/postgres_transform.py",
        correct='any(node["Node Type"] == "Limit" and _reads(node, reading) for node in nodes)',
        wrong="False",
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_a_query_that_cannot_be_meant_is_refused",),
    ),
    Bug(
        name="Postgres may make rows of no record",
        file="spark_jobs/onceload_jobs/publish/postgres_transform.py",
        correct="    if not _reads(plan, reading) or ",
        wrong="    if ",
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_a_query_that_cannot_be_meant_is_refused",),
    ),
    Bug(
        name="Postgres looks for a limit in the records only",
        file="spark_jobs/onceload_jobs/publish/postgres_transform.py",
        correct="        reading |= more\n",
        wrong="        reading |= more\n        reading = {records}\n        break\n",
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_a_query_that_cannot_be_meant_is_refused",),
    ),
    Bug(
        name="Postgres makes null what rows are found by",
        file="spark_jobs/onceload_jobs/publish/postgres_transform.py",
        correct="    for name in (column.name for column in job.written if column.not_null):\n",
        wrong="    for name in ():\n",
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_a_null_of_a_single_record_in_a_column_declared_not_null_is_refused",),
    ),
    Bug(
        name="a value is rounded because a table that the query reads was altered",
        file="spark_jobs/onceload_jobs/publish/postgres_transform.py",
        correct="    if [(each.name, each.type) for each in now] != ",
        wrong="    if [] and [(each.name, each.type) for each in now] != ",
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_a_table_that_is_altered_while_records_are_staged_rounds_no_value",),
    ),
    Bug(
        name="Postgres makes a row of no good record",
        file="spark_jobs/onceload_jobs/publish/postgres_transform.py",
        correct=" if records else 0",
        wrong="",
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_a_batch_without_a_good_record_makes_no_row",),
    ),
    Bug(
        name="records that Postgres transforms count as rows",
        file="spark_jobs/onceload_jobs/publish/postgres_transform.py",
        correct="    return (*(piece.proof for piece in pieces), ",
        wrong="    return (*pieces, ",
        tests=("tests/loads/test_postgres_transform.py::test_a_query_makes_its_rows_once",),
    ),
    Bug(
        name="another engine of a transform makes no new version",
        file="spark_jobs/onceload_jobs/plan/declaration_texts.py",
        correct='(OF_POSTGRES if declared.is_made_by_postgres else "") + (declared.transform or "")',
        wrong='declared.transform or ""',
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_another_engine_is_another_version_of_the_pipeline_file",),
    ),
    Bug(
        name="verify takes rows of no record for rows from nowhere",
        file="spark_jobs/onceload_jobs/verify/verify.py",
        correct="        if counts.producer_id is not None or not of_no_record.at_most:\n",
        wrong="        if counts.producer_id is not None or of_no_record is not None:\n",
        tests=(f"{OF_TRANSFORMS}::test_rows_that_were_loaded_without_lineage_are_expected_after_it_was_declared",),
    ),
    Bug(
        name="verify counts no rows of no record that are missing",
        file="spark_jobs/onceload_jobs/verify/no_record.py",
        correct="    if found < expected.at_least:\n",
        wrong="    if found < 0:\n",
        tests=(f"{OF_TRANSFORMS}::test_more_or_fewer_rows_of_no_record_than_were_loaded_are_differences",),
    ),
    Bug(
        name="verify counts no rows of no record that are too many",
        file="spark_jobs/onceload_jobs/verify/no_record.py",
        correct="    if found > expected.at_most:\n",
        wrong="    if found > 2**62:\n",
        tests=(f"{OF_TRANSFORMS}::test_more_or_fewer_rows_of_no_record_than_were_loaded_are_differences",),
    ),
    Bug(
        name="verify expects rows of no record that were loaded into another table",
        file="dedup_core/onceload_core/postgres/audit.sql",
        correct="     WHERE pipeline_id = :pipeline_id OR terms ->> 'target.table' = :table\n",
        wrong="     WHERE pipeline_id = :pipeline_id OR true\n",
        tests=(f"{OF_TRANSFORMS}::test_rows_of_no_record_in_another_table_are_not_expected",),
    ),
    Bug(
        name="verify knows no earlier name of a shared table",
        file="dedup_core/onceload_core/postgres/audit.sql",
        correct="        OR terms ->> 'target.table' IN (SELECT own.terms",
        wrong="        OR terms ->> 'none' IN (SELECT own.terms",
        tests=(
            f"{OF_TRANSFORMS}::test_rows_that_others_loaded_under_an_earlier_name_of_the_table_are_not_from_nowhere",
        ),
    ),
    Bug(
        name="verify insists on the rows of no record of another pipeline",
        file="dedup_core/onceload_core/postgres/audit.sql",
        correct="is_ours AND NOT (is_transformed AND is_replaced) AS is_certain",
        wrong="NOT (is_transformed AND is_replaced) AS is_certain",
        tests=(f"{OF_TRANSFORMS}::test_rows_of_no_record_of_pipelines_that_share_a_table_are_counted_together",),
    ),
    Bug(
        name="verify counts rows of no record by all versions",
        file="dedup_core/onceload_core/postgres/audit.sql",
        correct="      FROM version JOIN onceload.ledger USING (pipeline_id, version)\n",
        wrong="      FROM version JOIN onceload.ledger USING (pipeline_id)\n",
        tests=(f"{OF_TRANSFORMS}::test_rows_that_were_loaded_without_lineage_are_expected_after_it_was_declared",),
    ),
    Bug(
        name="verify expects rows of no record that were rewound",
        file="dedup_core/onceload_core/postgres/audit.sql",
        correct="rewind.position > ledger.position AND rewind.rewound_to < ledger.position)",
        wrong="rewind.position > ledger.position AND false)",
        tests=(f"{OF_TRANSFORMS}::test_rewound_rows_of_no_record_are_no_longer_expected",),
    ),
    Bug(
        name="verify expects rows of no record that a merge replaced",
        file="dedup_core/onceload_core/postgres/audit.sql",
        correct="SELECT CASE WHEN bool_or(is_merge) THEN 0\n",
        wrong="SELECT CASE WHEN false THEN 0\n",
        tests=(f"{OF_TRANSFORMS}::test_a_merge_into_a_shared_table_may_replace_rows_of_no_record",),
    ),
    Bug(
        name="verify expects rows without lineage whose file was replaced",
        file="dedup_core/onceload_core/postgres/audit.sql",
        correct="                            ELSE loaded - receipts.rows_replaced END) AS rows\n",
        wrong="                            ELSE loaded END) AS rows\n",
        tests=(f"{OF_TRANSFORMS}::test_rows_without_lineage_that_a_replacement_left_behind_are_from_nowhere",),
    ),
    Bug(
        name="verify expects rows of several records whose file was replaced",
        file="dedup_core/onceload_core/postgres/audit.sql",
        correct="is_ours AND NOT (is_transformed AND is_replaced) AS is_certain",
        wrong="is_ours AS is_certain",
        tests=(f"{OF_TRANSFORMS}::test_rows_of_no_record_that_a_replacement_left_behind_may_be_deleted",),
    ),
    Bug(
        name="verify counts no rows of no record that were merged",
        file="spark_jobs/onceload_jobs/verify/verify.py",
        correct="        if of_no_record.at_most and _has_lineage(declared, columns):\n",
        wrong="        if False:\n",
        tests=(f"{OF_TRANSFORMS}::test_a_merge_reports_more_rows_of_no_record_than_were_loaded",),
    ),
    Bug(
        name="verify takes the rows of a replacement for replaced ones",
        file="dedup_core/onceload_core/postgres/audit.sql",
        correct="SELECT rows, NOT isempty(spans) AND producer_id IN (",
        wrong="SELECT rows, producer_id IN (",
        tests=(f"{OF_TRANSFORMS}::test_a_replacement_makes_no_row_of_its_own_uncertain",),
    ),
    Bug(
        name="verify reports rows that another pipeline merged over",
        file="dedup_core/onceload_core/postgres/audit.sql",
        correct="       CASE WHEN bool_or(is_merge AND NOT is_ours) THEN 9223372036854775807\n",
        wrong="       CASE WHEN false THEN 9223372036854775807\n",
        tests=(f"{OF_TRANSFORMS}::test_rows_that_a_merge_of_another_pipeline_may_have_replaced_are_not_expected",),
    ),
    Bug(
        name="verify --deep reports rows that a merge may have replaced",
        file="spark_jobs/onceload_jobs/verify/values.py",
        correct="file.producer_id in self.differing or is_lacking,",
        wrong="file.producer_id in self.differing,",
        tests=(f"{OF_TRANSFORMS}::test_rows_that_a_merge_may_have_replaced_are_not_expected",),
    ),
    Bug(
        name="verify counts rows that an earlier version merged",
        file="dedup_core/onceload_core/postgres/audit.sql",
        correct="               CASE WHEN position > :merged THEN coalesce(expected.rows, 0)\n",
        wrong="               CASE WHEN true THEN coalesce(expected.rows, 0)\n",
        tests=(f"{OF_TRANSFORMS}::test_rows_that_a_merge_may_have_replaced_are_not_expected",),
    ),
    Bug(
        name="replace deletes without counting",
        file="spark_jobs/onceload_jobs/publish/replaced_rows.py",
        correct="    if differing and not job.differences_accepted:\n",
        wrong="    if differing and job is None:\n",
        tests=(f"{OF_REPLACED_ROWS}::test_rows_that_were_loaded_without_lineage_are_not_loaded_twice",),
    ),
    Bug(
        name="replace leaves rows that do not say their file",
        file="spark_jobs/onceload_jobs/publish/replaced_rows.py",
        correct="    differing = _differing(promised, deleted, unattributed)\n",
        wrong="    differing = _differing(promised, deleted, unattributed[:0])\n",
        tests=(
            "tests/loads/test_spark.py::test_rows_that_an_earlier_transform_left_without_their_file_are_not_loaded_twice",
        ),
    ),
    Bug(
        name="replace deletes before the lock only",
        file="spark_jobs/onceload_jobs/publish/replaced_rows.py",
        correct="    if lock_pipeline(connection, pipeline).position != before.position:\n",
        wrong="    if lock_pipeline(connection, pipeline).position < before.position:\n",
        tests=(f"{OF_REPLACED_ROWS}::test_a_record_that_is_retried_while_its_file_is_replaced_is_not_there_twice",),
    ),
    Bug(
        name="a batch that was not audited is published",
        file="spark_jobs/onceload_jobs/load/staged/kept_batch.py",
        correct="if declared.suite is not None and not opened.kept.has_passed:",
        wrong="if declared.suite is not None and False:",
        tests=(f"{OF_AUDITS}::test_a_batch_without_an_audit_is_not_published",),
    ),
    Bug(
        name="a batch that fails its audit goes on",
        file="spark_jobs/onceload_jobs/quality/audit.py",
        correct="    if audit.passed or suite is None:\n        return\n",
        wrong="    if True:\n        return\n",
        tests=(f"{OF_AUDITS}::test_nothing_is_published_of_a_batch_that_fails_and_its_rows_stay_to_be_looked_at",),
    ),
    Bug(
        name="a warning stops a batch",
        file="dedup_core/onceload_core/postgres/batches.py",
        correct='return self.severity == "critical" and not self.success',
        wrong="return not self.success",
        tests=(f"{OF_AUDITS}::test_a_batch_that_meets_its_suite_is_published",),
    ),
    Bug(
        name="an audit that asked something else counts",
        file="dedup_core/onceload_core/postgres/batches.sql",
        correct="WHERE audit.stage = delivery.stage AND audit.asked = :asked ORDER BY",
        wrong="WHERE audit.stage = delivery.stage AND audit.asked IS DISTINCT FROM :asked || 'x' ORDER BY",
        tests=(f"{OF_AUDITS}::test_an_audit_by_another_suite_does_not_count_for_this_one",),
    ),
    Bug(
        name="a batch is given up while another process publishes it",
        file="spark_jobs/onceload_jobs/load/staged/kept_batch.py",
        correct="                kept = batches.find(batch)\n                if kept is not None and",
        wrong="                kept = found\n                if kept is not None and",
        tests=(f"{OF_KEPT}::test_a_batch_that_is_being_published_by_another_process_is_not_given_up",),
    ),
    Bug(
        name="a choice of files chooses all",
        file="spark_jobs/onceload_jobs/plan/choice.py",
        correct="        return not self.files or any(",
        wrong="        return bool(name) or any(",
        tests=(f"{OF_CHOICES}::test_only_what_is_chosen_is_loaded_and_the_rest_later",),
    ),
    Bug(
        name="upkeep forgets idle files",
        file=LEDGER_SQL,
        correct="       AND producer.fingerprint IS NULL\n",
        wrong="",
        tests=(f"{OF_PRODUCERS}::test_a_file_is_never_forgotten_because_it_may_still_be_there",),
    ),
)

AIRFLOW_BUGS = (
    Bug(
        name="under Airflow, a connection wins over the Spark that the environment names",
        file="plugins/onceload_airflow/spark_submit.py",
        correct="if (address := os.environ.get(SPARK)) and not is_named:",
        wrong="if (address := os.environ.get(SPARK)) and is_named:",
        tests=("tests/dags/test_runs.py::test_a_load_runs_on_the_spark_that_the_environment_or_the_connection_names",),
    ),
    Bug(
        name="a run with nothing new starts Spark",
        file="plugins/onceload_airflow/operators.py",
        correct="        return found.is_anything_new or is_awaited\n",
        wrong="        return found is not None\n",
        tests=(f"{OF_RUNS}::test_a_run_loads_what_is_new_once_and_the_next_skips",),
    ),
    Bug(
        name="a connection that is not found leads to another database",
        file="plugins/onceload_airflow/hook.py",
        correct="if settings.dsn and self._conn_id == CONNECTION else",
        wrong="if settings.dsn else",
        tests=(f"{OF_RUNS}::test_no_database_is_taken_in_place_of_another",),
    ),
    Bug(
        name="a try that ends late ends a later one",
        file="plugins/onceload_airflow/operators.py",
        correct="                process.terminate()\n",
        wrong="                process.terminate()\n"
        "        import os\n\n"
        "        from onceload_core.names import Batch\n"
        "        from onceload_core.postgres import LedgerSettings, PostgresLedger, connect\n"
        "        from onceload_core.postgres.batches import planner_of\n\n"
        '        ledger = PostgresLedger(connect(LedgerSettings(dsn=os.environ["ONCELOAD_DSN"])))\n'
        '        ledger.open_session("readings", planner_of(Batch(os.environ["AIRFLOW_CTX_DAG_RUN_ID"])))\n',
        tests=(f"{OF_RUNS}::test_a_try_that_is_killed_late_leaves_a_later_one_alone",),
    ),
    Bug(
        name="the load of a killed task goes on",
        file="plugins/onceload_airflow/operators.py",
        correct="            raise KeyboardInterrupt\n",
        wrong="            return\n",
        tests=("tests/dags/test_killed_tasks.py",),
    ),
    Bug(
        name="the log of a failed task shows the rows that the target has refused",
        file="plugins/onceload_airflow/failures.py",
        correct="raise failure_of(named) from cause",
        wrong="raise failure_of(named) from error",
        tests=(
            f"{OF_OUTCOMES}::test_rows_that_the_target_refuses_fail_a_task_for_good_without_their_values_in_its_log",
        ),
    ),
    Bug(
        name="a run that replaces is refused in a pipeline that was never loaded",
        file="onceload/pipeline.py",
        correct="with suppress(NotFound):",
        wrong="with suppress(ZeroDivisionError):",
        tests=(f"{OF_CHOICES}::test_a_run_that_replaces_finds_all_files_of_a_pipeline_that_was_never_loaded",),
    ),
    Bug(
        name="a run that is called again finds the files that it has replaced",
        file="onceload/runs.py",
        correct="    plan = pipeline.plan(only=only, replaces=replaces, batch=batch)\n",
        wrong="    plan = pipeline.plan(only=only, replaces=replaces)\n",
        tests=(f"{OF_CHOICES}::test_a_batch_replaces_once_however_often_it_is_called",),
    ),
    Bug(
        name="the same new files are reported again and again",
        file="plugins/onceload_airflow/arrivals.py",
        correct="is_other = found.files > 0 and found.news != reported.news",
        wrong="is_other = found.files > 0",
        tests=("tests/dags/test_arrivals.py::test_new_files_are_reported_once_also_over_a_restart",),
    ),
    Bug(
        name="an approval is for every rewind",
        file="plugins/onceload_airflow/recovery.py",
        correct="            if gone is None:\n",
        wrong="            if gone is None or gone:\n",
        tests=(f"{OF_RECOVERIES}::test_a_recovery_says_what_would_go_waits_for_approval_and_loads_it_again",),
    ),
    Bug(
        name="rows are rolled back though the runs that load them again would wait",
        file="plugins/onceload_airflow/recovery.py",
        correct="                _refuse_paused_dag(context, declared)\n            if ",
        wrong="                pass\n            if ",
        tests=(f"{OF_RECOVERIES}::test_a_pipeline_whose_runs_would_wait_is_refused_before_anything_is_rolled_back",),
    ),
    Bug(
        name="days that were rolled back are not loaded again by any run",
        file="plugins/onceload_airflow/recovery.py",
        correct="value=[str(day) for day in days[_DAYS_MAX:]])",
        wrong="value=[])",
        tests=(f"{OF_RUNS}::test_days_for_which_there_are_no_runs_are_reported",),
    ),
)

PAST_ONE_MACHINE_BUGS = (
    Bug(
        name="a loader may change what the ledger says",
        file="migrations/roles.sql",
        correct="GRANT SELECT, INSERT ON onceload.ledger, onceload.ledger_span, onceload.declaration"
        " TO onceload_loader;",
        wrong="GRANT ALL ON onceload.ledger, onceload.ledger_span, onceload.declaration TO onceload_loader;",
        tests=(f"{OF_ROLES}::test_a_loader_cannot",),
    ),
    Bug(
        name="a reader sees what a record holds",
        file="migrations/roles.sql",
        correct="GRANT SELECT (quarantine_id, pipeline_id, position, producer_id, sequence_id, column_name,",
        wrong="GRANT SELECT (quarantine_id, pipeline_id, position, producer_id, sequence_id, raw, column_name,",
        tests=(f"{OF_ROLES}::test_a_reader_cannot_see_what_a_record_holds",),
    ),
    Bug(
        name="a user without the right on the schema of the target gets the words of the server only",
        file="onceload/pipeline.py",
        correct="        check_schema(engine, pipeline.declared)\n",
        wrong="",
        tests=(f"{OF_ROLES}::test_a_schema_that_a_loader_cannot_use_is_refused_with_the_grant_to_run",),
    ),
    Bug(
        name="any content that a store names is the one that was read",
        file="spark_jobs/onceload_jobs/files/fingerprints.py",
        correct="fingerprint.content is not None and Fingerprint.named(fingerprint, listed.etag) == fingerprint",
        wrong="fingerprint.content is not None",
        tests=(f"{OF_STORES}::test_an_object_rewritten_with_the_same_size_waits_for_a_person",),
    ),
    Bug(
        name="a file that was rewritten while it was read is committed",
        file="spark_jobs/onceload_jobs/read/checked_parts.py",
        correct="    if chunk.etag and now.etag != chunk.etag and now.size == chunk.size:",
        wrong="    if chunk.etag and now.etag is None:",
        tests=(
            f"{OF_STORES}::test_an_object_that_is_exchanged_while_it_is_read_is_not_taken_for_the_one_that_was_planned",
        ),
    ),
    Bug(
        name="an object in a store is known by its ends",
        file="spark_jobs/onceload_jobs/plan/file_state.py",
        correct="    is_vouched = has_same_etag_or_none(self.listed, fingerprint) and not is_elsewhere\n",
        wrong="    is_vouched = not is_elsewhere\n",
        tests=(f"{OF_STORES}::test_an_object_that_was_changed_between_its_ends_waits_for_a_person",),
    ),
    Bug(
        name="a folder of a store that cannot be listed is left out",
        file="spark_jobs/onceload_jobs/files/listing.py",
        correct="            if isinstance(error, PermissionError):\n",
        wrong="            if below == error:\n",
        tests=(f"{OF_STORES}::test_a_folder_that_cannot_be_listed_is_reported_and_hides_no_other",),
    ),
    Bug(
        name="a superuser calls what a loader has left in public",
        file="onceload/schema.py",
        correct='"SET LOCAL search_path = pg_catalog, pg_temp"',
        wrong='"SET LOCAL search_path = pg_catalog, public, pg_temp"',
        tests=(f"{OF_ROLES}::test_a_loader_cannot_make_a_superuser_call_a_function_of_its_own",),
    ),
    Bug(
        name="the last commit is counted at every scrape",
        file="dedup_core/onceload_core/postgres/metrics.sql",
        correct="ledger.position > coalesce(seen.position, 0)",
        wrong="ledger.position >= coalesce(seen.position, 0)",
        tests=(
            "tests/integration/test_metrics.py"
            "::test_they_are_served_through_a_database_that_goes_away_until_they_are_stopped",
        ),
    ),
    Bug(
        name="a cluster does not ask for its secret",
        file="onceload/cluster.py",
        correct='"spark.authenticate": "true",',
        wrong='"spark.authenticate": "false",',
        tests=(f"{OF_CLUSTERS}::test_a_process_without_the_secret_of_a_cluster_cannot_run_anything_there",),
    ),
)

TRY_BUGS = (
    Bug(
        name="a planner that was paused notes what no longer holds",
        file="spark_jobs/onceload_jobs/load/offering.py",
        correct="            claim=claim,\n            is_last=False,\n",
        wrong="",
        tests=("tests/loads/test_one_content.py::test_a_planner_that_was_away_does_not_swap_names_back",),
    ),
    Bug(
        name="names count again in a pipeline that compared content",
        file="dedup_core/onceload_core/declaration.py",
        correct='            return in_use.is_loaded and new == "path"\n',
        wrong="            return False\n",
        tests=(f"{OF_VERSIONS}::test_names_are_not_what_files_are_known_by_once_content_was",),
    ),
    Bug(
        name="Ctrl-C while the JVM starts leaves it running",
        file="spark_jobs/onceload_jobs/work/spark/classic.py",
        correct="    with _signals_wait():\n        SparkContext._ensure_initialized(conf=conf)",
        wrong="    if True:\n        SparkContext._ensure_initialized(conf=conf)",
        tests=("tests/integration/test_cli.py::test_a_load_that_is_stopped_while_spark_starts_leaves_no_jvm_behind",),
    ),
    Bug(
        name="a file that is replaced between two tries is read on",
        file="spark_jobs/onceload_jobs/read/checked_parts.py",
        correct="    if chunk.stored is not None and not still_begins_with(now, chunk.stored):\n",
        wrong="    if chunk.stored is not None and not chunk.stored:\n",
        tests=(f"{OF_TRIES}::test_a_file_that_is_replaced_between_two_tries_is_loaded_of_one_content",),
    ),
    Bug(
        name="a stream counts as complete by its size, with parts missing",
        file="spark_jobs/onceload_jobs/plan/file_state.py",
        correct="        return state.size == size and state.consumed.is_without_holes\n",
        wrong="        return state.size == size\n",
        tests=(f"{OF_TRIES}::test_a_hole_in_a_packed_file_is_loaded_by_the_next_load",),
    ),
)

RECORD_BUGS = (
    Bug(
        name="in order, a plan overtakes a file that is not whole",
        file="spark_jobs/onceload_jobs/plan/plan.py",
        correct="    elif declared.is_ordered_across_files:\n",
        wrong="    elif False:\n",
        tests=(f"{OF_TURNS}::test_nothing_overtakes_what_a_plan_finds_not_to_be_whole",),
    ),
    Bug(
        name="in order, a batch overtakes a file that turns out not to be whole",
        file="spark_jobs/onceload_jobs/load/staged/staged_batch.py",
        correct="        if behind:\n",
        wrong="        if False:\n",
        tests=("tests/loads/test_turns.py::test_nothing_overtakes_a_packed_file_that_cannot_be_read_whole",),
    ),
    Bug(
        name="in order, the rest of a file overtakes a part of it that could not be read",
        file="spark_jobs/onceload_jobs/load/staged/overtaking.py",
        correct="if _place(chunk) > _place(first)]",
        wrong="if chunk.name > first.name]",
        tests=(f"{OF_TURNS}::test_the_rest_of_a_file_does_not_overtake_a_part_of_it_that_could_not_be_read",),
    ),
    Bug(
        name="a merge overtakes a part of its file that could not be read",
        file="spark_jobs/onceload_jobs/load/staged/overtaking.py",
        correct="    if declared.is_merge_of_files:\n",
        wrong="    if False:\n",
        tests=(f"{OF_TURNS}::test_a_merge_applies_records_in_the_order_of_their_file",),
    ),
    Bug(
        name="in order, no file waits for a copy that holds more than was loaded",
        file="spark_jobs/onceload_jobs/plan/same_content.py",
        correct="return chosen, waits, frozenset(each for",
        wrong="return chosen, waits, frozenset(waits) | frozenset(each for",
        tests=(f"{OF_TURNS}::test_nothing_overtakes_a_copy_that_holds_more_than_was_loaded",),
    ),
    Bug(
        name="in order, no file waits for the beginning of a file before it",
        file="spark_jobs/onceload_jobs/plan/same_content.py",
        correct="under_way.items() if other.name > each.name)\n",
        wrong="under_way.items() if other.name)\n",
        tests=(f"{OF_TURNS}::test_nothing_overtakes_what_is_so_far_the_beginning_of_another_file",),
    ),
    Bug(
        name="of several records of one business id, the first by producer counts instead of the first by file",
        file="spark_jobs/onceload_jobs/work/by_producer.py",
        correct="SEQUENCE: self.ids, FILE: file, PLACE: place}",
        wrong="SEQUENCE: self.ids}",
        tests=(f"{OF_BUSINESS_IDS}::test_the_first_new_record_of_each_id_takes_effect",),
    ),
    Bug(
        name="a kept batch is merged as if its rows had a lineage",
        file="spark_jobs/onceload_jobs/load/staged/kept_batch.py",
        correct="        declared = with_lineage_of(declared, has_lineage=publish_input.has_lineage)\n",
        wrong="",
        tests=("tests/loads/test_spark.py::test_a_kept_batch_of_rows_without_lineage_takes_the_place_of_earlier_ones",),
    ),
    Bug(
        name="a rewind forgets copies of files that it does not touch",
        file=RECOVERY_SQL,
        correct="AND rebuilt.fingerprint IS NOT DISTINCT FROM live.fingerprint);",
        wrong="AND false);",
        tests=(f"{OF_PARTIAL_COPIES}::test_a_copy_of_what_a_rewind_does_not_touch_stays_one",),
    ),
    Bug(
        name="files of one content that were loaded by name bring the same again",
        file="spark_jobs/onceload_jobs/plan/other_names.py",
        correct="needs_a_person=True) if double else file_state\n",
        wrong="needs_a_person=True) if False else file_state\n",
        tests=(f"{OF_GROWING_COPIES}::test_files_that_were_loaded_each_by_its_name_do_not_bring_the_same_any_more",),
    ),
    Bug(
        name="a file loaded by name goes on although a longer one of its content is gone",
        file="spark_jobs/onceload_jobs/plan/other_names.py",
        correct="            return other.state.consumed.end > end and proven\n",
        wrong="            return self.contents.shared(listed, other) is not None\n",
        tests=(f"{OF_GROWING_COPIES}::test_a_copy_that_was_loaded_by_its_name_waits_for_the_longer_one_that_is_gone",),
    ),
    Bug(
        name="a copy that parts is taken for a shorter file that parted earlier",
        file="spark_jobs/onceload_jobs/plan/other_names.py",
        correct="            or shared.state.consumed.end >= file_state.seen\n",
        wrong="            or True\n",
        tests=(
            f"{OF_PARTIAL_COPIES}::test_a_copy_is_not_taken_for_a_shorter_file_that_parted_earlier",
            f"{OF_STORMS}::test_a_fault_that_was_found_once_is_not_found_again",
        ),
    ),
    Bug(
        name="a copy is noted as a whole though its original has holes",
        file="spark_jobs/onceload_jobs/plan/same_content.py",
        correct="file.listed in recorded or _copy_record_of(file).has_holes",
        wrong="file.listed in recorded",
        tests=(f"{OF_PARTIAL_COPIES}::test_a_file_that_differs_where_another_has_a_hole_is_not_a_copy",),
    ),
    Bug(
        name="a last line that gets its newline is another line",
        file="spark_jobs/onceload_jobs/plan/copies.py",
        correct='or last_and_next[1:].startswith((b"\\n", b"\\r\\n"))',
        wrong="",
        tests=(f"{OF_PARTIAL_COPIES}::test_a_last_line_that_gets_its_newline_after_it_was_loaded_is_loaded_once",),
    ),
    Bug(
        name="a file that goes on in a loaded last line is loaded whole under another name",
        file="spark_jobs/onceload_jobs/plan/other_names.py",
        correct="        if continued is not None:\n",
        wrong="        if False:\n",
        tests=(f"{OF_PARTIAL_COPIES}::test_a_last_line_that_goes_on_under_another_name_needs_a_person",),
    ),
    Bug(
        name="a Parquet file of which a part is loaded is all loaded under another name",
        file="spark_jobs/onceload_jobs/plan/copies.py",
        correct="    return {span for span, _ in loaded} == there.keys()\n",
        wrong="    return True\n",
        tests=(f"{OF_STORMS}::{_WITH_A_PART_LOADED}",),
    ),
    Bug(
        name="a file that its disk does not show is refused for good",
        file="spark_jobs/onceload_jobs/files/listing.py",
        correct="faults = self.found.refused if error.errno == errno.ELOOP else self.found.unreadable",
        wrong="faults = self.found.refused",
        tests=("tests/unit/files/test_listing.py::test_a_file_that_its_disk_does_not_show_may_be_readable_later",),
    ),
    Bug(
        name="an upgrade ends the loads of the release before",
        file="onceload/schema.py",
        correct="    if found.compatible_from > head():\n",
        wrong="    if found.revision > head():\n",
        tests=(f"{OF_SCHEMA}::test_a_worker_of_the_release_before_runs_on_a_schema_that_only_gained",),
    ),
    Bug(
        name="code runs on a schema that lost what this code needs",
        file="onceload/schema.py",
        correct="    if found.compatible_from > head():\n",
        wrong="    if not head():\n",
        tests=(f"{OF_SCHEMA}::test_a_worker_that_the_schema_has_left_behind_writes_nothing_and_is_called_again",),
    ),
    Bug(
        name="a worker that comes during an upgrade fails for good",
        file="dedup_core/onceload_core/errors.py",
        correct="class UpgradeUnfinished(CallAgain):\n",
        wrong="class UpgradeUnfinished(WrongUse):\n",
        tests=(f"{OF_SCHEMA}::test_a_worker_that_the_schema_does_not_know_yet_is_called_again",),
    ),
    Bug(
        name="an upgrade that waits holds up all commits",
        file="onceload/schema.py",
        correct="statement_timeout = '500ms'",
        wrong="statement_timeout = '500s'",
        tests=(f"{OF_SCHEMA}::test_an_upgrade_that_has_to_wait_delays_no_other_session_for_long",),
    ),
    Bug(
        name="an upgrade that could not wait any longer is not tried again",
        file="onceload/schema.py",
        correct="_PATIENCE_S = 600.0\n",
        wrong="_PATIENCE_S = 0.0\n",
        tests=(f"{OF_SCHEMA}::test_an_upgrade_that_has_to_wait_delays_no_other_session_for_long",),
    ),
    Bug(
        name="a schema from before the first release is taken for that of the first",
        file="onceload/schema.py",
        correct='version.get("compatible_from")',
        wrong='version.get("compatible_from", "0001")',
        tests=(f"{OF_SCHEMA}::test_a_schema_from_before_the_first_release_is_refused_and_not_touched",),
    ),
    Bug(
        name="a process id in the lock of a socket is not reused",
        file="onceload/embedded.py",
        correct="    forget_socket(sockets)\n",
        wrong="",
        tests=(f"{OF_EMBEDDED}::test_a_reused_process_id_is_not_taken_for_the_server",),
    ),
    Bug(
        name="a new home takes the socket of a server whose home was renamed",
        file="onceload/server_socket.py",
        correct="    if isinstance(try_to_connect(sockets), FileNotFoundError | ConnectionRefusedError):\n",
        wrong="    if sockets:\n",
        tests=(f"{OF_EMBEDDED}::test_the_socket_of_a_server_whose_home_was_renamed_is_not_taken_from_it",),
    ),
    Bug(
        name="the end of a command stops the server of another home at the same path",
        file="onceload/embedded.py",
        correct='    if not is_there(server.folder / "users.lock", users):\n        return\n',
        wrong="",
        tests=(f"{OF_EMBEDDED}::{_OTHER_HOME}",),
    ),
    Bug(
        name="a server whose home was renamed is stopped by no command",
        file="onceload/embedded.py",
        correct=" or process.cwd() == str(self.data):",
        wrong=":",
        tests=(f"{OF_EMBEDDED}::{_OTHER_HOME}",),
    ),
    Bug(
        name="a command does not say how it ended",
        file="onceload/cli.py",
        correct="    write_outcome(replace(outcome, message=with_file_named(outcome.message)), environment)\n",
        wrong="    pass\n",
        tests=("tests/integration/test_cli.py::test_a_command_writes_how_it_ended_into_the_file_that_it_is_given",),
    ),
    Bug(
        name="a command ends otherwise when the reader of its output has gone",
        file="onceload/streams.py",
        correct="            self.failure = error\n",
        wrong="            raise\n",
        tests=(f"{OF_STREAMS}::test_the_end_of_a_command_does_not_depend_on_the_reader_of_its_output",),
    ),
    Bug(
        name="a result that a full disk did not take counts as printed",
        file="onceload/streams.py",
        correct="return next((each for each in failures if not isinstance(each, BrokenPipeError)), None)",
        wrong="return None",
        tests=(f"{OF_STREAMS}::test_a_result_that_a_full_disk_did_not_take_is_asked_for_again",),
    ),
    Bug(
        name="what is printed goes to the next file or connection if a stream is closed",
        file="onceload/streams.py",
        correct="    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:\n",
        wrong="    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 0:\n",
        tests=(f"{OF_STREAMS}::test_a_command_needs_neither_output",),
    ),
    Bug(
        name="an error of a load under Spark that no retry changes is retried",
        file="plugins/onceload_airflow/failures.py",
        correct="return AirflowFailException(why) if is_final else AirflowException(why)",
        wrong="return AirflowException(why)",
        tests=(f"{OF_OUTCOMES}::test_wrong_use_fails_for_good_in_the_words_of_the_load",),
    ),
    Bug(
        name="a load that was killed fails for good",
        file="plugins/onceload_airflow/failures.py",
        correct='return AirflowException(f"The load ended',
        wrong='return AirflowFailException(f"The load ended',
        tests=(f"{OF_OUTCOMES}::test_a_load_that_was_killed_is_tried_again",),
    ),
    Bug(
        name="a task under Airflow counts an upgrade as a failed try",
        file="plugins/onceload_airflow/failures.py",
        correct="_UPGRADE_LOOKS_MAX = 60\n",
        wrong="_UPGRADE_LOOKS_MAX = 0\n",
        tests=(f"{OF_OUTCOMES}::test_a_task_waits_for_an_upgrade_without_a_try_and_fails_after_an_hour_with_one",),
    ),
    Bug(
        name="a batch of ordered records is published without its dead letters",
        file="spark_jobs/onceload_jobs/pipeline/declared.py",
        correct="return self.is_ordered_across_files or (is_of_all and not self.is_direct)",
        wrong="return not self.is_direct and (self.delivery.mode is Mode.ORDERED or is_of_all)",
        tests=(f"{OF_TURNS}::test_a_batch_of_ordered_records_with_a_dead_letter_publishes_nothing",),
    ),
    Bug(
        name="the first id after those that an ordered producer consumed is a duplicate",
        file="spark_jobs/onceload_jobs/work/by_producer.py",
        correct="(row.producer_id, 0, row.consumed_to)",
        wrong="(row.producer_id, 0, row.consumed_to + 1)",
        tests=(f"{OF_RECORD_PRODUCERS}::test_workers_decide_as_judge_does",),
    ),
    Bug(
        name="ids in the gaps of a producer are duplicates",
        file="spark_jobs/onceload_jobs/work/by_producer.py",
        correct="    if producer.order is Order.ORDERED:\n        # Nothing",
        wrong="    if True:\n        # Nothing",
        tests=(f"{OF_RECORD_PRODUCERS}::test_workers_decide_as_judge_does",),
    ),
    Bug(
        name="a transform sees the copies of a record",
        file="spark_jobs/onceload_jobs/work/dedup.py",
        correct="        yield from (piece.proof for piece in read)\n",
        wrong="        yield from read\n",
        tests=(f"{OF_ROWS_OF_A_RECORD}::test_a_transform_sees_each_record_once_and_need_not_tell_which",),
    ),
    Bug(
        name="a transform makes null what rows are found by",
        file="spark_jobs/onceload_jobs/batch/job.py",
        correct="if column.name in key else column",
        wrong="if False else column",
        tests=(f"{OF_ROWS_OF_A_RECORD}::test_a_transform_that_makes_null_what_rows_are_found_by_is_refused",),
    ),
    Bug(
        name="ids between those that a batch has are used up",
        file="spark_jobs/onceload_jobs/work/by_producer.py",
        correct=" | (ids[1:] != ids[:-1] + 1)\n",
        wrong="\n",
        tests=(f"{OF_RECORD_PRODUCERS}::test_an_id_that_was_jumped_over_is_late_or_lost_as_declared",),
    ),
    Bug(
        name="a commit does not check the ids that workers found new",
        file="spark_jobs/onceload_jobs/publish/commits.py",
        correct="offered=OFFERED if ids.used else None",
        wrong="offered=None",
        tests=(
            f"{OF_RECORD_PRODUCERS}::test_a_load_that_comes_between_the_look_for_new_records_and_the_commit_repeats_none",
        ),
    ),
    Bug(
        name="a commit does not check the business ids that workers found new",
        file="spark_jobs/onceload_jobs/publish/commits.py",
        correct="        offered=OFFERED if ids.used else None,\n        offered_messages=ids.messages",
        wrong="        offered=OFFERED if ids.used else None,\n        offered_messages=None",
        tests=(f"{OF_BUSINESS_IDS}::test_ids_that_another_load_records_before_the_commit_are_left_out",),
    ),
    Bug(
        name="records of one business id are in several buckets",
        file="spark_jobs/onceload_jobs/work/buckets.py",
        correct="        hashes = _mixed(hashes * np.uint64(31)",
        wrong="        hashes = _mixed(np.arange(rows.num_rows, dtype=np.uint64) + hashes * np.uint64(31)",
        tests=("tests/unit/test_new_ids.py::test_each_row_is_in_one_bucket_and_all_rows_of_an_id_in_the_same",),
    ),
    Bug(
        name="a kept batch that was overtaken holds its files",
        file="spark_jobs/onceload_jobs/load/staged/kept_batch.py",
        correct="            batches.give_up(kept)\n            raise NothingKept",
        wrong=(
            "            if not isinstance(error, AlreadyConsumed):\n                batches.give_up(kept)\n"
            "            raise NothingKept"
        ),
        tests=(
            "tests/loads/test_kept.py::test_a_kept_batch_some_of_whose_records_are_loaded_from_another_file_is_given_up",
        ),
    ),
    Bug(
        name="a late record undoes a later one of its own producer",
        file="spark_jobs/onceload_jobs/publish/merge.py",
        correct="IS DISTINCT FROM {row}.{PRODUCER_ID} OR there.{SEQUENCE} < {row}.{SEQUENCE}",
        wrong="IS DISTINCT FROM {row}.{PRODUCER_ID} OR true",
        tests=(f"{OF_RECORD_PRODUCERS}::test_a_late_record_takes_no_key_from_a_later_one_of_its_producer",),
    ),
    Bug(
        name="a record takes no key from another producer",
        file="spark_jobs/onceload_jobs/publish/merge.py",
        correct='return f"there.{PRODUCER_ID} IS DISTINCT FROM {row}.{PRODUCER_ID}',
        wrong='return f"false',
        tests=(
            f"{OF_RECORD_PRODUCERS}::test_a_late_record_takes_a_key_from_another_producer_whatever_its_own_did_before",
        ),
    ),
    Bug(
        name="a merge takes any of several rows of one key that one record makes",
        file="spark_jobs/onceload_jobs/publish/merge.sql",
        correct="HAVING count(*) > 1 LIMIT 1",
        wrong="HAVING false LIMIT 1",
        tests=(f"{OF_ROWS_OF_A_RECORD}::test_a_merge_refuses_several_rows_of_one_key_that_one_record_makes",),
    ),
)

OF_TARGETS = "tests/loads/test_targets.py"
TARGET_BUGS = (
    Bug(
        name="a claim takes an id that a failover has given to another producer",
        file=GUARDS,
        correct="if name is not None and (knowledge is None or knowledge.state.name != name):",
        wrong="if False:",
        tests=(f"{OF_CLAIMS}::test_a_claim_with_the_name_of_another_producer_is_refused",),
    ),
    Bug(
        name="rows that the database did not write are recorded as loaded",
        file=COMMIT,
        correct="    refuse_other_rows(commit, written)\n",
        wrong="",
        tests=(f"{OF_COMMITS}::test_rows_that_the_database_did_not_write_are_not_recorded_as_loaded",),
    ),
    Bug(
        name="rows that a retry did not write are recorded as loaded",
        file=COMMIT,
        correct="    refuse_other_rows(settlement, written)\n",
        wrong="",
        tests=(f"{OF_TARGETS}::test_a_retried_record_that_a_trigger_discards_stays_in_quarantine",),
    ),
    Bug(
        name="rows given to COPY count as written",
        file="spark_jobs/onceload_jobs/write/binary_copy.py",
        correct="    return copy_encoded(connection, _encoded(rows, columns), table=table, names=names)\n",
        wrong=(
            "    copy_encoded(connection, _encoded(rows, columns), table=table, names=names)\n"
            "    return int(rows.num_rows)\n"
        ),
        tests=(f"{OF_TARGETS}::test_rows_that_a_trigger_discards_are_not_recorded_as_loaded",),
    ),
    Bug(
        name="rows that a trigger deletes again count as written",
        file="spark_jobs/onceload_jobs/write/target.py",
        correct="        return rows - (after.deleted - self.before.deleted)\n",
        wrong="        return rows\n",
        tests=(OF_TARGETS,),
    ),
    Bug(
        name="a load does not wait for triggers that wait for the commit",
        file="spark_jobs/onceload_jobs/write/target.py",
        correct='        run(connection, "SET CONSTRAINTS ALL IMMEDIATE")\n',
        wrong="",
        tests=(OF_TARGETS,),
    ),
    Bug(
        name="triggers that came after the look are not counted",
        file="spark_jobs/onceload_jobs/write/target.py",
        correct="    if after.has_triggers:\n",
        wrong="    if self.before.has_triggers:\n",
        tests=(OF_TARGETS,),
    ),
    Bug(
        name="a server that does not count what triggers delete is believed",
        file="spark_jobs/onceload_jobs/write/target.py",
        correct="        if not after.is_counted:\n",
        wrong="        if False:\n",
        tests=(OF_TARGETS,),
    ),
    Bug(
        name="a target that was altered since the load began is not looked at again",
        file="spark_jobs/onceload_jobs/write/target.py",
        correct="        after = self._now(connection)\n        if after.has_triggers:\n",
        wrong="        after = self.before\n        if after.has_triggers:\n",
        tests=(f"{OF_TARGETS}::test_a_partition_that_is_attached_just_before_the_rows_takes_no_commit",),
    ),
    Bug(
        name="a table may be altered between the look at it and its rows",
        file="spark_jobs/onceload_jobs/write/target.py",
        correct="    _lock(connection, table)\n",
        wrong="",
        tests=(f"{OF_TARGETS}::test_no_table_is_altered_between_the_look_at_it_and_its_rows",),
    ),
    Bug(
        name="another kind of table may refuse rows before it is looked at",
        file="spark_jobs/onceload_jobs/write/target.py",
        correct="        before = refuse_altered(connection, table, columns=columns, lineage=lineage)\n",
        wrong="        before = _Fit(types={}, generated=(), deleted=0, has_triggers=False, is_counted=True)\n",
        tests=(OF_TARGETS,),
    ),
    Bug(
        name="the types of columns are looked at only when a load begins",
        file="spark_jobs/onceload_jobs/write/target.py",
        correct="            _check_columns(table, wanted, fit.types)\n",
        wrong="",
        tests=(f"{OF_TARGETS}::test_a_column_that_is_altered_during_a_load_takes_no_commit",),
    ),
    Bug(
        name="a stage is made like a table that was altered since the load began",
        file="spark_jobs/onceload_jobs/batch/stage.py",
        correct="    check_copy(holder, target, stage.rows, columns=stage.columns)\n",
        wrong="",
        tests=(f"{OF_TARGETS}::test_a_column_that_is_altered_during_a_load_takes_no_commit",),
    ),
    Bug(
        name="a merge compares keys with a column of another type",
        file="spark_jobs/onceload_jobs/publish/merge.py",
        correct="    refuse_altered(connection, table_name(target), columns=columns, lineage=target.lineage)\n",
        wrong="",
        tests=(f"{OF_KEPT}::test_a_batch_is_published_only_into_columns_of_the_types_that_it_was_staged_for",),
    ),
    Bug(
        name="business ids are deleted when they are not declared for a while",
        file="dedup_core/onceload_core/declaration.py",
        correct="    return bool(declared) and declared != remembered\n",
        wrong="    return declared != remembered\n",
        tests=(f"{OF_DECLARATIONS}::test_business_ids_go_on_with_the_same_columns_or_begin_again",),
    ),
    Bug(
        name="the window of business ids ends when they are not declared for a while",
        file=LEDGER_SQL,
        correct="       message_keep_days = coalesce(nullif(:message_keep_days, 0), message_keep_days),\n",
        wrong="       message_keep_days = :message_keep_days,\n",
        tests=(
            f"{OF_VERSIONS}"
            "::test_business_ids_are_remembered_for_their_window_although_they_are_not_declared_for_a_while",
        ),
    ),
    Bug(
        name="the first half of a loaded file is a new generation",
        file="spark_jobs/onceload_jobs/files/fingerprints.py",
        correct="    return seen.end == EDGE_BYTES and seen.marks.head == fingerprint.stream.head\n",
        wrong="    return False\n",
        tests=(f"{OF_LOADS}::test_a_file_that_is_uploaded_again_begins_a_generation_only_with_other_content",),
    ),
    Bug(
        name="a file that is empty for a moment is a new generation",
        file="spark_jobs/onceload_jobs/plan/file_state.py",
        correct="                return Note(name=name, reason=_EMPTY, is_settled=True)\n",
        wrong="                pass\n",
        tests=(f"{OF_LOADS}::test_a_file_that_is_uploaded_again_begins_a_generation_only_with_other_content",),
    ),
    Bug(
        name="verify compares values with columns of other types",
        file="spark_jobs/onceload_jobs/verify/values.py",
        correct=" or _has_other_columns(declared, view, findings)",
        wrong="",
        tests=("tests/loads/test_verify.py::test_a_column_of_another_type_is_one_difference",),
    ),
    Bug(
        name="only rules that replace are refused",
        file="spark_jobs/onceload_jobs/write/target.sql",
        correct="AND ev_type <> '1') AS rule",
        wrong="AND is_instead AND ev_type <> '1') AS rule",
        tests=(OF_TARGETS,),
    ),
    Bug(
        name="a merge goes by an index that ON CONFLICT does not take",
        file="spark_jobs/onceload_jobs/write/target.sql",
        correct="AND indpred IS NULL AND indexprs IS NULL",
        wrong="AND indpred IS NULL",
        tests=(OF_TARGETS,),
    ),
    Bug(
        name="a merge does not look for keys that a trigger discards",
        file="spark_jobs/onceload_jobs/publish/merge.py",
        correct=" - merge.unwritten(written)\n",
        wrong="\n",
        tests=(f"{OF_TARGETS}::test_a_merge_counts_the_keys_that_a_trigger_discards",),
    ),
    Bug(
        name="an unlogged table is a target",
        file="spark_jobs/onceload_jobs/write/target.py",
        correct='if row.persistence != "p":',
        wrong='if row.persistence == "t":',
        tests=(f"{OF_TARGETS}::test_a_table_whose_rows_are_not_those_of_the_commit_alone_is_not_a_target",),
    ),
    Bug(
        name="partitions of a target are not looked at",
        file="spark_jobs/onceload_jobs/write/target.sql",
        correct="pg_partition_tree(to_regclass(:table)))\n ORDER BY 1",
        wrong="pg_partition_tree(to_regclass(:table)) WHERE false)\n ORDER BY 1",
        tests=(f"{OF_TARGETS}::test_a_table_whose_rows_are_not_those_of_the_commit_alone_is_not_a_target",),
    ),
)

OF_BROKEN_FILES = "tests/loads/test_broken_files.py"
OF_NAMES = "tests/loads/test_names.py"
UNCLOSED = f"{OF_BROKEN_FILES}::test_a_quote_that_is_not_closed_in_all_that_a_record_may_have_needs_a_person"
NO_TEXT = f"{OF_BROKEN_FILES}::test_a_file_that_is_not_text_in_lines_is_not_consumed_at_all"
GOES_ON = (
    "tests/loads/test_changed_meanwhile.py::test_a_sealed_last_line_that_goes_on_while_it_is_read_is_not_a_record_yet"
)

FILE_BUGS = (
    Bug(
        name="a load waits for the end of a quote as long as the file is there",
        file="spark_jobs/onceload_jobs/read/parts.py",
        correct="    if rest.size < _held_max(source):\n",
        wrong="    if True:\n",
        tests=(UNCLOSED,),
    ),
    Bug(
        name="the second of two quotes is reported as the one that opens",
        file="spark_jobs/onceload_jobs/formats/csv/dialect.py",
        correct="opening = quotes[opens & (",
        wrong="opening = quotes[opens | (",
        tests=("tests/unit/sources/test_csv.py::test_an_open_quote_is_found_wherever_the_blocks_are_cut",),
    ),
    Bug(
        name="bad files of a call that was killed after its commit are never reported",
        file="spark_jobs/onceload_jobs/load/report.py",
        correct="if outcome.has_quarantined else ()",
        wrong="if counts.quarantined else ()",
        tests=(OF_NOTHING_GOOD,),
    ),
    Bug(
        name="a run that accepts differences deletes the rows of an emptied file",
        file="plugins/onceload_airflow/operators.py",
        correct="publishes = self.publishes and not accepts_differences(context)",
        wrong="publishes = self.publishes",
        also=(("is_replacing(context), **how)", "is_replacing(context), **how, accepts_differences=True)"),),
        tests=(OF_OUTCOMES,),
    ),
    Bug(
        name="a run whose batch is still staged reports success",
        file="plugins/onceload_airflow/operators.py",
        correct="        if found.is_held:\n            raise AirflowFailException",
        wrong="        if False:\n            raise AirflowFailException",
        tests=(OF_OUTCOMES,),
    ),
    Bug(
        name="a report fails for files of another pipeline in its DAG",
        file="plugins/onceload_airflow/operators.py",
        correct="if each.file_as_declared == self.file_as_declared)",
        wrong="if each.file_as_declared)",
        tests=("tests/dags/test_two_pipelines.py",),
    ),
    Bug(
        name="records that are all bad are consumed piece by piece without a word",
        file="spark_jobs/onceload_jobs/read/bad_records.py",
        correct="    if is_judged or sum(bad.values()) < NOTHING_GOOD_MIN:\n",
        wrong="    if True:\n",
        tests=(OF_NOTHING_GOOD,),
    ),
    Bug(
        name="a sealed last line is taken though it goes on",
        file="spark_jobs/onceload_jobs/read/checked_parts.py",
        correct="        check_tail(chunk, part)\n        yield",
        wrong="        yield",
        tests=(GOES_ON,),
    ),
    Bug(
        name="a sealed last line of a packed file is taken though it goes on",
        file="spark_jobs/onceload_jobs/read/checked_parts.py",
        correct="    check_tail(chunk, last.part)\n",
        wrong="",
        tests=(GOES_ON,),
    ),
    Bug(
        name="a sealed last line is committed though it went on since it was read",
        file="spark_jobs/onceload_jobs/work/load_delivery.py",
        correct="                check_tail(each.chunk, each.part)\n",
        wrong="                pass\n",
        tests=(OF_CHANGED_FILES,),
    ),
    Bug(
        name="a packed last line is published though it went on since it was staged",
        file="spark_jobs/onceload_jobs/load/staged/overtaking.py",
        correct="advance.size is not None if is_compressed(chunk.url) else ",
        wrong="",
        tests=(OF_CHANGED_FILES,),
    ),
    Bug(
        name="a kept batch is published though a sealed last line went on since it was staged",
        file="spark_jobs/onceload_jobs/load/staged/kept_batch.py",
        correct="for end in opened.publish_input.sealed if goes_on(end, declared.source)",
        wrong="for end in opened.publish_input.sealed if False",
        tests=(f"{OF_KEPT}::test_a_kept_batch_with_a_sealed_last_line_that_went_on_is_not_published",),
    ),
    Bug(
        name="a quote that is open at the end of a sealed file swallows the lines behind it",
        file="spark_jobs/onceload_jobs/read/parts.py",
        correct='    is_open = ends.open_quote is not None and b"\\n" in held\n',
        wrong="    is_open = False\n",
        tests=(OF_BROKEN_FILES,),
    ),
    Bug(
        name="a dictionary inside a struct counts as it is stored",
        file="spark_jobs/onceload_jobs/formats/plain_values.py",
        correct="    if pa.types.is_nested(array.type):\n        return _OFFSET_BYTES",
        wrong="    if _is_list(array.type):\n        return _OFFSET_BYTES",
        tests=(OF_PARQUET,),
    ),
    Bug(
        name="a sealed last line is published though it went on since it was staged",
        file="spark_jobs/onceload_jobs/load/staged/overtaking.py",
        correct="for chunk, end in ends.items() if end is not None and goes_on(end, declared.source)}",
        wrong="for chunk, end in ends.items() if False}",
        tests=(
            "tests/loads/test_changed_meanwhile.py"
            "::test_a_sealed_last_line_that_goes_on_before_its_batch_is_published_is_left_out",
        ),
    ),
    Bug(
        name="a file that is not text is read as text",
        file="spark_jobs/onceload_jobs/formats/signatures.py",
        correct="        if begins.startswith(signature):\n",
        wrong="        if False:\n",
        tests=(NO_TEXT,),
    ),
    Bug(
        name="a file whose lines end in carriage returns waits for a newline",
        file="spark_jobs/onceload_jobs/formats/signatures.py",
        correct="    if _ends_in_returns(begins):\n",
        wrong="    if False:\n",
        tests=(NO_TEXT,),
    ),
    Bug(
        name="the first load does not report a last line that waits",
        file="spark_jobs/onceload_jobs/plan/plan.py",
        correct="    yield from open_ends(found.values())\n",
        wrong="",
        tests=("tests/loads/test_load.py::test_each_load_reports_a_last_line_that_waits_for_its_newline",),
    ),
    Bug(
        name="a link is loaded as a file of its own",
        file="spark_jobs/onceload_jobs/plan/plan.py",
        correct="    if not listing.names_of_one:\n",
        wrong="    if True:\n",
        tests=(f"{OF_NAMES}::test_a_file_is_loaded_once_whatever_links_lead_to_it",),
    ),
    Bug(
        name="verify takes the other names of a file for files that are not loaded",
        file="spark_jobs/onceload_jobs/verify/files.py",
        correct=" and listed.name not in others",
        wrong="",
        tests=(f"{OF_NAMES}::test_a_file_is_loaded_once_whatever_links_lead_to_it",),
    ),
    Bug(
        name="a link that comes later takes the place of a loaded file",
        file="spark_jobs/onceload_jobs/plan/plan.py",
        correct="        chosen = next(loaded, (registered or group)[0]).name\n",
        wrong="        chosen = group[0].name\n",
        tests=(f"{OF_NAMES}::test_a_link_that_comes_later_takes_the_place_of_no_loaded_file",),
    ),
    Bug(
        name="a rewritten file is loaded by the name of a link",
        file="spark_jobs/onceload_jobs/plan/plan.py",
        correct="    if not name.is_link or state.fingerprint is None",
        wrong="    if state.fingerprint is None",
        tests=(f"{OF_NAMES}::test_a_rewritten_file_is_not_loaded_by_the_name_of_a_link",),
    ),
    Bug(
        name="a symbolic link that leads to another file keeps that from being loaded",
        file="spark_jobs/onceload_jobs/plan/plan.py",
        correct="not in (Resemblance.SHORTER, Resemblance.CHANGED)\n",
        wrong="is not None\n",
        tests=(f"{OF_NAMES}::test_a_symbolic_link_that_leads_to_another_file_by_now_gives_way_to_it",),
    ),
    Bug(
        name="a file that cannot be named needs no person",
        file="spark_jobs/onceload_jobs/files/notes.py",
        correct='Nothing of it is loaded. Rename it", needs_a_person=True)',
        wrong='Nothing of it is loaded. Rename it")',
        tests=(f"{OF_NAMES}::test_a_name_that_the_ledger_cannot_keep_needs_a_person_at_each_load",),
    ),
    Bug(
        name="a loaded file that became a folder is forgotten",
        file="spark_jobs/onceload_jobs/plan/plan.py",
        correct="    for name in listing.folders:\n",
        wrong="    for name in ():\n",
        tests=(f"{OF_NAMES}::test_a_loaded_file_that_is_a_folder_now_is_noted",),
    ),
    Bug(
        name="null is loaded for a declared column that a Parquet file lacks",
        file="spark_jobs/onceload_jobs/formats/typed_files.py",
        correct="if column.name not in names] if names or",
        wrong="if column.name not in names and column.not_null] if names or",
        tests=(f"{OF_BROKEN_FILES}::test_a_parquet_file_that_lacks_a_declared_column_is_a_note_and_replaces_no_row",),
    ),
    Bug(
        name="a line of JSON with none of the declared fields becomes a row of nulls",
        file="spark_jobs/onceload_jobs/formats/jsonl/rows.py",
        correct="if found.raw.keys().isdisjoint(self.declared):",
        wrong="if not self.declared:",
        tests=(f"{OF_NOTHING_GOOD}::test_a_file_of_json_lines_of_another_kind_is_refused_and_replaces_no_row",),
    ),
    Bug(
        name="a line of JSON with none of the declared fields becomes a row of nulls in the fast tier",
        file="spark_jobs/onceload_jobs/formats/jsonl/rows.py",
        correct="doubted=cast.doubted | self._without_value(cast))",
        wrong="doubted=cast.doubted)",
        tests=(f"{OF_JSON_LINES}::test_a_line_with_none_of_the_declared_fields_is_bad_alone",),
    ),
)

DIRTY_BUGS = (
    Bug(
        name="a name twice passes in lines that are taken apart",
        file="spark_jobs/onceload_jobs/formats/jsonl/slices.py",
        correct='whole=is_read & (kept == [line.count(b":") for line in lines])',
        wrong="whole=is_read",
        tests=(OF_DIRTY_LINES,),
    ),
    Bug(
        name="a name twice passes in lines with many undeclared fields",
        file="spark_jobs/onceload_jobs/formats/jsonl/levels.py",
        correct="slices.whole[at] = has_each_name_once(objects[at])",
        wrong="slices.whole[at] = bool(names_in([objects[at]]))",
        tests=(f"{OF_SOURCES}/test_dirty_lines.py::test_lines_are_read_alike_among_many",),
    ),
    Bug(
        name="a line that is not UTF-8 is taken apart",
        file="spark_jobs/onceload_jobs/formats/lines.py",
        correct="np.where(without[group], starts, self.ends[group])",
        wrong="self.ends[group]",
        tests=(OF_DIRTY_LINES,),
    ),
    Bug(
        name="a line with none of the declared fields becomes a row of nulls if it is taken apart",
        file="spark_jobs/onceload_jobs/formats/jsonl/rows.py",
        correct="doubted |= ~np.any([apart",
        wrong="doubted &= np.any([apart",
        tests=(f"{OF_JSON_LINES}::test_a_line_with_none_of_the_declared_fields_is_bad_alone",),
    ),
    Bug(
        name="an undeclared field passes in lines that are taken apart",
        file="spark_jobs/onceload_jobs/formats/jsonl/rows.py",
        correct="if self.unknown_fields is UnknownFields.FAIL or not self._may_be_added(name):",
        wrong="if not self._may_be_added(name):",
        tests=(OF_DIRTY_LINES,),
    ),
    Bug(
        name="a field that cannot become a column is added from lines that are taken apart",
        file="spark_jobs/onceload_jobs/formats/jsonl/rows.py",
        correct="is UnknownFields.FAIL or not self._may_be_added(name):",
        wrong="is UnknownFields.FAIL:",
        tests=(OF_DIRTY_LINES,),
    ),
    Bug(
        name="an undeclared field of a bad line is added",
        file="spark_jobs/onceload_jobs/formats/jsonl/rows.py",
        correct="kinds_of(raw, ~doubted)",
        wrong="kinds_of(raw, raw.present)",
        tests=(OF_DIRTY_LINES,),
    ),
    Bug(
        name="a value that is not an object makes the fields inside it null",
        file="spark_jobs/onceload_jobs/formats/jsonl/levels.py",
        correct="whole &= below[name].whole & ~splitter",
        wrong="whole &= ~splitter",
        tests=(f"{OF_SOURCES}/test_dirty_lines.py::test_every_tier_reads_fields_in_objects_as_the_slow_one_does",),
    ),
    Bug(
        name="an undeclared field inside an object passes in lines that are taken apart",
        file="spark_jobs/onceload_jobs/formats/jsonl/levels.py",
        correct=" & ~splitter.refused(below[name])",
        wrong="",
        tests=(f"{OF_SOURCES}/test_dirty_lines.py::test_every_tier_reads_fields_in_objects_as_the_slow_one_does",),
    ),
    Bug(
        name="the path of a column may change without a new version",
        file="spark_jobs/onceload_jobs/plan/declaration_texts.py",
        correct="""' not null' if each.not_null else ''}{_path(each)}\"""",
        wrong="""' not null' if each.not_null else ''}\"""",
        tests=("tests/unit/pipeline_file/test_paths.py",),
    ),
    Bug(
        name="the path of an id may change while something is loaded",
        file="spark_jobs/onceload_jobs/plan/declaration_texts.py",
        correct="_widest(column.type) + _path(column)",
        wrong="_widest(column.type)",
        tests=("tests/unit/pipeline_file/test_paths.py",),
    ),
    Bug(
        name="an array of JSON becomes the text of its brackets",
        file="spark_jobs/onceload_jobs/formats/jsonl/texts.py",
        correct='refused = (raw.firsts == ord("{")) | (raw.firsts == ord("["))',
        wrong='refused = raw.firsts == ord("{")',
        tests=(OF_DIRTY_LINES,),
    ),
    Bug(
        name="a number without quotes becomes bytes",
        file="spark_jobs/onceload_jobs/formats/jsonl/texts.py",
        correct="if column_type.kind not in WRITTEN_BARE:",
        wrong="if column_type.is_array:",
        tests=(OF_DIRTY_LINES,),
    ),
    Bug(
        name="an escape in a text is loaded as it is written",
        file="spark_jobs/onceload_jobs/formats/jsonl/texts.py",
        correct='escaped = is_string & (raw.counts(b"\\\\") > 0)',
        wrong="escaped = is_string & raw.nulls",
        tests=(OF_DIRTY_LINES,),
    ),
    Bug(
        name="the fraction of a number is cut off for an integer",
        file="spark_jobs/onceload_jobs/formats/casts.py",
        correct="return numerics(texts, _WITH_FRACTION).cast(target)",
        wrong="return numerics(texts, _WITH_FRACTION).cast(target, safe=False)",
        tests=(OF_CASTS,),
    ),
    Bug(
        name="a fraction finer than a microsecond is cut off",
        file="spark_jobs/onceload_jobs/formats/casts.py",
        correct="pc.round(pc.multiply(parsed, 1_000_000.0))",
        wrong="pc.floor(pc.multiply(parsed, 1_000_000.0))",
        tests=(OF_CASTS,),
    ),
    Bug(
        name="a zone is ignored where only some times have one",
        file="spark_jobs/onceload_jobs/formats/casts.py",
        correct="seconds = in_utc if target.tz else",
        wrong="seconds = in_utc if not target.tz else",
        tests=(OF_CASTS,),
    ),
    Bug(
        name="jsonb with NUL goes to the server",
        file="spark_jobs/onceload_jobs/formats/casts.py",
        correct='_SUSPECT_JSON = r"\\\\u0000|',
        wrong='_SUSPECT_JSON = r"\\\\u0001|',
        tests=(OF_CASTS,),
    ),
    Bug(
        name="a text that is not JSON goes to the server as jsonb",
        file="spark_jobs/onceload_jobs/formats/casts.py",
        correct="        if not have_each_name_once(texts[at",
        wrong="        if not have_each_name_once(texts[:0][at",
        tests=(OF_CASTS,),
    ),
    Bug(
        name="a carriage return outside of quotes ends a record",
        file="spark_jobs/onceload_jobs/formats/csv/rows.py",
        correct="misread |= _with_bare_returns(lines, quotes)",
        wrong="misread |= lines.too_long",
        tests=(f"{OF_SOURCES}/test_csv.py::test_records_are_read_alike_among_many",),
    ),
    Bug(
        name="a record with too few values gives its place to the next one",
        file="spark_jobs/onceload_jobs/formats/csv/rows.py",
        correct="refused.append(row.number - 1)",
        wrong="refused.append(row.number - 2)",
        tests=(f"{OF_SOURCES}/test_csv.py::test_a_malformed_record_is_bad_alone",),
    ),
    Bug(
        name="a byte behind an escape at the end of a slab is counted as if nothing was before it",
        file="spark_jobs/onceload_jobs/formats/csv/dialect.py",
        correct="return bool(slab) and self._place in _USUAL and (",
        wrong="return bool(slab) and (",
        tests=(OF_SLABS,),
    ),
)

QUARANTINE_BUGS = (
    Bug(
        name="a file of which every record is bad is consumed without a word",
        file="spark_jobs/onceload_jobs/read/bad_records.py",
        correct="    if len(records.bad) < NOTHING_GOOD_MIN:",
        wrong="    if records.bad:",
        tests=(f"{OF_NOTHING_GOOD}::test_a_file_without_a_good_record_is_refused_and_the_others_load",),
    ),
    Bug(
        name="many files of one bad record each are consumed without a word",
        file="spark_jobs/onceload_jobs/read/bad_records.py",
        correct="least = NOTHING_GOOD_MIN if good else 1",
        wrong="least = NOTHING_GOOD_MIN",
        tests=(f"{OF_NOTHING_GOOD}::test_files_of_one_record_each_are_judged_together",),
    ),
    Bug(
        name="a packed file goes on behind a piece that was refused",
        file="spark_jobs/onceload_jobs/read/new_content.py",
        correct="            refused.update(names)",
        wrong="            refused = refused | names.keys()",
        tests=("tests/loads/test_nothing_good.py::test_a_packed_file_stops_at_a_piece_without_a_good_record",),
    ),
    Bug(
        name="a compressed file of which the rest was refused passes for read, if its worker died before the report",
        file="spark_jobs/onceload_jobs/load/offering.py",
        correct="is_read = (state.size or 0) >= self._sizes[producer_id]",
        wrong="is_read = spans.overlaps(state.consumed) or bool(state.size)",
        tests=(f"{OF_NOTHING_GOOD}::test_a_refused_file_is_noted_also_if_the_worker_died_before_it_reported_it",),
    ),
    Bug(
        name="a value with quotes in it makes a reason of its own",
        file="dedup_core/onceload_core/postgres/quarantine.py",
        correct=r"""'(?:[^'\\]|\\.)*'|""",
        wrong=r"""'[^'\\]*'|""",
        tests=("tests/unit/sources/test_reasons.py::test_refused_values_are_of_one_kind",),
    ),
    Bug(
        name="a quarantined record is shown with a line of a file that was rewritten",
        file="onceload/quarantine_lines.py",
        correct="            if found == raw:",
        wrong="            if len(found) == len(raw):",
        tests=(f"{OF_QUARANTINE}::test_records_are_listed_with_their_lines_while_the_file_holds_them",),
    ),
    Bug(
        name="the sessions of retries are never dropped",
        file="spark_jobs/onceload_jobs/recover/retry.py",
        correct='session_of(batch, f"retry by {by}" if by else "retry")',
        wrong="batch",
        tests=(f"{OF_QUARANTINE}::test_the_sessions_of_retries_and_discards_go_like_those_of_loads",),
    ),
    Bug(
        name="the sessions of discards are never dropped",
        file="onceload/settling.py",
        correct='session_of(batch, f"discard by {by}")',
        wrong='f"{batch} discard by {by}"',
        tests=(f"{OF_QUARANTINE}::test_the_sessions_of_retries_and_discards_go_like_those_of_loads",),
    ),
    Bug(
        name="a CSV record is retried though a load refuses its file for a column that it lacks",
        file="spark_jobs/onceload_jobs/recover/stored_fields.py",
        correct="read_checked_header(listed.url, declared.columns, fields.source.csv, sealed=True)",
        wrong="read_checked_header(listed.url, (), fields.source.csv, sealed=True)",
        tests=(
            f"{OF_RETRIES}::test_a_csv_record_without_a_column_that_is_declared_now_stays_held_as_a_load_refuses_it",
        ),
    ),
    Bug(
        name="a row of Parquet is retried though it was stored without a column that is declared now",
        file="spark_jobs/onceload_jobs/recover/stored_fields.py",
        correct="if name not in stored and name not in may_lack]",
        wrong="if name not in stored and not stored]",
        tests=(
            f"{OF_RETRIES}"
            "::test_a_row_of_parquet_without_a_column_that_is_declared_now_stays_held_until_it_has_a_value",
        ),
    ),
    Bug(
        name="a retry sends fixed records of an ordered producer to a file that counts them as duplicates",
        file="dedup_core/onceload_core/advice.py",
        correct='terms.get(ORDER) != "ordered"',
        wrong='terms.get(ORDER) != "any"',
        tests=(f"{OF_ADVICE}::test_rows_of_a_program_are_given_again_and_late_rows_overwrite_none",),
    ),
)

SESSION_BUGS = (
    Bug(
        name="an error while COPY reads is taken for a cancelled query",
        file="spark_jobs/onceload_jobs/write/binary_copy.py",
        correct="if reader.failures:",
        wrong="if not reader.failures and reader.failures:",
        tests=(f"{OF_COPIES}::test_an_error_while_rows_are_encoded_is_the_error_of_the_copy",),
    ),
    Bug(
        name="the first signal that comes while COPY reads is lost",
        file="spark_jobs/onceload_jobs/write/binary_copy.py",
        correct="self.read = chunks.send ",
        wrong="self.read = lambda size: chunks.send(size) ",
        tests=(f"{OF_COPIES}::test_a_copy_ends_with_the_first_signal",),
    ),
    Bug(
        name="a load does not report that it waits for another one",
        file="spark_jobs/onceload_jobs/load/others.py",
        correct='context.report_waiting(f"another load ({held})" if held else "another load")',
        wrong="pass",
        tests=(f"{OF_PROGRESS}::test_a_load_reports_what_it_waits_for",),
    ),
    Bug(
        name="a load is cut off by the limit that its role has for a statement",
        file=CONNECTION_SQL,
        correct="set_config('statement_timeout', '0', false)",
        wrong="set_config('work_mem', '4MB', false)",
        tests=(f"{OF_LIMITS}::test_a_load_may_take_longer_than_its_role_lets_others",),
    ),
    Bug(
        name="a load is cut off by the limit that its role has for a transaction",
        file=CONNECTION_SQL,
        correct="set_config('transaction_timeout', '0', false)",
        wrong="set_config('work_mem', '4MB', false)",
        tests=(f"{OF_LIMITS}::test_a_load_may_take_longer_than_its_role_lets_others",),
    ),
    Bug(
        name="a server that lets no session in just now is taken for a wrong address",
        file="dedup_core/onceload_core/postgres/refusal.py",
        correct='_FINAL = ("22",',
        wrong='_FINAL = ("5", "22",',
        tests=(f"{OF_REFUSALS}::test_the_code_decides_whether_a_refusal_passes",),
    ),
    Bug(
        name="a server that refuses the user is called again forever",
        file="dedup_core/onceload_core/postgres/refusal.py",
        correct="libpq.PQreset(connection)",
        wrong="libpq.PQstatus(connection)",
        tests=(f"{OF_REFUSALS}::test_the_code_decides_whether_a_refusal_passes",),
    ),
    Bug(
        name="the refusal of a later server is final although the first may come back",
        file="dedup_core/onceload_core/postgres/refusal.py",
        correct=" and self._is_first_of(dsn)",
        wrong="",
        tests=(f"{OF_REFUSALS}::test_one_of_several_servers_that_is_down_may_be_the_right_one",),
    ),
    Bug(
        name="servers that are given by their IP count as one",
        file="dedup_core/onceload_core/postgres/refusal.py",
        correct='(asked.get("host") or asked.get("hostaddr", ""))',
        wrong='asked.get("host", "")',
        tests=(f"{OF_REFUSALS}::test_one_of_several_servers_that_is_down_may_be_the_right_one",),
    ),
)

OF_LOCAL = "tests/loads/test_local.py"
OF_ROW_GROUPS = "tests/loads/test_row_groups.py"
DAMAGED_ROW_GROUP = (
    f"{OF_ROW_GROUPS}::test_only_the_chunk_of_a_damaged_row_group_is_not_loaded_and_comes_once_it_is_whole"
)

ENGINE_BUGS = (
    Bug(
        name="local workers of a killed load go on",
        file="spark_jobs/onceload_jobs/executor/local.py",
        correct="    threading.Thread(target=_end_with_the_load, daemon=True).start()\n",
        wrong="",
        tests=("tests/loads/test_local.py::test_no_process_outlives_a_killed_load",),
    ),
    Bug(
        name="a part whose process dies is not tried again",
        file="spark_jobs/onceload_jobs/work/parts.py",
        correct="        return [self._as_try(part, number=tries + 1)] if tries < self._tries_max else ()\n",
        wrong="        return ()\n",
        tests=("tests/loads/test_local.py::test_another_process_goes_on_for_one_that_is_killed",),
    ),
    Bug(
        name="a file is blamed though all processes die",
        file="spark_jobs/onceload_jobs/executor/executor.py",
        correct="                            _check_lives(executor)\n",
        wrong="                            pass\n",
        tests=("tests/loads/test_local.py::test_a_load_whose_processes_always_die_blames_no_file",),
    ),
    Bug(
        name="a phase of a load that was interrupted never resumes",
        file="spark_jobs/onceload_jobs/load/report.py",
        correct="            self.switch_to(interrupted)\n",
        wrong="            pass\n",
        tests=("tests/unit/test_phases.py",),
    ),
    Bug(
        name="an item that a worker holds when it dies takes the next items with it",
        file="spark_jobs/onceload_jobs/executor/local.py",
        correct="            self._items.extendleft(reversed(process.given))\n",
        wrong="",
        tests=("tests/loads/test_local.py::test_another_process_goes_on_for_one_that_is_killed",),
    ),
    Bug(
        name="a call does not end while a process has nothing to do",
        file="spark_jobs/onceload_jobs/executor/local.py",
        correct="            process.give(*self._items.popleft())\n            self._working.append(process)\n",
        wrong="            self._working.append(process)\n",
        tests=("tests/unit/test_local_executor.py",),
    ),
    Bug(
        name="two calls take the same idle process",
        file="spark_jobs/onceload_jobs/executor/local.py",
        correct="            return self._idle.pop()\n        except IndexError:\n",
        wrong="            return self._idle.pop() if self._idle else _Process.started()\n        except KeyError:\n",
        tests=("tests/unit/test_local_executor.py",),
    ),
    Bug(
        name="a process takes its next item only when its outcome is read",
        file="spark_jobs/onceload_jobs/executor/local.py",
        correct=(
            "    threading.Thread(target=_receive, args=(link, messages), daemon=True).start()\n"
            "    function: Any = None\n"
            "    with suppress(OSError):\n"
            "        for message in iter(messages.get, None):\n"
        ),
        wrong=(
            "    function: Any = None\n"
            "    with suppress(OSError, EOFError):\n"
            "        for message in iter(link.recv_bytes, None):\n"
        ),
        tests=("tests/unit/test_local_executor.py",),
    ),
    Bug(
        name="an item of which Spark says nothing is forgotten",
        file="spark_jobs/onceload_jobs/executor/spark.py",
        correct="                if missing and size == 1:\n",
        wrong="                if missing and size == 1 and error is not None:\n",
        tests=("tests/unit/test_spark_executor.py",),
    ),
    Bug(
        name="a load that asks for a cluster does not use it",
        file="spark_jobs/onceload_jobs/load/settings.py",
        correct='f"--master {self.master}": self.master is not None,',
        wrong='f"--master {self.master}": self.master == "",',
        tests=("tests/loads/test_local.py::test_a_load_that_asks_for_spark_runs_there_whatever_its_size",),
    ),
    Bug(
        name="each row group counts as the end of its file",
        file="spark_jobs/onceload_jobs/read/checked_parts.py",
        correct="size = chunk.size if group is groups[-1] else None",
        wrong="size = chunk.size",
        tests=(DAMAGED_ROW_GROUP,),
    ),
    Bug(
        name="a file that lacks row groups gets an empty commit with each load",
        file="spark_jobs/onceload_jobs/plan/bundles.py",
        correct="if not groups and chunk.end is None and len(file.spans) > 1:",
        wrong="if not groups and chunk.end is None and len(file.spans) > 9:",
        tests=(DAMAGED_ROW_GROUP,),
    ),
    Bug(
        name="row groups overlap where a file is cut",
        file="spark_jobs/onceload_jobs/plan/bundles.py",
        correct="[*firsts[1:], chunk.end]",
        wrong="[None] * len(firsts)",
        tests=(f"{OF_ROW_GROUPS}::test_a_file_is_cut_between_row_groups_and_each_row_is_loaded_once",),
    ),
    Bug(
        name="a fixed session ends while row groups are not handed out yet",
        file="spark_jobs/onceload_jobs/plan/to_read.py",
        correct="return any(not taken",
        wrong="return False and any(not taken",
        tests=(f"{OF_ROW_GROUPS}::test_no_fixed_session_ends_before_all_row_groups_are_handed_out",),
    ),
    Bug(
        name="a worker holds one connection while it opens another",
        file="dedup_core/onceload_core/postgres/deliveries.py",
        correct="        _ = self._pipeline_id\n",
        wrong="",
        tests=("tests/integration/test_takeovers.py::test_a_worker_needs_one_connection",),
    ),
    Bug(
        name="a load stops the Spark of the program that called it",
        file="spark_jobs/onceload_jobs/work/spark/classic.py",
        correct="            yield cls(running, name, batch=batch)\n            return",
        wrong="            with running:\n                yield cls(running, name, batch=batch)\n            return",
        tests=("tests/loads/test_spark.py::test_a_spark_of_the_program_is_used_and_not_stopped",),
    ),
    Bug(
        name="a Spark that no master answers fails with an error about its next call",
        file="spark_jobs/onceload_jobs/work/spark/classic.py",
        correct="    except (PySparkException, Py4JJavaError):\n        return True\n",
        wrong="    except (PySparkException, Py4JJavaError):\n        return False\n",
        tests=("tests/loads/test_spark.py::test_a_spark_that_stops_right_after_its_start_is_reported",),
    ),
    Bug(
        name="a load that is to run in its worker is submitted to Spark",
        file="plugins/onceload_airflow/spark_submit.py",
        correct='if engine == "local":',
        wrong='if engine == "":',
        tests=(f"{OF_RUNS}::test_a_load_runs_on_the_spark_that_the_environment_or_the_connection_names",),
    ),
)

OF_STAGE_FOLDER = "tests/loads/test_stage_folder.py"
OF_SHARED_STAGE = "tests/loads/test_shared_stage.py"

EVENT_BUGS = (
    Bug(
        name="the message of an error, and with it values of records, is logged at the end of a load",
        file="spark_jobs/onceload_jobs/load/recorded.py",
        correct="reason=type(error).__name__",
        wrong="reason=str(error)",
        tests=(f"{OF_EVENTS}::test_a_load_that_fails_logs_the_kind_of_its_error",),
    ),
    Bug(
        name="what an audit found, and with it values of records, is logged",
        file="spark_jobs/onceload_jobs/quality/audit.py",
        correct="unmet=sum(not finding.success for finding in audit.findings),",
        wrong="unmet=[str(each) for each in audit.findings],",
        tests=(f"{OF_EVENTS}::test_a_kept_batch_is_staged_and_its_audit_is_logged_once",),
    ),
    Bug(
        name="a consumer that finds nothing logs each look",
        file="spark_jobs/onceload_jobs/load/recorded.py",
        correct="logging.INFO if plan.to_read else logging.DEBUG",
        wrong="logging.INFO",
        tests=(f"{OF_EVENTS}::test_a_load_that_finds_nothing_logs_nothing_at_info",),
    ),
    Bug(
        name="a rewind is logged before its commit, which may fail",
        file="dedup_core/onceload_core/postgres/rewind.py",
        correct="    done = replace(found, position=position, applied=True)\n    _log_rewound(done)\n",
        wrong="        done = replace(found, position=position, applied=True)\n        _log_rewound(done)\n",
        tests=("tests/loads/test_rewind.py::test_a_rewind_whose_commit_gets_no_answer_reports_that_it_is_unknown",),
    ),
    Bug(
        name="each failed try is logged as a dead letter",
        file="dedup_core/onceload_core/postgres/handing.py",
        correct="        if each.is_dead:\n",
        wrong="        if each.tries:\n",
        tests=("tests/integration/test_dead_letters.py::test_only_the_last_try_logs_a_dead_letter",),
    ),
    Bug(
        name="a batch that was given up before is logged as given up again",
        file="dedup_core/onceload_core/postgres/batches.py",
        correct='        for stage in stages:\n            event("audited_rows',
        wrong='        for stage in stages or [batch]:\n            event("audited_rows',
        tests=(f"{OF_EVENTS}::test_a_batch_that_is_given_up_is_logged_once_with_the_stage_that_is_dropped",),
    ),
)

SPOOL_BUGS = (
    Bug(
        name="rows whose bytes changed on the disk are copied",
        file="spark_jobs/onceload_jobs/batch/stage_folder.py",
        correct="    if size != block.size or checksum != block.checksum:\n",
        wrong="    if size != block.size:\n",
        tests=("tests/loads/test_stage_folder.py::test_a_piece_whose_rows_are_lost_or_changed_is_read_again",),
    ),
    Bug(
        name="a batch whose files vanish is not read again",
        file="spark_jobs/onceload_jobs/batch/stage_folder.py",
        correct="    except Unreadable as error:\n        raise BlockLost(folder.path) from error\n",
        wrong="    except ZeroDivisionError as error:\n        raise BlockLost(folder.path) from error\n",
        tests=("tests/loads/test_stage_folder.py::test_a_piece_whose_rows_are_lost_or_changed_is_read_again",),
    ),
    Bug(
        name="files of a live load are removed",
        file="spark_jobs/onceload_jobs/batch/folders.py",
        correct="fcntl.LOCK_EX | fcntl.LOCK_NB",
        wrong="fcntl.LOCK_UN",
        tests=(
            "tests/loads/test_stage_folder.py::test_a_killed_load_s_files_are_removed_by_the_next_and_those_of_a_live_one_stay",
        ),
    ),
    Bug(
        name="all tries of a task write to one file",
        file="spark_jobs/onceload_jobs/batch/stage_folder.py",
        correct="name=token_hex(8))",
        wrong='name="rows")',
        tests=(f"{OF_SHARED_STAGE}::test_a_task_that_runs_twice_writes_two_files_and_one_counts",),
    ),
    Bug(
        name="a worker takes a folder of the same name on another machine for that of its load",
        file="spark_jobs/onceload_jobs/batch/folders.py",
        correct="return (Path(self.path) / MARK).read_text() == self.token",
        wrong="return (Path(self.path) / MARK).exists()",
        tests=(f"{OF_SHARED_STAGE}::test_a_folder_of_the_same_name_on_another_machine_is_not_taken_for_it",),
    ),
    Bug(
        name="rows of a live load on another machine are removed",
        file="spark_jobs/onceload_jobs/batch/folders.py",
        correct="if now - other.stat().st_mtime > DEAD_AFTER_S:",
        wrong="if now - other.stat().st_mtime > 0:",
        tests=(f"{OF_SHARED_STAGE}::test_a_folder_is_swept_only_long_after_it_was_renewed",),
    ),
    Bug(
        name="a row that only the target refuses keeps its whole batch out",
        file="spark_jobs/onceload_jobs/publish/batch_road.py",
        correct="                    raise\n                savepoint.rollback()\n",
        wrong="                    raise\n                raise\n",
        tests=("tests/loads/test_stage_folder.py::test_a_row_that_only_the_target_refuses_goes_to_quarantine_alone",),
    ),
)


FAILOVER_BUGS = (
    Bug(
        name="rows that other workers get are not kept for them",
        file="spark_jobs/onceload_jobs/work/parts.py",
        correct="piece if self._reading.form.as_arrow else piece.without_content\n",
        wrong="piece.without_content\n",
        tests=(f"{OF_STAGE_FOLDER}::test_rows_with_undeclared_fields_are_handed_over_as_well",),
    ),
    Bug(
        name="rows that are lost while a refused one is searched end the load",
        file="spark_jobs/onceload_jobs/work/dedup.py",
        correct=(
            "        with self._reading_lost_rows_again():\n"
            "            yield from _parts_of(self.task.folder, self.look(self.task.of_rows, bucket))\n"
        ),
        wrong="        yield from _parts_of(self.task.folder, self.look(self.task.of_rows, bucket))\n",
        tests=(f"{OF_STAGE_FOLDER}::test_a_refused_row_is_found_again_if_what_was_read_is_lost",),
    ),
    Bug(
        name="a role may have commits answered before they are on disk and on the standby",
        file=CONNECTION_SQL,
        correct="nullif(nullif(current_setting('synchronous_commit'), 'off'), 'local')",
        wrong="current_setting('synchronous_commit')",
        tests=(f"{IN_POSTGRES}::test_a_commit_is_answered_no_earlier_than_the_server_allows_by_default",),
    ),
    Bug(
        name="an epoch that a failover lost is given out again",
        file=BOARD_SQL,
        correct="CAST(1000000 * extract(epoch FROM clock_timestamp()) AS bigint)",
        wrong="1",
        tests=(f"{OF_FAILOVERS}::test_a_worker_of_a_life_that_a_failover_lost_commits_nothing",),
    ),
)

DRAFT_BUGS = (
    Bug(
        name="a draft makes floats of decimals",
        file="onceload/draft/types.py",
        correct="    if seen.is_double and not seen.kinds <= _EXACT:\n",
        wrong="    if seen.is_double:\n",
        tests=(f"{OF_DRAFTS}/test_types.py::test_the_type_of_json_values",),
    ),
    Bug(
        name="a draft leaves no room for the digits that it has seen",
        file="onceload/draft/types.py",
        correct="precision=min(PRECISION_MAX, scale + whole)",
        wrong="precision=max(scale, 10)",
        tests=(f"{OF_DRAFTS}/test_any_records.py::test_a_draft_of_any_json_lines_loads_all_of_them",),
    ),
    Bug(
        name="a draft writes the names of fields as they are",
        file="onceload/draft/write.py",
        correct="  {_name(each.column.name)}: ",
        wrong="  {each.column.name}: ",
        tests=(f"{OF_DRAFTS}/test_bad_input.py::test_no_name_of_the_data_adds_a_key_or_ends_a_comment",),
    ),
    Bug(
        name="a draft takes the rest of a line in the middle of a file for a record",
        file="onceload/draft/sample.py",
        correct='start = piece.raw.find(b"\\n") + 1 if piece.first else 0',
        wrong="start = 0",
        tests=(f"{OF_DRAFTS}/test_bad_input.py::test_records_are_whole_wherever_a_piece_of_a_file_begins",),
        also=(("if end and (start or not piece.first):", "if end:"),),
    ),
    Bug(
        name="a draft takes the first of two documents for the whole file",
        file="onceload/draft/documents.py",
        correct="    if rest:\n",
        wrong="    if False:\n",
        tests=(f"{OF_DRAFTS}/test_bad_input.py::test_what_cannot_be_drafted_is_refused",),
    ),
    Bug(
        name="a draft takes arrays for records",
        file="onceload/draft/documents.py",
        correct='    if not any(each.startswith(b"{") for each in elements):\n',
        wrong="    if False:\n",
        tests=(f"{OF_DRAFTS}/test_bad_input.py::test_what_cannot_be_drafted_is_refused",),
    ),
    Bug(
        name="a draft does not say that nanoseconds are rounded",
        file="onceload/draft/guess.py",
        correct="    if seen.is_finer:\n",
        wrong="    if False:\n",
        tests=(f"{OF_DRAFTS}/test_typed_files.py::test_times_with_nanoseconds_are_noted",),
    ),
    Bug(
        name="a draft of a file without rows ignores its schema",
        file="onceload/draft/parquet.py",
        correct="        empty=None if groups else table,\n",
        wrong="        empty=None,\n",
        tests=(f"{OF_DRAFTS}/test_typed_files.py::test_the_schema_of_a_file_without_rows_is_enough",),
    ),
    Bug(
        name="a draft offers fields of values that are not always objects",
        file="onceload/draft/nested.py",
        correct="if inner is None or seen.kinds != {Written.OBJECT}:",
        wrong="if inner is None:",
        tests=(f"{OF_DRAFTS}/test_any_records.py::test_a_draft_with_all_paths_that_it_offers_loads_all_records_too",),
    ),
    Bug(
        name="a draft names offered columns after fields whose name is elsewhere too",
        file="onceload/draft/nested.py",
        correct="if leaves[path[-1]] == 1 else []",
        wrong="if leaves[path[-1]] else []",
        tests=(f"{OF_DRAFTS}/test_nested.py::test_the_lines_that_a_draft_offers",),
    ),
)

HANDBOOK_BUGS = (
    Bug(
        name="errors of other modules have no entry in the reference",
        file="handbook/errors.py",
        correct="for module in code.modules.values()",
        wrong='for module in [code.modules["onceload_core.errors"]]',
        tests=(f"{OF_REFERENCE}::test_the_errors_that_are_read_from_the_code_are_those_that_python_has",),
    ),
    Bug(
        name="keys below a choice of forms have no entry in the reference",
        file="handbook/pipeline_keys.py",
        correct='(schema, *schema.get("anyOf", ()))',
        wrong="(schema,)",
        tests=(f"{OF_REFERENCE}::test_every_key_of_a_pipeline_file_has_an_entry",),
    ),
)

GIVEN_ROWS_BUGS = (
    Bug(
        name="rows of a program that another call has loaded meanwhile are written again",
        file=PIECES_OF_PROGRAMS,
        correct="        if new != waiting.new:\n",
        wrong="        if False:\n",
        tests=(f"{OF_PIECES_OF_PROGRAMS}::test_rows_that_another_call_loads_meanwhile_are_left_out_of_each_piece",),
    ),
    Bug(
        name="a row that a constraint refuses at the commit fails all rows of it",
        file="spark_jobs/onceload_jobs/publish/batch_road.py",
        correct="        self._checks_each_piece = True\n",
        wrong="        raise refused\n",
        tests=(f"{OF_PIECES_OF_PROGRAMS}::test_a_row_that_a_constraint_refuses_at_the_commit_goes_to_quarantine",),
    ),
    Bug(
        name="all rows of a program are held until they are committed",
        file=PIECES_OF_PROGRAMS,
        correct="        kept = self._kept(offer.among(new)) if new else None\n",
        wrong="        kept = self._kept(offer.among(new)) if new else None; vars(self)[len(self._waiting)] = offer\n",
        tests=(f"{OF_PIECES_OF_PROGRAMS}::test_a_call_holds_as_many_mappings_as_a_piece_has",),
    ),
    Bug(
        name="rows of a program are written again where only a part of a call is loaded",
        file=PIECES_OF_PROGRAMS,
        correct="self._kept(offer.among(new))",
        wrong="self._kept(offer)",
        tests=(f"{OF_GIVEN_ROWS}::test_an_overlap_loads_the_new_ids_only",),
    ),
    Bug(
        name="ids of rows of a program that were skipped count as loaded",
        file="spark_jobs/onceload_jobs/load/given_pieces.py",
        correct="Advance(producer_id=call.producer_id, spans=new, ",
        wrong="Advance(producer_id=call.producer_id, spans=SpanSet.of((min(each.first for each in new), new.end)), ",
        tests=(f"{OF_GIVEN_ROWS}::test_ids_of_a_column_may_have_gaps_and_fill_them_later",),
    ),
    Bug(
        name="a write is tried again without asking what is left after a lost answer",
        file="spark_jobs/onceload_jobs/write/until_certain.py",
        correct="    while (rest := patience.until_answered(find_rest)) is not None:\n",
        wrong="    rest = patience.until_answered(find_rest)\n    while rest is not None:\n",
        tests=(f"{OF_KILLED_ROWS}::test_two_processes_at_once_with_the_same_ids_load_each_row_once",),
    ),
    Bug(
        name="a session commits a piece again without asking the ledger after a lost answer",
        file="spark_jobs/onceload_jobs/work/load_delivery.py",
        correct="on_unsure=note_unsure, ",
        wrong="",
        tests=(f"{OF_LOADS}::test_a_commit_without_answer_is_not_tried_again_for_a_file_without_records",),
    ),
    Bug(
        name="a bad row of a program is quarantined under its place in the call",
        file="spark_jobs/onceload_jobs/load/given_pieces.py",
        correct="replace(each, sequence_id=int(ids[each.sequence_id]))",
        wrong="replace(each, sequence_id=int(ids[0]))",
        tests=(OF_GIVEN_ROWS,),
    ),
)

LOOK_BUGS = (
    Bug(
        name="a look at rows ends its read-only transaction and may write",
        file="onceload/looking.sql",
        correct="SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY;",
        wrong="SELECT set_config('transaction_read_only', 'on', true);",
        tests=(f"{OF_LOOKS}::test_looking_changes_nothing_unless_that_is_asked_for",),
    ),
    Bug(
        name="the first rows of a table are those where another query has stopped to read",
        file="onceload/looking.sql",
        correct="SET synchronize_seqscans = off;",
        wrong="SET synchronize_seqscans = on;",
        tests=(f"{OF_LOOKS}::test_a_table_too_large_to_sort_is_shown_in_the_order_in_which_it_is_stored",),
    ),
    Bug(
        name="a prompt of psql may write",
        file="onceload/psql.py",
        correct="    if not writes:\n",
        wrong="    if writes:\n",
        tests=(f"{OF_LOOKS}::test_psql_refuses_changes",),
    ),
    Bug(
        name="a keeper of the embedded Postgres does not count as a user",
        file="onceload/keeping.py",
        correct="            fcntl.flock(users, fcntl.LOCK_SH)\n",
        wrong="",
        tests=(f"{OF_KEEPERS}::test_a_server_that_is_kept_serves_until_its_end_is_asked_for",),
    ),
)

PACKAGE_BUGS = (
    Bug(
        name="the doctor overlooks a bundle that Airflow does not have",
        file="plugins/onceload_airflow/doctor.py",
        correct="        healthy=bool(found),\n",
        wrong="        healthy=bundles is not None,\n",
        tests=(f"{OF_DOCTOR}::test_each_thing_that_is_missing_is_named_with_what_to_do",),
    ),
    Bug(
        name="the doctor does not ask Airflow for the connection of a task",
        file="plugins/onceload_airflow/doctor.py",
        correct='os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")',
        wrong='os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "client")',
        tests=(f"{OF_DOCTOR}::test_everything_is_found_with_the_connection_of_airflow",),
    ),
    Bug(
        name="the doctor calls a user that may only read a loader",
        file="onceload/doctor.sql",
        correct="     WHERE NOT has_table_privilege(pg_class.oid, privilege)\n",
        wrong="     WHERE NOT has_table_privilege(pg_class.oid, 'SELECT')\n",
        tests=(f"{OF_DOCTOR}::test_a_user_without_the_role_of_a_loader_gets_the_grant_to_run",),
    ),
    Bug(
        name="the list of packages has every second hash",
        file="requirements/sbom.py",
        correct="(?P<hashes>(?: *\\\\\\n[^\\\\\\n]*)*)",
        wrong="(?P<hashes>(?: *\\\\\\n.*)*)",
        tests=("tests/install/test_sbom.py",),
    ),
)

OF_NEW_COLUMNS = "tests/loads/test_new_columns.py"
NEW_COLUMN_BUGS = (
    Bug(
        name="a load of an earlier version of the pipeline file changes the table",
        file="spark_jobs/onceload_jobs/write/evolve.py",
        correct="    lock_pipeline_of(connection, session)\n",
        wrong="",
        tests=(f"{OF_NEW_COLUMNS}::test_a_load_of_an_earlier_version_of_the_file_changes_no_table",),
    ),
    Bug(
        name="a change of the table waits longer than a deadlock takes",
        file="spark_jobs/onceload_jobs/write/evolve.py",
        correct="_LOCK_TIMEOUT_MS = 500",
        wrong="_LOCK_TIMEOUT_MS = 50_000",
        tests=(f"{OF_NEW_COLUMNS}::test_a_commit_that_holds_the_table_and_needs_the_pipeline_ends_first",),
    ),
    Bug(
        name="an error of the database is its own cause",
        file="dedup_core/onceload_core/postgres/connection.py",
        correct="        if ours is error:\n",
        wrong="        if False:\n",
        tests=("tests/integration/test_refusals.py::test_an_error_that_is_raised_as_it_is_is_not_its_own_cause",),
    ),
    Bug(
        name="a change of the table waits for the end of autovacuum",
        file="spark_jobs/onceload_jobs/write/evolve.py",
        correct="        interrupts = not has_interrupted and _is_vacuumed(engine, declared)\n",
        wrong="",
        tests=(f"{OF_NEW_COLUMNS}::test_a_change_of_the_table_does_not_wait_for_the_end_of_autovacuum",),
    ),
    Bug(
        name="a numeric with fewer digits after its point counts as wider",
        file="spark_jobs/onceload_jobs/write/differences.py",
        correct="return before.scale == after.scale and ",
        wrong="return ",
        tests=(f"{OF_NEW_COLUMNS}::test_a_change_that_could_lose_values_is_refused",),
    ),
    Bug(
        name="a shorter varchar counts as wider",
        file="spark_jobs/onceload_jobs/write/differences.py",
        correct="before.length is not None and before.length <= after.length",
        wrong="before.length is not None",
        tests=(f"{OF_NEW_COLUMNS}::test_a_change_that_could_lose_values_is_refused",),
    ),
    Bug(
        name="a table that will not fit gets columns anyway",
        file="spark_jobs/onceload_jobs/write/evolve.py",
        correct="any(each.cost is not Cost.NONE or each.name in kept",
        wrong="any(each.name in kept",
        tests=(f"{OF_NEW_COLUMNS}::test_a_change_that_could_lose_values_is_refused",),
    ),
    Bug(
        name="a column of the key is added without its index",
        file="spark_jobs/onceload_jobs/write/evolve.py",
        correct="kept = {*target.key, ",
        wrong="kept = {",
        tests=(f"{OF_NEW_COLUMNS}::test_a_merge_gets_a_column_but_not_one_of_its_key",),
    ),
    Bug(
        name="a table is rewritten by a load",
        file="spark_jobs/onceload_jobs/write/differences.py",
        correct="Cost.REWRITE if _is_wider(before, after)",
        wrong="Cost.NONE if _is_wider(before, after)",
        tests=(f"{OF_NEW_COLUMNS}::test_a_wider_type_that_rewrites_the_table_is_left_to_a_person",),
    ),
    Bug(
        name="a column that was added is not reported",
        file="spark_jobs/onceload_jobs/load/load.py",
        correct="        notes += context.notes\n",
        wrong="",
        tests=(f"{OF_NEW_COLUMNS}::test_a_declared_column_is_added_and_the_rows_that_were_there_have_null_in_it",),
    ),
)

OF_IGNORED_FIELDS = "tests/loads/test_ignored_fields.py"
IGNORED_FIELD_BUGS = (
    Bug(
        name="fields that are ignored are not reported",
        file="spark_jobs/onceload_jobs/read/new_content.py",
        correct="    if records.ignored.fields:\n",
        wrong="    if False:\n",
        tests=("tests/loads/test_ignored_fields.py::test_a_report_counts_and_names_the_fields_that_are_not_loaded",),
    ),
    Bug(
        name="the fields of a record that is retried are forgotten",
        file="spark_jobs/onceload_jobs/recover/retry.py",
        correct="        self.ignored = pieces.reading.ignored\n",
        wrong="",
        tests=(f"{OF_RETRIES}::test_a_retry_counts_and_names_the_fields_that_are_not_loaded",),
    ),
    Bug(
        name="the fields of rows that a program gives are forgotten",
        file=PIECES_OF_PROGRAMS,
        correct="        self._ignored[number] = records.ignored\n",
        wrong="",
        tests=(f"{OF_GIVEN_ROWS}::test_undeclared_columns_are_counted_and_named",),
    ),
    Bug(
        name="a rare field that is ignored is not reported",
        file="spark_jobs/onceload_jobs/formats/jsonl/rows.py",
        correct="len(self.noticed) if self.is_sure else _LOOKED_AT",
        wrong="_LOOKED_AT",
        tests=(f"{OF_IGNORED_FIELDS}::test_a_rare_field_is_found",),
    ),
    Bug(
        name="the fields that a staged batch ignored are forgotten when it is published",
        file="spark_jobs/onceload_jobs/load/staged/kept_batch.py",
        correct="report.timed(stopwatch).with_notes(notes + report.notes)",
        wrong="report.timed(stopwatch).with_notes([note for note in notes if note.ignored is None])",
        tests=(
            f"{OF_IGNORED_FIELDS}::test_a_batch_that_is_published_later_reports_what_was_ignored_when_it_was_staged",
        ),
    ),
)

RIGHTS_BUGS = (
    Bug(
        name="a merge is begun without the right to update rows",
        file="spark_jobs/onceload_jobs/write/rights.py",
        correct='"UPDATE": merges,',
        wrong='"UPDATE": False,',
        tests=("tests/loads/test_rights.py::test_what_deletes_or_updates_rows_needs_more_rights",),
    ),
    Bug(
        name="files are replaced without the right to delete their rows",
        file="spark_jobs/onceload_jobs/load/context.py",
        correct="is_recorded=is_recorded, replaces=replaces)",
        wrong="is_recorded=is_recorded, replaces=False)",
        tests=("tests/loads/test_rights.py::test_a_file_is_replaced_only_with_the_right_to_delete_its_rows",),
    ),
)

COSTLY_CHANGE_BUGS = (
    Bug(
        name="a wider type loses the collation of its column",
        file="spark_jobs/onceload_jobs/write/evolve.sql",
        correct="attcollation <> typcollation",
        wrong="false",
        tests=(f"{OF_NEW_COLUMNS}::test_a_type_is_not_widened_where_that_costs_more_than_the_catalog",),
    ),
    Bug(
        name="a wider type builds an index again",
        file="spark_jobs/onceload_jobs/write/evolve.sql",
        correct="AND (indexprs IS NOT NULL OR indpred IS NOT NULL)",
        wrong="AND indexprs IS NOT NULL",
        tests=(f"{OF_NEW_COLUMNS}::test_a_type_is_not_widened_where_that_costs_more_than_the_catalog",),
    ),
)
PAUSE_BUGS = (
    Bug(
        name="a load commits while its pipeline is paused",
        file=COMMIT,
        correct="    refuse_paused(commit.session.pipeline, pause_in(taken))\n",
        wrong="",
        tests=(f"{OF_PAUSES}::test_no_load_commits_while_a_pipeline_is_paused_and_each_does_after_the_resume",),
    ),
    Bug(
        name="a commit looks for a pause before it waits for the lock of the pipeline",
        file=COMMIT,
        correct="    taken = take_position_in(transaction_id, connection, commit)\n"
        "    refuse_other_rows(commit, written)\n"
        "    if not may_be_paused:\n        refuse_paused(commit.session.pipeline, pause_in(taken))\n",
        wrong="    before = connection.execute(text('SELECT * FROM onceload.pipeline')).one()\n"
        "    taken = take_position_in(transaction_id, connection, commit)\n"
        "    refuse_other_rows(commit, written)\n"
        "    if not may_be_paused:\n        refuse_paused(commit.session.pipeline, pause_in(before))\n",
        tests=(f"{OF_PAUSES}::test_a_commit_that_waits_for_a_pause_in_progress_is_refused",),
    ),
    Bug(
        name="repairs are refused in a pause as loads are",
        file=COMMIT,
        correct="    taken = take_position_in(transaction_id, connection, settlement)\n",
        wrong="    taken = take_position_in(transaction_id, connection, settlement)\n"
        "    refuse_paused(settlement.session.pipeline, pause_in(taken))\n",
        tests=(f"{OF_PAUSES}::test_records_in_quarantine_are_retried_and_discarded_during_a_pause",),
    ),
    Bug(
        name="a second pause replaces the reason of the first",
        file="dedup_core/onceload_core/postgres/pausing.py",
        correct="        if (earlier := pause_in(found)) is not None:\n",
        wrong="        if (earlier := pause_in(found)) is not None and earlier.why == why:\n",
        tests=(f"{OF_PAUSES}::test_a_second_pause_changes_nothing_and_reports_the_first",),
    ),
    Bug(
        name="a load of a paused pipeline begins, and fails at its first commit",
        file="dedup_core/onceload_core/postgres/declaring.py",
        correct="        refuse_paused(pipeline.name, pause_in(found))\n",
        wrong="        pass\n",
        tests=(f"{OF_PAUSED_LOADS}::test_a_load_of_a_paused_pipeline_is_refused_before_it_begins",),
    ),
    Bug(
        name="a pause uses up the tries of the deliveries that meet it",
        file="spark_jobs/onceload_jobs/work/session.py",
        correct="    PipelineBusy,\n    PipelinePaused,\n",
        wrong="    PipelineBusy,\n",
        tests=(f"{OF_PAUSED_LOADS}::test_a_pause_ends_a_load_in_progress_and_the_next_one_loads_all_of_it",),
    ),
    Bug(
        name="a task that meets a pause is retried",
        file="plugins/onceload_airflow/failures.py",
        correct=" or outcome.error == PipelinePaused.__name__",
        wrong="",
        tests=(f"{OF_OUTCOMES}::test_a_load_that_meets_a_pause_is_not_tried_again",),
    ),
    Bug(
        name="records that arrived before a pause start no run after it",
        file="plugins/onceload_airflow/arrivals.py",
        correct="                reported = _Reported()\n",
        wrong="                pass\n",
        tests=(
            "tests/dags/test_arrivals.py::test_a_pause_is_waited_out_and_what_was_reported_before_it_is_reported_again",
        ),
    ),
)

OF_LONGER_RECORDS = (
    "tests/loads/test_json_files.py::test_a_record_that_was_too_long_is_known_again_when_longer_ones_are_allowed"
)
WHOLE_FILE_BUGS = (
    Bug(
        name="a record that was too long counts as changed when longer ones are allowed",
        file="spark_jobs/onceload_jobs/verify/read_bytes.py",
        correct="digest, possible_digests(raw))",
        wrong="digest, possible_digests(raw)[:1])",
        tests=(OF_LONGER_RECORDS,),
    ),
    Bug(
        name="a copy of a record that was too long is loaded when longer ones are allowed",
        file="spark_jobs/onceload_jobs/plan/copies.py",
        correct="possible_digests(each.part.raw)",
        wrong="possible_digests(each.part.raw)[:1]",
        tests=(OF_LONGER_RECORDS,),
    ),
    Bug(
        name="a part of a file that is cut while it is read counts as read",
        file="spark_jobs/onceload_jobs/read/checked_parts.py",
        correct="        if len(raw) < _read_bytes(group, source):\n",
        wrong="        if False:\n",
        tests=(f"{OF_JSON_FILES}::test_a_file_that_is_written_once_more_while_it_is_read_loses_no_record",),
    ),
    Bug(
        name="an element without a byte is consumed without a trace",
        file="spark_jobs/onceload_jobs/read/rows.py",
        correct="if each.part.raw or (each.part.row_group and declared.source.format is Format.JSON)]",
        wrong="if each.part.raw]",
        tests=(f"{OF_JSON_FILES}::test_an_empty_element_beside_a_large_one_goes_to_quarantine",),
    ),
)

BUGS = (
    *TRY_BUGS,
    *COMMIT_BUGS,
    *CLAIM_BUGS,
    *ANSWER_BUGS,
    *SPAN_BUGS,
    *RECOVERY_BUGS,
    *DELIVERY_BUGS,
    *BOARD_BUGS,
    *LOAD_BUGS,
    *CONTENT_BUGS,
    *BATCH_BUGS,
    *AIRFLOW_BUGS,
    *PAST_ONE_MACHINE_BUGS,
    *RECORD_BUGS,
    *TARGET_BUGS,
    *FILE_BUGS,
    *DIRTY_BUGS,
    *QUARANTINE_BUGS,
    *SESSION_BUGS,
    *FAILOVER_BUGS,
    *ENGINE_BUGS,
    *SPOOL_BUGS,
    *EVENT_BUGS,
    *DRAFT_BUGS,
    *HANDBOOK_BUGS,
    *GIVEN_ROWS_BUGS,
    *LOOK_BUGS,
    *PACKAGE_BUGS,
    *NEW_COLUMN_BUGS,
    *IGNORED_FIELD_BUGS,
    *WHOLE_FILE_BUGS,
    *COSTLY_CHANGE_BUGS,
    *RIGHTS_BUGS,
    *PAUSE_BUGS,
    Bug(
        name="times of ORC are cut to microseconds",
        file="spark_jobs/onceload_jobs/formats/orc/times.py",
        correct="    rounded = whole * _SECOND + half_even(rest)\n",
        wrong="    rounded = whole * _SECOND + rest // 1000\n",
        tests=(f"{OF_SOURCES}/test_orc.py::test_nanoseconds_are_rounded_half_to_even",),
    ),
    Bug(
        name="times of ORC are those of another time zone than their writer's",
        file="spark_jobs/onceload_jobs/formats/orc/times.py",
        correct="    if zone is not None:\n",
        wrong="    if False:\n",
        tests=(f"{OF_SOURCES}/test_orc.py::test_the_clock_of_a_writer_in_another_zone_is_read_as_arrow_reads_it",),
    ),
    Bug(
        name="times inside other ORC values have no nanoseconds",
        file="spark_jobs/onceload_jobs/formats/orc/stripes.py",
        correct="        if number_of(facts, _Of.STREAM_KIND) == _DATA and kinds[column] in TIMES:\n",
        wrong="        if number_of(facts, _Of.STREAM_KIND) == _DATA and kinds[column] in TIMES and column < 2:\n",
        tests=(f"{OF_SOURCES}/test_orc.py::test_times_inside_other_values_are_exact",),
    ),
    Bug(
        name="an ORC column is read by the name of one inside another",
        file="spark_jobs/onceload_jobs/formats/orc/arrow.py",
        correct="    batch = batch if batch.schema.names == names else",
        wrong="    batch = batch if True else",
        tests=(f"{OF_SOURCES}/test_orc.py::test_a_name_with_a_dot_is_not_a_name_inside_of_another_column",),
    ),
    Bug(
        name="stripes of ORC need not add up to the rows of their file",
        file="spark_jobs/onceload_jobs/formats/orc/footers.py",
        correct="    if sum(rows) != number_of(footer, _Of.FOOTER_ROWS):\n",
        wrong="    if False:\n",
        tests=(f"{OF_SOURCES}/test_orc.py::test_stripes_that_contradict_the_file_are_refused",),
    ),
    Bug(
        name="stripes of ORC may share their bytes",
        file="spark_jobs/onceload_jobs/formats/orc/footers.py",
        correct="    if any(first > end for first, end in pairwise(edges)):\n",
        wrong="    if edges[-2] > edges[-1]:\n",
        tests=(f"{OF_SOURCES}/test_orc.py::test_stripes_that_contradict_the_file_are_refused",),
    ),
    Bug(
        name="an ORC stripe with many rows may fill the memory",
        file="spark_jobs/onceload_jobs/formats/orc/rows.py",
        correct="    check_size(url, rows * (",
        wrong="    check_size(url, 0 * (",
        tests=(f"{OF_SOURCES}/test_orc.py::test_rows_that_take_few_bytes_cannot_fill_the_memory",),
    ),
    Bug(
        name="an ORC file is recognised by its last bytes instead of its footer",
        file="spark_jobs/onceload_jobs/files/footers.py",
        correct="    return length if postscript and length <= _BYTES_MAX else 0\n",
        wrong="    return len(postscript)\n",
        tests=("tests/unit/files/test_fingerprints.py::test_an_orc_file_is_recognised_by_its_whole_footer",),
    ),
    Bug(
        name="a block of Avro ends with any mark",
        file="spark_jobs/onceload_jobs/formats/avro/blocks.py",
        correct="        if self.take(len(mark)) != mark:\n",
        wrong="        if not self.take(len(mark)):\n",
        tests=(f"{OF_SOURCES}/test_avro.py::test_a_file_that_is_damaged_is_refused_in_words",),
    ),
    Bug(
        name="a block of Avro may hold more than its records",
        file="spark_jobs/onceload_jobs/formats/avro/rows.py",
        correct="    if stream.read(1):\n",
        wrong="    if False:\n",
        tests=(f"{OF_SOURCES}/test_avro.py::test_a_file_that_is_damaged_is_refused_in_words",),
    ),
    Bug(
        name="a group of Avro may have fewer rows than its plan found",
        file="spark_jobs/onceload_jobs/formats/avro/rows.py",
        correct="    if found != rows:\n",
        wrong="    if found > rows:\n",
        tests=(f"{OF_SOURCES}/test_avro.py::test_blocks_of_another_file_are_not_taken",),
    ),
    Bug(
        name="the checksum of an Avro block is not verified",
        file="spark_jobs/onceload_jobs/formats/avro/codecs.py",
        correct="    if zlib.crc32(unpacked) != int",
        wrong="    if None is int",
        tests=(f"{OF_SOURCES}/test_avro.py::test_a_block_with_a_wrong_snappy_checksum_is_refused",),
    ),
    Bug(
        name="the objects of an Avro block may take any memory",
        file="spark_jobs/onceload_jobs/formats/avro/rows.py",
        correct="        check_size(url, takes)\n",
        wrong="",
        tests=(f"{OF_SOURCES}/test_avro.py::test_values_take_no_more_memory_than_is_planned_for",),
    ),
    Bug(
        name="the bound of what Avro records take forgets what is inside a list",
        file="spark_jobs/onceload_jobs/formats/avro/memory.py",
        correct="times = self.times + (_PLACE_BYTES + self.each) / max(1, self.least)",
        wrong="times = self.times",
        tests=(f"{OF_SOURCES}/test_avro.py::test_values_take_no_more_memory_than_is_planned_for",),
    ),
    Bug(
        name="Avro blocks are converted together whatever they take",
        file="spark_jobs/onceload_jobs/formats/avro/rows.py",
        correct="if held and held + takes > _HELD_BYTES:",
        wrong="if False:",
        tests=(f"{OF_SOURCES}/test_avro.py::test_blocks_are_converted_together_as_far_as_they_fit_into_memory",),
    ),
    Bug(
        name="the second type of an Avro union is read as the first",
        file="spark_jobs/onceload_jobs/formats/avro/schemas.py",
        correct="            types[at] = numbers[name] if name else 0\n",
        wrong="            types[at] = 1 if name else 0\n",
        tests=(f"{OF_SOURCES}/test_avro.py::test_each_value_of_a_union_is_read_as_what_it_is",),
    ),
    Bug(
        name="nanoseconds of Avro are read as microseconds",
        file="spark_jobs/onceload_jobs/formats/avro/schemas.py",
        correct='("nanos", "ns"))',
        wrong='("nanos", "us"))',
        tests=(f"{OF_SOURCES}/test_avro.py::test_a_value_of_each_type_is_read_as_it_is",),
    ),
    Bug(
        name="a text of Avro that is not UTF-8 stops its file",
        file="spark_jobs/onceload_jobs/formats/avro/schemas.py",
        correct='    "string": ("bytes", lambda values: pa.array(values, pa.binary()).view(pa.string())),\n',
        wrong='    "string": ("string", lambda values: pa.array(values, pa.string())),\n',
        tests=(f"{OF_SOURCES}/test_typed_formats.py::test_a_text_that_is_not_utf8_quarantines_only_its_own_record",),
    ),
    Bug(
        name="a kept row of Avro is read as JSON of a text file",
        file="spark_jobs/onceload_jobs/pipeline/declared.py",
        correct="        return self in (Format.PARQUET, Format.ORC, Format.AVRO)\n",
        wrong="        return self in (Format.PARQUET, Format.ORC)\n",
        tests=("tests/loads/test_typed_formats.py::test_a_file_inside_a_compressed_file_is_not_read",),
    ),
    Bug(
        name="a large float becomes a different integer depending on its neighbours",
        file="spark_jobs/onceload_jobs/formats/parquet/rows.py",
        correct="        return None if _has_more_digits(array, column_type) else array.cast(target)\n",
        wrong="        return array.cast(target)\n",
        tests=(f"{OF_PARQUET}::test_a_value_is_read_alike_by_both_tiers_and_alone",),
    ),
    Bug(
        name="a damaged file of ORC ends the process that reads it",
        file="spark_jobs/onceload_jobs/formats/orc/arrow.py",
        correct="            except (EOFError, BrokenPipeError):\n",
        wrong="            except BrokenPipeError:\n",
        tests=(
            f"{OF_SOURCES}/test_orc.py::test_a_file_that_ends_the_process_of_arrow_is_refused_and_the_next_is_read",
        ),
    ),
    Bug(
        name="a time of ORC before 1970 is a second late",
        file="spark_jobs/onceload_jobs/formats/orc/times.py",
        correct="    whole = whole - ((whole < 0) & (rest > _BEGUN_NS))\n",
        wrong="",
        tests=("tests/loads/test_typed_formats.py::test_files_that_spark_wrote_have_the_values_that_were_written",),
    ),
    Bug(
        name="the answer to an interrupted question about ORC is taken for a later one",
        file="spark_jobs/onceload_jobs/formats/orc/arrow.py",
        correct="                self._process = None\n                process.kill()\n                _end(process)\n",
        wrong="",
        tests=("tests/unit/sources/test_orc.py",),
    ),
    Bug(
        name="a damaged file of ORC is read again and again",
        file="spark_jobs/onceload_jobs/formats/orc/footers.py",
        correct='        schema_of(described), has_julian_days(described), ends_of(described, b"")\n',
        wrong="",
        tests=("tests/unit/sources/test_orc.py",),
    ),
    Bug(
        name="a damaged file of ORC keeps a worker busy indefinitely",
        file="spark_jobs/onceload_jobs/formats/orc/arrow.py",
        correct="            _limit(resource.RLIMIT_CPU, int(time.process_time()) + cpu_s_max)\n",
        wrong="",
        tests=("tests/unit/sources/test_orc.py::test_a_file_that_never_ends_in_arrow_is_refused_and_the_next_is_read",),
    ),
    Bug(
        name="times of ORC without a time zone are taken for UTC",
        file="spark_jobs/onceload_jobs/formats/orc/times.py",
        correct="    if not footer.zone:\n",
        wrong="    if False:\n",
        tests=("tests/unit/sources/test_orc.py",),
    ),
    Bug(
        name="rows that a damaged count has shifted are mixed with those of the complete copy",
        file="spark_jobs/onceload_jobs/plan/file_state.py",
        correct="    if reason is None and not self._has_rows_in_place(state):\n",
        wrong="    if False:\n",
        tests=(
            "tests/loads/test_typed_formats.py::"
            "test_rows_that_a_damaged_count_has_shifted_are_not_mixed_with_those_of_the_complete_copy",
        ),
    ),
    Bug(
        name="a block of Avro whose count became zero is skipped",
        file="spark_jobs/onceload_jobs/formats/avro/blocks.py",
        correct="        if not count and length > _EMPTY_BYTES_MAX:\n",
        wrong="        if False:\n",
        tests=("tests/unit/sources/test_avro.py",),
    ),
    Bug(
        name="days of the Julian calendar are loaded as other days",
        file="spark_jobs/onceload_jobs/formats/orc/footers.py",
        correct="return calendar != _PROLEPTIC and",
        wrong="return calendar == 7 and",
        tests=("tests/unit/sources/test_orc.py",),
    ),
    Bug(
        name="the places of blocks and records are those of a file that was replaced",
        file="spark_jobs/onceload_jobs/formats/whole_files.py",
        correct="look_at(url).version if of_format in _WITHOUT_FOOTER else None",
        wrong="None",
        tests=("tests/loads/test_typed_formats.py::test_a_file_that_was_rewritten_after_a_look_is_loaded_at_once",),
    ),
    Bug(
        name="an array in Avro holds any number of values in no byte",
        file="spark_jobs/onceload_jobs/formats/avro/schemas.py",
        correct="    if not items.held.least:\n",
        wrong="    if False:\n",
        tests=("tests/unit/sources/test_avro.py",),
    ),
    Bug(
        name="a time outside of the day is loaded as another time",
        file="spark_jobs/onceload_jobs/formats/parquet/scalars.py",
        correct="    if stored < 0 or microseconds >= DAY_US:\n",
        wrong="    microseconds %= DAY_US\n    if microseconds < 0:\n",
        tests=("tests/unit/sources/test_avro.py",),
    ),
    Bug(
        name="a file of ORC is called damaged if memory is short while it is read",
        file="spark_jobs/onceload_jobs/formats/orc/arrow.py",
        correct="    if ended < 0 and -ended not in _BY_FILES:\n",
        wrong="    if False:\n",
        tests=(f"{OF_SOURCES}/test_orc.py::test_a_file_is_not_called_damaged_if_a_signal_ends_the_process_of_arrow",),
    ),
    Bug(
        name="the console takes forms of other sites",
        file="onceload/console/acting.py",
        correct='if not self._is_sealed(request, form.pop(TOKEN, ""), pipeline):',
        wrong='if not form.pop(TOKEN, "none"):',
        tests=(f"{OF_ACTIONS}::test_a_forged_form_changes_nothing",),
    ),
    Bug(
        name="a form of the console is good for every pipeline",
        file="onceload/console/acting.py",
        correct='of_whom = "\\0".join((self._access.identity(request), *texts)).encode()',
        wrong="of_whom = self._access.identity(request).encode()",
        tests=(f"{OF_ACTIONS}::test_a_forged_form_changes_nothing",),
    ),
    Bug(
        name="the console shows whatever answer an address has",
        file="onceload/console/acting.py",
        correct="        if not self._is_sealed(request, seal, pipeline, said):\n",
        wrong="        if not seal:\n",
        tests=(
            "tests/console/test_answers.py"
            "::test_a_reload_of_an_answer_sends_nothing_again_and_no_other_answer_is_shown",
        ),
    ),
    Bug(
        name="the console fixes a record of a pipeline that the user has no right to change",
        file="onceload/console/actions/quarantine.py",
        correct="    if record.pipeline != asked.pipeline:",
        wrong="    if not record.pipeline:",
        tests=(f"{OF_ACTIONS}::test_ids_of_other_pipelines_and_no_ids_are_refused",),
    ),
    Bug(
        name="the console abandons a dead letter of a pipeline that the user has no right to change",
        file="onceload/console/actions/deliveries.py",
        correct='    if found["pipeline"] != asked.pipeline:',
        wrong='    if not found["pipeline"]:',
        tests=(f"{OF_ACTIONS}::test_ids_of_other_pipelines_and_no_ids_are_refused",),
    ),
    Bug(
        name="the console needs no token",
        file="onceload/console/standalone.py",
        correct="        if not hmac.compare_digest(given.encode(), self.cookie.encode()):",
        wrong="        if given and not hmac.compare_digest(given.encode(), self.cookie.encode()):",
        tests=(f"{OF_PAGES}::test_without_the_token_there_is_nothing_to_see",),
    ),
    Bug(
        name="values of records are markup on pages",
        file="onceload/console/rendering.py",
        correct="        autoescape=True,",
        wrong="        autoescape=False,",
        tests=(f"{OF_PAGES}::test_nothing_of_a_record_is_markup",),
    ),
    Bug(
        name="the first commit of the last hours is left out of the overview",
        file="onceload/console/hours.sql",
        correct="ledger.position >= halving.first",
        wrong="ledger.position > halving.first",
        tests=("tests/console/test_hours.py::test_each_commit_of_the_last_hours_counts_in_its_hour",),
    ),
    Bug(
        name="commits that a restored database lacks stay in the charts",
        file="onceload/console/hours.py",
        correct="    before = known.sums if known and rows[0].is_known else {}\n",
        wrong="    before = known.sums if known else {}\n",
        tests=(
            "tests/console/test_hours.py::test_later_looks_add_what_is_new_and_forget_what_a_restored_database_lacks",
        ),
    ),
    Bug(
        name="a part of a rewritten file counts as the same",
        file="onceload/console/rewritten.py",
        correct="            is_same = expected in digests.possible()\n",
        wrong="            is_same = True\n",
        tests=(
            "tests/console/test_pages.py::test_a_rewritten_file_is_shown_beside_what_was_loaded_of_it_with_the_choices",
        ),
    ),
    Bug(
        name="the totals of a run include commits that a rewind rolled back",
        file="onceload/console/pipelines.py",
        correct="tuple(commit for commit in commits if commit.rolled_back_by is None)",
        wrong="tuple(commits)",
        tests=(f"{OF_PAGES}::test_the_totals_of_a_run_leave_out_what_a_rewind_rolled_back",),
    ),
    Bug(
        name="the question of a rewind counts the position that it keeps",
        file="dedup_core/onceload_core/postgres/rewind.sql",
        correct=" WHERE pipeline_id = :pipeline_id AND position > :to AND kind IN ('load', 'retry', 'discard');\n",
        wrong=" WHERE pipeline_id = :pipeline_id AND position >= :to AND kind IN ('load', 'retry', 'discard');\n",
        tests=(f"{OF_ACTIONS}::test_a_rewind_says_the_same_in_its_question_as_in_its_dry_run",),
    ),
    Bug(
        name="a load of one file asks for today",
        file="onceload/console/actions/jobs.py",
        correct='_day_in(asked.values.get("file", "")) or datetime',
        wrong="datetime",
        tests=(f"{OF_ACTIONS}::test_a_load_of_one_file_asks_for_the_day_in_its_name",),
    ),
    Bug(
        name="the console reads a file that a name leads to out of the folder",
        file="onceload/console/files.py",
        correct="if root is None or leads_out(producer.name):",
        wrong="if root is None:",
        tests=(f"{OF_PAGES}::test_no_name_leads_out_of_the_folder",),
    ),
    Bug(
        name="a rewind on the console deletes what was loaded after its question",
        file="onceload/console/actions/jobs.py",
        correct="    if position != seen:\n",
        wrong="    if position < seen:\n",
        tests=(f"{OF_ACTIONS}::test_a_rewind_of_another_position_than_was_shown_is_refused",),
    ),
    Bug(
        name="the console discards records that its question has not counted",
        file="onceload/console/actions/quarantine.py",
        correct='return asked.number("seen") if asked.values.get("seen") else newest_id(asked.engine, asked.pipeline)',
        wrong="return newest_id(asked.engine, asked.pipeline)",
        tests=(f"{OF_ACTIONS}::test_records_that_came_after_the_question_are_not_discarded",),
    ),
    Bug(
        name="a file that grows is never late",
        file="onceload/lag.py",
        correct="        if known is not None and first == known.first:",
        wrong="        if known is not None and first != known.first:",
        tests=("tests/console/test_lag.py::test_a_file_that_grows_waits_since_it_was_first_seen",),
    ),
    Bug(
        name="a commit does not record its files",
        file="dedup_core/onceload_core/postgres/commit.py",
        correct="    loaded_files.own(connection, taken, commit.session.pipeline, files)\n",
        wrong="",
        tests=(
            f"{OF_LOADED_FILES}::test_a_pipeline_that_is_renamed_while_its_first_load_runs_loads_nothing_a_second_time",
        ),
    ),
    Bug(
        name="a commit takes a file that another pipeline has loaded",
        file="dedup_core/onceload_core/postgres/loaded_files.py",
        correct="        _refuse(connection, pipeline, refused, where)\n",
        wrong="        return\n",
        tests=(
            f"{OF_LOADED_FILES}::test_a_pipeline_that_is_renamed_while_its_first_load_runs_loads_nothing_a_second_time",
            f"{OF_LOADED_FILES}::test_a_commit_waits_for_another_pipeline_that_commits_the_same_file_at_the_same_moment",
        ),
    ),
    Bug(
        name="a file that another pipeline has loaded changes hands",
        file=LOADED_FILES_SQL,
        correct="     WHERE loaded_file.pipeline_id = excluded.pipeline_id AND (loaded_file.name",
        wrong="     WHERE (loaded_file.name",
        tests=(
            f"{OF_LOADED_FILES}::test_a_pipeline_that_is_renamed_while_its_first_load_runs_loads_nothing_a_second_time",
        ),
    ),
    Bug(
        name="a pipeline loads a file again that it has loaded under another name",
        file=LOADED_FILES_SQL,
        correct=" AND (loaded_file.name = excluded.name OR :is_by_content)\n",
        wrong="\n",
        tests=(
            f"{OF_LOADED_FILES}::test_a_commit_is_refused_for_a_file_that_its_pipeline_has_loaded_under_another_name",
        ),
    ),
    Bug(
        name="a plan reads a file again that its pipeline has loaded under another name",
        file=LOADED_FILES_SQL,
        correct=" WHERE pipeline.name <> :pipeline OR (loaded_file.name <> asked.name AND NOT :is_by_content)\n",
        wrong=" WHERE pipeline.name <> :pipeline\n",
        tests=(f"{OF_LOADED_FILES}::test_a_file_at_its_place_is_not_loaded_under_another_name",),
    ),
    Bug(
        name="a path that is widened or narrowed counts as moved",
        file="dedup_core/onceload_core/declaration.py",
        correct="old == moved_from and not _is_nested(old, new)\n",
        wrong="old == moved_from\n",
        tests=(f"{OF_LOADED_FILES}::test_a_path_that_is_widened_or_narrowed_is_not_moved",),
    ),
    Bug(
        name="a path that is spelt differently leads to other files",
        file="spark_jobs/onceload_jobs/files/addresses.py",
        correct='os.path.realpath(Path(path or ".").expanduser())',
        wrong='posixpath.normpath(path or ".")',
        tests=(f"{OF_LOADED_FILES}::test_a_file_is_the_same_however_its_path_is_spelt",),
    ),
    Bug(
        name="a copy belongs to no pipeline",
        file=LOADED_FILES_SQL,
        correct="       AND (copy_of IS NOT NULL OR NOT isempty(consumed))\n), missing",
        wrong="       AND NOT isempty(consumed)\n), missing",
        tests=(f"{OF_LOADED_FILES}::test_a_copy_belongs_to_the_pipeline_that_found_it",),
    ),
    Bug(
        name="a rewind keeps the files that it sets back",
        file="dedup_core/onceload_core/postgres/rewind.py",
        correct="    loaded_files.repair(connection, way.pipeline_id)\n",
        wrong="",
        tests=(f"{OF_LOADED_FILES}::test_files_are_free_again_once_what_was_loaded_of_them_is_rewound",),
    ),
    Bug(
        name="a recovery of state does not record the loaded files",
        file="dedup_core/onceload_core/postgres/recovery.py",
        correct="    loaded_files.repair(connection, pipeline_id)\n",
        wrong="",
        tests=(f"{OF_LOADED_FILES}::test_a_recovery_of_state_records_the_files_that_are_loaded",),
    ),
    Bug(
        name="files stay behind when their table is renamed",
        file="dedup_core/onceload_core/postgres/loaded_tables.py",
        correct="    known = [row for row in rows if row.is_same] or [row for row in rows if row.is_named]\n",
        wrong="    known = [row for row in rows if row.is_named]\n",
        tests=(
            f"{OF_LOADED_FILES}::test_files_follow_their_table_to_its_new_name",
            f"{OF_LOADED_FILES}::test_a_pipeline_that_is_renamed_together_with_its_table_loads_nothing_a_second_time",
        ),
    ),
    Bug(
        name="files of a table are lost in a restored database, or in a copy that takes its name",
        file="dedup_core/onceload_core/postgres/loaded_tables.py",
        correct="    known = [row for row in rows if row.is_same] or [row for row in rows if row.is_named]\n",
        wrong="    known = [row for row in rows if row.is_same]\n",
        tests=(
            f"{OF_LOADED_FILES}::test_files_of_a_restored_database_are_those_of_the_tables_with_their_names",
            f"{OF_LOADED_FILES}::test_files_count_as_loaded_into_a_copy_of_their_table_that_has_taken_its_name",
        ),
    ),
    Bug(
        name="an oid that a restored dump has brought is trusted",
        file="dedup_core/onceload_core/postgres/loaded_tables.sql",
        correct="           AND read_in = CAST(CAST('onceload.loaded_table' AS regclass) AS oid)\n)",
        wrong=")",
        tests=(f"{OF_LOADED_FILES}::test_files_of_a_restored_database_are_those_of_the_tables_with_their_names",),
    ),
    Bug(
        name="a table that takes the name of a renamed one keeps pipelines from following it",
        file="dedup_core/onceload_core/postgres/ledger.sql",
        correct="       to_regclass(:table) IS NULL OR EXISTS (",
        wrong="       to_regclass(:table) IS NULL OR false AND EXISTS (",
        tests=(
            f"{OF_LOADED_FILES}"
            "::test_a_pipeline_follows_its_table_also_if_another_one_has_made_a_new_table_of_the_old_name",
        ),
    ),
    Bug(
        name="a partition and its table have files of their own",
        file="dedup_core/onceload_core/postgres/loaded_tables.sql",
        correct="pg_class.oid = coalesce(CAST(pg_partition_root(to_regclass(:target)) AS oid), to_regclass(:target))",
        wrong="pg_class.oid = to_regclass(:target)",
        tests=(f"{OF_LOADED_FILES}::test_a_partition_and_its_table_are_one",),
    ),
    Bug(
        name="files of a dropped table count as loaded into the next one",
        file="spark_jobs/onceload_jobs/write/target.py",
        correct="    record_table(connection, table_name(target), is_new=True)\n",
        wrong="    record_table(connection, table_name(target))\n",
        tests=(f"{OF_LOADED_FILES}::test_files_of_a_table_that_was_dropped_are_loaded_by_another_pipeline",),
    ),
    Bug(
        name="an upgrade records no loaded files",
        file="migrations/versions/0004_expand_add_loaded_files.py",
        correct="            connection.execute(ADD_FILES, binds)\n",
        wrong="",
        tests=("tests/migrations/test_loaded_files.py::test_files_of_an_absolute_path_are_found_however_it_is_spelt",),
    ),
    Bug(
        name="a relative folder is that of the upgrade",
        file="migrations/versions/0004_expand_add_loaded_files.py",
        correct='.rstrip("/") + "/" if path.startswith("/") else None\n',
        wrong='.rstrip("/") + "/"\n',
        tests=("tests/migrations/test_loaded_files.py::test_a_relative_folder_is_not_that_of_the_upgrade",),
    ),
    Bug(
        name="files below a folder that an upgrade cannot know belong to no pipeline",
        file=LOADED_FILES_SQL,
        correct="ELSE declaration.rest ->> 'source.path' = :path OR declaration.terms ->> 'source.root' = :root END",
        wrong="ELSE false END",
        tests=("tests/migrations/test_loaded_files.py::test_files_that_were_loaded_before_belong_to_their_pipeline",),
    ),
    Bug(
        name="a file below a moved folder is the loaded one by its name",
        file="dedup_core/onceload_core/postgres/producers.py",
        correct="is_elsewhere=row.is_elsewhere",
        wrong="is_elsewhere=False",
        tests=(
            f"{OF_LOADED_FILES}::test_a_file_below_a_moved_folder_that_only_has_the_name_of_a_loaded_one_is_not_loaded",
        ),
    ),
    Bug(
        name="a file below a moved folder is the loaded one by its ends",
        file="spark_jobs/onceload_jobs/plan/file_state.py",
        correct="    is_vouched = has_same_etag_or_none(self.listed, fingerprint) and not is_elsewhere\n",
        wrong="    is_vouched = has_same_etag_or_none(self.listed, fingerprint)\n",
        tests=(
            f"{OF_LOADED_FILES}::test_a_file_of_a_moved_folder_is_read_whole_before_it_counts_as_the_loaded_one",
            f"{OF_LOADED_FILES}::test_files_of_a_moved_folder_go_on_where_they_were_and_belong_to_their_pipeline",
        ),
    ),
    Bug(
        name="files in another working directory are the loaded ones by their names",
        file=LOADED_FILES_SQL,
        correct="has_moved = has_moved OR folder IS NOT NULL",
        wrong="has_moved = has_moved",
        tests=(
            f"{OF_LOADED_FILES}::test_files_of_another_folder_to_which_the_same_path_leads_delete_and_repeat_no_rows",
        ),
    ),
    Bug(
        name="what was planned or staged in another working directory is committed as of this one",
        file="dedup_core/onceload_core/postgres/declaring.py",
        correct="    if locked.folder is not None:\n",
        wrong="    if False:\n",
        tests=(
            f"{OF_LOADED_FILES}::test_a_load_in_one_folder_is_refused_that_another_folder_overtakes",
            f"{OF_LOADED_FILES}::test_a_batch_that_was_staged_in_one_folder_is_given_up_by_a_load_in_another",
        ),
    ),
    Bug(
        name="a last line is late although its file will be sealed",
        file="spark_jobs/onceload_jobs/plan/plan.py",
        correct="note.is_unreadable or not is_by_time)",
        wrong="note.is_unreadable or True)",
        tests=("tests/loads/test_states_agree.py::test_a_last_line_is_not_late_before_its_file_is_sealed",),
    ),
    Bug(
        name="a folder that was moved back is trusted",
        file="dedup_core/onceload_core/postgres/loaded_files.py",
        correct='SQL["distrust_files" if is_moved else "follow_folder"]',
        wrong='SQL["follow_folder"]',
        tests=(f"{OF_LOADED_FILES}::test_a_shorter_file_below_a_folder_that_was_moved_back_deletes_no_rows",),
    ),
    Bug(
        name="a replacement by hand deletes rows of a file below the old folder",
        file="spark_jobs/onceload_jobs/plan/plan.py",
        correct="known.knowledge.is_elsewhere and not choice.accepts_differences",
        wrong="False",
        tests=(
            f"{OF_LOADED_FILES}::test_replacing_a_file_by_hand_deletes_no_rows_of_another_one_below_the_old_folder",
        ),
    ),
    Bug(
        name="a version is known by its number",
        file="dedup_core/onceload_core/declaration.py",
        correct="    if version != in_force:\n",
        wrong="    if version.number != in_force.number:\n",
        tests=(f"{OF_VERSIONS}::test_a_number_that_a_failover_gives_out_again_is_another_version",),
    ),
    Bug(
        name="a pipeline that is renamed while its folder is moved loads everything again",
        file="spark_jobs/onceload_jobs/plan/other_names.py",
        correct="    for other, folder in ledger.others_by_content(pipeline).items():\n",
        wrong="    for other, folder in {}.items():\n",
        tests=(
            f"{OF_LOADED_FILES}"
            "::test_a_pipeline_that_is_renamed_while_its_folder_is_moved_is_refused_by_the_content_of_its_files",
        ),
    ),
    Bug(
        name="equal files of two folders count as moved",
        file="spark_jobs/onceload_jobs/plan/other_names.py",
        correct="        return isinstance(error.__cause__, FileNotFoundError)\n    return False\n",
        wrong="        return isinstance(error.__cause__, FileNotFoundError)\n    return True\n",
        tests=(f"{OF_LOADED_FILES}::test_two_pipelines_load_equal_files_of_two_folders_into_one_table",),
    ),
    Bug(
        name="files of another pipeline below a moved folder are new",
        file="dedup_core/onceload_core/postgres/loaded_files.py",
        correct="        if pipeline.moved_from is not None and found.folder is not None:\n",
        wrong="        if False:\n",
        tests=(f"{OF_LOADED_FILES}::test_files_of_another_pipeline_below_a_moved_folder_stay_its_own",),
    ),
    Bug(
        name="ids that a rewind rolled back are forgotten, so that a program goes on behind them",
        file="spark_jobs/onceload_jobs/load/given_rows.py",
        correct="    owed = SpanSet() if call.owed is None else call.owed.spans\n    if call.owed is not None and",
        wrong="    owed = SpanSet()\n    if call.owed is not None and not owed and",
        tests=(
            f"{OF_REWOUND_ROWS}::test_ids_behind_rewound_ones_are_refused_with_the_ids_that_are_owed[staged]",
            "tests/loads/test_rewound_sequences.py::test_a_program_is_refused_exactly_if_it_leaves_out_rewound_rows",
        ),
    ),
    Bug(
        name="only the ids of a program that count up are asked for again after a rewind",
        file="spark_jobs/onceload_jobs/load/given_rows.py",
        correct="    if call.owed is not None and (left_out",
        wrong="    if call.is_without_gaps and call.owed is not None and (left_out",
        tests=(f"{OF_REWOUND_ROWS}::test_ids_of_a_column_are_asked_for_again_too[staged]",),
    ),
    Bug(
        name="what an earlier rewind rolled back is forgotten at the next one",
        file="dedup_core/onceload_core/postgres/rewound.sql",
        correct="WHERE pipeline_id = :pipeline_id AND kind = 'rewind'\n)",
        wrong="WHERE pipeline_id = :pipeline_id AND kind = 'rewind' ORDER BY position DESC LIMIT 1\n)",
        tests=(f"{OF_REWOUND_ROWS}::test_what_several_rewinds_rolled_back_is_owed",),
    ),
    Bug(
        name="what is owed is looked up in the state instead of the ledger",
        file="dedup_core/onceload_core/postgres/rewound.sql",
        correct="      LEFT JOIN onceload.producer AS live ON",
        wrong="      JOIN onceload.producer AS live ON",
        tests=(f"{OF_REWOUND_ROWS}::test_a_lost_row_of_the_producer_changes_nothing_about_what_is_owed",),
    ),
    Bug(
        name="a file that is gone after a rewind is not missed",
        file="spark_jobs/onceload_jobs/verify/rewound.py",
        correct="            if reason := self._lost.why(each):",
        wrong="            if (reason := self._lost.why(each)) and each.fingerprint is None:",
        tests=(f"{OF_REWOUND}::test_a_file_that_is_gone_after_a_rewind_is_a_difference",),
    ),
    Bug(
        name="a file that is loaded again after a rewind is compared with itself",
        file="dedup_core/onceload_core/postgres/rewound.sql",
        correct="           AND receipt.position < max(owed.position)\n",
        wrong="",
        tests=(
            f"{OF_REWOUND}::test_a_file_of_which_a_part_is_loaded_after_a_rewind_is_compared_with_what_it_was_before",
        ),
    ),
    Bug(
        name="a rewind does not say that files are gone",
        file="spark_jobs/onceload_jobs/recover/rewind.py",
        correct="        return replace(found, lost=tuple(_lost(declared, engine, found)))\n",
        wrong="        return found\n",
        tests=(f"{OF_REWOUND}::test_a_rewind_names_the_files_that_cannot_bring_their_rows_again",),
    ),
    Bug(
        name="values of a dropped column that a load had added are not named",
        file="spark_jobs/onceload_jobs/verify/reread.py",
        correct="        if read.unknown:\n",
        wrong="        if False:\n",
        tests=(
            "tests/loads/test_verify_columns.py"
            "::test_each_value_of_a_column_that_a_load_had_added_is_named_if_the_column_is_dropped",
        ),
    ),
    Bug(
        name="rows of a replaced file are counted as compared and as not compared",
        file="spark_jobs/onceload_jobs/verify/values.py",
        correct="            if file.is_replaced or not file.is_latest or file.producer_id in self.unproven:\n",
        wrong="            if others.isdisjoint(position for position, _ in file.spans) and (\n"
        "                file.is_replaced or not file.is_latest or file.producer_id in self.unproven\n            ):\n",
        tests=(
            "tests/loads/test_verify_columns.py"
            "::test_a_file_that_was_replaced_under_a_new_version_is_compared_and_no_note_says_otherwise",
        ),
    ),
    Bug(
        name="values of rows whose records name their producers are not compared",
        file="spark_jobs/onceload_jobs/verify/values.sql",
        correct="              AND (ROW({expected_values}) IS NOT DISTINCT FROM ROW({found_values})))\n",
        wrong="              AND (ROW({expected_values}) IS NOT DISTINCT FROM ROW({found_values}) OR true))\n",
        tests=("tests/loads/test_verify_named.py::test_a_changed_value_is_named_by_its_producer_and_id",),
    ),
    Bug(
        name="rows that no compared file explains count as compared",
        file="spark_jobs/onceload_jobs/verify/at_once.py",
        correct="            self._found.compared -= sum(counted.values())\n",
        wrong="",
        tests=("tests/loads/test_verify_named.py::test_rows_of_a_file_that_is_not_compared_are_counted_in_a_note",),
    ),
    Bug(
        name="each worker of verify compares with the rows of its own moment",
        file="dedup_core/onceload_core/postgres/audit.py",
        correct='        connection.execute(SQL["share"], {"name": name})\n',
        wrong="        del name\n",
        tests=(
            f"{OF_VERIFYING_WORKERS}::test_all_workers_compare_with_the_rows_of_the_moment_at_which_the_command_began",
        ),
    ),
    Bug(
        name="a part of a file takes the rows of its other parts for surplus",
        file="spark_jobs/onceload_jobs/verify/ranges.py",
        correct="        replace(whole, records=head, last=at - 1, bytes=at - records.first),\n",
        wrong="        replace(whole, records=head, bytes=at - records.first),\n",
        tests=(f"{OF_VERIFYING_WORKERS}::{_SHARED}",),
    ),
    Bug(
        name="what verify names depends on which worker answers first",
        file="spark_jobs/onceload_jobs/verify/differing_rows.py",
        correct="            first = sorted(self.rows[kind], key=lambda row: row.place)[: asked(findings, kind)]\n",
        wrong="            first = self.rows[kind][: asked(findings, kind)]\n",
        tests=(f"{OF_VERIFYING_WORKERS}::{_SHARED}",),
    ),
    Bug(
        name="a longer file with other content is ahead after a rebuild",
        file="spark_jobs/onceload_jobs/recover/rebuild.py",
        correct="    return state.fingerprint is None or _still_has(source, state)\n",
        wrong="    return True\n",
        tests=("tests/loads/test_rebuild.py::test_a_longer_file_with_other_content_is_not_ahead",),
    ),
    Bug(
        name="a dead letter that was never read looks like a new file to verify",
        file="spark_jobs/onceload_jobs/verify/gaps.py",
        correct="({file.size:,} bytes){self._delivery_of(file.name)}",
        wrong="({file.size:,} bytes)",
        tests=("tests/loads/test_verify_gaps.py::test_a_file_that_was_never_read_is_named_as_a_dead_letter",),
    ),
    Bug(
        name="a stage that the server lost holds its files",
        file="dedup_core/onceload_core/postgres/stages.sql",
        correct="relname = CAST(kept.stage || ' proof' AS name)), 0) = 0",
        wrong="relname = CAST(kept.stage || ' proof' AS name)), 0) < 0",
        tests=("tests/loads/test_lost_stages.py::test_a_stage_that_is_lost_holds_nothing",),
    ),
    Bug(
        name="the claim of a lost stage is seen as ended and never ends",
        file=LEDGER_SQL,
        correct="\n        OR delivery.delivery_id IN ({lost}));",
        wrong=");",
        tests=(
            "tests/loads/test_lost_stages.py::test_upkeep_ends_the_claim_of_a_lost_stage_and_keeps_that_of_another",
        ),
    ),
    Bug(
        name="a run that finds only files of a kept batch is a success",
        file="plugins/onceload_airflow/operators.py",
        correct="        if not found.is_anything_new and held:\n",
        wrong="        if False:\n",
        tests=(
            f"{OF_OUTCOMES}::test_a_run_that_could_only_load_what_a_kept_batch_holds_is_tried_again_and_names_the_batch",
        ),
    ),
    Bug(
        name="a run that leaves out the files of a kept batch is a success",
        file="plugins/onceload_airflow/operators.py",
        correct="            return found.held\n        is_left",
        wrong='            return ""\n        is_left',
        tests=(f"{OF_OUTCOMES}::test_a_run_that_loaded_all_but_what_a_kept_batch_holds_is_not_a_success",),
    ),
    Bug(
        name="a backfill that left out files of another run is a success",
        file="plugins/onceload_airflow/operators.py",
        correct="is_left = found.is_busy or found.is_anything_new\n",
        wrong="is_left = False\n",
        tests=(f"{OF_OUTCOMES}::test_a_file_that_is_free_again_is_left_to_the_next_run_only_if_there_is_one",),
    ),
    Bug(
        name="a run of one day is skipped beside another load of its files",
        file="plugins/onceload_airflow/asked.py",
        correct="return run.run_type in _REPEATED and not is_by_day(pipeline_file)",
        wrong="return run.run_type in _REPEATED",
        tests=(
            f"{OF_OUTCOMES}"
            "::test_a_run_beside_a_live_load_of_its_file_is_skipped_only_if_a_later_run_loads_what_is_left",
        ),
    ),
    Bug(
        name="a task waits forever for a run that was deleted",
        file="plugins/onceload_airflow/started_runs.py",
        correct="return None if await self._count() else DELETED",
        wrong="return None if await self._count() >= 0 else DELETED",
        tests=(
            "tests/dags/test_started_runs.py"
            "::test_a_task_ends_with_the_run_that_it_has_started_and_fails_if_that_is_deleted",
        ),
    ),
    Bug(
        name="a run id that begins with a hyphen is read as an option",
        file="plugins/onceload_airflow/operators.py",
        correct='            f"--batch={batch_of(context)}",\n',
        wrong='            *("--batch", str(batch_of(context))),\n',
        tests=(f"{OF_OUTCOMES}::test_a_run_whose_id_begins_with_a_hyphen_loads",),
    ),
    Bug(
        name="a load whose command line is refused is retried",
        file="plugins/onceload_airflow/failures.py",
        correct="    if exit_code == ExitCode.WRONG_USE:\n",
        wrong="    if False:\n",
        tests=(f"{OF_OUTCOMES}::test_a_load_whose_command_line_is_refused_is_not_tried_again",),
    ),
    Bug(
        name="the rows that the server took are not compared with their piece",
        file="spark_jobs/onceload_jobs/publish/batch_road.py",
        correct="            if copied != block.rows:\n",
        wrong="            if False:\n",
        tests=(
            "tests/loads/test_stage_folder.py::test_a_piece_of_which_the_server_took_more_or_fewer_rows_is_not_published",
        ),
    ),
    Bug(
        name="a batch of which the stage took other rows is not staged again",
        file="spark_jobs/onceload_jobs/publish/table_road.py",
        correct="    except RowsDiffer as error:\n        raise StageLost(stage.name) from error\n",
        wrong="    except ZeroDivisionError as error:\n        raise StageLost(stage.name) from error\n",
        tests=(
            "tests/loads/test_stage_folder.py::test_a_piece_of_which_the_server_took_more_or_fewer_rows_is_not_published",
        ),
    ),
    Bug(
        name="a transaction that waits for its workers is ended by the server",
        file="spark_jobs/onceload_jobs/publish/batch_road.py",
        correct="        with alive.while_it_waits():\n",
        wrong="        if alive:\n",
        tests=("tests/loads/test_at_once.py::test_a_transaction_that_waits_for_its_workers_is_kept",),
    ),
    Bug(
        name="rows that a stage's table lost count as duplicates",
        file="spark_jobs/onceload_jobs/publish/postgres_transform.py",
        correct=".scalar_one() != count:",
        wrong=".scalar_one() < 0:",
        tests=(f"{OF_STAGE_FOLDER}::test_a_batch_whose_table_lost_a_row_is_staged_again",),
    ),
    Bug(
        name="made rows that a stage's table lost count as filtered",
        file="spark_jobs/onceload_jobs/publish/commits.py",
        correct="    if sum(each.rows for each in found) != rows:\n",
        wrong="    if False:\n",
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_made_rows_that_the_stage_loses_are_made_again",),
    ),
    Bug(
        name="filtered is what rows are missing to the number of records",
        file="spark_jobs/onceload_jobs/publish/commits.py",
        correct="filtered=new - sum(named.values())",
        wrong="filtered=max(0, new - sum(rows_of.values()))",
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_a_query_makes_its_rows_once",),
    ),
    Bug(
        name="records that no row names are filtered, although some rows name none",
        file="spark_jobs/onceload_jobs/publish/commits.py",
        correct=" if name_all else 0)",
        wrong=")",
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_a_query_makes_its_rows_once",),
    ),
    Bug(
        name="rows of a transform may name a file of which nothing was read",
        file="spark_jobs/onceload_jobs/publish/commits.py",
        correct="            if each.producer_id not in read:\n                raise lineage_refused(job, "
        '"rows name a file of which this batch has read nothing")\n',
        wrong="            if each.producer_id not in read:\n                continue\n",
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_rows_that_name_records_that_were_not_read_are_refused",),
    ),
    Bug(
        name="rows of a transform may have half of a lineage",
        file="spark_jobs/onceload_jobs/publish/commits.py",
        correct="any(each.producer_id is None or each.without_record for",
        wrong="any(each.producer_id is None for",
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_rows_that_name_records_that_were_not_read_are_refused",),
    ),
    Bug(
        name="rows of a transform in Spark may have half of a lineage",
        file="spark_jobs/onceload_jobs/work/spark/transform.py",
        correct="    if job.has_lineage and _has",
        wrong="    if job.records_have_own_ids and _has",
        tests=("tests/loads/test_spark.py::test_rows_of_a_transform_that_name_no_record_that_was_read_are_refused",),
    ),
    Bug(
        name="rows may name more records than were read",
        file="spark_jobs/onceload_jobs/publish/commits.py",
        correct="    if any(named[producer_id] > records ",
        wrong="    if any(named[producer_id] < 0 ",
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_rows_that_name_records_that_were_not_read_are_refused",),
    ),
    Bug(
        name="a record with rows in two files of a transform counts twice",
        file="spark_jobs/onceload_jobs/publish/commits.py",
        correct="        raise SharedRecords\n",
        wrong="        pass\n",
        tests=(
            "tests/loads/test_spark.py::test_a_transform_may_read_its_records_several_times_or_make_nothing_of_them",
        ),
    ),
    Bug(
        name="a transform may be several statements",
        file="spark_jobs/onceload_jobs/publish/postgres_transform.py",
        correct="            _refuse_several(connection, query)\n",
        wrong="",
        tests=(f"{OF_POSTGRES_TRANSFORMS}::test_a_query_that_cannot_be_meant_is_refused",),
    ),
    Bug(
        name="a kept batch that can no longer be published keeps its files",
        file="spark_jobs/onceload_jobs/load/staged/kept_batch.py",
        correct="so release its files.\n            batches.give_up(kept)\n",
        wrong=(
            "so release its files.\n            if not isinstance(error, ColumnsDiffer):\n"
            "                batches.give_up(kept)\n"
        ),
        tests=(f"{OF_KEPT}::test_a_batch_whose_new_column_another_load_added_with_another_type_is_given_up",),
    ),
    Bug(
        name="rows are written to a column that the table has begun to generate",
        file="spark_jobs/onceload_jobs/write/target.py",
        correct="            _refuse_generated(table, wanted, fit.generated)\n",
        wrong="",
        tests=(f"{OF_KEPT}::test_a_batch_whose_table_was_altered_is_refused_in_words",),
    ),
    Bug(
        name="a stored record is read by the positions and signs of today",
        file="spark_jobs/onceload_jobs/recover/stored_fields.py",
        correct="source, differences = layout.applied_to(declared.source), layout.differences(now)",
        wrong="source, differences = declared.source, layout.differences(now)",
        tests=(
            f"{OF_STORED_LAYOUTS}::test_a_retry_after_an_edit_finds_the_values_of_then_under_their_names",
            "tests/loads/test_storm.py::test_a_record_is_retried_by_the_layout_that_it_was_written_in",
        ),
    ),
    Bug(
        name="a stored record without a header is read by the order of columns of today",
        file="spark_jobs/onceload_jobs/recover/stored_fields.py",
        correct="differences=differences, header=layout.names\n",
        wrong="differences=differences, header=declared.column_names\n",
        tests=(f"{OF_STORED_LAYOUTS}::test_a_retry_after_an_edit_finds_the_values_of_then_under_their_names",),
    ),
    Bug(
        name="a stored record gets null for a column that it has no field for",
        file="spark_jobs/onceload_jobs/recover/stored_fields.py",
        correct="lacking = [name for name in declared.column_names if name not in there]",
        wrong="lacking = [name for name in declared.column_names if not there]",
        tests=(f"{OF_STORED_LAYOUTS}::test_a_record_without_a_field_for_a_renamed_column_stays_with_its_reason",),
    ),
    Bug(
        name="a version of the release before never gets its layout",
        file="dedup_core/onceload_core/postgres/declaring.py",
        correct="        if not found.has_layout:\n",
        wrong="        if found.has_layout:\n",
        tests=(
            f"{OF_STORED_LAYOUTS}"
            "::test_the_next_load_keeps_the_layout_of_a_version_of_the_release_before_and_takes_no_new_one",
        ),
    ),
    Bug(
        name="a record of the release before is read by the options of today",
        file="spark_jobs/onceload_jobs/plan/declaration_texts.py",
        correct="if is_as_now and (types or not needs_types) else None",
        wrong="if types or not needs_types else None",
        tests=(f"{OF_STORED_LAYOUTS}::test_a_record_of_the_release_before_stays_after_an_edit_of_its_layout",),
    ),
    Bug(
        name="the stored text of a value is read as another type that writes it otherwise",
        file="spark_jobs/onceload_jobs/recover/stored_fields.py",
        correct="    return is_alike\n",
        wrong="    return True\n",
        tests=(
            "tests/unit/test_layouts.py"
            "::test_a_stored_value_that_means_the_same_in_another_type_is_the_value_of_the_file",
        ),
    ),
    Bug(
        name="a fix that is bad too replaces the reason of the stored record",
        file="spark_jobs/onceload_jobs/recover/retry.py",
        correct="if each not in stored.fixed}",
        wrong="if each}",
        tests=(f"{OF_RETRIES}::test_a_fix_that_is_bad_too_leaves_the_record_its_own_reason",),
    ),
    Bug(
        name="a stored 32-bit float is retried as the double with its few digits",
        file="spark_jobs/onceload_jobs/formats/parquet/values.py",
        correct="        case Real() if column_type is None or column_type.kind in FLOATS:\n",
        wrong="        case Real() if column_type is None:\n",
        tests=(
            "tests/loads/test_typed_formats.py"
            "::test_a_float_of_32_bits_is_retried_as_the_value_that_a_load_gives[direct-parquet]",
        ),
    ),
    Bug(
        name="a stored 32-bit float is read with the digits that it has in another type",
        file="spark_jobs/onceload_jobs/recover/stored_fields.py",
        correct="    return not _may_have_other_digits(raw, then, now) and (",
        wrong="    return (",
        tests=(
            "tests/unit/test_layouts.py"
            "::test_a_stored_value_that_means_the_same_in_another_type_is_the_value_of_the_file",
        ),
    ),
    Bug(
        name="a FIFO in place of a file is read",
        file="spark_jobs/onceload_jobs/files/reading.py",
        correct="        _refuse_others(os.fstat(descriptor))\n",
        wrong="        os.fstat(descriptor)\n",
        tests=("tests/unit/files/test_streams.py::test_only_a_regular_file_is_opened",),
    ),
    Bug(
        name="verify does not name what the source has and no load reads",
        file="spark_jobs/onceload_jobs/verify/files.py",
        correct="        gaps.note_refused(note)\n",
        wrong="        del note\n",
        tests=(
            "tests/loads/test_verify.py::test_a_folder_that_cannot_be_listed_is_named_as_not_compared",
            "tests/loads/test_verify.py"
            "::test_files_with_names_that_cannot_be_loaded_are_named_with_those_that_are_not_loaded",
        ),
    ),
    Bug(
        name="a file in a folder that cannot be listed is called gone",
        file="onceload/explanation.py",
        correct="    return own, own or of_folder\n",
        wrong="    return own, own\n",
        tests=("tests/loads/test_why.py::test_a_file_in_a_folder_that_cannot_be_listed_is_not_called_gone",),
    ),
    Bug(
        name="commands leave out the values of placeholders that were not given",
        file="onceload/named_files.py",
        correct='    values = (*given, *(f"{name}=VALUE" for name in lacking))\n',
        wrong="    values = given\n",
        tests=(f"{OF_ADVICE}::test_the_next_step_of_a_state_has_values_and_quotes",),
    ),
    Bug(
        name="a name that begins with a hyphen is printed as an option",
        file="dedup_core/onceload_core/commands.py",
        correct='f"--only={quote(escape(file))}"',
        wrong='f"--only {quote(escape(file))}"',
        tests=(f"{OF_ADVICE}::test_the_command_that_reloads_a_file_replaces_no_other",),
    ),
    Bug(
        name="rows of a program are advised to be written into a file",
        file="dedup_core/onceload_core/advice.py",
        correct="        if not self.has_source:\n",
        wrong="        if False:\n",
        tests=(f"{OF_ADVICE}::test_rows_of_a_program_are_given_again_and_late_rows_overwrite_none",),
    ),
    Bug(
        name="a printed command reloads all files that match the name of one",
        file="dedup_core/onceload_core/commands.py",
        correct="quote(escape(file))",
        wrong="quote(file)",
        tests=(f"{OF_ADVICE}::test_the_command_that_reloads_a_file_replaces_no_other",),
    ),
    Bug(
        name="the reason of a refused row names the stage instead of the target",
        file="spark_jobs/onceload_jobs/write/find_refused.py",
        correct="    return first_line(error).replace(f'\"{written}\"', f'\"{target}\"')",
        wrong="    return first_line(error)",
        tests=(
            "tests/loads/test_refused.py"
            "::test_every_refused_row_is_kept_with_its_own_bytes_and_the_name_of_the_target[staged]",
        ),
    ),
    Bug(
        name="a fix loads whatever record has its id, file and sequence id now",
        file="spark_jobs/onceload_jobs/recover/retry.py",
        correct="        if fix is not None and fix.digest != record.digest:\n",
        wrong="        if fix is not None and not fix.digest:\n",
        tests=("tests/loads/test_quarantine.py::test_a_fix_of_another_record_at_the_same_place_loads_nothing",),
    ),
    Bug(
        name="a form loads its fix for whatever bytes the record has now",
        file="onceload/console/actions/quarantine.py",
        correct='digest=asked.values.get("seen", ""))}',
        wrong="digest=record.digest)}",
        tests=("tests/console/test_actions.py::test_a_fix_of_other_bytes_than_the_form_showed_loads_nothing",),
    ),
    Bug(
        name="a retry settles a record whose bytes are not those that it read",
        file=LEDGER_SQL,
        correct="   AND (offered.digest IS NULL OR encode(sha256(quarantine.raw), 'hex') = offered.digest)\n",
        wrong="",
        tests=("tests/contract/test_settlements.py::test_a_record_with_other_bytes_than_were_read_is_not_settled",),
    ),
    Bug(
        name="a retry is advised for a merge of rows whose record is unknown",
        file="dedup_core/onceload_core/advice.py",
        correct="is_merge and _drops_lineage(transform)",
        wrong="False",
        tests=(f"{OF_ADVICE}::test_the_advice_on_a_quarantined_record_can_be_done",),
    ),
    Bug(
        name="a reload is advised where rows cannot be replaced",
        file="dedup_core/onceload_core/advice.py",
        correct="            and not is_merge\n",
        wrong="",
        tests=(f"{OF_ADVICE}::test_what_a_version_says_is_what_the_pipeline_file_allows",),
    ),
    Bug(
        name="a message names a word instead of the pipeline file",
        file="onceload/terminal.py",
        correct="    return text.replace(PIPELINE_FILE, _NAMED.get())\n",
        wrong="    return text\n",
        tests=(f"{OF_ADVICE}::test_the_advice_on_a_rewritten_file_can_be_done",),
    ),
    Bug(
        name="a stored time of the end of a day is loaded, which no time of day is",
        file="spark_jobs/onceload_jobs/formats/casts.py",
        correct="            return _outside(values.cast(pa.int64()), (0, DAY_US - 1))\n",
        wrong="            return fine\n",
        tests=(f"{OF_STORED}::test_a_time_outside_of_a_day_is_kept_as_it_is_stored_and_never_loaded_as_another",),
    ),
    Bug(
        name="values inside others are converted as Arrow does, which wraps times",
        file="spark_jobs/onceload_jobs/formats/parquet/scalars.py",
        correct="    return quickly if _is_exact(arrow) else carefully\n",
        wrong="    return quickly\n",
        tests=(f"{OF_STORED}::test_a_time_outside_of_a_day_is_kept_as_it_is_stored_and_never_loaded_as_another",),
    ),
    Bug(
        name="a time a nanosecond before midnight is midnight",
        file="spark_jobs/onceload_jobs/formats/plain_values.py",
        correct="    return pc.if_else(before_midnight, -1, _rounded(times)).cast",
        wrong="    return _rounded(times).cast",
        tests=(f"{OF_STORED}::test_a_time_that_is_rounded_to_the_end_of_the_day_is_kept_in_its_own_unit",),
    ),
    Bug(
        name="a value that cannot be read is kept as a text that a column declared later accepts",
        file="spark_jobs/onceload_jobs/formats/parquet/values.py",
        correct="    ((UnreadableValue,), _json_of_unreadable),\n",
        wrong="",
        tests=(f"{OF_STORED}::test_an_undeclared_time_outside_of_a_day_is_not_loaded_once_its_column_is_declared",),
    ),
    Bug(
        name="a name that repeats inside a jsonb is dropped where many are read together",
        file="spark_jobs/onceload_jobs/formats/json_values.py",
        correct="    return len(values) == len(texts) and is_same\n",
        wrong="    return len(values) == len(texts)\n",
        tests=(f"{OF_STORED}::test_a_name_that_an_object_has_twice_is_bad_at_any_depth_in_every_format",),
    ),
    Bug(
        name="a name that repeats inside a jsonb is dropped where one is read alone",
        file="spark_jobs/onceload_jobs/formats/json_values.py",
        correct=" > DEPTH_MAX or not has_each_name_once(raw):\n",
        wrong=" > DEPTH_MAX:\n",
        tests=(f"{OF_STORED}::test_a_name_that_an_object_has_twice_is_bad_at_any_depth_in_every_format",),
    ),
    Bug(
        name="a colon in an escape hides that a name repeats",
        file="spark_jobs/onceload_jobs/formats/json_values.py",
        correct="        return _HIDDEN_COLON not in raw and _encode",
        wrong="        return _encode",
        tests=(
            "tests/unit/sources/test_values.py::test_a_json_value_that_the_type_does_not_take_is_refused_with_a_reason",
        ),
    ),
    Bug(
        name="periods of pandas in a file are loaded as numbers",
        file="spark_jobs/onceload_jobs/formats/parquet/row_groups.py",
        correct="    refuse_extensions(url, file.schema_arrow, wanted)\n",
        wrong="",
        tests=(f"{OF_STORED}::test_a_file_with_an_extension_type_that_is_not_known_is_refused_and_the_others_load",),
    ),
    Bug(
        name="days of 64 bits are cut and wrapped on their way from a program",
        file="spark_jobs/onceload_jobs/formats/parquet/tables.py",
        correct="    return column if stored == column.type else column.cast(stored)\n",
        wrong="    return column\n",
        tests=("tests/python/test_load_rows.py::test_days_with_a_time_are_not_cut",),
    ),
    Bug(
        name="a union inside a record ends the process",
        file="spark_jobs/onceload_jobs/formats/plain_values.py",
        correct="        return [array.field(at) for at in range(array.type.num_fields)]\n",
        wrong="        return array.flatten()\n",
        tests=("tests/unit/draft/test_typed_files.py::test_no_avro_file_ends_the_process",),
    ),
    Bug(
        name="a record of a JSON array that the server refused is kept as its columns",
        file="spark_jobs/onceload_jobs/read/bad_records.py",
        correct="        for part in self._arrays:\n",
        wrong="        for part in self._arrays[:0]:\n",
        tests=(f"{OF_STORED}::test_a_record_of_a_json_array_that_the_server_refused_is_retried_as_the_file_has_it",),
    ),
    Bug(
        name="a zero with an exponent that Postgres refuses is a number",
        file="spark_jobs/onceload_jobs/formats/values.py",
        correct='        raise _refused(text, column_type, "its exponent is out of range")\n',
        wrong="        return Decimal(0)\n",
        tests=("tests/contract/test_values_match_postgres.py::test_what_one_side_alone_accepts_is_named_on_the_page",),
    ),
    Bug(
        name="the server of the embedded data does not hold its lock",
        file="onceload/embedded.py",
        correct="inherited=(lock.fileno(),)",
        wrong="inherited=()",
        tests=("tests/integration/test_ownership.py::test_a_container_uses_the_server_of_the_host",),
    ),
    Bug(
        name="an owner of the embedded data on another host is ignored",
        file="onceload/ownership.py",
        correct="    raise _owned(folder, owner)\n",
        wrong="    return owner\n",
        tests=(
            "tests/integration/test_ownership.py::"
            "test_a_server_that_may_run_on_another_host_is_not_started_a_second_time",
        ),
    ),
    Bug(
        name="a host takes the embedded data that another one has just taken",
        file="onceload/ownership.py",
        correct="        _file(folder).hardlink_to(new)\n",
        wrong="        leave(folder)\n        _file(folder).hardlink_to(new)\n",
        tests=(
            "tests/integration/test_ownership.py::test_two_hosts_that_start_at_the_same_moment_do_not_both_own_the_data",
        ),
    ),
    Bug(
        name="a Spark whose JVM was killed at its start is taken for a wrong setting",
        file="spark_jobs/onceload_jobs/work/spark/classic.py",
        correct="    return 0 < _exit_code(error) < 128\n",
        wrong="    return True\n",
        tests=("tests/loads/test_spark_start.py::test_a_jvm_that_is_killed_while_spark_starts_may_be_tried_again",),
    ),
    Bug(
        name="the error of a load does not report the rows that it had committed",
        file="spark_jobs/onceload_jobs/load/load.py",
        correct="            self._note_committed(error)\n",
        wrong="",
        tests=("tests/loads/test_local.py::test_the_error_of_a_load_says_what_is_loaded",),
    ),
    Bug(
        name="an error with an odd fact cannot be printed",
        file="dedup_core/onceload_core/errors.py",
        correct="            cls.__str__ = never_failing(message)  # type: ignore[method-assign]\n",
        wrong="            pass\n",
        tests=("tests/unit/test_errors.py::test_an_error_is_printed_whatever_its_facts_are",),
    ),
    Bug(
        name="a lease from a clock that was ahead blocks loads until the clock has caught up",
        file=BOARD_SQL,
        correct="THEN 0 ELSE :kept_s END)\n WHERE pipeline_id",
        wrong="THEN 0 ELSE :kept_s END)\n WHERE false AND pipeline_id",
        tests=(
            "tests/loads/test_delivery_commands.py::test_a_lease_from_a_clock_that_was_ahead_by_days_blocks_nothing",
        ),
    ),
    Bug(
        name="the claim of a planner is not listed among the deliveries",
        file="dedup_core/onceload_core/postgres/by_hand.sql",
        correct="(delivery.work IS NOT NULL OR (delivery.deadline_at",
        wrong="(delivery.work IS NOT NULL AND (delivery.deadline_at",
        tests=(
            "tests/loads/test_delivery_commands.py::"
            "test_the_claim_of_a_lost_planner_is_shown_with_its_end_and_released",
        ),
    ),
    Bug(
        name="the report of a load does not count the old rows that it deleted",
        file="spark_jobs/onceload_jobs/load/report.py",
        correct="if outcome.has_replaced else {}",
        wrong="if not outcome.has_replaced else {}",
        tests=(
            "tests/loads/test_rewritten_advice.py::"
            "test_the_command_that_replaces_a_rewritten_file_is_named_and_reports_the_rows_that_it_deleted",
        ),
    ),
    Bug(
        name="a copy of the embedded data is taken for the disk of its owner",
        file="onceload/ownership.py",
        correct="owner.inode == here.inode and ",
        wrong="",
        tests=(
            "tests/integration/test_ownership.py::"
            "test_in_a_copy_of_the_folder_a_container_of_that_name_may_be_another_one",
        ),
    ),
    Bug(
        name="containers of two hosts that have one name share the embedded data",
        file="onceload/ownership.py",
        correct="    return bool(here.machine) or (owner.inode == here.inode and _is_on_local_disk(folder))\n",
        wrong="    return True\n",
        tests=(
            "tests/integration/test_ownership.py::"
            "test_a_container_that_keeps_its_name_is_the_same_one_on_a_local_disk_alone",
        ),
    ),
    Bug(
        name="a local disk is taken for one that no other host serves",
        file="onceload/ownership.py",
        correct="        return False\n    # Containers",
        wrong="        return owner.inode == here.inode and _is_on_local_disk(folder)\n    # Containers",
        tests=(
            "tests/integration/test_ownership.py::"
            "test_a_host_that_reaches_the_folder_through_another_one_may_still_serve_it",
        ),
    ),
    Bug(
        name="a source that cannot be read is shown as fine",
        file="onceload/states.py",
        correct="        yield Cause(state=State.UNREADABLE, reason=found.failed.reason, next=what_now)\n",
        wrong="        pass\n",
        tests=(f"{OF_STATES}[a source that cannot be read-staged]",),
    ),
    Bug(
        name="a source that does not answer leaves the states as they were",
        file="onceload/states.py",
        correct="{name: behind.unknown(name) for name in (*behind.described, *behind.failed)}",
        wrong="{name: behind.failed.get(name) for name in (*behind.described, *behind.failed)}",
        tests=(
            "tests/loads/test_states_agree.py::test_a_source_that_does_not_answer_is_shown_for_all_that_wait_for_it",
        ),
    ),
    Bug(
        name="a renamed pipeline leaves its last outcome and its waits behind",
        file="migrations/versions/0007_expand_follow_moves_and_names.py",
        correct="    UPDATE onceload.attempt SET pipeline = NEW.name WHERE pipeline = OLD.name;\n",
        wrong="",
        tests=("tests/loads/test_attempts.py::test_a_rename_takes_the_last_outcome_and_the_waits_along",),
    ),
    Bug(
        name="a pipeline whose loads were refused keeps another one from taking its name",
        file="migrations/versions/0007_expand_follow_moves_and_names.py",
        correct="    DELETE FROM onceload.pipeline WHERE pipeline_id = refused;\n",
        wrong="",
        tests=("tests/loads/test_attempts.py::test_a_rename_takes_the_last_outcome_and_the_waits_along",),
    ),
    Bug(
        name="records that a rewind rolled back are not missed while a last line waits in their file",
        file="onceload/lag.py",
        correct="{file.listed.name for file in plan.to_read} | {note.name for note in plan.notes if note.is_busy}",
        wrong="set(plan.waiting)",
        tests=(
            "tests/loads/test_states_agree.py::"
            "test_rolled_back_records_are_missed_though_a_last_line_waits_in_their_file",
        ),
    ),
    Bug(
        name="a last line without its newline waits unseen",
        file="spark_jobs/onceload_jobs/plan/plan.py",
        correct="if note.leaves_records and (note.is_busy or note.is_unreadable or not is_by_time)",
        wrong="if note.is_busy or note.is_unreadable",
        tests=(
            f"{OF_STATES}[a last line has no newline-staged]",
            "tests/loads/test_states_agree.py::test_files_behind_one_that_is_not_complete_wait_since_they_came",
            "tests/loads/test_states_agree.py::test_a_packed_file_that_breaks_off_waits_until_it_is_complete",
        ),
    ),
    Bug(
        name="the last line of a file that grows waits since the first one did",
        file="dedup_core/onceload_core/postgres/attempts.sql",
        correct="    ON CONFLICT (pipeline, name) DO UPDATE SET since = excluded.since\n",
        wrong="    ON CONFLICT (pipeline, name) DO UPDATE SET since = waiting_file.since\n",
        tests=(f"{OF_STATES}[a last line has no newline just now-staged]",),
    ),
    Bug(
        name="a load of one file ends the wait of all others",
        file="dedup_core/onceload_core/postgres/attempts.py",
        correct="        return self.has_listed and self.exit_code is ExitCode.DONE",
        wrong="        return self.left is not None and self.exit_code is ExitCode.DONE",
        tests=(f"{OF_ATTEMPTS}::test_a_load_of_one_file_has_not_looked_at_the_others",),
    ),
    Bug(
        name="a load of one file forgets since when others have been waiting",
        file="dedup_core/onceload_core/postgres/attempts.sql",
        correct="       AND (:knows_all OR EXISTS (",
        wrong="       AND (true OR EXISTS (",
        tests=(f"{OF_STATES}[a file that a failed load has left is late, and grows-staged]",),
    ),
    Bug(
        name="a load of one day ends the wait of files of other days",
        file="spark_jobs/onceload_jobs/load/load.py",
        correct="        is_whole = not settings.choice.files and declared.source.is_whole\n",
        wrong="        is_whole = not settings.choice.files\n",
        tests=(f"{OF_ATTEMPTS}::test_a_load_of_one_day_ends_no_wait_of_another_day",),
    ),
    Bug(
        name="files that a failed load leaves are not remembered",
        file="dedup_core/onceload_core/postgres/attempts.py",
        correct="        _leave(connection, pipeline, names, begun_at=begun_at)\n",
        wrong="",
        tests=(f"{OF_STATES}[a file that a failed load has left is late, and grows-staged]",),
    ),
    Bug(
        name="quarantine counts only with a declared bound",
        file="onceload/states.py",
        correct="    if limit.is_passed(quarantined=held, records=records):",
        wrong="    if declared.is_declared and limit.is_passed(quarantined=held, records=records):",
        tests=(f"{OF_STATES}[one record of 11 is bad-staged]",),
    ),
    Bug(
        name="the last failure is forgotten",
        file="spark_jobs/onceload_jobs/load/recorded.py",
        correct="        end(engine, pipeline, batch, ended, begun_at=begun_at)\n        raise\n",
        wrong="        withdraw(engine, pipeline, batch)\n        raise\n",
        tests=(f"{OF_STATES}[a load failed, and none has succeeded since-staged]",),
    ),
    Bug(
        name="a failure is forgotten when its batch is tried again",
        file="dedup_core/onceload_core/postgres/attempts.sql",
        correct="DO UPDATE SET begun_at = clock_timestamp()\n",
        wrong="DO UPDATE SET begun_at = clock_timestamp(), ended_at = NULL, exit_code = NULL, reason = NULL\n",
        tests=(f"{OF_ATTEMPTS}::test_a_failure_stays_while_its_batch_is_tried_again",),
    ),
    Bug(
        name="a message with values of records is remembered",
        file="spark_jobs/onceload_jobs/load/recorded.py",
        correct="isinstance(error, KeyboardInterrupt) else type(error).__name__",
        wrong="isinstance(error, KeyboardInterrupt) else str(error)",
        tests=(f"{OF_ATTEMPTS}::test_no_value_of_a_record_is_remembered_with_a_failure",),
    ),
    Bug(
        name="a killed load is never missed",
        file="onceload/states.py",
        correct="    is_away = found.row is None or not found.row.sessions_alive\n",
        wrong="    is_away = found.row is None\n",
        tests=(f"{OF_ATTEMPTS}::test_a_killed_load_is_stuck_until_a_load_succeeds",),
    ),
    Bug(
        name="the plan of a commit of many producers is for any number of them",
        file=CONNECTION,
        correct="    if items > _PREPARED_ITEMS_MAX:\n",
        wrong="    if items > 10 * _PREPARED_ITEMS_MAX:\n",
        tests=(f"{IN_POSTGRES}::test_only_the_plan_of_commits_of_few_producers_is_kept",),
    ),
    Bug(
        name="files that were set free while a commit was refused are loaded by it and belong to no pipeline",
        file="dedup_core/onceload_core/postgres/loaded_files.py",
        correct="        raise AlreadyConsumed(pipeline, tuple(refused))\n",
        wrong="        return\n",
        tests=(
            "tests/loads/test_loaded_files.py::test_a_commit_that_was_refused_for_files_that_are_free_now_is_refused",
        ),
    ),
    Bug(
        name="a pipeline takes addresses along that it was refused",
        file=LOADED_FILES_SQL,
        correct="   AND loaded_file.address = sha256(convert_to(pipeline.folder || loaded_file.name, 'UTF8'))\n",
        wrong="",
        tests=(f"{OF_LOADED_FILES}::test_a_folder_that_was_refused_to_one_pipeline_is_free_for_the_moved_one",),
    ),
    Bug(
        name="files that an earlier release has loaded belong to no pipeline",
        file=LOADED_FILES_SQL,
        correct=" WHERE pipeline.name <> :pipeline AND declaration.terms ->> 'target.table' = :target AND",
        wrong=" WHERE false AND",
        tests=(f"{OF_LOADED_FILES}::test_a_file_that_an_earlier_release_has_loaded_belongs_to_its_pipeline",),
    ),
    Bug(
        name="rows whose receipts are lost are loaded again",
        file="spark_jobs/onceload_jobs/write/target.py",
        correct="        if there is not None and PRODUCER_ID in there.types:\n",
        wrong="        if there is None:\n",
        tests=("tests/loads/test_restore.py::test_rows_whose_receipts_are_lost_are_not_loaded_again",),
    ),
    Bug(
        name="a process that decodes names otherwise loads files again",
        file="dedup_core/onceload_core/pipeline.py",
        correct='    if found != "utf-8":\n',
        wrong='    if found == "":\n',
        tests=("tests/loads/test_names.py::test_a_process_that_decodes_names_otherwise_is_refused",),
    ),
    Bug(
        name="rows that a rewind deleted with their files are shown as fine",
        file="onceload/lag.py",
        correct="            lost=lost_files,\n",
        wrong="            lost=0,\n",
        tests=(f"{OF_STATES}[rows that a rewind deleted are gone with their file-staged]",),
    ),
    Bug(
        name="rows that a program has not loaded again since a rewind are shown as fine",
        file="onceload/states.py",
        correct="    if of_programs := sum(",
        wrong="    if of_programs := 0 * sum(",
        tests=(f"{OF_REWOUND_ROWS}::test_the_state_says_that_a_program_owes_rows_until_it_has_loaded_them",),
    ),
    Bug(
        name="an outcome of a clock that was ahead hides later ones",
        file="dedup_core/onceload_core/postgres/attempts.sql",
        correct="                   WHERE pipeline = :pipeline AND ended_at >= clock_timestamp())),\n",
        wrong="                   WHERE false)),\n",
        tests=(
            f"{OF_ATTEMPTS}::test_the_last_outcome_counts_whatever_the_clock_showed_when_earlier_ones_were_recorded",
        ),
    ),
    Bug(
        name="files that wait are forgotten while the source has none",
        file="dedup_core/onceload_core/postgres/attempts.py",
        correct='        "knows_all": ended.is_whole and ended.has_files,\n',
        wrong='        "knows_all": ended.is_whole,\n',
        tests=(f"{OF_ATTEMPTS}::test_files_that_wait_are_remembered_while_the_source_has_none",),
    ),
    Bug(
        name="files that a pipeline no longer reads stay behind when its folder is moved",
        file=LOADED_FILES_SQL,
        correct=" WHERE table_id = ANY(CAST(:tables AS bigint[]))\n   AND starts_with",
        wrong=" WHERE table_id = ANY(CAST(:tables AS bigint[])) AND pipeline_id <> :pipeline_id\n   AND starts_with",
        tests=(f"{OF_LOADED_FILES}::test_files_of_a_moved_folder_that_its_pipeline_no_longer_reads_stay_its_own",),
    ),
    Bug(
        name="verify does not know that another pipeline has loaded what it calls not loaded",
        file="spark_jobs/onceload_jobs/verify/files.py",
        correct="        yield Note.of(shown(declared.source.path), error)\n",
        wrong="        yield from ()\n",
        tests=(f"{OF_LOADED_FILES}::test_verify_says_which_pipeline_has_loaded_the_files_that_it_calls_not_loaded",),
    ),
    Bug(
        name="a load whose terminal is closed keeps what it holds",
        file="onceload/stopping.py",
        correct="in (signal.SIGTERM, signal.SIGHUP) if",
        wrong="in (signal.SIGTERM,) if",
        tests=(
            "tests/loads/test_delivery_commands.py::test_a_follower_that_is_asked_to_stop_ends_well_and_holds_nothing",
        ),
    ),
    Bug(
        name="the business id of a retried record is forgotten",
        file="spark_jobs/onceload_jobs/recover/stored_pieces.py",
        correct="        if found.hashes is not None:\n",
        wrong="        if found.hashes is None:\n",
        tests=(f"{OF_RETRY_ROADS}::test_one_of_two_fixed_records_with_the_same_id_is_loaded",),
    ),
    Bug(
        name="a retried record that names its producer is settled without its row",
        file="spark_jobs/onceload_jobs/publish/commits.py",
        correct="load=load)",
        wrong="load=None)",
        tests=(f"{OF_RETRY_ROADS}::test_a_fixed_record_is_loaded_once_by_whatever_it_is_known",),
    ),
    Bug(
        name="a retry is refused while its pipeline is paused",
        file=COMMIT,
        correct="may_be_paused=True",
        wrong="may_be_paused=False",
        tests=(f"{OF_RETRY_ROADS}::test_a_retry_works_while_its_pipeline_is_paused",),
    ),
    Bug(
        name="a retried record of an ordered producer is advised to be discarded as loaded",
        file="spark_jobs/onceload_jobs/recover/stored_pieces.py",
        correct="why = _ID_IS_PASSED if",
        wrong="why = _ID_IS_LOADED if",
        tests=(f"{OF_RETRY_ROADS}::test_an_ordered_producer_takes_no_record_from_before_its_last_one",),
    ),
    Bug(
        name="verify takes the rows of retried records of named producers for rows from nowhere",
        file="spark_jobs/onceload_jobs/verify/values.sql",
        correct="retry.position = entry.position + 1",
        wrong="retry.position = entry.position",
        tests=(f"{OF_RETRY_ROADS}::test_a_fixed_record_is_loaded_once_by_whatever_it_is_known",),
    ),
    Bug(
        name="verify expects one row of each retried record, whatever a transform makes of it",
        file="dedup_core/onceload_core/postgres/audit.sql",
        correct="coalesce(version.is_one_row_each, true) AS is_one_each",
        wrong="true AS is_one_each",
        tests=(f"{OF_RETRY_ROADS}::test_a_transform_makes_any_number_of_rows_of_retried_records",),
    ),
    Bug(
        name="a load ends the sessions of a later call of its batch",
        file="dedup_core/onceload_core/postgres/deliveries.sql",
        correct="planner.name = :name AND planner.epoch = :epoch)",
        wrong="planner.name = :name)",
        tests=("tests/loads/test_sessions.py",),
    ),
    Bug(
        name="records that are lost before Spark SQL makes rows of them end the load",
        file="spark_jobs/onceload_jobs/work/spark/spark.py",
        correct="            _check_there(reading.folder, read)\n",
        wrong="",
        tests=(
            "tests/loads/test_stage_folder.py"
            "::test_records_that_are_lost_before_spark_sql_makes_rows_of_them_are_read_again",
        ),
    ),
    Bug(
        name="a retry hands its records to Spark in a folder that other machines do not see",
        file="spark_jobs/onceload_jobs/recover/stored_pieces.py",
        correct="write(BlockWriter()) if self._form.as_arrow else written(self._folder, write)",
        wrong="written(self._folder, write)",
        tests=(f"{OF_RETRY_ROADS}::test_spark_on_other_machines_makes_the_rows_of_retried_records",),
    ),
    Bug(
        name="an error of the server that is none of ours ends a heartbeat",
        file="spark_jobs/onceload_jobs/work/progress.py",
        correct="with suppress(OnceloadError, SQLAlchemyError):",
        wrong="with suppress(OnceloadError):",
        tests=(f"{OF_SESSION_TROUBLES}::test_a_heartbeat_goes_on_after_the_database_has_refused_it",),
    ),
    Bug(
        name="a business id with a minus before its zero is in another bucket than the same id without",
        file="spark_jobs/onceload_jobs/work/buckets.py",
        correct="return float(written) or 0.0",
        wrong="return float(written)",
        tests=("tests/loads/test_business_ids.py::test_ids_that_the_server_reads_as_one_value_are_one_in_all_buckets",),
    ),
    Bug(
        name="verify --deep expects a merged row of the last record, also if that repeats a business id",
        file="spark_jobs/onceload_jobs/verify/questions.py",
        correct="target.write is Write.MERGE and declared.message_id is None",
        wrong="target.write is Write.MERGE",
        tests=(
            "tests/loads/test_verify_histories.py"
            "::test_a_merged_row_is_not_that_of_a_record_that_repeats_a_business_id",
        ),
    ),
    Bug(
        name="a process that has no memory for its next item waits for it forever",
        file="spark_jobs/onceload_jobs/executor/local.py",
        correct="    finally:\n        # Also if there is no memory",
        wrong="    except EOFError:\n        # Also if there is no memory",
        tests=("tests/unit/test_local_executor.py::test_a_process_that_has_no_memory_for_its_next_item_ends",),
    ),
)
