"""The error for everything that a user can correct, and the quotation of foreign text in it."""


class CommunisError(Exception):
    """A refusal that says what was found, what was expected and what to do."""


def visible(text: str, layout: str = "\t\n") -> str:
    """Returns the text with escapes such as \\x1b in place of characters that are invisible or
    control a terminal: names can come from clients and from folders of others. layout: characters
    that stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in layout else _written_out(c) for c in text)


def readable(reason: str, limit: int = 300) -> str:
    """Returns a short, printable line. A reason may quote what a client sent."""
    text = visible(reason, layout="")
    return text if len(text) <= limit else text[:limit] + " ..."


def plain(error: Exception) -> str:
    """Returns what an error says, without the number and the file's name that Python adds to errors
    of the system."""
    return getattr(error, "strerror", None) or str(error)


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode()
