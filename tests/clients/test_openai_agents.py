"""openai-agents, unchanged: its runner in tool loops over HTTP, SSE and its WebSocket session."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from agents import (
    Agent,
    FunctionTool,
    ModelSettings,
    OpenAIProvider,
    RunConfig,
    Runner,
    RunResult,
    RunResultStreaming,
    function_tool,
    responses_websocket_session,
    set_tracing_disabled,
)
from agents.result import RunResultBase
from openai import APIStatusError, AsyncOpenAI

from tests.support.server_process import ServerProcess, serving, write_script

# A trace would be sent to OpenAI.
set_tracing_disabled(True)

RULES: Final[list[dict[str, Any]]] = [
    {
        "id": "write",
        "when": {"last": "message", "tool": ["function", "write_file"], "user_contains": "write"},
        "emit": [
            {"type": "reasoning", "summary": "A file is asked for."},
            {
                "type": "function_call",
                "name": "write_file",
                "arguments": {"name": "proof.txt", "text": "{user}"},
            },
        ],
    },
    {
        "id": "written",
        "when": {"last": "tool_output"},
        "emit": {"type": "message", "text": "Done: {output}"},
    },
    {"id": "echo", "emit": {"type": "message", "text": "You said: {user}"}},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    script = write_script(tmp_path_factory.mktemp("script"), rules=RULES)
    with serving("--script", script) as running:
        yield running


class Runs:
    """The SDK's runner over one transport, streaming or not."""

    def __init__(self, runner: Any, *, streamed: bool, config: dict[str, Any]) -> None:
        self._runner = runner
        self._streamed = streamed
        self._config = config

    async def run(self, agent: Agent[Any], input: Any, **options: Any) -> RunResultBase:
        """A run to its end."""
        if self._streamed:
            streamed: RunResultStreaming = self._runner.run_streamed(
                agent, input, **self._config, **options
            )
            async for _ in streamed.stream_events():
                pass
            return streamed
        result: RunResult = await self._runner.run(agent, input, **self._config, **options)
        return result


@asynccontextmanager
async def runs(server: ServerProcess, transport: str) -> AsyncIterator[Runs]:
    """The SDK set up for ``transport`` as its own documents say."""
    url = f"http://{server.http}/v1"
    if transport == "websocket":
        async with responses_websocket_session(api_key="none", base_url=url) as session:
            yield Runs(session, streamed=True, config={})
        return
    async with AsyncOpenAI(api_key="none", base_url=url, max_retries=0) as client:
        provider = OpenAIProvider(openai_client=client, use_responses=True)
        config = {"run_config": RunConfig(model_provider=provider)}
        yield Runs(Runner, streamed=transport == "sse", config=config)


def writer(folder: Path, *, store: bool, model: str = "scripted") -> Agent[Any]:
    """An agent whose one tool writes into ``folder``."""

    def write_file(name: str, text: str) -> str:
        (folder / name).write_text(text)
        return f"{len(text)} characters"

    tool: FunctionTool = function_tool(write_file)
    settings = ModelSettings(store=store)
    return Agent(name="writer", model=model, tools=[tool], model_settings=settings)


def turns_of(server: ServerProcess, *results: RunResultBase) -> list[dict[str, Any]]:
    """The log lines of these runs' turns; a line is written before a turn's end is sent."""
    ids = [response.response_id for result in results for response in result.raw_responses]
    turns = {line["response_id"]: line for line in server.lines("turn")}
    return [turns[str(each)] for each in ids]


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("transport", ["http", "sse", "websocket"])
def test_a_tool_loop_that_sends_its_whole_history_runs(
    server: ServerProcess, tmp_path: Path, transport: str, store: bool
) -> None:
    async def main() -> tuple[RunResultBase, RunResultBase]:
        agent = writer(tmp_path, store=store)
        async with runs(server, transport) as runner:
            first = await runner.run(agent, "write a proof")
            assert first.final_output == "Done: 13 characters"
            assert (tmp_path / "proof.txt").read_text() == "write a proof"
            again = [*first.to_input_list(), {"role": "user", "content": "and now?"}]
            second = await runner.run(agent, again)
            assert second.final_output == "You said: and now?"
            return first, second

    turns = turns_of(server, *asyncio.run(main()))
    assert [(each["transport"], each["store"]) for each in turns] == [(transport, store)] * 3
    assert {each["outcome"] for each in turns} == {"completed"}


@pytest.mark.parametrize(
    ("transport", "store"),
    [("http", True), ("sse", True), ("websocket", True), ("websocket", False)],
)
def test_a_tool_loop_that_sends_only_what_is_new_runs(
    server: ServerProcess, tmp_path: Path, transport: str, store: bool
) -> None:
    async def main() -> tuple[RunResultBase, RunResultBase]:
        agent = writer(tmp_path, store=store)
        async with runs(server, transport) as runner:
            first = await runner.run(agent, "write a proof", auto_previous_response_id=True)
            assert first.final_output == "Done: 13 characters"
            assert (tmp_path / "proof.txt").read_text() == "write a proof"
            previous = first.last_response_id
            second = await runner.run(agent, "and now?", previous_response_id=previous)
            assert second.final_output == "You said: and now?"
            assert second.raw_responses[0].usage.input_tokens_details.cached_tokens > 0
            return first, second

    turns = turns_of(server, *asyncio.run(main()))
    assert [(each["transport"], each["store"]) for each in turns] == [(transport, store)] * 3
    previous = [each.get("previous_response_id") for each in turns]
    assert previous == [None, *(each["response_id"] for each in turns[:-1])]
    assert [each["cached_tokens"] > 0 for each in turns] == [False, True, True]


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_refusal_is_an_error_of_the_sdk(
    server: ServerProcess, tmp_path: Path, transport: str
) -> None:
    async with runs(server, transport) as runner:
        with pytest.raises(APIStatusError) as caught:
            await runner.run(writer(tmp_path, store=False, model="no-such"), "x")
        assert (caught.value.status_code, caught.value.code) == (404, "model_not_found")


async def test_a_session_goes_on_after_a_refusal(server: ServerProcess, tmp_path: Path) -> None:
    async with runs(server, "websocket") as runner:
        with pytest.raises(Exception, match="no-such") as caught:
            await runner.run(writer(tmp_path, store=False, model="no-such"), "x")
        assert getattr(caught.value, "code", None) == "model_not_found"
        result = await runner.run(writer(tmp_path, store=False), "still here")
        assert result.final_output == "You said: still here"
