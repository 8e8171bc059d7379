"""Check of a role for rights that no transaction can undo, with the remedy."""

from collections.abc import Sequence
from typing import Any

import psycopg

from callboard_actors.sql._errors import SqlError

_MAY = """
SELECT rolname FROM pg_roles
WHERE pg_has_role(session_user, oid, 'MEMBER') AND (rolsuper OR rolreplication OR rolname = ANY(%s))
ORDER BY rolname
"""
_REACHES_OUT = (
    "pg_read_server_files",
    "pg_write_server_files",
    "pg_execute_server_program",
    "pg_signal_backend",
    "pg_signal_autovacuum_worker",
)
_CALLS = """
WITH suspect (oid, why) AS (
  SELECT p.oid, 'PostgreSQL keeps from everybody' FROM pg_init_privs AS i
    JOIN pg_proc AS p ON i.classoid = 'pg_proc'::regclass AND i.objoid = p.oid
    WHERE NOT EXISTS (SELECT FROM aclexplode(i.initprivs) AS a WHERE a.grantee <> p.proowner)
  UNION ALL
  SELECT p.oid, 'is written in ' || l.lanname || ', which may do whatever the server may' FROM pg_proc AS p
    JOIN pg_language AS l ON l.oid = p.prolang AND l.lanispl AND NOT l.lanpltrusted
    WHERE p.prorettype <> ALL ('{trigger,event_trigger}'::regtype[])
  UNION ALL
  SELECT p.oid, 'connects to others' FROM pg_proc AS p
    JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
    JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
    WHERE e.extname || '.' || p.proname = ANY(%s)
), mine AS (SELECT oid FROM pg_roles WHERE pg_has_role(session_user, oid, 'MEMBER'))
SELECT DISTINCT why, p.oid::regprocedure::text FROM suspect JOIN pg_proc AS p USING (oid)
WHERE EXISTS (SELECT FROM mine WHERE has_schema_privilege(mine.oid, p.pronamespace, 'USAGE'))
  AND EXISTS (SELECT FROM mine WHERE has_function_privilege(mine.oid, p.oid, 'EXECUTE'))
ORDER BY 1, 2
"""
"""Functions with effects outside of the transaction that a role may call. All roles count that it is a member of, even
without INHERIT, because a query can switch to them with `set_config('role', ...)`.
"""
_CONNECTS = (
    "aws_lambda.invoke",
    "aws_s3.query_export_to_s3",
    "dblink.dblink",
    "dblink.dblink_connect",
    "dblink.dblink_exec",
    "http.http",
    "pg_background.pg_background_launch",
)
"""Functions by extension, executable by every role by default. Without them, no function of the extension reaches
another server.
"""
_NAMED = 5
"""Functions that an error names."""
_REMEDY = """Make a role that only reads, and use that:
CREATE ROLE reader LOGIN PASSWORD '...' NOSUPERUSER NOINHERIT;
GRANT USAGE ON SCHEMA public TO reader;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader;"""


def check_role(driver: psycopg.Connection[Any]) -> None:
    """Check that a SELECT of the login role cannot reach beyond the database.

    `SET ROLE` does not help: a function in a query can switch back.

    Raises:
        SqlError: if it can; the text says how, and the remedy.
    """
    roles = [name for (name,) in driver.execute(_MAY, [[*_REACHES_OUT]])]
    user = driver.info.user
    if roles:
        what = f"is, or is a member of, {', '.join(roles)}"
        raise SqlError(
            f"The role {user!r} {what}: a query may read the server's files, run programs or end sessions. {_REMEDY}"
        )
    if found := driver.execute(_CALLS, [[*_CONNECTS]]).fetchall():
        raise SqlError(_of_functions(user, found))


def _of_functions(user: str, found: Sequence[tuple[str, str]]) -> str:
    named = "; ".join(f"{function}, which {why}" for why, function in found[:_NAMED])
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return (
        f"The role {user!r} may call {named}{more}: a query reaches beyond the database. Have an administrator "
        f"REVOKE EXECUTE ON FUNCTION {found[0][1]} FROM PUBLIC, or from that role and those that it is a member of, "
        "and so for the others."
    )
