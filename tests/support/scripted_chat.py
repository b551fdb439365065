"""The scripted engine behind chat completions: an upstream whose answers a case decides."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from tests.support.engine_contract import link, prompt
from tieline.errors import ApiError
from tieline_server.core.deltas import (
    Accepted,
    CallDelta,
    CallStart,
    Delta,
    Finish,
    ItemEnd,
    ReasoningDelta,
    RefusalDelta,
    SummaryDelta,
    TextDelta,
)
from tieline_server.core.effects import Prompt
from tieline_server.engines.scripted import ScriptedEngine

Json = dict[str, Any]


class ScriptedChat:
    """``POST /v1/chat/completions`` and ``GET /v1/models`` of one scripted engine."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine

    def app(self) -> web.Application:
        """The application."""
        app = web.Application(client_max_size=1 << 27)
        app.router.add_get("/v1/models", self._list)
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    async def _list(self, _request: web.Request) -> web.Response:
        entries = [{"id": model.id} for model in self._engine.models()]
        return web.json_response({"object": "list", "data": entries})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        body = await request.json()
        if "messages" not in body:
            return web.json_response({"error": {"message": "no messages"}}, status=400)
        try:
            given = prompt_of(body)
            async with aclosing(self._engine.sample(given)) as steps:
                accepted: Accepted | None = None
                writer = _Chunks()
                async for step in steps:
                    if accepted is None:
                        assert isinstance(step[0], Accepted)
                        accepted, step = step[0], step[1:]
                        await response.prepare(request)
                    if step:
                        await response.write(b"".join(writer.chunks(step, accepted)))
        except ApiError as error:
            said = {"message": error.message, "code": error.code, "type": error.type}
            if not response.prepared:
                after = error.retry_after
                headers = {} if after is None else {"Retry-After": str(after)}
                return web.json_response({"error": said}, status=error.status, headers=headers)
            await response.write(_event({"error": {**said, "code": error.status}}))
        return response


class _Chunks:
    """Deltas as chunks."""

    def __init__(self) -> None:
        self._calls = -1
        self._custom = False
        self._input = ""
        self._tokens = 0

    def chunks(self, step: Any, accepted: Accepted) -> list[bytes]:
        """The events of one step."""
        return [event for delta in step for event in self._of(delta, accepted)]

    def _of(self, delta: Delta, accepted: Accepted) -> list[bytes]:
        if isinstance(delta, Finish):
            return self._finish(delta, accepted)
        if not isinstance(delta, Accepted):
            self._tokens += delta.tokens
        if isinstance(delta, ItemEnd):
            return self._flush()
        if isinstance(delta, TextDelta):
            return [_chunk(content=delta.text)]
        if isinstance(delta, ReasoningDelta):
            return [_chunk(reasoning_content=delta.text)]
        if isinstance(delta, RefusalDelta):
            return [_chunk(refusal=delta.text)]
        if isinstance(delta, CallStart):
            return [*self._flush(), self._start(delta)]
        if isinstance(delta, CallDelta):
            if self._custom:
                self._input += delta.text
                return []
            return [self._call(arguments=delta.text)]
        assert isinstance(delta, SummaryDelta)
        return []

    def _start(self, start: CallStart) -> bytes:
        self._calls += 1
        self._custom = start.kind == "custom_tool_call"
        name = start.name if start.namespace is None else f"{start.namespace}__{start.name}"
        return self._call(name=name, arguments="")

    def _call(self, **function: str) -> bytes:
        entry = {"index": self._calls, "id": f"call_{self._calls}", "function": function}
        return _chunk(tool_calls=[entry])

    def _flush(self) -> list[bytes]:
        """A custom tool's text, whole."""
        if not self._custom:
            return []
        text, self._input, self._custom = self._input, "", False
        return [self._call(arguments=json.dumps({"input": text}))]

    def _finish(self, finish: Finish, accepted: Accepted) -> list[bytes]:
        output = self._tokens if finish.output_tokens is None else finish.output_tokens
        usage: Json = {
            "prompt_tokens": accepted.input_tokens,
            "completion_tokens": output,
            "prompt_tokens_details": {
                "cached_tokens": accepted.cached_tokens,
                "cache_write_tokens": finish.written_tokens,
            },
        }
        if finish.reasoning_tokens is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": finish.reasoning_tokens}
        return [
            *(self._flush() if finish.reason == "stop" else ()),
            _event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish.reason}]}),
            _event({"choices": [], "usage": usage}),
            b"data: [DONE]\n\n",
        ]


def _chunk(**delta: Any) -> bytes:
    return _event({"choices": [{"index": 0, "delta": delta}]})


def _event(chunk: Json) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def prompt_of(body: Json) -> Prompt:
    """What a chat completion asks, as the scripted engine reads it."""
    messages = body["messages"]
    members: Json = {}
    if messages and messages[0]["role"] == "system":
        members["instructions"] = messages[0]["content"]
        messages = messages[1:]
    if tools := body.get("tools"):
        members["tools"] = [{"type": "function", **each["function"]} for each in tools]
        choice = body["tool_choice"]
        if isinstance(choice, dict):
            choice = {"type": "function", "name": choice["function"]["name"]}
        members["tool_choice"] = choice
    if form := body.get("response_format"):
        members["text"] = {"format": {"type": form["type"], **form.get("json_schema", {})}}
    if "max_tokens" in body:
        members["max_output_tokens"] = body["max_tokens"]
    *before, last = [items_of(message) for message in messages] or [[]]
    parent = link([item for items in before for item in items]) if before else None
    return prompt(model=body["model"], tip=link(last, parent), **members)


def items_of(message: Json) -> list[Json]:
    """A message as items."""
    if message["role"] == "tool":
        call_id, output = message["tool_call_id"], message["content"]
        return [{"type": "function_call_output", "call_id": call_id, "output": output}]
    said = message["content"]
    items: list[Json] = []
    if said or not message.get("tool_calls"):
        items.append({"type": "message", "role": message["role"], "content": said})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        items.append({"type": "function_call", "call_id": call["id"], **function})
    return items


@asynccontextmanager
async def scripted_chat(engine: ScriptedEngine) -> AsyncIterator[str]:
    """The base URL of a server that answers with this engine."""
    runner = web.AppRunner(
        ScriptedChat(engine).app(), handler_cancellation=True, shutdown_timeout=0.05
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
