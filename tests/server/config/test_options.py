"""Settings: where they come from, which wins, and what is refused in one line."""

import re
from pathlib import Path

import pytest

from tieline_server.config import (
    FLAGLESS,
    PREFIX,
    Config,
    ConfigError,
    flag,
    unknown_variables,
    urls_of,
)
from tieline_server.config.toml_tables import GuardSettings, is_loopback, split_address

PAGE = Path(__file__).parents[3] / "docs/configuration.md"


@pytest.fixture(autouse=True)
def _no_settings_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Config.model_fields:
        monkeypatch.delenv(PREFIX + name.upper(), raising=False)


def refusal(**flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        Config.load(flags)
    message = str(caught.value)
    assert "\n" not in message
    return message


def write(folder: Path, text: str) -> Path:
    path = folder / "tieline.toml"
    path.write_text(text)
    return path


def test_without_anything_the_embedded_engine_is_served_on_loopback() -> None:
    config = Config.load({})
    assert config.engine == "llama"
    assert config.grpc == "127.0.0.1:50051"
    assert config.store == "memory"
    assert config.loopback
    assert config.max_message_bytes == 32 * 1024 * 1024


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "heartbeat = 1\nheld_timeout = 1\nwrite_timeout = 1\n")
    monkeypatch.setenv("TIELINE_HEARTBEAT", "2")
    monkeypatch.setenv("TIELINE_HELD_TIMEOUT", "2")
    config = Config.load({"config": str(path), "heartbeat": "3"})
    assert config.heartbeat == 3.0
    assert config.held_timeout == 2.0
    assert config.write_timeout == 1.0
    assert config.drain_timeout == 30.0


def test_the_file_may_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIELINE_CONFIG", str(write(tmp_path, 'engine = "scripted"\n')))
    assert Config.load({}).engine == "scripted"


def test_an_empty_variable_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIELINE_API_KEYS", "")
    assert Config.load({}).api_keys is None


def test_settings_cannot_change_after_the_start() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config.load({}).heartbeat = 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("heartbeat = \n", " is not valid TOML"),
        ("hartbeat = 3\n", ": hartbeat: no setting has this name; did you mean heartbeat?"),
        ("anything = 3\n", ": anything: no setting has this name"),
        ('heartbeat = "soon"\n', ": heartbeat: Input should be a valid number"),
        ("engine = 3\n", ": engine: Input should be a valid string"),
        ('grpc = "0.0.0.0:1"\n', ": grpc 0.0.0.0:1 can be reached from elsewhere and needs --api-"),
        ('[models.a]\nupstrem = "x"\n', ": models.a.upstrem: no setting has this name; did you m"),
        ("[models.a]\nprice = {inputs = 1}\n", "models.a.price.inputs: no setting has this name; "),
    ],
)
def test_op_04_what_is_wrong_in_the_file_is_blamed_on_the_file_and_its_key(
    text: str, said: str, tmp_path: Path
) -> None:
    path = write(tmp_path, text)
    message = refusal(config=str(path))
    assert message.startswith(str(path))
    assert said in message


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ENGIN", "scripted", "TIELINE_ENGIN: no setting has this name; did you mean TIELINE_ENG"),
        ("HEARTBEATS", "1", "TIELINE_HEARTBEATS: no setting has this name; did you mean TIELINE_H"),
        ("HEARTBEAT", "soon", "TIELINE_HEARTBEAT: Input should be a valid number"),
        ("GRPC", "0.0.0.0:1", "TIELINE_GRPC 0.0.0.0:1 can be reached from elsewhere and needs"),
        ("TLS_CERT", "c.pem", "TIELINE_TLS_CERT and --tls-key come together"),
        ("UPSTREAM", "http://me:secret@a", "TIELINE_UPSTREAM: it is no URL"),
    ],
)
def test_op_04_what_is_wrong_in_the_environment_is_blamed_on_the_variable(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX + name, value)
    message = refusal()
    assert message.startswith(said)
    assert "secret" not in message


