import pytest

from tests.packaging.artifacts import Artifacts, build


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return build(tmp_path_factory.mktemp("dist"))
