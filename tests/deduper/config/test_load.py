"""Files, environment and flags become one configuration, and each setting knows where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduper.cli.commands.job import starter_config
from deduper.config.files import FileSink
from deduper.config.load import load_config, load_with_sources
from deduper.config.model import Config
from deduper.config.problems import ConfigError
from deduper.config.sections import NoneSink

TEXT = """\
source: {format: files, path: in/, file_format: json, schema: "user string, id long, ts timestamp"}
key: id
expiry: {by: event_time, field: ts, period: 24h}
sinks:
  unique: {format: parquet, path: out/unique}
  duplicate: {format: none}
  expired: {format: none}
  error: {format: none}
"""


def written(directory: Path, text: str = TEXT, name: str = "clicks.yaml") -> Path:
    """A config file with this text."""
    file = directory / name
    file.write_text(text, encoding="utf-8")
    return file


def problems_of(file: Path, *, overrides: tuple[str, ...] = (), environment: dict[str, str] | None = None) -> list[str]:
    """The headlines of everything that is wrong, the file by its name alone."""
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides=overrides, environment=environment or {})
    return [problem.headline.replace(f"{file.parent}/", "") for problem in caught.value.problems]


def test_defaults_and_paths_come_from_the_file_s_place(tmp_path: Path) -> None:
    """The name is the file's, paths start at its folder, the store lies beside it."""
    config = load_config(written(tmp_path), environment={})
    assert config.name == "clicks"
    assert config.source.path == str(tmp_path / "in")
    assert (config.store.backend, config.store.path) == ("rocksdb", tmp_path / "state/clicks")
    assert config.sinks.unique == FileSink(format="parquet", path=tmp_path / "out/unique")
    assert config.sinks.error == NoneSink(format="none")
    assert (config.key, config.trigger, config.lookup, config.clock) == (("id",), 10_000_000, "own_bucket", "arrival")
    assert (config.period_steps, config.span_steps, config.max_jump_steps) == (86_400_000_000, 3_600_000_000, None)


@pytest.mark.parametrize("url", ["s3://bucket/state/clicks", "gs://bucket/x", "az://container/x", "objects:/x"])
def test_a_store_may_lie_in_an_object_store(url: str, tmp_path: Path) -> None:
    """Then it has no path here."""
    config = load_config(written(tmp_path, f"{TEXT}store: {{url: '{url}/'}}\n"), environment={})
    assert config.store.url == url.replace("objects:", "objects://")
    assert config.store.place.url == config.store.url
    assert not config.store.is_local
    with pytest.raises(ValueError, match="not on this machine"):
        config.store.path  # noqa: B018


def test_an_object_store_holds_no_port_of_files(tmp_path: Path) -> None:
    """And the message says what to use instead."""
    text = TEXT.replace("path: out/unique", "path: 's3://bucket/out'")
    (problem,) = problems_of(written(tmp_path, text))
    assert problem == (
        "clicks.yaml:5:35: sinks.unique.path: a port of files cannot be in an object store (`s3:`): files appear by a "
        "rename, and objects have none; write a local path such as `out/unique`, `hdfs://HOST:PORT/PATH`, or "
        "`format: kafka` and a topic"
    )


@pytest.mark.parametrize(
    ("stem", "name"), [("Web Log (2)", "web-log-2"), ("ünïcode", "n-code"), ("日本", "deduper"), ("a.b_c-d", "a.b_c-d")]
)
def test_the_default_name_is_made_of_what_names_may_hold(stem: str, name: str, tmp_path: Path) -> None:
    """Any file name gives a valid job name."""
    assert load_config(written(tmp_path, name=f"{stem}.yaml"), environment={}).name == name


def test_the_starter_is_valid_as_it_stands(tmp_path: Path) -> None:
    """A first `deduper run` meets the user's data, not a typing error."""
    config = load_config(written(tmp_path, starter_config("clicks.yaml", "clicks")), environment={})
    assert config.name == "clicks"
    assert config.key == ("user", "id")


