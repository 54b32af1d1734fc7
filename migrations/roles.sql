-- The rights of each role. These roles cannot log in; they are granted to users who can (docs/how-to/roles.md).
-- The owner of the schema runs this at the end of each `onceload init`; it adds what is missing.
--
--   onceload_owner   owns the tables, and brings them up to date: `onceload init`
--   onceload_loader  loads, publishes, recovers and maintains; it cannot change or delete what the ledger says
--   onceload_reader  looks: status, ledger, metrics; it sees no records

DO $$
DECLARE
    wanted text;
    thing  record;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['onceload_owner', 'onceload_loader', 'onceload_reader'] LOOP
        IF to_regrole(wanted) IS NULL THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            EXCEPTION
                -- Roles are the whole server's: `onceload init` of another of its databases was as quick.
                WHEN duplicate_object OR unique_violation THEN NULL;
            END;
        END IF;
    END LOOP;

    GRANT USAGE, CREATE ON SCHEMA onceload, onceload_stage TO onceload_owner;
    IF NOT pg_has_role(current_user, 'onceload_owner', 'USAGE') THEN
        EXECUTE format('GRANT onceload_owner TO %I', current_user);
    END IF;
    FOR thing IN
        SELECT CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind,
               CAST(CAST(oid AS regclass) AS text) AS name, relowner AS owner
          FROM pg_class
         WHERE relnamespace = CAST('onceload' AS regnamespace) AND relkind IN ('r', 'p', 'v')
        UNION ALL
        SELECT 'FUNCTION', CAST(CAST(oid AS regprocedure) AS text), proowner
          FROM pg_proc WHERE pronamespace = CAST('onceload' AS regnamespace)
    LOOP
        CONTINUE WHEN thing.owner = to_regrole('onceload_owner');
        -- A user that had all rights before keeps them.
        IF NOT pg_has_role(thing.owner, 'onceload_owner', 'USAGE') THEN
            EXECUTE format('GRANT onceload_owner TO %s', CAST(thing.owner AS regrole));
        END IF;
        EXECUTE format('ALTER %s %s OWNER TO onceload_owner', thing.kind, thing.name);
    END LOOP;
END $$;

GRANT USAGE ON SCHEMA onceload TO onceload_loader, onceload_reader;
-- Its tables of staged rows.
GRANT USAGE, CREATE ON SCHEMA onceload_stage TO onceload_loader;

-- Committed entries stay written.
GRANT SELECT, INSERT ON onceload.ledger, onceload.ledger_span, onceload.declaration TO onceload_loader;
GRANT SELECT, INSERT, UPDATE, DELETE ON onceload.loaded_file, onceload.loaded_table TO onceload_loader;
GRANT UPDATE (layout) ON onceload.declaration TO onceload_loader;
GRANT SELECT, INSERT ON onceload.delivery_failure, onceload.quality_result TO onceload_loader;
GRANT SELECT, INSERT, UPDATE ON onceload.pipeline TO onceload_loader;
GRANT SELECT, INSERT, DELETE ON onceload.delivery_span, onceload.snapshot_producer, onceload.message
   TO onceload_loader;
GRANT SELECT, INSERT, UPDATE, DELETE
   ON onceload.producer, onceload.session, onceload.delivery, onceload.quarantine, onceload.audit, onceload.snapshot
   TO onceload_loader;
-- New producers go on behind those that a recovery has brought back.
GRANT SELECT, UPDATE ON SEQUENCE onceload.producer_producer_id_seq TO onceload_loader;
GRANT EXECUTE ON FUNCTION onceload.prepare_message_days(), onceload.forget_messages() TO onceload_loader;

GRANT SELECT ON onceload.schema_version, onceload.claim, onceload.ledger_in_force TO onceload_loader, onceload_reader;
-- Neither the text of a record, nor an error message that may quote it.
GRANT SELECT (quarantine_id, pipeline_id, position, producer_id, sequence_id, column_name, quarantined_at, state,
              settled_position)
   ON onceload.quarantine TO onceload_reader;
GRANT SELECT (audit_id, number, expectation, about, severity, success, unexpected, checked)
   ON onceload.quality_result TO onceload_reader;
GRANT SELECT ON onceload.loaded_file, onceload.loaded_table TO onceload_reader;
GRANT SELECT
   ON onceload.pipeline, onceload.declaration, onceload.producer, onceload.session, onceload.ledger, onceload.ledger_span,
      onceload.delivery, onceload.delivery_span, onceload.delivery_failure,
      onceload.snapshot, onceload.snapshot_producer, onceload.audit
   TO onceload_reader;

GRANT SELECT, INSERT, UPDATE, DELETE ON onceload.attempt, onceload.waiting_file TO onceload_loader;
GRANT SELECT ON onceload.attempt, onceload.waiting_file TO onceload_reader;
