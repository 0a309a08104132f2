from __future__ import annotations

import base64
import hashlib
import itertools
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from holdfast.report import (
    RunRecord,
    read_record,
    report_html,
    write_page,
)
from holdfast.report.summary import summarize_lanes
from holdfast.run import LaneData, Run

NAN, INF = np.nan, np.inf
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
VOID = {"meta", "br", "hr", "link", "wbr", "img", "input"}


class Page(HTMLParser):
    """A page taken apart: elements with their attributes, text by element, and that all close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), attrs
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open and self._open.pop() == tag, tag

    def handle_data(self, data):
        for tag in self._open[-1:]:
            self.words.setdefault(tag, []).append(data)

    def named(self, tag: str, style: str = "") -> list[dict[str, str | None]]:
        found = [attrs for name, attrs in self.tags if name == tag]
        return [a for a in found if not style or style in (a.get("class") or "").split()]

    @property
    def text(self) -> str:
        reported = [
            w for tag, some in self.words.items() if tag not in ("script", "style") for w in some
        ]
        return " ".join("".join(reported).replace("\N{NO-BREAK SPACE}", " ").split())


def verdict(text: str) -> tuple[str, str]:
    found = re.search(r'<header class="verdict (\w+)">.*?<h1>.*?</svg>(.*?)</h1>', text, re.S)
    assert found
    return found[1], found[2]


def test_the_order_of_the_page(incident):
    text = report_html(incident())
    order = [
        "Finished with findings", "Loss, r0</h2>", "1 finding</h2>", "> Log of 0</h3>",
        "src/project/model.py:88", 'class="excerpt"', "Inputs and output", "Fix:",
        'class="diff copied"', "dataset index 20817", "holdfast explain NUM001",
        "The layers around it", "Plots, r0", ">Gradient norm</h3>", ">Gradient norm by layer</h3>",
        "Time of a step by phase", ">Memory of the device</h3>", ">Memory of the host</h3>",
        "How far the layers moved", "What holdfast did", "The run</h2>", "Guard cost",
    ]  # fmt: skip
    body = text[text.index("<body>") :].replace("\N{NO-BREAK SPACE}", " ")
    places = [body.find(part) for part in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)
    Page(text)


@pytest.mark.parametrize(
    ("exit_code", "word", "tone", "sentence"),
    [
        (
            0,
            "Finished with findings",
            "warn",
            "Log of 0 at model.py:88: 1 of 600 steps was skipped",
        ),
        (3, "Crashed", "bad", "Exit code 3 after 600 steps; found: log of 0 at model.py:88."),
        (-9, "Killed", "bad", "Killed by SIGKILL, perhaps out of host memory, after 600 steps"),
        (-2, "Interrupted", "warn", "Interrupted from the keyboard after 600 steps"),
        (None, "Unfinished", "info", "Not finished: it is still running"),
    ],
)
def test_the_verdict_has_a_word_a_colour_and_a_sentence(incident, exit_code, word, tone, sentence):
    text = report_html(incident(exit_code=exit_code, ranks=1))
    assert verdict(text) == (tone, word)
    assert sentence in Page(text).text


def test_a_healthy_run_is_green_and_short(make_run):
    text = report_html(make_run())
    assert verdict(text) == ("info", "Finished")
    page, reported = Page(text), Page(text).text
    assert "No findings in 20 steps; loss 2.0" in reported
    assert not page.named("article") and not page.named("table")
    assert "It recorded, and changed nothing." in reported


def test_harm_that_was_not_prevented_is_red(make_run, make_rows):
    text = report_html(make_run(make_rows(9, grad_bad={5: 1})))
    assert verdict(text) == ("bad", "Finished with findings")
    assert "nothing: it was detected, not prevented" in text


def test_the_guilty_line_is_marked_not_only_by_colour(incident):
    text = report_html(incident())
    (line,) = re.findall(r"<mark>(.*?)</mark>", text, re.S)
    assert "▶ 88" in line and "torch.log(picked)" in line
    assert "<del>-    loss" in text and "<ins>+    loss" in text


def test_a_statement_over_several_lines_is_marked_whole(incident, incident_cause):
    cause = incident_cause | {"start": 86, "line": 87, "code": "a = (\n  b\n)"}
    assert len(re.findall("<mark>", report_html(incident(cause=cause)))) == 3


def test_the_numbers_of_the_operation(incident):
    reported = Page(report_html(incident())).text
    assert "tensor shape min max mean zeros negative NaN inf".replace(" ", "") in reported.replace(
        " ", ""
    )
    assert "log in the forward pass, function loss_fn, module encoder.gru" in reported
    assert "95 %; holdfast reran this batch and traced it (step 413)" in reported


def test_ranks_are_reported(incident):
    text = report_html(incident(ranks=3))
    reported = Page(text).text
    assert "NUM002 on ranks 0-1, spread by all-reduce" in reported
    assert "Step 412, rank 2: NUM001" in reported
    assert "Skipped steps with non-finite values (ranks 0-2)" in reported
    assert text.count("<summary>Plots, r") == 2 and "Plots, r2" in reported


def test_heat_map_signs(incident, add_lane, make_layers, make_rows, incident_finding, tmp_path):
    names = [f"blocks.{i}.weight" for i in range(100)]
    layers = make_layers(range(404, 421), names, {412: [40, 41]})
    for step in range(404, 412):
        layers[names[41]][layers["step"] == step] *= 2.0 ** (step - 404)
    layers[names[3]] = NAN  # frozen: no gradient at all
    rows = make_rows(600, grad_bad={412: 2}, grad_layer={412: 41}, skipped={412: 1})
    found = incident_finding(cause=None, code="NUM002", evidence={"layer": names[41]})
    run = Run.create(tmp_path / "many", {})
    add_lane(run, rows, tables={"layers0": layers}, findings=[found])
    text = report_html(run)
    page, reported = Page(text), Page(text).text
    bad = page.named("td", "bad")
    assert [cell["title"] for cell in bad] == ["NaN", "inf"]
    assert (
        "blocks.41.weight was first: the gradients of 2 of 100 layers were non-finite" in reported
    )
    assert (
        "It built up: in the 8 steps before, the gradient of blocks.41.weight grew from" in reported
    )
    assert "Everything was finite again in the 8 steps after it." in reported
    assert "68 layers of 100 not shown" in reported
    assert "all names begin with blocks." in reported
    assert len(page.named("td")) < 40 * 17 + 100


def test_layers_without_a_gradient_are_not_blamed(add_lane, make_layers, make_rows, tmp_path,
                                                  incident_finding):  # fmt: skip
    layers = make_layers(range(404, 421), ["a", "b"], {412: [0]})
    layers["b"] = NAN
    run = Run.create(tmp_path / "frozen", {})
    rows = make_rows(600, grad_bad={412: 1}, grad_layer={412: 0})
    found = incident_finding(cause=None, code="NUM002", evidence={"layer": "a"})
    add_lane(run, rows, tables={"layers0": layers}, findings=[found])
    page = Page(report_html(run))
    assert len(page.named("td", "bad")) == 1
    assert len(page.named("td", "none")) == 17


def test_nothing_a_user_wrote_is_markup(incident, incident_cause, incident_finding, make_event,
                                        add_lane, make_rows, make_layers):  # fmt: skip
    evil = {k: EVIL for k in ("op", "file", "function", "code", "module", "layer", "sample", "how")}
    cause = incident_cause | evil | {"excerpt": [[88, EVIL], [89, "</pre></code>" + EVIL]]}
    cause["inputs"] = [cause["inputs"][0] | {"dtype": EVIL}]
    run = incident(
        cause=cause, exit_code=1, message=EVIL, advice=EVIL, code=EVIL, name=EVIL, action=EVIL,
        evidence={"headline": EVIL, "diff": f"@@ {EVIL} @@\n-{EVIL}\n+{EVIL}"},
        meta={"script": EVIL, "command": [EVIL, f"--name={EVIL}"], "holdfast": EVIL},
    )  # fmt: skip
    data = {"type": EVIL, "message": EVIL, "file": EVIL, "line": 3, "what": EVIL, "why": EVIL}
    data |= {"where": EVIL, "error": EVIL, "cls": EVIL, "how": EVIL, "torch": EVIL, "device": EVIL}
    events = [
        make_event(kind, 0, 3, **data)
        for kind in ("exception", "not_covered", "holdfast_error", "optimizer", "backed_off")
    ]
    layers = make_layers(range(404, 421), [EVIL, "b"], {412: [0, 1]})
    found = incident_finding(cause=None, code="NUM009", evidence={"layer": EVIL, "samples": [EVIL]})
    rows = make_rows(600, grad_bad={412: 2}, grad_layer={412: 0})
    tables = {"layers0": layers, "updates0": layers}
    add_lane(run, rows, lane="r0-p9", tables=tables, events=events, findings=[found])
    page = Page(report_html(run))
    assert len(page.named("script")) == len(page.named("style")) == 1
    assert not page.named("img")
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        assert not set(attributes) & {"src", "action", "srcdoc"}
        assert (attributes.get("href") or "#").startswith("#")
    assert page.text.count("<script>alert(1)</script>") > 20


def test_invisible_characters_are_named(incident):
    text = report_html(incident(message="a\x00b\u202ec\x1b[31m\ud800"))
    assert "a⟨U+0000⟩b⟨U+202E⟩c⟨U+001B⟩[31m⟨U+D800⟩" in text
    text.encode()


def test_nothing_is_loaded_and_only_our_script_may_run(incident):
    text = report_html(incident())
    page = Page(text)
    (policy,) = [m["content"] or "" for m in page.named("meta") if "http-equiv" in m]
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    assert not re.findall(r"""https?://(?!www\.w3\.org/2000/svg)|url\(|@import""", text)


