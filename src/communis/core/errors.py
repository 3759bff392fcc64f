"""The error of everything that a user can mend, and how foreign text is quoted in one."""

import re

# Control characters, marks that turn the direction of writing, line separators, and halves of
# characters, which no terminal can be sent.
STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class CommunisError(Exception):
    """A refusal that names what was found, what was expected and what mends it."""


def visible(text: str, layout: str = "\t\n") -> str:
    """The text with characters that would steer a terminal written out, such as \\x1b: names can
    come from clients and folders of others. layout: the control characters that stay."""
    return STEERING.sub(
        lambda found: found[0] if found[0] in layout else _written_out(found[0]), text
    )


def readable(reason: str, limit: int = 300) -> str:
    """A reason may quote what a client sent: one line that can be printed, and short."""
    text = visible(reason, layout="")
    return text if len(text) <= limit else text[:limit] + " ..."


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode()
