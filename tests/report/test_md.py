from __future__ import annotations

import html
import re

import pytest
from markdown_it import MarkdownIt

from holdfast.report import report_md
from holdfast.report.markdown import (
    code,
    fence,
    table,
    text,
)
from holdfast.run import Run

EVIL = "<img src=x onerror=y> `a` | *b* @team #1 [c](http://d) ```\n# e"


def test_the_same_story_as_the_page(incident):
    reported = report_md(incident())
    order = [
        "# Finished with findings: `train.py`", "Log of 0 at model.py:88: 1 of 600 steps",
        "## Findings", "### NUM001 Log of 0 (warning)", "`src/project/model.py:88`", "```python\n",
        "> 88      loss = -torch.log(picked).mean()", "| tensor | shape | min |",
        "| input | float32 64×1 | 0 | 0.9931 |", "**Fix:** Keep the argument of log above zero",
        "```diff\n@@ src/project/model.py:88 @@\n-    loss", "+    loss = -torch.log(picked.clamp",
        "- sample: dataset index 20817 (row 5 of the batch)", "- ranks: rank 1",
        "- how sure: 95 %; holdfast reran this batch", "- more: `holdfast explain NUM001`",
        "## Ranks", "| rank | steps | loss |", "Rank 1 named by a finding",
        "## The layers around it", "**Step 412, rank 1, NUM001.**", "## How far the layers moved",
        "| head.bias |", "## Curves, r0", "- Loss: Loss from", "## What holdfast did",
        "| Skipped steps with non-finite values (ranks 0-1) | step 412 |", "## The run",
        "- command: `train.py --epochs 3 --hf-token ***`", "Guard cost ",
    ]  # fmt: skip
    places = [reported.find(part) for part in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)


def test_fences_and_tables_are_whole(incident):
    reported = report_md(incident())
    assert reported.count("```") % 2 == 0
    assert reported.endswith("\n") and "\n\n\n" not in reported
    for block in re.findall(r"(?:^\|.*\n)+", reported, re.M):
        assert len({row.count("|") for row in block.splitlines()}) == 1


def test_a_healthy_run_is_short(make_run):
    reported = report_md(make_run())
    assert reported.startswith("# Finished: `train.py`\n\nNo findings in 20 steps;")
    assert "## Findings" not in reported and len(reported) < 2000


@pytest.mark.parametrize("steps", [0, 1])
def test_runs_with_next_to_nothing(tmp_path, make_run, make_rows, steps):
    run = make_run(make_rows(1)) if steps else Run.create(tmp_path / "empty", {})
    assert "## The run" in report_md(run)


def test_of_a_damaged_run_what_can_be_read(incident):
    run = incident()
    next(run.path.glob("steps.r1*")).write_bytes(b"junk")
    reported = report_md(Run.open(run.path))
    assert "Could not be read: r1: steps.r1.000000.bin" in reported and "### NUM001" in reported


def test_nothing_a_user_wrote_is_markup(incident, incident_cause):
    cause = incident_cause | {"module": EVIL, "file": EVIL, "excerpt": [[88, EVIL]], "op": EVIL}
    reported = report_md(incident(cause=cause, message=EVIL, advice=EVIL, name=EVIL,
                              evidence={"diff": f"-{EVIL}", "headline": EVIL}))  # fmt: skip
    bare = re.sub(r"(`{3,})\w+\n.*?\n\1(?=\n)", "", reported, flags=re.S)
    bare = re.sub(r"(?<!\\)(`+) ?.*? ?(?<!`)\1(?!`)", "", bare)
    assert not re.findall(r"(?<!\\)<img", bare)
    assert "@team" not in bare and "@&#8203;team" in bare
    assert not re.findall(r"^# e", bare, re.M)
    assert not re.findall(r"(?<!\\)\]\(", bare)


@pytest.mark.parametrize(
    "shown",
    ["a &commat;all &amp; &lt;b&gt; x&y", "GH-1 gh-22 a_GH-3", "see #12, o/r#3",
     "@name me@a.org o/r@1a2b3c4", "https://a.org/b_c x_http://c ftp://a HTTP://B www.a.org",
     "mailto:a@b xmpp:c", "t.py:100: x :smile: :+1:",
     "- a", "+ b", "1. c", "2) d", "---", "===", "# e", "![p](q)", "-0.5", "$x$ ~~y~~ a_b *c*"],
)  # fmt: skip
def test_github_shows_the_text_and_nothing_live(shown):
    page = MarkdownIt("commonmark").render(f"before\n\n{text(shown)}\n")
    tags = re.findall(r"<(\w+)", page)
    seen = html.unescape(re.sub(r"<[^>]*>", "", page)).removeprefix("before\n").strip()
    assert tags == ["p", "p"] and seen.replace("\u200b", "") == shown
    live = r"@\w|#\d|gh-\d|\w://|mailto:a|xmpp:c|www\.|:100:|:smile:|:\+1:"
    assert not re.search(live, seen, re.IGNORECASE)


def test_pieces():
    assert text("a_b*c|d") == r"a\_b\*c\|d"
    assert text("two\n lines\x07") == "two lines⟨U+0007⟩"
    assert code("a`b") == "``a`b``" and code("`a`") == "`` `a` ``" and code("") == ""
    assert fence("a\n```\nb", "python") == "````python\na\n```\nb\n````"
    assert table(("a", "b"), [("1", "x|y")]) == "| a | b |\n| --- | --- |\n| 1 | x\\|y |"
