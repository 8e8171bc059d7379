"""Where the recordings of conversations are."""

from pathlib import Path
from urllib.parse import quote

_FILE_URL = "sqlite:///"


def records_dir(db: str) -> Path | None:
    """The folder with the recordings of a database's conversations, beside its file; `None` if it has no file."""
    path = db[len(_FILE_URL) :] if db.lower().startswith(_FILE_URL) else db
    if not path or "://" in path or path == ":memory:":
        return None
    return Path(f"{path}.calls")


def recording_name(thread_id: str) -> str:
    """The name of a conversation's recording, on any file system."""
    quoted = quote(thread_id, safe="", errors="surrogatepass")
    return f"{quoted.replace('~', '%7E')}.jsonl"  # which URLs may have
