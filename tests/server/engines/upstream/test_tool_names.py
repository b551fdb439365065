"""Tools and their names upstream."""

from tieline_server.core.create.tools import parse_tools
from tieline_server.engines.upstream.tool_names import by_name

TOOLS = b"""[
    {"type":"function","name":"read"},
    {"type":"namespace","name":"files","tools":[{"type":"function","name":"read"}]},
    {"type":"custom","name":"patch"},
    {"type":"web_search"}
]"""


def test_each_tool_that_can_be_called_has_a_name_of_its_own() -> None:
    assert list(by_name(parse_tools(TOOLS).offered)) == ["read", "files__read", "patch"]
