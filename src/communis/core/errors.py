"""The error of everything that a user can mend, and how foreign text is quoted in one."""


class CommunisError(Exception):
    """A refusal that names what was found, what was expected and what mends it."""


def visible(text: str, layout: str = "\t\n") -> str:
    """The text with characters that cannot be seen, or would steer a terminal, written out, such as
    \\x1b: names can come from clients and folders of others. layout: those that stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in layout else _written_out(c) for c in text)


def readable(reason: str, limit: int = 300) -> str:
    """A reason may quote what a client sent: one line that can be printed, and short."""
    text = visible(reason, layout="")
    return text if len(text) <= limit else text[:limit] + " ..."


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode()
