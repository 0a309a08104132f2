"""Write docs/detectors/: one page for each detector, from its class.

python docs/build_detectors.py      or: make docs
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from holdfast.detectors import ALL, Detector, document
from holdfast.detectors.options import describe_options, where_from
from holdfast.policy import Policy

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "detectors"
COMMAND = "python docs/build_detectors.py"


def pages() -> dict[str, str]:
    """Every page by its file name."""
    named = {f"{detector.code}.md": page(detector) for detector in ALL}
    return {"README.md": overview(), **named}


def overview() -> str:
    """The list of all detectors."""
    rows: list[str] = []
    for detector in sorted(ALL, key=lambda detector: detector.code):
        code, summary = detector.code, _plain(document(detector).summary)
        rows.append(
            f"| [{code}]({code}.md) | {detector.name} | {detector.severity.word} | {summary} |"
        )
    return _joined(
        "# Detectors",
        f"Built by `{COMMAND}` from the classes in `src/holdfast/detectors/`; edit those. "
        "`holdfast explain CODE`\nprints the same text in a terminal, without the fields of the "
        "evidence. Settings choose detectors by code (`detectors.select`,\n"
        "`detectors.ignore`) and set thresholds (`detectors.CODE.OPTION`).",
        "\n".join(["| code | name | severity | what is wrong |", "|---|---|---|---|", *rows]),
    )


def page(detector: type[Detector]) -> str:
    """Everything about one detector."""
    text = document(detector)
    source = Path(inspect.getfile(detector)).relative_to(ROOT)
    facts = {
        "severity": detector.severity_words() + (", preview" if detector.preview else ""),
        "default policy": Policy().rule(detector.code).text,
        "found within": f"{detector.within} step{'s' * (detector.within > 1)} at most",
        "needs": ", ".join(f"`{column}`" for column in detector.needs),
        "since": f"holdfast {detector.since}",
        "code": f"[{source}](../../{source})",
    }
    head = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())]
    sections = [f"## {title}\n\n{_plain(body)}" for title, body in text.sections.items()]
    parts = [_plain(text.summary), "\n".join(head), *sections, *_thresholds(detector)]
    return _joined(f"# {detector.code} {detector.name}", *parts)


def _thresholds(detector: type[Detector]) -> list[str]:
    """The options with their defaults, and what their class says about where they come from."""
    described = describe_options(detector)
    if not described:
        return []
    rows = [
        f"| `{option.name}` | {option.default:,.10g} | {_plain(option.meaning)} |"
        for option in described
    ]
    table = "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])
    return ["## Thresholds", *map(_plain, where_from(detector)), table]


def _plain(text: str) -> str:
    return text.replace("``", "`")


def _joined(*parts: str) -> str:
    return "\n\n".join(parts) + "\n"


def main(folder: Path = FOLDER) -> None:
    """Write the pages, and remove those of detectors that are gone."""
    folder.mkdir(exist_ok=True)
    built = pages()
    for path in folder.glob("*.md"):
        if path.name not in built:
            path.unlink()
    for name, text in built.items():
        (folder / name).write_text(text)
    print(f"{len(built)} pages in {folder}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
