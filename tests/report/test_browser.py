"""The page in a real browser: it is drawn, its script runs, and it fits a phone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.report import write_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium"),
]


def browse(folder: Path, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    # Without rights to make namespaces, as root in a container, its sandbox cannot start.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return subprocess.run(
        [BROWSER, "--headless=new", "--disable-gpu", *sandbox, "--enable-logging=stderr",
         f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip


def complaints(seen: subprocess.CompletedProcess[str]) -> list[str]:
    """What a page said in the console: uncaught errors, and what its policy refused."""
    return re.findall(r"CONSOLE.*", seen.stderr)


def test_the_page_is_drawn_and_its_script_runs(incident, tmp_path):
    seen = browse(tmp_path, write_page(incident()), "--dump-dom")
    assert not complaints(seen)
    assert seen.stdout.count('<svg class="frame"') == 11
    assert seen.stdout.count('class="tip"') == 10, "the script has prepared every chart"
    assert 'aria-label="Loss. Arrow keys show values."' in seen.stdout
    assert "Copy new code" in seen.stdout and "Copy diff" in seen.stdout
    assert len(re.findall(r'<path d="M[^"]{50,}"', seen.stdout)) > 9


def test_what_the_policy_refuses_is_seen(incident, tmp_path):
    path = write_page(incident())
    bad = path.with_name("bad.html")
    bad.write_text(path.read_text().replace("</body>", "<script>document.x = 1</script></body>"))
    assert "Content Security Policy" in " ".join(complaints(browse(tmp_path, bad, "--dump-dom")))


@pytest.mark.parametrize("width", [320, 390, 1100])
def test_the_page_never_scrolls_sideways(incident, incident_cause, tmp_path, width):
    cause = incident_cause | {"file": f"/srv/{'long/' * 40}model.py", "module": "m." * 80}
    page = write_page(incident(cause=cause, message="word " * 40 + "x" * 300))
    frame = tmp_path / "frame.html"
    frame.write_text(f"""<!doctype html><iframe id="f" src="{page.as_uri()}"
        style="border: 0; width: {width}px; height: 800px"></iframe><p id="said"></p><script>
        f.onload = () => {{
            const e = f.contentDocument.documentElement;
            said.textContent = `${{e.clientWidth}} ${{e.scrollWidth}}`;
        }}</script>""")
    seen = browse(tmp_path, frame, "--dump-dom", "--allow-file-access-from-files",
                  "--hide-scrollbars", "--virtual-time-budget=5000")  # fmt: skip
    (sizes,) = re.findall(r'<p id="said">(\d+ \d+)</p>', seen.stdout)
    assert sizes == f"{width} {width}"


@pytest.mark.parametrize("width", [320, 390])
def test_the_table_of_ranks_fits_a_phone(incident, tmp_path, width):
    """Ranks stand side by side there, and what is known of them one below another."""
    page = write_page(incident())
    frame = tmp_path / "frame.html"
    frame.write_text(f"""<!doctype html><iframe id="f" src="{page.as_uri()}"
        style="border: 0; width: {width}px; height: 800px"></iframe><p id="said"></p><script>
        f.onload = () => {{
            const box = f.contentDocument.querySelector("#ranks ~ .scroll");
            const rows = [...box.querySelectorAll("tr")].map(row => [...row.children].map(
                cell => cell.getBoundingClientRect().top));
            const even = rows.every(tops => String(tops) === String(rows[0]));
            said.textContent = `${{box.scrollWidth - box.clientWidth}} ${{even}} ${{rows.length}}`;
        }}</script>""")
    seen = browse(tmp_path, frame, "--dump-dom", "--allow-file-access-from-files",
                  "--hide-scrollbars", "--virtual-time-budget=5000")  # fmt: skip
    assert re.findall(r'<p id="said">(.*)</p>', seen.stdout) == ["0 true 3"]


def test_the_bad_result_and_whole_words_are_seen_on_a_phone(incident, incident_cause, tmp_path):
    """Three inputs with long names leave no room for a fifth column; code is pushed, not broken."""
    inputs = [incident_cause["inputs"][0]] * 3
    page = write_page(incident(cause={**incident_cause, "inputs": inputs}))
    frame = tmp_path / "frame.html"
    frame.write_text(f"""<!doctype html><iframe id="f" src="{page.as_uri()}"
        style="border: 0; width: 400px; height: 800px"></iframe><p id="said"></p><script>
        f.onload = () => {{
            const d = f.contentDocument, hot = d.querySelector(".finding .stats .hot");
            const right = hot.getBoundingClientRect().right;
            const pre = d.querySelector(".finding .excerpt");
            const heights = [...pre.querySelectorAll("code > *")].map(e => e.offsetHeight);
            const even = Math.max(...heights) === Math.min(...heights);
            said.textContent = `${{right < 400}} ${{even}}`;
        }}</script>""")
    seen = browse(tmp_path, frame, "--dump-dom", "--allow-file-access-from-files",
                  "--hide-scrollbars", "--virtual-time-budget=5000")  # fmt: skip
    assert re.findall(r'<p id="said">(.*)</p>', seen.stdout) == ["true true"]


def test_it_prints(incident, tmp_path):
    paper = tmp_path / "paper.pdf"
    browse(tmp_path, write_page(incident()), f"--print-to-pdf={paper}")
    pages = len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes()))
    assert paper.read_bytes().startswith(b"%PDF") and 3 <= pages <= 12
