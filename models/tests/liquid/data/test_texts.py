"""Texts, tokenizers, token files and windows."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from holdfast import HoldfastError
from holdfast.training import collate
from holdfast_models.liquid.data import tokenizers
from holdfast_models.liquid.data.baselines import unigram
from holdfast_models.liquid.data.corpora import CORPORA, Corpus, Document, corpus, joined
from holdfast_models.liquid.data.token_files import split, token_files
from holdfast_models.liquid.data.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    RandomTokenizer,
    Tokenizer,
    load_tokenizer,
    make_tokenizer,
)
from holdfast_models.liquid.data.windows import TextData, Windows, text_data

TEXT = "Grüße, 世界! <end> \n\tdef f(x): return x\x00 ()[]\r\n"


def numbered(count: int = 40, lines: int = 20) -> Corpus:
    """Documents in which every line says where it is from."""
    documents = [
        Document(f"{n}", "".join(f"document {n} line {line}\n" for line in range(lines)))
        for n in range(count)
    ]
    return Corpus("numbered", tuple(documents), "")


def test_every_corpus_is_found_bounded_and_the_same_again() -> None:
    for name in CORPORA:
        found = corpus(name, most_bytes=60_000)
        size = sum(len(text.encode()) for _, text in found.documents)
        assert 1_000 < size <= 60_000 and len(found.documents) > 3, found.found
        assert found.found.startswith(f"{name}: {len(found.documents)} documents, ")
        if name != "docs":  # which takes a walk through all packages
            assert found.hash == corpus(name, most_bytes=60_000).hash
        assert len({text for _, text in found.documents}) == len(found.documents)
    assert corpus("topics", most_bytes=30_000).found.endswith(" over the limit")


def test_generated_lines_are_right() -> None:
    for _, text in corpus("arithmetic", most_bytes=5_000).documents:
        for line in text.splitlines():
            left, right = line.split(" = ")
            assert eval(left) == int(right)
    for _, text in corpus("brackets", most_bytes=5_000).documents:
        for word in text.splitlines():
            while "()" in word or "[]" in word or "{}" in word:
                word = word.replace("()", "").replace("[]", "").replace("{}", "")
            assert word == ""
    # A larger corpus begins with the same documents.
    small, large = (corpus("brackets", most_bytes=size) for size in (20_000, 40_000))
    assert small.documents == large.documents[: len(small.documents)]


def test_files_of_a_user_are_read_whole_and_counted(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(500))
    (tmp_path / "one.txt").write_text(text)
    single = corpus(tmp_path / "one.txt")
    assert len(single.documents) == 10 and "in 10 pieces" in single.found
    assert "".join(piece for _, piece in single.documents) == text
    assert all(piece.endswith("\n") for _, piece in single.documents)
    (tmp_path / "empty.md").write_text("\n")
    (tmp_path / "picture.png").write_bytes(b"\xff\xfe")
    folder = corpus(tmp_path)
    assert "1 documents of 3 files; 1 empty; 1 not .md" in folder.found
    both = joined([single, folder])
    assert len(both.documents) == 20 and both.found.count("\n") == 1


def test_bad_texts_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    (tmp_path / "short.txt").write_text("a few words and no more than that\n" * 3)
    (tmp_path / "folder").mkdir()
    for source, why in (
        ("nothing.txt", "neither a file or folder nor a corpus"),
        (tmp_path / "empty.txt", "give a file or folder with text"),
        (tmp_path / "latin.txt", r"latin.txt: not UTF-8 \(byte 2\)"),
        (tmp_path / "folder", "0 documents of 0 files"),
        (tmp_path / "short.txt", r"a window of 64 takes 65; give more text"),
    ):
        with pytest.raises(HoldfastError, match=why) as caught:
            text_data([source], tmp_path / "cache", length=64)
        assert "\n" not in str(caught.value)
    with pytest.raises(HoldfastError, match="name at least one"):
        text_data([], tmp_path, length=64)
    with pytest.raises(HoldfastError, match="none can be held out"):
        split([Document("a", "same"), Document("b", "same")])
    with pytest.raises(HoldfastError, match=r"share of 1\.5"):
        split(numbered().documents, 1.5)
    (tmp_path / "file").write_text("")
    with pytest.raises(HoldfastError, match="folder you can write to"):
        token_files(numbered(), ByteTokenizer(), tmp_path / "file")


@pytest.fixture(scope="module")
def bpe() -> BpeTokenizer:
    pytest.importorskip("tokenizers")
    texts = [text for _, text in corpus("topics", most_bytes=60_000).documents]
    return BpeTokenizer.train(texts, 500)


def made(name: str, bpe: BpeTokenizer) -> Tokenizer:
    return {"byte": ByteTokenizer(), "random": RandomTokenizer(70_000), "bpe": bpe}[name]


@pytest.mark.parametrize("name", ["byte", "random", "bpe"])
def test_tokenizers_are_saved_and_keep_texts(name: str, bpe: BpeTokenizer, tmp_path: Path) -> None:
    one = made(name, bpe)
    one.save(tmp_path / "t.json")
    again = load_tokenizer(tmp_path / "t.json")
    for other in (again, pickle.loads(pickle.dumps(one))):
        assert other.hash == one.hash and other.size == one.size
        assert np.array_equal(other.encode(TEXT), one.encode(TEXT))
    tokens = one.encode(TEXT)
    assert tokens.dtype == np.int64 and tokens.min() >= 0 and tokens.max() < one.words
    assert list(one.specials.values()) == [one.size - 2, one.size - 1]
    if name != "random":
        assert one.decode([*tokens, one.end]) == TEXT
    with pytest.raises(HoldfastError, match=f"which has {one.size}"):
        one.decode([one.size])
    assert len({made(n, bpe).hash for n in ("byte", "random", "bpe")}) == 3


def test_bpe_is_trained_once_and_again_where_damaged(bpe: BpeTokenizer, tmp_path: Path) -> None:
    texts = [text for _, text in corpus("topics", most_bytes=60_000).documents]
    one = make_tokenizer("bpe", vocabulary=500, texts=texts, cache=tmp_path)
    assert one.hash == bpe.hash and one.size == 500
    (path,) = tmp_path.iterdir()
    content, before = path.read_bytes(), path.stat().st_mtime_ns
    make_tokenizer("bpe", vocabulary=500, texts=texts, cache=tmp_path)
    assert path.stat().st_mtime_ns == before
    for damage in (content[:-200], content.replace(b"the", b"teh"), b"[]", b"\xff"):
        path.write_bytes(damage)
        with pytest.raises(HoldfastError, match="or a damaged one"):
            load_tokenizer(path)
        assert make_tokenizer("bpe", vocabulary=500, texts=texts, cache=tmp_path).hash == one.hash
        assert path.read_bytes() == content


def test_bad_tokenizers_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, size, why in (
        ("gpt2", None, "'gpt2' is not on this machine; use byte, bpe"),
        ("byte", 1000, "byte has 258 tokens, not 1000"),
        ("random", None, "give one from 3 to 1,000,000"),
        ("random", 2_000_000, "a vocabulary of 2000000"),
        ("bpe", 100, "give one from 258 to"),
    ):
        with pytest.raises(HoldfastError, match=why):
            make_tokenizer(name, vocabulary=size, texts=["some text"])
    with pytest.raises(HoldfastError, match=r"No such file.*give a saved tokenizer"):
        load_tokenizer(tmp_path / "t.json")
    pytest.importorskip("tokenizers")
    with pytest.raises(HoldfastError, match=r"9 characters give a vocabulary of 2\d\d, 8192 were"):
        make_tokenizer("bpe", texts=["some text"])
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(HoldfastError, match=r'pip install "holdfast-models\[liquid\]"'):
        tokenizers.BpeTokenizer.train(["some text"], 300)


def test_no_document_is_in_both_parts(tmp_path: Path) -> None:
    found = numbered()
    train, held = split(found.documents)
    assert {*train} | {*held} == {*found.documents} and not {*train} & {*held}
    size = sum(len(text) for _, text in found.documents)
    assert 0.05 * size < sum(len(text) for _, text in held) <= 0.1 * size
    # Equal texts stay together, whatever their names and their order.
    twice = [*found.documents, *(Document(f"copy {name}", text) for name, text in found.documents)]
    train, held = split(twice[::-1])
    assert not {text for _, text in train} & {text for _, text in held}
    # One long document and some short ones: only short ones are held out.
    train, held = split([Document("long", "x" * 1000), Document("a", "aa"), Document("b", "b")])
    assert "long" in {name for name, _ in train} and held
    # No window that is validated on occurs in what is trained on.
    parts = token_files(found, ByteTokenizer(), tmp_path)
    trained = parts[0].tokens.astype(np.uint8).tobytes()
    for sample in (Windows(parts[1], 40)[n] for n in range(len(Windows(parts[1], 40)))):
        assert bytes(sample["tokens"].clamp(max=255).tolist()) not in trained


def test_windows_hold_every_token_and_targets_come_one_later(tmp_path: Path) -> None:
    found = numbered()
    train, held = token_files(found, ByteTokenizer(), tmp_path)
    assert (train.part, held.part) == ("train", "validation")
    for file, documents in zip((train, held), split(found.documents), strict=True):
        tokens = [t for _, text in documents for t in (*text.encode(), 256)]
        assert file.tokens.tolist() == tokens and file.dtype == "<u2"
        assert file.text_bytes == len(tokens) - file.documents
        windows = Windows(file, 64)
        assert len(windows) == (len(tokens) - 1) // 64
        for n in range(len(windows)):
            assert windows[n]["tokens"].tolist() == tokens[64 * n : 64 * n + 64]
            assert windows[n]["targets"].tolist() == tokens[64 * n + 1 : 64 * n + 65]
        with pytest.raises(IndexError):
            windows[len(windows)]
    batch = Windows(train, 64).__getitems__([5, 0, 5]).batch
    assert batch["tokens"].dtype == torch.int64 and batch["tokens"].shape == (3, 64)
    assert torch.equal(batch["targets"][1], Windows(train, 64)[0]["targets"])
    assert Windows(train, 64).bytes_per_token == pytest.approx(1, abs=0.01)
    assert token_files(found, RandomTokenizer(70_000), tmp_path)[0].dtype == "<u4"


def test_loader_workers_open_the_file_again(tmp_path: Path) -> None:
    windows = Windows(token_files(numbered(), ByteTokenizer(), tmp_path)[0], 32)
    assert windows[3]["tokens"].shape == (32,)  # mapped now
    assert len(pickle.dumps(windows)) < 2_000
    loader = DataLoader(windows, 8, num_workers=1, collate_fn=collate)
    for found, expected in zip(loader, DataLoader(windows, 8, collate_fn=collate), strict=True):
        assert torch.equal(found["tokens"], expected["tokens"])


def test_the_cache_is_found_again_and_made_again_where_damaged(tmp_path: Path) -> None:
    found, cache = numbered(), tmp_path / "cache"
    whole = token_files(found, ByteTokenizer(), cache)[0].tokens.tolist()
    path, about = sorted(cache.iterdir())
    assert (path.suffix, about.suffix) == (".bin", ".json")
    before, content = path.stat().st_mtime_ns, path.read_bytes()
    token_files(found, ByteTokenizer(), cache)
    assert path.stat().st_mtime_ns == before
    for file, damage in (
        (path, content[:100]),
        (path, content[:50] + b"\x00\x00" + content[52:]),
        (about, b"{"),
        (about, b"[]"),
        (about, json.dumps({"crc32": 0}).encode()),
    ):
        file.write_bytes(damage)
        assert token_files(found, ByteTokenizer(), cache)[0].tokens.tolist() == whole
    path.unlink()
    assert token_files(found, ByteTokenizer(), cache)[0].tokens.tolist() == whole
    with pytest.raises(HoldfastError, match="none can be held out"):
        token_files(numbered(1), ByteTokenizer(), cache)
    assert len(list(cache.iterdir())) == 2  # nothing half written is left
    token_files(found, RandomTokenizer(300), cache)
    token_files(numbered(41), ByteTokenizer(), cache)
    assert len(list(cache.iterdir())) == 6


def test_text_data_is_the_same_again_and_bpe_learns_from_what_is_trained_on(tmp_path: Path) -> None:
    def one(folder: str, **options: object) -> TextData:
        names = ["topics", "arithmetic"]
        return text_data(names, tmp_path / folder, length=32, most_bytes=50_000, **options)  # pyright: ignore[reportArgumentType]

    first, second = one("a"), one("b")
    assert first.tokenizer.hash == second.tokenizer.hash
    for a, b in zip(first[:2], second[:2], strict=True):
        assert np.array_equal(a.file.tokens, b.file.tokens)
    pytest.importorskip("tokenizers")
    texts = [text for _, text in split(first.corpus.documents)[0]]
    trained = BpeTokenizer.train(texts, 400)
    assert one("a", tokenizer="bpe", vocabulary=400).tokenizer.hash == trained.hash


def test_unigram_numbers_are_those_of_a_direct_count(tmp_path: Path) -> None:
    file = token_files(numbered(), ByteTokenizer(), tmp_path)[0]
    counts = Counter(file.tokens.tolist())
    shares = [count / len(file) for count in counts.values()]
    known = unigram(file)
    assert known.entropy == pytest.approx(-sum(p * math.log(p) for p in shares))
    assert known.most_frequent == pytest.approx(counts.most_common(1)[0][1] / len(file))
    assert 0 < known.entropy < math.log(len(counts))


READ = """
import sys, torch
from pathlib import Path
from holdfast_models.liquid.data.token_files import TokenFile
from holdfast_models.liquid.data.windows import Windows

def used():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

count = 25_000_000
file = TokenFile("train", Path(sys.argv[1]), "<u2", 0, count, 258, count, 1)
windows = Windows(file, 128)
windows.__getitems__(range(32))
before = used()
for first in range(0, len(windows) - 64, len(windows) // 150):
    windows.__getitems__(range(first, first + 64))
print(used() - before)
"""


def test_tokens_stay_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 10_000  # kB, of 50,000 on disk
