"""A hook for a webhook: posts a line about the job, as chats take it, to the URL in the variable WEBHOOK_URL.

gridtf calls it at each event, with the record of docs/experiments.md on standard input.
"""

import json
import os
import sys
import urllib.request


def line_about(record: dict) -> str:
    """Such as ``digits (job 4711) FAILED: worker:1 on n2: ValueError: …``."""
    about = f"{record['name']} (job {record['job_id']})"
    if "state" in record:
        again = f"; attempt {record['next']} follows" if record["next"] else ""
        return f"{about} {record['state']}: {record['reason']}{again}"
    if record["event"] == "first_step":
        return f"{about} trains: step {record['progress']['step']}"
    return f"{about} has started on {', '.join(record['hosts'])}"


def main() -> None:
    record = json.load(sys.stdin)
    body = json.dumps({"text": line_about(record), "record": record}).encode()
    request = urllib.request.Request(os.environ["WEBHOOK_URL"], body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


if __name__ == "__main__":
    main()