def test_every_picture_has_a_title_and_words(incident):
    text = report_html(incident())
    page = Page(text)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    pictures = page.named("svg", "frame")
    assert len(pictures) == 11
    for picture in pictures:
        assert picture["role"] == "img"
        if "aria-label" not in picture:
            assert {picture["aria-labelledby"], picture["aria-describedby"]} <= set(ids)
    (layers,) = [p["aria-label"] or "" for p in pictures if "aria-label" in p]
    assert layers.startswith("Gradient norm by layer. All 8 layers, in the order of the model")
    for svg in page.named("svg"):
        assert svg.get("class") in ("frame", "plot", "cells") or svg["aria-hidden"] == "true"
    for header in re.findall(r"<th[^>]*>(.*?)</th>", text):
        assert re.sub(r"<[^>]*>", "", header), "a column or row without a name"
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def lane_of(rows, *, lane="r0", **given) -> LaneData:
    base = {"tables": {}, "events": [], "findings": [], "batches": []}
    return LaneData(lane=lane, rank=int(lane[1:]), steps=rows, **(base | given))


def record_of(run: Run, *lanes: LaneData) -> RunRecord:
    return RunRecord(summary=summarize_lanes(run, lanes), lanes=lanes)


@pytest.mark.slow
def test_the_page_stays_small_whatever_the_run(tmp_path, make_rows, make_layers, incident_finding):
    rows = make_rows(200_000, loss={150_003: 77.0, 9: NAN}, loss_bad={9: 1})
    rows["grad_norm"] *= np.exp(np.random.default_rng(0).standard_normal(len(rows)))
    rows["skipped"][::3] = 1
    names = [f"model.layers.{i}.{'x' * 60}" for i in range(3000)]
    layers = make_layers([*range(0, 200_000, 1000), *range(404, 421)], names, {412: range(3000)})
    layers = layers[np.argsort(layers["step"])]
    findings = [
        incident_finding(
            code=f"NUM{i % 40:03d}", evidence={"layer": f"l{i}"}, message="long " * 999
        )
        for i in range(500)
    ]
    tables = {"layers0": layers, "updates0": layers}
    lanes = [lane_of(rows, tables=tables, findings=findings)]
    lanes += [lane_of(rows[:20_000], lane=f"r{rank}") for rank in range(1, 32)]
    run = Run.create(tmp_path / "run", {"command": ["x" * 100_000], "status": "finished"})
    run.update_meta(status="finished", exit_code=0)
    text = report_html(record_of(run, *lanes))
    assert len(text.encode()) < 2_000_000
    page = Page(text)
    assert "highest 77 at step 150,003" in page.text
    assert "2,968 layers of 3,000 not shown" in page.text
    assert "24 further processes without plots here" in page.text
    assert "more findings of this kind" in page.text