def test_flags_win_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    """Each of four settings is decided by another source."""
    file = written(tmp_path, TEXT + "store: {shards: 2, memory: 1GiB, first_seen: false}\n")
    loaded = load_with_sources(
        file,
        overrides=["store.shards=8"],
        environment={"DEDUPER__STORE__SHARDS": "4", "DEDUPER__STORE__MEMORY": "3GiB", "PATH": "/bin"},
    )
    store = loaded.config.store
    assert (store.shards, store.memory, store.first_seen, store.tables) == (8, 3 * 2**30, False, "auto")
    sources = {setting.setting: setting.source for setting in loaded.settings}
    assert sources["store.shards"] == "--set store.shards"
    assert sources["store.memory"] == "DEDUPER__STORE__MEMORY"
    assert sources["store.first_seen"] == f"{file}:9:34"
    assert sources["store.tables"] == "default"
    assert sources["key"] == f"{file}:2:1"


def test_lists_mappings_and_whole_sections_can_be_overridden(tmp_path: Path) -> None:
    """A value is YAML; mappings merge, lists replace, Spark's dotted names stay whole."""
    config = load_config(
        written(tmp_path),
        overrides=[
            "key=[user, id]",
            "spark.spark.sql.session.timeZone=UTC",
            "expiry.max_jump=off",
            "sinks.error={path: e}",
        ],
        environment={
            "DEDUPER__SPARK": "{spark.master: 'local[2]'}",
            "deduper__expiry__max_ahead_of_now": "off",
            "DEDUPER__SINKS__ERROR__FORMAT": "json",
        },
    )
    assert config.key == ("user", "id")
    assert config.spark == {"spark.master": "local[2]", "spark.sql.session.timeZone": "UTC"}
    assert config.sinks.error == FileSink(format="json", path=tmp_path / "e")
    assert config.model_dump()["expiry"]["max_ahead_of_now"] is None


def test_mistakes_in_the_environment_and_in_flags_name_their_source(tmp_path: Path) -> None:
    """There is no line to point at, but there is a name."""
    found = problems_of(
        written(tmp_path),
        overrides=("store.shards=many", "store.shards", "sinks.unique={format: parquet"),
        environment={"DEDUPER__STORE__SHARD": "4", "DEDUPER__": "x", "DEDUPER__TRIGGER": "10"},
    )
    assert found == [
        "DEDUPER__: is not a setting; write it as `DEDUPER__STORE__SHARDS`",
        "--set store.shards: is not a setting; write `--set path=value`, as in `--set store.shards=8`",
        "--set sinks.unique: sinks.unique: is not YAML: expected ',' or '}', but got '<stream end>'; "
        "indent with spaces, and put a value with `: `, `#`, `[` or `{` in quotes",
        "--set store.shards: store.shards: must be a whole number, found `many`; write digits only",
        "DEDUPER__STORE__SHARD: store.shard: unknown setting; did you mean `shards`?",
        "DEDUPER__TRIGGER: trigger: a duration needs a unit, found `10`; write `10s` for seconds; "
        "units are w, d, h, m, s, ms, us; or write `available_now`",
    ]


def test_all_mistakes_are_reported_at_once_in_reading_order(tmp_path: Path) -> None:
    """Of every section, and between the sections that are sound."""
    text = TEXT.replace("key: id", "key: idd").replace("24h", "1 fortnight").replace("unique:", "uniq:")
    assert problems_of(written(tmp_path, text + "store: {shard: 2, memory: 2G}\n")) == [
        "clicks.yaml:2:6: key.0: source.schema has no column `idd`; did you mean `id`?",
        "clicks.yaml:3:45: expiry.period: `fortnight` is not a unit of time in `1 fortnight`; "
        "units are w, d, h, m, s, ms, us",
        "clicks.yaml:5:3: sinks.uniq: unknown setting; did you mean `unique`?",
        "clicks.yaml:9:9: store.shard: unknown setting; did you mean `shards`?",
        "clicks.yaml:9:27: store.memory: `G` is not a unit of size in `2G`; write `2GiB` (1024) or `2GB` (1000)",
    ]


def test_the_picture_shows_the_line_and_a_caret_under_the_place(tmp_path: Path) -> None:
    """Under the character of a schema where it goes wrong, too; tabs keep their width."""
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, TEXT.replace("user string, id long", "user\tstring, id lng")), environment={})
    (problem,) = caught.value.problems
    text = TEXT.splitlines()[0].replace("user string, id long", "user\tstring, id lng")
    column = text.index("lng") + 1
    assert (problem.place.line, problem.place.column) == (1, column)
    tab = text.index("\t")
    assert problem.picture == ["    1 | " + text, "      | " + " " * tab + "\t" + " " * (column - tab - 2) + "^"]


