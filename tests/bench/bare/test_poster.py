"""The bare client posts the bytes it was given."""

from pathlib import Path

import pytest

from tieline_bench.clients import LoadError
from tieline_bench.model.answers import CALLS, CHAT
from tieline_bench.model.asked import last_asked
from tieline_bench.processes import HTTP, model, poster


def test_the_model_gets_each_body_as_it_is_and_a_refusal_is_an_error(tmp_path: Path) -> None:
    bodies = {name: b'{"model":"calls","stream":true,"x":"%b"}' % name.encode() for name in "12"}
    for name, body in bodies.items():
        (tmp_path / f"{name}.json").write_bytes(body)
    (tmp_path / "3.json").write_bytes(bodies["1"].replace(CALLS.encode(), b"other"))
    with (
        model(tokens=1, rate=1) as server,
        poster(f"http://{server.addresses[HTTP]}{CHAT}", tmp_path) as client,
    ):
        for name in ("2", "1", "2"):
            client.post(name)
            assert last_asked(server).body == bodies[name]
        with pytest.raises(LoadError, match="refused"):
            client.post("3")
