-- Tables and functions for fleets; created once, by the first process with the right to.
-- Logged tables: they must survive a crash, because an owner at that moment may not know of it when the server is back.
CREATE TABLE IF NOT EXISTS callboard_fleet_members (
    fleet text, member text, common text NOT NULL, expires bigint NOT NULL, PRIMARY KEY (fleet, member)
);
CREATE TABLE IF NOT EXISTS callboard_fleet_keys (
    fleet text, gate text, member text, token bigint NOT NULL, state bytea, PRIMARY KEY (fleet, gate)
);
-- State of an ask to a member: "w" (waiting) until it begins, then "b" (begun); "r" if its asker recalled it first.
-- The first of `begin` and `recall` decides: both update the same row. No ask can be both begun and recalled.
CREATE TABLE IF NOT EXISTS callboard_fleet_asks (
    fleet text, member text, ask text, state text NOT NULL, PRIMARY KEY (fleet, member, ask)
);
-- Highest number of an ask from each sender: a repeated send is recognised by it.
CREATE TABLE IF NOT EXISTS callboard_fleet_counts (
    fleet text, member text, sender text, number bigint NOT NULL, PRIMARY KEY (fleet, member, sender)
);
CREATE TABLE IF NOT EXISTS callboard_fleet_mail (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, fleet text NOT NULL, member text NOT NULL, frame bytea NOT NULL
);
CREATE INDEX IF NOT EXISTS callboard_fleet_mail_of ON callboard_fleet_mail (fleet, member, id);

CREATE OR REPLACE FUNCTION callboard_fleet_now_1() RETURNS bigint LANGUAGE sql VOLATILE AS $now$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$now$;

CREATE OR REPLACE FUNCTION callboard_fleet_alive_1(p_fleet text, p_member text) RETURNS boolean
LANGUAGE sql VOLATILE AS $alive$
    SELECT EXISTS (SELECT FROM callboard_fleet_members
        WHERE fleet = p_fleet AND member = p_member AND expires >= callboard_fleet_now_1())
$alive$;

-- Return whether a member owns a key. Lock the key's row, so that no other member can acquire the key before this
-- transaction has ended.
CREATE OR REPLACE FUNCTION callboard_fleet_owns_1(p_fleet text, p_gate text, p_member text, p_token bigint)
RETURNS boolean LANGUAGE plpgsql AS $owns$
BEGIN
    PERFORM FROM callboard_fleet_keys
        WHERE fleet = p_fleet AND gate = p_gate AND member = p_member AND token = p_token FOR SHARE;
    RETURN FOUND AND callboard_fleet_alive_1(p_fleet, p_member);
END $owns$;

CREATE OR REPLACE FUNCTION callboard_fleet_put_1(p_fleet text, p_member text, p_frame bytea) RETURNS void
LANGUAGE plpgsql AS $put$
BEGIN
    INSERT INTO callboard_fleet_mail (fleet, member, frame) VALUES (p_fleet, p_member, p_frame);
    PERFORM pg_notify('callboard_fleet_' || p_member, '');
END $put$;

-- Handle a heartbeat. `was`: the process was a member before; `other`: settings of other live members that differ.
CREATE OR REPLACE FUNCTION callboard_fleet_beat_1(p_fleet text, p_member text, p_lease bigint, p_common text)
RETURNS TABLE (was boolean, other text) LANGUAGE plpgsql AS $beat$
DECLARE
    v_now bigint := callboard_fleet_now_1(); v_gone text;
BEGIN
    was := callboard_fleet_alive_1(p_fleet, p_member);
    SELECT common INTO other FROM callboard_fleet_members
        WHERE fleet = p_fleet AND member <> p_member AND expires >= v_now AND common <> p_common LIMIT 1;
    IF other IS NULL THEN
        INSERT INTO callboard_fleet_members VALUES (p_fleet, p_member, p_common, v_now + p_lease)
            ON CONFLICT (fleet, member) DO UPDATE SET expires = excluded.expires, common = excluded.common;
    END IF;
    -- Members that have been dead for 20 leases are forgotten, with their mail: no asker waits for them any more.
    FOR v_gone IN SELECT member FROM callboard_fleet_members
            WHERE fleet = p_fleet AND expires < v_now - 20 * p_lease FOR UPDATE SKIP LOCKED LOOP
        DELETE FROM callboard_fleet_members WHERE fleet = p_fleet AND member = v_gone;
        DELETE FROM callboard_fleet_asks WHERE fleet = p_fleet AND member = v_gone;
        DELETE FROM callboard_fleet_counts WHERE fleet = p_fleet AND (member = v_gone OR sender = v_gone);
        DELETE FROM callboard_fleet_mail WHERE fleet = p_fleet AND member = v_gone;
    END LOOP;
    RETURN NEXT;
END $beat$;

CREATE OR REPLACE FUNCTION callboard_fleet_own_1(p_fleet text, p_gate text, p_member text)
RETURNS TABLE (owner text, owned_by bigint) LANGUAGE plpgsql AS $own$
DECLARE
    v_key callboard_fleet_keys%ROWTYPE;