def test_a_reference_inside_braces_wants_quotes(tmp_path: Path) -> None:
    """Otherwise its own braces end the mapping."""
    (problem,) = problems_of(written(tmp_path, TEXT + "store: {shards: ${N:-3}}\n"))
    assert problem.endswith("; inside { } and [ ] put `${...}` in quotes")


def test_variables_are_filled_in(tmp_path: Path) -> None:
    """Set, empty with a default, unset with a default, `$$`; and typed after filling in."""
    text = TEXT.replace("path: in/", 'path: "${DIR}/${EMPTY:-x}/${UNSET:-y}/$$z/a$b"') + "store: {shards: '${N:-3}'}\n"
    config = load_config(written(tmp_path, text), environment={"DIR": "/data", "EMPTY": ""})
    assert config.source.path == "/data/x/y/$z/a$b"
    assert config.store.shards == 3
    assert load_config(written(tmp_path, text), environment={"DIR": "/d", "N": "5"}).store.shards == 5


def test_what_a_variable_holds_is_never_filled_in_again(tmp_path: Path) -> None:
    """Neither in the file nor in DEDUPER__ variables, whose `$` the shell has had."""
    text = TEXT.replace("path: in/", 'path: "${DIR}"')
    config = load_config(
        written(tmp_path, text), environment={"DIR": "/a/${X}", "DEDUPER__SINKS__UNIQUE__PATH": "/b/${Y}/$$"}
    )
    assert config.source.path == "/a/${X}"
    assert config.sinks.unique == FileSink(format="parquet", path=Path("/b/${Y}/$$"))


def test_secrets_are_never_printed(tmp_path: Path) -> None:
    """Not by show, not in an excerpt, not in a message, whatever the value and however it is quoted."""
    text = (
        TEXT
        + "spark: {spark.ssl.keyPassword: 'hunter2, and more', spark.my.token: [hunter3], spark.url: 'http://me:hunter4@h/'}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, text), environment={})
    assert "hunter" not in str(caught.value)
    assert "spark.spark.my.token" in str(caught.value)

    loaded = load_with_sources(written(tmp_path, text.replace("[hunter3]", "hunter3")), environment={})
    settings = {setting.setting: setting.value for setting in loaded.settings}
    assert settings["spark.spark.ssl.keyPassword"] == "***"
    assert settings["spark.spark.my.token"] == "***"
    assert settings["spark.spark.url"] == "http://***@h/"

    broken = written(tmp_path, TEXT + 'spark:\n  spark.ssl.keyPassword: "hunter2" x\n')
    assert "hunter" not in "".join(problems_of(broken))
    with pytest.raises(ConfigError) as caught:
        load_config(broken, environment={})
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("store.url", "rocksdbs://bob:hunter2@x/y"),
        ("store.url", "hdfs://bob:hunter2@x/y"),
        ("store.url", "http://bob:hunter2@h@er2@x"),
        ("spark.spark.driver.extraJavaOptions", "-Djavax.net.ssl.keyStorePassword=hunter2 -Dx=1"),
        ("spark.spark.hadoop.fs.azure.account.key.x.net", "hunter2"),
        ("spark.spark.jars.repositories", "https://hunter2@repo.example.org/x"),
        ("name", "bob:hunter2@b1:9093"),
    ],
)
def test_logins_are_never_printed_wherever_they_stand(tmp_path: Path, setting: str, value: str) -> None:
    """In a message's own words as in what it quotes, and in `show`."""
    try:
        loaded = load_with_sources(written(tmp_path, TEXT), overrides=[f"{setting}={value}"], environment={})
    except ConfigError as error:
        reported = str(error)
    else:
        reported = repr(loaded.settings)
    assert setting in reported
    assert "hunter2" not in reported
    assert "er2@" not in reported


def test_what_a_secret_of_several_lines_goes_on_with_is_not_quoted(tmp_path: Path) -> None:
    """A syntax error behind it would show it."""
    text = TEXT + 'spark:\n  spark.ssl.keyPassword: "hunter1\n    hunter2" x\n'
    assert "hunter" not in "".join(problems_of(written(tmp_path, text)))


