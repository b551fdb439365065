"""What leaves past a guard that has to be asked."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest
from msgspec import Raw, Struct, field

from tests.support.guards import Reader
from tests.support.signal import Signal
from tieline.items import decode
from tieline_server.core.create.tools import Tool
from tieline_server.core.deltas import (
    Accepted,
    Annotation,
    CallDelta,
    CallStart,
    Delta,
    Finish,
    ItemEnd,
    ReasoningDelta,
    TextDelta,
    WholeItem,
)
from tieline_server.engines.base import EngineError
from tieline_server.guards.base import Counts, Spent
from tieline_server.guards.held import Asked
from tieline_server.guards.sentences import LONGEST, MOST, Sentences

CALL = CallStart(kind="function_call", name="f")
ASKED = Asked(tools=(Tool(type="function", name="f"),))


class Said(Struct):
    """What an engine says, and what became of it."""

    steps: Sequence[Sequence[Delta] | asyncio.Event]
    taken: int = 0
    closed: bool = False
    error: Exception | None = None
    out: list[Delta] = field(default_factory=list)
    signal: Signal = field(default_factory=Signal)

    async def run(self) -> AsyncGenerator[Sequence[Delta], None]:
        """The steps; an event waits until it is set."""
        try:
            for step in self.steps:
                if isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    self.taken += 1
                    self.signal.notify()
                    yield step
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


async def through(
    said: Said, reader: Reader, counts: Counts | None = None, *, asked: Asked = ASKED
) -> list[Delta]:
    """All that leaves, less what stands for tokens alone."""
    sentences = Sentences(reader, counts or Counts(), Spent(), asked=asked)
    async with aclosing(sentences.run(said.run())) as steps:
        async for step in steps:
            said.out += [delta for delta in step if getattr(delta, "text", " ")]
    assert said.closed
    return said.out


def texts(*parts: str) -> list[list[Delta]]:
    return [[TextDelta(part)] for part in parts]


async def test_sentences_are_asked_about_whole_and_leave_when_they_were_read() -> None:
    reader, counts = Reader(), Counts()
    said = Said([[Accepted()], *texts("One", ". ", "Two"), [TextDelta("?"), Finish()]])
    out = await through(said, reader, counts)
    assert out == [
        Accepted(),
        *(TextDelta(text, 0) for text in ("One", ". ", "Two", "?")),
        Finish(),
    ]
    assert reader.read == ["One. ", "Two?"]
    assert counts.checks == {("reader", "output"): 2}


async def test_nothing_of_a_sentence_that_is_flagged_leaves_and_the_engine_is_closed() -> None:
    said = Said([*texts("Fine. ", "Now b", "ad", ". "), asyncio.Event()])
    out = await through(said, Reader())
    assert out == [TextDelta("Fine. ", 0), Finish(reason="content_filter")]


async def test_while_a_sentence_is_read_the_engine_is_heard_and_what_gathers_is_asked_as_one() -> (
    None
):
    reader = Reader()
    reader.gate.clear()
    said = Said([*texts("One. ", "Two. ", "Three. "), asyncio.Event(), [Finish()]])
    leaving = asyncio.ensure_future(through(said, reader))
    await reader.signal.until(lambda: reader.waiting == 1)
    await said.signal.until(lambda: said.taken == 3)
    assert said.out == []
    reader.gate.set()
    await reader.signal.until(lambda: reader.calls == 2)
    said.steps[3].set()  # type: ignore[union-attr]  # it is the event
    assert "".join(d.text for d in (await leaving)[:-1]) == "One. Two. Three. "  # type: ignore[union-attr]
    assert reader.read == ["One. ", "Two. Three. "]


async def test_an_engine_is_heard_no_further_than_a_bound_while_nothing_can_leave() -> None:
    reader = Reader()
    reader.gate.clear()
    piece = "x" * 100 + ". "
    said = Said([*texts(*([piece] * (2 * MOST // 100))), [Finish()]])
    leaving = asyncio.ensure_future(through(said, reader))
    for _ in range(1000):
        await asyncio.sleep(0)
    assert said.taken == -(-MOST // len(piece))
    reader.gate.set()
    out = await leaving
    assert len(out) == 2 * MOST // 100 + 1


async def test_a_sentence_without_an_end_is_cut_between_words() -> None:
    reader = Reader()
    words = ["word "] * (LONGEST // 5 + 1)
    await through(Said([*texts(*words), [Finish()]]), reader)
    assert reader.read == ["word " * (LONGEST // 5), "word "]
    reader.read.clear()
    await through(Said([*texts("x" * LONGEST, "y"), [Finish()]]), reader)
    assert reader.read == ["x" * LONGEST, "y"]


async def test_parts_are_read_one_by_one_and_what_stands_between_them_keeps_its_place() -> None:
    reader = Reader()
    answer: list[Delta] = [
        ReasoningDelta("so", 0),
        TextDelta("say", 0),
        ItemEnd(),
        TextDelta("more", 0),
        CALL,
        CallDelta('{"q":"a. b"}', 0),
        ItemEnd(),
        Finish(),
    ]
    assert await through(Said([[each] for each in answer]), reader) == answer
    assert await through(Said([answer]), reader) == answer
    assert reader.read == ["so", "say", "more", '{"q":"a. b"}'] * 2


async def test_arguments_are_read_as_they_are_meant_and_never_cut_in_an_escape() -> None:
    reader = Reader()
    said = Said([[CALL], *([CallDelta(each)] for each in r'{"q":"b\u0061d"}'), [Finish()]])
    assert await through(said, reader) == [CALL, Finish(reason="content_filter")]
    long = '{"q":"' + "x" * (LONGEST - 10)
    reader.read.clear()
    await through(Said([[CALL], [CallDelta(long + r"abc\u0")], [CallDelta('061"}')]]), reader)
    assert reader.read == [long + "abc", 'a"}'][: len(reader.read)]


async def test_an_engine_that_breaks_is_heard_of_and_one_that_says_no_end_ends() -> None:
    error = EngineError("server_error", "broke")
    with pytest.raises(EngineError) as caught:
        await through(Said(texts("One. "), error=error), Reader())
    assert caught.value is error
    assert await through(Said([[Accepted()]]), Reader()) == [Accepted()]


async def test_where_the_guard_cannot_be_asked_the_answer_breaks_with_nothing_more() -> None:
    reader, counts = Reader(), Counts()
    reader.fails = True
    said = Said([*texts("One. "), asyncio.Event()])
    with pytest.raises(EngineError) as caught:
        await through(said, reader, counts)
    assert (caught.value.code, caught.value.retryable) == ("engine_unavailable", True)
    assert said.out == []
    assert said.closed
    assert counts.failures == {("reader", "output"): 1}


async def test_closing_it_ends_the_engine_and_the_question_at_once() -> None:
    reader = Reader()
    reader.gate.clear()
    said = Said([*texts("One. "), asyncio.Event()])
    steps = Sentences(reader, Counts(), Spent()).run(said.run())
    first = asyncio.ensure_future(anext(steps))
    await first
    second = asyncio.ensure_future(anext(steps))
    await reader.signal.until(lambda: reader.waiting == 1)
    second.cancel()
    await asyncio.wait((second,))
    await steps.aclose()
    assert said.closed
    assert reader.waiting == 0


async def test_the_name_of_a_call_is_read_where_it_is_not_one_that_the_client_offered() -> None:
    reader = Reader()
    steps: list[list[Delta]] = [[CALL], [CallDelta("{}")], [Finish()]]
    foreign = CallStart(kind="function_call", name="f", namespace="so bad")
    assert await through(Said(steps), reader) == [CALL, CallDelta("{}", 0), Finish()]
    assert reader.read == ["{}"]
    out = await through(Said([[TextDelta("A.")], [foreign], [Finish()]]), reader)
    assert out == [TextDelta("A.", 0), Finish(reason="content_filter")]
    assert reader.read == ["{}", "A.", "so bad\nf"]


async def test_items_and_annotations_that_come_whole_are_read_too() -> None:
    text = r"so b\u0061d"
    whole = WholeItem(decode(b'{"type":"web_search_call","query":"%b"}' % text.encode()))
    note = Annotation(Raw(b'{"type":"url_citation","title":"%b"}' % text.encode()))
    good = WholeItem(decode(b'{"type":"web_search_call","query":"good"}'))

    for mark in (whole, note):
        out = await through(Said([[TextDelta("A.")], [mark], [Finish()]]), Reader())
        assert out == [TextDelta("A.", 0), Finish(reason="content_filter")]
    assert await through(Said([[good], [Finish()]]), Reader()) == [good, Finish()]


async def test_text_that_is_to_be_json_is_read_as_it_is_meant() -> None:
    steps: list[list[Delta]] = [[TextDelta(r'{"q":"b\u0061d"}')], [Finish()]]
    out = await through(Said(steps), Reader(), asked=Asked(json=True))
    assert out == [Finish(reason="content_filter")]
    assert (await through(Said(steps), Reader()))[-1] == Finish()
