"""Keeps secrets out of run folders, checkpoints and reports: by name, by shape and by value.

    >>> redact_command(["train.py", "--lr", "3e-4", "--hf-token", "abc", "wandb.api_key=xyz"])
    ['train.py', '--lr', '3e-4', '--hf-token', '***', 'wandb.api_key=***']
    >>> redact_text("cannot log in: https://host/v1?api_key=xyz&page=2")
    'cannot log in: https://host/v1?api_key=***&page=2'

What stands under the name of a secret is hidden, and so are tokens of well-known services, what
looks drawn at random, and the values of secret variables of the environment, wherever they stand.
Rather one harmless value too many than one secret written to a folder that is mailed around.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

HIDDEN = "***"

# Secret wherever they stand in a name: DB_PASSWORD_OLD, my_credentials, api_key_prod.
_ANYWHERE = re.compile(
    r"(?:^|_)(?:pass(?:word|wd|phrase)s?|secrets?|creds?|credentials?|authorization|bearer"
    r"|(?:api|access|private|auth|secret|ssh|signing|encryption|license)_?keys?"
    r"|(?:api|access|auth|bearer|refresh|session|id|hf|github|slack|bot)_?tokens?"
    r"|(?:db|user|smtp|mail|root|admin|sql|redis|ftp|my)_?pass)(?:_|$)"
)
# Secret at the end of a name, or before a word that says which of several it is.
_AT_THE_END = re.compile(
    r"(?:^|_)(?:auth|key|pass|pat|pw|pwd|tokens?)"
    r"(?:_(?:prod|production|dev|staging|test|live|old|new|backup|main|env|value|str|\d+))?$"
)
# Words before those at the end that make them harmless: --max-tokens, pad_token, sort_key.
_HARMLESS = re.compile(
    r"(?:^|_)(?:n|num|nr|max|min|new|total|per|seq|prompt|context|batch|pad|bos|eos|cls|mask|unk|sep"
    r"|special|input|output|image|visual|extra|register|text|next|first|last|all|kept)_tokens?(?:_|$)"
    r"|(?:^|_)(?:sort|cache|primary|foreign|state|dict|group|metric|label|image|data|column|batch"
    r"|rng|prng|loss|model|module|layer|missing|unexpected|public)_key(?:_|$)"
    r"|(?:^|_)(?:use|no|with|has|need|forward|backward|n|num|one|single)_(?:auth|pass)(?:_|$)"
)
_PLAIN = re.compile(r"(?i)true|false|none|null|yes|no|[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?")

# Values that give themselves away whatever they are called.
_TELLTALE = re.compile(
    r"""
    \b(?: hf_[A-Za-z0-9]{16,} | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_\w{20,}
        | glpat-[\w-]{16,} | xox[abeprs]-[\w-]{10,} | xapp-[\w-]{10,} | sk-[\w-]{16,}
        | [srpw][khk]_(?:live|test)_\w{10,} | whsec_\w{16,} | A[KS]IA[A-Z0-9]{12,}
        | AIza[\w-]{30,} | ya29\.[\w-]{20,} | npm_\w{20,} | pypi-[\w-]{20,} | dckr_pat_[\w-]{16,}
        | shpat_\w{16,} | SG\.[\w-]{16,}\.[\w-]{16,} | r8_\w{20,} | gsk_\w{20,} | xai-\w{20,}
        | nvapi-[\w-]{20,} | dapi[a-f0-9]{32} | wandb_v1_\w{10,}
        | eyJ[\w-]{10,}\.[\w-]{10,}(?:\.[\w-]{5,})? )
    | (?<=hooks\.slack\.com/services/)[\w/]+
    | (?<=discord\.com/api/webhooks/)[\w/-]+
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | (?<=://)[^\s/:@'"]*:[^\s/'"]+(?=@)
    | (?<=https://)[^\s/:@'"]+(?=@) | (?<=http://)[^\s/:@'"]+(?=@)
    | (?<![\w/.+-])(?!mailto)[\w.+-]+:[^\s/:@'",]{3,}(?=@[\w-]+[.:\w-]*)
    | (?<=[Bb]earer\ )[\w.~+/=-]{8,}
    | (?<=[Bb]asic\ )[\w+/]{6,}={0,2}(?![\w\ ])
    """,
    re.VERBOSE | re.DOTALL,
)
_HEADER = re.compile(
    r"(?i)(?P<name>\b(?:proxy-)?authorization|\bcookie)(?P<is>[\"']?\s*[:=]\s*[\"']?)(?P<value>[^\"'\r\n]+)"
)
_NAME = re.compile(
    r"(?<![\w.-])[.-]*(?P<name>[A-Za-z_][\w.-]*)(?P<quote>\\?[\"']?)(?P<is>\s*[:=]\s*)"
)
_VALUE = re.compile(r"""\\?"[^"]*"|\\?'[^']*'|[^\s&,;"'\\})\]]{1,4096}""")
_OPTION = re.compile(r"[+-]*[\w.-]+")
_CALL = re.compile(r"\w+(?:\.\w+)*[(\[]")
_DRAWN = re.compile(r"(?<![A-Za-z0-9+=])[A-Za-z0-9+]{20,}={0,2}(?![A-Za-z0-9+=])")
_MIXED = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z])[^\s./]{8,}")
# What every one of these shapes has somewhere.
_MAYBE = re.compile(r"[=:]|[\w+-]{14,}|[Bb]earer|[Bb]asic")
_SHORTEST = 6
"""Characters of a value that is searched for in other texts."""
_COMMON = frozenset(("default", "disabled", "enabled", "password", "secret", "changeme", "offline"))
_learned: set[str] = set()
"""Values that stood under the name of a secret somewhere in this process."""


