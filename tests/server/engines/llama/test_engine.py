"""The embedded engine with the real model: short prompts, few tokens, one loaded engine."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.engine_contract import (
    WEATHER,
    EngineContract,
    deltas_of,
    finish_of,
    link,
    prompt,
    text_in,
    tokens_in,
)
from tieline_server.core.deltas import (
    Accepted,
    CallDelta,
    CallStart,
    Delta,
    Finish,
    ItemEnd,
    TextDelta,
)
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import ChainNode
from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format import gguf_metadata
from tieline_server.engines.chat_format.chat_template import ChatTemplate
from tieline_server.engines.chat_format.constrain import MAX_CALLS
from tieline_server.engines.chat_format.prompt import INLINE_BYTES
from tieline_server.engines.llama.engine import LlamaEngine
from tieline_server.engines.llama.runtime import Completion, Failure, Progress, Report
from tieline_server.models.packaged import find

MODEL = "smollm2-135m-instruct"
SLOTS = 2


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    engine = LlamaEngine(slots=SLOTS, context=1024)
    yield engine
    asyncio.run(engine.close())


ENDLESS: dict[str, Any] = {
    "text": {"format": {"type": "json_schema", "name": "x", "schema": {"minLength": 400}}},
    "max_output_tokens": 400,
}
"""Members of a create whose answer cannot be short."""


class TestLlamaKeepsTheContract(EngineContract):
    model = MODEL

    @pytest.fixture(autouse=True)
    def share(self, engine: LlamaEngine) -> None:
        self.shared = engine

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[LlamaEngine]:
        yield self.shared

    def ask_long(self, **members: Any) -> Prompt:
        return prompt("Tell me a long story.", model=MODEL, **{**ENDLESS, **members})


class Watched:
    """The engine's runtime, watched: what runs, and what it reports."""

    def __init__(self, engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running = 0
        self.begun = 0
        self.reports: list[Report] = []
        self._lock = threading.Lock()
        self._complete = engine._runtime.complete
        monkeypatch.setattr(engine._runtime, "complete", self.complete)

    def complete(self, completion: Completion, report: Callable[[Report], bool]) -> None:
        def watch(what: Report) -> bool:
            self.reports.append(what)
            return report(what)

        with self._lock:
            self.running += 1
            self.begun += 1
        try:
            self._complete(completion, watch)
        finally:
            with self._lock:
                self.running -= 1


@pytest.fixture
def watched(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(engine, monkeypatch)


def ask(content: Any = "Say hello.", **members: Any) -> Prompt:
    return prompt(content, model=MODEL, **{"max_output_tokens": 24, "temperature": 0, **members})


def long() -> Prompt:
    """A prompt of 400 tokens, new to every slot, whose answer is long."""
    words = (f"word{next(_numbers)} " for _ in range(130))
    return ask("Tell me a story about " + "".join(words), **ENDLESS)


def _count() -> Iterator[int]:
    yield from range(10**9)


_numbers = _count()


def answer(engine: LlamaEngine, given: Prompt) -> list[Delta]:
    return asyncio.run(deltas_of(engine, given))


async def until(condition: Callable[[], bool]) -> None:
    """Lets the other tasks of the loop go on until ``condition`` holds."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition does not come to hold")


def arguments_in(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, CallDelta))


def start_of(deltas: list[Delta]) -> CallStart:
    [start] = [delta for delta in deltas if isinstance(delta, CallStart)]
    return start


def test_the_model_is_named_after_its_file(engine: LlamaEngine) -> None:
    [model] = engine.models()
    assert (model.id, model.context_window) == (MODEL, 1024)


def test_counts_are_the_runtimes_and_deltas_add_up_to_them(engine: LlamaEngine) -> None:
    deltas = answer(engine, ask("Count from one to ten."))
    finish = finish_of(deltas)
    assert isinstance(deltas[0], Accepted)
    assert finish.input_tokens == deltas[0].input_tokens
    assert finish.cached_tokens == deltas[0].cached_tokens
    assert finish.output_tokens is not None
    assert 0 <= finish.output_tokens - tokens_in(deltas) <= 1  # the one that ends the message
    assert finish.phases is not None
    assert finish.phases.keys() == {"render", "queue", "prefill", "decode"}
    assert finish.phases["prefill"] > 0
    assert finish.phases["decode"] > 0


class Chat:
    """A lane that goes on turn by turn, and what each turn had to compute."""

    def __init__(self, engine: LlamaEngine, lane: str, *, owner: str = "local") -> None:
        self.engine = engine
        self.lane = lane
        self.owner = owner
        self.tip: ChainNode | None = None
        self.held = 0
        """Tokens that its slot must have: prompt and answer, less the last one sampled."""

    async def say(self, words: str, **members: Any) -> tuple[int, int]:
        """One turn: how many tokens were computed, and how many of the prompt are new."""
        tip = link(words, self.tip)
        given = replace(ask(tip=tip, **members), session=self.lane, owner=self.owner)
        deltas = await deltas_of(self.engine, given)
        done = finish_of(deltas)
        assert done.input_tokens is not None
        assert done.cached_tokens is not None
        assert done.output_tokens is not None
        new, self.held = done.input_tokens - self.held, done.input_tokens + done.output_tokens - 1
        self.tip = link([{"role": "assistant", "content": text_in(deltas)}], tip, output=True)
        return done.input_tokens - done.cached_tokens, new


@pytest.mark.parametrize("members", [{}, {"tools": [WEATHER], "tool_choice": "required"}])
def test_a_warm_up_leaves_its_prompt_in_the_cache_for_the_turn_that_follows(
    engine: LlamaEngine, members: dict[str, Any]
) -> None:
    async def main() -> tuple[list[Delta], Finish]:
        history = link("The fig is ripe. " * 20, None)
        asked = replace(ask(tip=history, generate=False, **members), session="warmed up")
        warm = await deltas_of(engine, asked)
        asked = replace(ask(tip=link("Go on.", history), **members), session="warmed up")
        return warm, finish_of(await deltas_of(engine, asked))

    warm, turn = asyncio.run(main())
    assert [type(delta) for delta in warm] == [Accepted, Finish]
    size = finish_of(warm).input_tokens
    opening = len(ChatTemplate(gguf_metadata.read(find())).opening)
    assert size is not None
    assert turn.cached_tokens is not None
    assert size - opening <= turn.cached_tokens < size


async def test_a_warm_up_that_is_cancelled_stops_within_a_batch(
    engine: LlamaEngine, watched: Watched
) -> None:
    asked = ask("Nobody will read this. " * 120, generate=False)
    async with aclosing(engine.sample(asked)) as steps:
        await anext(steps)
    assert watched.running == 0
    done = [report.done for report in watched.reports if isinstance(report, Progress)]
    assert done[-1] <= 2 * 128


@pytest.fixture(scope="module")
def four() -> Iterator[LlamaEngine]:
    engine = LlamaEngine(slots=4, context=512)
    yield engine
    asyncio.run(engine.close())


async def test_each_turn_of_up_to_four_lanes_computes_what_is_new_and_no_more(
    four: LlamaEngine,
) -> None:
    lanes = [Chat(four, f"lane {at}") for at in range(4)]
    first, *others = [
        list(
            await asyncio.gather(
                *(lane.say(f"Say {at}.", max_output_tokens=6 + at) for at, lane in enumerate(lanes))
            )
        )
        for _ in range(3)
    ]
    template = ChatTemplate(gguf_metadata.read(find()))
    asked = [len(template.message("user", f"Say {at}.")) + len(template.opening) for at in range(4)]
    assert [new for _, new in first] == asked
    for turn in others:
        for (computed, new), size in zip(turn, asked, strict=True):
            # Where the limit ended the answer, its last token and the two that end a message;
            # where the model did, its last token is the first of those two.
            assert computed == new
            assert new - size in (2, 3)


async def test_more_lanes_than_slots_are_all_answered_and_lose_only_what_they_had_kept(
    four: LlamaEngine,
) -> None:
    lanes = [Chat(four, f"of six {at}") for at in range(6)]
    turns = [
        each
        for _ in range(2)
        for each in await asyncio.gather(
            *(lane.say(f"I am {at}.", max_output_tokens=4) for at, lane in enumerate(lanes))
        )
    ]
    assert len(turns) == 12
    assert all(computed >= new for computed, new in turns[6:])


async def test_ids_of_what_was_sampled_are_kept_even_where_text_would_become_others(
    four: LlamaEngine,
) -> None:
    chat = Chat(four, "odd")
    # Sampled letter by letter, and with code points of several tokens.
    odd = {"type": "json_schema", "name": "x", "schema": {"pattern": "^(u🦊n){3}$"}}
    await chat.say("Go.", text={"format": odd}, max_output_tokens=40)
    computed, new = await chat.say("And?", max_output_tokens=2)
    assert computed == new


async def test_what_one_owner_said_is_not_in_the_cache_for_another(four: LlamaEngine) -> None:
    words = "The same words of everybody. " * 3
    mine = [Chat(four, f"mine {at}") for at in range(4)]
    for each in mine:
        await each.say(words, max_output_tokens=2)
    yours = Chat(four, "yours", owner="you")
    (cold, first), (warm, second) = [await yours.say(words, max_output_tokens=2) for _ in range(2)]
    assert cold == first
    assert warm == second


def test_code_points_that_tokens_split_come_whole(engine: LlamaEngine) -> None:
    value = "🦊é日本語𝒳"
    form = {"type": "json_schema", "name": "x", "schema": {"const": value}}
    deltas = answer(engine, ask(text={"format": form}))
    pieces = [delta.text for delta in deltas if isinstance(delta, TextDelta)]
    assert json.loads("".join(pieces)) == value
    assert "🦊" in pieces
    assert tokens_in(deltas) > len(pieces)


def test_a_named_tool_is_called_with_arguments_that_stream(engine: LlamaEngine) -> None:
    other = {**WEATHER, "name": "get_time"}
    named = {"type": "function", "name": "get_time"}
    deltas = answer(engine, ask("Oslo?", tools=[WEATHER, other], tool_choice=named))
    assert start_of(deltas).name == "get_time"
    assert json.loads(arguments_in(deltas)).keys() == {"city", "unit"}
    assert len([delta for delta in deltas if isinstance(delta, CallDelta)]) > 3
    assert text_in(deltas) == ""


def test_a_custom_tool_gets_text_and_a_namespace_is_kept(engine: LlamaEngine) -> None:
    tools = [{"type": "namespace", "name": "os", "tools": [{"type": "custom", "name": "shell"}]}]
    asked = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    given = ask("List files.", max_output_tokens=300, **asked)
    start = start_of(deltas := answer(engine, given))
    assert (start.kind, start.name, start.namespace) == ("custom_tool_call", "shell", "os")
    assert isinstance(arguments_in(deltas), str)
    assert finish_of(deltas).reason == "stop"


def called(city: str, *, output: str | None = None) -> dict[str, Any]:
    """A call of the weather tool, or its output."""
    if output is not None:
        return {"type": "function_call_output", "call_id": city, "output": output}
    arguments = json.dumps({"city": city, "unit": "celsius"}, separators=(",", ":"))
    name = WEATHER["name"]
    return {"type": "function_call", "call_id": city, "name": name, "arguments": arguments}


def test_calls_side_by_side_are_items_each_up_to_a_bound(engine: LlamaEngine) -> None:
    asked = link("Weather in Oslo and Rome?")
    outputs = [called(city, output="Rain.") for city in ("Oslo", "Rome")]
    tip = link(outputs, link([called(city) for city in ("Oslo", "Rome")], asked, output=True))
    tip = link("Weather in Lima and Cairo?", tip)
    given = ask(tip=tip, tools=[WEATHER], tool_choice="required", max_output_tokens=250)
    deltas = answer(engine, given)
    kinds = [type(delta) for delta in deltas]
    assert kinds.count(CallStart) == kinds.count(ItemEnd)
    assert 1 < kinds.count(CallStart) <= MAX_CALLS
    ends = [at for at, kind in enumerate(kinds) if kind is ItemEnd]
    for begin, end in pairwise([0, *ends]):
        assert json.loads(arguments_in(deltas[begin:end])).keys() == {"city", "unit"}
    assert finish_of(deltas).reason == "stop"


def test_a_call_that_was_cut_ends_by_its_length(engine: LlamaEngine) -> None:
    deltas = answer(engine, ask(tools=[WEATHER], tool_choice="required", max_output_tokens=12))
    assert start_of(deltas).name == "get_weather"
    assert finish_of(deltas).reason == "length"


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_without_a_required_tool_text_is_no_call(engine: LlamaEngine, choice: str) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "Rain."}
    tip = link([output], link([call], link("Weather?"), output=True))
    deltas = answer(engine, ask(tip=tip, tools=[WEATHER], tool_choice=choice))
    if choice == "none":
        assert text_in(deltas)
    assert not text_in(deltas).startswith("{")
    assert json.loads(arguments_in(deltas) or "{}") is not None


@pytest.mark.parametrize(
    ("form", "key"),
    [
        ({"type": "json_object"}, None),
        (
            {
                "type": "json_schema",
                "name": "x",
                "schema": {
                    "type": "object",
                    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
                    "required": ["n"],
                },
            },
            "n",
        ),
    ],
)
def test_a_text_format_gives_json_of_its_shape(
    engine: LlamaEngine, form: dict[str, Any], key: str | None
) -> None:
    given = ask(
        'Write the JSON {"n": 1}', text={"format": form}, max_output_tokens=100, temperature=0
    )
    value = json.loads(text_in(answer(engine, given)))
    assert isinstance(value, dict)
    assert key is None or isinstance(value[key], int)


def test_a_schema_that_cannot_be_followed_is_an_error_and_no_prose(engine: LlamaEngine) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"minimum": 5, "maximum": 3}}
    with pytest.raises(EngineError, match="nothing satisfies") as caught:
        answer(engine, ask(text={"format": form}))
    error = caught.value
    assert (error.status, error.code) == (400, "invalid_json_schema")
    assert error.param == "text.format.schema"
    assert text_in(answer(engine, ask()))


def test_log_probabilities_come_with_their_tokens_when_asked_for(engine: LlamaEngine) -> None:
    include = ["message.output_text.logprobs"]
    deltas = answer(engine, ask(include=include, top_logprobs=2))
    first = next(delta for delta in deltas if isinstance(delta, TextDelta))
    [entry] = [json.loads(bytes(raw)) for raw in first.logprobs]
    assert entry["token"] == first.text
    assert bytes(entry["bytes"]).decode() == first.text
    assert entry["logprob"] <= 0
    assert len(entry["top_logprobs"]) == 2
    assert not any(
        delta.logprobs for delta in answer(engine, ask()) if isinstance(delta, TextDelta)
    )


async def test_closing_while_it_decodes_stops_the_thread(
    engine: LlamaEngine, watched: Watched
) -> None:
    sampling = engine.sample(ask("Count.", **ENDLESS))
    async for step in sampling:
        if any(isinstance(delta, TextDelta) for delta in step):
            break
    assert watched.running == 1
    await sampling.aclose()
    assert watched.running == 0
    assert len(watched.reports) < 100


async def test_closing_while_it_reads_the_prompt_stops_within_a_batch(
    engine: LlamaEngine, watched: Watched
) -> None:
    sampling = engine.sample(long())
    step = list(await anext(sampling))
    assert watched.running == 1
    await sampling.aclose()
    assert watched.running == 0
    [accepted] = step
    assert isinstance(accepted, Accepted)
    assert accepted.input_tokens > 3 * 128
    assert all(isinstance(report, Progress) for report in watched.reports)
    assert len(watched.reports) <= 3


async def test_the_end_of_an_answer_is_told_when_its_slot_is_free(
    engine: LlamaEngine, watched: Watched
) -> None:
    async with aclosing(engine.sample(ask(max_output_tokens=3))) as sampling:
        async for step in sampling:
            if isinstance(step[-1], Finish):
                assert watched.running == 0
                assert all(slot.guest is None for slot in engine._slots._slots)


async def test_a_lanes_next_turn_has_the_slot_that_its_cancelled_one_leaves(
    four: LlamaEngine,
) -> None:
    lane = Chat(four, "cancelled")
    await lane.say("One two three four.", max_output_tokens=4)
    tip = link("Go on.", lane.tip)
    sampling = four.sample(replace(ask(tip=tip, **ENDLESS), session=lane.lane))
    await anext(sampling)
    closing = asyncio.create_task(sampling.aclose())
    await asyncio.sleep(0)
    again = await lane.say("Go on!", max_output_tokens=2)
    await closing
    computed, new = again
    assert computed <= new


async def test_who_waits_for_a_slot_can_leave_and_who_stays_gets_it(
    engine: LlamaEngine, watched: Watched
) -> None:
    busy = [engine.sample(ask("Count.", **ENDLESS)) for _ in range(SLOTS)]
    for each in busy:
        await anext(each)
    leaves = asyncio.create_task(deltas_of(engine, ask()))
    stays = asyncio.create_task(deltas_of(engine, ask()))
    await until(lambda: len(engine._jobs) == SLOTS + 2)
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    assert watched.begun == SLOTS
    await busy[0].aclose()
    deltas = await asyncio.wait_for(stays, 120)
    await busy[1].aclose()
    assert (finish_of(deltas).phases or {})["queue"] > 0
    assert text_in(deltas)
    assert watched.begun == SLOTS + 1


def test_what_does_not_fit_is_refused_before_it_is_accepted(
    engine: LlamaEngine, watched: Watched
) -> None:
    with pytest.raises(EngineError, match="context is 1024 tokens") as caught:
        answer(engine, ask("word " * 1200))
    assert caught.value.code == "context_length_exceeded"
    assert watched.begun == 0


def test_a_large_input_is_rendered_off_the_loop(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    build = engine._builder.build

    def watch(given: Prompt) -> Any:
        threads.append(threading.current_thread().name)
        return build(given)

    monkeypatch.setattr(engine._builder, "build", watch)
    answer(engine, ask("x", generate=False))
    with pytest.raises(EngineError, match="context is"):
        answer(engine, ask("x" * INLINE_BYTES, generate=False))
    assert threads[0] == threading.current_thread().name
    assert threads[1].startswith("tieline-render")


@pytest.mark.parametrize("how", ["raised", "reported"])
def test_what_the_library_says_never_reaches_a_client(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def complete(completion: Completion, report: Callable[[Report], bool]) -> None:
        if how == "raised":
            raise RuntimeError("secret")
        report(Failure("secret"))

    monkeypatch.setattr(engine._runtime, "complete", complete)
    with pytest.raises(EngineError) as caught:
        answer(engine, ask())
    assert (caught.value.code, caught.value.status) == ("server_error", 500)
    assert "secret" not in caught.value.message


class _AtOnce:
    """An executor whose work is over before whoever submits it can look."""

    def submit(self, work: Callable[..., None], *given: object) -> "Future[None]":
        done: Future[None] = Future()
        work(*given)
        done.set_result(None)
        return done


def test_answers_that_are_over_at_once_leave_their_slots(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complete(completion: Completion, report: Callable[[Report], bool]) -> None:
        report(Failure("at once"))

    async def main() -> None:
        asked = [
            deltas_of(engine, replace(ask(), session=f"lane {number}")) for number in range(20)
        ]
        for refused in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(refused, EngineError)

    monkeypatch.setattr(engine._runtime, "complete", complete)
    monkeypatch.setattr(engine, "_sampling", _AtOnce())
    asyncio.run(main())
    monkeypatch.undo()
    assert answer(engine, ask())


async def test_closing_the_engine_ends_what_runs_and_every_thread() -> None:
    def threads() -> list[str]:
        return [each.name for each in threading.enumerate() if "tieline-" in each.name]

    before = threads()
    engine = LlamaEngine(slots=1, context=512)
    runs = asyncio.create_task(deltas_of(engine, ask(**ENDLESS)))
    waits = asyncio.create_task(deltas_of(engine, ask()))
    await until(lambda: len(engine._jobs) == 2)
    await engine.close()
    for task in (runs, waits):
        with pytest.raises(EngineError, match="shutting down"):
            await task
    assert threads() == before
    with pytest.raises(EngineError, match="shutting down"):
        await deltas_of(engine, ask())
