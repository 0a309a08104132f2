from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from holdfast import config
from holdfast.config import (
    DetectorSettings,
    GuardSettings,
    RunSettings,
    Section,
    Settings,
    yaml_values,
)
from holdfast.errors import SettingsError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(Section):
    """A section as a model family writes it: everything the engine promises to read."""

    lr: float = config.bounded(1e-3, 0.0)
    betas: tuple[float, float] = (0.9, 0.999)
    precision: Literal["bf16", "fp16", "32"] = "bf16"
    warmup: int | str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family(Section):
    steps: int
    optimizer: Optimizer = Optimizer()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.optimizer.warmup, int) and self.optimizer.warmup > self.steps:
            raise ValueError(f"warmup of {self.optimizer.warmup} is longer than {self.steps} steps")


@pytest.fixture
def file(tmp_path: Path):
    def write(text: str | bytes) -> str:
        path = tmp_path / "settings.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def message(*args: Any, **kwargs: Any) -> str:
    """The one line a user reads; fails if the input was accepted."""
    with pytest.raises(SettingsError) as caught:
        config.load(*args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_nothing_given_is_the_defaults(file):
    assert config.load(None, []) == config.load(file("")) == config.load(file("guard:\n"))
    assert config.load() == Settings()
    assert Settings().guard == GuardSettings(
        skip=True,
        fused=True,
        device_path=False,
        restore_buffers=True,
        restore_rng=True,
        budget=0.02,
    )
    assert Settings().run == RunSettings(
        root="runs",
        dir=None,
        quiet=False,
        layers_every=16,
        memory_every=16,
        parameters_every=128,
        ring_mib=8,
    )


def test_a_file_sets_what_it_names_and_nothing_else(file):
    path = file("guard:\n  skip: false\nrun: {dir: here}\ndetectors:\n  select: [NUM, OPT]\n")
    assert config.load(path) == Settings(
        guard=GuardSettings(skip=False),
        run=RunSettings(dir="here"),
        detectors=DetectorSettings(select=("NUM", "OPT")),
    )


def test_overrides_beat_the_file_and_the_last_one_wins(file):
    path = file("guard: {fused: true, skip: false}")
    loaded = config.load(path, ["guard.fused=true", "guard.fused=false", "run.ring_mib = 32"])
    assert loaded.guard == GuardSettings(fused=False, skip=False)
    assert loaded.run.ring_mib == 32


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.0e-4", "0.0001", ".0001"])
def test_every_spelling_of_a_small_number_is_a_number(file, text):
    assert config.load(file(f"guard: {{budget: {text}}}")).guard.budget == 1e-4
    assert config.load(None, [f"guard.budget={text}"]).guard.budget == 1e-4


def test_a_whole_number_is_a_number_and_becomes_a_float(file):
    budget = config.load(file("guard: {budget: 1}")).guard.budget
    assert (budget, type(budget)) == (1.0, float)


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("yes", True), ("On", True), ("false", False), ("no", False), ("OFF", False)],
)
def test_words_for_true_and_false(file, text, value):
    assert config.load(file(f"guard: {{skip: {text}}}")).guard.skip is value
    assert config.load(None, [f"guard.skip={text}"]).guard.skip is value


@pytest.mark.parametrize("text", ["on", "yes", "no", "off", "2026-11-15", "1:30", "010", "a=b"])
def test_text_stays_as_written(file, text):
    assert config.load(file(f"run: {{dir: {text}}}")).run.dir == text
    assert config.load(None, [f"run.dir={text}"]).run.dir == text


@given(
    st.one_of(
        st.text(alphabet="~nulNULtrueTRUEfalsFALS0123456789abx._/+-:# '\"[]{}", max_size=6),
        st.sampled_from(
            ["~", "", "Null", "TRUE", "False", "0x_1F", "-1_000", "010", "+0", "..", "./"]
        ),
        st.sampled_from(
            ["runs/a-1.b", "../x", "C:x", "a #b", ".inf", "1e-4", "1.5", "-", "---", "=x"]
        ),
    )
)
@hypothesis_settings(max_examples=400, deadline=None)
def test_a_value_on_the_command_line_is_what_yaml_makes_of_it(text):
    def read(reader):
        try:
            value = reader(text)
        except ValueError:
            return "refused"
        return type(value), repr(value)

    assert read(yaml_values.word) == read(yaml_values.parse)


def test_a_word_of_the_command_line_takes_the_type_of_its_field():
    def loaded(text: str) -> Settings:
        return config.load(None, [text])

    assert loaded("run.dir=5").run.dir == "5"
    assert loaded("run.dir=null").run.dir is None
    assert loaded("detectors.select=NUM, OPT001").detectors.select == ("NUM", "OPT001")
    assert loaded("detectors.select=[NUM]").detectors.select == ("NUM",)
    assert loaded("detectors.ignore=").detectors.ignore == ()


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("guard: {fusd: true}", "'guard.fusd'", "did you mean 'guard.fused'?"),
        ("gaurd: {fused: true}", "'gaurd'", "did you mean 'guard'?"),
        ("fused: true", "'fused'", "did you mean 'guard.fused'?"),
        ("guard: {quiet: true}", "'guard.quiet'", "did you mean 'run.quiet'?"),
        ("guard.fused: true", "'guard.fused'", "indented line under its section"),
        ("zebra: 1", "'zebra'", "known here are guard, run, "),
        ("1: 1", "'1'", "known here are"),
        ("<<: {guard: {}}", "'<<'", "known here are"),
    ],
)
def test_an_unknown_key_names_file_key_and_the_nearest_name(file, text, key, hint):
    path = file(text)
    line = message(path)
    assert line.startswith(f"{path}: unknown setting {key}; ")
    assert hint in line


