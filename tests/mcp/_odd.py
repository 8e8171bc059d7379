"""Server that lists the given tools besides one valid one: `python -m tests.mcp._odd 2025 '[{...}]'`."""

import json
import sys

from ._plain import Plain, send

GOOD = {"name": "good", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}


def main(era: str, odd: str) -> None:
    """Answer requests."""
    plain = Plain(era)
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        answer = plain.answer(method, message.get("params", {}), number) if number is not None else None
        if method == "tools/list" and answer is not None:
            answer["result"]["tools"] = [*json.loads(odd), GOOD]
        if answer is not None:
            send({"id": number, **answer})


if __name__ == "__main__":
    main(*sys.argv[1:])
