"""An OpenAI-compatible server as the engine: vLLM, SGLang, llama.cpp, Ollama, Ray Serve.

A turn is one ``POST`` over a pooled connection; a mode says to which path of the API, with what
in it, and how the answer is read (``modes``). Closing the generator closes that request at once.
Until the first token a request that failed is tried again, at another replica where there is
one; after it a failure is the turn's, with what was used. What the upstream says about itself
(models, counting) is asked once, before the server listens.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import aiohttp

from tieline_server.config import Config, urls_of
from tieline_server.config.toml_tables import ModelSettings
from tieline_server.core.deltas import Accepted, Delta, Finish
from tieline_server.core.effects import Prompt
from tieline_server.engines.base import EngineError, EngineKind, Model, Opening
from tieline_server.engines.upstream.allowance import LimitedAnswer
from tieline_server.engines.upstream.choice import Name, Wanted, chosen
from tieline_server.engines.upstream.exchange import Exchange, Patience
from tieline_server.engines.upstream.faults import UNREACHABLE, Failure, cut
from tieline_server.engines.upstream.http import Pool
from tieline_server.engines.upstream.modes import Mode
from tieline_server.engines.upstream.probe import (
    Counter,
    Prober,
    UpstreamError,
    answers,
    models_of,
)
from tieline_server.engines.upstream.replicas import Replica, Replicas
from tieline_server.garbage_collection import forget_frames

T = TypeVar("T")

AFFINITY: Final = "upstream.affinity"
"""The memo of a link that names where its chain belongs."""

PLACES: Final = 256
"""Requests that one replica has at once."""

TRIES: Final = 3
"""Requests that one turn may make, where the ones before failed before their first token."""

PAUSE: Final = 0.1
"""Seconds before the same replica is asked again."""

KEEP_ALIVE: Final = 4.0
"""Seconds that an idle connection is kept. Uvicorn, under most upstreams, closes after 5."""


class UpstreamEngine:
    """Samples at ``urls``, base URLs such as ``http://host:8000/v1``, all serving the same models.

    ``key`` goes as a bearer token, and nowhere else. ``model`` is the default one of the
    upstream's, ``how`` it is asked. Call :meth:`probe` before anything else.
    """

    name = "upstream"

    def __init__(
        self,
        urls: Sequence[str],
        *,
        name: str | None = None,
        key: str | None = None,
        model: str | None = None,
        how: Wanted | None = None,
        patience: Patience | None = None,
        places: int = PLACES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name or type(self).name
        self._replicas = Replicas([_base(url) for url in urls], places=places, clock=clock)
        self._key = key
        self._wanted = model
        self._patience = patience or Patience()
        self._contexts: dict[str, int | None] = {}
        self._how = how or Wanted()
        self._mode: Mode
        self._models: list[Model] = []
        self._session: aiohttp.ClientSession | None = None
        self._pool: Pool | None = None
        self._counter: Counter | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def probe(self) -> None:
        """Asks what the upstream serves; raises :class:`UpstreamError`, one line."""
        session = self._session = self._session or self._connect()
        replicas = self._replicas.all
        self._models = await models_of(session, replicas, wanted=self._wanted)
        self._contexts |= {model.id: model.context_window for model in self._models}
        self._mode = await self._choose(session)
        self._counter = counter = Counter(session)
        for replica in replicas:
            if await counter.probe(replica, self._models[0].id, self._mode.counts):
                break
        self._pool = Pool(connect=self._patience.connect, keep=KEEP_ALIVE, headers=self._headers())

    @property
    def probed(self) -> bool:
        """Whether it is known what the upstream serves, and how it is asked."""
        return self._pool is not None

    async def answers(self) -> bool:
        """Whether some replica is not left alone, or lists its models again."""
        replicas = self._replicas.all
        if not all(replica.away for replica in replicas) or self._session is None:
            return True
        session = self._session
        found = await asyncio.gather(*(answers(session, replica) for replica in replicas))
        for replica, back in zip(replicas, found, strict=True):
            if back:
                replica.back()
        return any(found)

    async def _choose(self, session: aiohttp.ClientSession) -> Mode:
        """How the upstream is asked; the first replica that answers says what there is."""
        *others, last = self._replicas.all
        for replica in others:
            with suppress(UpstreamError):
                return await chosen(
                    self._how, Prober(session, replica, self._models[0].id), self._contexts
                )
        return await chosen(self._how, Prober(session, last, self._models[0].id), self._contexts)

    def models(self) -> Sequence[Model]:
        """What the upstream serves, the default model first."""
        return self._models

    async def count(self, prompt: Prompt) -> int:
        """How many input tokens the prompt has: the upstream's own count, else an estimate."""
        mode = self._mode
        heavy = mode.heavy(prompt)
        estimate = await _beside(mode.estimate, prompt) if heavy else mode.estimate(prompt)
        assert self._counter is not None
        if self._counter.way is None:
            return estimate
        body = mode.counted(prompt)
        for replica in self._replicas.course(self._affinity(prompt), tries=1):
            counted = await self._counter.count(replica, body)
            if counted is not None:
                return counted
        return estimate

    async def sample(self, prompt: Prompt) -> AsyncGenerator[Sequence[Delta], None]:
        """Samples one answer (:meth:`tieline_server.engines.base.Engine.sample`)."""
        if not prompt.settings.generate:
            yield [Accepted(input_tokens=await self.count(prompt)), Finish(output_tokens=0)]
            return
        timing = _Timing()
        mode = self._mode
        request = await _beside(mode.build, prompt) if mode.heavy(prompt) else mode.build(prompt)
        timing.mark("render")
        course = _Course(self._replicas, self._affinity(prompt))
        replica = course.start()
        accepted, most = False, prompt.max_output_tokens
        step: list[Delta] = []
        while True:
            exchange, sent = self._exchange(replica), request.to(replica)
            answer = sent.answer if most is None else LimitedAnswer(sent.answer, most)
            try:
                await exchange.open(mode.path, sent.body)
                timing.wait("queue", exchange.waited)
                step, accepted = [] if accepted else [Accepted(input_tokens=request.tokens)], True
                while not answer.done:
                    if not step and (wait := exchange.more()) is not None:
                        await wait
                    if (events := exchange.take()) is None:
                        break
                    if said := answer.read(events):
                        exchange.heard = True
                        if not timing.begun:
                            timing.begin()
                        step += said
                    elif answer.moved:
                        answer.moved, exchange.heard = False, True
                    # What comes with the head, or with the end, goes with it.
                    if step and not answer.done:
                        yield step
                        step = []
                if not ((answer.done and timing.begun) or answer.finished):
                    raise cut()
                replica.worked()
                timing.mark("decode")
                step += answer.end(timing.phases)
                self._keep(exchange, whole=most is None or answer.finished)
                yield step
                return
            except (Failure, EngineError) as failure:
                if step:
                    yield step
                    step = []
                if isinstance(failure, EngineError):
                    raise
                other = None if timing.begun else mode.again(prompt, request, replica, failure)
                if other is not None:
                    request = other
                    continue
                course.failed(replica, failure, last=timing.begun or not failure.retryable)
            finally:
                exchange.close()
            replica = await course.next()

    async def close(self) -> None:
        """Ends what runs: every sampling fails, every connection closes."""
        self._closed = True
        if self._pool is not None:
            self._pool.close()
        if self._session is not None:
            await self._session.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity", "User-Agent": "tieline"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        return headers

    def _connect(self) -> aiohttp.ClientSession:
        """For what is asked now and then."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._patience.connect),
        )

    def _exchange(self, replica: Replica) -> Exchange:
        if self._closed or self._pool is None:
            raise EngineError("engine_unavailable", "The engine is shutting down.")
        return Exchange(self._pool, replica, patience=self._patience)

    def _affinity(self, prompt: Prompt) -> str:
        """What goes to the same replica: what the client says belongs together, else the chain.

        A chain stays where its first turn was asked, on whichever connection and lane it goes on:
        over HTTP each turn has its own. Forks stay together, as they share their prefix.
        """
        if len(self._replicas.all) == 1:
            return ""
        key = prompt.settings.passed_on.get("prompt_cache_key")
        if isinstance(key, str):
            return key
        return prompt.chain.derive(AFFINITY, "", lambda before, _: before or prompt.session)

    def _keep(self, exchange: Exchange, *, whole: bool) -> None:
        """Leaves the rest of an answer that has ended to a task, so that its turn need not wait.

        One that was not ended by its model may have no end: it is closed.
        """
        rest = exchange.detach() if whole else None
        if rest is None:
            return
        task = asyncio.get_running_loop().create_task(rest.finish())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class Asked(NamedTuple):
    """An upstream as one engine asks it."""

    urls: str
    mode: Name
    state: bool
    tokenizer: Path | None


class UpstreamKind(EngineKind):
    """Opens an engine for each upstream, and for each way in which models ask it."""

    def settings_of(self, config: Config, table: ModelSettings) -> Asked | None:
        """The model's own settings, else those of all; None where neither names a URL."""
        urls = table.upstream or config.upstream
        if urls is None:
            return None
        return Asked(
            urls=urls,
            mode=table.upstream_mode or "auto",
            state=bool(table.upstream_state),
            tokenizer=table.upstream_tokenizer,
        )

    def open(self, opening: Opening) -> UpstreamEngine:
        """Makes the engine, which has yet to ask what the upstream serves."""
        config, asked = opening.config, self.settings_of(opening.config, opening.table)
        assert asked is not None, "the configuration insists on a URL"
        return UpstreamEngine(
            urls_of(asked.urls),
            name=opening.name,
            key=config.key_of_upstream(),
            model=config.upstream_model if asked.urls == config.upstream else None,
            how=Wanted(
                mode=asked.mode, state=asked.state, tokenizer=asked.tokenizer, salt=opening.salt
            ),
            patience=Patience(first=config.upstream_timeout, between=config.upstream_stall_timeout),
            places=config.upstream_requests,
        )


