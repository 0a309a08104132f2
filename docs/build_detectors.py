"""Write docs/detectors/: one page for each detector, from its class.

python docs/build_detectors.py      or: make docs
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from pathlib import Path

from holdfast.detectors import ALL, Detector, document
from holdfast.policy import Policy

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "detectors"
COMMAND = "python docs/build_detectors.py"
_ATTRIBUTE = re.compile(r"^( *)(\w+): (.+(?:\n\1 +.+)*)", re.M)


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
        "`detectors.ignore`); thresholds are defaults in the code.",
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
    options = detector.Options()
    fields = dataclasses.fields(options)
    if not fields:
        return []
    classes = [cls for cls in type(options).__mro__ if cls not in (Detector.Options, object)]
    meanings: dict[str, str] = {}
    for cls in reversed(classes):
        meanings |= _meanings(cls)
    evidence = [
        inspect.cleandoc(cls.__doc__ or "").partition("\n\nAttributes:")[0] for cls in classes
    ]
    rows = [
        f"| `{field.name}` | {getattr(options, field.name):,.10g} | "
        f"{_plain(meanings.get(field.name, ''))} |"
        for field in fields
    ]
    table = "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])
    return ["## Thresholds", *map(_plain, dict.fromkeys(evidence)), table]


def _meanings(options: type) -> dict[str, str]:
    """What a class says about its fields: its `Attributes:`, or the text below each field."""
    documented = inspect.cleandoc(options.__doc__ or "").partition("\nAttributes:\n")[2]
    found = {name: " ".join(said.split()) for _, name, said in _ATTRIBUTE.findall(documented)}
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(options))).body
    assert isinstance(tree, ast.ClassDef)
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(said))):
                    found[field.target.id] = " ".join(said.split())
    return found


def _plain(text: str) -> str:
    return text.replace("``", "`")


def _joined(*parts: str) -> str:
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write the pages, and remove those of detectors that are gone."""
    FOLDER.mkdir(exist_ok=True)
    built = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in built:
            path.unlink()
    for name, text in built.items():
        (FOLDER / name).write_text(text)
    print(f"{len(built)} pages in {FOLDER.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
