"""A real agent loop on this machine's CPU: over one gRPC stream in both shapes, and over WebSocket.

Starts a server with the embedded model, lets an agent with two tools look at this repository,
and shows each kind of event as it comes, the answer, and where each turn's time went. The model
has 135 million parameters: it runs the real mechanics, its answers are poor, and it is told by
``tool_choice`` when to call a tool and when to answer. Exits 1 if a tool did not run.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, NamedTuple

from tieline.errors import TielineError
from tieline.events import Event
from tieline_client import Agent, Call, Run, connect

ROOT = Path(__file__).resolve().parents[1]

INSTRUCTIONS = "You help a developer to look around in a repository. Be brief."
TASK = "Look at the files, read README.md and tell me what Tieline is."
TRANSPORTS = ("grpc", "http")
INTERRUPTED = 130

Folder = Literal["docs", "examples", "protos", "tests"]
File = Literal["README.md", "CHANGELOG.md", "CONTRIBUTING.md"]


class Tools:
    """Two read-only tools, and how often each was run."""

    def __init__(self) -> None:
        self.runs = {"list_files": 0, "read_file": 0}

    def list_files(self, folder: Folder) -> str:
        """Lists the files in a folder of the repository.

        Args:
            folder: The folder to list.
        """
        self.runs["list_files"] += 1
        return "\n".join(sorted(path.name for path in (ROOT / folder).iterdir())[:12])

    def read_file(self, name: File) -> str:
        """Reads the beginning of a file of the repository.

        Args:
            name: The file to read.
        """
        self.runs["read_file"] += 1
        return (ROOT / name).read_text()[:300]


class Trace:
    """Prints each kind of event once as it comes, and counts the deltas."""

    def __init__(self) -> None:
        self._last = ""
        self._count = 0

    def event(self, event: Event) -> None:
        """One event has come."""
        if event.type == self._last:
            self._count += 1
            return
        self.flush()
        self._last, self._count = event.type, 1

    def output(self, call: Call, output: str) -> None:
        """A tool has answered."""
        self.flush()
        first = output.splitlines()[0] if output else ""
        print(f"    tool {call.name}({call.arguments}) -> {first[:60]}")

    def flush(self) -> None:
        """Prints what was counted."""
        if self._last:
            times = f" x{self._count}" if self._count > 1 else ""
            print(f"  {self._last}{times}", flush=True)
        self._last = ""


async def loop(act: "Act", url: str, model: str | None) -> bool:
    """Runs the agent once; True when both tools ran and there was an answer."""
    print(f"\n== {act.title}")
    tools, trace = Tools(), Trace()
    named = {1: "list_files", 2: "read_file"}

    def choose(turn: int) -> object:
        return {"type": "function", "name": named[turn]} if turn in named else "none"

    async with connect(url) as connection:
        agent = Agent(
            connection,
            model=model,
            tools=[tools.list_files, tools.read_file],
            shape=act.shape,
            tool_choice=choose,  # type: ignore[arg-type]
            on_event=trace.event,
            on_output=trace.output,
            instructions=INSTRUCTIONS,
            max_output_tokens=200,
            temperature=0.0,
        )
        started = time.monotonic()
        run: Run = await agent.run(TASK)
    trace.flush()
    print(f"  answer: {run.text.strip()!r}")
    print(f"\n  milliseconds by turn ({time.monotonic() - started:.1f} s in all)")
    print("\n".join(f"  {row}" for row in run.timing_table().splitlines()))
    ran = all(tools.runs.values())
    if not ran:
        print(f"  a tool did not run: {tools.runs}", file=sys.stderr)
    return ran and bool(run.text.strip())


class Act(NamedTuple):
    """One run of the agent: over which transport, in which shape."""

    scheme: Literal["grpc", "ws"]
    shape: Literal["append", "create"]
    title: str


ACTS = (
    Act("grpc", "append", "gRPC, append shape: one response, held at each tool call"),
    Act("grpc", "create", "gRPC, create shape: a response a turn, only the new items sent"),
    Act("ws", "create", "WebSocket, create shape: the same core, OpenAI's own wire"),
)


def unchanged(address: str) -> bool:
    """OpenAI's own client, with nothing changed but its base URL."""
    print(f"\n== OpenAI's client, base_url http://{address}/v1")
    try:
        from openai import OpenAI
    except ModuleNotFoundError:
        print("  not installed: pip install openai")
        return True
    client = OpenAI(base_url=f"http://{address}/v1", api_key="none")
    model = client.models.list().data[0].id
    answer = client.responses.create(
        model=model, input="What is the capital of France?", max_output_tokens=24, temperature=0
    )
    print(f"  {model}: {answer.output_text.strip()!r}")
    return bool(answer.output_text)


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[dict[str, str]]:
    """A server of our own on free ports; yields where it listens and stops it at the end."""
    command = (sys.executable, "-m", "tieline_server")
    process = await asyncio.create_subprocess_exec(
        *command,
        "--engine",
        "llama",
        "--http",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--log-level",
        "warning",
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        bound: dict[str, str] = {}
        while len(bound) < len(TRANSPORTS):
            line = (await process.stdout.readline()).decode()
            if not line:
                raise SystemExit("the server did not start")
            transport, said, address = line.partition(" listening on ")
            if said:
                bound[transport] = address.strip()
        yield bound
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def main() -> int:
    """All acts over a server of our own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", help="model name; the server's default otherwise")
    options = parser.parse_args()
    async with server() as bound:
        urls = {"grpc": f"grpc://{bound['grpc']}", "ws": f"ws://{bound['http']}"}
        print(f"server: {urls['grpc']} and {urls['ws']}")
        done = [await loop(act, urls[act.scheme], options.model) for act in ACTS]
        done.append(await asyncio.to_thread(unchanged, bound["http"]))
    return 0 if all(done) else 1


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except TielineError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
