from __future__ import annotations

import os
import sys
import time

import pytest

from holdfast.redaction import (
    hide_known_in,
    is_secret,
    redact_code,
    redact_command,
    redact_text,
    same_command,
)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--token=abc"], ["--token=***"]),
        (["--password", "hunter2", "--lr", "1"], ["--password", "***", "--lr", "1"]),
        (["-password", "x"], ["-password", "***"]),
        (["key=abc", "api_key=abc", "a.b.secret=x"], ["key=***", "api_key=***", "a.b.secret=***"]),
        (["--hfToken", "abc", "--APIKey=x"], ["--hfToken", "***", "--APIKey=***"]),
        (["--wandb_api_key", "abc"], ["--wandb_api_key", "***"]),
        (
            ["https://host/rows?api_key=abc&split=train"],
            ["https://host/rows?api_key=***&split=train"],
        ),
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


@pytest.mark.parametrize(
    "name",
    [
        *(
            "password",
            "passwords",
            "DB_PASSWORD_OLD",
            "passwd",
            "API_KEY_PROD",
            "apiKey",
            "APIKeys",
        ),
        *("creds", "aws_credentials", "client_secret", "SECRET_KEY_BASE", "tokens", "hf_token_2"),
        *("access_token", "auth", "private_key", "smtp_pass", "Authorization", "token", "key"),
    ],
)
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "tokenizer",
            "n_tokens",
            "max_tokens",
            "num_new_tokens",
            "tokens_per_second",
            "token_ids",
        ),
        *("pad_token", "cls_token", "special_tokens", "key_padding_mask", "key_dim", "num_keys"),
        *(
            "keyboard",
            "monkey",
            "author",
            "authors",
            "use_auth",
            "forward_pass",
            "passes",
            "bypass",
        ),
        *("sort_key", "state_key", "path", "pattern", "patience", "secretary", "n_pass"),
    ],
)
def test_names_of_other_things(name):
    assert not is_secret(name)


@pytest.mark.parametrize(
    "text",
    [
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8 of main",
        "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "run 550e8400-e29b-41d4-a716-446655440000",
        "/data/imagenet-1k/train/n01440764/n01440764_10026.JPEG",
        "C:\\Users\\me\\runs\\2026-11-15-1204-train",
        "no such file: '/home/me/key/config.yaml'",
        "HuggingFaceFW/fineweb-edu, meta-llama/Llama-3.1-8B-Instruct, cifar10, c4/en.noblocklist",
        "BertForSequenceClassification has no attribute layer1_conv2d_bn3_relu4_Block5x7",
        "layers.11.attention.output.dense.weight: torch.Size([768, 768])",
        "tensor([[0.1234, -1.5e-05], [nan, inf]], device='cuda:0', dtype=torch.float32)",
        "mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)",
        "KeyError: 'token'",
        'missing key: layer1.weight; unexpected key(s) in state_dict: "fc.weight", "fc.bias"',
        "n_tokens=512, max_tokens=4096, pad_token='[PAD]', key_padding_mask=None",
        "for key, value in batch.items(): token = tokenizer(value, key=len)",
        "password = getpass.getpass()",
        "api_key = os.environ['OPENAI_API_KEY']",
        "http://localhost:8080/v1/models?page=2&limit=10#top",
        "git@github.com:pytorch/pytorch.git",
        "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/nn/modules/linear.py#L134",
        "ValueError: too many values to unpack (expected 2)",
        "2026-11-15T12:04:33.123+00:00 step 1,600: loss 0.5898 -> 0.4293",
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 79.15 GiB",
        "lr=3e-4 betas=(0.9, 0.999) weight_decay=0.01 seed=1234567890",
        "labels ['cat', 'dog'], counts {'cat': 12, 'dog': 7}",
        "wandb run 3f8kq2zl, slurm job 4815162342, node gpu-a100-07, port 29500",
        "s3://bucket/data/shard-000123.tar, gs://models/bert-base-uncased",
        "sha1 of abcdefghijklmnopqrstuvwxyzabcdefghij",
        "AttributeError: 'NoneType' object has no attribute 'clamp'",
        "tmp8x_2kq1p/checkpoint-1200/optimizer.pt",
        "0x7f3a2b4c5d6e at thread 140213",
        "ghost_batch_norm, hfile, skip-connection, sk-learn, xoxo",
        "x@y is a matrix product: (a@b)@c, a: int, b: str",
        "authorization is needed",
        "a basic model, a bearer of news",
        "[rank0]:[W1119 12:00:00.123456789 ProcessGroupNCCL.cpp:1496] Warning",
        "RandomResizedCrop224Bilinear, EfficientNetV2RwT, ViTB16Siglip512",
        "torch==2.13.0+cu130, numpy>=2.4, Python 3.11.7 (main, May  9 2026)",
        "Ran 40 of 40; 3 passes over 1,281,167 samples at 2,345.6 samples/s",
        "def forward(self, key: Tensor, token: int = 0) -> Tensor:",
    ],
)
def test_harmless_things_stay_readable(text):
    assert redact_text(text) == text
    assert redact_code(text) == text
    assert hide_known_in({"a": [text]}) == {"a": [text]}
    assert redact_command(["train.py", "--note", text])[2] == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("curl -H 'Authorization: Basic dXNlcjpwYXNz'", "dXNlcjpwYXNz"),
        ("headers {'X-Api-Key': 'abc123'}", "abc123"),
        ("host=db user=me password=hunter2 port=5432", "hunter2"),
        ("Server=db;Password=hunter2;Encrypt=yes", "hunter2"),
        ('{"lr": 0.1, "client_secret": "x y z"}', "x y z"),
        ('{\\"api_key\\": \\"abc123\\"}', "abc123"),
        ("https://ghost7@host/repo.git", "ghost7"),
        ("https://me:p@ss:w0rd@host/repo.git", "ss:w0rd"),
        ("me:hunter2@db.example.com", "hunter2"),
        ("GET /v1?page=2&access_token=abc123&x=1", "abc123"),
        ("token=abc123 was refused", "abc123"),
        ("PASSWORD: hunter2", "hunter2"),
        ("password=123456", "123456"),
        ("got qT7xK15bH3kQ9wLr2Vn8Yd5 back", "qT7xK15bH3kQ9"),
        ("npm_" + "a1B2" * 9, "a1B2a1B2"),
        ("ASIA" + "ABCDEFGH12345678", "ABCDEFGH"),
        ("sk_live_" + "a1" * 12, "a1a1"),
        ("https://hooks.slack.com/services/T00/B00/XXyyZZ", "XXyyZZ"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3", "eyJzdWIi"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----", "MIIEow"),
    ],
)
def test_secrets_in_texts(text, secret):
    assert secret not in redact_text(text)
    assert secret not in "".join(redact_command(["--note", text]))


