"""The agent loop: sample, run the tools, go on, until there is an answer."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, Unpack

from msgspec import Raw, Struct
from msgspec.structs import replace

from tieline import items
from tieline.errors import ApiError, TielineError
from tieline.events import Event
from tieline.items import Item
from tieline.responses import Response
from tieline_client.agent.execution import Approve, Execution, Executions
from tieline_client.agent.outcomes import Outcome
from tieline_client.agent.timing import TurnTiming, split, table
from tieline_client.agent.tools import Tool, definitions
from tieline_client.aio import (
    Call,
    Connection,
    Conversation,
    Input,
    Lane,
    ResponseStream,
    Session,
    SessionStream,
    ToolChoice,
    TurnSettings,
    tool_output,
)
from tieline_client.errors import ConnectionLost, IncompleteStream

Choice: TypeAlias = ToolChoice | None
"""What a create's ``tool_choice`` may be."""


class Turn(Struct, frozen=True, kw_only=True):
    """One sampling of an agent's run."""

    number: int
    response: Response
    """The response as it stood when sampling stopped."""
    text: str
    """What this turn said."""
    calls: tuple[Call, ...]
    outputs: tuple[str, ...]
    """What the tools answered, in the order of the calls."""
    outcomes: tuple[Outcome, ...] = ()
    """How the calls came out."""
    timing: TurnTiming


class Run(Struct, frozen=True, kw_only=True):
    """What an agent did."""

    turns: tuple[Turn, ...]

    @property
    def text(self) -> str:
        """The answer: what the last turn said."""
        return self.turns[-1].text

    @property
    def output_text(self) -> str:
        """The answer, by the name that it has in OpenAI's client."""
        return self.text

    @property
    def response(self) -> Response:
        """The last response; its id continues the conversation."""
        return self.turns[-1].response

    def timing_table(self) -> str:
        """Each turn's time, split into service, engine and client."""
        return table([turn.timing for turn in self.turns])


