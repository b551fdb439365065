"""What an upstream is asked when the server starts, and how it counts tokens.

Its models come from ``/v1/models``. Whether it counts the tokens of a chat is tried once:
vLLM's ``/tokenize`` takes messages; llama.cpp renders them (``/apply-template``), then counts
the text; the Responses API counts by itself. Where none is there, counts are estimates.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import msgspec
from msgspec import Struct

from tieline.errors import TielineError
from tieline_server.core.deltas import MOST
from tieline_server.engines.base import EngineAway, Model
from tieline_server.engines.upstream.replicas import Replica

logger: Final = logging.getLogger("tieline.upstream")

TIMEOUT: Final = 10.0
"""Seconds that one answer may take."""

PROMPT: Final = 2.0
"""Seconds in which a replica that turns have found away has to answer, to count as back."""


SAMPLING: Final = 60.0
"""Seconds that an answer of a few tokens may take."""

INPUT_TOKENS: Final = "responses/input_tokens"
"""The path that counts the input of a Responses request."""

ABSENT: Final = frozenset({404, 405, 501})
"""Statuses of a path that a server does not have."""

_JSON: Final = {"Content-Type": "application/json"}


class UpstreamError(TielineError):
    """The upstream cannot be used; the message is one line, for who starts the server."""


class UpstreamAway(UpstreamError, EngineAway):
    """It does not answer, or only that it cannot now."""


class _Meta(Struct, frozen=True):
    n_ctx: int | None = None
    n_ctx_train: int | None = None


class _Entry(Struct, frozen=True):
    id: str
    created: int = 0
    owned_by: str | None = None
    max_model_len: int | None = None
    """vLLM's and SGLang's name for the context."""
    context_length: int | None = None
    meta: _Meta | None = None
    """Where llama.cpp has it."""


class _List(Struct, frozen=True):
    data: list[_Entry]


class _Tokens(Struct, frozen=True):
    count: int | None = None
    input_tokens: int | None = None
    tokens: list[Any] | None = None


class _Applied(Struct, frozen=True):
    prompt: str


_list: Final = msgspec.json.Decoder(_List)
_tokens: Final = msgspec.json.Decoder(_Tokens)
_applied: Final = msgspec.json.Decoder(_Applied)


async def models_of(
    session: aiohttp.ClientSession, replicas: Sequence[Replica], *, wanted: str | None
) -> list[Model]:
    """What the first replica that answers serves; with ``wanted`` that model first.

    Raises :class:`UpstreamAway` when none answers, :class:`UpstreamError` when what they answer
    is of no use, or when ``wanted`` is not there.
    """
    answers = await asyncio.gather(*(_list_of(session, replica) for replica in replicas))
    lists = [each for each in answers if isinstance(each, list)]
    found = next(iter(lists), None)
    if any({model.id for model in each} != {model.id for model in lists[0]} for each in lists):
        logger.warning("the replicas do not serve the same models; the first one's are offered")
    if found is None:
        away = any(isinstance(each, UpstreamAway) for each in answers)
        raise (UpstreamAway if away else UpstreamError)("; ".join(map(str, answers)))
    if wanted is None:
        return found
    for model in found:
        if model.id == wanted:
            return [model, *(each for each in found if each is not model)]
    named = ", ".join(model.id for model in found[:8])
    raise UpstreamError(f"the upstream serves no model '{wanted}'; it has: {named or 'none'}")


async def answers(session: aiohttp.ClientSession, replica: Replica) -> bool:
    """Whether a replica lists its models, and soon: one that stands still is away as well."""
    return isinstance(await _list_of(session, replica, seconds=PROMPT), list)


async def _list_of(
    session: aiohttp.ClientSession, replica: Replica, *, seconds: float = TIMEOUT
) -> list[Model] | UpstreamError:
    """The models of one replica, or what is wrong with it."""
    url = f"{replica.url}/models"
    status, body = await _request(session, "GET", url, seconds=seconds)
    if status is None:
        return UpstreamAway(f"no upstream answers at {url}")
    if status == 429 or status >= 500:
        return UpstreamAway(f"{url} answers with status {status}")
    if status != 200:
        hint = ": it wants another key" if status in (401, 403) else ""
        return UpstreamError(f"{url} answers with status {status}{hint}")
    try:
        entries = _list.decode(body).data
    except (msgspec.MsgspecError, RecursionError):
        return UpstreamError(f"{url} answers with what is no list of models")
    if not entries:
        return UpstreamError(f"{url} names no model")
    unique: dict[str, Model] = {}
    for entry in entries:
        unique.setdefault(entry.id, _model(entry))
    return list(unique.values())


def _model(entry: _Entry) -> Model:
    meta = entry.meta or _Meta()
    window = entry.max_model_len or entry.context_length or meta.n_ctx or meta.n_ctx_train
    return Model(
        id=entry.id,
        created=entry.created,
        owned_by=entry.owned_by or "upstream",
        context_window=window,
    )


class Prober:
    """Asks one replica about ``model`` what its API can do."""

    def __init__(self, session: aiohttp.ClientSession, replica: Replica, model: str) -> None:
        self._session = session
        self._replica = replica
        self.model = model

    @property
    def url(self) -> str:
        """The base of its API."""
        return self._replica.url

    async def post(
        self, path: str, body: bytes, *, root: bool = False, seconds: float = SAMPLING
    ) -> tuple[int | None, bytes]:
        """Status and body of an answer; the status is None where no server answers.

        ``root``: beside the API, not in it.
        """
        url = f"{self._replica.root if root else self.url}/{path}"
        return await _request(self._session, "POST", url, data=body, headers=_JSON, seconds=seconds)

    async def missing(self, path: str) -> str | None:
        """Why nothing can be sampled at ``path``; None where it can.

        The request lacks what there is to be answered: who knows the path refuses that.
        """
        asked = msgspec.json.encode({"model": self.model})
        status, _ = await self.post(path, asked, seconds=TIMEOUT)
        if status is None:
            return f"no upstream answers at {self.url}/{path}"
        if status in (401, 403):
            return f"{self.url}/{path} answers with status {status}: it wants another key"
        if status in ABSENT:
            return f"{self.url}/{path} answers with status {status}: it has no such path"
        return None


class Counter:
    """Counts the tokens of a chat where the upstream can."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.way: str | None = None
        """The path that counts, one of a mode's, or None."""

    async def probe(self, replica: Replica, model: str, ways: Sequence[str]) -> bool:
        """Finds out which of these ways there is; returns whether there is one."""
        said = [{"role": "user", "content": "hello"}]
        for way in ways:
            self.way = way
            name = "input" if way == INPUT_TOKENS else "messages"
            body = msgspec.json.encode({"model": model, name: said})
            # A /tokenize that knows no messages says that "" has no token, or that it is wrong.
            if await self.count(replica, body):
                return True
        self.way = None
        return False

    async def count(self, replica: Replica, body: bytes) -> int | None:
        """The tokens of the messages in ``body``, or None where the upstream does not say."""
        if self.way == "tokenize":
            return _counted(await self._post(f"{replica.root}/tokenize", body))
        if self.way == INPUT_TOKENS:
            return _counted(await self._post(f"{replica.url}/{INPUT_TOKENS}", body))
        if self.way is None:
            return None
        try:
            applied = _applied.decode(await self._post(f"{replica.root}/apply-template", body))
        except msgspec.MsgspecError:
            return None
        text = {"content": applied.prompt, "add_special": True, "parse_special": True}
        asked = msgspec.json.encode(text)
        return _counted(await self._post(f"{replica.root}/tokenize", asked))

    async def _post(self, url: str, body: bytes) -> bytes:
        status, answer = await _request(self._session, "POST", url, data=body, headers=_JSON)
        return answer if status == 200 else b""


def _counted(answer: bytes) -> int | None:
    try:
        counted = _tokens.decode(answer)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if (count := counted.count or counted.input_tokens) is not None:
        return count if 0 <= count <= MOST else None
    return len(counted.tokens) if counted.tokens is not None else None


async def _request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    seconds: float = TIMEOUT,
) -> tuple[int | None, bytes]:
    """Status and body; the status is None where no server answers."""
    try:
        async with (
            asyncio.timeout(seconds),
            session.request(
                method, url, data=data, headers=headers, allow_redirects=False
            ) as response,
        ):
            return response.status, await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        # Who asked says it, at the start in one line.
        logger.debug("upstream does not answer: %s: %s", url, type(error).__name__)
        return None, b""