def test_thinned_rows_of_a_long_run_are_reported(tmp_path, make_rows, make_event):
    rows = make_rows(1000)
    rows["step"] *= 1000
    end = make_event("end", 0, 0, steps=1_000_000, skipped=12)
    text = report_html(record_of(Run.create(tmp_path / "run", {}), lane_of(rows, events=[end])))
    assert "1,000 rows kept of a long run" in Page(text).text


def test_an_empty_run(tmp_path):
    page = Page(report_html(Run.create(tmp_path / "run", {})))
    assert "No step was recorded." in page.text and "no steps" in page.text
    assert not page.named("svg", "frame")


@pytest.mark.parametrize("count", [1, 2])
def test_a_run_of_a_step_or_two(make_run, make_rows, count):
    page = Page(report_html(make_run(make_rows(count))))
    assert len(page.named("svg", "frame")) == 4
    assert page.named("circle", "s0")


def test_a_run_without_losses(make_run, make_rows):
    page = Page(report_html(make_run(make_rows(30, loss=NAN))))
    assert ">Loss" not in page.text and len(page.named("svg", "frame")) == 3


def test_a_run_that_was_never_finite(make_run, make_rows):
    rows = make_rows(30, loss=NAN, loss_bad=1, grad_bad=8, grad_norm=NAN, grad_max=INF, skipped=1)
    text = report_html(make_run(rows))
    assert verdict(text) == ("bad", "Not training")
    assert "The training does not go on: 30 of 30 steps skipped" in Page(text).text


