"""A server of two worker processes: who they are, and turns that run on each of them."""

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import grpc

from tests.support.process_state import until
from tests.support.server_process import ServerProcess, serving
from tieline.v1 import requests_pb2, service_pb2, service_pb2_grpc


class Several(ServerProcess):
    """A supervisor and what it has said of its workers."""

    @property
    def workers(self) -> dict[str, int]:
        """Mark -> process, of those that live."""
        served = {line["tag"]: line["worker"] for line in self.lines("worker_serves")}
        return {tag: pid for tag, pid in served.items() if alive(pid)}

    def whole(self, count: int = 2) -> None:
        """Waits until so many workers live."""
        until(lambda: len(self.workers) == count)


@contextmanager
def several(folder: Path, *arguments: str, **variables: str) -> Iterator[Several]:
    """Two workers on one file."""
    store = ("--store", f"sqlite:///{folder}/tieline.db", "--workers", "2")
    with serving(*store, *arguments, **variables) as server:
        server.__class__ = Several
        assert isinstance(server, Several)
        yield server


def alive(pid: int) -> bool:
    """Whether a process runs: one that only waits to be reaped does not.

    Of a process that was killed each thread ends by itself, and the last of them closes its
    sockets: the first one may be dead long before.
    """
    states = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                states.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return any(state not in "ZX" for state in states)


def created(server: ServerProcess, says: str = "hi") -> str:
    """The id of a response that is made on a connection of its own."""
    body = json.dumps({"input": says}).encode()
    head = {"Content-Type": "application/json", "Connection": "close"}
    where = f"http://{server.http}/v1/responses"
    with urlopen(Request(where, body, head), timeout=60) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return str(found["id"])


def tag_of(response_id: str) -> str:
    """The tag of the worker that ran a response."""
    return response_id.removeprefix("resp_")[:4]


def streams(server: ServerProcess, tags: Collection[str]) -> dict[str, Any]:
    """One gRPC stream on each of these workers, by tag; its first message is read."""
    found: dict[str, Any] = {}
    while found.keys() != set(tags):
        # A channel of its own is a connection of its own.
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.insecure_channel(server.address, options=options)
        asked = service_pb2.StreamRequest(
            response_create=requests_pb2.ResponseCreate(input_text="hi")
        )
        stream = service_pb2_grpc.ResponsesServiceStub(channel).Stream(asked)
        tag = tag_of(next(stream).events[0].response.id)
        if tag in found:
            channel.close()
        else:
            found[tag] = stream
    return found


def last_kind(stream: Any) -> str:
    """What a stream ends with."""
    kinds = [event.WhichOneof("event") for message in stream for event in message.events]
    return str(kinds[-1])


def parent_of(pid: int) -> int:
    """The process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
