"""Creates with two members more than they have: ``seed``, a number, and ``hints``, free-form.

Run as a process on a copy of the packages that knows both (``tests/docs/test_contributing.py``),
it finds them wherever a create's members are listed, and on every wire.
"""

import asyncio
import json
import sys
from typing import Any, Final

from msgspec import Raw

from tieline.codecs import json as json_codec
from tieline.codecs import proto
from tieline.requests import Create
from tieline.responses import Response
from tieline.v1.service_pb2 import ConverseRequest
from tieline_client import connect
from tieline_server.core.create.limits import size_of
from tieline_server.core.create.settings import SettingsCache, settle
from tieline_server.transports.grpc.stream import without_settings

HINTS: Final = {"places": [1, {"near": "the lake"}]}
SAID: Final[dict[str, Any]] = {"seed": 7, "hints": HINTS}


async def answered(url: str) -> Any:
    async with connect(url) as connection:
        stream = await connection.create(input="hi", **SAID)
        return (await stream.result()).response


def check_wires(grpc: str, http: str) -> None:
    for url in (f"grpc://{grpc}", f"ws://{http}", f"http://{http}"):
        response = asyncio.run(answered(url))
        assert (response.seed, json.loads(bytes(response.hints))) == (7, HINTS), url


def create(**members: Any) -> Any:
    return Create(input=Raw(b'"hi"'), **members)


def check_lists() -> None:
    said = Raw(json.dumps(HINTS).encode())
    settled = settle(create(seed=7, hints=said), SettingsCache(), model="m")
    assert settled.passed_on == {"seed": 7, "hints": said}
    assert settle(create(), SettingsCache(), model="m").passed_on == {}
    large = Raw(b'"%b"' % (b"x" * 1000))
    assert size_of(create(hints=large)) - size_of(create()) > 900
    response: Any = Response(seed=7, hints=large)  # type: ignore[call-arg]
    bare: Any = without_settings(response)
    assert (bare.seed, bare.hints) == (7, Raw(b"null"))


def check_that_it_is_read_once() -> None:
    said = create(hints=Raw(json.dumps(HINTS).encode()))
    text, message = json_codec.encode(said), proto.encode_request(said).SerializeToString()
    by_json, by_proto = json_codec.RequestDecoder(), proto.RequestDecoder()
    for one, two in (
        [by_json.decode(text) for _ in range(2)],
        [by_proto.decode(ConverseRequest.FromString(message)) for _ in range(2)],
    ):
        first, second = getattr(one, "hints"), getattr(two, "hints")  # noqa: B009
        assert json.loads(bytes(first)) == HINTS
        assert first is second


if __name__ == "__main__":
    check_wires(*sys.argv[1:])
    check_lists()
    check_that_it_is_read_once()