@pytest.mark.parametrize(
    ("text", "key", "expected", "shown"),
    [
        ("guard: {budget: lots}", "guard.budget", "a number", "'lots'"),
        ("guard: {budget: true}", "guard.budget", "a number", "true"),
        ("guard: {budget: [1]}", "guard.budget", "a number", "[1]"),
        ("guard: {budget: .nan}", "guard.budget", "a number", "nan"),
        ("guard: {skip: 1}", "guard.skip", "true or false", "1"),
        ("guard: {skip: maybe}", "guard.skip", "true or false", "'maybe'"),
        ("guard: {skip: }", "guard.skip", "true or false", "null"),
        ("run: {ring_mib: true}", "run.ring_mib", "a whole number", "true"),
        ("run: {ring_mib: 1.5}", "run.ring_mib", "a whole number", "1.5"),
        ("run: {ring_mib: '8'}", "run.ring_mib", "a whole number", "'8'"),
        ("run: {ring_mib: 010}", "run.ring_mib", "a whole number", "'010'"),
        ("run: {root: 5}", "run.root", "text", "5"),
        ("run: {dir: [a]}", "run.dir", "text or null", "['a']"),
        ("detectors: {select: NUM}", "detectors.select", "a list of text", "'NUM'"),
        ("detectors: {select: [1]}", "detectors.select", "a list of text", "[1]"),
        ("guard: 5", "guard", "a section with skip, fused", "5"),
    ],
)
def test_a_wrong_type_names_key_expectation_and_value(file, text, key, expected, shown):
    path = file(text)
    line = message(path)
    assert line.startswith(f"{path}: {key} must be {expected}")
    assert f"not {shown}" in line


@pytest.mark.parametrize(
    ("override", "limits"),
    [
        ("guard.budget=-0.1", "from 0.0 to 1.0"),
        ("guard.budget=1.5", "from 0.0 to 1.0"),
        ("guard.budget=.inf", "from 0.0 to 1.0"),
        ("guard.budget=" + "9" * 400, "from 0.0 to 1.0"),
        ("run.layers_every=0", "of at least 1"),
        ("run.memory_every=-16", "of at least 1"),
        ("run.ring_mib=5000", "from 1 to 4096"),
    ],
)
def test_an_impossible_value_is_refused_with_its_limits_and_the_default(override, limits):
    line = message(None, [override])
    assert line.startswith(f"override '{override}': ")
    assert limits in line and "the default is" in line


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("guard.fused", "write it as section.key=value"),
        ("=1", "write it as section.key=value"),
        ("guard.fusd=1", "did you mean 'guard.fused'?"),
        ("guard.x.y=1", "unknown setting 'guard.x'"),
        ("guard.skip.x=1", "guard.skip must be true or false"),
        ("guard=1", "guard must be a section"),
        (".=1", "unknown setting ''"),
        ("guard.budget=[", "guard.budget must be a number"),
        ("guard.skip=!!bool maybe", "guard.skip must be true or false"),
    ],
)
def test_a_bad_override_is_quoted(override, hint):
    line = message(None, [override])
    assert line.startswith(f"override {override!r}: ")
    assert hint in line


def test_an_override_below_a_value_says_which_two_clash(file):
    assert "guard is already set to 5" in message(file("guard: 5"), ["guard.skip=no"])


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ("guard: [", "line 1"),
        ("guard:\n  skip: true\n  skip: false\n", "line 3: the key 'skip' appears twice"),
        ("guard: {}\nguard: {}\n", "line 2: the key 'guard' appears twice"),
        ("x: !!python/object:os.system ls", "constructor"),
        ("guard: {skip: !!bool maybe}", "tag"),
        ("guard: {skip: !!timestamp maybe}", "tag"),
        ("? [a]\n: b", "line 1"),
        ("a: 1\n---\nb: 2\n", "line 2"),
        ("a: " + "[" * 5000, "recursion"),
        ("run: {ring_mib: " + "9" * 5000 + "}", "too long"),
        ("\x00", "not valid YAML"),
        (b"\xff\xfe\x00", "not UTF-8"),
        ("- a\n- b\n", "holds ['a', 'b'], no settings"),
        ("just text", "no settings"),
        ("7", "no settings"),
        ("guard: &a {skip: *a}", "recursive"),
    ],
)
def test_a_file_that_is_no_settings_file_gets_one_line(file, content, hint):
    path = file(content)
    line = message(path)
    assert line.startswith(f"{path}: ")
    assert hint in line


