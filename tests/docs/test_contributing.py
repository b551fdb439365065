"""What CONTRIBUTING.md says that a new thing takes is all that it takes."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from tests.support.server_process import TIMEOUT, environment, serving

ROOT = Path(__file__).parents[2]
PACKAGES = ("protos/tieline", "server/tieline_server", "client/tieline_client")
PROCESS = "tests.support.new_members"


def test_a_new_member_of_a_create_is_found_on_all_wires(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / Path(package).name)
    vocabulary, stubs = tmp_path / "tieline", tmp_path / "tieline/v1"
    add_line(
        vocabulary / "requests.py",
        after="    user: Annotated[str | None, _PASSED_ON] = None\n",
        line="    seed: Annotated[Count | None, _ECHOED, _PASSED_ON] = None\n"
        "    hints: Annotated[Raw, _ECHOED, _PASSED_ON] = ABSENT\n",
    )
    add_line(
        vocabulary / "responses.py",
        after="    prompt_cache_key: str | None = None\n",
        line="    seed: int | None = None\n    hints: Raw = NULL\n",
    )
    add_fields(stubs / "requests_pb2.py", "ResponseCreate")
    add_fields(stubs / "responses_pb2.py", "Response")
    path = f"{tmp_path}:{ROOT}"
    with serving(PYTHONPATH=path) as server:
        found = subprocess.run(
            [sys.executable, "-m", PROCESS, server.address, server.http],
            env=environment(PYTHONPATH=path),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    assert found.returncode == 0, found.stderr


def add_line(file: Path, *, after: str, line: str) -> None:
    text = file.read_text()
    assert text.count(after) == 1
    file.write_text(text.replace(after, after + line))


def add_fields(stub: Path, message: str) -> None:
    """The stub as the generator makes it of a schema whose ``message`` has both members."""
    text = stub.read_text()
    (call,) = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "AddSerializedFile"
    )
    given = ast.get_source_segment(text, call.args[0])
    assert given is not None
    file = FileDescriptorProto.FromString(ast.literal_eval(given))
    (found,) = (each for each in file.message_type if each.name == message)
    add_optional(found, "seed", 101, FieldDescriptorProto.TYPE_UINT64)
    add_optional(found, "hints_json", 102, FieldDescriptorProto.TYPE_STRING)
    stub.write_text(text.replace(given, repr(file.SerializeToString())))


def add_optional(
    message: DescriptorProto, name: str, number: int, kind: "FieldDescriptorProto.Type.ValueType"
) -> None:
    message.field.add(
        name=name,
        number=number,
        type=kind,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        proto3_optional=True,
        oneof_index=len(message.oneof_decl),
    )
    message.oneof_decl.add(name=f"_{name}")
