"""What an operator is told of settings that work and may not be meant (OP-09)."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.server_process import serving
from tieline_server.config import Config, ConfigError
from tieline_server.observability.telemetry import make_logger
from tieline_server.workers.cautions import caution, check_files

KEYS = f'[[keys]]\nhash = "sha256:{"0" * 64}"\nowner = "ann"\n'


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    path.chmod(0o600)
    return path


def said(**flags: object) -> list[dict[str, Any]]:
    """The log lines, without what all lines have."""
    stream = io.BytesIO()
    caution(Config.load({"engine": "scripted", **flags}), make_logger("json", "info", stream))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {line.pop("level") for line in lines} <= {"warning"}
    return [{name: each for name, each in line.items() if name != "timestamp"} for line in lines]


def test_op_09_what_is_in_order_is_not_spoken_of(keys: Path) -> None:
    assert said() == []
    assert said(api_keys=keys) == []
    assert said(api_keys=keys, http="0.0.0.0:1", tls_cert=keys, tls_key=keys) == []


def test_op_09_keys_that_cross_a_network_in_the_clear_are_told(keys: Path) -> None:
    assert said(api_keys=keys, http="0.0.0.0:1") == [
        {"event": "keys_unencrypted", "addresses": "0.0.0.0:1"}
    ]


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602])
@pytest.mark.parametrize("name", ["api_keys", "seal_key", "upstream_key_file", "tls_key"])
def test_op_09_a_file_of_keys_that_others_can_read_is_told(
    name: str, mode: int, keys: Path
) -> None:
    needed: dict[str, dict[str, object]] = {
        "upstream_key_file": {"engine": "upstream", "upstream": "http://a"},
        "tls_key": {"tls_cert": keys},
    }
    keys.chmod(mode)
    (line,) = said(**needed.get(name, {}), **{name: keys})
    assert line == {
        "event": "readable_by_others",
        "setting": name,
        "file": str(keys),
        "mode": f"{mode:04o}",
    }


def test_op_09_the_key_of_a_guard_is_a_key(keys: Path, tmp_path: Path) -> None:
    keys.chmod(0o644)
    config = tmp_path / "tieline.toml"
    config.write_text(f'[guards.g]\nkind = "remote"\nurl = "http://a/v1"\nkey_file = "{keys}"\n')
    assert [line["setting"] for line in said(config=config)] == ["guards.g.key_file"]


def test_op_04_a_variable_that_is_like_no_setting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIELINE_COLOUR", "blue")
    assert said() == [{"event": "unknown_variable", "variable": "TIELINE_COLOUR"}]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_op_09_each_server_says_it_once(workers: str, keys: Path, tmp_path: Path) -> None:
    keys.chmod(0o644)
    store = f"sqlite:///{tmp_path}/tieline.db"
    with serving("--api-keys", str(keys), "--store", store, "--workers", workers) as server:
        assert len(server.lines("readable_by_others")) == 1


@pytest.mark.parametrize("name", ["api_keys", "seal_key", "script", "tls_cert"])
@pytest.mark.parametrize("what", ["none", "."])
def test_a_file_that_cannot_be_read_is_refused_by_its_setting(
    name: str, what: str, tmp_path: Path
) -> None:
    path = tmp_path / what
    flags = {"tls_key": path} if name == "tls_cert" else {}
    config = Config.load({"engine": "scripted", name: path, **flags})
    reason = "Is a directory" if what == "." else "No such file or directory"
    with pytest.raises(ConfigError) as refused:
        check_files(config)
    assert str(refused.value) == f"--{name.replace('_', '-')}: cannot read {path}: {reason}"