@pytest.mark.parametrize(
    "name", ["URL", "API_KEY", "SERVICE_HOST", "GRPC_PORT", "PORT_8080_TCP_ADDR", "COLOUR"]
)
def test_op_04_variables_that_are_others_stop_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client's, those that Kubernetes makes of a service's name, and what is like no setting."""
    monkeypatch.setenv(PREFIX + name, "tcp://10.0.0.1")
    Config.load({})
    assert unknown_variables() == (["TIELINE_COLOUR"] if name == "COLOUR" else [])


def test_op_04_a_flag_that_is_wrong_is_blamed_though_the_file_says_it_too(tmp_path: Path) -> None:
    path = write(tmp_path, "heartbeat = 1\n")
    assert refusal(config=str(path), heartbeat="soon").startswith("--heartbeat: ")


def test_both_servers_need_addresses_of_their_own() -> None:
    said = refusal(grpc="127.0.0.1:8080")
    assert said == "--grpc and --http are both 127.0.0.1:8080: each needs its own"
    assert Config.load({"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}).loopback


def test_a_file_that_is_missing_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert refusal(config=path) == f"cannot read {path}: No such file or directory"


@pytest.mark.parametrize("address", ["", "50051", ":50051", "host:", "host:x", "::1:80", "h:70000"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    assert "is not HOST:PORT" in refusal(grpc=address)


def test_an_address_is_split_at_its_last_colon() -> None:
    assert split_address("[::1]:0") == ("::1", 0)
    assert split_address("example.com:443") == ("example.com", 443)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_loopback_needs_no_keys_and_reflects(host: str) -> None:
    config = Config.load({"grpc": f"{host}:1"})
    assert config.loopback
    assert config.reflection


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "127.0.0.1.example.com"])
def test_any_other_host_is_refused_without_keys(host: str, tmp_path: Path) -> None:
    assert "needs --api-keys" in refusal(grpc=f"{host}:1")
    config = Config.load({"grpc": f"{host}:1", "api_keys": tmp_path / "keys.toml"})
    assert not is_loopback(config.grpc)
    assert not config.reflection


def test_http_must_be_loopback_too_or_off(tmp_path: Path) -> None:
    said = refusal(http="0.0.0.0:80")
    assert said.startswith("--http 0.0.0.0:80 can be reached from elsewhere")
    assert Config.load({"http": "0.0.0.0:80", "api_keys": tmp_path}).loopback is False
    for off in ("off", ""):
        config = Config.load({"http": off})
        assert config.addresses == {"grpc": "127.0.0.1:50051"}
    assert "is not HOST:PORT" in refusal(http="8080")


def test_origins_are_a_list_with_commas() -> None:
    config = Config.load({"allowed_origins": "https://a.example, http://[::1]:3000,"})
    assert config.origins == {"https://a.example", "http://[::1]:3000"}
    assert Config.load({}).origins == frozenset()
    for wrong in ("a.example", "https://a.example/", "https://", "*"):
        assert "is not an origin" in refusal(allowed_origins=wrong)


def test_reflection_can_be_chosen_either_way(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    assert not Config.load({"reflection": False}).reflection
    assert Config.load({"grpc": "0.0.0.0:1", "api_keys": keys, "reflection": True}).reflection


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"tls_cert": "c.pem"}, "--tls-cert and --tls-key come together"),
        ({"tls_key": "k.pem"}, "--tls-cert and --tls-key come together"),
        ({"tls_client_ca": "ca.pem"}, "--tls-client-ca needs --tls-cert"),
        ({"script": "s.json"}, "--script needs --engine scripted"),
        ({"model": "m.gguf", "engine": "scripted"}, "--model needs --engine llama"),
        ({"store": "disk"}, "--store: it is none of memory, sqlite:///PATH, postgresql://"),
        ({"store": "sqlite://"}, "--store: it is none of"),
        ({"store": "sqlite:///a.db?mode=ro"}, "--store: it is none of"),
        ({"store": "postgresql://ann:secret@host"}, "--store: it is none of"),
        ({"store": "mysql://ann:secret@host/tieline"}, "--store: it is none of"),
        ({"store_ttl": "0"}, "--store-ttl: Input should be greater than 0"),
        ({"store_max_responses": "0"}, "--store-max-responses: Input should be greater"),
        ({"durability": "some"}, "--durability: Input should be 'normal' or 'full'"),
        ({"heartbeat": "0"}, "--heartbeat: Input should be greater than 0"),
        ({"heartbeat": "inf"}, "--heartbeat: Input should be a finite number"),
        ({"max_message_bytes": "1"}, "--max-message-bytes: Input should be greater than or"),
        ({"profile": "closed"}, "--profile: Input should be 'openai' or 'open-responses'"),
        ({"max_connections": "0"}, "--max-connections: Input should be greater than or"),
        ({"merge": "sometimes"}, "--merge: Input should be 'auto' or 'never'"),
        ({"reflection": "maybe"}, "--reflection: Input should be a valid boolean"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(flags: dict[str, str], said: str) -> None:
    message = refusal(**flags)
    assert message.startswith(said)
    assert "secret" not in message


@pytest.mark.parametrize(
    "address",
    [
        "memory",
        "sqlite:///tieline.db",
        "sqlite:////var/lib/tieline/tieline.db",
        "postgresql://ann:secret@host:5432/tieline?sslmode=require",
        "postgresql:///tieline?host=/run/postgresql",
    ],
)
def test_a_store_is_memory_a_file_or_a_server(address: str) -> None:
    assert Config.load({"store": address}).store == address


def test_the_short_name_of_postgresql_is_the_long_one() -> None:
    assert Config.load({"store": "postgres://host/tieline"}).store == "postgresql://host/tieline"


def test_several_bad_settings_are_said_together_without_their_consequences() -> None:
    said = refusal(grpc="nowhere", max_lanes="0")
    assert said.split("; ") == [
        "--grpc: 'nowhere' is not HOST:PORT",
        "--max-lanes: Input should be greater than or equal to 1",
    ]


def test_the_page_lists_every_setting_with_its_names_its_default_and_its_meaning() -> None:
    row_pattern = r"^\| `(--.+?)` \| `(.+?)` \| `(.+?)` \| (.+?) \| (.+?) \|$"
    listed = re.findall(row_pattern, PAGE.read_text(), re.MULTILINE)
    assert listed == [row(name) for name in Config.model_fields if name not in FLAGLESS]


def row(name: str) -> tuple[str, str, str, str, str]:
    """What the page should say of a setting."""
    field = Config.model_fields[name]
    absent = field.default is None or field.default_factory is not None
    default = "" if absent else f"`{field.default}`"
    return flag(name), PREFIX + name.upper(), name, default or "none", str(field.description)


class TestUpstreams:
    def test_urls_and_models_are_read_from_the_file(self, tmp_path: Path) -> None:
        path = write(
            tmp_path,
            """engine = "upstream"
            upstream = "http://127.0.0.1:8000/v1, https://gpu-2.example:9/api/v1"

            [models.chat]
            model = "meta/llama"
            aliases = ["gpt-4o", "default"]
            reasoning_effort = "low"
            max_output_tokens = 512

            [models."other.one"]
            upstream = "http://127.0.0.1:8001"

            [models.rules]
            engine = "scripted"
            """,
        )
        config = Config.load({"config": str(path)})
        assert config.engines == ("upstream", "scripted")
        assert list(config.models) == ["chat", "other.one", "rules"]
        assert config.models["chat"].aliases == ("gpt-4o", "default")
        assert urls_of(config.upstream or "") == [
            "http://127.0.0.1:8000/v1",
            "https://gpu-2.example:9/api/v1",
        ]

    @pytest.mark.parametrize(
        "url",
        ["", ",", "gpu:8000", "ftp://gpu/v1", "http://ann:hush@gpu/v1", "http://gpu/v1?key=hush"],
    )
    def test_what_is_no_url_is_refused_without_being_repeated(self, url: str) -> None:
        said = refusal(engine="upstream", upstream=url)
        assert said.startswith("--upstream: ")
        assert "hush" not in said

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (
                "[models.a]\nprize = 3",
                "models.a.prize: no setting has this name; did you mean price?",
            ),
            ("[models.a]\nprice = 3", "models.a.price: "),
            ("[models.a]\nprice = {input = 1}", "models.a.price.output: Field required"),
            ("[models.a]\nprice = {input = -1, output = 1}", "models.a.price.input: "),
            ('[models.a]\nupstream_mode = "x"', "models.a.upstream_mode: "),
            ("[models.a]\nmax_output_tokens = 0", "models.a.max_output_tokens: "),
            ("models = 3", ": models: "),
            ('[models.a]\nengine = "upstream"', "engine upstream needs --upstream"),
            ('upstream = "http://gpu/v1"', ": upstream needs --engine upstream"),
            ('engine = "upstream"', "engine upstream needs --upstream"),
            (
                '[models.a]\nengine = "scripted"\nupstream_mode = "chat"',
                "models.a.upstream_mode: the engine is scripted, no upstream",
            ),
            (
                "[models.a]\nupstream_state = false",
                "models.a.upstream_state: the engine is llama, no upstream",
            ),
            (
                '[models.a]\nupstream_tokenizer = "m.gguf"',
                "models.a.upstream_tokenizer: the engine is llama, no upstream",
            ),
            (
                '[models.a]\nengine = "llama"\nupstream = "http://gpu/v1"',
                "models.a.upstream: llama asks no upstream",
            ),
            (
                'upstream_model = "m"\n[models.a]\nupstream = "http://gpu/v1"',
                ": upstream_model needs --upstream",
            ),
            ("upstream_timeout = 3", ": upstream_timeout needs --engine upstream"),
            ("upstream_requests = 3", ": upstream_requests needs --engine upstream"),
        ],
    )
    def test_what_is_wrong_with_a_model_is_one_line(
        self, text: str, said: str, tmp_path: Path
    ) -> None:
        assert said in refusal(config=str(write(tmp_path, text)))

    def test_tables_have_no_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TIELINE_MODELS", '{"a":{}}')
        assert "TIELINE_MODELS: " in refusal()

    def test_the_key_is_in_a_file_or_a_variable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert Config.load({}).key_of_upstream() is None
        monkeypatch.setenv("TIELINE_UPSTREAM_KEY", "sk-variable")
        config = Config.load({})
        assert config.key_of_upstream() == "sk-variable"
        assert "sk-" not in repr(config)
        path = tmp_path / "key"
        path.write_text("sk-file\n")
        config = Config.load({"upstream_key_file": str(path)})
        assert config.key_of_upstream() == "sk-file"
        assert "sk-" not in repr(config)

    @pytest.mark.parametrize("text", ["", "\n", "hush hush", "hush\nhush", "hüsh"])
    def test_a_file_that_holds_no_key_is_refused_without_what_is_in_it(
        self, text: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "key"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            Config.load({"upstream_key_file": str(path)}).key_of_upstream()
        assert str(caught.value) == f"{path}: it holds no key, which is one line of ASCII"

    def test_a_variable_that_holds_no_key_is_refused_without_what_is_in_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TIELINE_UPSTREAM_KEY", "hush hush")
        with pytest.raises(ConfigError) as caught:
            Config.load({}).key_of_upstream()
        assert str(caught.value).startswith("TIELINE_UPSTREAM_KEY: ")
        assert "hush" not in str(caught.value)

    def test_a_file_of_a_key_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot read"):
            Config.load({"upstream_key_file": str(tmp_path / "none")}).key_of_upstream()


class TestGuards:
    def test_tables_name_guards_and_models_choose_among_them(self, tmp_path: Path) -> None:
        path = write(
            tmp_path,
            """engine = "scripted"
            [guards.moderation]
            kind = "remote"
            url = "http://127.0.0.1:9000/v1"
            model = "omni"

            [guards.secrets]
            kind = "pattern"
            applies = ["output"]
            patterns = ["bad"]

            [models.a]

            [models.b]
            guards = ["secrets"]

            [models.c]
            guards = []
            """,
        )
        config = Config.load({"config": str(path)})
        guards = config.guards
        assert list(guards) == ["moderation", "secrets"]
        assert (guards["moderation"].url, guards["moderation"].model) == (
            "http://127.0.0.1:9000/v1",
            "omni",
        )
        chosen = [config.guards_of(table) for table in config.models.values()]
        assert chosen == [tuple(guards), ("secrets",), ()]
        assert Config.load({}).guards == {}

    def test_a_worker_is_told_the_same(self, tmp_path: Path) -> None:
        text = '[guards.g]\nkind = "pattern"\npatterns = ["bad"]\n'
        remote = '[guards.r]\nkind = "remote"\nurl = "http://gpu/v1"\n'
        config = Config.load({"config": str(write(tmp_path, text + remote))})
        told = config.model_dump(mode="json", exclude={"config"})
        assert Config.load(told).guards == config.guards

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[guards.g]", "guards.g.kind: Field required"),
            ('[guards.g]\nkind = "other"', "guards.g.kind: Input should be"),
            ('[guards.g]\nkind = "pattern"', "guards.g: a pattern guard needs 'patterns' or a"),
            ('[guards.g]\nkind = "remote"', "guards.g: a remote guard needs one 'url'"),
            (
                '[guards.g]\nkind = "remote"\nurl = "http://a/v1,http://b/v1"',
                "guards.g: a remote guard needs one 'url'",
            ),
            (
                '[guards.g]\nkind = "remote"\nurl = "http://ann:hush@a/v1"',
                "guards.g.url: it is no URL",
            ),
            (
                '[guards.g]\nkind = "pattern"\npatterns = ["a"]\ntimeout = 1.0',
                "guards.g: a pattern guard has no 'timeout'",
            ),
            (
                '[guards.g]\nkind = "remote"\nurl = "http://a/v1"\nfile = "f"',
                "guards.g: a remote guard has no 'file'",
            ),
            (
                '[guards.g]\nkind = "pattern"\npatterns = ["a"]\napplies = []',
                "guards.g.applies: ",
            ),
            (
                '[guards.g]\nkind = "pattern"\npatterns = ["a"]\nsize = 1',
                "guards.g.size: no setting has this name",
            ),
            ('[models.m]\nguards = ["g"]', "models.m.guards: there is no guard 'g'"),
        ],
    )
    def test_what_is_wrong_with_a_guard_is_one_line(
        self, text: str, said: str, tmp_path: Path
    ) -> None:
        message = refusal(config=str(write(tmp_path, text)))
        assert said in message
        assert "hush" not in message

    def test_the_key_of_a_guard_is_in_its_file(self, tmp_path: Path) -> None:
        path = tmp_path / "key"
        path.write_text("sk-own\n")
        url = "http://127.0.0.1:9000/v1"
        table = GuardSettings(kind="remote", url=url, key_file=path)
        assert Config.load({}).key_of_guard(GuardSettings(kind="remote", url=url)) is None
        assert Config.load({}).key_of_guard(table) == "sk-own"
        path.write_text("hush hush")
        with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}: it holds no key"):
            Config.load({}).key_of_guard(table)


@pytest.mark.parametrize(
    "text", ['[models.""]', '[models." "]', '[models."a\\nb"]', '[models.m]\naliases = [""]']
)
def test_a_model_has_a_name_that_can_be_read(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="no name for a model") as refused:
        Config.load({"config": str(write(tmp_path, text)), "engine": "scripted"})
    assert "\n" not in str(refused.value)
