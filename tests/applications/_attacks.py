"""Hostile statements of a model, by the name of the attack."""

from ._shop import DOUBLED, ENDLESS

READ_ONLY_SQLITE = {
    "a deletion": "DELETE FROM item",
    "an insertion with rows": "INSERT INTO item VALUES (9, 'x', 1, NULL) RETURNING id",
    "an update in a table expression": "WITH n AS (SELECT 1) UPDATE item SET name = 'x'",
    "a table": "CREATE TABLE more (id)",
    "a temporary table": "CREATE TEMP TABLE more AS SELECT * FROM item",
    "a trigger": "CREATE TEMP TRIGGER t AFTER INSERT ON item BEGIN DELETE FROM item; END",
    "a dropped table": "DROP TABLE item",
    "a second statement": "SELECT 1; DELETE FROM item",
    "a second statement after a comment": "SELECT 1 /* ; */; -- \nDELETE FROM item",
    "another file": "ATTACH '{folder}/other.db' AS other",
    "a copy of the file": "VACUUM INTO '{folder}/other.db'",
    "a vacuum": "VACUUM",
    "a transaction": "BEGIN IMMEDIATE",
    "the end of one": "COMMIT",
    "a savepoint": "SAVEPOINT s",
    "writing allowed again": "PRAGMA query_only = OFF",
    "the schema as a table": "PRAGMA writable_schema = ON",
    "another journal": "PRAGMA journal_mode = WAL",
    "a place for temporary files": "PRAGMA temp_store_directory = '{folder}'",
    "less patience for others": "PRAGMA busy_timeout = 0",
    "no limit of memory": "PRAGMA hard_heap_limit = 0",
    "where the file is": "SELECT * FROM pragma_database_list",
    "a pragma by its table": "SELECT * FROM pragma_query_only(0)",
    "a library": "SELECT load_extension('{folder}/x.so')",
    "a tokenizer by its address": "SELECT fts3_tokenizer('simple', x'00')",
    "a file": "SELECT readfile('/etc/passwd')",
    "a file that is written": "SELECT writefile('{folder}/other.db', 'x')",
    "statistics": "ANALYZE",
    "an index": "REINDEX",
    "a virtual table": "CREATE VIRTUAL TABLE f USING fts5(a)",
    "a schema that is written": "UPDATE sqlite_master SET sql = 'x'",
    "a pattern in Python": "SELECT 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!' REGEXP '(a+)+$'",
}

ENDLESS_SQLITE = {
    "an endless count": ENDLESS.format("count(*)"),
    "an endless sum": ENDLESS.format("sum(x)"),
    "an endless sort": f"SELECT * FROM ({ENDLESS.format('x')}) ORDER BY random()",
    "a join of everything with itself": "SELECT count(*) FROM ({0}) a, ({0}) b".format(ENDLESS.format("x")),
    "an endless list that is empty": f"SELECT * FROM ({ENDLESS.format('x')}) WHERE x < 0",
    "texts that grow": "WITH RECURSIVE n (x) AS (SELECT 'a' UNION ALL SELECT x || 'a' FROM n) SELECT max(x) FROM n",
}

_TEXT = "replace(hex(zeroblob({})), '0', 'a')"

UNINTERRUPTIBLE_SQLITE = {
    "one step, which looks up after minutes": (
        f"SELECT length(trim({_TEXT.format(190_000)}, replace(hex(zeroblob(16000)), '0', 'b') || 'a'))"
    ),
    "a thousand slow steps": (
        "WITH t (h, n) AS MATERIALIZED (SELECT hex(zeroblob(130000)), hex(zeroblob(60000)) || '1') "
        f"SELECT {' + '.join(['instr(h, n)'] * 900)} FROM t"
    ),
    "a width of billions": "SELECT printf('%.*c', 2147483647, 'x')",
    "a statement that doubles as it is read": DOUBLED,
}

LARGE_SQLITE = {
    "a large blob": "SELECT zeroblob(2000000000)",
    "a large text": "SELECT hex(hex(hex(zeroblob(100000))))",
    "many in one": "SELECT group_concat(hex(zeroblob(1000))) FROM (SELECT 1 FROM ({}) LIMIT 100000)".format(
        ENDLESS.format("x")
    ),
    "a long program": "SELECT 1" + " UNION ALL SELECT 1" * 500,
    "a long statement": f"SELECT '{'x' * 200_000}'",
    "a deep expression": f"SELECT {'(' * 2000}1{')' * 2000}",
}

