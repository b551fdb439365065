"""Asks one question and prints the answer as it is made, then a second one that builds on it.

tieline-server --engine scripted &
python examples/quickstart.py grpc://127.0.0.1:50051
"""

import asyncio
import sys

from tieline.events import OutputTextDelta
from tieline_client import connect


async def main(url: str) -> None:
    async with connect(url) as connection:
        stream = await connection.create(input="Which lines hold a call?")
        async for event in stream:
            if isinstance(event, OutputTextDelta):
                print(event.delta, end="", flush=True)
        print()
        # The connection remembers the first turn: only what is new is sent.
        again = await connection.create(input="And now?", previous_response_id=stream.response_id)
        print((await again.result()).text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "grpc://127.0.0.1:50051"))
