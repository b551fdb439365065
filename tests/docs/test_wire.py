"""The lists and numbers of docs/wire.md are those of the code."""

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import UNSET, structs

from tests.conformance import open_responses
from tieline import events, items, requests, responses
from tieline.errors import ERRORS
from tieline_server.config import Config
from tieline_server.core.create.limits import Limits
from tieline_server.core.create.profile import PROFILES
from tieline_server.core.create.settings import INCLUDE
from tieline_server.transports.http import sse
from tieline_server.transports.json_events import FAILURES, REASONS
from tieline_server.transports.websocket import stream
from tieline_server.transports.websocket.config import WebSocketConfig

PAGE = (Path(__file__).parents[2] / "docs/wire.md").read_text(encoding="utf-8")
MEBI = 1024 * 1024


def clause(number: str) -> str:
    """The text of a clause, to the next one or the next heading."""
    return re.split(r"^(?:#|\*\*\d)", PAGE.split(f"\n**{number}** ")[1], flags=re.MULTILINE)[0]


def rows(part: str) -> Iterator[tuple[list[str], str]]:
    """The names in the first cell of each row of a table, and the other cells."""
    for row in re.findall(r"^\| (`.*) \|$", part, re.MULTILINE):
        first, _, rest = row.partition(" | ")
        yield re.findall(r"`([^`]+)`", first), rest


def names(part: str) -> list[str]:
    """The names in the first cells of a table."""
    return [name for found, _ in rows(part) for name in found]


def members(kind: type[events.Event]) -> list[str]:
    """The members that an event has for itself; those that may be absent with a mark."""
    own = structs.fields(kind)
    may_lack = {each.name for each in own if each.default is UNSET}
    if kind is events.ErrorEvent:
        # On this wire it is always there (wire.md 4.1).
        may_lack.remove("status")
    # Every event has the first two; the third is there for clients that ask (wire.md 3.4).
    common = ("sequence_number", "stream_id", "warnings")
    own = tuple(each for each in own if each.name not in common)
    return [f"`{each.name}`?" if each.name in may_lack else f"`{each.name}`" for each in own]


def test_events_and_their_members_are_those_of_the_code() -> None:
    listed = {name: rest.split(" (")[0] for found, rest in rows(clause("3.1.1")) for name in found}

    assert listed == {
        name: ", ".join(members(kind))
        for name, kind in events.BY_TYPE.items()
        if name not in events.EXTENSIONS
    }


def test_the_other_profile_lacks_what_the_page_says() -> None:
    gone = r"response\.(done|custom_tool_call_input\..+|steer\..+)"
    renamed = dict(PROFILES["open-responses"].renamed)
    left = [name for name in names(clause("3.1.1")) if not re.fullmatch(gone, name)]

    assert {renamed.get(name, name) for name in left} == set(open_responses.EVENTS)
    assert f": {len(left)} types" in clause("8.1")


def test_client_events_and_members_of_a_create_are_those_of_the_code() -> None:
    table = PAGE.split("## 2. ")[1].split("### 2.1 ")[0]
    common = {"stream_id", "event_id", "trace_context", ""}

    assert sorted(names(table)) == sorted(requests.BY_TYPE)
    assert sorted(names(clause("2.1.1"))) == sorted(
        set(requests.Create.__struct_encode_fields__) - common
    )
    assert re.findall(r"`([\w.]+)`", clause("2.1.4"))[1 : 1 + len(INCLUDE)] == [*INCLUDE]


def test_calls_are_answered_by_what_the_page_says() -> None:
    answers = {call: rest.strip("`") for (call,), rest in rows(clause("2.3.5"))}

    assert answers == items.CALL_KINDS


def test_a_response_has_the_members_that_the_page_lists() -> None:
    listed = [name for name in names(clause("6.1")) if name != "response"]

    assert sorted(listed) == sorted(responses.Response.__struct_fields__)
    assert f"these {len(listed)} members" in clause("6.1")


def test_codes_of_the_page_are_codes_and_have_the_status_that_it_says() -> None:
    for codes, rest in rows(clause("4.2.1")):
        statuses = rest.partition(" | ")[0].split(", ")
        assert {str(ERRORS[code].status) for code in codes} == set(statuses)
    assert {*names(clause("2.3.6")), *names(clause("4.2.2"))} <= ERRORS.keys()


def test_codes_and_reasons_beyond_openais_lists_are_those_of_the_code() -> None:
    acted_upon = re.findall(r"`(\w+)`", clause("4.2.3").split("(")[1])

    assert set(acted_upon) - {"server_error"} <= FAILURES
    assert set(re.findall(r"`(\w+)`", clause("3.2.9"))) >= REASONS - {"max_messages"}


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    limits, socket = Limits(), WebSocketConfig()
    for number, sentence in (
        ("1.1.3", f"After {socket.heartbeat:.0f} s without a frame"),
        ("1.1.4", f"may have {socket.max_message_bytes // MEBI} MiB"),
        ("1.1.5", f"no frame of {stream.EVENT_BYTES // MEBI} MiB or more"),
        ("1.1.6", f"lives {socket.max_age / 60:.0f} minutes"),
        ("2.2.3", f"for {limits.held_timeout / 60:.0f} minutes"),
        ("2.3.6", f"has {limits.steers} steers, or those of the connection have "
                  f"{limits.queue_bytes // MEBI} MiB"),
        ("3.2.1", f"at most {limits.announce_after * 1000:.0f} ms"),
        ("3.3.3", f"lags behind by {limits.merge_from} events"),
        ("5.3", f"At most {limits.queue} wait"),
        ("5.4", f"{limits.active} responses of a connection are active"),
        ("5.5", f"has {limits.lanes} lane names"),
        ("7.5", f"gathered up to {sse.WRITE_BYTES // 1024} KiB"),
        ("7.6", f"After {Config.model_fields['heartbeat'].default:.0f} s without an event"),
        ("7.12", f"may have {limits.message_bytes // MEBI} MiB"),
    ):  # fmt: skip
        assert sentence in clause(number)
    assert f"at most {requests.EVENT_ID} characters" in PAGE
