-- Tables and functions for shared documents; created once, by the first process with the right to.
-- Unlogged, because nothing has to survive a crash: results are computed again, and circuits count again.
CREATE UNLOGGED TABLE IF NOT EXISTS callboard_documents (
    shelf text, name text, version bigint NOT NULL, body text, expires bigint, counted boolean NOT NULL DEFAULT false,
    PRIMARY KEY (shelf, name)
);
CREATE INDEX IF NOT EXISTS callboard_documents_counted ON callboard_documents (shelf, expires) WHERE counted;
CREATE INDEX IF NOT EXISTS callboard_documents_expires ON callboard_documents (expires);

-- Read documents, each given as [shelf, name, [marks]]. Missing marks are created.
CREATE OR REPLACE FUNCTION callboard_documents_read_1(p_wanted jsonb, p_largest integer) RETURNS jsonb
LANGUAGE plpgsql AS $read$
DECLARE
    v_now bigint; v_one jsonb; v_mark text; v_found callboard_documents%ROWTYPE; v_marks jsonb; v_number bigint;
    v_all jsonb := '[]';
BEGIN
    FOR v_one IN SELECT * FROM jsonb_array_elements(p_wanted) LOOP
        v_marks := '[]';
        FOR v_mark IN SELECT * FROM jsonb_array_elements_text(v_one -> 2) LOOP
            SELECT version INTO v_number FROM callboard_documents WHERE shelf = v_one ->> 0 AND name = v_mark;
            -- Two processes may create a mark at once: both then get the version of the one that was stored.
            IF NOT FOUND THEN
                v_now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
                INSERT INTO callboard_documents VALUES (v_one ->> 0, v_mark, v_now, NULL, NULL)
                    ON CONFLICT (shelf, name) DO UPDATE SET shelf = excluded.shelf RETURNING version INTO v_number;
            END IF;
            v_marks := v_marks || to_jsonb(v_number);
        END LOOP;
        v_now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
        -- The clock is read after the marks: their inserts may have waited for a lock.
        SELECT * INTO v_found FROM callboard_documents
            WHERE shelf = v_one ->> 0 AND name = v_one ->> 1 AND (expires IS NULL OR expires > v_now);
        v_all := v_all || jsonb_build_array(jsonb_build_array(
            v_now, v_found.version, v_found.expires - v_now,
            CASE WHEN octet_length(v_found.body) <= p_largest THEN v_found.body END, v_marks));
    END LOOP;
    RETURN v_all;
END $read$;

-- Write documents that still have the version that was read; each is {shelf, name, version, body, lives, most}.
-- They are sorted by name, so that two processes lock rows in the same order and never deadlock.
-- Return for each document whether it was written.
CREATE OR REPLACE FUNCTION callboard_documents_write_1(p_swaps jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $write$
DECLARE
    v_now bigint; v_one jsonb; v_expires bigint; v_count integer;
    v_shelf text; v_name text; v_version bigint; v_all jsonb := '[]';
BEGIN
    FOR v_one IN SELECT * FROM jsonb_array_elements(p_swaps) LOOP
        v_now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
        v_shelf := v_one ->> 'shelf'; v_name := v_one ->> 'name'; v_version := (v_one ->> 'version')::bigint;
        v_expires := v_now + (v_one ->> 'lives')::bigint * 1000;
        IF v_one ->> 'body' IS NULL THEN
            DELETE FROM callboard_documents WHERE shelf = v_shelf AND name = v_name AND version = v_version;
        ELSIF v_version IS NULL THEN
            -- No version means "absent when read": an existing row may be replaced only if it has expired.
            INSERT INTO callboard_documents AS known
                VALUES (v_shelf, v_name, v_now, v_one ->> 'body', v_expires, v_one ->> 'most' IS NOT NULL)
                ON CONFLICT (shelf, name) DO UPDATE SET version = greatest(known.version + 1, excluded.version),
                    body = excluded.body, expires = excluded.expires, counted = excluded.counted
                WHERE known.expires <= v_now;
        ELSE
            UPDATE callboard_documents SET version = greatest(version + 1, v_now), body = v_one ->> 'body',
                expires = v_expires, counted = v_one ->> 'most' IS NOT NULL
                WHERE shelf = v_shelf AND name = v_name AND version = v_version
                    AND (expires IS NULL OR expires > v_now);
        END IF;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_all := v_all || to_jsonb(v_count > 0);
        IF v_count > 0 AND v_one ->> 'most' IS NOT NULL THEN
            -- SKIP LOCKED: a document that another process is writing stays. Waiting for its lock could deadlock.
            DELETE FROM callboard_documents WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM callboard_documents WHERE shelf = v_shelf AND name = ANY (ARRAY(
                    SELECT name FROM callboard_documents WHERE shelf = v_shelf AND counted
                    ORDER BY expires DESC NULLS FIRST OFFSET (v_one ->> 'most')::bigint))
                FOR UPDATE SKIP LOCKED));
        END IF;
    END LOOP;
    -- Expired documents are removed by a few of the writes, at most 200 at a time: no other process cleans up.
    IF random() < 0.02 THEN
        DELETE FROM callboard_documents WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM callboard_documents
            WHERE expires < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint LIMIT 200 FOR UPDATE SKIP LOCKED));
    END IF;
    RETURN v_all;
END $write$;

-- Set a mark: its version grows with each call and never expires.
CREATE OR REPLACE FUNCTION callboard_documents_mark_1(p_shelf text, p_name text) RETURNS void LANGUAGE plpgsql AS $mark$
DECLARE
    v_now bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
BEGIN
    INSERT INTO callboard_documents AS known VALUES (p_shelf, p_name, v_now, NULL, NULL)
        ON CONFLICT (shelf, name) DO UPDATE SET version = greatest(known.version + 1, v_now), expires = NULL;
END $mark$;