class TurnLimitReached(TielineError):
    """There was no answer within ``max_turns``; ``run`` is what was done."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"no answer within {len(run.turns)} turns")
        self.run = run


class Agent:
    """Runs tools for a model until it answers.

    ``tools`` are plain typed functions, asynchronous or not (those run in threads). Calls of
    one turn run side by side, at most ``concurrency`` of them. A tool that raises, arguments
    that do not match and a tool that does not exist become outputs that say so.

    Over a :class:`Session` (each run is a conversation of its own) or a :class:`Conversation` a
    run goes on when its connection breaks. A tool with ``side_effect`` runs at most once for each
    call, whatever the network does: a call that comes again gets its first output, and one that
    a model repeats after a lost turn raises :class:`RepeatedCall`. ``approve(call, repeated)``
    is asked before each such call, where it is given. ``resample``: how many lost turns of a run
    are sampled again, where they could not be resumed.

    ``shape``: "create" sends a create for each turn, "append" holds one response open for the
    whole rollout. ``tool_choice`` may be a function of the turn's number, from 1.

    ``on_event(event)``, ``on_output(call, output)`` and ``on_turn(turn)`` are called as things
    happen, and awaited where they are asynchronous.

    >>> async def example(connection: Connection) -> str:
    ...     def add(a: int, b: int) -> int:
    ...         '''Adds two numbers.'''
    ...         return a + b
    ...     return (await Agent(connection, tools=[add]).run("What is 2 + 3?")).text
    """

    def __init__(
        self,
        connection: Connection | Lane | Session | Conversation,
        *,
        tools: Sequence[Callable[..., Any] | Tool] = (),
        model: str | None = None,
        shape: Literal["create", "append"] = "create",
        max_turns: int = 32,
        concurrency: int = 8,
        tool_choice: Choice | Callable[[int], Choice] = None,
        approve: Approve | None = None,
        resample: int = 0,
        on_event: Callable[[Event], object] | None = None,
        on_output: Callable[[Call, str], object] | None = None,
        on_turn: Callable[[Turn], object] | None = None,
        **settings: Unpack[TurnSettings],
    ) -> None:
        if max_turns < 1 or concurrency < 1:
            raise ValueError("max_turns and concurrency are at least 1")
        self._connection = connection
        known = [Tool.of(tool) for tool in tools]
        if len({tool.name for tool in known}) < len(known):
            raise ValueError("two tools have the same name")
        self._executions = Executions(
            known, concurrency=concurrency, approve=approve, on_output=on_output
        )
        self._definitions = definitions(known) if known else None
        self._model = model
        self._shape = shape
        self._max_turns = max_turns
        self._concurrency = concurrency
        self._tool_choice = tool_choice
        self._on_event = on_event
        self._resample = resample
        self._on_turn = on_turn
        self._settings = settings

    async def run(self, input: Input, *, previous_response_id: str | None = None) -> Run:
        """Works on ``input`` until the model answers without calling a tool.

        ``previous_response_id`` continues an earlier conversation. A response that was cut
        (status incomplete) ends the run as well. Raises :class:`TurnLimitReached`, and what
        reading a stream raises.
        """
        async with _Rollout(self) as rollout:
            try:
                calls = await rollout.work(input, previous_response_id)
            except ConnectionLost:
                rollout.lost()
                raise
            self._executions.settled()
            run = Run(turns=tuple(rollout.turns))
            await _tell(self._on_turn, run.turns[-1])
            if calls:
                raise TurnLimitReached(run)
            return run

    def stop_tools(self) -> None:
        """Stops the tools that run now; the model is told, and the run goes on."""
        self._executions.stop()

    def _choice(self, number: int) -> Choice:
        choice = self._tool_choice
        return choice(number) if callable(choice) else choice


class _Rollout:
    """One run: the stream that it reads, and what has been done."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        connection = agent._connection
        self._connection = (
            connection.conversation() if isinstance(connection, Session) else connection
        )
        self._stream: ResponseStream | SessionStream | None = None
        self._asked: tuple[Input, str | None] = ("", None)
        """What the latest create said."""
        self._response_id: str | None = None
        self._resampled = 0
        self._answered: tuple[Call, ...] = ()
        """Calls whose outputs the model may not have got."""
        self._choice: Choice = None
        self._read = 0
        self._phases: dict[str, int] | None = None
        self._executor = ThreadPoolExecutor(agent._concurrency, "tieline-tool")
        self.turns: list[Turn] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A thread cannot be stopped: one that still runs ends with its function.
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._stream is not None:
            await self._stream.aclose()

    async def work(self, input: Input, previous_response_id: str | None) -> tuple[Call, ...]:
        """All turns; returns the calls that are left at ``max_turns``."""
        await self.create(input, previous_response_id)
        while (calls := await self.sample()) and len(self.turns) < self._agent._max_turns:
            outputs = await self.answer(calls)
            await self.go_on(outputs)
        return calls

    async def create(self, input: Input, previous_response_id: str | None) -> None:
        """Asks for a new response."""
        agent = self._agent
        self._choice = agent._choice(len(self.turns) + 1)
        self._asked = (input, previous_response_id)
        self._stream = await self._connection.create(
            input=input,
            model=agent._model,
            previous_response_id=previous_response_id,
            tools=agent._definitions,
            tool_choice=self._choice,
            append=True if agent._shape == "append" else None,
            **agent._settings,
        )

    async def sample(self) -> tuple[Call, ...]:
        """Reads one turn; returns the calls to answer, none when the run is over."""
        while True:
            try:
                return await self._sample()
            except IncompleteStream:
                held = self._agent._shape == "append"
                if held or self._resampled >= self._agent._resample:
                    raise
                self.lost()
            self._resampled += 1
            await self.create(*self._asked)

    def lost(self) -> None:
        """What was called may be called again, by the next request."""
        seen = self._stream.calls if self._stream is not None else ()
        self._agent._executions.lost([*self._answered, *seen])

    async def _sample(self) -> tuple[Call, ...]:
        stream, agent = self._reading, self._agent
        async for event in stream:
            await _tell(agent._on_event, event)
        response = await stream.response()
        if response.id != self._response_id:
            self._response_id, self._read, self._phases = response.id, 0, None
        service, engine = split(stream.timing, self._phases)
        self._phases = stream.timing
        said = response.output[self._read :]
        self._read = len(response.output)
        turn = Turn(
            number=len(self.turns) + 1,
            response=response,
            text="".join(_text(raw) for raw in said),
            calls=stream.calls,
            outputs=(),
            timing=TurnTiming(wall=stream.wall or 0.0, service=service, engine=engine),
        )
        self.turns.append(turn)
        return turn.calls if stream.held or response.status == "completed" else ()

    async def answer(self, calls: Sequence[Call]) -> list[Item]:
        """Runs the tools side by side; the outputs are in the order of the calls."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        executions = self._agent._executions
        try:
            done = await executions.run(calls, self._executor)
        except BaseException:
            # The conversation can go on: it says what became of each call.
            self._tell_later([executions.outcome(call) for call in calls])
            raise
        turn = self.turns[-1]
        self.turns[-1] = turn = replace(
            turn,
            outputs=tuple(each.output for each in done),
            outcomes=tuple(each.outcome for each in done),
            timing=replace(turn.timing, client=loop.time() - started),
        )
        self._answered = tuple(calls)
        await _tell(self._agent._on_turn, turn)
        return [tool_output(each.call, each.output) for each in done]

    def _tell_later(self, done: Sequence[Execution]) -> None:
        if isinstance(self._connection, Conversation):
            self._connection.add([tool_output(each.call, each.output) for each in done])

    async def go_on(self, outputs: list[Item]) -> None:
        """Gives the outputs to the model."""
        stream = self._reading
        if not stream.held:
            await self.create(outputs, stream.response_id)
            return
        choice = self._agent._choice(len(self.turns) + 1)
        changed = (choice or "auto") if choice != self._choice else None
        self._choice = choice
        await stream.append(outputs, tool_choice=changed)

    @property
    def _reading(self) -> ResponseStream | SessionStream:
        assert self._stream is not None
        return self._stream


async def _tell(hook: Callable[..., object] | None, *what: object) -> None:
    if hook is None:
        return
    result = hook(*what)
    if inspect.isawaitable(result):
        await result


def _text(raw: Raw) -> str:
    try:
        view = items.decode(raw).view
    except ApiError:
        return ""
    return items.text_of(view.content) if isinstance(view, items.Message) else ""
