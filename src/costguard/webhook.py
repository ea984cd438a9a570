"""Posts a verdict as JSON to a URL of the user's."""

from __future__ import annotations

import json
import urllib.request

from costguard.records import Verdict

TIMEOUT_S = 5.0


def post(url: str, verdict: Verdict) -> None:
    """Post a verdict.

    Args:
        url: An http or https URL.
        verdict: What is told.

    Raises:
        OSError: If it cannot be delivered in `TIMEOUT_S` seconds.
    """
    fields = {name: getattr(verdict, name) for name in ("kind", "reason", "message", "step", "spend")}
    body = json.dumps({**fields, "action": verdict.action.value, "evidence": dict(verdict.evidence)}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S):
        pass
