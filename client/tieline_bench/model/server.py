"""The model as a process: ``python -m tieline_bench.model.server TOKENS RATE``.

A raw protocol on uvloop. A call is answered by one write, made beforehand but for its number;
each token of a long answer is a write of its own. It keeps the body of the last request, which
``GET /last`` gives.
"""

import asyncio
import re
import sys
from http import HTTPStatus
from typing import Final, cast

import msgspec
import uvloop

from tieline_bench.model.answers import (
    CALLS,
    CHAT,
    IN_STEP,
    MODELS,
    NUMBER,
    RESPONSES,
    Answer,
    call,
    response,
    words,
)

TRANSPORT: Final = "http"
LAST: Final = "/last"

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_MODEL: Final = re.compile(rb'"model":"([^"]*)"')
_STREAM: Final = b'"stream":true'

_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\n"
    b"Content-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_END: Final = b"0\r\n\r\n"


class Model:
    """What all connections share."""

    def __init__(self, *, tokens: int, rate: int) -> None:
        self.period = 1 / rate
        self.steps = Steps(self.period)
        self.last = b"{}"
        self.calls = {path: call(path).whole for path in (CHAT, RESPONSES)}
        self.words = {path: words(path, tokens) for path in (CHAT, RESPONSES)}
        self._number = 0

    def count(self) -> bytes:
        """The number of the next answer."""
        self._number += 1
        return b"%d" % self._number


class Connection(asyncio.Protocol):
    """One connection: requests in, answers out, one after the other."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._data = bytearray()
        self._whole = 0
        """Bytes of the request that comes, once its head is there."""
        self._speech: Speech | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        # uvloop's is one, but does not inherit from it.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        if self._speech is not None:
            self._speech.stop()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self._data += data
        if not self._whole:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._data, 0, end)
            self._whole = end + 4 + (int(length[1]) if length else 0)
        if len(self._data) >= self._whole:
            head, _, body = bytes(self._data[: self._whole]).partition(b"\r\n\r\n")
            del self._data[: self._whole]
            self._whole = 0
            method, path = head.decode("latin-1").split(" ", 2)[:2]
            self._take(method, path, body)

    def _take(self, method: str, path: str, body: bytes) -> None:
        if method == "GET":
            self._tell(path)
            return
        named = _MODEL.search(body)
        model = named[1].decode() if named else ""
        if path not in self._model.calls:
            self._transport.write(_plain(404, b'{"error":{"message":"No such path."}}'))
            return
        if path == RESPONSES and model in MODELS and _STREAM not in body:
            # Who asks so at its start wants to know whether responses are kept.
            self._transport.write(_plain(200, response(model).replace(NUMBER, self._model.count())))
            return
        if model not in MODELS or _STREAM not in body:
            self._transport.write(_plain(400, b'{"error":{"message":"Not made for that."}}'))
            return
        self._model.last = body
        number = self._model.count()
        if model == CALLS:
            said = self._model.calls[path].replace(NUMBER, number)
            self._transport.write(_HEAD + _chunk(said) + _END)
            return
        answer = self._model.words[path]
        self._speech = Speech(self._transport, answer, number)
        if model == IN_STEP:
            self._model.steps.join(self._speech)
        else:
            Steps(self._model.period).join(self._speech)

    def _tell(self, path: str) -> None:
        if path == LAST:
            self._transport.write(_plain(200, self._model.last))
            return
        models = [{"id": name, "object": "model", "max_model_len": 10_000_000} for name in MODELS]
        self._transport.write(_plain(200, msgspec.json.encode({"object": "list", "data": models})))


class Speech:
    """A long answer on its way."""

    def __init__(self, transport: asyncio.Transport, answer: Answer, number: bytes) -> None:
        self._transport = transport
        self._answer = answer
        self._number = number
        self._said = 0
        self.over = False
        transport.write(_HEAD + _chunk(answer.begin.replace(NUMBER, number)))

    def stop(self) -> None:
        """The client has gone."""
        self.over = True

    def speak(self) -> None:
        """Says the next word, and behind the last one the end."""
        deltas = self._answer.deltas
        self._transport.write(_chunk(deltas[self._said].replace(NUMBER, self._number)))
        self._said += 1
        if self._said == len(deltas):
            end = self._answer.end.replace(NUMBER, self._number)
            self._transport.write(_chunk(end) + _END)
            self.over = True


class Steps:
    """The steps of a batch: at each one every stream in it says a word."""

    def __init__(self, period: float) -> None:
        self._period = period
        self._loop = asyncio.get_running_loop()
        self._batch: list[Speech] = []
        self._next = 0.0

    def join(self, speech: Speech) -> None:
        """The stream speaks from the next step on; an empty batch begins one period from now."""
        if not self._batch:
            self._next = self._loop.time() + self._period
            self._loop.call_at(self._next, self._step)
        self._batch.append(speech)

    def _step(self) -> None:
        for speech in self._batch:
            if not speech.over:
                speech.speak()
        self._batch = [speech for speech in self._batch if not speech.over]
        self._next += self._period
        if self._batch:
            self._loop.call_at(self._next, self._step)


def _chunk(body: bytes) -> bytes:
    """A chunk of a body (RFC 9112 7.1)."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def _plain(status: int, body: bytes) -> bytes:
    """A whole answer of JSON."""
    head = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, HTTPStatus(status).phrase.encode(), len(body)) + body


async def _serve(tokens: int, rate: int) -> None:
    model = Model(tokens=tokens, rate=rate)
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: Connection(model), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    print(f"{TRANSPORT} listening on 127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(*map(int, sys.argv[1:])))
