"""What docs/clients.md tells the user of another language to generate and to call works."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.support.server_process import serving

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
SECTION = PAGE.split("\n## Any other language\n")[1].split("\n## ")[0]
GRPC = "127.0.0.1:50051"
"""The address that the page assumes: the server's default."""

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = _FENCE.findall(SECTION)
(TEMPLATE,) = (body for language, body in BLOCKS if language == "yaml")
LINES = [
    line
    for language, body in BLOCKS
    if language == "sh"
    for line in body.replace("\\\n", " ").splitlines()
]
CALLS = [line for line in LINES if line.startswith("buf curl ")]

PLUGIN = f"""#!{sys.executable}
import sys
from google.protobuf.compiler import plugin_pb2

asked = plugin_pb2.CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
packages = {{file.name: file.options.go_package for file in asked.proto_file}}
said = plugin_pb2.CodeGeneratorResponse(supported_features=1)
name = sys.argv[0].rpartition("/")[2]
content = "".join(f"{{each}} {{packages[each]}}\\n" for each in sorted(packages))
said.file.add(name=name, content=f"{{asked.parameter}}\\n{{content}}")
said.file.add(name=f"{{name}}.files", content="\\n".join(asked.file_to_generate))
sys.stdout.buffer.write(said.SerializeToString())
"""
"""Says what it was given to generate; Go's own plugins come from Go."""


def _run(line: str, *, home: str = "", plugins: str = "") -> str:
    folders = (str(Path(sys.executable).parent), plugins, os.environ["PATH"])
    path = os.pathsep.join(filter(None, folders))
    done = subprocess.run(
        [word.replace("~/", f"{home}/") for word in shlex.split(line)],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_line_to_run_is_tried_here() -> None:
    assert len(CALLS) == 2
    assert len(LINES) == 3


def test_the_template_gives_our_files_a_package_of_go_of_the_module(tmp_path: Path) -> None:
    names = ("protoc-gen-go", "protoc-gen-go-grpc")
    for name in names:
        (tmp_path / name).write_text(PLUGIN)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/buf.gen.yaml").write_text(TEMPLATE)
    (line,) = (line for line in LINES if line.startswith("buf generate"))
    _run(line, home=str(tmp_path), plugins=str(tmp_path))
    ours = {each.relative_to(ROOT / "protos").as_posix() for each in ROOT.glob("protos/**/*.proto")}
    for name in names:
        parameter, *packages = (tmp_path / "agent/gen" / name).read_text().splitlines()
        given = dict(each.split(" ") for each in packages)
        assert parameter == "paths=source_relative"
        assert {given[each] for each in ours} == {"example.com/agent/gen/tieline/v1;tielinev1"}
        made = (tmp_path / "agent/gen" / f"{name}.files").read_text().splitlines()
        assert set(made) == ours


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.rpartition("/")[2])
def test_a_call_of_the_page_brings_the_events_behind_the_one_that_it_names(call: str) -> None:
    with serving() as server:
        body = json.dumps({"input": "hi", "resumable": True}).encode()
        asked = Request(
            f"http://{server.http}/v1/responses", body, {"Content-Type": "application/json"}
        )
        with urlopen(asked, timeout=60) as answer:
            made = json.load(answer)["id"]
        said = _run(call.replace(GRPC, server.address).replace("resp_0123", made))
    numbers = [int(each) for each in re.findall(r'"sequenceNumber": (\d+)', said)]
    assert numbers[0] == 9
    assert numbers == list(range(9, 9 + len(numbers)))
    assert '"responseCompleted"' in said
