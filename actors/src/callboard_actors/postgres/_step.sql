-- Tables and functions for shared limits; created once, by the first process with the right to.
-- Unlogged, because nothing has to survive a crash: processes report their permits again. An empty table
-- `callboard_limits_eras` shows that there was a crash.
CREATE UNLOGGED TABLE IF NOT EXISTS callboard_limits_eras (one boolean PRIMARY KEY CHECK (one), began bigint NOT NULL);
CREATE UNLOGGED TABLE IF NOT EXISTS callboard_limits_gates (
    gate text PRIMARY KEY, epoch text NOT NULL, terms text NOT NULL, seq bigint NOT NULL, last bigint NOT NULL,
    until bigint NOT NULL
);
CREATE UNLOGGED TABLE IF NOT EXISTS callboard_limits_clients (
    gate text, client text, expires bigint NOT NULL, PRIMARY KEY (gate, client)
);
CREATE UNLOGGED TABLE IF NOT EXISTS callboard_limits_queue (
    gate text, id text, client text NOT NULL, tenant text NOT NULL, rank bigint NOT NULL, ticket bigint NOT NULL,
    PRIMARY KEY (gate, id)
);
CREATE INDEX IF NOT EXISTS callboard_limits_order ON callboard_limits_queue (gate, rank, ticket);
CREATE UNLOGGED TABLE IF NOT EXISTS callboard_limits_held (
    gate text, id text, client text NOT NULL, token bigint NOT NULL, PRIMARY KEY (gate, id)
);
CREATE UNLOGGED TABLE IF NOT EXISTS callboard_limits_lanes (
    gate text, tenant text, last bigint NOT NULL, PRIMARY KEY (gate, tenant)
);
-- A row without a stamp is a permit with a body that has not started yet; it counts as a start until then.
CREATE UNLOGGED TABLE IF NOT EXISTS callboard_limits_starts (
    gate text, id text, client text NOT NULL, stamp bigint, PRIMARY KEY (gate, id)
);
CREATE INDEX IF NOT EXISTS callboard_limits_stamps ON callboard_limits_starts (gate, stamp);
-- Right after the installation no permits exist that are unknown here, so the first process need not wait.
INSERT INTO callboard_limits_eras SELECT true, 0
    WHERE to_regproc('callboard_limits_step_1') IS NULL ON CONFLICT DO NOTHING;

-- Remove all permits and requests of a process. `p_now` is the time if the process has died, and NULL if it is
-- about to report everything again.
CREATE OR REPLACE FUNCTION callboard_limits_drop_1(p_gate text, p_client text, p_now bigint) RETURNS void
LANGUAGE plpgsql AS $drop$
BEGIN
    DELETE FROM callboard_limits_queue WHERE gate = p_gate AND client = p_client;
    DELETE FROM callboard_limits_held WHERE gate = p_gate AND client = p_client;
    -- A body may have started just before its process died: count it as started now, so that a rate is never exceeded.
    IF p_now IS NULL THEN
        DELETE FROM callboard_limits_starts WHERE gate = p_gate AND client = p_client AND stamp IS NULL;
    ELSE
        UPDATE callboard_limits_starts SET stamp = p_now WHERE gate = p_gate AND client = p_client AND stamp IS NULL;
    END IF;
    DELETE FROM callboard_limits_clients WHERE gate = p_gate AND client = p_client;
END $drop$;

-- Return the microseconds until the passing of time alone gives a permit: 0 for now, -1 if another event has to come
-- first.
CREATE OR REPLACE FUNCTION callboard_limits_wait_1(
    p_gate text, p_now bigint, p_opens bigint, p_concurrency bigint, p_calls bigint, p_per bigint
) RETURNS bigint LANGUAGE plpgsql AS $wait$
DECLARE
    v_count bigint; v_oldest bigint;
