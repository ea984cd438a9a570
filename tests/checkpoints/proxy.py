"""A proxy before an S3 server that does to chosen requests what networks and stores do."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import dataclass, field

ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>told to</Message></Error>"


@dataclass
class Rule:
    """What is done to requests.

    Args:
        match: Regular expression over "METHOD path?query".
        do: `answer` with an error, `cut_up` or `cut_down` the body at a byte, `lose` the answer after the server did
            it, `flip` a bit of the answer's body, `flip_up` one of the request's, `stall` for ever.
        times: How often.
        status: Of an error.
        code: Of an error.
        at: Byte of the body.
        skip: Requests that are let through first.
    """

    match: str
    do: str
    times: int = 1
    status: int = 503
    code: str = "ServiceUnavailable"
    at: int = 0
    skip: int = 0


@dataclass
class Proxy:
    """Passes everything on to one host, counting, but for what its rules say."""

    upstream: str
    rules: list[Rule] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    port: int = 0

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def count(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, line)) for line in self.requests)

    def _run(self, ready: threading.Event) -> None:
        async def main() -> None:
            self._stop = asyncio.Event()
            server = await asyncio.start_server(self._client, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await self._stop.wait()
            server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        self._loop.run_until_complete(main())
        self._loop.close()

    def _rule(self, line: str) -> Rule | None:
        for rule in self.rules:
            if rule.times and re.search(rule.match, line):
                if rule.skip:
                    rule.skip -= 1
                    return None
                rule.times -= 1
                return rule
        return None

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path = head.split(b" ", 2)[:2]
        line = f"{method.decode()} {path.decode()}"
        self.requests.append(line)
        rule = self._rule(line)
        if rule is not None and rule.do == "stall":
            await asyncio.sleep(3600)
        if b"100-continue" in head.lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = re.sub(rb"(?i)expect: 100-continue\r\n", b"", head)
        body = await self._body(head, reader, rule)
        if body is None:
            return False
        if rule is not None and rule.do == "answer":
            text = ERROR.format(code=rule.code).encode() if method != b"HEAD" and rule.status != 204 else b""
            top = f"HTTP/1.1 {rule.status} No\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}\r\n\r\n"
            writer.write(top.encode() + text)
            await writer.drain()
            return True
        await self._pass_on(head, body, writer, rule, method == b"HEAD")
        return False

    async def _body(self, head: bytes, reader: asyncio.StreamReader, rule: Rule | None) -> bytes | None:
        found = re.search(rb"(?i)content-length: (\d+)", head)
        size = int(found[1]) if found else 0
        if rule is not None and rule.do == "cut_up":
            await reader.readexactly(min(rule.at, size))
            return None
        body = await reader.readexactly(size)
        if rule is not None and rule.do == "flip_up" and body:
            body = flipped(body, rule.at)
        return body

    async def _pass_on(
        self, head: bytes, body: bytes, writer: asyncio.StreamWriter, rule: Rule | None, no_body: bool
    ) -> None:
        host, port = self.upstream.removeprefix("http://").split(":")
        above, below = await asyncio.open_connection(host, int(port))
        below.write(re.sub(rb"(?i)connection: keep-alive\r\n", b"", head)[:-2] + b"Connection: close\r\n\r\n" + body)
        await below.drain()
        answer = await above.read(-1)
        below.close()
        if rule is not None and rule.do == "lose":
            return
        start = answer.index(b"\r\n\r\n") + 4
        if rule is not None and rule.do == "cut_down" and not no_body:
            answer = answer[: start + rule.at]
        if rule is not None and rule.do == "flip" and len(answer) > start:
            answer = answer[:start] + flipped(answer[start:], rule.at)
        writer.write(answer)
        await writer.drain()
        if rule is None or rule.do != "cut_down":
            writer.close()
            await writer.wait_closed()


def flipped(data: bytes, at: int) -> bytes:
    """One bit of it changed."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
