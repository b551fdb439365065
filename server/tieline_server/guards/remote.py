"""The remote guard: any server with OpenAI's ``POST /v1/moderations``, over pooled connections."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, Self

import aiohttp
import msgspec
from msgspec import Struct

from tieline_server.config.toml_tables import GuardSettings
from tieline_server.guards.base import Piece, Stage, Unchecked

logger: Final = logging.getLogger("tieline.guards")

BATCH: Final = 32
"""Texts of one request."""

LONGEST: Final = 16_000
"""Characters of one text; a longer one is asked about in parts."""

ROOM: Final = 64_000
"""Characters of one request."""

LARGEST: Final = 1024 * 1024
"""Bytes of an answer that are read."""

KEEP_ALIVE: Final = 4.0
"""Seconds that an idle connection is kept. Uvicorn closes after 5."""

TRIES: Final = 2
"""Requests for one verdict, where the first one's connection broke: a pooled one may be stale."""

BROKEN: Final = (aiohttp.ClientError, OSError)

Policy = Literal["open", "closed"]


class _Result(Struct, frozen=True):
    flagged: bool
    categories: dict[str, bool | None] = {}


class _Answer(Struct, frozen=True):
    results: list[_Result]


_answer: Final = msgspec.json.Decoder(_Answer)
_encode: Final = msgspec.json.Encoder().encode


class Wrong(Exception):
    """The server's answer is none; the text is for the log."""


class RemoteGuard:
    """Asks ``url``, the base of an API such as ``http://host:8000/v1``.

    ``key`` goes as a bearer token, and nowhere else. With ``categories`` only these count. Where
    the server does not answer within ``timeout`` seconds, or answers nonsense, ``on_error`` says
    whether what it was asked about passes (open) or not (closed). To be made on a running loop.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        key: str | None = None,
        model: str | None = None,
        timeout: float = 5.0,
        on_error: Policy = "closed",
        categories: Sequence[str] = (),
        images: bool = True,
        requests: int = 32,
        applies: Sequence[Stage] = ("input", "output"),
        message: str | None = None,
    ) -> None:
        self.name = name
        self.applies: frozenset[Stage] = frozenset(applies)
        self.message = message
        self.lenient = on_error == "open"
        self._url = _endpoint(url)
        self._head: dict[str, Any] = {} if model is None else {"model": model}
        self._timeout = timeout
        self._categories = frozenset(categories)
        self._images = images
        self._places = asyncio.Semaphore(requests)
        headers = {"Accept-Encoding": "identity", "User-Agent": "tieline"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={**headers, "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=None),
        )

    @classmethod
    def of(cls, name: str, settings: GuardSettings, *, key: str | None = None) -> Self:
        """The guard of a table."""
        assert settings.url is not None
        return cls(
            name,
            settings.url,
            key=key,
            model=settings.model,
            timeout=settings.timeout,
            on_error=settings.on_error,
            categories=settings.categories,
            images=settings.images,
            requests=settings.requests,
            applies=settings.applies,
            message=settings.message,
        )

    async def first_flagged(self, pieces: Sequence[Piece]) -> int | None:
        """Which piece is the first (:class:`~tieline_server.guards.base.Guard`)."""
        found: int | None = None
        for places, asked in self._requests(pieces):
            if found is not None and min(places) >= found:
                continue
            try:
                results = await self._results(asked, len(places))
            except (Wrong, TimeoutError, *BROKEN) as error:
                # What it does not answer now it will not answer for the rest.
                self._log(error)
                if found is None:
                    raise Unchecked from None
                break
            flagged = (at for at, each in zip(places, results, strict=True) if self._counts(each))
            first = min(flagged, default=None)
            if first is not None:
                found = first if found is None else min(found, first)
        return found

    async def close(self) -> None:
        """Closes its connections."""
        await self._session.close()

    def _requests(self, pieces: Sequence[Piece]) -> Iterator[tuple[list[int], Any]]:
        """The pieces that each request is about, and its ``input``."""
        places: list[int] = []
        texts: list[str] = []
        room = ROOM
        for at, piece in enumerate(pieces):
            for text in _cut(piece.text):
                if texts and (len(texts) == BATCH or len(text) > room):
                    yield places, texts
                    places, texts, room = [], [], ROOM
                places.append(at)
                texts.append(text)
                room -= len(text)
        if texts:
            yield places, texts
        if self._images:
            for at, piece in enumerate(pieces):
                for url in piece.images:
                    # Of a list of parts OpenAI makes one verdict, and takes one image in it.
                    yield [at], [{"type": "image_url", "image_url": {"url": url}}]

    async def _results(self, asked: Any, size: int) -> list[_Result]:
        body = _encode({**self._head, "input": asked})
        async with asyncio.timeout(self._timeout), self._places:
            for tried in range(1, TRIES + 1):
                try:
                    raw = await self._post(body)
                    break
                except BROKEN:
                    if tried == TRIES:
                        raise
        try:
            results = _answer.decode(raw).results
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Wrong(f"no moderation: {type(error).__name__}") from None
        if len(results) != size:
            raise Wrong(f"{len(results)} results for {size} inputs")
        return results

    async def _post(self, body: bytes) -> bytes:
        async with self._session.post(self._url, data=body, allow_redirects=False) as response:
            if response.status != 200:
                raise Wrong(f"status {response.status}")
            raw = bytearray()
            while piece := await response.content.readany():
                raw += piece
                if len(raw) > LARGEST:
                    raise Wrong("a large answer")
            return bytes(raw)

    def _log(self, error: Exception) -> None:
        said = str(error) if isinstance(error, Wrong) else type(error).__name__
        logger.warning("guard '%s' could not be asked: %s", self.name, said)

    def _counts(self, result: _Result) -> bool:
        if not self._categories:
            return result.flagged
        return any(result.categories.get(name) for name in self._categories)


def _endpoint(url: str) -> str:
    url = url.rstrip("/")
    base = url if "/" in url.partition("://")[2] else f"{url}/v1"
    return f"{base}/moderations"


def _cut(text: str) -> Iterator[str]:
    """A text in parts of bounded length, cut between words where there are any."""
    while len(text) > LONGEST:
        at = text.rfind(" ", LONGEST // 2, LONGEST) + 1 or LONGEST
        yield text[:at]
        text = text[at:]
    if text:
        yield text