def test_columns_that_were_never_recorded(make_run, make_rows):
    page = Page(report_html(make_run(make_rows(5)[["step", "time", "skipped"]])))
    assert "No loss, gradient, time or memory was recorded." in page.text


def test_infinite_and_absurd_numbers(make_run, make_rows):
    rows = make_rows(50, loss=np.resize([1e38, -3e38, INF, 1e-45, 0], 50), grad_norm=0, rss=INF,
                     mem_allocated=-1, forward=NAN, backward=INF)  # fmt: skip
    rows["step"] = np.arange(50)[::-1] * 10**15
    Page(report_html(make_run(rows)))


@pytest.mark.parametrize(
    "cause",
    [
        {}, {"excerpt": "text", "inputs": 5, "output": [], "line": "x", "sample": {}},
        {"excerpt": [1, [2], ["a", 3], [4, "ok"]], "inputs": [1, {"shape": ["a"]}], "row": None},
        {"inputs": [{"min": "NaN", "max": "Infinity", "mean": None, "zeros": 1.5}] * 30},
        {"code": "x\n" * 1000, "start": 10**12, "excerpt": [[i, "y" * 9999] for i in range(999)]},
    ],
)  # fmt: skip
def test_a_cause_that_makes_no_sense_is_reported_as_far_as_it_goes(incident, cause):
    text = report_html(incident(cause=cause))
    assert len(text) < 500_000
    assert "Log of 0" in Page(text).text


def damage_steps(path):
    next(path.glob("steps.r1*")).write_bytes(b"\0" * 9000)


def damage_layers(path):
    next(path.glob("layers0.r1*")).write_bytes(b"junk")


def damage_all(path):
    for file in path.glob("*.bin"):
        file.write_bytes(b"junk\n")


@pytest.mark.parametrize("damage", [damage_steps, damage_layers, damage_all])
def test_of_a_damaged_run_what_can_be_read(incident, damage):
    run = incident()
    damage(run.path)
    text = report_html(Run.open(run.path))
    reported = Page(text).text
    assert "Part of the recording is damaged; 1 finding in" in reported
    assert "is not a table of holdfast" in reported and "src/project/model.py:88" in reported


def test_lines_that_make_no_sense_are_counted(incident):
    run = incident()
    with run.stream_path("events", "r0").open("a") as file:
        file.write('garbage\n{"kind": 3}\n{}\n')
    assert "r0: 600 steps, 1 step skipped, 3 lines unreadable" in Page(report_html(run)).text


def test_the_page_is_a_function_of_the_run(incident, monkeypatch):
    run = incident()
    monkeypatch.setenv("SOME_SECRET", "swordfish")
    first = report_html(run)
    assert first == report_html(read_record(Run.open(run.path)))
    assert "swordfish" not in first and "--hf-token ***" in first


def test_the_page_goes_into_the_run_folder_in_one_step(incident):
    run = incident()
    path = write_page(run)
    assert path == run.path / "report.html" == run.page_path
    assert path.read_text() == report_html(run), "the page does not count itself"
    assert not list(run.path.glob("*.tmp"))


def test_a_page_does_not_keep_an_empty_run_alive(tmp_path):
    run = Run.create(tmp_path / "run", {})
    write_page(run)
    assert run.remove_if_empty() and not run.path.exists()


def test_reading_and_telling_needs_neither_torch_nor_a_plotting_library():
    code = (
        "import sys, holdfast.report\n"
        "print(*{'torch', 'matplotlib', 'rich', 'jinja2'} & {n.split('.')[0] for n in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