# ---------------------------------------------------------------------- names


def is_secret(name: str) -> bool:
    """Whether an option or a variable of this name holds something to hide."""
    return is_surely_secret(name) or _may_be_secret(name)


@functools.lru_cache(maxsize=4096)
def is_surely_secret(name: str) -> bool:
    """Whether nothing else has such a name: a password, an API key; not any key or token."""
    return _ANYWHERE.search(_words(name)) is not None


@functools.lru_cache(maxsize=4096)
def _may_be_secret(name: str) -> bool:
    words = _words(name)
    return _AT_THE_END.search(words) is not None and _HARMLESS.search(words) is None


def _words(name: str) -> str:
    words = re.findall(r"[A-Z]+s(?![a-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name[:200])
    return "_".join(words).lower()


def hides(name: str, value: str) -> bool:
    """Whether the value under a name is a secret; numbers and switches are none."""
    plain = _PLAIN.fullmatch(value) is not None
    if is_surely_secret(name):
        return bool(value) and (not plain or (len(value) > 3 and value.isdigit()))
    return _may_be_secret(name) and bool(value) and not plain


def seems_secret(name: str, value: str) -> bool:
    """Whether a name that may mean a secret has a value that looks like one.

    A ``key`` is mostly the name of a tensor; those of services have other names.
    """
    may_be = hides(name, value) and not _words(name).endswith("key")
    return may_be and _MIXED.fullmatch(value) is not None


# ---------------------------------------------------------------------- texts


def redact_text(text: str) -> str:
    """A text for people without secrets: by name, by shape and by value."""
    return _redacted(text, known_values())


def gives_itself_away(text: str) -> bool:
    """Whether a secret is in a text by name or by shape, whatever is known of values."""
    return _MAYBE.search(text) is not None and _redacted(text, ()) != text


def _redacted(text: str, known: Sequence[str]) -> str:
    shown = _pairs(_HEADER.sub(_header, text), _hidden_in_text)
    return _DRAWN.sub(_drawn, _without(shown, known))


def redact_code(text: str) -> str:
    """Source code without the texts that it gives to names of secrets, and well-known tokens."""
    return _DRAWN.sub(_drawn, _without(_pairs(text, _hidden_in_code), known_values()))


def _without(text: str, known: Sequence[str]) -> str:
    if len(text) < _SHORTEST:
        return text
    for value in known:
        if value in text:
            text = text.replace(value, HIDDEN)
    return _TELLTALE.sub(HIDDEN, text)


def hide_known_in(value: Any) -> Any:
    """What is written down: every text in dicts and lists as ``redact_code`` would show it.

    Words that merely look drawn at random stay: they may be a part of a path or a name.
    """
    return _every_text(value, known_values())


def _every_text(value: Any, known: Sequence[str]) -> Any:
    if isinstance(value, str):
        return _without(_pairs(value, _hidden_in_code), known)
    if isinstance(value, Mapping):
        return {key: _every_text(one, known) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_every_text(one, known) for one in value]
    return value


def _header(found: re.Match[str]) -> str:
    return f"{found['name']}{found['is']}{HIDDEN}"


def _pairs(text: str, hidden: Callable[[re.Match[str], str], bool]) -> str:
    """The text with the values of those pairs of name and value that are secret hidden."""
    parts: list[str] = []
    at = 0
    while found := _NAME.search(text, at):
        # What is no pair may begin one: `error: password=abc`.
        parts.append(text[at : found.end()])
        at = found.end()
        # `key: layer1.weight` is no secret, `token=abc` is one, `'key': 'abc'` too.
        said = found["quote"] or "=" in found["is"] or is_surely_secret(found["name"])
        value = _VALUE.match(text, at) if said and is_secret(found["name"]) else None
        if value is not None and hidden(found, value[0]):
            mark = value[0][: len(value[0]) - len(value[0].lstrip("\\\"'"))]
            parts.append(f"{mark}{HIDDEN}{mark}")
            at = value.end()
    return "".join((*parts, text[at:]))


def _hidden_in_text(found: re.Match[str], value: str) -> bool:
    if _CALL.match(value) or not hides(found["name"], value.strip("\\\"'")):
        return False  # a call in a line of code is no value
    return found["name"].lower() != "key" or not value.isidentifier()


def _hidden_in_code(found: re.Match[str], value: str) -> bool:
    return value[0] in "\"'\\" and hides(found["name"], value.strip("\\\"'"))


def _drawn(found: re.Match[str]) -> str:
    return HIDDEN if looks_drawn(found[0]) else found[0]


def looks_drawn(word: str) -> bool:
    """Whether a word looks drawn at random: both cases among digits, no digest and no name."""
    kinds = ["d" if c.isdigit() else "u" if c.isupper() else "l" for c in word.rstrip("=")]
    changes = sum(a != b for a, b in itertools.pairwise(kinds))
    runs = len(re.findall(r"\d+", word))
    return len(set(kinds)) == 3 and runs >= 3 and changes >= 0.4 * len(kinds)


# ---------------------------------------------------------------------- values


def known_values() -> list[str]:
    """Values that are secret wherever they stand, the longest first."""
    found = {*_learned, *_of_command(tuple(sys.argv))}
    for name, value in os.environ.items():
        found.update(_of_variable(name, value))
    return sorted(found, key=len, reverse=True)


def learn(values: Mapping[Any, Any], depth: int = 2) -> None:
    """Know the values that stand under names of secrets, also within dicts and namespaces."""
    for name, value in list(values.items()):
        if isinstance(value, str):
            _learned.update(_of_variable(str(name), value))
        elif depth and isinstance(value, dict):
            learn(value, depth - 1)
        elif depth and type(value).__name__ in ("Namespace", "SimpleNamespace"):
            learn(vars(value), depth - 1)


@functools.lru_cache(maxsize=4096)
def _of_variable(name: str, value: str) -> tuple[str, ...]:
    """What is secret in the value of a variable."""
    if hides(name, value) and _tells(value) and (is_surely_secret(name) or len(value) > 7):
        return (value,)
    return tuple(
        one.rpartition(":")[2] for one in _in_urls(value) if _tells(one.rpartition(":")[2])
    )


def _in_urls(value: str) -> Iterator[str]:
    return (found[0] for found in re.finditer(r"(?<=://)[^\s/@]*:[^\s/]+(?=@)", value))


def _tells(value: str) -> bool:
    short = len(value) < _SHORTEST or value.lower() in _COMMON
    return not short and not os.path.exists(value[:1000])


@functools.lru_cache(maxsize=8)
def _of_command(words: tuple[str, ...]) -> tuple[str, ...]:
    """Values of secret options of a command line."""
    found = (word if at is None else word[at:] for word, at in _options(words) if at != -1)
    return tuple(value for value in found if _tells(value))


# ---------------------------------------------------------------------- command lines


def redact_command(command: Sequence[str]) -> list[str]:
    """A command line with the values of secret options hidden.

    Understands ``--token=X``, ``--token X``, ``-password X``, ``-p X`` and ``a.b.key=X``.
    """
    shown = {None: lambda word: HIDDEN, -1: redact_text}
    return [
        shown[at](word) if at in shown else f"{word[:at]}{HIDDEN}" for word, at in _options(command)
    ]


def same_command(then: Sequence[str], now: Sequence[str]) -> bool:
    """Whether a recorded command line is this one; of what is hidden nothing is known."""
    before, here = redact_command(then), redact_command(now)
    return len(before) == len(here) and all(map(_fits, before, here, now))


def _fits(before: str, here: str, now: str) -> bool:
    parts = (re.escape(part) for part in before.split(HIDDEN))
    return before == here or (HIDDEN in before and re.fullmatch(".*".join(parts), now) is not None)


def _options(command: Sequence[str]) -> Iterator[tuple[str, int | None]]:
    """Each word, and where its secret begins: None for all of it, -1 where it has no name."""
    before = ""
    for word in command:
        if before and _is_value(word) and _hides_option(before, word):
            yield word, None
            before = ""
            continue
        name, equals, value = word.partition("=")
        option = _OPTION.fullmatch(name) is not None  # an address with a question has no name
        named = bool(equals) and option and hides(name.removeprefix("-D"), value)
        yield word, len(name) + 1 if named else -1
        before = word if word.startswith("-") and not equals else ""


def _is_value(word: str) -> bool:
    """Whether a word can be the value of the option before it."""
    option = word.startswith("--") or re.fullmatch(r"-(?:[a-z-]+|\w)", word) is not None
    return not option


def _hides_option(name: str, value: str) -> bool:
    if name == "-p":  # a password for many programs, a port or a probability for others
        return _PLAIN.fullmatch(value) is None and not os.path.exists(value[:1000])
    if name in ("-u", "--user"):
        return ":" in value
    return hides(name, value)