def test_a_value_of_the_environment_is_secret_wherever_it_stands(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "plain words")
    monkeypatch.setenv("DATABASE_URL", "postgres://me:hunter2@db/x")
    monkeypatch.setenv("HOME_TOKEN", os.path.dirname(__file__))
    text = f"plain words, hunter2, {os.path.dirname(__file__)}"
    assert redact_text(text) == f"***, ***, {os.path.dirname(__file__)}"
    assert hide_known_in([text, {"a": text}, 3]) == [redact_text(text), {"a": redact_text(text)}, 3]


def test_a_value_of_a_secret_option_is_secret_wherever_it_stands(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--password", "plain words", "--token=abcdefgh"])
    assert redact_text("plain words, abcdefgh") == "***, ***"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["-p", "hunter2", "-p", "0.1"], ["-p", "***", "-p", "0.1"]),
        (["-u", "me:hunter2", "-u", "me"], ["-u", "***", "-u", "me"]),
        (["--token", "-Xk29", "-v"], ["--token", "***", "-v"]),
        (["--token", "--epochs", "3"], ["--token", "--epochs", "3"]),
        (["-Dpassword=x", "+db.password=x"], ["-Dpassword=***", "+db.password=***"]),
        (["--tokens", "512", "--key", "3"], ["--tokens", "512", "--key", "3"]),
    ],
)
def test_options_of_other_programs(given, shown):
    assert redact_command(given) == shown


def test_a_hidden_word_fits_any_other():
    then = redact_command(
        ["train.py", "--token", "old", "--url", "https://a:b@host/x", "--lr", "1"]
    )
    now = ["train.py", "--token", "new", "--url", "https://c:d@host/x", "--lr", "1"]
    assert same_command(then, now)
    assert not same_command(then, [*now[:-1], "2"])
    assert not same_command(then, now[:-1])


@pytest.mark.parametrize(
    "part", ["a-", "a", "a=b", "-", "a:", "://", '"', 'token="', "key:", "Ab1", "@"]
)
def test_a_long_text_takes_no_time(part):
    began = time.process_time()
    redact_text(part * 30_000)
    assert time.process_time() - began < 2
