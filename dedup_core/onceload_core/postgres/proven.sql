-- name: ledger_reach
-- The last position, and the number of entries after the snapshot. If they do not match, there is a gap.
SELECT (SELECT coalesce(max(position), 0) FROM onceload.ledger WHERE pipeline_id = :pipeline_id) AS position,
       (SELECT count(*) FROM onceload.ledger WHERE pipeline_id = :pipeline_id AND position > :after) AS entries;

-- name: hold_snapshot
-- Locked, so that no other transaction deletes it while it is read.
SELECT producers FROM onceload.snapshot WHERE pipeline_id = :pipeline_id AND position = :after FOR SHARE;

-- name: snapshot_size
SELECT count(*) FROM onceload.snapshot_producer WHERE pipeline_id = :pipeline_id AND position = :after;

-- name: proven_states
-- Snapshot plus ledger up to a position, or the whole ledger up to it (:after is 0): the replay in one statement.
-- A rewind undoes whole entries: what they consumed counts only if a later entry consumed it again.
-- FULL JOIN also where LEFT JOIN would do: new rows have no statistics, and a full join is never planned as a nested
-- loop over a million rows that were estimated as one.
WITH entries AS MATERIALIZED (
    SELECT position, kind, NOT EXISTS (
           SELECT FROM onceload.ledger AS rewind
            WHERE rewind.pipeline_id = :pipeline_id AND rewind.kind = 'rewind'
              AND rewind.position > ledger.position AND rewind.position <= :up_to
              AND rewind.rewound_to < ledger.position) AS is_in_force
      FROM onceload.ledger WHERE pipeline_id = :pipeline_id AND position > :after AND position <= :up_to
), receipts AS (
    SELECT entries.kind, entries.is_in_force, ledger_span.*
      FROM entries JOIN onceload.ledger_span USING (position)
     WHERE ledger_span.pipeline_id = :pipeline_id AND ledger_span.position > :after AND ledger_span.position <= :up_to
       AND entries.kind IN ('load', 'rewind', 'forget')
), latest AS (
    SELECT DISTINCT ON (producer_id) producer_id, kind, producer AS name, generation, fingerprint, size, condition
      FROM receipts ORDER BY producer_id, position DESC
), moved AS (
    SELECT producer_id, range_agg(span) FILTER (WHERE kind = 'rewind') AS lost,
           range_agg(span) FILTER (WHERE kind = 'load' AND is_in_force) AS gained
      FROM receipts CROSS JOIN LATERAL unnest(spans) AS span GROUP BY producer_id
), base AS (
    SELECT producer_id, name, generation, consumed, fingerprint, size, condition
      FROM onceload.snapshot_producer WHERE pipeline_id = :pipeline_id AND position = :after
)
SELECT * FROM (
    SELECT producer_id,
           coalesce(latest.name, base.name) AS name,
           coalesce(latest.generation, base.generation) AS generation,
           CASE WHEN latest.name IS NULL THEN base.consumed
                ELSE coalesce(base.consumed, '{}') - coalesce(moved.lost, '{}') + coalesce(moved.gained, '{}')
           END AS consumed,
           CASE WHEN latest.name IS NULL THEN base.fingerprint ELSE latest.fingerprint END AS fingerprint,
           CASE WHEN latest.name IS NULL THEN base.size ELSE latest.size END AS size,
           coalesce(latest.condition, base.condition) AS condition, CAST(NULL AS bigint) AS copy_of
      FROM base FULL JOIN latest USING (producer_id) FULL JOIN moved USING (producer_id)
     WHERE latest.kind IS DISTINCT FROM 'forget'
) AS summed WHERE NOT isempty(consumed)

-- name: rebuild_states
CREATE TEMPORARY TABLE rebuilt ON COMMIT DROP AS {proven};

-- name: index_rebuilt
ALTER TABLE rebuilt ADD PRIMARY KEY (producer_id);

-- name: add_copies
-- The names that are copies of a proven producer by their last receipt. A rewind of that producer makes copies unknown.
INSERT INTO rebuilt (producer_id, name, generation, consumed, fingerprint, size, condition, copy_of)
SELECT note.producer_id, note.producer, note.generation, '{}', note.fingerprint, note.size, note.condition,
       note.shares_with
  FROM onceload.ledger_span AS note JOIN rebuilt AS shared ON shared.producer_id = note.shares_with
 WHERE note.pipeline_id = :pipeline_id AND isempty(note.spans)
   AND NOT EXISTS (
       SELECT FROM onceload.ledger_span AS later JOIN onceload.ledger USING (pipeline_id, position)
        WHERE later.pipeline_id = :pipeline_id AND later.position > note.position
          AND ((later.producer_id = note.producer_id AND ledger.kind = 'load')
               OR (later.producer_id = note.shares_with AND ledger.kind = 'rewind')))
   AND NOT EXISTS (
       SELECT FROM rebuilt AS other
        WHERE other.producer_id = note.producer_id
           OR (other.name = note.producer AND other.generation = note.generation));

-- name: differing_producers
-- The producers whose live state differs from the proven one. Names without consumed spans may be unproven.
SELECT coalesce(proven.name, live.name) AS name
  FROM {proven} AS proven
  FULL JOIN (SELECT * FROM onceload.producer WHERE pipeline_id = :pipeline_id) AS live USING (producer_id)
 WHERE (proven.name IS NOT NULL OR NOT isempty(live.consumed))
   AND (proven.name, proven.generation, proven.consumed, proven.fingerprint, proven.size, proven.condition, proven.copy_of)
       IS DISTINCT FROM (live.name, live.generation, live.consumed, live.fingerprint, live.size, live.condition, live.copy_of)
 ORDER BY 1;
