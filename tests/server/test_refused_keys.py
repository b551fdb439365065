"""Wrong keys over every transport: what their sender hears, and what the operator sees (OP-01)."""

import asyncio
import hashlib
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.support.server_process import ServerProcess, serving
from tieline.errors import ApiError
from tieline_client import connect

KEY = "the-right-key"
WRONG = "the-wrong-key"


def schemes(server: ServerProcess) -> dict[str, str]:
    """Transport, as it is counted -> URL."""
    return {
        "grpc": f"grpc://{server.address}",
        "websocket": f"ws://{server.http}",
        "http": f"http://{server.http}",
    }


async def turn(url: str, key: str) -> str:
    """How a turn ends, or the code of its refusal."""
    try:
        async with connect(url, api_key=key) as line:
            return str((await (await line.create(input="hi")).result()).response.status)
    except ApiError as error:
        return error.code


def metrics(server: ServerProcess) -> str:
    head = {"Authorization": f"Bearer {KEY}"}
    with urlopen(Request(f"http://{server.http}/metrics", headers=head), timeout=60) as answer:
        text: str = answer.read().decode()
    return text


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    path.write_text(f'[[keys]]\nhash = "sha256:{digest}"\nowner = "ann"\n')
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("transport", ["grpc", "websocket", "http"])
def test_op_01_a_right_key_is_served_while_wrong_ones_of_its_address_wait(
    transport: str, keys: Path
) -> None:
    with serving("--api-keys", str(keys)) as server:
        url = schemes(server)[transport]

        async def main() -> None:
            for _ in range(5):
                assert await turn(url, WRONG) == "invalid_api_key"
            wrong = [asyncio.create_task(turn(url, WRONG)) for _ in range(5)]
            assert await turn(url, KEY) == "completed"
            # The last of them waits for 5 s.
            assert not all(task.done() for task in wrong)
            assert set(await asyncio.gather(*wrong)) == {"invalid_api_key"}

        asyncio.run(main())
        assert f'{{tieline_transport="{transport}"}} 10' in metrics(server)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_op_01_wrong_keys_are_logged_and_counted_and_right_ones_served(
    workers: str, keys: Path, tmp_path: Path
) -> None:
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    several = ("--workers", workers, "--store", f"sqlite:///{tmp_path}/tieline.db")
    with serving("--api-keys", str(keys), *several) as server:

        async def main() -> None:
            for url in schemes(server).values():
                assert await turn(url, WRONG) == "invalid_api_key"
                assert await turn(url, KEY) == "completed"

        asyncio.run(main())
        text = metrics(server)
        said = [(line["transport"], line["address"]) for line in server.lines("key_refused")]
        assert sorted(said) == [(name, "127.0.0.1") for name in sorted(schemes(server))]
        for name in schemes(server):
            sample = f'tieline_server_keys_refused_total{{tieline_transport="{name}"}} 1'
            assert sample in text.splitlines()
        for key in (WRONG, KEY, digest, hashlib.sha256(WRONG.encode()).hexdigest()):
            assert key not in server.log()
