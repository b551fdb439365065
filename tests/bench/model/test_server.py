"""The model as a process: what it answers, and when."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

import pytest

from tieline_bench.model.answers import (
    APART,
    CALLS,
    CHAT,
    IN_STEP,
    MODELS,
    NUMBER,
    RESPONSES,
    call,
    words,
)
from tieline_bench.processes import HTTP, model

TOKENS = 3


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with model(tokens=TOKENS, rate=500) as server:
        yield server.addresses[HTTP]


@pytest.fixture
def connection(address: str) -> Iterator[HTTPConnection]:
    opened = HTTPConnection(address, timeout=10)
    yield opened
    opened.close()


def post(connection: HTTPConnection, path: str, **members: object) -> HTTPResponse:
    # As both servers write it: no space anywhere.
    body = json.dumps({"stream": True, **members}, separators=(",", ":"))
    connection.request("POST", path, body)
    return connection.getresponse()


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_each_call_has_a_number_of_its_own(connection: HTTPConnection, path: str) -> None:
    first, second = (post(connection, path, model=CALLS).read() for _ in range(2))
    parts = call(path).whole.split(NUMBER)
    number, other = (said[len(parts[0]) :].partition(b'"')[0] for said in (first, second))
    assert int(other) == int(number) + 1
    assert (first, second) == (number.join(parts), other.join(parts))


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("name", [IN_STEP, APART])
def test_words_come_one_write_each_and_all_of_them(
    connection: HTTPConnection, path: str, name: str
) -> None:
    said = post(connection, path, model=name).read()
    number = said[len(words(path, TOKENS).whole.split(NUMBER)[0]) :].partition(b'"')[0]
    assert said == words(path, TOKENS).whole.replace(NUMBER, number)


def test_streams_that_begin_apart_end_each_with_all_its_words(address: str) -> None:
    connections = [HTTPConnection(address, timeout=10) for _ in range(3)]
    answers = [post(each, CHAT, model=IN_STEP) for each in connections]
    assert [answer.read().count(b'" go"') for answer in answers] == [TOKENS] * 3
    for each in connections:
        each.close()


@pytest.mark.parametrize(
    ("path", "members", "status"),
    [
        (CHAT, {"model": "gpt"}, 400),
        (CHAT, {"model": CALLS, "stream": False}, 400),
        ("/v1/x", {"model": CALLS}, 404),
    ],
)
def test_what_it_is_not_made_for_is_refused(
    connection: HTTPConnection, path: str, members: dict[str, object], status: int
) -> None:
    response = post(connection, path, **members)
    assert (response.status, "error" in json.loads(response.read())) == (status, True)


def test_a_response_that_is_not_streamed_is_there_to_be_continued(
    connection: HTTPConnection,
) -> None:
    first, second = (
        json.loads(post(connection, RESPONSES, model=CALLS, stream=False).read()) for _ in range(2)
    )
    assert (first["object"], first["status"]) == ("response", "completed")
    assert first["id"] != second["id"]


def test_it_lists_its_models_and_keeps_the_last_request(connection: HTTPConnection) -> None:
    connection.request("GET", "/v1/models")
    listed = json.loads(connection.getresponse().read())
    assert [each["id"] for each in listed["data"]] == list(MODELS)
    post(connection, CHAT, model=CALLS, messages=["x" * 300_000]).read()
    connection.request("GET", "/last")
    assert json.loads(connection.getresponse().read())["messages"] == ["x" * 300_000]
