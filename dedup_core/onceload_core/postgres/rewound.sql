-- name: rewound
-- The pipelines of which anything was rewound.
SELECT pipeline_id, name FROM onceload.pipeline
 WHERE (CAST(:pipeline AS text) IS NULL OR name = :pipeline) AND EXISTS (
       SELECT FROM onceload.ledger WHERE ledger.pipeline_id = pipeline.pipeline_id AND ledger.kind = 'rewind');

-- name: owed
-- What rewinds rolled back and no commit has consumed since, for each producer or for one, with the last rewind of it.
-- The ledger alone decides. A producer that was forgotten since owes nothing, nor does a generation that a rewind
-- removed or a later one took the place of: its file is compared with the generation that is left. Producers that
-- records in files name are left out, because their files owe the same records: their receipts count no records.
WITH rewind AS MATERIALIZED (
    SELECT position, committed_at FROM onceload.ledger WHERE pipeline_id = :pipeline_id AND kind = 'rewind'
), undone AS (
    SELECT receipt.producer_id, coalesce(live.name, receipt.producer) AS name,
           coalesce(live.generation, receipt.generation) AS generation, receipt.spans, rewind.*
      FROM rewind JOIN onceload.ledger_span AS receipt USING (position)
      -- A producer may have another name now.
      LEFT JOIN onceload.producer AS live ON live.producer_id = receipt.producer_id
     WHERE receipt.pipeline_id = :pipeline_id
       AND (CAST(:producer AS text) IS NULL OR coalesce(live.name, receipt.producer) = :producer)
       AND EXISTS (SELECT FROM onceload.ledger_span AS read
                    WHERE read.producer_id = receipt.producer_id AND read.records > 0)
       AND NOT EXISTS (
           SELECT FROM onceload.ledger AS later JOIN onceload.ledger_span AS its USING (pipeline_id, position)
            WHERE later.pipeline_id = :pipeline_id AND later.position > rewind.position AND later.kind = 'forget'
              AND its.producer_id = receipt.producer_id)
), owed AS (
    SELECT undone.producer_id, undone.name, undone.position, undone.committed_at,
           undone.spans - coalesce(now.consumed, '{}') AS spans
      FROM undone
      LEFT JOIN onceload.producer AS now
           ON now.pipeline_id = :pipeline_id AND now.name = undone.name AND now.generation = undone.generation
     WHERE NOT undone.spans <@ coalesce(now.consumed, '{}')
       AND now.condition IS DISTINCT FROM 'replaced' AND (undone.generation = 1 OR now.producer_id IS NOT NULL)
       AND NOT EXISTS (SELECT FROM onceload.producer AS later
                        WHERE later.pipeline_id = :pipeline_id AND later.name = undone.name
                          AND later.generation > undone.generation AND NOT isempty(later.consumed))
)
SELECT name AS producer, CAST(range_agg(span) AS text) AS spans, max(owed.position) AS position,
       max(committed_at) AS rewound_at,
       -- As its file was when most of it was loaded before that rewind.
       (SELECT fingerprint FROM onceload.ledger_span AS receipt
         WHERE receipt.producer_id = max(owed.producer_id) AND receipt.records > 0
           AND receipt.position < max(owed.position)
         ORDER BY upper(receipt.spans) DESC, receipt.position DESC LIMIT 1) AS fingerprint
  FROM owed CROSS JOIN LATERAL unnest(spans) AS span
 GROUP BY name ORDER BY name;

-- name: rolled_back
-- The files with records that a rewind to a position rolls back, or has rolled back, by the entries that were in force
-- before it; with the end of what it rolls back of each, and how many records.
SELECT coalesce(live.name, max(receipt.producer)) AS name, max(upper(receipt.spans)) AS "end",
       CAST(sum(receipt.records) AS bigint) AS records
  FROM onceload.ledger JOIN onceload.ledger_span AS receipt USING (pipeline_id, position)
  LEFT JOIN onceload.producer AS live ON live.producer_id = receipt.producer_id
 WHERE ledger.pipeline_id = :pipeline_id AND ledger.position > :to AND ledger.position <= :up_to
   AND receipt.position > :to AND ledger.kind = 'load' AND receipt.digest IS NOT NULL AND receipt.records > 0
   AND NOT EXISTS (SELECT FROM onceload.ledger AS rewind
                    WHERE rewind.pipeline_id = :pipeline_id AND rewind.kind = 'rewind'
                      AND rewind.position > ledger.position AND rewind.position <= :up_to
                      AND rewind.rewound_to < ledger.position)
 GROUP BY receipt.producer_id, live.name ORDER BY 1;