BEGIN
    -- Makes a row to lock: two members that acquire a new key at once must wait for each other.
    INSERT INTO callboard_fleet_keys VALUES (p_fleet, p_gate, NULL, 0, NULL) ON CONFLICT DO NOTHING;
    SELECT * INTO v_key FROM callboard_fleet_keys WHERE fleet = p_fleet AND gate = p_gate FOR UPDATE;
    IF v_key.member IS NOT NULL AND v_key.member <> p_member
            AND callboard_fleet_alive_1(p_fleet, v_key.member) THEN
        owner := v_key.member; owned_by := v_key.token;
    ELSIF callboard_fleet_alive_1(p_fleet, p_member) THEN
        -- A new token even if this member was the owner: it asks because it does not know, or has lost, its ownership.
        owner := p_member; owned_by := greatest(v_key.token + 1, callboard_fleet_now_1());
        UPDATE callboard_fleet_keys SET member = owner, token = owned_by WHERE fleet = p_fleet AND gate = p_gate;
    ELSE
        owner := ''; owned_by := 0;
    END IF;
    RETURN NEXT;
END $own$;

CREATE OR REPLACE FUNCTION callboard_fleet_send_1(
    p_fleet text, p_gate text, p_owner text, p_token bigint, p_sender text, p_number bigint, p_ask text, p_frame bytea
) RETURNS boolean LANGUAGE plpgsql AS $send$
BEGIN
    -- A repetition of an ask that has arrived: report success without a second copy.
    IF EXISTS (SELECT FROM callboard_fleet_counts
            WHERE fleet = p_fleet AND member = p_owner AND sender = p_sender AND number >= p_number) THEN
        RETURN true;
    END IF;
    IF NOT callboard_fleet_owns_1(p_fleet, p_gate, p_owner, p_token) THEN
        RETURN false;
    END IF;
    INSERT INTO callboard_fleet_counts VALUES (p_fleet, p_owner, p_sender, p_number)
        ON CONFLICT (fleet, member, sender) DO UPDATE SET number = excluded.number;
    INSERT INTO callboard_fleet_asks VALUES (p_fleet, p_owner, p_ask, 'w');
    PERFORM callboard_fleet_put_1(p_fleet, p_owner, p_frame);
    RETURN true;
END $send$;

CREATE OR REPLACE FUNCTION callboard_fleet_begin_1(
    p_fleet text, p_gate text, p_member text, p_token bigint, p_ask text
) RETURNS boolean LANGUAGE plpgsql AS $begin$
BEGIN
    IF NOT callboard_fleet_owns_1(p_fleet, p_gate, p_member, p_token) THEN
        RETURN false;
    END IF;
    -- 'b' is accepted: the answer to the first "begin" may have been lost.
    UPDATE callboard_fleet_asks SET state = 'b'
        WHERE fleet = p_fleet AND member = p_member AND ask = p_ask AND state IN ('w', 'b');
    RETURN FOUND;
END $begin$;

CREATE OR REPLACE FUNCTION callboard_fleet_recall_1(
    p_fleet text, p_owner text, p_ask text, p_asker text, p_marker bytea
) RETURNS boolean LANGUAGE plpgsql AS $recall$
BEGIN
    UPDATE callboard_fleet_asks SET state = 'r'
        WHERE fleet = p_fleet AND member = p_owner AND ask = p_ask AND state IN ('w', 'r');
    IF NOT FOUND THEN
        -- Into the asker's own mail, behind any reply that is there: the reply wins, or the marker makes it "unknown".
        PERFORM callboard_fleet_put_1(p_fleet, p_asker, p_marker);
        RETURN false;
    END IF;
    RETURN true;
END $recall$;

CREATE OR REPLACE FUNCTION callboard_fleet_tell_1(p_fleet text, p_member text, p_to text, p_frame bytea, p_ask text)
RETURNS void LANGUAGE plpgsql AS $tell$
BEGIN
    -- The reply and the end of the ask's row are one transaction: a recall finds the row, or the reply in the mail.
    IF p_ask <> '' THEN
        DELETE FROM callboard_fleet_asks WHERE fleet = p_fleet AND member = p_member AND ask = p_ask;
    END IF;
    IF EXISTS (SELECT FROM callboard_fleet_members WHERE fleet = p_fleet AND member = p_to) THEN
        PERFORM callboard_fleet_put_1(p_fleet, p_to, p_frame);
    END IF;
END $tell$;

CREATE OR REPLACE FUNCTION callboard_fleet_free_1(p_fleet text, p_gate text, p_member text, p_token bigint)
RETURNS void LANGUAGE plpgsql AS $free$
BEGIN
    -- The row stays with its token: a later owner must get a higher one.
    UPDATE callboard_fleet_keys SET member = NULL
        WHERE fleet = p_fleet AND gate = p_gate AND member = p_member AND token = p_token;
END $free$;

CREATE OR REPLACE FUNCTION callboard_fleet_save_1(p_fleet text, p_gate text, p_token bigint, p_state bytea)
RETURNS boolean LANGUAGE plpgsql AS $save$
BEGIN
    -- Fencing: with a later owner, the row has a higher token, and nothing is saved.
    UPDATE callboard_fleet_keys SET state = p_state WHERE fleet = p_fleet AND gate = p_gate AND token <= p_token;
    RETURN FOUND;
END $save$;

CREATE OR REPLACE FUNCTION callboard_fleet_leave_1(p_fleet text, p_member text) RETURNS void
LANGUAGE plpgsql AS $leave$
BEGIN
    -- Expired at once, so that its keys count as free. The next heartbeat of any member removes the row.
    UPDATE callboard_fleet_members SET expires = 0 WHERE fleet = p_fleet AND member = p_member;
END $leave$;