def test_a_file_that_cannot_be_opened_gets_one_line(tmp_path):
    assert "no such file" in message(str(tmp_path / "none.yaml"))
    assert "directory" in message(str(tmp_path))


def test_settings_survive_the_way_to_another_process():
    first = config.load(None, ["run.dir=a b", "detectors.select=NUM,OPT", "guard.budget=1e-3"])
    assert config.from_json(config.to_json(first)) == first
    assert config.from_dict(config.to_dict(first)) == first
    chosen = {"select": ["NUM", "OPT"], "ignore": [], "options": {}}
    assert config.to_dict(first)["detectors"] == chosen


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"guard": 1}', '{"guard": {"fusd": 1}}'])
def test_a_broken_environment_variable_is_named(text):
    with pytest.raises(SettingsError, match=r"^HOLDFAST_X: "):
        config.from_json(text, source="HOLDFAST_X")


def test_settings_made_in_python_obey_the_same_rules():
    assert GuardSettings(budget=1).budget == 1.0
    with pytest.raises(SettingsError, match=r"GuardSettings: budget must be a number from 0\.0"):
        GuardSettings(budget=-1)
    with pytest.raises(SettingsError, match="DetectorSettings: select must be a list of text"):
        DetectorSettings(select="NUM")  # pyright: ignore[reportArgumentType]
    with pytest.raises(SettingsError, match="Settings: guard must be a section"):
        Settings(guard="skip")  # pyright: ignore[reportArgumentType]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().guard.skip = False  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("select", "ignore", "wanted"),
    [
        ("ALL", "", {"NUM001", "NUM002", "OPT001"}),
        ("NUM", "", {"NUM001", "NUM002"}),
        ("ALL", "NUM002", {"NUM001", "OPT001"}),
        ("NUM002,OPT", "NUM", {"OPT001"}),
        ("", "", set()),
        ("ALL", "ALL", set()),
    ],
)
def test_detectors_are_chosen_by_code_or_prefix_and_ignore_wins(select, ignore, wanted):
    chosen = config.load(None, [f"detectors.select={select}", f"detectors.ignore={ignore}"])
    assert {c for c in ("NUM001", "NUM002", "OPT001") if chosen.detectors.wants(c)} == wanted


def test_a_family_reads_its_own_dataclass(file):
    path = file("steps: 100\noptimizer: {lr: 3e-4, betas: [0.9, 1], warmup: auto}\n")
    loaded = config.load(path, ["optimizer.precision=32"], kind=Family)
    assert loaded.optimizer == Optimizer(lr=3e-4, betas=(0.9, 1.0), precision="32", warmup="auto")
    assert config.load(path, ["optimizer.warmup=10"], kind=Family).optimizer.warmup == 10


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        ([], "steps has no default and is missing"),
        (["steps=1", "optimizer.betas=0.9"], "a list of 2 × a number"),
        (["steps=1", "optimizer.precision=fp8"], "one of bf16, fp16, 32"),
        (["steps=1", "optimizer.warmup=5"], "warmup of 5 is longer than 1 steps"),
        (["stepz=1"], "did you mean 'steps'?"),
    ],
)
def test_a_family_is_read_as_strictly(overrides, hint):
    assert hint in message(None, overrides, kind=Family)


@pytest.mark.parametrize("key", ["clip.norm", "clip.value", "rollback.lr", "scaler.backoff"])
def test_a_factor_or_a_limit_of_nothing_is_refused(key):
    assert "above 0.0" in message(None, [f"{key}=0"])
    assert "above 0.0" in message(None, [f"{key}=-1"])
    config.load(None, [f"{key}=0.01"])


@given(st.one_of(st.text(), st.binary()))
@hypothesis_settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_file_whatever_it_holds_is_a_traceback(tmp_path, content):
    path = tmp_path / "any.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="replace"))
    try:
        assert isinstance(config.load(str(path)), Settings)
    except SettingsError as error:
        assert "\n" not in str(error)


KEYS = ["guard.budget", "guard.skip", "run.dir", "detectors.select", "policy", "policy.OPT001"]


@given(st.text(), st.sampled_from(KEYS))
@hypothesis_settings(max_examples=200, deadline=None)
def test_no_override_whatever_it_holds_is_a_traceback(text, key):
    try:
        assert isinstance(config.load(None, [f"{key}={text}"]), Settings)
    except SettingsError as error:
        assert "\n" not in str(error)


def test_importing_the_settings_stays_light():
    code = "import sys, holdfast.config as c; c.Settings(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"yaml", "numpy", "torch"} & set(done.stdout.split())


def test_a_section_may_be_given_as_a_mapping():
    settings = Settings(checkpoint={"minutes": 5, "last": 3})  # type: ignore[arg-type]
    assert (settings.checkpoint.minutes, settings.checkpoint.last) == (5.0, 3)
    with pytest.raises(SettingsError, match=r"checkpoint\.lst"):
        Settings(checkpoint={"lst": 3})  # type: ignore[arg-type]