READ_ONLY_POSTGRES = {
    "a deletion": "DELETE FROM item",
    "a deletion in a table expression": "WITH gone AS (DELETE FROM item RETURNING *) SELECT * FROM gone",
    "a second statement": "SELECT 1; DROP TABLE item",
    "the end of the transaction, and more": "SELECT 1; COMMIT; DROP TABLE item",
    "another transaction after ours": "SELECT 1; COMMIT; BEGIN READ WRITE; DELETE FROM item; COMMIT",
    "the end of the transaction": "COMMIT",
    "a transaction that writes": "SET TRANSACTION READ WRITE",
    "a session that writes": "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
    "writing, by a function": "SELECT set_config('transaction_read_only', 'off', false)",
    "no timeout": "SET statement_timeout = 0",
    "another role": "SET ROLE clerk",
    "the role of the login": "RESET ROLE",
    "another role, by a function": "SELECT set_config('role', 'clerk', false)",
    "another login, by a function": "SELECT set_config('session_authorization', 'clerk', false)",
    "a block of code": "DO $$ BEGIN DELETE FROM item; END $$",
    "a procedure": "CALL anything()",
    "a program": "COPY item TO PROGRAM 'touch /tmp/callboard'",
    "rows from a program": "COPY item FROM PROGRAM 'id'",
    "a file": "COPY item TO '/tmp/callboard'",
    "all rows, past every cap": "COPY item TO STDOUT",
    "a server's file": "SELECT pg_read_file('/etc/passwd')",
    "a server's file in bytes": "SELECT pg_read_binary_file('/etc/passwd')",
    "a server's folder": "SELECT pg_ls_dir('/')",
    "a server's file as an object": "SELECT lo_import('/etc/passwd')",
    "an object as a server's file": "SELECT lo_export(1, '/tmp/callboard')",
    "another database": "SELECT * FROM dblink('dbname=postgres', 'SELECT 1') AS t (a int)",
    "a number that is used up": "SELECT nextval('numbers')",
    "a number that is set": "SELECT setval('numbers', 100)",
    "locked rows": "SELECT * FROM item FOR UPDATE",
    "a table from rows": "SELECT * INTO more FROM item",
    "a temporary table": "CREATE TEMP TABLE more (id int)",
    "a statement within a function": "SELECT query_to_xml('DELETE FROM item', true, true, '')",
    "a function with effects": "SELECT forget_all()",
    "a function with effects that runs as its owner": "SELECT forget_all_as_owner()",
    "settings of the server": "ALTER SYSTEM SET fsync = off",
    "passwords": "SELECT * FROM pg_authid",
    "somebody else's statement": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'clerk'",
    "the settings, read again": "SELECT pg_reload_conf()",
    "a prepared statement": "PREPARE p AS DELETE FROM item",
    "messages": "LISTEN anything",
    "a cursor that stays": "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
    "a parenthesis that closes ours": "SELECT 1) AS answer (c0); DROP TABLE item; --",
    "another one": "SELECT 1) UNION ALL (SELECT 2",
}

ENDLESS_POSTGRES = {
    "an endless count": ENDLESS.format("count(*)"),
    "sleep": "SELECT pg_sleep(60)",
    "sleep, and no timeout": "SELECT set_config('statement_timeout', '0', false), pg_sleep(60)",
    "sleep for each row": "SELECT pg_sleep(0.2) FROM generate_series(1, 1000)",
    "no timeout for the rows that follow": """
        SELECT CASE WHEN n = 1 THEN set_config('statement_timeout', '0', false) ELSE pg_sleep(0.2)::text END
        FROM generate_series(1, 1000) AS n
    """,
    "many rows": "SELECT count(*) FROM generate_series(1, 100000000000)",
    "a join": "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b",
    "a lock that another has": "SELECT pg_advisory_lock(1)",
    "a function that is deaf to cancels": "SELECT deaf()",
}
