"""A bad message is answered by type, and the line and its state live on."""

from typing import Any

import pytest

from tests.conformance.server import ECHO_CONTEXT, run, serve
from tests.conformance.wire import Wire, ask, context, response, said

CASES: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"temperature": 3}, 400, "decimal_above_max_value", "temperature"),
    ({"max_output_tokens": 0}, 400, "integer_below_min_value", "max_output_tokens"),
    ({"tools": [{"type": "function"}]}, 400, "missing_required_parameter", "tools[0].name"),
    ({"tool_choice": "must"}, 400, "invalid_value", "tool_choice"),
    ({"tool_choice": "required"}, 400, "invalid_value", "tool_choice"),
    ({"text": {"format": {"type": "xml"}}}, 400, "invalid_value", "text.format.type"),
    ({"truncation": "some"}, 400, "invalid_value", "truncation"),
    ({"model": "no-such-model"}, 404, "model_not_found", "model"),
    ({"conversation": "conv_1"}, 400, "unsupported_parameter", "conversation"),
    ({"prompt": {"id": "p"}}, 400, "unsupported_parameter", "prompt"),
    ({"input": [{"role": "robot", "content": "x"}]}, 400, "invalid_value", "input[0].role"),
    ({"previous_response_id": "resp_no"}, 400, "previous_response_not_found",
     "previous_response_id"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "status", "code", "param"), CASES, ids=lambda case: str(case))
def test_a_wrong_create_is_one_typed_error_event(
    wire: Wire, members: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    async def case() -> None:
        async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
            create = {"type": "response.create", "model": "scripted", "input": "hi"}
            await peer.send({**create, "event_id": "evt_1", **members})
            event = await peer.receive()

            assert (event["type"], event["status"]) == ("error", status)
            assert (event["error"]["code"], event["error"]["param"]) == (code, param)
            # What one request asked needs no pairing.
            assert event["error"].get("event_id") == ("evt_1" if peer.remembers else None)
            assert event["sequence_number"] == 0
            # The line lives on.
            assert (await ask(peer, input="still?"))[-1]["type"] == "response.completed"

    run(case())


@pytest.mark.needs("lanes")
@pytest.mark.parametrize("name", ["", "bad name!", "a" * 257, "ä", "a/b"])
async def test_a_lane_name_of_other_characters_is_refused_without_an_echo(
    wire: Wire, name: str
) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        create = {"type": "response.create", "model": "scripted", "input": "hi"}
        await peer.send({**create, "stream_id": name})
        refused = await peer.receive()

        assert (refused["type"], refused["status"]) == ("error", 400)
        assert refused["error"]["code"] == "invalid_stream_id"
        assert refused["error"]["param"] == "stream_id"
        assert "stream_id" not in refused
        assert (await ask(peer, input="still?"))[-1]["type"] == "response.completed"


@pytest.mark.apart("what is broken is broken by the rules of its transport")
async def test_er_09_a_broken_message_takes_nothing_from_what_is_remembered(wire: Wire) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        parent = response(await ask(peer, input="one"))["id"]
        await peer.send_broken()
        broken = await peer.receive()
        events = await ask(peer, previous_response_id=parent, input="two")

        assert (broken["type"], broken["status"]) == ("error", 400)
        assert broken["error"]["code"] in ("invalid_json", "invalid_proto")
        assert ("user", "one") in said(context(events))


@pytest.mark.apart("what is broken is broken by the rules of its transport")
@pytest.mark.needs("messages")
async def test_er_09_bad_messages_leave_the_line_and_its_memory_alone(wire: Wire) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        parent = response(await ask(peer, input="one"))["id"]

        await peer.send_broken()
        broken = await peer.receive()
        await peer.send_unknown("response.frobnicate")
        unknown = await peer.receive()
        await peer.send_untyped()
        untyped = await peer.receive()
        events = await ask(peer, previous_response_id=parent, input="two")

        assert {event["type"] for event in (broken, unknown, untyped)} == {"error"}
        assert {event["status"] for event in (broken, unknown, untyped)} == {400}
        assert broken["error"]["code"] in ("invalid_json", "invalid_proto")
        assert unknown["error"]["code"] == "invalid_event"
        assert untyped["error"]["code"] == "invalid_event"
        assert events[-1]["type"] == "response.completed"
        assert ("user", "one") in said(context(events))


@pytest.mark.apart("what is broken is broken by the rules of its transport")
@pytest.mark.needs("messages")
async def test_a_bad_message_beside_a_running_turn_never_takes_its_numbers(wire: Wire) -> None:
    script = {"models": ["scripted"], "pace": {"ttft_ms": 150}, "rules": ECHO_CONTEXT["rules"]}

    async with serve(script) as served, wire(served) as peer:
        await peer.send(
            {"type": "response.create", "model": "scripted", "store": False, "input": "x"}
        )
        await peer.send_broken()
        seen: list[Any] = []
        while not seen or seen[-1]["type"] != "response.completed":
            seen.append(await peer.receive())
        errors = [event for event in seen if event["type"] == "error"]
        events = [event for event in seen if event["type"] != "error"]

        assert [error["sequence_number"] for error in errors] == [0]
        assert list(range(len(events))) == [event["sequence_number"] for event in events]
