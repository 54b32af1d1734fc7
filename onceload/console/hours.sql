-- name: hours
-- The commits of some pipelines since a time, by hour: those after a known commit or, if the ledger does not have it,
-- all. Positions are in the order of time, so the first of them is found by halving: the ledger has no index by time.
WITH RECURSIVE asked AS (
    SELECT pipeline.pipeline_id, pipeline.position, known.position AS known
      FROM unnest(CAST(:pipeline_ids AS bigint[]), CAST(:positions AS bigint[]), CAST(:times AS timestamptz[]))
               AS said (pipeline_id, position, at)
      JOIN onceload.pipeline USING (pipeline_id)
      LEFT JOIN onceload.ledger AS known
             ON known.pipeline_id = said.pipeline_id AND known.position = said.position AND known.committed_at = said.at),
halving AS (
    SELECT pipeline_id, known, coalesce(known, 0) AS before, coalesce(known, position) + 1 AS first FROM asked
    UNION ALL
    SELECT half.pipeline_id, half.known,
           CASE WHEN entry.committed_at >= :since THEN half.before ELSE half.middle END,
           CASE WHEN entry.committed_at >= :since THEN half.middle ELSE half.first END
      FROM (SELECT *, (before + first) / 2 AS middle FROM halving WHERE first - before > 1) AS half
      LEFT JOIN onceload.ledger AS entry ON entry.pipeline_id = half.pipeline_id AND entry.position = half.middle),
summed AS (
    SELECT halving.pipeline_id, halving.known IS NOT NULL AS is_known,
           CAST(floor(extract(epoch FROM ledger.committed_at) / 3600) AS bigint) AS hour,
           CAST(sum(ledger.loaded) AS bigint) AS loaded, CAST(sum(ledger.quarantined) AS bigint) AS quarantined,
           max(ledger.position) AS position
      FROM halving
      LEFT JOIN onceload.ledger ON ledger.pipeline_id = halving.pipeline_id AND ledger.position >= halving.first
           -- The clock of a server that took over may be behind.
           AND ledger.committed_at >= :since
     WHERE halving.first - halving.before = 1
     GROUP BY halving.pipeline_id, halving.known, hour)
SELECT summed.*, newest.committed_at
  FROM summed LEFT JOIN onceload.ledger AS newest USING (pipeline_id, position);