@pytest.mark.parametrize(
    ("variable", "setting"),
    [
        ("DEDUPER__SPARK__spark.driver.maxResultSize", "spark.driver.maxResultSize"),
        ("DEDUPER__SPARK__SPARK__DRIVER__MEMORY", "spark.driver.memory"),
        ("DEDUPER__SPARK__DRIVER__MEMORY", "spark.driver.memory"),
        ("DEDUPER__spark__driver.maxResultSize", "spark.driver.maxResultSize"),
    ],
)
def test_names_of_spark_settings_are_taken_as_they_are_written(tmp_path: Path, variable: str, setting: str) -> None:
    """Spark tells capitals from small letters; a variable cannot always have dots."""
    config = load_config(written(tmp_path, TEXT), environment={variable: "2g"})
    assert config.spark == {setting: "2g"}
    flag = f"spark.{setting.removeprefix('spark.')}=3g"
    assert load_config(written(tmp_path, TEXT), overrides=[flag], environment={}).spark == {setting: "3g"}


def test_a_secret_in_a_variable_or_flag_is_the_text_it_is(tmp_path: Path) -> None:
    """Never read as YAML: it may look like anything, and nothing of it may come back in a message."""
    file = written(tmp_path, TEXT + "spark: {spark.x.password: '${PASSWORD}', spark.y.password: 1}\n")
    config = load_config(file, overrides=["spark.spark.y.password={*$${"], environment={"PASSWORD": "007"})
    assert config.spark == {"spark.x.password": "007", "spark.y.password": "{*$${"}
    assert problems_of(file, overrides=("spark.y.password hunter2",), environment={"PASSWORD": "x"}) == [
        "--set spark.y.password: is not a setting; write `--set path=value`, as in `--set store.shards=8`"
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file; `deduper init {file}` writes one to start from"),
        (b"name: \xff\n", "is not UTF-8 at byte 6; save the file as UTF-8"),
        (b"a: &x [*x]\n", "a.0: contains itself; remove the alias"),
    ],
)
def test_files_that_cannot_be_read_say_why(content: bytes | None, message: str, tmp_path: Path) -> None:
    """No such file, not text, a value inside itself."""
    file = tmp_path / "job.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(file, environment={})
    assert message.format(file=file) in str(caught.value)


def test_a_directory_and_an_empty_file_are_told_apart(tmp_path: Path) -> None:
    """A directory is no file; an empty file lacks every section."""
    assert problems_of(tmp_path) == [f"{tmp_path.name}: is a folder; name the config file in it"]
    found = problems_of(written(tmp_path, ""))
    assert [problem.split(": ")[1] for problem in found] == ["source", "key", "expiry", "sinks"]


def test_a_byte_order_mark_is_no_part_of_the_first_setting(tmp_path: Path) -> None:
    """As some editors write it."""
    file = tmp_path / "job.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert load_config(file, environment={}).key == ("id",)


@pytest.mark.parametrize(
    ("expiry", "column", "scaled"),
    [
        ("{by: ordered, field: n, period: 10, span: 2, max_jump: 7}", "n long", (10, 2, 7)),
        ("{by: ordered, field: n, period: 10, span: 0.25}", "n decimal(10,2)", (1000, 25, None)),
        ("{by: ordered, field: n, period: 10, span: 0.3}", "n double", (10.0, 0.3, None)),
        ("{by: processing_time, period: 1h}", "n long", (3_600_000_000, 150_000_000, None)),
        ("{by: processing_time, period: 1s}", "n long", (1_000_000, 1_000_000, None)),
        ("{by: never}", "n long", (None, None, None)),
    ],
)
def test_periods_are_given_in_steps_of_the_stored_key(
    expiry: str, column: str, scaled: tuple[object, ...], tmp_path: Path
) -> None:
    """µs, unscaled decimals, or the numbers themselves."""
    text = TEXT.replace("ts timestamp", column).replace("{by: event_time, field: ts, period: 24h}", expiry)
    config = load_config(written(tmp_path, text), environment={})
    assert (config.period_steps, config.span_steps, config.max_jump_steps) == scaled


def test_a_config_made_in_code_passes_the_same_checks(tmp_path: Path) -> None:
    """There is no way to a `Config` whose sections disagree."""
    data = load_config(written(tmp_path), environment={}).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert Config.model_validate(data) == load_config(written(tmp_path), environment={})
    with pytest.raises(ValueError, match=r"key\.0: source\.schema has no column `nope`"):
        Config.model_validate({**data, "key": ["nope"]})
