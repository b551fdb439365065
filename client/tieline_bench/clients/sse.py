"""Server-sent events over HTTP/1.1 on a raw socket: a POST for each turn, keep-alive."""

from collections.abc import Sequence
from typing import Final

from tieline_bench.clients.base import TERMINAL, LoadError, Seen, dial, some_bytes
from tieline_bench.clients.json_event import seen

PATH: Final = "/v1/responses"
_END: Final = b"[DONE]"


class SseConnection:
    """One connection; see ``base.Connection``. ``recorded`` holds bodies without their chunk
    framing."""

    def __init__(self, address: str, *, api_key: str | None = None, path: str = PATH) -> None:
        self.recorded: bytearray | None = None
        self._socket = dial(address)
        head = [f"POST {path} HTTP/1.1", f"Host: {address}", "Content-Type: application/json"]
        if api_key:
            head.append(f"Authorization: Bearer {api_key}")
        self._head = "\r\n".join([*head, "Content-Length: "]).encode()
        self._data = bytearray()
        self._body = bytearray()
        self._in_body = False
        self._held: list[Seen] = []

    def send(self, request: bytes) -> None:
        """Posts one JSON body; the last response must have been read to its end."""
        self._socket.sendall(b"%b%d\r\n\r\n%b" % (self._head, len(request), request))

    def receive(self) -> Sequence[Seen]:
        """The events that are whole now; a turn's last one only with the end of its response.

        A request that came before that end would be pipelined.
        """
        self._data += some_bytes(self._socket)
        if not self._in_body and not self._take_head():
            return ()
        ended = self._take_chunks()
        found = self._held + self._take_events()
        self._held = []
        if ended:
            self._in_body = False
        elif found and found[-1].kind in TERMINAL:
            self._held.append(found.pop())
        return found

    def split(self, recorded: bytes) -> list[bytes]:
        """Each event; the end marker belongs to the last one."""
        *blocks, end = recorded.removesuffix(b"\n\n").split(b"\n\n")
        blocks[-1] += b"\n\n" + end
        return [block + b"\n\n" for block in blocks]

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Drops the connection."""
        self._socket.close()

    def _take_head(self) -> bool:
        head, blank, rest = bytes(self._data).partition(b"\r\n\r\n")
        if not blank:
            return False
        if not head.startswith(b"HTTP/1.1 200 "):
            raise LoadError(f"a request was refused: {head.splitlines()[0].decode('latin-1')}")
        if b"transfer-encoding: chunked" not in head.lower():
            raise LoadError("the response is not chunked")
        self._data = bytearray(rest)
        self._in_body = True
        return True

    def _take_chunks(self) -> bool:
        """Moves whole chunks to the body (RFC 9112 7.1); whether the last one was there."""
        data, at, ended = self._data, 0, False
        while not ended and (line := data.find(b"\r\n", at)) >= 0:
            size = int(bytes(data[at:line]), 16)
            end = line + 2 + size + 2
            if len(data) < end:
                break
            self._body += data[line + 2 : end - 2]
            ended = size == 0
            at = end
        del data[:at]
        return ended

    def _take_events(self) -> list[Seen]:
        whole, _, rest = self._body.rpartition(b"\n\n")
        if not whole:
            return []
        if self.recorded is not None:
            self.recorded += whole + b"\n\n"
        self._body = rest
        found = []
        for block in whole.split(b"\n\n"):
            _, data, payload = block.partition(b"data: ")
            # Without data it is a comment: a sign of life.
            if data and payload != _END:
                found.append(seen(payload))
        return found