BEGIN
    IF p_now < p_opens THEN
        RETURN p_opens - p_now;
    END IF;
    IF p_concurrency IS NOT NULL THEN
        SELECT count(*) INTO v_count FROM callboard_limits_held WHERE gate = p_gate;
        IF v_count >= p_concurrency THEN
            RETURN -1;
        END IF;
    END IF;
    IF p_calls IS NOT NULL THEN
        DELETE FROM callboard_limits_starts WHERE gate = p_gate AND stamp <= p_now - p_per;
        SELECT count(*), min(stamp) INTO v_count, v_oldest FROM callboard_limits_starts WHERE gate = p_gate;
        IF v_count >= p_calls THEN
            RETURN coalesce(v_oldest + p_per - p_now, -1);
        END IF;
    END IF;
    RETURN 0;
END $wait$;

CREATE OR REPLACE FUNCTION callboard_limits_give_1(
    p_gate text, p_id text, p_client text, p_token bigint, p_is_rated boolean, p_tells boolean
) RETURNS void LANGUAGE plpgsql AS $give$
BEGIN
    DELETE FROM callboard_limits_queue WHERE gate = p_gate AND id = p_id;
    INSERT INTO callboard_limits_held VALUES (p_gate, p_id, p_client, p_token);
    IF p_is_rated THEN
        INSERT INTO callboard_limits_starts VALUES (p_gate, p_id, p_client, NULL);
    END IF;
    IF p_tells THEN
        PERFORM pg_notify('callboard_' || p_client, p_gate || ' ' || p_id || ' ' || p_token);
    END IF;
END $give$;

-- One step of one process at one gate, with the same logic as `_step.lua` of `callboard_actors.redis`.
-- `p_ops` are [kind, id, tenant, spot, token]. A change to one of the two scripts belongs into both.
CREATE OR REPLACE FUNCTION callboard_limits_step_1(
    p_gate text, p_client text, p_epoch text, p_terms text, p_concurrency bigint, p_room bigint, p_calls bigint,
    p_per bigint, p_lease bigint, p_silence bigint, p_asks_all boolean, p_ops jsonb
) RETURNS jsonb LANGUAGE plpgsql AS $step$
#variable_conflict use_column
DECLARE
    v_now bigint; v_gate callboard_limits_gates%ROWTYPE; v_known boolean; v_new boolean; v_opens bigint;
    v_wait bigint; v_count bigint; v_who text; v_changed boolean := false;
    v_granted jsonb := '{}'; v_queued jsonb := '{}'; v_full jsonb := '{}'; v_all jsonb;
    v_op jsonb; v_kind text; v_id text; v_tenant text; v_spot text; v_token bigint;
    v_head callboard_limits_queue%ROWTYPE; v_rank bigint; v_last bigint; v_at integer := 0; v_ops integer;
