"""What the role of a connection may do that no transaction holds back, and what to do about it."""

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
)
_CALLS = """
SELECT DISTINCT proname FROM pg_proc
WHERE has_function_privilege(session_user, oid, 'EXECUTE') AND proname = ANY(%s)
ORDER BY proname
"""
_FUNCTIONS = (
    "dblink",
    "dblink_connect",
    "dblink_connect_u",
    "dblink_exec",
    "lo_export",
    "lo_import",
    "pg_file_write",
    "pg_ls_dir",
    "pg_read_binary_file",
    "pg_read_file",
    "pg_reload_conf",
    "pg_stat_file",
)
_REMEDY = """Make a role that only reads, and use that:
CREATE ROLE reader LOGIN PASSWORD '...' NOSUPERUSER NOINHERIT;
GRANT USAGE ON SCHEMA public TO reader;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader;"""


def check_role(driver: psycopg.Connection[Any]) -> None:
    """See that a SELECT of this role cannot reach beyond the database.

    The role is that of the login. What `SET ROLE` gives up, a function in a query takes back.

    Raises:
        SqlError: it can; says how, and what to do.
    """
    roles = [name for (name,) in driver.execute(_MAY, [[*_REACHES_OUT]])]
    user = driver.info.user
    if roles:
        what = f"is, or is a member of, {', '.join(roles)}"
        raise SqlError(
            f"The role {user!r} {what}: a query may read the server's files, run programs or end sessions. {_REMEDY}"
        )
    functions = [name for (name,) in driver.execute(_CALLS, [[*_FUNCTIONS]])]
    if functions:
        names = ", ".join(functions)
        raise SqlError(
            f"The role {user!r} may call {names}, by which a query reaches beyond the database. Have an administrator "
            f"REVOKE EXECUTE ON FUNCTION {functions[0]}(...) FROM PUBLIC, or from that role, and so for the others."
        )
