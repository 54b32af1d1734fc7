-- name: delete_pieces
-- Deletes the pieces of earlier tries of a delivery, and returns what they prove.
DELETE FROM {pieces} WHERE delivery = :delivery RETURNING proof;

-- name: delete_rows
-- Deletes the rows of earlier tries.
DELETE FROM {rows} USING unnest(CAST(:producer_ids AS bigint[]), CAST(:spans AS int8multirange[]))
    AS gone (producer_id, spans)
 WHERE _producer_id = gone.producer_id AND gone.spans @> _sequence;

-- name: insert_piece
-- No row is inserted if this try has already staged the piece.
INSERT INTO {pieces} VALUES (:delivery, :number, :is_last, :rows, :bytes, :records, :proof, :file)
    ON CONFLICT DO NOTHING;

-- name: pieces
-- All pieces in order. The first one exists from the start.
SELECT * FROM {pieces} ORDER BY delivery, number;

-- name: files
-- Each file with its rows. A piece with rows but without a file has its rows in the table.
SELECT file, CAST(sum(rows) AS bigint) AS rows FROM {pieces} WHERE file IS NOT NULL OR rows > 0 GROUP BY file;

-- name: is_in_table
SELECT EXISTS (SELECT FROM {pieces} WHERE file IS NULL AND rows > 0);

-- name: forget_file
UPDATE {pieces} SET file = NULL WHERE file = :file RETURNING rows;

-- name: write_publish_input
UPDATE {pieces} SET proof = :encoded WHERE delivery = {opened};

-- name: read_publish_input
SELECT proof FROM {pieces} WHERE delivery = {opened};

-- name: lock_pieces
-- A late try stages nothing until the end of the transaction.
LOCK TABLE {pieces} IN SHARE MODE;

-- name: count_pieces
SELECT count(*) FROM {pieces};
