"""The private names of grpcio are there, and mean what they meant."""

import grpc
import pytest

from tieline_client.transports import _grpcio


async def test_a_write_to_a_call_that_has_ended_leaves_its_status_alone() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:9") as channel:
        connect: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        connect = channel.stream_stream("/a/B")
        call = connect()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.BaseError):
            await _grpcio.write(call, b"late")
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
