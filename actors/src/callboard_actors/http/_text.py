"""Media types and charsets of bodies. Plain functions."""

import codecs
import re
from email.message import Message

_TEXTUAL = re.compile(
    r"text/.*|application/(json|.*\+json|.*json-seq|ndjson|xml|.*\+xml|(x-)?javascript|ecmascript|(x-)?yaml|toml|sql"
    r"|graphql|x-www-form-urlencoded|x-sh)|image/svg\+xml|message/.*"
)
_JSON = re.compile(r"application/json|.*\+json")
_HTML = ("text/html", "application/xhtml+xml")
_BEGINS_AS_HTML = re.compile(rb"\s*(<!--.*?-->\s*)*<(!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_DECLARED = re.compile(
    rb"<(?:meta|\?xml)\b[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?([A-Za-z0-9_:.-]{2,40})", re.IGNORECASE
)
_OF_THE_WEB = re.compile(
    r"(us-)?ascii|utf-?(8|16)(-?[lb]e)?|iso-?8859-?\d+|latin-?\d+|windows-?\d+|cp\d+|big5(-hkscs)?|euc-?(jp|kr)|gbk"
    r"|gb2312|gb18030|hz-gb-2312|shift[_-]?jis|sjis|iso-2022-jp|koi8-?[ru]|macintosh|tis-620"
)
"""Charsets that web pages use. Some other codecs of Python take time that grows with the square of the text."""
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_LOOKED_AT = 2048
_LONGEST_TYPE = 1024
"""Characters of a Content-Type that are parsed, because the time grows with the square of its length."""


def media_type_of(content_type: str) -> str:
    """Return the media type of a Content-Type, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def charset_of(content_type: str) -> str | None:
    """Return the charset of a Content-Type."""
    message = Message()
    message["content-type"] = content_type[:_LONGEST_TYPE]
    return message.get_content_charset()


def is_html(media_type: str, data: bytes) -> bool:
    """Return whether a body is HTML."""
    return media_type in _HTML or (not media_type and _BEGINS_AS_HTML.match(data[:_LOOKED_AT]) is not None)


def is_json(media_type: str) -> bool:
    """Return whether a body is JSON."""
    return _JSON.fullmatch(media_type) is not None


def is_text(media_type: str, data: bytes) -> bool:
    """Return whether a body is text: by its media type, or by its first bytes if the server gives none."""
    begin = data[:_LOOKED_AT]
    if b"\0" in begin and not begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return False
    if media_type and media_type != "application/octet-stream":
        return _TEXTUAL.fullmatch(media_type) is not None
    controls = sum(byte < 32 and byte not in b"\t\n\r\x0c\x1b" for byte in begin)
    return controls * 20 <= len(begin)


def decoded(data: bytes, charset: str | None) -> str:
    """Return a body as text, with the server's charset if any; undecodable bytes become replacement characters."""
    mark = next((name for mark, name in _MARKS if data.startswith(mark)), None)
    declared = _DECLARED.search(data[:_LOOKED_AT])
    for name in (mark, charset, "utf-8", None if declared is None else declared[1].decode("ascii")):
        if name is not None and (text := _as(name, data)) is not None:
            return text
    return data.decode("windows-1252", errors="replace")


def _as(charset: str, data: bytes) -> str | None:
    """Return the text in a charset, or `None` if it cannot be decoded; the last character may be incomplete."""
    if charset != "utf-8-sig" and not _OF_THE_WEB.fullmatch(charset.lower()):
        return None
    try:
        return codecs.getincrementaldecoder(charset)().decode(data)
    except (LookupError, ValueError):
        return None
