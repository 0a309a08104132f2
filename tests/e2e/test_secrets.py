"""Nothing secret in a run folder: arguments, environment, URLs, exceptions, frames, checkpoints."""

from __future__ import annotations

import json
import os
import stat

from .conftest import Bench

ARGUMENTS = {
    "--password Zx01pass": "Zx01pass",
    "--api-key=Zx02keyvalue": "Zx02keyvalue",
    "--tokens Zx03tokens": "Zx03tokens",
    "--creds Zx04creds": "Zx04creds",
    "-p Zx05short": "Zx05short",
    "--token -Zx06dash9": "Zx06dash9",
    "db.passwords=Zx07hydra": "Zx07hydra",
    "--header|Authorization: Basic Zx08basicx": "Zx08basicx",
    "--conn|host=db user=me password=Zx09conn": "Zx09conn",
    '--opts|{"api_key": "Zx10json", "lr": 0.1}': "Zx10json",
    "--url https://Zx11token@host/repo": "Zx11token",
    "--url https://me:Zx12urlpw@host/repo": "Zx12urlpw",
    "--url https://host/v1?page=2&api_key=Zx13query": "Zx13query",
    "--note hf_Zx14aaaaaaaaaaaaaaaaaaaa": "Zx14aaaa",
    "--note qT7Zx15bH3kQ9wLr2Vn8Yd5": "Zx15bH3k",
}
ENVIRONMENT = {
    "API_KEY_PROD": "Zx16 environment",
    "WANDB_API_KEY": "a" * 8 + "Zx17" + "b" * 28,
    "DB_URL": "postgres://me:Zx18dburl@host/db",
    "MY_CREDS": "Zx19-creds",
}
READ = {
    "api_key": "Zx22exception",
    "token": "Zx23exception",
    "passwords": "Zx26list",
    "client_secret": "Zx21nested",
}
"""What the script reads from a file of its own."""
SCRIPT = """
import argparse, json, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Client:
    def __init__(self, passwords, tok):
        self.passwords, self.tok = passwords, tok
    def send(self, batch, api_key_prod="Zx20default"):
        creds = {"user": "me", "secret": read["client_secret"]}
        line = f"sent with {self.passwords[0]} and {creds['secret']}"
        if batch > 12:
            raise ConnectionError(
                f"401 from https://host/v1?api_key={read['api_key']}: token={read['token']}, "
                f"'{self.passwords[0]}' of {os.environ['MY_CREDS']} refused; {line}; {self.tok}; "
                f"{args.password} {api_key_prod} {password}")

with open("read.json") as file:
    read = json.load(file)
args = argparse.Namespace(password=read["api_key"][::-1], lr=0.1, name="cifar10")
password = "Zx25literal"
tok = os.environ["WANDB_API_KEY"]
argv = list(sys.argv)
client = Client([read["passwords"]], tok)
url = os.environ["DB_URL"]
said = []
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
data = TensorDataset(torch.randn(80, 4), torch.zeros(80, dtype=torch.long))
loader = DataLoader(data, batch_size=4)
for batch, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    client.send(batch)
"""
SECRETS = [
    *ARGUMENTS.values(),
    *READ.values(),
    READ["api_key"][::-1],
    *("Zx16 env", "Zx17", "Zx18dburl", "Zx19-creds", "Zx20default", "Zx25literal"),
]
OPTIONS = ("--set", "checkpoint.steps=5", "--set", "guard.fused=false")


def test_no_secret_is_in_a_run_folder(bench: Bench):
    (bench.folder / "read.json").write_text(json.dumps(READ))
    words = [w for text in ARGUMENTS for w in (text.split("|") if "|" in text else text.split())]
    ended = bench.guarded(bench.write(SCRIPT), *words, options=OPTIONS, env=ENVIRONMENT)
    assert ended.code == 1, ended
    report = bench.cli("report", str(bench.path), "--format", "html", env=ENVIRONMENT)
    assert report.code == 0, report
    files = [file for file in bench.path.rglob("*") if file.is_file()]
    assert any(file.suffix == ".safetensors" for file in files)
    leaks = {
        f"{secret} in {file.name}"
        for file in files
        for secret in SECRETS
        if secret.encode() in file.read_bytes()
    }
    assert leaks == set()
    made = [bench.path, *bench.path.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600, 0o700}


def test_a_shared_run_has_the_permissions_of_the_umask(bench: Bench):
    os.umask(umask := os.umask(0o077))
    (bench.folder / "read.json").write_text(json.dumps(READ))
    options = (*OPTIONS, "--set", "run.shared=true")
    bench.guarded(bench.write(SCRIPT), options=options, env=ENVIRONMENT)
    assert bench.cli("report", str(bench.path), "--format", "html").code == 0
    made = [bench.path, *bench.path.rglob("*")]
    assert any(path.suffix == ".safetensors" for path in made)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in made}
    assert modes == {0o666 & ~umask, 0o777 & ~umask}
