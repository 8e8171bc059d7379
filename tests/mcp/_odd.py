"""Server that lists or sends odd things: `python -m tests.mcp._odd 2025 '{"tools": [{...}], "pings": 300}'`.

`tools` are listed before one valid tool, and `many` is the number of further ones; with `cursor` there is always one
more page of them. `blocks` is the number of content blocks of each result, and `pings` the number of requests that the
server sends during each call.
"""

import json
import sys

from ._plain import Plain, send

GOOD = {"name": "good", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}


def main(era: str, odd: str) -> None:
    """Answer requests."""
    plain, oddities = Plain(era), json.loads(odd)
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if number is None or method is None:
            continue
        answer = plain.answer(method, message.get("params", {}), number)
        if method == "tools/list":
            many = [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(oddities.get("many", 0))]
            answer["result"]["tools"] = [*oddities.get("tools", []), GOOD, *many]
            answer["result"] |= {"nextCursor": oddities["cursor"]} if "cursor" in oddities else {}
        if method == "tools/call" and "blocks" in oddities:
            answer["result"]["content"] = [{}] * oddities["blocks"]
        for n in range(oddities.get("pings", 0) if method == "tools/call" else 0):
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": f"p{n}", "method": "ping"}) + "\n")
        send({"id": number, **answer})


if __name__ == "__main__":
    main(*sys.argv[1:])
