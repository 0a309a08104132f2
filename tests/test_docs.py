"""What the guide says about columns, settings and the run folder is what the code does."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import get_args

import numpy as np

from holdfast import config
from holdfast.cli._commands import COMMANDS
from holdfast.config.rules import Action
from holdfast.policy import DEFAULTS
from holdfast.records.columns import COLUMNS
from holdfast.run import LaneWriter, Run, encode

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "guide.md").read_text()


def test_every_column_is_explained() -> None:
    for name, meaning in COLUMNS.items():
        assert f"| `{name}` | {meaning} |" in GUIDE


def test_every_setting_is_explained_with_its_default() -> None:
    for section, values in config.to_dict(config.Settings()).items():
        for key, default in values.items():
            assert f"| `{section}.{key}` | `{default}` |" in GUIDE


def test_every_rule_and_action_of_the_policy_is_explained(tmp_path: Path) -> None:
    section = GUIDE.partition("## Policy")[2].partition("\n## ")[0]
    for rule in DEFAULTS:
        (row,) = [line for line in section.splitlines() if f"`{rule.on}`" in line and "|" in line]
        reported = row.split("|")
        assert reported[2].strip() == ", ".join(f"`{action}`" for action in rule.do)
        assert reported[3].split()[0] == str(rule.budget)
        assert ("20 steps apart" in reported[3]) == (rule.cooldown == 20)
    for action in get_args(Action):
        assert f"\n| `{action}` | " in section
    (example,) = re.findall(r"```yaml\n(.*?)```", section, re.S)
    path = tmp_path / "settings.yaml"
    path.write_text(example)
    assert set(config.load(str(path)).policy) == {"OPT001", "OPT002", "NUM"}


def test_the_reading_example_works(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {"script": "x.py"})
    writer = LaneWriter(run, "r0")
    dtype = [["step", "<i8"], ["time", "<f8"], ["loss", "<f4"]]
    rows = np.array([(i, 0.0, i / 2) for i in range(7)], [(a, b) for a, b in dtype])
    declaration = encode({"id": 16, "table": "steps", "dtype": dtype})
    writer.take([(3, declaration), *((16, row.tobytes()) for row in rows)])
    writer.close()
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    scope: dict[str, object] = {}
    exec(example.replace("runs/…", str(run.path)), scope)
    assert np.array_equal(scope["rows"], rows)  # type: ignore[arg-type]


def pages() -> list[Path]:
    written = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    return [*written, *(ROOT / "src").rglob("*.md"), *(ROOT / "models").rglob("*.md")]


def test_links_lead_somewhere() -> None:
    for page in pages():
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_anchors_lead_to_a_heading() -> None:
    for page in pages():
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            text = (page.parent / target).read_text() if target else page.read_text()
            headings = re.findall(r"^#+ (.+)$", text, re.M)
            anchors = {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}
            assert anchor in anchors, f"{page.name}: {target}#{anchor}"


# Options of other programs that the documents name.
FOREIGN = {
    "--index-url",
    "--nproc-per-node",
    "--max-restarts",
    "--nnodes",
    "--rdzv-id",
    "--signal",
    "--backend-store-uri",
    "--logdir",
}
OPTION = re.compile(r'"(--[a-z][a-z-]*)"')


def test_every_option_that_is_named_exists() -> None:
    folders = ("src/holdfast/cli", "benchmarks", "examples", "models/src")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    known = {option for path in sources for option in OPTION.findall(path.read_text())}
    # What a decision or a benchmark once was called stays in what was written then.
    for page in pages():
        if page.name != "decisions_archive.md":
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.read_text()))
            assert named <= known | FOREIGN, f"{page.name}: {sorted(named - known - FOREIGN)}"


def code_of(text: str) -> str:
    """What a page shows as code: in fences, indented, or between backticks."""
    fences = re.findall(r"```\w*\n(.*?)```", text, re.S)
    indented = re.findall(r"^    (.+)$", text, re.M)
    return "\n".join([*fences, *indented, *re.findall(r"`([^`]+)`", text)])


def test_every_command_and_script_that_is_named_exists() -> None:
    families = {path.name for path in (ROOT / "models" / "src").glob("*/*/")}
    known = {name for name, _, _ in COMMANDS} | families
    for page in pages():
        code = code_of(page.read_text())
        for command in re.findall(r"^(?:\$ |.* -m )?holdfast ([a-z_]+)\b", code, re.M):
            assert command in known, f"{page.name}: holdfast {command}"
        for script in re.findall(r"python ((?:benchmarks|docs|examples)/[\w/]+\.py)", code):
            assert (ROOT / script).exists(), f"{page.name}: {script}"


def test_the_glossary_names_what_is_in_the_code() -> None:
    page = ROOT / "docs" / "glossary.md"
    named = re.findall(r"\[`([^`]+)`\]\(([^)]+)\)", page.read_text())
    assert len(named) > 30
    for name, target in named:
        text = (page.parent / target).read_text()
        assert re.search(rf"\b{re.escape(name)}\b", text), f"{target} does not have {name}"


def test_the_page_on_cost_has_the_guard_cost_of_the_result_files() -> None:
    page = (ROOT / "docs" / "cost.md").read_text()
    for name in ("detection_cpu_2026-11-16", "detection_cpu_arm_2026-11-16"):
        path = f"benchmarks/results/{name}.md"
        cells = [line.split(" | ") for line in (ROOT / path).read_text().splitlines()]
        reported = [row for row in cells if len(row) == 12 and re.fullmatch(r"[\d.]+%", row[10])]
        groups = [reported, [row for row in reported if row[1] == "silence"]]
        costs = [[float(row[10][:-1]) for row in group] for group in groups]
        numbers = [f"{of(group):.1f} %" for group in costs for of in (statistics.median, max)]
        assert f"| {len(reported)} | {' | '.join(numbers)} | [table](../{path}) |" in page
