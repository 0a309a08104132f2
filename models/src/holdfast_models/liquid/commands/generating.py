"""The verb that writes text: generate."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from holdfast import HoldfastError

from ...answers import Verb, named_run, reported_as, whole
from .runs import placed

if TYPE_CHECKING:
    from ..data.tokenizers import Tokenizer


def add_generate_verb(verb: Verb) -> None:
    """Describe it."""
    one = verb("generate", "Write on from prompts, token by token.", _generate, _EXAMPLES)
    one.add_argument(
        "run", metavar="RUN", type=named_run, nargs="?", help="run folder or checkpoint"
    )
    one.add_argument("--model-path", metavar="RUN", type=named_run, help="the same as RUN")
    one.add_argument("--prompt", metavar="TEXT", action="append", default=[], help="repeatable")
    one.add_argument("--input-file", metavar="FILE", help="one prompt a line")
    one.add_argument("--output-file", metavar="FILE", help="one line of JSON for each prompt")
    one.add_argument(
        "--max-length", metavar="N", type=whole(1), default=100, help="tokens to write"
    )
    one.add_argument("--temperature", metavar="X", type=float, default=1.0, help="0: the likeliest")
    one.add_argument("--top-k", metavar="N", type=int, help="draw from so many tokens")
    one.add_argument("--top-p", metavar="P", type=float, help="draw from this share")
    one.add_argument("--repetition-penalty", metavar="X", type=float, default=1.0, help="above 1")
    one.add_argument("--seed", metavar="N", type=int, default=0, help="of the first prompt")
    one.add_argument("--tokenizer", metavar="NAME", help="checked against that of the run")
    one.add_argument("--batch-size", metavar="N", type=whole(1), default=8, help="prompts at once")
    one.add_argument("--device", metavar="NAME", default="cpu", help="cpu, cuda (default: cpu)")


_EXAMPLES = """\
  holdfast liquid generate RUN --prompt "import " --temperature 0.8 --top-p 0.95 --seed 3
  holdfast liquid generate --model-path RUN --input-file prompts.txt --output-file texts.jsonl
Without a prompt a document is begun. Prompt number n, counted from 0, is drawn with seed + n."""


def _generate(args: argparse.Namespace) -> int:
    from ..generation import Sampling, stream
    from ..loading import load_run

    if (args.run is None) == (args.model_path is None):
        raise HoldfastError("give one run: holdfast liquid generate RUN, or --model-path RUN")
    how = Sampling(
        temperature=args.temperature, top_k=args.top_k, top_p=args.top_p,
        penalty=args.repetition_penalty, seed=args.seed,
    )  # fmt: skip
    prompts = _prompts(args)
    loaded = load_run(args.run or args.model_path)
    if loaded.tokenizer is None:
        raise HoldfastError(f"{loaded.run} learned {loaded.settings.task}; text needs a run of llm")
    _check_tokenizer(args.tokenizer, loaded.tokenizer)
    net = placed(loaded.net, args.device)
    if len(prompts) == 1 and args.format == "text" and args.output_file is None:
        print(prompts[0], end="", flush=True)
        for _, piece in stream(net, loaded.tokenizer, prompts, args.max_length, how):
            print(piece, end="", flush=True)
        print()
        return 0
    plain = args.output_file is None and args.format == "text"
    with reported_as(f"--output-file {args.output_file}"), _opened(args.output_file) as file:
        for first in range(0, len(prompts), args.batch_size):
            some = prompts[first : first + args.batch_size]
            drawn = dataclasses.replace(how, seed=how.seed + first)
            texts = ["" for _ in some]
            for row, piece in stream(net, loaded.tokenizer, some, args.max_length, drawn):
                texts[row] += piece
            for prompt, text in zip(some, texts, strict=True):
                line = json.dumps({"prompt": prompt, "text": text}, ensure_ascii=False)
                print(f"{prompt}{text}\n" if plain else line, file=file, flush=True)
    return 0


def _opened(path: str | None) -> contextlib.AbstractContextManager[TextIO]:
    return contextlib.nullcontext(sys.stdout) if path is None else open(path, "w", encoding="utf-8")


def _prompts(args: argparse.Namespace) -> list[str]:
    found = list(args.prompt)
    if args.input_file is not None:
        with reported_as(f"--input-file {args.input_file}"):
            lines = Path(args.input_file).read_text(encoding="utf-8").splitlines()
        if not lines:
            raise HoldfastError(f"--input-file {args.input_file}: has no line; write one prompt")
        found += lines
    return found or [""]


def _check_tokenizer(name: str | None, own: Tokenizer) -> None:
    """Another one than that of the run would give it tokens that mean something else."""
    from ..data.tokenizers import load_tokenizer

    if name is None or name == own.name:
        return
    if not Path(name).is_file() or load_tokenizer(name).hash != own.hash:
        raise HoldfastError(
            f"--tokenizer {name}: the run has {own.name} with {own.size} tokens; remove the flag"
        )
