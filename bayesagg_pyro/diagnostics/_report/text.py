"""Names and messages as text that does what it says, wherever it is shown."""

from __future__ import annotations

import unicodedata


def visible(text: object) -> str:
    """One line without control characters: they are shown as escapes, line breaks as blanks.

    What would move a terminal's cursor, turn the direction of writing or fail to be encoded stands
    there to be seen.
    """
    return "".join(_shown(letter) for letter in str(text))


def _shown(letter: str) -> str:
    if letter.isprintable() or unicodedata.category(letter) == "Zs":
        return letter
    if letter.isspace():
        return " "
    return letter.encode("unicode_escape").decode()