class _Course:
    """The tries of one turn: which replica it asks next, and what it says when none is left."""

    __slots__ = ("_failed", "_failure", "_last", "_next", "_replicas")

    def __init__(self, replicas: Replicas, affinity: str) -> None:
        self._replicas = replicas
        self._next = replicas.course(affinity, tries=TRIES)
        self._failure: Failure | None = None
        self._failed: set[Replica] = set()
        self._last = False
        """Whether it was the last try."""

    def start(self) -> Replica:
        """The next replica, at once; raises :class:`EngineError` where there is none."""
        replica = next(self._next, None)
        if replica is None:
            raise self.end()
        return replica

    async def next(self) -> Replica:
        """The replica to ask now that one has failed; raises as :meth:`start` does."""
        if self._last:
            raise self.end()
        replica = self.start()
        if replica in self._failed:
            if self._failure is not None and self._failure.busy:
                # It said when to come again, and that is for the client to keep.
                raise self.end()
            await asyncio.sleep(PAUSE)
        return replica

    def failed(self, replica: Replica, failure: Failure, *, last: bool) -> None:
        """The replica failed; ``last``: no other is asked."""
        forget_frames(failure)
        self._failure, self._last = failure, last
        self._failed.add(replica)
        if failure.down:
            self._replicas.failed(replica)

    def end(self) -> EngineError:
        """What the turn is told. It is not kept: in its frames, too, is all of this."""
        failure, self._failure = self._failure, None
        if failure is not None:
            return failure.error
        after = self._replicas.opens_in()
        return EngineError("engine_unavailable", UNREACHABLE, retry_after=max(after, PAUSE))


class _Timing:
    """The phases of one turn, in microseconds."""

    __slots__ = ("_last", "begun", "phases")

    def __init__(self) -> None:
        self._last = time.perf_counter_ns()
        self.phases: dict[str, int] = {}
        self.begun = False
        """Whether something of the answer has come."""

    def begin(self) -> None:
        """The first of it is here."""
        self.begun = True
        self.mark("prefill")

    def mark(self, phase: str) -> None:
        """A phase ends."""
        now = time.perf_counter_ns()
        self.phases[phase] = (now - self._last) // 1000
        self._last = now

    def wait(self, phase: str, nanoseconds: int) -> None:
        """A phase of this length, within the one that goes on."""
        self.phases[phase] = nanoseconds // 1000
        self._last += nanoseconds


async def _beside(make: Callable[[Prompt], T], prompt: Prompt) -> T:
    """``make(prompt)`` in a thread, as it may take long."""
    return await asyncio.get_running_loop().run_in_executor(None, make, prompt)


def _base(url: str) -> str:
    """A URL as the base of the API: without a path it is the usual one."""
    url = url.rstrip("/")
    return url if "/" in url.partition("://")[2] else f"{url}/v1"
