"""An agent with two tools works on a folder: one response is held open for the whole rollout.

tieline-server &
python examples/agent.py grpc://127.0.0.1:50051 "How long is README.md?"
"""

import asyncio
import sys
from pathlib import Path

from tieline_client import Agent, connect


def list_files(pattern: str = "*") -> list[str]:
    """Lists the files of this folder.

    Args:
        pattern: Which names, as a glob.
    """
    return sorted(path.name for path in Path().glob(pattern) if path.is_file())


async def count_words(name: str) -> int:
    """Counts the words of a file.

    Args:
        name: The file's name, as list_files tells it.
    """
    # A tool that raises becomes an output that says so, and the model goes on.
    return len((Path() / Path(name).name).read_text().split())


async def main(url: str, task: str) -> None:
    async with connect(url) as connection:
        agent = Agent(
            connection,
            tools=[list_files, count_words],
            shape="append",
            on_output=lambda call, output: print(f"{call.name}({call.arguments}) -> {output}"),
        )
        run = await agent.run(task)
    print(run.text)
    print(run.timing_table())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
