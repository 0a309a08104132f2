"""Keeps secrets out of run folders and reports: command lines are recorded without them.

    >>> redact_command(["train.py", "--lr", "3e-4", "--hf-token", "abc", "wandb.api_key=xyz"])
    ['train.py', '--lr', '3e-4', '--hf-token', '***', 'wandb.api_key=***']

Names decide, because values look like anything. Rather one harmless value too many hidden
(``--pad-token``) than one secret written to a folder that is mailed around.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"

# An option is secret when its last word is one of these: --api-key and wandb.token are,
# --key-dim and --max-tokens are not.
_SECRET_WORDS = frozenset(
    {
        "auth", "authorization", "apikey", "bearer", "credential", "credentials", "key",
        "passphrase", "passwd", "password", "pat", "pw", "pwd", "secret", "token",
    }
)  # fmt: skip

# Values that give themselves away whatever they are called: tokens of well-known services,
# and the password in a URL.
_TELLTALE = re.compile(
    r"""
    \b(?: hf_[A-Za-z0-9]{16,} | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_\w{20,}
        | glpat-[\w-]{16,} | xox[abprs]-[\w-]{10,} | sk-[\w-]{16,} | AKIA[A-Z0-9]{12,}
        | AIza[\w-]{30,} | ya29\.[\w-]{20,} | eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,} )
    | (?<=://)[^\s/:@]*:[^\s/@]+(?=@)
    | (?<=[Bb]earer\ )[\w.~+/=-]{8,}
    """,
    re.VERBOSE,
)


def redact_text(text: str) -> str:
    """A text with well-known tokens and passwords in URLs hidden."""
    return _TELLTALE.sub(HIDDEN, text)


def redact_command(command: Sequence[str]) -> list[str]:
    """A command line with the values of secret options hidden.

    Understands ``--token=X``, ``--token X``, ``-password X`` and ``a.b.key=X``.
    """
    shown: list[str] = []
    value_is_secret = False
    for argument in command:
        if value_is_secret and not argument.startswith("-"):
            shown.append(HIDDEN)
            value_is_secret = False
            continue
        name, equals, value = argument.partition("=")
        secret = is_secret(name)
        if equals and secret and value:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(redact_text(argument))
        value_is_secret = secret and not equals and argument.startswith("-")
    return shown


def is_secret(name: str) -> bool:
    """Whether an option or a variable of this name holds something to hide."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return bool(words) and words[-1].lower() in _SECRET_WORDS
