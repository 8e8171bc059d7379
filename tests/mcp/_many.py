"""Server that sends too many items of one kind: `python -m tests.mcp._many 2025 tools 50000`."""

import json
import sys

from ._odd import GOOD
from ._plain import Plain, send


def main(era: str, what: str, count: int) -> None:
    """Answer requests."""
    plain = Plain(era)
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if number is None or method is None:
            continue
        answer = plain.answer(method, message.get("params", {}), number)
        if method == "tools/list":
            many = [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(count)]
            answer["result"]["tools"] = [GOOD, *many] if what == "tools" else [GOOD]
        if method == "tools/call":
            if what == "blocks":
                answer["result"]["content"] = [{}] * count
            if what == "pings":
                one = [json.dumps({"jsonrpc": "2.0", "id": f"p{n}", "method": "ping"}) for n in range(count)]
                sys.stdout.write("\n".join(one) + "\n")
            if what == "notes":
                note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
                sys.stdout.write("\n".join([json.dumps(note)] * count) + "\n")
        send({"id": number, **answer})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
