"""The error of everything that a user can mend."""


class CommunisError(Exception):
    """A refusal that names what was found, what was expected and what mends it."""


def readable(reason: str, limit: int = 300) -> str:
    """A reason may quote what a client sent: made printable and short."""
    text = "".join(c if c.isprintable() else "?" for c in reason)
    return text if len(text) <= limit else text[:limit] + " ..."
