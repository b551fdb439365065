"""The tables that are read off the schema cover our vocabulary."""

import pytest

from tieline import responses
from tieline.codecs.proto.schema import CREATE, EVENTS, REQUESTS, RESPONSE, Arm
from tieline.requests import Create, Request

ENVELOPE = {"sequence_number", "stream_id", "response"}
REQUEST_ENVELOPE = {"stream_id", "event_id", "trace_context"}


def said(arm: Arm) -> set[str]:
    return {slot.name for slot in arm.spec.slots.values()}


@pytest.mark.parametrize("arm", EVENTS.values(), ids=lambda arm: arm.name)
def test_an_event_s_members_are_its_arm_s_fields(arm: Arm) -> None:
    assert said(arm) - {"output_omitted"} == {*arm.kind.__struct_fields__} - ENVELOPE


@pytest.mark.parametrize("arm", REQUESTS.values(), ids=lambda arm: arm.name)
def test_a_client_event_s_members_are_its_arm_s_fields(arm: Arm) -> None:
    assert issubclass(arm.kind, Request)
    assert said(arm) == {*arm.kind.__struct_fields__} - REQUEST_ENVELOPE - {"unknown"}


def test_a_response_has_all_its_members() -> None:
    names = {slot.name for slot in RESPONSE.slots.values()} | {"object"}
    assert names == {*responses.Response.__struct_fields__}


def test_the_create_of_a_unary_call_is_that_of_a_connection() -> None:
    assert CREATE.slots.keys() == REQUESTS["response_create"].spec.slots.keys()
    assert CREATE.struct is Create


def test_a_table_can_be_narrowed() -> None:
    narrow = RESPONSE.only({"id", "tool_choice"})
    assert narrow.slots.keys() == {"id", "tool_choice", "tool_choice_json"}
    assert "id" not in RESPONSE.without("id").slots
