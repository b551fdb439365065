"""Repeated settings are read once for each lane that changes them."""

from msgspec import Raw

from tieline.codecs.proto.field_reader import NAMES, FieldReader
from tieline.codecs.proto.schema import CREATE, RESPONSE
from tieline.codecs.repeat_cache import MAX_BYTES
from tieline.requests import Create, raw_members
from tieline.v1.items_pb2 import CustomTool, Tool, Unknown
from tieline.v1.requests_pb2 import ResponseCreate
from tieline.v1.responses_pb2 import Response


def test_the_names_are_fields_of_a_create_that_stay_json() -> None:
    raws = raw_members(Create)
    assert {CREATE.slots[name].name for name in NAMES} < raws
    assert raws - {CREATE.slots[name].name for name in NAMES} == {"input", "client_metadata"}


def test_an_equal_field_is_the_same_object_and_no_work() -> None:
    memory = FieldReader()
    one, two = (
        ResponseCreate(tools=[Tool(custom=CustomTool(name="x" * 100))], instructions="y" * 100)
        for _ in range(2)
    )
    first = memory.read(CREATE, one, "a")
    before = memory.work
    second = memory.read(CREATE, two, "b")
    assert before >= 200
    assert memory.work == before
    assert second["tools"] is first["tools"]
    assert second["instructions"] is first["instructions"]


def test_the_copy_that_is_kept_does_not_change_with_the_message() -> None:
    memory = FieldReader()
    message = ResponseCreate(tools=[Tool(custom=CustomTool(name="a"))])
    first = memory.read(CREATE, message, "")
    message.tools[0].custom.name = "b"
    second = memory.read(CREATE, message, "")
    assert first["tools"] == Raw(b'[{"type":"custom","name":"a"}]')
    assert second["tools"] == Raw(b'[{"type":"custom","name":"b"}]')


def test_members_that_were_not_sent_have_their_blanks() -> None:
    values = FieldReader().read(
        RESPONSE, Response(id="r", unknown=Unknown(absent=["truncation"])), ""
    )
    assert values["id"] == "r"
    assert values["instructions"] == Raw(b"null")
    assert values["tools"] == Raw(b"[]")
    assert values["status"] is None
    assert "truncation" not in values


def test_a_field_of_no_usual_size_is_not_kept() -> None:
    memory = FieldReader()
    for _ in range(2):
        before = memory.work
        memory.read(CREATE, ResponseCreate(instructions="y" * MAX_BYTES), "a")
        assert memory.work - before > MAX_BYTES
