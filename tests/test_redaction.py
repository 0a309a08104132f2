from __future__ import annotations

import pytest

from holdfast.redaction import redact_command, redact_text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--token=abc"], ["--token=***"]),
        (["--password", "hunter2", "--lr", "1"], ["--password", "***", "--lr", "1"]),
        (["-password", "x"], ["-password", "***"]),
        (["key=abc", "api_key=abc", "a.b.secret=x"], ["key=***", "api_key=***", "a.b.secret=***"]),
        (["--hfToken", "abc", "--APIKey=x"], ["--hfToken", "***", "--APIKey=***"]),
        (["--wandb_api_key", "abc"], ["--wandb_api_key", "***"]),
        (["--token=a=b=c"], ["--token=***"]),
        (["--use-auth", "--epochs", "3"], ["--use-auth", "--epochs", "3"]),
        (["--token="], ["--token="]),
        (["--token"], ["--token"]),
    ],
)
def test_secret_values_are_hidden(given, shown):
    assert redact_command(given) == shown


@pytest.mark.parametrize(
    "command",
    [
        ["train.py", "--lr=3e-4", "--tokenizer", "gpt2", "--max-tokens", "512"],
        ["--key-dim", "64", "--num_keys=8", "--monkey", "x", "--author", "me"],
        ["token", "value"],
        [],
    ],
)
def test_ordinary_arguments_stay(command):
    assert redact_command(command) == command


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("login with hf_" + "a1" * 12 + " failed", "a1a1"),
        ("postgres://me:pa55word@host/db", "pa55word"),
        ("Authorization: Bearer abcdef.123456", "abcdef"),
        ("AKIA" + "ABCDEFGH12345678", "ABCDEFGH"),
    ],
)
def test_values_that_give_themselves_away(text, secret):
    assert secret not in redact_text(text)
    assert secret not in "".join(redact_command([text]))


def test_ordinary_text_stays():
    text = (
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6) at http://x.y:80/z"
    )
    assert redact_text(text) == text
