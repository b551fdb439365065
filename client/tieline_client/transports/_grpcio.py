"""The private names of grpcio that this client uses; no other module does.

``test_grpcio`` fails where a release of grpcio no longer has one of them, or has it with another
meaning.
"""

from typing import Any

import grpc


async def write(call: "grpc.aio.StreamStreamCall[bytes, bytes]", message: bytes) -> None:
    """Writes one message; raises BaseError when the stream has ended.

    ``call.write`` does the same and then replaces the status that the server has sent, or is
    about to send, by INTERNAL (grpc/grpc#36066): the reason why a connection ended would be lost.
    """
    inner: Any = call._cython_call  # type: ignore[attr-defined]
    await inner.send_serialized_message(message)