BEGIN
    -- One step at a time at each gate. The clock is read after the lock, which may have taken long to get.
    PERFORM pg_advisory_xact_lock(hashtextextended('callboard_limits ' || p_gate, 0));
    v_now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    SELECT began INTO v_opens FROM callboard_limits_eras;
    -- The unlogged table is empty after a crash: permits open only after `p_silence`.
    IF v_opens IS NULL THEN
        INSERT INTO callboard_limits_eras VALUES (true, v_now) ON CONFLICT DO NOTHING;
        SELECT began INTO v_opens FROM callboard_limits_eras;
    END IF;
    v_opens := coalesce(v_opens, v_now) + p_silence;

    SELECT * INTO v_gate FROM callboard_limits_gates WHERE gate = p_gate;
    v_new := NOT FOUND;
    -- A long silence of all processes may mean that the server itself stood still: renew their leases instead of
    -- giving their permits away.
    IF NOT v_new AND v_now - v_gate.last > p_lease / 2
            AND EXISTS (SELECT FROM callboard_limits_held WHERE gate = p_gate) THEN
        UPDATE callboard_limits_clients SET expires = v_now + p_lease WHERE gate = p_gate;
    END IF;
    FOR v_who IN SELECT client FROM callboard_limits_clients WHERE gate = p_gate AND expires < v_now LOOP
        PERFORM callboard_limits_drop_1(p_gate, v_who, v_now);
    END LOOP;
    v_known := EXISTS (SELECT FROM callboard_limits_clients WHERE gate = p_gate AND client = p_client);
    -- After the dead were dropped: new numbers are accepted as soon as no other process uses the old ones.
    IF NOT v_new AND v_gate.terms <> p_terms
            AND EXISTS (SELECT FROM callboard_limits_clients WHERE gate = p_gate AND client <> p_client) THEN
        RETURN jsonb_build_object('other', v_gate.terms);
    END IF;
    -- The changes build on a memory that is gone, or on a process that was dropped: a full report is needed.
    IF p_epoch <> '' AND (NOT v_known OR v_new OR p_epoch <> v_gate.epoch) THEN
        RETURN jsonb_build_object('lost', true);
    END IF;
    IF v_new THEN
        v_gate.epoch := v_now::text;
        v_gate.seq := 0;
    END IF;
    IF p_epoch = '' AND v_known THEN
        PERFORM callboard_limits_drop_1(p_gate, p_client, NULL);
    END IF;
    INSERT INTO callboard_limits_clients VALUES (p_gate, p_client, v_now + p_lease)
        ON CONFLICT (gate, client) DO UPDATE SET expires = excluded.expires;

    v_ops := jsonb_array_length(p_ops);
    -- One more turn than there are changes: the last turn only gives away free permits.
    WHILE v_at <= v_ops LOOP
        v_op := p_ops -> v_at;
        v_kind := v_op ->> 0; v_id := v_op ->> 1; v_tenant := v_op ->> 2; v_spot := v_op ->> 3;
        v_token := (v_op ->> 4)::bigint;
        -- Waiting calls get the permits freed by earlier changes before a new call may ask for one.
        IF v_at = v_ops OR (v_kind = 'enter' AND v_changed) THEN
            v_changed := false;
            v_wait := -1;
            LOOP
                SELECT * INTO v_head FROM callboard_limits_queue WHERE gate = p_gate ORDER BY rank, ticket LIMIT 1;
                EXIT WHEN NOT FOUND;
                v_wait := callboard_limits_wait_1(p_gate, v_now, v_opens, p_concurrency, p_calls, p_per);
                EXIT WHEN v_wait <> 0;
                v_gate.seq := greatest(v_gate.seq + 1, v_now);
                PERFORM callboard_limits_give_1(
                    p_gate, v_head.id, v_head.client, v_gate.seq, p_calls IS NOT NULL, v_head.client <> p_client);
                IF v_head.client = p_client THEN
                    v_granted := v_granted || jsonb_build_object(v_head.id, v_gate.seq);
                END IF;
                v_wait := -1;
            END LOOP;
        END IF;
        IF v_kind = 'enter' THEN
            SELECT * INTO v_head FROM callboard_limits_queue WHERE gate = p_gate ORDER BY rank, ticket LIMIT 1;
            v_count := 0;
            IF p_room IS NOT NULL THEN
                SELECT count(*) INTO v_count FROM callboard_limits_queue WHERE gate = p_gate;
            END IF;
            -- Only past an empty queue: no new call overtakes a waiting one.
            IF v_head.id IS NULL
                    AND callboard_limits_wait_1(p_gate, v_now, v_opens, p_concurrency, p_calls, p_per) = 0 THEN
                v_gate.seq := greatest(v_gate.seq + 1, v_now);
                PERFORM callboard_limits_give_1(p_gate, v_id, p_client, v_gate.seq, p_calls IS NOT NULL, false);
                v_granted := v_granted || jsonb_build_object(v_id, v_gate.seq);
            ELSIF p_room IS NOT NULL AND v_count >= p_room THEN
                v_full := v_full || jsonb_build_object(v_id, jsonb_build_array(
                    (SELECT count(*) FROM callboard_limits_held WHERE gate = p_gate), v_count));
            ELSE
                IF v_head.id IS NULL THEN
                    -- An empty queue starts a new order among the tenants.
                    DELETE FROM callboard_limits_lanes WHERE gate = p_gate;
                END IF;
                v_rank := coalesce(v_head.rank, 0);
                SELECT last INTO v_last FROM callboard_limits_lanes WHERE gate = p_gate AND tenant = v_tenant;
                v_rank := greatest(v_rank, v_last + 1);
                INSERT INTO callboard_limits_lanes VALUES (p_gate, v_tenant, v_rank)
                    ON CONFLICT (gate, tenant) DO UPDATE SET last = excluded.last;
                v_gate.seq := greatest(v_gate.seq + 1, v_now);
                INSERT INTO callboard_limits_queue VALUES (p_gate, v_id, p_client, v_tenant, v_rank, v_gate.seq);
                v_queued := v_queued || jsonb_build_object(v_id, v_rank || '/' || v_gate.seq || '/' || v_tenant);
            END IF;
        ELSIF v_kind = 'leave' THEN
            v_changed := true;
            DELETE FROM callboard_limits_queue WHERE gate = p_gate AND id = v_id;
            DELETE FROM callboard_limits_held WHERE gate = p_gate AND id = v_id;
            -- A start that happened still counts for the rate; a permit that never started gives it back.
            DELETE FROM callboard_limits_starts WHERE gate = p_gate AND id = v_id AND stamp IS NULL;
        ELSIF v_kind = 'begin' THEN
            IF p_calls IS NOT NULL THEN
                INSERT INTO callboard_limits_starts VALUES (p_gate, v_id, p_client, v_now)
                    ON CONFLICT (gate, id) DO UPDATE SET stamp = excluded.stamp;
            END IF;
        ELSIF v_kind = 'wait' THEN
            v_changed := true;
            v_rank := split_part(v_spot, '/', 1)::bigint; v_tenant := split_part(v_spot, '/', 3);
            INSERT INTO callboard_limits_queue
                VALUES (p_gate, v_id, p_client, v_tenant, v_rank, split_part(v_spot, '/', 2)::bigint);
            INSERT INTO callboard_limits_lanes VALUES (p_gate, v_tenant, v_rank)
                ON CONFLICT (gate, tenant) DO UPDATE SET last = greatest(callboard_limits_lanes.last, excluded.last);
        ELSIF v_kind IN ('hold', 'pause') THEN
            v_gate.seq := greatest(v_gate.seq, v_token);
            INSERT INTO callboard_limits_held VALUES (p_gate, v_id, p_client, v_token);
            IF p_calls IS NOT NULL THEN
                INSERT INTO callboard_limits_starts
                    VALUES (p_gate, v_id, p_client, CASE WHEN v_kind = 'hold' THEN v_now END)
                    ON CONFLICT DO NOTHING;
            END IF;
        END IF;
        v_at := v_at + 1;
    END LOOP;

    -- Grants are also announced by notifications, which may be lost. Lanes of tenants that are behind are pruned here.
    IF p_asks_all THEN
        SELECT jsonb_object_agg(id, token) INTO v_all FROM callboard_limits_held
            WHERE gate = p_gate AND client = p_client;
        v_granted := v_granted || coalesce(v_all, '{}');
        DELETE FROM callboard_limits_lanes WHERE gate = p_gate AND last < (
            SELECT min(rank) FROM callboard_limits_queue WHERE gate = p_gate);
    END IF;
    INSERT INTO callboard_limits_gates
        VALUES (p_gate, v_gate.epoch, p_terms, v_gate.seq, v_now, v_now + 2 * p_lease + greatest(p_silence, p_per))
        ON CONFLICT (gate) DO UPDATE SET terms = excluded.terms, seq = excluded.seq, last = excluded.last,
            until = excluded.until;
    RETURN jsonb_build_object('epoch', v_gate.epoch, 'opens_in', v_wait, 'granted', v_granted, 'queued', v_queued,
        'full', v_full);
END $step$;
